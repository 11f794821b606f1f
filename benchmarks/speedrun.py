#!/usr/bin/env python3
"""The speed run: how soon a BERT predicts masked words of held-out text as well as the baseline.

    python benchmarks/speedrun.py --json=speedrun.json [--seeds=3]
    python benchmarks/speedrun.py --json=speedrun.json --entry="squared ReLU"
        --flags="--hidden_act=relu2 --num_train_steps=900"
    python benchmarks/speedrun.py --table --json=speedrun.json

Trains the baseline and an entry with the same seeds. An entry is the recipe `quick` as it is now,
with any flags of run_pretraining_gpu.py in --flags and of create_pretraining_data.py in
--data_flags. The text, the vocabulary, and the held-out rows with their masks are the baseline's.
An entry wins if the mean of its losses is at most the baseline's mean, in less time. The time is
that of the whole training command, with imports, compilation, validation and export. On a CPU a run
has one core, and the seconds of its work there count, so that other work on the machine changes
little; on a GPU the seconds that pass. Only the share of the baseline's time on the same machine is
compared.

--size=large is the record's model, 4 layers for 9,250 steps, and needs --text. A row in the JSON
file is not measured again. The rules in full, and what has been tried: dev/speedrun.md.
"""

import functools
import re
import shlex
import shutil
import statistics
import sys
import time

from helpers import command
from helpers.report import Rows, digest, opened_rows, print_table, save_plot, spread

# The recipe `quick` when the speed run began, which later changes of the recipe do not touch.
DATA = dict(
    objective="nsp",
    masking="static",
    masked_lm_prob=0.15,
    max_seq_length=64,
    max_predictions_per_seq=10,
    dupe_factor=4,
    vocab_size=8192,
    do_lower_case=True,
)
BASELINE = dict(
    model="tiny",
    norm_first=True,
    position_embedding_type="rotary",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    optimizer="muon",
    learning_rate=1e-2,
    lr_scaling="none",
    curve="linear",
    warmup_proportion=0.05,
    global_batch_size=64,
    train_batch_size=64,
    max_seq_length=64,
    max_predictions_per_seq=10,
    eval_steps=200,
)
SIZES = {  # {name: flags of the baseline and of every entry, unless it has its own}
    "small": dict(num_train_steps=1000),
    "large": dict(num_train_steps=9250, num_hidden_layers=4),
}
COLUMNS = {"steps": "{:,.0f}", "tokens": "{:,.0f}", "seconds": "{:.0f}", "MLM loss": "{:.3f}"}
NAME = "baseline"


def as_flags(values):
    return [f"--{name}={value}" for name, value in values.items()]


def make_data(options, scratch, name):
    """Make the records of the baseline or an entry, once, and return their folder. The vocabulary
    is that of the baseline.
    """
    given = "" if name == NAME else options.data_flags
    folder = scratch / re.sub(r"\W+", "-", f"data-{name}{given}")  # commas separate input files
    if not (folder / "dataset.json").exists():
        flags, files = as_flags(DATA), dict(input_file=options.text, output_dir=folder)
        if name != NAME:
            flags = ["--recipe=quick", *shlex.split(given)]
            files |= dict(vocab_file=scratch / f"data-{NAME}" / "vocab.txt")
        command.run_script("create_pretraining_data.py", *flags, **files)
    return folder


def measure(options, scratch, name, seed, core):
    """Return {column: value} of the baseline or the entry and one seed, on one core."""
    held_out, data = (make_data(options, scratch, each) for each in (NAME, name))
    size = SIZES[options.size] | (dict(num_train_steps=options.steps) if options.steps else {})
    flags = as_flags(BASELINE | size)
    if name != NAME:
        flags = ["--recipe=quick", *as_flags(size), *shlex.split(options.flags)]
    run = scratch / f"run-{name}-{seed}"
    common = dict(output_dir=run, num_gpus=options.num_gpus)
    by_work = options.num_gpus == 0
    common |= dict(core=core) if by_work else {}
    script = command.PRETRAIN_BY_WORK if by_work else "run_pretraining_gpu.py"
    shutil.rmtree(run, ignore_errors=True)  # the time of a part of a run says nothing
    started = time.monotonic()
    output = command.run_script(script, *flags, input_file=data, seed=seed, **common)
    seconds = float(output.split()[-1]) if by_work else time.monotonic() - started
    lines, validations = command.read_metrics(run)
    rows = dict(input_file=held_out, max_predictions_per_seq=DATA["max_predictions_per_seq"])
    command.run_script("run_pretraining_gpu.py", "--do_eval", *flags, **rows, **common)
    results = command.load_json(run / "eval_results.json")
    last = lines[-1]
    rows_read = last["step"] * last["global_batch_size"]
    values = [last["step"], rows_read * DATA["max_seq_length"], seconds]
    curve = [[line["seconds"], line["eval_mlm_loss"]] for line in validations]
    return dict(zip(COLUMNS, [*values, results["mlm_loss"]], strict=True)) | dict(curve=curve)


def make_parser():
    parser = command.benchmark_parser(__doc__, "text", "json", "folder", "cores", "table")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--entry", default="quick", help="name of the entry's row")
    parser.add_argument("--flags", default="", help="of run_pretraining_gpu.py")
    parser.add_argument("--data_flags", default="", help="of create_pretraining_data.py")
    parser.add_argument("--seeds", type=command.at_least_one, default=3)
    parser.add_argument("--num_gpus", type=int, default=0)
    parser.add_argument("--plots", help="folder for a PNG (needs matplotlib)")
    parser.add_argument("--steps", type=command.at_least_one, help="of the baseline, for a try")
    return parser


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    own = {name: getattr(options, name) for name in ("size", "steps", "num_gpus")}
    return own | dict(text=digest(options.text))


def run_all(options, rows: Rows):
    """Measure the rows that are missing, the baseline and the entry in turns."""
    entry = dict(flags=options.flags, data_flags=options.data_flags)
    if rows.row("entries", options.entry, lambda: entry) != entry:
        raise command.Failed(f"--entry={options.entry}: has other flags; give it another name")
    with command.work_folder(options.folder) as scratch:
        for name in (NAME, options.entry):  # before the runs, which may be two at a time
            make_data(options, scratch, name)

        def row(item, core):
            name, seed = item
            measured = functools.partial(measure, options, scratch, name, seed, core)
            rows.row("runs", f"{name}, seed {seed}", measured)

        seeds = range(1, options.seeds + 1)
        items = [(name, seed) for seed in seeds for name in (NAME, options.entry)]
        command.run_on_cores(row, items, 1 if options.num_gpus else options.cores)


def lines_of(rows: Rows):
    """Yield the cells of a line for the baseline and each entry."""
    base = rows.by_seed("runs", NAME)
    for name in (NAME, *rows.values["entries"]):
        runs = rows.by_seed("runs", name)
        if both := base.keys() & runs.keys():
            speeds = [base[seed]["seconds"] / runs[seed]["seconds"] for seed in both]
            values = {column: [run[column] for run in runs.values()] for column in COLUMNS}
            cells = [spread(values[column], form) for column, form in COLUMNS.items()]
            yield [name, len(runs), *cells, f"{statistics.mean(speeds):.2f}"]


def plot(folder, rows: Rows):
    """Write a PNG: the loss on the held-out rows by minutes, over the baseline's runs, and at the
    end of each entry's, which may validate on other masks.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    for index, name in enumerate((NAME, *rows.values["entries"])):
        for run in rows.of("runs", name):
            points = run["curve"] if name == NAME else []
            seconds, losses = zip(*points, (run["seconds"], run["MLM loss"]), strict=True)
            minutes = [each / 60 for each in seconds]
            label = None if name in axes.get_legend_handles_labels()[1] else name
            axes.plot(minutes, losses, ".-", color=f"C{index}", linewidth=1, label=label)
    axes.set(xlabel="minutes (CPU: of a core's work)", ylabel="MLM loss of held-out rows")
    axes.legend()
    save_plot(figure, folder, "speedrun")


def main():
    options = make_parser().parse_args()
    try:
        rows = opened_rows(options, settings_of, ("entries", "runs"))
        if not options.table:
            run_all(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    print_table(["entry", "seeds", *COLUMNS, "times as fast"], list(lines_of(rows)))
    for name, entry in rows.values["entries"].items():
        print(f"{name}: quick {entry['flags']} {entry['data_flags']}".rstrip())
    if options.plots:
        plot(options.plots, rows)


if __name__ == "__main__":
    main()
