"""The task type of texts, or pairs of texts, each of which has a class, a number or several labels;
interface.TaskType describes the functions of this module.
"""

from collections.abc import Sequence

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.files.examples import Examples, Source
from bert_gpu.finetune.start import Start
from bert_gpu.finetune.tasks import pictures, problem_types
from bert_gpu.finetune.tasks.heads import CLASSIFIER
from bert_gpu.finetune.tasks.interface import Evaluated
from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.finetune.tasks.problem_types import TextProblem
from bert_gpu.finetune.tasks.table import TaskSpec

HEAD = CLASSIFIER


def open_examples(
    task: TaskSpec, source: Source, needs_label: bool, labels: tuple[str, ...] | None
) -> Examples:
    return Examples(task, source, needs_label, labels)


def find_labels(task: TaskSpec, examples: Examples) -> tuple[str, ...]:
    return task.labels or problem_types.PROBLEM_TYPES[task.kind]().find_labels(examples)


def make_problem_type(
    settings: FinetuneSettings, task: TaskSpec, labels: tuple[str, ...], examples: Examples | None
) -> TextProblem:
    config = settings.run
    if task.kind != "classification":
        return (
            problem_types.MultiLabel(task.separator or problem_types.SEPARATOR)
            if task.kind == "multilabel"
            else problem_types.Regression()
        )
    positive = problem_types.choose_positive(labels, config.positive_label)
    if examples is None:
        return problem_types.Classification(positive_label=positive)
    weights = config.class_weights and class_weights(config.class_weights, labels, examples)
    return problem_types.Classification(config.label_smoothing, weights or None, positive)


def class_weights(text: str, labels: Sequence[str], examples: Examples) -> tuple[float, ...]:
    """Return the weight of each label, as `text`, the value of --class_weights, says. Raises
    UserError where it does not give a positive weight for each label.
    """
    if text == "balanced":
        numbers = np.bincount(
            problem_types.Classification().targets(examples, labels), minlength=len(labels)
        )
        absent = [label for label, number in zip(labels, numbers, strict=True) if not number]
        if absent:
            raise UserError(
                f"{examples.path} has no example of {absent[0][:40]!r}",
                "give the weights as numbers",
                setting="class_weights",
                value="balanced",
            )
        return tuple(len(examples) / (len(labels) * int(number)) for number in numbers)
    weights = [problem_types.number_in(part) or 0.0 for part in text.split(",")]
    if len(weights) != len(labels) or any(weight <= 0 for weight in weights):
        raise UserError(
            f"must be balanced, or {len(labels)} numbers above 0, of the classes "
            f"{', '.join(labels)}",
            setting="class_weights",
            value=text[:60],
        )
    return tuple(weights)


def encode(
    examples: Examples,
    problem_type: TextProblem,
    start: Start,
    settings: FinetuneSettings,
    max_seq_length: int,
    folder: str,
) -> encoded.EncodedExamples:
    return encoded.encode_examples(
        start.tokenizer,
        ((chunk.texts_a, chunk.texts_b) for chunk in examples.chunks()),
        problem_type.targets(examples, start.labels) if examples.has_labels else None,
        max_seq_length,
        encoded.padding_of(settings, start.encoder),
        folder=folder,
    )


def describe(examples: Examples, rows: encoded.EncodedExamples) -> str:
    unit = "pairs" if examples.has_pairs else "texts"
    cut = (
        f"; {rows.num_truncated:,} cut to {rows.max_seq_length} tokens"
        if rows.num_truncated
        else ""
    )
    return f"{len(examples):,} {unit}, {len(rows.ids) / len(rows):.1f} tokens each{cut}"


def judge(evaluated: Evaluated, names: Sequence[str]) -> dict[str, float | None]:
    positive, labels = evaluated.problem_type.positive_label, evaluated.labels
    return compute_metrics(*labelled(evaluated), names, labels.index(positive) if positive else 1)


def labelled(evaluated: Evaluated) -> tuple[np.ndarray, np.ndarray]:
    """Return (outputs, targets) of the examples that have a label."""
    has_label = evaluated.examples.label_codes >= 0
    return evaluated.outputs[has_label], np.asarray(evaluated.rows.labels)[has_label]


def after_evaluation(output_dir: str, evaluated: Evaluated) -> None:
    task = evaluated.examples.task
    outputs, targets = labelled(evaluated)
    if evaluated.settings.run.pictures and np.isfinite(outputs).all():
        content = (evaluated.labels, outputs, targets)
        pictures.draw(output_dir, evaluated.stem, task, *content, results.new_file)


def write(output_dir: str, evaluated: Evaluated) -> str:
    run, examples, labels = evaluated.settings.run, evaluated.examples, evaluated.labels
    predicted = (output_dir, examples, labels, evaluated.problem_type, evaluated.outputs)
    if results.is_submitted(run, examples) and results.has_labels_of(examples.task, labels):
        results.write_submission(*predicted)
    return results.write_predictions(*predicted, run.predictions_file)
