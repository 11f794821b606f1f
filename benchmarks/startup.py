"""Measures the seconds until a command answers, and until its work begins.

    python benchmarks/startup.py --against=CHECKOUT

Each command is a process of its own, on caches that a first run has warmed. Commands that only
answer (--help, --show_config, a wrong flag, a wrong value) are timed to their end. Work begins when
the data script prints what it will read, and when a fine-tuning on ten pairs prints its number of
steps. With --against the same commands also run in another checkout, in turn, and the ratio is
printed.
"""

import pathlib
import statistics
import subprocess
import sys
import time

from helpers import ROOT
from helpers.command import Failed, benchmark_parser, work_folder
from helpers.report import origin, print_origin, print_table

SCRIPTS = ("create_pretraining_data.py", "run_pretraining_gpu.py", "run_classifier.py")
ANSWERS = {
    "--help": ["--help"],
    "an unknown flag": ["--no_such_flag=1"],
    "a wrong value": ["--max_seq_length=short"],
}


def seconds_to_end(command, folder):
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started


def seconds_to_line(command, folder, text):
    """Seconds until the command prints a line that contains `text`; Failed when it does not. Ends
    the command then.
    """
    started, lines = time.perf_counter(), []
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if text in line:
                seconds = time.perf_counter() - started
                process.kill()
                return seconds
    raise Failed(f"{' '.join(command)}\n{''.join(lines)[-2000:]}")


def make_model(folder):
    """Makes a pretrained tiny model, ten pairs and twenty lines of text in the folder."""
    text = (ROOT / "sample_text.txt").read_text().splitlines(keepends=True)[:200]
    (folder / "small.txt").write_text("".join(text))
    (folder / "pairs").mkdir()
    for split in ("train", "dev"):
        lines = (
            (ROOT / "examples" / "pairs" / f"{split}.tsv")
            .read_text()
            .splitlines(keepends=True)[:11]
        )
        (folder / "pairs" / f"{split}.tsv").write_text("".join(lines))
    commands = [
        (
            "create_pretraining_data.py --input_file=small.txt "
            "--output_file=data/x.tfrecord --vocab_size=200 --max_seq_length=64"
        ).split(),
        (
            "run_pretraining_gpu.py --model=tiny --num_train_steps=1 "
            "--train_batch_size=4 --max_eval_steps=1"
        ).split(),
    ]
    for script, *flags in commands:
        subprocess.run(
            [sys.executable, str(ROOT / script), *flags, "--quiet"],
            cwd=folder,
            check=True,
            stderr=subprocess.DEVNULL,
        )


def measures(checkout, folder):
    """{what: function that measures it once} for the scripts of a checkout."""
    python = [sys.executable]
    found = {}
    for script in SCRIPTS:
        for name, flags in (ANSWERS | {"--show_config": ["--show_config"]}).items():
            command = [*python, str(checkout / script), *flags]
            found[f"{script} {name}"] = lambda command=command: seconds_to_end(command, folder)

    def begin(script, text, *flags):
        command = [*python, str(checkout / script), *flags]
        return lambda: seconds_to_line(command, folder, text)

    data = (
        "--input_file=small.txt",
        "--output_file=new/x.tfrecord",
        "--vocab_size=200",
        "--overwrite",
    )
    found["data, 20 lines, to the first line"] = begin(
        "create_pretraining_data.py", "1 file", *data
    )
    pairs = (
        "--data_dir=pairs",
        "--init_checkpoint=runs/pretrain",
        "--output_dir=new_run",
        "--train_batch_size=4",
        "--overwrite",
    )
    found["fine-tuning, 10 pairs, to its first step"] = begin(
        "run_classifier.py", " steps = ", *pairs
    )
    return found


def make_parser():
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--against", type=pathlib.Path, help="another checkout, which runs in turn with this one"
    )
    parser.add_argument(
        "--runs", type=int, default=5, help="measured runs of each command; the median is printed"
    )
    return parser


def main():
    arguments = make_parser().parse_args()
    print_origin(origin())
    with work_folder() as folder:
        make_model(folder)
        ours = measures(ROOT, folder)
        theirs = {} if arguments.against is None else measures(arguments.against.resolve(), folder)
        rows = []
        for what, measure in ours.items():
            # the first warms the caches
            pairs = [
                (measure(), theirs[what]() if theirs else None) for _ in range(arguments.runs + 1)
            ][1:]
            row = [what, f"{statistics.median(pair[0] for pair in pairs):.2f}"]
            if theirs:
                row += [
                    f"{statistics.median(pair[1] for pair in pairs):.2f}",
                    f"{statistics.median(a / b for a, b in pairs):.2f}",
                ]
            rows.append(row)
            print("  ".join(row), file=sys.stderr, flush=True)
    print_table(["seconds", "this checkout", *(["the other", "ratio"] if theirs else [])], rows)


if __name__ == "__main__":
    main()
