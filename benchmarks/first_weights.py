#!/usr/bin/env python3
"""Compares rules for the first weights of a fresh classifier, and learning rates of its own, by the
test accuracy of fine-tunings on few labels with a newcomer's three epochs.

    python benchmarks/first_weights.py --models=NAME=FOLDER --public_tasks=TASKS --verses=VERSES
        --folder=WORK --json=docs/data/first_weights.json [--seeds=5] [--only=.0176,t0.2]
    python benchmarks/first_weights.py --table --json=docs/data/first_weights.json

`.0176`: normal with standard deviation .02, cut at two of them, as in Google's BERT; `.02`: not
cut, as in transformers; `t0.1`: that of `.0176`, scaled so that the outputs of the first 128
examples differ from their means over these examples by a root mean square of .1, without dropout,
in float32; `head3`: `.0176` with three times the learning rate.

A seed draws the labels, the first weights and the order, which are the same for all rules. TASKS
has {r8,20ng,rotten}/{train,dev,test}.tsv as for record.py, VERSES such files of pairs. A model has
one learning rate: the best of three tasks' dev files with `.0176`. Rows in the JSON file are not
measured again. A gain is an accuracy less that of `.0176` with the same seed, mean of the tasks'.
"""

import collections
import functools
import itertools
import logging
import pathlib
import random
import sys
import tempfile
import time
from unittest import mock

import numpy as np
from helpers import command
from helpers.report import digest, opened_rows, pairs_digest, print_table
from record import mean_and_error, with_error

ALL = 10**9
FOLDERS = {"r8": "r8", "20ng": "20ng", "rotten": "rotten", "r8 all": "r8"}  # in --public_tasks
LABELS = {"r8": 500, "20ng": 1000, "rotten": 4000, "verses": 2000, "pairs": ALL, "r8 all": ALL}
OLD = ".0176"  # the rule that all are compared with
SPREADS = (f"t{spread:g}" for spread in (0.02, 0.05, 0.1, 0.2, 0.5, 1))
RULES = (OLD, ".02", *SPREADS, "head3", "head10")
RATE_TASKS, RATE_SEED, RATES = ("r8", "rotten", "pairs"), 100, [1e-4, 3e-4, 1e-3, 3e-3]
MOST_TESTED, NUM_FIRST = 2000, 128
KERNEL, BIAS = "classifier/kernel", "classifier/bias"
SETTINGS = dict(do_train=True, do_predict=True, quiet=True, num_gpus=0, lr_scaling="none")
SETTINGS |= dict(max_seq_length=64, padding="uniform", train_batch_size=32, num_train_epochs=3)


def folder_of(options, task):
    folder = f"{options.public_tasks}/{FOLDERS[task]}" if task in FOLDERS else vars(options)[task]
    return pathlib.Path(folder or "none")


def draw(path, count, seed, target):
    """Write `count` rows of a table, drawn with a seed, or all; return the path of the copy."""
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    if count < len(rows):
        rows = random.Random(f"{path.parent.name} {seed}").sample(rows, count)
    target.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return target


def with_rule(rule, row, train, run, task, start, data, devices, state, *more):
    """Return the result of finetune.run.train with the first weights of a rule. Note in `row` the
    root mean square of the outputs' differences and of their means, before they are scaled.
    """
    import tensorflow as tf

    from bert_gpu.finetune.files.encoded import make_batch
    from bert_gpu.model.weights import initialize

    rows, seed = data["train"][0].rows, run.settings.run.seed
    spec = task.weight_specs(start.encoder, len(task.labels))[KERNEL]
    kernel = initialize({KERNEL: spec}, seed)[KERNEL]
    if rule == ".02":
        kernel = np.random.default_rng(seed).normal(0, 0.02, spec.shape).astype(np.float32)
    batch = make_batch(rows, np.arange(min(NUM_FIRST, len(rows))))
    weights = start.weights | {KERNEL: kernel}
    inputs = ({x: tf.constant(y) for x, y in each.items()} for each in (weights, batch))
    outputs = task.logits(*inputs, start.encoder, tf.float32).numpy().astype(np.float64)
    row["spread"] = float(np.sqrt(np.var(outputs, 0).mean()))
    row["offset"] = float(np.sqrt((outputs.mean(0) ** 2).mean()))
    if rule.startswith("t"):
        weights[KERNEL] = kernel * np.float32(float(rule[1:]) / row["spread"])
    state.assign_weights(weights)
    return train(run, task, start, data, devices, state, *more)


def fine_tune(options, model, task, rule, rate, seed, split="test"):
    """Fine-tune once in this process. Returns the row: accuracy, outputs, processor seconds."""
    import bert_gpu
    from bert_gpu.finetune import run
    from bert_gpu.optim import optimizers

    logging.getLogger("tensorflow").setLevel("ERROR")  # it warns that each one is traced
    row, path, started = {}, folder_of(options, task), time.process_time()
    state = functools.partial(with_rule, rule, row, run.train)
    factors = optimizers.layer_factors
    own = dict.fromkeys((KERNEL, BIAS), float(rule[4:])) if rule.startswith("head") else {}
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        mock.patch.object(run, "train", state),
        mock.patch.object(optimizers, "layer_factors", lambda *each: factors(*each) | own),
    ):
        folder = pathlib.Path(folder)
        result = bert_gpu.run_classifier(
            task_name="pairs" if task in ("verses", "pairs") else "single",
            train_file=draw(path / "train.tsv", LABELS[task], seed, folder / "train.tsv"),
            test_file=draw(path / f"{split}.tsv", MOST_TESTED, 0, folder / "test.tsv"),
            init_checkpoint=options.models[model],
            output_dir=folder / "run",
            learning_rate=rate,
            seed=seed,
            **SETTINGS,
        )
    row["seconds"] = round(time.process_time() - started, 1)
    return dict(accuracy=result.metrics["test"]["accuracy"]) | row


def measure(options, rows):
    """Measure the rows that are missing, with all rules and tasks for a seed before the next."""
    for model in options.models:
        for task, rate in itertools.product(RATE_TASKS, options.rates):
            call = functools.partial(fine_tune, options, model, task, OLD, rate, RATE_SEED, "dev")
            rows.row("rates", f"{model}, {task}, {rate:g}", call)
        rate, seeds = best_rate(rows, model), range(1, 1 + options.seeds)
        for seed, task, rule in itertools.product(seeds, options.tasks, options.only):
            call = functools.partial(fine_tune, options, model, task, rule, rate, seed)
            rows.row("rows", f"{model}, {task}, {rule}, seed {seed}", call)


def best_rate(rows, model):
    """Return the learning rate of a model, which is the best on the dev files."""
    sums = collections.Counter()
    for key, row in rows.values["rates"].items():
        name, _, rate = key.split(", ")
        sums[float(rate)] += row["accuracy"] * (name == model)
    return max(sums, key=sums.get)


def line_of(rows, model, rule):
    """Return the line of a rule in a model's table, "-" where there are no rows."""
    cells, gains, seeds, seconds = [], [], [], []
    for task in LABELS:
        own, old = (rows.by_seed("rows", f"{model}, {task}, {each}") for each in (rule, OLD))
        values = {seed: row["accuracy"] for seed, row in own.items()}
        cells.append(with_error(*mean_and_error([*values.values()])) if own else "-")
        if both := values.keys() & old.keys():
            gains.append(mean_and_error([values[x] - old[x]["accuracy"] for x in both]))
            seeds.append(len(both))
            seconds += [own[seed]["seconds"] for seed in both]
    means, errors = zip(*gains, strict=True) if gains else ([0], [None])
    error = None if None in errors else np.linalg.norm(errors) / len(errors)
    gain = with_error(np.mean(means), error)
    return [rule, *cells, gain, min(seeds, default=0), f"{np.mean(seconds or 0):.0f}"]


def print_rows(rows):
    for model in dict.fromkeys(key.split(", ")[0] for key in rows.values["rows"]):
        print(f"\n{model}, learning rate {best_rate(rows, model):g}; test accuracy, %\n")
        lines = [line_of(rows, model, rule) for rule in RULES]
        print_table(["rule", *LABELS, "gain, points", "seeds", "seconds a run"], lines)


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    settings = {task: pairs_digest(folder_of(options, task)) for task in LABELS}
    models = {f"model {x}": digest(f"{y}/model.safetensors") for x, y in options.models.items()}
    return settings | models


def make_parser():
    parser = command.benchmark_parser(__doc__, "pairs", "json", "folder", "table")
    parser.add_argument("--models", default="", help="NAME=FOLDER,...")
    parser.add_argument("--public_tasks", help="folder of r8, 20ng and rotten")
    parser.add_argument("--verses", help="folder of further pairs")
    parser.add_argument("--tasks", type=command.names_among(LABELS), default=[*LABELS][:-1])
    parser.add_argument("--only", type=command.names_among(RULES), default=list(RULES))
    parser.add_argument("--rates", type=command.numbers(float), default=RATES)
    parser.add_argument("--seeds", type=command.at_least_one, default=3)
    return parser


def main():
    options = make_parser().parse_args()
    options.models = dict(part.split("=", 1) for part in options.models.split(",") if part)
    try:
        rows = opened_rows(options, settings_of, ("rates", "rows"))
        if not options.table:
            pathlib.Path(options.folder).mkdir(parents=True, exist_ok=True)
            measure(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(rows)


if __name__ == "__main__":
    main()
