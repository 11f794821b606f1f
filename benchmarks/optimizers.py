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
import contextlib
import pathlib
import statistics
import sys

from helpers.command import (
    Failed,
    at_least_one,
    benchmark_parser,
    load_json,
    names_among,
    read_metrics,
    run_script,
    work_folder,
)
from helpers.cores import Cores
from helpers.process import Peer
from helpers.report import (
    hardware,
    print_table,
    read_results,
    spread,
    write_results,
)
from helpers.rows import Missing, check_same, digest, opened_rows
from helpers.shapes import SHAPES, shape_of

PARTS = ("cost", "race", "pairs")
ROWS_OF = ("costs", "runs", "pairs")  # tables of the JSON file
OPTIMIZERS = ("adamw", "lamb", "muon")
FINE_TUNED_BY = ("adamw", "muon")
FORMS = {
    "pre-LN": dict(norm_first=True, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "rotary": dict(
        norm_first=True,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        position_embedding_type="rotary",
    ),
    "post-LN": dict(norm_first=False, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
}
ROWS, LENGTH, PREDICTIONS, VALIDATION_ROWS = 64, 64, 10, 1024
VALIDATIONS = 15  # in a run
SERIES = (1, 2, 5)  # learning rates: these times powers of ten
FIRST_RATES = dict(adamw=(5e-4, 1e-2), lamb=(2e-3, 5e-2), muon=(1e-3, 2e-2))  # lowest, highest
FIRST_PAIR_RATES = (2e-4, 2e-3)
REFERENCE = "AdamW's step of the first form"
SEARCH_SEED = 1  # the final runs take those behind it
TIE = 0.02  # nats: what seeds of a small model differ by, at least
DIVERGED = float("inf")


def rates_between(lowest, highest):
    """The learning rates of the grid from one to another: 0.001, 0.002, 0.005, 0.01, ..."""
    grid = [digit * 10.0**power for power in range(-7, 2) for digit in SERIES]
    return [rate for rate in grid if lowest * 0.999 <= rate <= highest * 1.001]


def extended(losses):
    """The learning rate to try next: the neighbour of the best where that is at the edge of those
    tried and better than the next one inside; None elsewhere, and at the ends of the grid.

    losses: {learning rate: loss}.
    """
    grid, tried = rates_between(1e-7, 99), sorted(losses)
    best = min(tried, key=losses.get)
    at = min(range(len(grid)), key=lambda index: abs(grid[index] - best))
    for edge, inner, outer in ((0, 1, at - 1), (-1, -2, at + 1)):
        is_edge = best == tried[edge] and 0 <= outer < len(grid)
        if is_edge and (len(tried) == 1 or losses[best] < losses[tried[inner]]):
            return grid[outer]
    return None


def search(rates, losses_at):
    """{learning rate: loss} of a grid, extended while its best is at an edge. losses_at: learning
    rates -> their losses.
    """
    losses = dict(zip(rates, losses_at(rates), strict=True))
    while (outer := extended(losses)) is not None:
        [losses[outer]] = losses_at([outer])
    return losses


def final_rates(losses):
    """The learning rates that the final runs try: the best of a search with one seed, and those
    that it cannot tell from it. losses: {learning rate: loss}.
    """
    best = min(losses, key=losses.get)
    return [best] + [
        rate for rate in sorted(losses) if rate != best and losses[rate] < losses[best] + TIE
    ]


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


def start_peer(options, model, form, optimizer):
    """A process that trains a model in a form, ready to be timed."""
    shape = shape_of(model) | FORMS[form] | dict(max_position_embeddings=LENGTH)
    settings = dict(shape=shape, length=LENGTH, data=options.data, optimizer=optimizer)
    peer = Peer("ours", settings)
    peer.ask("prepare", rows=ROWS)
    return peer


def step_seconds(options, record, model, form):
    """{optimizer: seconds of a step, "cpu": where, "scale": ...}: the fastest of turns, because
    others share the machine. They are scaled to the machine on which the model's first form was
    measured, by AdamW's step of that form, which is timed in the same turns.
    """

    def measure():
        reference = record.values["costs"].get(f"{model} {next(iter(FORMS))}")
        peers = {}
        try:
            for name in OPTIMIZERS:
                peers[name] = start_peer(options, model, form, name)
            if reference:
                peers[REFERENCE] = start_peer(options, model, next(iter(FORMS)), "adamw")
            turns = [
                {name: peer.ask("turn", seconds=options.turn_seconds) for name, peer in order}
                for index in range(options.turns)
                for order in [list(peers.items())[:: 1 if index % 2 else -1]]
            ]
        finally:
            for peer in peers.values():
                peer.close()
        fastest = {name: min(turn[name]["step_seconds"] for turn in turns) for name in peers}
        scale = reference["adamw"] / fastest.pop(REFERENCE) if reference else 1.0
        return {name: scale * seconds for name, seconds in fastest.items()} | dict(
            cpu=hardware()["cpu"], scale=scale
        )

    return record.row("costs", f"{model} {form}", measure)


def run_key(model, form, optimizer, rate, minutes, seed):
    return f"{model} {form} {optimizer} {rate:g} {minutes:g} min seed {seed}"


def folder_of(options, key):
    """The folder of a run, by the key of its row."""
    return pathlib.Path(options.folder) / key.replace(" ", "-")


def or_diverged(make, **row):
    """The row that `make` makes; {"error", **row} for a training that diverged, which is a result.
    Other failures are raised.
    """
    try:
        return make()
    except Failed as failed:
        if "exit code 3: " not in str(failed) or "diverged" not in str(failed):
            raise
        return dict(row, error=str(failed))


def train(options, record, model, form, optimizer, rate, minutes, seed, core):
    """One run on a core; its row has the losses of each validation by seconds, and the last
    accuracies.
    """
    key = run_key(model, form, optimizer, rate, minutes, seed)
    seconds = step_seconds(options, record, model, form)[optimizer]
    num_steps = max(VALIDATIONS, round(60 * minutes / seconds))

    def run():
        folder = folder_of(options, key)
        run_script(
            "run_pretraining_gpu.py",
            input_file=f"{options.data}/*.tfrecord",
            output_dir=folder,
            core=core,
            model=model,
            optimizer=optimizer,
            learning_rate=rate,
            lr_scaling="none",
            train_batch_size=ROWS,
            num_train_steps=num_steps,
            num_gpus=0,
            max_position_embeddings=LENGTH,
            max_predictions_per_seq=PREDICTIONS,
            seed=seed,
            eval_steps=max(1, num_steps // VALIDATIONS),
            save_checkpoints_steps=10**9,
            max_bad_steps=10**9,
            eval_batch_size=64,
            max_eval_steps=VALIDATION_ROWS // 64,
            **FORMS[form],
        )
        _, validations = read_metrics(folder)
        curve = [[line["step"] * seconds, line["eval_mlm_loss"]] for line in validations]
        last = validations[-1]
        return dict(
            steps=num_steps,
            curve=curve,
            **{name: last[f"eval_{name}"] for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")},
        )

    return record.row("runs", key, lambda: or_diverged(run, steps=num_steps))


def loss_of(row):
    return row.get("mlm_loss", DIVERGED)


def final_seeds(options):
    return range(SEARCH_SEED + 1, SEARCH_SEED + 1 + options.seeds)


def race(options, record, model, form):
    """{optimizer: (best learning rate, rows of all final seeds)}; with --table of those whose rows
    are all there.
    """
    found = {}
    for optimizer in options.optimizers:

        def run(case, core, optimizer=optimizer):
            return train(options, record, model, form, optimizer, *case, core)

        def losses_at(rates, run=run):
            cases = [(rate, options.search_minutes, SEARCH_SEED) for rate in rates]
            return [loss_of(row) for row in options.cores.each(run, cases)]

        try:
            losses = search(rates_between(*FIRST_RATES[optimizer]), losses_at)
            further = options.further_rates.get(optimizer, [])
            rates = list(dict.fromkeys([*final_rates(losses), *further]))
            seeds = final_seeds(options)
            cases = [(rate, options.minutes, seed) for rate in rates for seed in seeds]
            rows = options.cores.each(run, cases)
        except Missing:
            continue
        finals = {
            rate: rows[index * len(seeds) : (index + 1) * len(seeds)]
            for index, rate in enumerate(rates)
        }
        found[optimizer] = min(
            finals.items(), key=lambda entry: statistics.mean(map(loss_of, entry[1]))
        )
    return found


def seconds_to(row, loss):
    """Seconds until a run's validation loss is at most `loss`, by linear interpolation; None if
    never.
    """
    for (before, high), (after, low) in zip(row["curve"], row["curve"][1:], strict=False):
        if low <= loss:
            share = (high - loss) / (high - low) if high > loss else 0.0
            return before + share * (after - before)
    return None


def print_costs(record):
    print("\nSeconds of a step, fastest turn\n")
    print_table(
        ["model, form", *OPTIMIZERS, "muon / adamw"],
        [
            [
                key,
                *(f"{row[name]:.4f}" for name in OPTIMIZERS),
                f"{row['muon'] / row['adamw']:.2f}",
            ]
            for key, row in record.values["costs"].items()
        ],
    )


def time_to_adamw(runs, adamw):
    """A table's cell: the mean seconds in which runs reach the final loss of AdamW's run of the
    same seed, and how many of them do, where not all.
    """
    goals = [loss_of(row) for row in adamw]
    pairs = [(run, goal) for run, goal in zip(runs, goals, strict=True) if goal < DIVERGED]
    seconds = [seconds_to(run, goal) for run, goal in pairs if "curve" in run]
    reached = [value for value in seconds if value is not None]
    if len(reached) == len(pairs):
        return spread(reached, "{:.0f}")
    return f"{len(reached)} of {len(pairs)}" + (
        f": {statistics.mean(reached):.0f}" if reached else ""
    )


def print_race(model, form, found, minutes):
    print(f"\n{model}, {form}, {minutes:g} minutes\n")
    rows = []
    for optimizer, (rate, runs) in found.items():
        whole = [run for run in runs if "error" not in run]
        lost = f" ({len(runs) - len(whole)} of {len(runs)} diverged)" * (len(whole) < len(runs))
        rows.append(
            [
                optimizer + lost,
                f"{rate:g}",
                runs[0]["steps"],
                *(
                    spread([run[name] for run in whole])
                    for name in ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
                ),
                "-" if optimizer == "adamw" else time_to_adamw(runs, found["adamw"][1]),
            ]
        )
    print_table(
        [
            "optimizer",
            "best learning rate",
            "steps",
            "MLM loss",
            "MLM accuracy",
            "NSP accuracy",
            "seconds to AdamW's final loss",
        ],
        rows,
    )
    print(
        "\nSeconds: to the loss with which AdamW's run of the same seed ends. The learning rates "
        "fall to 0 at the\nend of the budget, so a run planned shorter may be there earlier."
    )


def print_search(record, model, form, optimizers, minutes):
    """Losses of all learning rates tried."""
    prefix, suffix = f"{model} {form} ", f" {minutes:g} min seed {SEARCH_SEED}"
    tried = {
        key.removeprefix(prefix).removesuffix(suffix): row
        for key, row in record.values["runs"].items()
        if key.startswith(prefix) and key.endswith(suffix)
    }
    print(f"\nThe search: MLM loss after {minutes:g} minutes, seed {SEARCH_SEED}\n")
    for optimizer in optimizers:
        cells = {
            float(key.split()[1]): row for key, row in tried.items() if key.startswith(optimizer)
        }
        print(
            f"- {optimizer}: "
            + ", ".join(
                f"{rate:g}: " + (f"{row['mlm_loss']:.3f}" if "mlm_loss" in row else "diverged")
                for rate, row in sorted(cells.items())
            )
        )


def plot(folder, model, form, found):
    """Writes a PNG of validation loss by seconds, all seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for index, (optimizer, (rate, runs)) in enumerate(found.items()):
        for seed, run in enumerate(runs):
            if "curve" in run:
                label = f"{optimizer} {rate:g}" if not seed else None
                axes.plot(*zip(*run["curve"], strict=True), color=f"C{index}", label=label)
    axes.set(xlabel="seconds", ylabel="validation MLM loss", title=f"{model}, {form}")
    axes.legend()
    figure.tight_layout()
    path = pathlib.Path(folder) / f"optimizers-{model}-{form}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"\n{path}")


def fine_tune(options, record, key, is_pretrained, optimizer, rate, seed, core):
    """One fine-tuning, on a core, of the model of a run, or of fresh weights of its shape; its row
    has the accuracies on the dev file and on the test file, None without labels there.
    """
    name = f"{key} {'pretrained' if is_pretrained else 'untrained'} pairs {optimizer} {rate:g}"
    name, model = f"{name} seed {seed}", folder_of(options, key) / "model"
    start = (
        dict(init_checkpoint=model)
        if is_pretrained
        else dict(
            init_checkpoint="none",
            bert_config_file=model / "config.json",
            vocab_file=model / "vocab.txt",
        )
    )

    def run():
        out = folder_of(options, name)
        run_script(
            "run_classifier.py",
            data_dir=options.pairs,
            output_dir=out,
            core=core,
            optimizer=optimizer,
            learning_rate=rate,
            lr_scaling="none",
            max_seq_length=LENGTH,
            num_train_epochs=options.pair_epochs,
            num_gpus=0,
            seed=seed,
            **start,
        )
        dev = load_json(out / "eval_results.json")["accuracy"]
        return dict(dev=dev, test=test_accuracy(options.pairs, out / "test_results.tsv"))

    return record.row("pairs", name, lambda: or_diverged(run))


def test_accuracy(folder, predictions):
    """The share of right predictions, lines of "id, label, ..." under a header, for the test file
    of a folder of pairs; None when that has no labels or is not there.
    """
    from bert_gpu.finetune.config import FinetuneConfig, has_test_file, resolve_task
    from bert_gpu.finetune.splits import read_splits

    config = FinetuneConfig(data_dir=str(folder))
    if not has_test_file(config):
        return None
    [test] = read_splits(resolve_task(config), config, ["predict"])["predict"]
    if not test.has_labels:
        return None
    labels = test.column("labels")
    found = [line.split("\t")[1] for line in predictions.read_text().splitlines()[1:]]
    return statistics.mean(
        float(a == " ".join(b.split())) for a, b in zip(found, labels, strict=True)
    )


def choose_rate(options, record, keys, is_pretrained, optimizer):
    """(best learning rate by the dev file, its rows) of fine-tunings of runs, {seed: key}."""
    rows = {}

    def run(case, core):
        rate, seed = case
        return fine_tune(options, record, keys[seed], is_pretrained, optimizer, rate, seed, core)

    def errors_at(rates):
        cases = [(rate, seed) for rate in rates for seed in keys]
        found = options.cores.each(run, cases)
        for (rate, _), row in zip(cases, found, strict=True):
            rows.setdefault(rate, []).append(row)
        return [statistics.mean(1 - row.get("dev", 0.0) for row in rows[rate]) for rate in rates]

    errors = search(rates_between(*FIRST_PAIR_RATES), errors_at)
    best = min(errors, key=errors.get)
    return best, rows[best]


def fine_tunings(options, record, model, form, found):
    """{(pretrained by, fine-tuned by): `choose_rate`} of the race's runs that did not diverge; with
    --table of those whose rows are all there.
    """
    table = {}
    for source in ("untrained", "adamw", "muon"):
        shaped_by = "adamw" if source == "untrained" else source
        if shaped_by not in found:
            continue
        rate, rows = found[shaped_by]
        keys = {
            seed: run_key(model, form, shaped_by, rate, options.minutes, seed)
            for seed, row in zip(final_seeds(options), rows, strict=True)
            if "error" not in row
        }
        for optimizer in FINE_TUNED_BY if keys else ():
            with contextlib.suppress(Missing):
                table[source, optimizer] = choose_rate(
                    options, record, keys, source != "untrained", optimizer
                )
    return table


def print_pairs(model, form, table):
    whole = {key: [row for row in rows if "dev" in row] for key, (_, rows) in table.items()}
    has_test = all(row["test"] is not None for rows in whole.values() for row in rows)
    split = "test" if has_test else "dev"
    note = (
        "the dev file chose the learning rate"
        if has_test
        else "the same file chose the learning rate, because there is no labelled test file"
    )
    print(f"\n{model}, {form}: accuracy on the {split} file of the pairs; {note}\n")
    print_table(
        ["pretrained by", "fine-tuned by", "learning rate", "accuracy"],
        [
            [*key, f"{rate:g}", spread([row[split] for row in whole[key]])]
            for key, (rate, _) in table.items()
        ],
    )
    print("\nLAMB's models are not fine-tuned.")


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
