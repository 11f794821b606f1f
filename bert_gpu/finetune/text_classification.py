"""The form of tasks that want an answer to each text, or pair of texts: classes, numbers, several
labels; see forms.FormModule.
"""

import numpy as np

from bert_gpu.finetune import classifier, pictures, problem_types, results
from bert_gpu.finetune.examples import Examples as open_examples  # noqa: F401
from bert_gpu.finetune.heads import CLASSIFIER as HEAD  # noqa: F401
from bert_gpu.finetune.metrics import compute_metrics
from bert_gpu.finetune.results import PREDICTIONS as PREDICTED  # noqa: F401
from bert_gpu.settings import UserError


def check(settings):
    if settings.run.pictures:
        pictures.check_pictures()


def find_labels(task, examples):
    return task.labels or problem_types.KINDS[task.kind]().find_labels(examples)


def defaults(examples):
    return {}


def make_kind(settings, task, labels, examples):
    config = settings.run
    if task.kind != "classification":
        problem_types.check_plain_loss(config, task)
        return problem_types.KINDS[task.kind]()
    if examples is None:
        return problem_types.Classification()
    weights = config.class_weights and class_weights(config.class_weights, labels, examples)
    return problem_types.Classification(config.label_smoothing, weights)


def class_weights(text, labels, examples):
    """The weights that --class_weights gives, one for each of the labels; UserError when it does
    not.
    """
    if text == "balanced":
        numbers = np.bincount(
            problem_types.Classification().targets(examples, labels), minlength=len(labels)
        )
        absent = [label for label, number in zip(labels, numbers, strict=True) if not number]
        if absent:
            raise UserError(
                f"--class_weights=balanced: {examples.path} has no example of {absent[0][:40]!r}; "
                "give the weights as numbers"
            )
        return tuple(len(examples) / (len(labels) * int(number)) for number in numbers)
    weights = [problem_types.number_in(part) for part in text.split(",")]
    if len(weights) != len(labels) or any(weight is None or weight <= 0 for weight in weights):
        raise UserError(
            f"--class_weights={text[:60]}: must be balanced, or {len(labels)} numbers above 0, of "
            f"the classes {', '.join(labels)}"[:300]
        )
    return tuple(weights)


def encode(examples, kind, start, settings, max_seq_length, folder):
    return classifier.encode_examples(
        start.tokenizer,
        ((chunk.texts_a, chunk.texts_b) for chunk in examples.chunks()),
        kind.targets(examples, start.labels) if examples.has_labels else None,
        max_seq_length,
        "fixed" if start.encoder.fixed_length else settings.run.padding,
        folder=folder,
    )


def describe(examples, rows):
    kind = "pairs" if examples.has_pairs else "texts"
    cut = (
        f"; {rows.num_truncated:,} cut to {rows.max_seq_length} tokens"
        if rows.num_truncated
        else ""
    )
    return f"{len(examples):,} {kind}, {len(rows.ids) / len(rows):.1f} tokens each{cut}"


def metric_names(task, kind, labels):
    return task.metrics or kind.metrics


def judge(settings, examples, rows, kind, labels, outputs, names):
    return compute_metrics(outputs, rows.labels, names)


def after_evaluation(output_dir, settings, examples, rows, kind, labels, outputs):
    if settings.run.pictures and np.isfinite(outputs).all():
        stem, task = examples.source.stem, examples.task
        pictures.draw(output_dir, stem, task, labels, outputs, rows.labels)


def write(output_dir, settings, examples, rows, kind, labels, outputs):
    predicted = (output_dir, examples, labels, kind, outputs)
    if results.is_submitted(settings.run, examples) and results.has_labels_of(
        examples.task, labels
    ):
        results.write_submission(*predicted)
    return results.write_predictions(*predicted, settings.run.predictions_file)
