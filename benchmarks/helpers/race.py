"""A race of optimizers: the time of a step, which turns minutes into a number of steps; the search
for each one's learning rate; the final seeds. A finished run is a row (report.Rows).
"""

import contextlib
import pathlib
import statistics

from helpers.command import Failed, read_metrics, run_on_cores, run_script
from helpers.process import Peer
from helpers.report import Missing, hardware
from helpers.shapes import shape_of

OPTIMIZERS = ("adamw", "lamb", "muon")
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
FORMS = {
    "pre-LN": dict(norm_first=True, **NO_DROPOUT),
    "rotary": dict(norm_first=True, position_embedding_type="rotary", **NO_DROPOUT),
    "post-LN": dict(norm_first=False, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1),
}
ROWS, LENGTH, PREDICTIONS, VALIDATION_ROWS = 64, 64, 10, 1024
VALIDATIONS = 15  # in a run
FIRST_RATES = dict(adamw=(5e-4, 1e-2), lamb=(2e-3, 5e-2), muon=(1e-3, 2e-2))  # lowest, highest
SEARCH_SEED = 1  # the final runs take the seeds after it
DIVERGED = float("inf")
TIE = 0.02  # nats: what seeds of a small model differ by, at least


# -- learning rates


def rates_between(lowest, highest):
    """Return the learning rates of the grid 1, 2, 5 x powers of ten from one to another."""
    grid = [digit * 10.0**power for power in range(-7, 2) for digit in (1, 2, 5)]
    return [rate for rate in grid if lowest * 0.999 <= rate <= highest * 1.001]


def next_rate(losses):
    """Return the learning rate to try next: the neighbour of the best where that is at the edge of
    those tried and better than the next one inside; None elsewhere, and at the ends of the grid.

    losses: {learning rate: loss}.
    """
    grid, rates = rates_between(1e-7, 99), sorted(losses)
    best = min(rates, key=losses.get)
    at = min(range(len(grid)), key=lambda index: abs(grid[index] - best))
    for edge, inner, outer in ((0, 1, at - 1), (-1, -2, at + 1)):
        is_edge = best == rates[edge] and 0 <= outer < len(grid)
        if is_edge and (len(rates) == 1 or losses[best] < losses[rates[inner]]):
            return grid[outer]
    return None


def search(rates, losses_at):
    """Return {learning rate: loss} of a grid, extended while its best is at an edge. losses_at:
    learning rates -> their losses.
    """
    losses = dict(zip(rates, losses_at(rates), strict=True))
    while (outer := next_rate(losses)) is not None:
        [losses[outer]] = losses_at([outer])
    return losses


def final_rates(losses):
    """Return the learning rates that the final runs try: the best of a search with one seed, and
    those that it cannot distinguish from it. losses: {learning rate: loss}.
    """
    best = min(losses, key=losses.get)
    ties = [rate for rate in sorted(losses) if losses[rate] < losses[best] + TIE]
    return [best, *(rate for rate in ties if rate != best)]


# -- runs


def step_seconds(options, rows, model, form):
    """Return {optimizer: seconds of a step}: the fastest of turns, because others share the
    machine. Its row also has "cpu", where it was measured.
    """

    def measure():
        shape = shape_of(model) | FORMS[form] | dict(max_position_embeddings=LENGTH)
        settings = dict(shape=shape, length=LENGTH, data=options.data)
        turns = {name: [] for name in options.optimizers}
        with contextlib.ExitStack() as stack:
            peers = {
                name: stack.enter_context(Peer("ours", settings | dict(optimizer=name)))
                for name in turns
            }
            for peer in peers.values():
                peer.ask("prepare", rows=ROWS)
            for index in range(options.turns):
                for name in list(peers)[:: 1 if index % 2 else -1]:
                    turn = peers[name].ask("turn", seconds=options.turn_seconds)
                    turns[name].append(turn["step_seconds"])
        return {name: min(seconds) for name, seconds in turns.items()} | dict(cpu=hardware()["cpu"])

    return rows.row("costs", f"{model} {form}", measure)


def run_key(model, form, optimizer, rate, minutes, seed):
    return f"{model} {form} {optimizer} {rate:g} {minutes:g} min seed {seed}"


def folder_of(options, key):
    """Return the folder of a run, by the key of its row."""
    return pathlib.Path(options.folder) / key.replace(" ", "-")


def or_diverged(make, **row):
    """Return the row that `make` makes; {"error", **row} for a training that diverged, which is a
    result. Other failures are raised.
    """
    try:
        return make()
    except Failed as failed:
        if "exit code 3: " not in str(failed) or "diverged" not in str(failed):
            raise
        return dict(row, error=str(failed))


def train(options, rows, model, form, optimizer, rate, minutes, seed, core):
    """Return the row of one run on a core: the losses of each validation by seconds, and the last
    accuracies.
    """
    key = run_key(model, form, optimizer, rate, minutes, seed)
    seconds = step_seconds(options, rows, model, form)[optimizer]
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
        last = validations[-1]
        names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
        return dict(
            steps=num_steps,
            curve=[[line["step"] * seconds, line["eval_mlm_loss"]] for line in validations],
            **{name: last[f"eval_{name}"] for name in names},
        )

    return rows.row("runs", key, lambda: or_diverged(run, steps=num_steps))


def loss_of(row):
    return row.get("mlm_loss", DIVERGED)


def final_seeds(options):
    return range(SEARCH_SEED + 1, SEARCH_SEED + 1 + options.seeds)


def race(options, rows, model, form):
    """Return {optimizer: (best learning rate, rows of all final seeds)}; with --table of those
    whose rows are all there.
    """
    results = {}
    for optimizer in options.optimizers:

        def run(case, core, optimizer=optimizer):
            return train(options, rows, model, form, optimizer, *case, core)

        def losses_at(rates, run=run):
            cases = [(rate, options.search_minutes, SEARCH_SEED) for rate in rates]
            return [loss_of(row) for row in run_on_cores(run, cases, options.cores)]

        try:
            rates = options.rates
            if rates is None:
                rates = final_rates(search(rates_between(*FIRST_RATES[optimizer]), losses_at))
            seeds = final_seeds(options)
            cases = [(rate, options.minutes, seed) for rate in rates for seed in seeds]
            finals = run_on_cores(run, cases, options.cores)
        except Missing:
            continue
        by_rate = {
            rate: finals[index * len(seeds) : (index + 1) * len(seeds)]
            for index, rate in enumerate(rates)
        }
        results[optimizer] = min(
            by_rate.items(), key=lambda item: statistics.mean(map(loss_of, item[1]))
        )
    return results
