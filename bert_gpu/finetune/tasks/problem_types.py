"""The types of problem that a task on texts may be: one class, a number, several labels at once.

A problem type turns the labels of a file into targets and the model's scores into outputs, and
computes the loss. token_classification.py has the type for tags of words, question_answering.py the
one for answers.
Legend: N examples, B batch, C scores for an example (classes, labels, or 1).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.settings import number_in
from bert_gpu.interop.formats import Embedding

if TYPE_CHECKING:
    from tensorflow import Tensor

    from bert_gpu.finetune.files.examples import Examples, Loaded
    from bert_gpu.finetune.tasks.heads import Head

tf = LazyModule("tensorflow")
heads = LazyModule("bert_gpu.finetune.tasks.heads")

NEGATION = "(not|non|no|nt|un|in|im|il|ir|dis|without)"  # a prefix that negates a name
NEGATIVE = "no|not|none|false|negative|without"  # names that negate any other
SEPARATOR = ","  # default separator of the labels in a cell


class ProblemType:
    """The interface of a problem type, with the defaults of problems on whole texts.

    config_name: its name in Hugging Face's config.json, None where that has no name for it. target:
    key of the targets in a batch. note_fields: names of its fields that start.TaskNotes has, too.
    class_weights, positive_label: as for Classification. temperature: divides the cosines in the
    loss of pairs of texts among all texts of the global batch (contrastive.py), None for problems
    whose examples have losses of their own. embedding: rules by which a trained model makes
    vectors.
    """

    config_name: str | None = None
    target: str = "labels"
    note_fields: tuple[str, ...] = ()
    class_weights: tuple[float, ...] | None = None
    positive_label: str | None = None
    temperature: float | None = None
    embedding: Embedding = Embedding()

    @property
    def head(self) -> Head:
        """The head whose scores the problem type reads."""
        return heads.CLASSIFIER

    @property
    def notes(self) -> dict[str, Any]:
        """The `note_fields` that are not None, as {name: value}."""
        return {name: x for name in self.note_fields if (x := getattr(self, name)) is not None}

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each row, float32 (B,), from its scores and targets, (B, ...)."""

    def weights(self, targets: Tensor) -> Tensor:
        """Return the weight of each row in the mean loss, float32 (B,); by default 1."""
        return tf.ones_like(targets, tf.float32)

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the outputs of examples from their scores, (N, ...); by default the scores
        themselves.
        """
        return logits

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[Any]:
        """Return a list of B arrays: the part of each row's scores, (B, ...), that an evaluation
        keeps; by default all. batch: as `encoded.make_batch` returns it.
        """
        return list(logits)

    def find_labels(self, examples: Examples) -> tuple[str, ...]:
        """Return the distinct labels of the training examples, in the order of the logits. Raises
        UserError when there is only one.
        """
        return find_classes(examples, examples.labels, examples.names)

    def join_rows(self, rows: Sequence[Any]) -> Any:
        """Return the outputs of all examples, in their order, from the `row_outputs` of each row.

        Outputs are computed in float64, so that even a very unlikely class has a probability above
        0.
        """
        return self.outputs(np.stack(rows).astype(np.float64))


@dataclasses.dataclass(frozen=True)
class Classification(ProblemType):
    """Problem type of examples that have one of C classes; the loss is the cross-entropy, in nats.

    label_smoothing: share of the target spread evenly over all classes (Szegedy et al. 2016, arXiv
    1512.00567, section 7). class_weights: a factor of the loss for each class, or None.
    positive_label: of two classes the one whose F1 is reported; None for more classes.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    positive_label: str | None = None
    config_name = "single_label_classification"
    note_fields = ("positive_label",)
    metrics = ("accuracy", "f1", "auc", "loss")

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Return the index of each example's label, int32 (N,): C or more for a label that the
        model lacks, an arbitrary index for an example without a label.
        """
        indices = index_labels(examples, labels)
        codes = [indices[label] for (label,) in examples.label_sets]
        return np.array(codes, np.int32)[examples.label_codes]

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example times the weight of its class, float32 (B,), from scores,
        (B, C), and targets, int32 (B,).
        """
        from bert_gpu.model.heads import cross_entropy

        losses = cross_entropy(logits, targets)
        if self.label_smoothing:
            wide = tf.cast(logits, tf.float32)
            uniform = tf.reduce_logsumexp(wide, -1) - tf.reduce_mean(wide, -1)
            losses += self.label_smoothing * (uniform - losses)
        return losses if self.class_weights is None else losses * self.weights(targets)

    def weights(self, targets: Tensor) -> Tensor:
        """Return the weight of each example in the mean loss, float32 (B,)."""
        if self.class_weights is None:
            return tf.ones_like(targets, tf.float32)
        return tf.gather(tf.constant(self.class_weights, tf.float32), targets)

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes, float64 (N, C), from the scores of the same
        shape.
        """
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def predicted_labels(self, outputs: np.ndarray, labels: Sequence[str]) -> list[str]:
        """Return the most probable of `labels` for each example."""
        return [labels[index] for index in np.argmax(outputs, -1)]


@dataclasses.dataclass(frozen=True)
class Regression(ProblemType):
    """Problem type of examples that have a number; the loss is the squared error. C = 1."""

    config_name = "regression"
    metrics = ("pearson", "spearman", "loss")

    def find_labels(self, examples: Examples) -> tuple[str, ...]:
        return ("score",)

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Return the number of each example, float32 (N,). Raises UserError for a label that is no
        finite number in float32.
        """
        values = []
        for label, line in zip(examples.label_names, examples.label_lines, strict=True):
            value = number_in(label)
            if value is None or abs(value) > float(np.finfo(np.float32).max):
                raise UserError(
                    f"line {line} has the label {label[:40]!r}, which is no number, as a "
                    "regression needs",
                    "correct it, or drop --task_kind=regression",
                    where=examples.path,
                )
            values.append(value)
        return np.array(values, np.float32)[examples.label_codes]

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, float32 (B,), from scores, (B, 1), and targets, float32
        (B,).
        """
        return tf.square(tf.cast(logits[:, 0], tf.float32) - targets)

    def predicted_labels(self, outputs: np.ndarray, labels: Sequence[str]) -> list[str]:
        return [f"{value:.6g}" for value in outputs[:, 0]]


@dataclasses.dataclass(frozen=True)
class MultiLabel(ProblemType):
    """Problem type of examples that have any number of C labels, written in one cell (labels.py).
    The loss is the mean binary cross-entropy over the labels, in nats.

    separator: text between the labels of a cell.
    """

    separator: str = SEPARATOR
    config_name = "multi_label_classification"
    note_fields = ("separator",)
    metrics = ("f1_micro", "f1_macro", "exact_match", "loss")

    def targets(self, examples: Examples, labels: Sequence[str]) -> np.ndarray:
        """Return a row of 0 and 1 for each example, float32 (N, C or more), with 1 for each of its
        labels; labels that the model lacks have columns after the model's C. The row of an example
        without a label is arbitrary.
        """
        indices = index_labels(examples, labels)
        rows = np.zeros((len(examples.label_sets), 1 + max(indices.values())), np.float32)
        for row, names in zip(rows, examples.label_sets, strict=True):
            row[[indices[label] for label in names]] = 1
        return rows[examples.label_codes]

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each example, float32 (B,), from scores, (B, C), and targets, float32
        (B, C).
        """
        wide = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=wide), -1
        )

    def weights(self, targets: Tensor) -> Tensor:
        return tf.ones_like(targets[:, 0])

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each label, float64 (N, C), from the scores of the same
        shape.
        """
        return np.exp(-np.logaddexp(0, -logits))

    def predicted_labels(self, outputs: np.ndarray, labels: Sequence[str]) -> list[str]:
        """Return, for each example, the labels that are more probable than not, as one text with
        the separator between them.
        """
        return [
            self.separator.join(
                label for label, value in zip(labels, row, strict=True) if value > 0.5
            )
            for row in outputs
        ]


TextProblem = Classification | Regression | MultiLabel
PROBLEM_TYPES: dict[str, Callable[[], TextProblem]] = dict(
    classification=Classification, regression=Regression, multilabel=MultiLabel
)


def find_classes(
    examples: Loaded, names: Sequence[str], order: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the distinct labels `names`, sorted: by `order`, which has all of them, if it is
    given; else as numbers where all are numbers, else as text. Raises UserError for fewer than two.
    """
    if len(names) < 2:
        raise UserError(
            f"{examples.path}: {names[0]!r:.60} is the only label of its {len(examples)} examples; "
            "a classifier needs two or more"
            if names
            else f"{examples.path}: no example has a label; a classifier needs two or more"
        )
    rank: Callable[[str], Any] = order.index if order else number_in if are_numbers(names) else str
    return tuple(sorted(sorted(names), key=rank))


def choose_positive(labels: tuple[str, ...], named: str | None) -> str | None:
    """Return the class whose F1 is reported, of two classes: the class that --positive_label names
    (`named`), else the last that does not negate the other; None for more classes. Raises UserError
    when `named` is no class.
    """
    if named is not None and (named not in labels or len(labels) != 2):
        raise UserError(
            f"must be one of two classes, and the classes are {', '.join(labels)}",
            setting="positive_label",
            value=named[:60],
        )
    if named is not None or len(labels) != 2:
        return named
    pairs = (labels[::-1], labels)
    return next((name for name, other in pairs if not is_negation(name, other)), labels[1])


def is_negation(name: str, other: str) -> bool:
    """Return whether the name of a class negates that of another: not_spam, non-spam and no negate
    spam, is_not_spam negates is_spam.
    """
    plain, other = (re.sub(r"[\W_]", "", label.casefold()) for label in (name, other))
    rest = re.sub("^(is|has|with)(?=.)", "", other)
    return re.fullmatch(f"{NEGATIVE}|(is|has)?{NEGATION}(is|has|with)?{rest}", plain) is not None


def index_labels(examples: Examples, labels: Sequence[str]) -> dict[str, int]:
    """Return {label: index}: first for the given labels, then for further labels of the
    examples.
    """
    indices = {plain_label(label): index for index, label in enumerate(labels)}
    others = [label for label in examples.labels if label not in indices]
    return indices | {label: index for index, label in enumerate(others, len(labels))}


def plain_label(text: str) -> str:
    """Return a label as text: 1 for 1.0, which is how pandas writes whole numbers in a column with
    gaps.
    """
    return text.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0*", text) else text


def are_numbers(labels: Iterable[str]) -> bool:
    return all(number_in(label) is not None for label in labels)


def are_measures(labels: Collection[str]) -> bool:
    """Return whether labels are more than two numbers that are not all whole, and so probably
    measured values, not classes.
    """
    numbers = [number for label in labels if (number := number_in(label)) is not None]
    return 2 < len(numbers) == len(labels) and not all(number.is_integer() for number in numbers)


def unknown_label(examples: Examples, line: int, label: str, labels: Sequence[str]) -> UserError:
    """Return the error for a label of a file that is none of the labels of a task, a schema or a
    training.
    """
    owner = examples.task.name if examples.task.labels else "its schema"
    owner = "the training file" if examples.task.kind == "tagging" else owner
    return UserError(
        f"line {line} has the label {label[:40]!r}, which {owner} does not "
        f"have (it has {shortened(', '.join(labels))})",
        "correct it, or leave its rows out",
        where=examples.path,
    )
