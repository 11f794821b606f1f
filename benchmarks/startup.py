"""Measures the seconds until a command answers, and until its work begins.

    python benchmarks/startup.py --against=CHECKOUT

Each command is a process of its own, on caches that a first run has warmed. Commands that only
answer (--help, --show_config, a wrong flag, a wrong value) are timed to their end. Work begins when
the data script prints what it will read, and when a fine-tuning on ten pairs prints its number of
steps. With --against the same commands also run in another checkout, in turn, and the share of its
time is printed.
"""

import functools
import pathlib
import statistics
import subprocess
import sys
import time

from helpers import ROOT
from helpers.command import Failed, benchmark_parser, work_folder
from helpers.models import make_model
from helpers.report import origin, print_origin, print_table

DATA, PRETRAIN, FINETUNE = (
    "create_pretraining_data.py",
    "run_pretraining_gpu.py",
    "run_classifier.py",
)
ANSWERS = {
    "--help": "--help",
    "an unknown flag": "--no_such_flag=1",
    "a wrong value": "--max_seq_length=short",
    "--show_config": "--show_config",
}
WORK = {  # {name: (script, flags, what it prints)}
    "data, 20 lines, to the first line": (
        DATA,
        "--input_file=small.txt --output_file=new/x.tfrecord --vocab_size=200",
        "1 file",
    ),
    "fine-tuning, 10 pairs, to its first step": (
        FINETUNE,
        "--data_dir=pairs --init_checkpoint=model --output_dir=run --train_batch_size=4",
        " steps = ",
    ),
}


def seconds_to_end(command, folder):
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - started


def seconds_to_line(command, folder, text):
    """Return the seconds until the command prints a line that contains `text`, and end it then.
    Raises Failed when it prints none.
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


def make_inputs(folder):
    """Make a tiny model, ten pairs and some lines of text in the folder."""
    lines = (ROOT / "sample_text.txt").read_text().splitlines(keepends=True)[:200]
    (folder / "small.txt").write_text("".join(lines))
    (folder / "pairs").mkdir()
    for name in ("train.tsv", "dev.tsv"):
        rows = (ROOT / "examples" / "pairs" / name).read_text().splitlines(keepends=True)
        (folder / "pairs" / name).write_text("".join(rows[:11]))
    make_model(folder, folder / "small.txt", "tiny")


def measures(checkout, folder):
    """Return {name: function that measures it once} for the scripts of a checkout."""

    def command(script, flags):
        return [sys.executable, str(checkout / script), *flags.split()]

    answers = {
        f"{script} {name}": functools.partial(seconds_to_end, command(script, flags), folder)
        for script in (DATA, PRETRAIN, FINETUNE)
        for name, flags in ANSWERS.items()
    }
    return answers | {
        name: functools.partial(
            seconds_to_line, command(script, f"{flags} --overwrite"), folder, text
        )
        for name, (script, flags, text) in WORK.items()
    }


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
    options = make_parser().parse_args()
    print_origin(origin())
    rows = []
    with work_folder() as folder:
        make_inputs(folder)
        ours = measures(ROOT, folder)
        theirs = measures(options.against.resolve(), folder) if options.against else {}
        for name, measure in ours.items():
            pairs = [
                (measure(), theirs[name]() if theirs else 1.0) for _ in range(options.runs + 1)
            ][1:]  # the first warms the caches
            columns = [*zip(*pairs, strict=True), [a / b for a, b in pairs]]
            seconds = [f"{statistics.median(column):.2f}" for column in columns]
            rows.append([name, *(seconds if theirs else seconds[:1])])
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    print_table(["seconds", "this checkout", *(["the other", "share"] if theirs else [])], rows)


if __name__ == "__main__":
    main()
