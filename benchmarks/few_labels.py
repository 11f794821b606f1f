#!/usr/bin/env python3
"""Compares ways to fine-tune on few labels by test accuracy: any settings of run_classifier.py, a
whole fine-tuning by PyTorch, and TF-IDF with logistic regression.

    python benchmarks/few_labels.py --models=NAME=FOLDER --public_tasks=TASKS --verses=VERSES
        --folder=WORK --json=docs/data/few_labels.json [--seeds=5] [--ways="default; spread=0;
        padding=fixed dropout=.1; PyTorch padding=fixed dropout=.1; TF-IDF"]
    python benchmarks/few_labels.py --table --json=docs/data/few_labels.json [--reference=spread=0]

A way is settings that differ from `default`: rows of at most 64 tokens, uniform padding, batches of
32, three epochs, and the model's learning rate, the best of three tasks' dev files. spread=T scales
the first weights of the classifier so that its first outputs differ by T, 0 = not (their standard
deviation is .0176 then); dropout=P sets both probabilities; learning_rate=none leaves the rate to
run_classifier.py. `PyTorch` starts from the same weights, first weights of the classifier
included, and has its own order of examples, dropout, gradients and AdamW; BERT_GPU_ORACLE_PYTHON
names its environment.

A seed draws the labels, which are the same for all ways, the first weights and the order. TASKS has
{r8,20ng,rotten}/{train,dev,test}.tsv as for record.py, VERSES such files of pairs. Rows in the JSON
file are not measured again. A gain is an accuracy less the reference's with the same seed.
"""

import ast
import collections
import contextlib
import functools
import itertools
import json
import logging
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
from unittest import mock

import numpy as np
import record
from helpers import ROOT, command, tf_idf
from helpers.report import digest, opened_rows, pairs_digest, print_table

ALL = 10**9
FOLDERS = {"r8": "r8", "20ng": "20ng", "rotten": "rotten", "r8 all": "r8"}  # in --public_tasks
LABELS = {"r8": 500, "20ng": 1000, "rotten": 4000, "verses": 2000, "pairs": ALL, "r8 all": ALL}
BASE, PYTORCH = "default", "PyTorch"
RATE_TASKS, RATE_SEED, RATES = ("r8", "rotten", "pairs"), 100, [1e-4, 3e-4, 1e-3, 3e-3]
MOST_TESTED = 2000
BATCH = 32
SETTINGS = dict(do_train=True, do_predict=True, quiet=True, num_gpus=0, lr_scaling="none")
SETTINGS |= dict(max_seq_length=64, padding="uniform", num_train_epochs=3, warmup_proportion=0.1)
SETTINGS |= dict(train_batch_size=BATCH, weight_decay_rate=0.01)
ORACLE = ROOT / "tests" / "finetune" / "training_oracle.py"


class Written(BaseException):
    """Ends a fine-tuning whose start PyTorch continues."""


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


def settings_of_way(way, rate):
    """Return (system: "", PYTORCH or TF-IDF, spread or None, settings of run_classifier)."""
    words = [] if way == BASE else way.split()
    system = words.pop(0) if words and "=" not in words[0] else ""
    values = {}
    for name, _, text in (word.partition("=") for word in words):
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = None if text == "none" else text
    spread, dropout = (values.pop(name, None) for name in ("spread", "dropout"))
    if dropout is not None:
        values |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return system, spread, SETTINGS | dict(learning_rate=rate) | values


def measure(options, model, task, way, rate, seed, split="test"):
    """Train and test once. Returns {"accuracy", "seconds": of processor}."""
    system, spread, settings = settings_of_way(way, rate)
    path, started = folder_of(options, task), sum(os.times()[:4])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        train_file = draw(path / "train.tsv", LABELS[task], seed, folder / "train.tsv")
        test_file = draw(path / f"{split}.tsv", MOST_TESTED, 0, folder / "test.tsv")
        if system == record.TF_IDF:
            draw(path / "dev.tsv", ALL, 0, folder / "dev.tsv")
            each = [tf_idf.accuracies(train_file, folder, x) for x in record.INVERSE_PENALTIES]
            accuracy = max(each, key=lambda row: row["dev"])["test"]
        else:
            settings |= dict(
                task_name="pairs" if task in ("verses", "pairs") else "single",
                train_file=train_file,
                test_file=test_file,
                init_checkpoint=options.models[model],
                output_dir=folder / "run",
                seed=seed,
            )
            accuracy = fine_tune(folder, spread, settings, system == PYTORCH)
    return dict(accuracy=accuracy, seconds=round(sum(os.times()[:4]) - started, 1))


def fine_tune(folder, spread, settings, is_continued):
    """Return the test accuracy of a fine-tuning, or of one that PyTorch continues from its start.
    spread: of the first outputs, None = bert_gpu's, 0 = not scaled.
    """
    import bert_gpu
    from bert_gpu.finetune import first_weights, run

    logging.getLogger("tensorflow").setLevel("ERROR")  # it warns that each one is traced
    with contextlib.ExitStack() as patches:
        if spread is not None:
            patches.enter_context(mock.patch.object(first_weights, "SPREAD", spread))
        if spread == 0:
            same = mock.patch.object(run, "with_scaled_head", lambda start, *more: start)
            patches.enter_context(same)
        if not is_continued:
            return bert_gpu.run_classifier(**settings).metrics["test"]["accuracy"]

        def write(run, task, start, data, *more):
            write_start(folder, run.settings, task, start, data)
            raise Written

        patches.enter_context(mock.patch.object(run, "train", write))
        with contextlib.suppress(Written):
            bert_gpu.run_classifier(**settings)
    environment = os.environ | dict(HF_MODULES_CACHE=f"{folder}/modules", OMP_NUM_THREADS="1")
    oracle = [os.environ["BERT_GPU_ORACLE_PYTHON"], ORACLE, folder]
    subprocess.run(oracle, env=environment, check=True, stdout=sys.stderr)
    predicted = np.load(folder / "probabilities.npy").argmax(-1)
    return float(np.mean(predicted == np.load(folder / "test.npz")["labels"]))


def write_start(folder, settings, task, start, data):
    """Write what PyTorch trains on, in an order of its own. The schedule is Google's."""
    from bert_gpu.finetune.files.encoded import make_batch
    from bert_gpu.interop import models

    notes = models.Notes([], [], task.architecture, task.labels)
    models.write_own(
        models.Model(start.model, start.weights, notes, start.tokenizer), str(folder / "start")
    )
    rows, tested = data["train"][0].rows, data["predict"][0].rows
    chance = np.random.default_rng(settings.run.seed)
    epochs = settings.cadence.num_train_epochs
    steps = math.ceil(epochs * len(rows) / BATCH)
    order = np.concatenate([chance.permutation(len(rows)) for _ in range(math.ceil(epochs) + 1)])
    for step in range(steps):
        batch = make_batch(rows, order[step * BATCH : (step + 1) * BATCH])
        np.savez(folder / f"batch-{step}.npz", **batch)
    np.savez(folder / "test.npz", **make_batch(tested, np.arange(len(tested))))
    warmup = int(steps * settings.schedule.warmup_proportion)
    rates = [
        settings.optimizer.learning_rate * (x / warmup if x < warmup else 1 - x / steps)
        for x in range(steps)
    ]
    values = dict(weight_decay=0.01, epsilon=1e-6, clip_norm=1.0, learning_rates=rates)
    values |= dict(seed=settings.run.seed, dropout=start.model.hidden_dropout_prob)
    (folder / "settings.json").write_text(json.dumps(values))


def fill(options, rows):
    """Measure the rows that are missing, with all ways and tasks for a seed before the next."""
    for model in options.models:
        calls = {
            f"{model}, {task}, {rate:g}": (options, model, task, BASE, rate, RATE_SEED, "dev")
            for task, rate in itertools.product(RATE_TASKS, options.rates)
        }
        record.fill(rows, "rates", partials(calls), options.workers)
        seeds = range(1, 1 + options.seeds)
        calls = {
            f"{model}, {task}, {way}, seed {seed}": (
                *(options, model, task, way, best_rate(rows, model), seed),
            )
            for seed, task, way in itertools.product(seeds, options.tasks, options.ways)
        }
        record.fill(rows, "rows", partials(calls), options.workers)


def partials(calls):
    return {key: functools.partial(measure, *arguments) for key, arguments in calls.items()}


def best_rate(rows, model):
    """Return the learning rate of a model, which is the best on the dev files."""
    sums = collections.Counter()
    for key, row in rows.values["rates"].items():
        name, _, rate = key.split(", ")
        sums[float(rate)] += row["accuracy"] * (name == model)
    return max(sums, key=sums.get)


def line_of(rows, model, way, reference, tasks):
    """Return the line of a way in a model's table, "-" where there are no rows; its gain is the
    mean over `tasks`.
    """
    cells, gains, seeds, seconds = [], [], [], []
    for task in LABELS:
        own, old = (rows.by_seed("rows", f"{model}, {task}, {each}") for each in (way, reference))
        values = {seed: row["accuracy"] for seed, row in own.items()}
        seconds += [row["seconds"] for row in own.values()]
        cells.append(record.with_error(*record.mean_and_error([*values.values()])) if own else "-")
        if task in tasks and (both := values.keys() & old.keys()):
            differences = [values[seed] - old[seed]["accuracy"] for seed in both]
            gains.append(record.mean_and_error(differences))
            seeds.append(len(both))
    means, errors = zip(*gains, strict=True) if gains else ([np.nan], [None])
    error = None if None in errors else np.linalg.norm(errors) / len(errors)
    gain = record.with_error(np.mean(means), error)
    return [way, *cells, gain, min(seeds, default=0), f"{np.mean(seconds or 0):.0f}"]


def print_rows(rows, reference, tasks):
    keys = [key.split(", ") for key in rows.values["rows"]]
    for model in dict.fromkeys(model for model, *_ in keys):
        print(f"\n{model}, learning rate {best_rate(rows, model):g}; test accuracy, %\n")
        ways = dict.fromkeys(way for name, _, way, _ in keys if name == model)
        lines = [line_of(rows, model, way, reference, tasks) for way in ways]
        print_table(["way", *LABELS, "gain, points", "seeds", "seconds a run"], lines)


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
    parser.add_argument("--ways", default=BASE, help="ways to fine-tune, with ; between them")
    parser.add_argument("--reference", default=BASE, help="the way that gains are counted from")
    parser.add_argument("--rates", type=command.numbers(float), default=RATES)
    parser.add_argument("--seeds", type=command.at_least_one, default=3)
    parser.add_argument("--workers", type=command.at_least_one, default=1, help="at a time")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    options.models = dict(part.split("=", 1) for part in options.models.split(",") if part)
    options.ways = [way.strip() for way in options.ways.split(";")]
    if PYTORCH in " ".join(options.ways) and "BERT_GPU_ORACLE_PYTHON" not in os.environ:
        parser.error(f"--ways: {PYTORCH} needs BERT_GPU_ORACLE_PYTHON, a Python with transformers")
    for path in (*options.models.values(), *(folder_of(options, task) for task in LABELS)):
        if not options.table and not pathlib.Path(path).is_dir():
            parser.error(f"{path}: no such folder; see --models, --public_tasks, --verses, --pairs")
    try:
        rows = opened_rows(options, settings_of, ("rates", "rows"))
        if not options.table:
            pathlib.Path(options.folder).mkdir(parents=True, exist_ok=True)
            fill(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(rows, options.reference, options.tasks)


if __name__ == "__main__":
    main()
