#!/usr/bin/env python3
"""Compares AdamW, LAMB and Muon at equal seconds, each at its best learning rate: losses of small
BERTs on real text, and the time of a step.

    python benchmarks/optimizers.py --text=corpus.txt --folder=WORK --json=docs/data/optimizers.json
        [--part=cost,race] [--models=tiny,mini] [--forms=pre-LN,rotary,post-LN]
        [--optimizers=adamw,lamb,muon] [--minutes=5] [--search_minutes=5] [--seeds=3]
        [--plots=docs/pictures]
    python benchmarks/optimizers.py --table --json=docs/data/optimizers.json --search_minutes=2

`cost` measures the step of each optimizer, in turns. `race` turns the minutes into a number of
steps by these times, so that other work on the machine changes no result, and trains: each
optimizer with the learning rates of a grid for --search_minutes, which is extended while the best
is at its edge; then with its best one, and any within 0.02 nats of it, for --minutes and --seeds
other seeds; the best of these counts. Each finished run is one row of the JSON file; a row in the
file is not measured again, and a file with rows of another text or vocabulary is refused. The
tables and plots are made from that file; --table prints those of finished races with the minutes
and seeds of its flags. Runs have a core each, as many at a time as there are cores.

pre-LN: layer normalisation before each block, no dropout. rotary: the same with rotary positions.
post-LN: BERT's own form, with dropout 0.1. All train on the next-sentence objective, rows of 64
tokens, 64 rows a step, 8,192 pieces.
"""

import pathlib
import statistics
import sys

from helpers.command import (
    Failed,
    at_least_one,
    benchmark_parser,
    names_among,
    numbers,
    run_script,
    work_folder,
)
from helpers.race import (
    DIVERGED,
    FORMS,
    LENGTH,
    OPTIMIZERS,
    PREDICTIONS,
    loss_of,
    race,
    step_seconds,
)
from helpers.report import (
    check_same,
    digest,
    opened_rows,
    print_table,
    read_results,
    save_plot,
    spread,
    write_results,
)
from helpers.shapes import SHAPES

PARTS = ("cost", "race")
ROWS_OF = ("costs", "runs")  # tables of the JSON file


def settings_of(options):
    """Return what the rows of a file have in common: the text and its vocabulary."""
    return dict(text=digest(options.text), vocab_size=options.vocab_size)


def make_data(options):
    """Return the folder of records, made by the data script once. Raises Failed when it was made
    from another text or with another vocabulary.
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
    check_same(folder, read_results(source), settings, "folder")
    write_results(source, settings)
    return str(folder)


def seconds_to(row, loss):
    """Return the seconds until a run's validation loss is at most `loss`, by linear interpolation;
    None if never.
    """
    for (before, high), (after, low) in zip(row["curve"], row["curve"][1:], strict=False):
        if low <= loss:
            share = (high - loss) / (high - low) if high > loss else 0.0
            return before + share * (after - before)
    return None


def time_to_adamw(runs, adamw):
    """Return a table's cell: the mean seconds in which runs reach the final loss of AdamW's run of
    the same seed, and how many of them do, where not all.
    """
    goals = [loss_of(row) for row in adamw]
    pairs = [(run, goal) for run, goal in zip(runs, goals, strict=True) if goal < DIVERGED]
    seconds = [seconds_to(run, goal) for run, goal in pairs if "curve" in run]
    seconds = [value for value in seconds if value is not None]
    if len(seconds) == len(pairs):
        return spread(seconds, "{:.0f}")
    mean = f": {statistics.mean(seconds):.0f}" if seconds else ""
    return f"{len(seconds)} of {len(pairs)}{mean}"


def print_costs(rows):
    print("\nSeconds of a step, fastest turn\n")
    table = []
    for key, row in rows.values["costs"].items():
        times = f"{row['muon'] / row['adamw']:.2f}" if {"muon", "adamw"} <= row.keys() else "-"
        cells = (f"{row[name]:.4f}" if name in row else "-" for name in OPTIMIZERS)
        table.append([key, *cells, times])
    print_table(["model, form", *OPTIMIZERS, "muon / adamw"], table)


def print_race(model, form, results, minutes):
    """Print the table of {optimizer: (learning rate, rows)}."""
    print(f"\n{model}, {form}, {minutes:g} minutes\n")
    names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
    table = []
    for optimizer, (rate, runs) in results.items():
        whole = [run for run in runs if "error" not in run]
        lost = len(runs) - len(whole)
        note = f" ({lost} of {len(runs)} diverged)" if lost else ""
        cells = [spread([run[name] for run in whole]) for name in names]
        time = "-" if optimizer == "adamw" else time_to_adamw(runs, results["adamw"][1])
        table.append([optimizer + note, f"{rate:g}", runs[0]["steps"], *cells, time])
    header = ["optimizer", "best learning rate", "steps", "MLM loss", "MLM accuracy"]
    print_table([*header, "NSP accuracy", "seconds to AdamW's final loss"], table)
    print(
        "\nSeconds: to the loss with which AdamW's run of the same seed ends. The learning rates "
        "fall to 0 at the\nend of the budget, so a run planned shorter may be there earlier."
    )


def plot(folder, model, form, results):
    """Write a PNG of validation loss by seconds, all seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for index, (optimizer, (rate, runs)) in enumerate(results.items()):
        for seed, run in enumerate(runs):
            if "curve" in run:
                label = f"{optimizer} {rate:g}" if not seed else None
                axes.plot(*zip(*run["curve"], strict=True), color=f"C{index}", label=label)
    axes.set(xlabel="seconds", ylabel="validation MLM loss", title=f"{model}, {form}")
    axes.legend()
    save_plot(figure, folder, f"optimizers-{model}-{form}")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--part", type=names_among(PARTS), default=list(PARTS))
    parser.add_argument("--models", type=names_among(SHAPES), default=["tiny", "mini"])
    parser.add_argument(
        "--optimizers", type=names_among(OPTIMIZERS), default=list(OPTIMIZERS), help="AdamW first"
    )
    parser.add_argument("--forms", type=names_among(FORMS), default=list(FORMS))
    parser.add_argument("--minutes", type=float, default=5.0, help="of each run")
    parser.add_argument("--search_minutes", type=float, help="of the search; default: --minutes")
    parser.add_argument("--rates", type=numbers(float), help="learning rates; default: a search")
    parser.add_argument("--seeds", type=at_least_one, default=3)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--turns", type=int, default=7, help="of `cost`")
    parser.add_argument("--turn_seconds", type=float, default=2.0, help="of `cost`")
    parser.add_argument("--plots", help="folder for PNGs (needs matplotlib)")
    return parser


def compare(options, rows, model, form):
    """Measure and print all parts of one model in one form. Returns False when that is a race that
    --table does not find.
    """
    if not options.table:
        step_seconds(options, rows, model, form)
    if "race" not in options.part:
        return True
    results = race(options, rows, model, form)
    if "adamw" not in results:
        return False
    print_race(model, form, results, options.minutes)
    if options.plots:
        plot(options.plots, model, form, results)
    return True


def main():
    parser = make_parser()
    options = parser.parse_args()
    if options.optimizers[0] != "adamw":
        parser.error("--optimizers: the others are compared with AdamW; name it first")
    options.search_minutes = options.search_minutes or options.minutes
    try:
        with work_folder(options.folder) as folder:
            options.folder = str(folder)
            rows = opened_rows(options, settings_of, ROWS_OF)
            options.data = None if options.table else make_data(options)
            cases = [(model, form) for model in options.models for form in options.forms]
            if not any([compare(options, rows, *case) for case in cases]):
                print(
                    f"\n--table --json={options.json}: no race of --minutes={options.minutes:g} "
                    f"--search_minutes={options.search_minutes:g} --seeds={options.seeds} is whole"
                )
            print_costs(rows)
    except Failed as failed:
        sys.exit(f"error: {failed}")


if __name__ == "__main__":
    main()
