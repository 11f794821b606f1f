#!/usr/bin/env python3
"""Compares the data script with its peers in one run: Model Garden's create_pretraining_data and
Hugging Face's datasets.

    make bench TEXT=corpus.txt        (without TEXT: on the bundled sample, repeated)

Every row is a whole process. Its start-up time, measured right before it by the same command on a
text of a few lines, is subtracted for all alike. All use the same vocabulary. The Hugging Face row
runs under --hf_python, an environment with `datasets` and `tokenizers`, if given.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from helpers.command import (
    add_python,
    benchmark_parser,
    load_json,
    names_among,
    script_command,
    work_folder,
)
from helpers.measure import folder_bytes, run
from helpers.process import HERE, tensorflow_environment
from helpers.report import origin, print_origin, print_table


def first_bytes(source, target, num_bytes):
    """Copies the first whole documents of a text, about `num_bytes` bytes; repeats a shorter text
    with a number added to each line.
    """
    size, copy = 0, 0
    with open(target, "wb") as out:
        while size < num_bytes:
            with open(source, "rb") as file:
                for line in file:
                    if size >= num_bytes and not line.strip():
                        break
                    # An exactly repeated text would be cached and compressed better than real text,
                    # so each copy gets a number in every line.
                    line = line if copy == 0 or not line.strip() else line[:-1] + b" (%d)\n" % copy
                    out.write(line)
                    size += len(line)
            out.write(b"\n")
            copy += 1
    return target


def ours(text, vocab, folder, *flags):
    files = dict(input_file=text, vocab_file=vocab, output_file=f"{folder}/x.tfrecord")
    return script_command("create_pretraining_data.py", *flags, **files)


def garden(text, vocab, folder, *flags):
    module = [sys.executable, "-m", "official.nlp.data.create_pretraining_data"]
    return [
        *module,
        f"--input_file={text}",
        f"--vocab_file={vocab}",
        f"--output_file={folder}/x.tfrecord",
        "--do_lower_case",
        *flags,
    ]


def hugging_face(python, text, vocab, folder, kind):
    return [python, HERE / "data_hugging_face.py", text, vocab, folder, "128", kind]


def count_records(folder):
    """Number of records that a job wrote; None when it wrote no TFRecord files."""
    from bert_gpu.data.records import RecordSet

    shards = [str(path) for path in pathlib.Path(folder).glob("*.tfrecord")]
    return len(RecordSet(shards)) if shards else None


class Bench:
    def __init__(self, args, work):
        self.args, self.work = args, pathlib.Path(work)
        self.vocab = self.work / "vocab" / "vocab.txt"
        self.tiny = first_bytes(args.text, self.work / "tiny.txt", 2000)
        self.text = first_bytes(args.text, self.work / "text.txt", args.megabytes * 10**6)
        files = dict(input_file=self.text, output_file=f"{self.vocab.parent}/x.tfrecord")
        kind = dict(dupe_factor=1, objective="packed", masking="dynamic")
        run(script_command("create_pretraining_data.py", **files, **kind), watch=False)
        self.num_tokens = load_json(self.vocab.parent / "dataset.json")["num_tokens"]

    def measure(self, make, repeats=1, text=None):
        """(seconds without start-up, Run, folder) of a command made by make(text, folder): the
        median of `repeats` pairs of a start-up and a whole run, one right after the other; None
        where a run took no longer than its start-up.
        """
        runs = []
        for _ in range(repeats):
            idle = run(make(self.tiny, self.fresh("tiny")), watch=False).seconds
            folder = self.fresh("out")
            whole = run(make(text or self.text, folder))
            runs.append((whole.seconds - idle, whole))
        seconds, whole = sorted(runs, key=lambda pair: pair[0])[len(runs) // 2]
        return (seconds if seconds > 0 else None), whole, folder

    def fresh(self, name):
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return str(folder)

    def speed(self):
        """Compares the jobs; every job reads the same text once per pass."""
        jobs = []
        for dupe in (1, 10):
            flags = [
                f"--dupe_factor={dupe}",
                "--max_seq_length=128",
                "--max_predictions_per_seq=20",
            ]
            peer, mine = f"Model Garden nsp, dupe {dupe}", f"bert-gpu nsp static, dupe {dupe}"
            jobs.append((peer, lambda t, f, flags=flags: garden(t, self.vocab, f, *flags), dupe, 1))
            jobs.append(
                (
                    mine,
                    lambda t, f, flags=flags: ours(
                        t, self.vocab, f, *flags, "--validation_share=0"
                    ),
                    dupe,
                    self.args.runs,
                )
            )
        if self.args.hf_python:
            for name, kind in HUGGING_FACE_JOBS.items():
                jobs.append(
                    (
                        name,
                        lambda t, f, kind=kind: hugging_face(
                            self.args.hf_python, t, self.vocab, f, kind
                        ),
                        1,
                        1,
                    )
                )
        packed = ["--objective=packed", "--masking=dynamic", "--validation_share=0"]
        jobs.append(
            (
                "bert-gpu packed dynamic",
                lambda t, f: ours(t, self.vocab, f, *packed),
                1,
                self.args.runs,
            )
        )
        results, rows = {}, []
        for name, make, passes, repeats in jobs:
            seconds, one, folder = self.measure(make, repeats)
            num_records = count_records(folder)
            speed = passes * self.num_tokens / seconds if seconds else None
            results[name] = dict(tokens_per_second=speed, instances=num_records)
            rows.append(
                [
                    name,
                    shown(seconds, ".2f"),
                    shown(speed and speed / 1e6, ".2f"),
                    "" if num_records is None else f"{num_records:,}",
                    "" if num_records is None else shown(seconds and num_records / seconds, ",.0f"),
                    f"{one.peak_bytes / 1e6:,.0f}",
                    f"{folder_bytes(folder) / 1e6:,.1f}",
                ]
            )
            print(f"... {name}: {shown(seconds, '.2f')} s", flush=True)
        size = os.path.getsize(self.text) / 1e6
        print(
            f"\n{size:.1f} MB of text, {self.num_tokens:,} "
            "tokens a pass; two cores; start-up taken off\n"
        )
        print_table(
            ["job", "seconds", "M tokens/s", "instances", "instances/s", "peak MB", "written MB"],
            rows,
        )
        self.compare(results)

    def compare(self, results):
        def ratio(ours, theirs, what="tokens_per_second"):
            mine, peers = results[ours][what], results[theirs][what]
            return mine / peers if mine and peers else None

        print()
        for dupe, target in ((1, 20), (10, 12)):
            mine, peer = f"bert-gpu nsp static, dupe {dupe}", f"Model Garden nsp, dupe {dupe}"
            instances = ratio(mine, peer, "instances")
            print(
                f"nsp, dupe {dupe}: {shown(ratio(mine, peer), '.1f')} x Model Garden "
                f"(target {target}); {instances:.3f} of their instances (0.98-1.02)"
            )
        packed = "bert-gpu packed dynamic"
        print(
            f"packed dynamic: {shown(ratio(packed, 'Model Garden nsp, dupe 1'), '.1f')} "
            "x Model Garden's nsp (target 40)"
        )
        for name in HUGGING_FACE_JOBS:
            if name in results:
                print(f"packed dynamic: {shown(ratio(packed, name), '.1f')} x {name} (target 25)")

    def memory(self):
        """Peak memory as the text grows, with two workers."""
        rows = []
        for megabytes in self.args.memory_megabytes:
            text = first_bytes(self.args.text, self.work / "grown.txt", megabytes * 10**6)
            one = run(
                ours(text, self.vocab, self.fresh("out"), "--dupe_factor=1", "--num_workers=2")
            )
            rows.append(
                [
                    f"{os.path.getsize(text) / 1e6:.0f}",
                    f"{one.peak_bytes / 1e6:,.0f}",
                    f"{one.seconds:.1f}",
                ]
            )
        print(
            "\npeak memory, nsp static, dupe 1, two workers (target: "
            "within 10 % of each other, at most 2,000 MB)\n"
        )
        print_table(["MB of text", "peak MB", "seconds"], rows)

    def tokenizer_share(self):
        """Speed of one worker's whole job as a share of the bare tokenizer's, and where the rest
        goes.
        """
        import cProfile
        import pstats

        import tensorflow as tf

        from bert_gpu.data.build import open_job
        from bert_gpu.data.config import DataConfig
        from bert_gpu.data.shards import ShardBuilder
        from bert_gpu.text import corpus
        from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tokenizer = WordPieceTokenizer(str(self.vocab), True)
        lines = [
            line
            for block in corpus.plan_blocks([str(self.text)], 1 << 23)
            for document in corpus.read_block(block)
            for line in document
        ]
        size = sum(map(len, lines))
        tokenizer.tokenize(lines[:1000])
        bare = timed(lambda: tokenizer.tokenize(lines))
        rows = [["tokenizer alone", f"{bare:.2f}", f"{size / bare / 1e6:.1f}", "1.00"]]
        profiles = {}
        for name, settings in (
            ("packed dynamic", dict(objective="packed", masking="dynamic")),
            ("nsp static, dupe 1", dict(dupe_factor=1)),
        ):
            folder = self.fresh("out")
            config = DataConfig(
                input_file=str(self.text),
                output_file=f"{folder}/x.tfrecord",
                vocab_file=str(self.vocab),
                validation_share=0.0,
                **settings,
            )
            plan = open_job(config).plan
            worker = ShardBuilder(config, str(self.vocab), plan.split)
            worker.write_shard(plan.shards()[0], lambda *done: None)  # compiles

            def whole(plan=plan, worker=worker):
                for shard in plan.shards():
                    worker.write_shard(shard, lambda *done: None)

            seconds = timed(whole)
            rows.append(
                [
                    f"whole job, {name}",
                    f"{seconds:.2f}",
                    f"{size / seconds / 1e6:.1f}",
                    f"{bare / seconds:.2f}",
                ]
            )
            profiler = cProfile.Profile()
            profiler.runcall(whole)
            profiles[name] = pstats.Stats(profiler)
        print("\none worker, one thread: share of the bare tokenizer's speed\n")
        print_table(["work", "seconds", "MB/s", "share"], rows)
        for name, stats in profiles.items():
            print(f"\nprofile of {name}: seconds in each part, with what it calls")
            for part, seconds in sorted(part_seconds(stats).items(), key=lambda item: -item[1]):
                print(f"  {part:<28}{seconds:6.2f}")

    def reading(self):
        """Tokens per second of the input pipeline on one core, and the time to the first batch
        after a million records.
        """
        rows = []
        for name, flags in (
            ("static nsp", ["--dupe_factor=3"]),
            ("compact packed, masked when read", ["--objective=packed", "--masking=dynamic"]),
        ):
            folder = self.fresh("out")
            run(ours(self.text, self.vocab, folder, *flags), watch=False)
            result = run_reader(folder)
            rows.append(
                [
                    name,
                    f"{result['tokens_per_second'] / 1e6:.2f}",
                    f"{result['seek_seconds'] * 1e3:.0f}",
                    f"{result['num_records']:,}",
                ]
            )
        print("\ninput pipeline, one core, batches of 256 rows (target: at least 1 M tokens/s)\n")
        print_table(
            ["records", "M tokens/s", "ms to first batch after 1 M records", "records in the set"],
            rows,
        )


TABLES = {
    "speed": Bench.speed,
    "memory": Bench.memory,
    "share": Bench.tokenizer_share,
    "reading": Bench.reading,
}
NOT_MEASURABLE = "within its start-up: more --megabytes"
HUGGING_FACE_JOBS = {
    "Hugging Face run_mlm.py's way": "transformers",
    "Hugging Face tokenizers, ids only": "tokenizers",
}
PARTS = {
    "read_block": "reading text",
    "tokenize": "tokenizer",
    "pair_instances": "instances",
    "packed_rows": "packing",
    "tokens": "rows of tokens",
    "_static_features": "masking and features",
    "compact_features": "features",
    "encode_examples": "encoding records",
    "write": "checksums and writing",
}


def shown(value, form):
    return NOT_MEASURABLE if value is None else format(value, form)


def part_of(function):
    """The part of a function of a profile, (path, line, name); None = of no part."""
    path, _, name = function
    return PARTS.get(name) if "bert_gpu" in path else None


def part_seconds(stats):
    """{part: seconds with what it calls} of a pstats.Stats; calls within a part count once."""
    parts = {}
    for function, (_, _, _, cumulative, callers) in stats.stats.items():
        part = part_of(function)
        if part:
            inner = sum(call[3] for caller, call in callers.items() if part_of(caller) == part)
            parts[part] = parts.get(part, 0.0) + cumulative - inner
    return parts


def timed(function):
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def run_reader(folder):
    command = [sys.executable, HERE / "data_reader.py", folder]
    one_core = {min(os.sched_getaffinity(0))}
    result = subprocess.run(
        command,
        env=tensorflow_environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, one_core),  # before anything counts the cores
    )
    return json.loads(result.stdout.splitlines()[-1])


def make_parser():
    parser = benchmark_parser(__doc__, "text")
    parser.add_argument(
        "--megabytes",
        type=float,
        default=20.0,
        help="size of the text to use, from its beginning, MB",
    )
    parser.add_argument(
        "--memory_megabytes",
        type=lambda text: [float(part) for part in text.split(",")],
        default=[20.0, 71.0, 300.0],
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each of our jobs; the median is printed"
    )
    add_python(parser, "--hf_python", "Hugging Face's datasets")
    parser.add_argument(
        "--part",
        type=names_among(TABLES),
        default=list(TABLES),
        help="comma-separated names of tables",
    )
    return parser


def main():
    options = make_parser().parse_args()
    print_origin(origin())
    with work_folder() as work:
        bench = Bench(options, work)
        for name in options.part:
            TABLES[name](bench)


if __name__ == "__main__":
    main()
