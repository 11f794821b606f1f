"""Texts longer than a row: cut to 64, 128 and 512 tokens, read at both ends, or read whole in rows
whose scores are averaged, beside TF-IDF with logistic regression, which reads all words.

    python benchmarks/long_texts.py --model=MODEL --public_tasks=TASKS --folder=WORK --json=JSON
    python benchmarks/long_texts.py --table --json=docs/data/long_texts.json

TASKS and the fine-tunings are as for record.py. Prints test accuracy with its standard error, and
the milliseconds in which a worker fine-tunes and evaluates, for each text of the test file.
"""

import functools
import pathlib
import statistics
import sys
import time

import record
from helpers.command import Failed, at_least_one, benchmark_parser, names_among, numbers
from helpers.report import digest, opened_rows, print_table
from helpers.tf_idf import read_task

READINGS = [f"{rule} {length}" for rule in ("cut", "head_tail", "windows") for length in (64, 128)]
READINGS.append("cut 512")
PARTS = ("rates", "accuracies")


def measure(options, case, rate, seed):
    """Return {"dev", "test": accuracy, "ms": milliseconds a test text} of one training."""
    began = time.perf_counter()
    rule, _, length = case.start.partition(" ")  # which TF-IDF does not read
    row = record.train(options, case, rate, seed, long_texts=rule, max_seq_length=int(length or 0))
    seconds = time.perf_counter() - began
    return row | dict(ms=1000 * seconds / len(read_task(case.folder / "test.tsv")[1]))


def measure_all(options, rows):
    cases = [
        record.Case(task, pathlib.Path(options.public_tasks) / task, options.labels, reading)
        for task in options.tasks
        for reading in (*options.readings, record.TF_IDF)
    ]
    with record.open_pool(options.workers) as pool:

        def fill(part, last_names):
            record.fill(rows, part, {
                f"{case.key}, {name}": functools.partial(measure, options, case, *arguments)
                for case in cases
                for name, *arguments in last_names(case)
            }, pool)  # fmt: skip

        def rates_of(case):
            rates = record.INVERSE_PENALTIES if case.start == record.TF_IDF else options.rates
            return [(f"{rate:g}", rate, record.RATE_SEED) for rate in rates]

        def best_of(case):
            tried = rows.values["rates"]
            _, best, _ = max(rates_of(case), key=lambda x: tried[f"{case.key}, {x[0]}"]["dev"])
            return [(f"seed {seed}", best, seed) for seed in range(1, options.seeds + 1)]

        fill("rates", rates_of)
        fill("accuracies", best_of)


def print_readings(rows):
    found = {}  # {(task, labels): {way of reading: rows}}
    for key, row in rows.values["accuracies"].items():
        task, labels, reading, _ = key.split(", ")
        found.setdefault((task, labels), {}).setdefault(reading, []).append(row)
    table = [
        [task, labels, reading, record.with_error(*record.mean_and_error([x["test"] for x in of])),
         f"{statistics.mean(x['ms'] for x in of):.1f}"]
        for (task, labels), readings in found.items()
        for reading, of in readings.items()
    ]  # fmt: skip
    print_table(["task", "labels", "reading", "test accuracy, %", "ms a text"], table)


def settings_of(options):
    files = {task: f"{options.public_tasks}/{task}/train.tsv" for task in options.tasks}
    files["model"] = f"{options.model}/model.safetensors"
    return {name: digest(path) for name, path in files.items()}


def make_parser():
    parser = benchmark_parser(__doc__, "json", "folder", "table")
    parser.add_argument("--model", help="folder of the model to fine-tune")
    parser.add_argument("--public_tasks", help="folder of the tasks")
    parser.add_argument("--tasks", type=names_among(record.PUBLIC_TASKS), default=["r8", "20ng"])
    parser.add_argument("--readings", type=names_among(READINGS), default=READINGS)
    parser.add_argument("--labels", type=at_least_one, default=200)
    parser.add_argument("--rates", type=numbers(float), default=[1e-3, 3e-3])
    parser.add_argument("--updates", type=int, help="of each fine-tuning")
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--workers", type=at_least_one, default=2, help="fine-tunings at a time")
    return parser


def main():
    options = make_parser().parse_args()
    try:
        rows = opened_rows(options, settings_of, PARTS)
        if not options.table:
            measure_all(options, rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")
    print_readings(rows)


if __name__ == "__main__":
    main()
