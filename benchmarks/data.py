#!/usr/bin/env python3
"""Compares the data script with its peers in one run: Model Garden's create_pretraining_data,
Hugging Face's datasets, and, for near duplicates, datasketch and rensa.

    make bench TEXT=corpus.txt        (without TEXT: on the bundled sample, repeated)

Every row is a whole process. Its start-up time, measured right before it by the same command on a
text of a few lines, is subtracted for all alike. All use the same vocabulary. The peers of Python
run under --hf_python, an environment with `datasets` and `tokenizers`, `datasketch` and `rensa`, if
given.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from helpers.command import (
    add_python,
    benchmark_parser,
    load_json,
    names_among,
    numbers,
    script_command,
    work_folder,
)
from helpers.measure import folder_bytes, run
from helpers.process import HERE, tensorflow_environment
from helpers.report import origin, print_origin, print_table

NOT_MEASURABLE = "within its start-up: more --megabytes"
GARDEN = "Model Garden nsp, dupe {}"
OURS = "bert-gpu nsp static, dupe {}"
PACKED = "bert-gpu packed dynamic"
HUGGING_FACE = {
    "Hugging Face run_mlm.py's way": "transformers",
    "Hugging Face tokenizers, ids only": "tokenizers",
}
BYTE_LEVEL = "bert-gpu packed dynamic, byte-level BPE"
BYTE_LEVEL_PEER = "Hugging Face tokenizers, ids only, byte-level BPE"
NEAR_DUPLICATES = 0.8
PACKED_FLAGS = dict(objective="packed", masking="dynamic")
TARGETS = {1: 20, 10: 12}  # tokens/s divided by Model Garden's, by dupe_factor


def first_bytes(source, target, num_bytes):
    """Copy the first whole documents of a text, about `num_bytes` bytes; repeat a shorter text with
    a number added to each line.
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


def ours(text, vocab, folder, **flags):
    """Return the command of our data script."""
    files = dict(input_file=text, vocab_file=vocab, output_file=f"{folder}/x.tfrecord")
    return script_command("create_pretraining_data.py", **files, **flags)


def learn_bpe(text, file):
    """Return the command that learns a byte-level BPE."""
    flags = dict(input_file=text, tokenization="BPE", vocab_file=file, vocab_size=32768)
    flags = [f"--{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-m", "bert_gpu", "vocab", *flags, "--nodo_lower_case", "--quiet"]


def garden(text, vocab, folder, **flags):
    """Return the command of Model Garden's data script."""
    files = dict(input_file=text, vocab_file=vocab, output_file=f"{folder}/x.tfrecord")
    flags = [f"--{flag}={value}" for flag, value in (files | flags).items()]
    module = [sys.executable, "-m", "official.nlp.data.create_pretraining_data"]
    return [*module, "--do_lower_case", *flags]


def count_records(folder):
    """Return the number of records that a job wrote; None when it wrote no TFRecord files."""
    from bert_gpu.data.records import RecordSet

    shards = [str(path) for path in pathlib.Path(folder).glob("*.tfrecord")]
    return len(RecordSet(shards)) if shards else None


def in_words(value, form):
    return NOT_MEASURABLE if value is None else format(value, form)


class Bench:
    """A text, its vocabulary and the tables of jobs on them. work: folder for both."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.vocab = work / "vocab" / "vocab.txt"
        self.tiny = first_bytes(options.text, work / "tiny.txt", 2000)
        self.text = first_bytes(options.text, work / "text.txt", options.megabytes * 10**6)
        files = dict(input_file=self.text, output_file=f"{self.vocab.parent}/x.tfrecord")
        flags = dict(dupe_factor=1, **PACKED_FLAGS)
        run(script_command("create_pretraining_data.py", **files, **flags), watch=False)
        self.num_tokens = load_json(self.vocab.parent / "dataset.json")["num_tokens"]

    def fresh(self, name="out"):
        """Return the path of an empty folder."""
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return str(folder)

    def jobs(self):
        """Yield (name, function (text, folder) -> command, passes over the text, runs)."""
        for dupe in self.options.dupes:
            flags = dict(dupe_factor=dupe, max_seq_length=128, max_predictions_per_seq=20)
            yield (
                GARDEN.format(dupe),
                lambda t, f, flags=flags: garden(t, self.vocab, f, **flags),
                dupe,
                1,
            )
            yield (
                OURS.format(dupe),
                lambda t, f, flags=flags: ours(t, self.vocab, f, validation_share=0, **flags),
                dupe,
                self.options.runs,
            )
        python = self.options.hf_python
        script = [python, HERE / "data_hugging_face.py"]
        for name, kind in HUGGING_FACE.items() if python else ():
            yield name, lambda t, f, kind=kind: [*script, t, self.vocab, f, "128", kind], 1, 1
        flags = PACKED_FLAGS | dict(validation_share=0)
        yield PACKED, lambda t, f: ours(t, self.vocab, f, **flags), 1, self.options.runs

    def byte_level(self):
        """Compare byte-level BPE on two processes, ours and theirs in turns, with one
        tokenizer.json.
        """
        bpe = self.work / "tokenizer.json"
        run(learn_bpe(self.text, bpe), watch=False)
        flags = PACKED_FLAGS | dict(validation_share=0, num_workers=2)
        script = [self.options.hf_python, HERE / "data_hugging_face.py"]
        jobs = {
            BYTE_LEVEL: lambda t, f: ours(t, bpe, f, **flags),
            BYTE_LEVEL_PEER: lambda t, f: [*script, t, bpe, f, "128", "tokenizers"],
        }
        seconds = {name: [] for name in jobs if self.options.hf_python or name == BYTE_LEVEL}
        for _ in range(self.options.runs):
            for name, each in seconds.items():
                each.append(self.measure(jobs[name], 1)[0])
        size = os.path.getsize(self.text) / 1e6
        print(f"\n{size:.1f} MB of text, two processes, start-up taken off\n")
        rows = []
        for name, each in seconds.items():
            middle = statistics.median([one for one in each if one] or [0.0])
            rows.append(
                [name, f"{middle:.2f}", f"{size / middle:.1f}" if middle else NOT_MEASURABLE]
            )
        print_table(["job", "seconds", "MB/s"], rows)

    def measure(self, make, repeats):
        """Return (seconds without start-up, peak bytes, folder) of a command: the median of
        `repeats` pairs of a start-up and a whole run, one right after the other; None as seconds
        where a run took no longer than its start-up.
        """
        seconds = []
        for _ in range(repeats):
            idle = run(make(self.tiny, self.fresh("tiny")), watch=False).seconds
            folder = self.fresh()
            whole = run(make(self.text, folder))
            seconds.append(whole.seconds - idle)
        median = statistics.median_low(seconds)
        return (median if median > 0 else None), whole.peak_bytes, folder

    def speed(self):
        """Compare the jobs; every job reads the same text once per pass."""
        speeds, counts, rows = {}, {}, []
        for name, make, passes, repeats in self.jobs():
            seconds, peak, folder = self.measure(make, repeats)
            count = counts[name] = count_records(folder)
            speed = speeds[name] = passes * self.num_tokens / seconds if seconds else None
            cells = [in_words(seconds, ".2f"), in_words(speed and speed / 1e6, ".2f")]
            cells.append("" if count is None else f"{count:,}")
            cells.append("" if count is None else in_words(seconds and count / seconds, ",.0f"))
            rows.append([name, *cells, f"{peak / 1e6:,.0f}", f"{folder_bytes(folder) / 1e6:,.1f}"])
            print(f"... {name}: {cells[0]} s", flush=True)
        size = os.path.getsize(self.text) / 1e6
        print(
            f"\n{size:.1f} MB of text, {self.num_tokens:,} tokens a pass; two cores; "
            "start-up taken off\n"
        )
        header = ["job", "seconds", "M tokens/s", "records", "records/s", "peak MB", "written MB"]
        print_table(header, rows)

        def times(mine, theirs):
            values = speeds[mine], speeds[theirs]
            return in_words(values[0] / values[1] if all(values) else None, ".1f")

        print()
        for dupe in self.options.dupes:
            mine, theirs = OURS.format(dupe), GARDEN.format(dupe)
            print(
                f"nsp, dupe {dupe}: {times(mine, theirs)} x Model Garden (target {TARGETS[dupe]}); "
                f"{counts[mine] / counts[theirs]:.3f} of their records (0.98-1.02)"
            )
        first = GARDEN.format(self.options.dupes[0])
        print(f"packed dynamic: {times(PACKED, first)} x Model Garden's nsp (target 40)")
        for name in HUGGING_FACE:
            if name in speeds:
                print(f"packed dynamic: {times(PACKED, name)} x {name} (target 25)")

    def memory(self):
        """Print the peak memory as the text grows, with two workers."""
        rows = []
        for megabytes in self.options.memory_megabytes:
            text = first_bytes(self.options.text, self.work / "grown.txt", megabytes * 10**6)
            one = run(ours(text, self.vocab, self.fresh(), dupe_factor=1, num_workers=2))
            size = os.path.getsize(text) / 1e6
            rows.append([f"{size:.0f}", f"{one.peak_bytes / 1e6:,.0f}", f"{one.seconds:.1f}"])
        print(
            "\npeak memory, nsp static, dupe 1, two workers (target: within 10 % of each other, "
            "at most 2,000 MB)\n"
        )
        print_table(["MB of text", "peak MB", "seconds"], rows)

    def tokenizer_share(self):
        """Print the speed of one worker's whole job as a share of the bare tokenizer's: processor
        time, because a machine is rarely idle, medians of runs in turns.
        """
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
        rows = []
        jobs = {"packed dynamic": PACKED_FLAGS, "nsp static, dupe 1": dict(dupe_factor=1)}
        for name, settings in jobs.items():
            config = DataConfig(
                input_file=str(self.text),
                output_file=f"{self.fresh()}/x.tfrecord",
                vocab_file=str(self.vocab),
                validation_share=0.0,
                **settings,
            )
            plan = open_job(config).plan
            worker = ShardBuilder(config, str(self.vocab), plan.split)

            def write(shards, worker=worker):
                for shard in shards:
                    worker.write_shard(shard, lambda *progress: None)

            write(plan.shards()[:1])  # compiles
            pairs = [
                (timed(tokenizer.tokenize, lines), timed(write, plan.shards()))
                for _ in range(self.options.runs)
            ]
            bare, seconds, share = (
                statistics.median(column)
                for column in zip(*((a, b, a / b) for a, b in pairs), strict=True)
            )
            cells = [f"{bare:.2f}", f"{seconds:.2f}", f"{size / seconds / 1e6:.1f}"]
            rows.append([name, *cells, f"{share:.2f}"])
        print("\none worker, one thread, processor seconds: share of the bare tokenizer's speed\n")
        print_table(["job", "tokenizer alone", "whole job", "MB/s", "share"], rows)

    def reading(self):
        """Print tokens per second of the input pipeline on one core, and the time to the first
        batch after a million records.
        """
        kinds = {
            "static nsp": dict(dupe_factor=3),
            "compact packed, masked when read": PACKED_FLAGS,
        }
        rows = []
        for name, flags in kinds.items():
            folder = self.fresh()
            run(ours(self.text, self.vocab, folder, **flags), watch=False)
            result = run_reader(folder)
            speed, seek = result["tokens_per_second"] / 1e6, 1e3 * result["seek_seconds"]
            rows.append([name, f"{speed:.2f}", f"{seek:.0f}", f"{result['num_records']:,}"])
        print("\ninput pipeline, one core, batches of 256 rows (target: at least 1 M tokens/s)\n")
        header = ["M tokens/s", "ms to first batch after 1 M records", "records in the set"]
        print_table(["records", *header], rows)

    def near_duplicates(self):
        """Print the speed of the search for near duplicates on one core, and the peak memory of a
        job that searches as the text grows, with two workers. A tenth of the documents are copies.
        """
        text = with_copies(self.text, self.work / "copies.txt")
        size = os.path.getsize(text) / 1e6
        python = self.options.hf_python
        kinds = {"ours": sys.executable} | (
            dict.fromkeys(("datasketch", "rensa"), python) if python else {}
        )
        results = {kind: [] for kind in kinds}
        for _ in range(self.options.runs):
            for kind, own in kinds.items():
                script = [own, HERE / "near_duplicates.py", kind, text, NEAR_DUPLICATES]
                results[kind].append(on_one_core(script))
        rows = []
        for kind, each in results.items():
            seconds = statistics.median(one["seconds"] for one in each)
            cells = [f"{seconds:.2f}", f"{size / seconds:.1f}", f"{each[0]['dropped']:,}"]
            rows.append([kind, *cells])
        print(f"\nnear duplicates of {size:.1f} MB of text, seconds of a processor\n")
        print_table(["library", "seconds", "MB/s", "dropped"], rows)
        rows = []
        for megabytes in self.options.memory_megabytes:
            grown = first_bytes(self.options.text, self.work / "grown.txt", megabytes * 10**6)
            text = with_copies(grown, self.work / "copies.txt")
            flags = PACKED_FLAGS | dict(num_workers=2, near_duplicates=NEAR_DUPLICATES)
            one = run(ours(text, self.vocab, self.fresh(), drop_repeated_lines=10, **flags))
            size = os.path.getsize(text) / 1e6
            cells = [f"{one.peak_bytes / 1e6:,.0f}", f"{one.peak_anonymous_bytes / 1e6:,.0f}"]
            rows.append([f"{size:.0f}", *cells, f"{one.seconds:.1f}"])
        print("\npeak memory with near duplicates and repeated lines dropped, two workers\n")
        print_table(["MB of text", "peak MB", "of it no file's", "seconds"], rows)


TABLES = {
    "speed": Bench.speed,
    "memory": Bench.memory,
    "share": Bench.tokenizer_share,
    "reading": Bench.reading,
    "byte_level": Bench.byte_level,
    "near_duplicates": Bench.near_duplicates,
}


def timed(function, argument):
    """Return the processor seconds that a call takes."""
    started = time.process_time()
    function(argument)
    return time.process_time() - started


def with_copies(source, target):
    """Write the documents of a text and, after them, a copy of every tenth without one word of
    sixty. Return the path of the target.
    """
    documents = pathlib.Path(source).read_text().strip().split("\n\n")
    copies = [
        " ".join(word for place, word in enumerate(document.split()) if place % 60 != 30)
        for document in documents[::10]
    ]
    target.write_text("\n\n".join([*documents, *copies]) + "\n")
    return target


def run_reader(folder):
    """Return what data_reader.py prints, on one core."""
    return on_one_core([sys.executable, HERE / "data_reader.py", folder])


def on_one_core(command):
    """Return the JSON that a command prints last, on one core."""
    one_core = {min(os.sched_getaffinity(0))}
    result = subprocess.run(
        list(map(str, command)),
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
        "--megabytes", type=float, default=20.0, help="MB of the text, from its beginning"
    )
    parser.add_argument("--dupes", type=numbers(int), default=list(TARGETS), help="some of 1,10")
    parser.add_argument("--memory_megabytes", type=numbers(float), default=[20.0, 71.0, 300.0])
    parser.add_argument(
        "--runs", type=int, default=5, help="runs of each of our jobs; the median is printed"
    )
    add_python(parser, "--hf_python", "Hugging Face's datasets")
    parser.add_argument(
        "--part", type=names_among(TABLES), default=list(TABLES), help="names of tables"
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
