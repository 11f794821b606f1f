"""The types of problem that a task on texts may be: one class, a number, several labels at once.

A problem type says how the labels of a file become targets, what the model's scores mean, and what
its loss is; token_classification.py has that of words, question_answering.py that of answers.
Legend: N examples, B batch, C scores for an example (classes, labels, or 1).
"""

import dataclasses
import math
import re

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError, shortened

tf = LazyModule("tensorflow")
heads = LazyModule("bert_gpu.finetune.tasks.heads")

NEGATION = "(not|non|no|nt|un|in|im|il|ir|dis|without)"  # before the name that it negates
NEGATIVE = "no|not|none|false|negative|without"  # of any name
SEPARATOR = ","  # of the labels in a cell, where nothing tells another


class ProblemType:
    """What every problem type has; here those of texts.

    class_weights, positive_label: of Classification. config_name: its name in config.json of
    Hugging Face, None where it has none. target: the name of the targets in a batch. stored: those
    of its fields that are also fields of start.TaskNotes.
    """

    config_name, target, stored = None, "labels", ()
    class_weights = positive_label = None

    @property
    def head(self):
        """The heads.Head whose scores it reads."""
        return heads.CLASSIFIER

    @property
    def notes(self) -> dict[str, str]:
        """{field of start.TaskNotes: value} that it is stored with."""
        return {name: x for name in self.stored if (x := getattr(self, name)) is not None}

    def kept(self, logits, batch):
        """What is kept of the scores of each row (B, ...) of an evaluation: a list of B arrays.
        batch: as `encoded.make_batch` gives it.
        """
        return list(logits)

    def find_labels(self, examples):
        """The labels of the training Examples, in order; UserError for a single one."""
        return find_classes(examples, examples.labels, examples.names)

    def joined(self, rows):
        """The outputs of all examples, from what `kept` has kept of each row, in their order.

        They are computed in float64, so that even a very unlikely class has a probability above 0.
        """
        return self.outputs(np.stack(rows).astype(np.float64))


@dataclasses.dataclass(frozen=True)
class Classification(ProblemType):
    """One of C classes; the loss is the cross-entropy, in nats.

    label_smoothing: fraction of the target spread evenly over all classes (Szegedy et al. 2016,
    arXiv 1512.00567, section 7). class_weights: C factors of the losses, or None. positive_label:
    of two classes that of F1, else None.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None
    positive_label: str | None = None
    config_name, stored = "single_label_classification", ("positive_label",)
    metrics = ("accuracy", "f1", "auc", "loss")

    def targets(self, examples, labels):
        """int32 (N,): the index of each label, C or more of one that the model lacks; anything of
        an example without a label.
        """
        indices = index_labels(examples, labels)
        codes = [indices[label] for (label,) in examples.label_sets]
        return np.array(codes, np.int32)[examples.label_codes]

    def losses(self, logits, targets):
        """(B, C) and int32 (B,) -> float32 (B,), times the weight of the target's class."""
        from bert_gpu.model.heads import cross_entropy

        losses = cross_entropy(logits, targets)
        if self.label_smoothing:
            wide = tf.cast(logits, tf.float32)
            uniform = tf.reduce_logsumexp(wide, -1) - tf.reduce_mean(wide, -1)
            losses += self.label_smoothing * (uniform - losses)
        return losses if self.class_weights is None else losses * self.weights(targets)

    def weights(self, targets):
        """float32 (B,): what an example counts for in the mean loss."""
        if self.class_weights is None:
            return tf.ones_like(targets, tf.float32)
        return tf.gather(tf.constant(self.class_weights, tf.float32), targets)

    def outputs(self, logits):
        """float64 (N, C) -> probabilities of the classes, which are never 0."""
        exponentials = np.exp(logits - logits.max(-1, keepdims=True))
        return exponentials / exponentials.sum(-1, keepdims=True)

    def predicted_labels(self, outputs, labels):
        """The predicted label of each example, a list of str."""
        return [labels[index] for index in np.argmax(outputs, -1)]


@dataclasses.dataclass(frozen=True)
class Regression(ProblemType):
    """A number; the loss is the squared error. C = 1."""

    config_name = "regression"
    metrics = ("pearson", "spearman", "loss")

    def find_labels(self, examples):
        return ("score",)

    def targets(self, examples, labels):
        """float32 (N,)."""
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

    def losses(self, logits, targets):
        """(B, 1) and float32 (B,) -> float32 (B,)."""
        return tf.square(tf.cast(logits[:, 0], tf.float32) - targets)

    def weights(self, targets):
        return tf.ones_like(targets)

    def outputs(self, logits):
        """float64 (N, 1): the predicted numbers."""
        return logits

    def predicted_labels(self, outputs, labels):
        return [f"{value:.6g}" for value in outputs[:, 0]]


@dataclasses.dataclass(frozen=True)
class MultiLabel(ProblemType):
    """Any number of C labels, in one cell (labels.py). The loss is the mean binary cross-entropy
    over the labels, in nats.

    separator: between the labels of a cell.
    """

    separator: str = SEPARATOR
    config_name, stored = "multi_label_classification", ("separator",)
    metrics = ("f1_micro", "f1_macro", "exact_match", "loss")

    def targets(self, examples, labels):
        """float32 (N, C or more), 0 or 1; labels that the model lacks have columns behind its own.
        Anything of an example without a label.
        """
        indices = index_labels(examples, labels)
        rows = np.zeros((len(examples.label_sets), 1 + max(indices.values())), np.float32)
        for row, names in zip(rows, examples.label_sets, strict=True):
            row[[indices[label] for label in names]] = 1
        return rows[examples.label_codes]

    def losses(self, logits, targets):
        """(B, C) and float32 (B, C) -> float32 (B,)."""
        wide = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=wide), -1
        )

    def weights(self, targets):
        return tf.ones_like(targets[:, 0])

    def outputs(self, logits):
        """float64 (N, C) -> the probability of each label."""
        return np.exp(-np.logaddexp(0, -logits))

    def predicted_labels(self, outputs, labels):
        """The labels that are more probable than not, with the separator between them."""
        return [
            self.separator.join(
                label for label, value in zip(labels, row, strict=True) if value > 0.5
            )
            for row in outputs
        ]


PROBLEM_TYPES = dict(classification=Classification, regression=Regression, multilabel=MultiLabel)


def check_plain_loss(config, task):
    """UserError when a FinetuneConfig changes the loss of classes, and the task has none."""
    for flag in ("label_smoothing", "class_weights", "positive_label"):
        if getattr(config, flag):
            raise UserError(
                f"applies to classification only, not to {task.kind}",
                "drop it",
                setting=flag,
                value=getattr(config, flag),
            )


def find_classes(examples, names, order=()):
    """Distinct labels, sorted: in an order that has all of them, if any, as numbers where all are
    numbers, else as text.
    """
    if len(names) < 2:
        raise UserError(
            f"{examples.path}: {names[0]!r:.60} is the only label of its {len(examples)} examples; "
            "a classifier needs two or more"
            if names
            else f"{examples.path}: no example has a label; a classifier needs two or more"
        )
    rank = order.index if order else number_in if are_numbers(names) else str
    return tuple(sorted(sorted(names), key=rank))


def choose_positive(labels: tuple[str, ...], named: str | None) -> str | None:
    """The class of two that F1 is of: the one that --positive_label names, else the last that does
    not negate the other; None of more classes. UserError for a name of no class.
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
    """Whether the name of a class negates that of another: not_spam, non-spam and no of spam,
    is_not_spam of is_spam.
    """
    name, other = (re.sub(r"[\W_]", "", label.casefold()) for label in (name, other))
    rest = re.sub("^(is|has|with)(?=.)", "", other)
    return re.fullmatch(f"{NEGATIVE}|(is|has)?{NEGATION}(is|has|with)?{rest}", name) is not None


def index_labels(examples, labels):
    """{label: its index}: of the labels, then of those of the Examples that are none of them."""
    indices = {plain_label(label): index for index, label in enumerate(labels)}
    others = [label for label in examples.labels if label not in indices]
    return indices | {label: index for index, label in enumerate(others, len(labels))}


def plain_label(text):
    """A label as text: 1 of 1.0, which is how pandas writes whole numbers beside missing ones."""
    return text.partition(".")[0] if re.fullmatch(r"-?[0-9]+\.0*", text) else text


def are_numbers(labels):
    return all(number_in(label) is not None for label in labels)


def number_in(text):
    """The finite number that a text is, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def are_measures(labels):
    """Whether labels are numbers, more than two and some not whole: rather values than classes."""
    numbers = [number_in(label) for label in labels]
    return (
        len(numbers) > 2
        and None not in numbers
        and not all(number.is_integer() for number in numbers)
    )


def unknown_label(examples, line, label, labels):
    """UserError for a label of a file that is none of the labels of a task, a schema or a
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
