#!/usr/bin/env python3
"""A probe: does a small model gain from a large one?

    python benchmarks/distillation.py --teacher=MODEL --student=MODEL --data=RECORDS
        --public_tasks=TASKS --verses=VERSES --folder=WORK --json=docs/data/distillation.json
    python benchmarks/distillation.py --table --json=docs/data/distillation.json

In pretraining: students of 2 x 128 on RECORDS for --steps, with the recipe `quick`: `labels`;
`layers` begin as two layers, the embeddings and the heads of the teacher; `scores` learn half from
the labels, half from the teacher's 64 highest scores of each masked word; `layers, scores` both.
Each is then fine-tuned on the tasks with 1,000 labels.

In fine-tuning: the teacher learns from 1,000 labels and gives all other training texts
probabilities. The student learns from the labels alone, in as many
examples as run_classifier.py takes or in as many as the others; from labels and `probabilities`
(temperature 2); from labels and `classes`, the teacher's likeliest; or from all true labels.

Seconds are of the student's processor, less the teacher's passes where these can be made once.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import os
import pathlib
import random
import sys
import tempfile
from unittest import mock

import numpy as np
import record
from helpers import command
from helpers.report import digest, opened_rows, pairs_digest, print_table

LABELS, TEMPERATURE, BEST = 1000, 2.0, 64
TASKS = {"rotten": "single", "verses": "pairs"}
PRETRAINED = ("labels", "layers", "scores", "layers, scores")
FINE_TUNED = ("labels", "labels, as long", "probabilities", "classes", "all true labels", "teacher")
BATCH = 32
SETTINGS = dict(do_train=True, do_predict=True, quiet=True, num_gpus=0, lr_scaling="none")
SETTINGS |= dict(max_seq_length=64, padding="uniform", train_batch_size=BATCH)
SETTINGS |= dict(warmup_proportion=0.1)


# -- pretraining


def pretrain(options, way, seed):
    """Pretrain a student. Returns {"mlm_loss", "mlm_accuracy", "nsp_accuracy", "seconds"}."""
    import bert_gpu

    folder = pathlib.Path(options.folder) / f"{way.replace(', ', '-')}-{seed}"
    started = sum(os.times()[:4])
    start = {}
    if "layers" in way:
        start = dict(init_checkpoint=first_student(options))
    with contextlib.ExitStack() as patches:
        if "scores" in way:
            patches.enter_context(learning_from(options.teacher))
        bert_gpu.run_pretraining(
            recipe="quick",
            input_file=f"{options.data}/*.tfrecord",
            output_dir=folder,
            num_gpus=0,
            num_train_steps=options.steps,
            seed=seed,
            quiet=True,
            **start,
        )
    _, validations = command.read_metrics(folder)
    names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy")
    seconds = round(sum(os.times()[:4]) - started, 1)
    return {name: validations[-1][f"eval_{name}"] for name in names} | dict(seconds=seconds)


def first_student(options):
    """Write a model of the teacher's first and last layer, embeddings and heads."""
    from bert_gpu.interop import models

    folder = pathlib.Path(options.folder) / "first"
    if not folder.exists():
        _, teacher = models.open_model(options.teacher, "teacher")
        last = f"layer_{teacher.config.num_hidden_layers - 1}"
        weights = {}
        for name, value in teacher.weights.items():
            layer, _, rest = name.partition("/")
            if layer in ("layer_0", last):
                weights[f"layer_{int(layer == last)}/{rest}"] = value
            elif not layer.startswith("layer_"):
                weights[name] = value
        config = dataclasses.replace(teacher.config, num_hidden_layers=2)
        student = teacher._replace(config=config, weights=weights, card=None)
        models.write_own(student, str(folder))
    return folder


def learning_from(path):
    """Patch the loss of masked words: half labels, half the teacher's highest scores."""
    import tensorflow as tf

    from bert_gpu.interop import models
    from bert_gpu.model import heads
    from bert_gpu.model.encoders import open_encoder
    from bert_gpu.pretrain.objectives import masked_words

    _, teacher = models.open_model(path, "teacher")
    encoder = open_encoder(teacher.config)
    fixed = {name: np.asarray(value) for name, value in teacher.weights.items()}

    def sums(self, weights, hidden, batch, dtype):
        logits, bias = heads.mlm_product(weights, hidden, self.config, dtype, 1)
        counted = masked_words.word_weights(batch)
        loss, correct = heads.summed_loss_and_correct(logits, batch["masked_lm_ids"], counted, bias)
        known = {name: tf.constant(value) for name, value in fixed.items()}
        rows = {x: batch[x] for x in ("input_ids", "input_mask", "segment_ids")}
        states = encoder.encode(known, rows, dtype=dtype, positions=self.positions(batch))
        scores, of_teacher = heads.mlm_product(known, states, teacher.config, dtype, 1)
        best, words = tf.math.top_k(scores + (of_teacher[0] if of_teacher else 0.0), BEST)
        target = tf.stop_gradient(tf.nn.softmax(best))
        wide = logits + (bias[0] if bias else 0.0)
        own = tf.gather(wide, tf.stop_gradient(words), batch_dims=1)
        soft = tf.reduce_logsumexp(wide, -1) - tf.reduce_sum(target * own, -1)
        soft = tf.reduce_sum(soft * tf.reshape(counted, [-1]))
        return {"mlm": 0.5 * loss + 0.5 * soft, "mlm_accuracy": correct}

    return mock.patch.object(masked_words.Objective, "sums", sums)


# -- fine-tuning


def split(options, task, seed, folder):
    """Write the labelled and the other training examples. Returns (header, labelled, others)."""
    path = folder_of(options, task) / "train.tsv"
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    random.Random(f"{task} {seed}").shuffle(rows)
    return header, rows[:LABELS], rows[LABELS:]


def folder_of(options, task):
    return pathlib.Path(options.verses if task == "verses" else options.public_tasks + "/" + task)


def write(path, header, rows):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def classify(options, task, model, train_file, test_file, folder, seed, **more):
    """Fine-tune and predict. Returns run_classifier's result."""
    import bert_gpu

    logging.getLogger("tensorflow").setLevel("ERROR")  # it warns that each one is traced
    settings = SETTINGS | dict(
        task_name=TASKS[task],
        train_file=train_file,
        test_file=test_file,
        init_checkpoint=model,
        output_dir=folder,
        seed=seed,
    )
    return bert_gpu.run_classifier(**settings | more)


def teach(options, task, seed):
    """Fine-tune the teacher; keep its probabilities of the other texts. Returns its accuracy."""
    folder = pathlib.Path(options.folder) / f"teacher-{task}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    header, labelled, others = split(options, task, seed, folder)
    train_file = write(folder / "train.tsv", header, labelled)
    other_file = write(folder / "others.tsv", header, others)
    started = sum(os.times()[:4])
    run = folder / "run"
    classify(options, task, options.teacher, train_file, other_file, run, seed)
    predicted = read_probabilities(run)
    np.savez(folder / "probabilities.npz", **dict(zip(*predicted, strict=True)))
    test = classify(
        options,
        task,
        run / "model",
        None,
        folder_of(options, task) / "test.tsv",
        folder / "test",
        seed,
        do_train=False,
    )
    accuracy = test.metrics["test"]["accuracy"]
    return dict(accuracy=accuracy, seconds=round(sum(os.times()[:4]) - started, 1))


def read_probabilities(run):
    """Return the labels and, for each, the probabilities of all examples that were predicted."""
    header, *lines = (run / "test_results.tsv").read_text(encoding="utf-8").splitlines()
    columns = zip(header.split("\t"), *(line.split("\t") for line in lines), strict=True)
    table = {name: values for name, *values in columns}
    names = [name for name in table if name.startswith("probability_")]
    values = [np.array(table[name], np.float64) for name in names]
    return [name.removeprefix("probability_") for name in names], values


def tune(options, task, way, seed, model):
    given = pathlib.Path(options.folder) / f"teacher-{task}-{seed}"
    more, started = {}, sum(os.times()[:4])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        header, labelled, others = split(options, task, seed, folder)
        rows = labelled
        if way == "labels, as long":
            total = len(labelled) + len(others)
            more = dict(num_train_steps=-(-max(9600, 3 * total) // BATCH))
        elif way == "all true labels":
            rows = labelled + others
        elif way in ("classes", "probabilities"):
            predicted = dict(np.load(given / "probabilities.npz"))
            names, probabilities = [*predicted], np.stack([*predicted.values()], -1)
            place = header.split("\t").index("label")
            for row, likeliest in zip(others, probabilities.argmax(-1), strict=True):
                cells = row.split("\t")
                cells[place] = names[likeliest]
                rows = [*rows, "\t".join(cells)]
            if way == "probabilities":
                gold = [names.index(row.split("\t")[place]) for row in labelled]
                stack.enter_context(soft(names, np.eye(2)[gold], probabilities))
        train_file = write(folder / "train.tsv", header, rows)
        test_file = folder_of(options, task) / "test.tsv"
        result = classify(options, task, model, train_file, test_file, folder / "run", seed, **more)
    seconds = round(sum(os.times()[:4]) - started, 1)
    return dict(accuracy=result.metrics["test"]["accuracy"], seconds=seconds)


@contextlib.contextmanager
def soft(names, gold, probabilities):
    """Patch the loss: labelled examples have their class, the others the teacher's distribution at
    the temperature.
    """
    import tensorflow as tf

    from bert_gpu.finetune.tasks.text_classification import Classification

    powers = np.maximum(probabilities, 1e-7) ** (1 / TEMPERATURE)
    powers /= powers.sum(-1, keepdims=True)
    table = np.zeros((len(gold) + len(powers), 3), np.float32)
    table[: len(gold), 1:] = gold
    table[len(gold) :, 0] = 1
    table[len(gold) :, 1:] = powers
    targets, losses = Classification.targets, Classification.losses

    def soft_targets(self, examples):
        if pathlib.Path(examples.path).name != "train.tsv":
            return targets(self, examples)
        assert [*self.labels] == names
        return table

    def soft_losses(self, logits, targets):
        if targets.shape.rank == 1:
            return losses(self, logits, targets)
        wide, is_soft = tf.cast(logits, tf.float32), targets[:, :1]
        wide = wide / (1 + is_soft * (TEMPERATURE - 1))
        own = -tf.reduce_sum(targets[:, 1:] * tf.nn.log_softmax(wide), -1)
        return own * (1 + is_soft[:, 0] * (TEMPERATURE**2 - 1))

    with (
        mock.patch.object(Classification, "targets", soft_targets),
        mock.patch.object(Classification, "losses", soft_losses),
    ):
        yield


# -- rows


def fill(options, rows):
    seeds = range(1, 1 + options.seeds)
    firsts = range(1, 1 + options.first_seeds)
    with record.open_pool(options.workers) as pool:
        calls = {
            f"{task}, teacher, seed {seed}": functools.partial(teach, options, task, seed)
            for seed, task in itertools.product(seeds, TASKS)
        }
        record.fill(rows, "tasks", calls, pool)
        calls = {
            f"{task}, {way}, seed {seed}": functools.partial(
                tune, options, task, way, seed, options.student
            )
            for seed, task, way in itertools.product(seeds, TASKS, FINE_TUNED[:-1])
        }
        record.fill(rows, "tasks", calls, pool)
        first = {
            f"{way}, seed {seed}": functools.partial(pretrain, options, way, seed)
            for seed, way in itertools.product(firsts, options.pretrained)
        }
        record.fill(rows, "pretraining", first, pool)
        calls = {
            f"{task}, {way}, seed {seed}": functools.partial(
                *(tune, options, task, "labels", seed),
                pathlib.Path(options.folder) / f"{way.replace(', ', '-')}-{seed}" / "model",
            )
            for seed, task, way in itertools.product(firsts, TASKS, options.pretrained)
        }
        record.fill(rows, "students", calls, pool)


def print_rows(rows):
    names = ("mlm_loss", "mlm_accuracy", "nsp_accuracy", "seconds")
    lines = []
    for way in PRETRAINED:
        found = rows.of("pretraining", way)
        cells = [f"{np.mean([row[name] for row in found]):.3f}" for name in names if found]
        tasks = [cell(rows, "students", task, way) for task in TASKS]
        lines.append([way, len(found), *cells, *tasks])
    print_table(["pretraining", "seeds", *names, *TASKS], lines)
    print()
    lines = [[way, *(cell(rows, "tasks", task, way) for task in TASKS)] for way in FINE_TUNED]
    print_table(["fine-tuning", *TASKS], lines)


def cell(rows, part, task, way, reference="labels"):
    """Return accuracy and its gain over the reference, paired by seed."""
    own, old = (rows.by_seed(part, f"{task}, {name}") for name in (way, reference))
    if not own:
        return "-"
    text = record.with_error(*record.mean_and_error([row["accuracy"] for row in own.values()]))
    both = [own[seed]["accuracy"] - old[seed]["accuracy"] for seed in own.keys() & old.keys()]
    seconds = np.mean([row["seconds"] for row in own.values()])
    gain = record.with_error(*record.mean_and_error(both)) if both else "-"
    return f"{text} ({gain}; {seconds:.0f} s)"


def settings_of(options):
    tasks = {task: pairs_digest(folder_of(options, task)) for task in TASKS}
    models = (f"{x}/model.safetensors" for x in (options.teacher, options.student))
    return tasks | dict(models=digest(*models), steps=options.steps)


def main():
    parser = command.benchmark_parser(__doc__, "json", "folder", "table")
    parser.add_argument("--teacher", help="folder of a pretrained model, with RECORDS' vocabulary")
    parser.add_argument("--student", help="folder of a smaller one, for the fine-tuning")
    parser.add_argument("--data", help="folder of the records")
    parser.add_argument("--public_tasks", help="folder of rotten")
    parser.add_argument("--verses", help="folder of pairs")
    parser.add_argument("--steps", type=command.at_least_one, default=720)
    parser.add_argument("--seeds", type=command.at_least_one, default=3)
    parser.add_argument("--first_seeds", type=int, default=1, help="of pretraining; 0: none")
    parser.add_argument("--pretrained", type=lambda text: text.split(";"), default=PRETRAINED)
    parser.add_argument("--workers", type=command.at_least_one, default=1, help="at a time")
    options = parser.parse_args()
    try:
        rows = opened_rows(options, settings_of, ("pretraining", "tasks", "students"))
        if not options.table:
            pathlib.Path(options.folder).mkdir(parents=True, exist_ok=True)
            fill(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    print_rows(rows)


if __name__ == "__main__":
    main()
