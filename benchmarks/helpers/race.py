"""A race of optimizers: the time of a step, which turns minutes into a number of steps; the search
for each one's learning rate; the final seeds. A finished run is a row (rows.py).
"""

import pathlib
import statistics

from helpers.command import Failed, read_metrics, run_script
from helpers.learning_rates import final_rates, rates_between, search
from helpers.process import Peer
from helpers.report import hardware
from helpers.rows import Missing
from helpers.shapes import shape_of

OPTIMIZERS = ("adamw", "lamb", "muon")
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
FIRST_RATES = dict(adamw=(5e-4, 1e-2), lamb=(2e-3, 5e-2), muon=(1e-3, 2e-2))  # lowest, highest
REFERENCE = "AdamW's step of the first form"
SEARCH_SEED = 1  # the final runs take those behind it
DIVERGED = float("inf")


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
