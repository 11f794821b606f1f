#!/usr/bin/env python3
"""Compares AdamW, LAMB and Muon at equal seconds, each at its best learning rate: losses of small
BERTs on real text, and the time of a step.

    python benchmarks/optimizers.py --text=corpus.txt --folder=WORK --json=docs/data/optimizers.json
        [--part=cost,race,pairs] [--models=tiny,mini] [--forms=pre-LN,rotary,post-LN]
        [--optimizers=adamw,lamb,muon] [--minutes=5] [--search_minutes=5] [--seeds=3]
        [--further_rates=adamw:0.001,lamb:0.005] [--plots=docs/pictures]
    python benchmarks/optimizers.py --table --json=docs/data/optimizers.json --search_minutes=2

`cost` measures the step of each optimizer, in turns. `race` turns the minutes into a number of
steps by these times, so that what else the machine does changes no result, and trains: each
optimizer with the learning rates of a grid for --search_minutes, which is extended while the best
is at its edge; then with its best one, any as good but for 0.02 nats, and --further_rates, for
--minutes and --seeds other seeds; the best by these counts. `pairs` fine-tunes AdamW's and Muon's
models of the race (not LAMB's) on labelled pairs, with both optimizers; the dev file chooses the
learning rate, the test file is reported. Each finished run is one row of the JSON file; what is
there is not run again, and a file with rows of another text, vocabulary or pairs is refused.
Another machine may go on with it: the numbers of steps are those of the machine that measured the
steps: the cost of a further form is measured beside the first one's and scaled by what that cost
there. The tables and plots are made from that file; --table prints those of finished races with the
minutes and seeds of its flags. Runs have a core each, as many at a time as there are cores.

pre-LN: layer normalisation before each block, no dropout. rotary: the same with rotary positions.
post-LN: BERT's own form, with dropout 0.1. All train on the next-sentence objective, rows of 64
tokens, 64 rows a step, 8,192 pieces.
"""

import argparse
import pathlib
import sys

from helpers.command import (
    Failed,
    at_least_one,
    benchmark_parser,
    names_among,
    run_script,
    work_folder,
)
from helpers.cores import Cores
from helpers.race import FORMS, LENGTH, OPTIMIZERS, PREDICTIONS, race, step_seconds
from helpers.race_pairs import fine_tunings, print_pairs
from helpers.race_tables import plot, print_costs, print_race, print_search
from helpers.report import read_results, write_results
from helpers.rows import check_same, digest, opened_rows
from helpers.shapes import SHAPES

PARTS = ("cost", "race", "pairs")
ROWS_OF = ("costs", "runs", "pairs")  # tables of the JSON file


def read_rates(text):
    """A type for argparse: "adamw:0.001,adamw:0.0005" -> {"adamw": [0.001, 0.0005]}."""
    found = {}
    for part in text.split(","):
        name, _, rate = part.partition(":")
        try:
            learning_rate = float(rate)
        except ValueError:
            learning_rate = None
        if name not in OPTIMIZERS or learning_rate is None:
            raise argparse.ArgumentTypeError(f"{part}: must be OPTIMIZER:LEARNING_RATE")
        found.setdefault(name, []).append(learning_rate)
    return found


def settings_of(options):
    """What the rows of a file have in common: the text, its vocabulary; and the pairs, where they
    are used.
    """
    found = dict(text=digest(options.text), vocab_size=options.vocab_size)
    if "pairs" in options.part:
        files = sorted(path for path in pathlib.Path(options.pairs).iterdir() if path.is_file())
        found |= dict(pairs=digest(*files), pair_epochs=options.pair_epochs)
    return found


def make_data(options):
    """The folder of records, made by the data script once. Failed when it was made from another
    text or with another vocabulary.
    """
    folder = pathlib.Path(options.folder) / "data"
    source = folder / "source.json"
    settings = dict(text=digest(options.text), vocab_size=options.vocab_size)
    if not (folder / "dataset.json").exists():
        run_script(
            "create_pretraining_data.py",
            input_file=options.text,
            output_file=folder / "text.tfrecord",
            max_seq_length=LENGTH,
            max_predictions_per_seq=PREDICTIONS,
            vocab_size=options.vocab_size,
        )
    elif not source.exists():
        print(f"{folder}: does not say from which text it is; taken for --text")
    check_same(folder, read_results(source), settings, "folder")
    write_results(source, settings)
    return str(folder)


def make_parser():
    parser = benchmark_parser(__doc__, "text", "pairs", "json", "cores", "table")
    parser.add_argument("--folder", help="keeps data and runs here, so that it can be resumed")
    parser.add_argument("--part", type=names_among(PARTS), default=list(PARTS))
    parser.add_argument("--models", type=names_among(SHAPES), default=["tiny", "mini"])
    parser.add_argument(
        "--optimizers", type=names_among(OPTIMIZERS), default=list(OPTIMIZERS), help="AdamW first"
    )
    parser.add_argument("--forms", type=names_among(FORMS), default=list(FORMS))
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run")
    parser.add_argument("--search_minutes", type=float, help="of the search; default: as --minutes")
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument(
        "--further_rates",
        type=read_rates,
        default={},
        help="learning rates that run to the end, whatever the search says: adamw:0.001,...",
    )
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=7, help="of `cost`")
    parser.add_argument("--turn_seconds", type=float, default=2.0, help="of `cost`")
    parser.add_argument("--pair_epochs", type=float, default=6.0)
    parser.add_argument("--plots", help="folder for PNGs (needs matplotlib)")
    return parser


def compare(options, record, model, form):
    """All parts of one model in one form. False when that is a race that --table does not find."""
    if not options.table:
        step_seconds(options, record, model, form)
    if "race" not in options.part and "pairs" not in options.part:
        return True
    found = race(options, record, model, form)
    if "adamw" not in found:
        return False
    print_search(record, model, form, found, options.search_minutes)
    print_race(model, form, found, options.minutes)
    if options.plots:
        plot(options.plots, model, form, found)
    if "pairs" in options.part:
        table = fine_tunings(options, record, model, form, found)
        if table:
            print_pairs(model, form, table)
    return True


def main():
    parser = make_parser()
    options = parser.parse_args()
    if "pairs" in options.part and options.json and not (options.folder or options.table):
        parser.error("--part=pairs --json: needs --folder, where the models of earlier runs are")
    if options.optimizers[0] != "adamw":
        parser.error("--optimizers: AdamW is what the others are compared with; name it first")
    options.search_minutes = options.search_minutes or options.minutes
    options.cores = Cores(options.cores)
    try:
        with work_folder(options.folder) as folder:
            options.folder = str(folder)
            record = opened_rows(options, settings_of, ROWS_OF)
            options.data = None if options.table else make_data(options)
            cases = [(model, form) for model in options.models for form in options.forms]
            if not any([compare(options, record, *case) for case in cases]):
                print(
                    f"\n--table --json={options.json}: no race of --minutes={options.minutes:g} "
                    f"--search_minutes={options.search_minutes:g} --seeds={options.seeds} is whole"
                )
            print_costs(record)
    except Failed as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
