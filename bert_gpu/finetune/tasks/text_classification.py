"""The types of task on whole texts, or pairs of texts, that have one class, a number, or several
labels at once.

Legend: N examples, B batch, C scores of an example (classes, labels, or 1).
"""

import abc
import dataclasses
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import number_in
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneSettings, first_set
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.files.examples import Examples, Source
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, TaskType
from bert_gpu.finetune.tasks.labels import SEPARATOR, choose_positive, find_classes, index_labels
from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import (
    classifier_logits,
    cross_entropy,
    mean_of_windows,
    sentence_positions,
    sentence_vector,
)
from bert_gpu.text.long_texts import CUT, HEAD_TAIL, SETTINGS, WINDOWS, LongTexts

Judged = Evaluated[Examples, np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextClassification(TaskType[Examples, np.ndarray, np.ndarray]):
    """A task on whole texts; the outputs are float64 (N, C)."""

    head = "classifier"
    architecture = "BertForSequenceClassification"
    takes_whole_texts = True
    reads = frozenset(("pooler_size", "pooling", "long_texts", "max_windows"))

    def read(self, source: Source, needs_label: bool) -> Examples:
        return Examples(self.spec, source, needs_label, self.labels or None)

    def find_labels(self, examples: Examples) -> tuple[str, ...]:
        if self.spec.labels:
            return self.spec.labels
        return find_classes(examples.path, len(examples), examples.labels, examples.names)

    def configured(
        self,
        settings: FinetuneSettings,
        holders: Sequence[object],
        examples: Examples,
        trains: bool,
    ) -> typing.Self:
        long_texts = LongTexts.given(lambda name: first_set(name, *holders, default=None))
        given = [name for name in SETTINGS[1:] if getattr(settings.tokens, name)]
        if given and long_texts.rule != WINDOWS:
            raise UserError(
                f"is for --long_texts={WINDOWS}, and long texts are {long_texts.rule}",
                f"give --long_texts={WINDOWS}, or drop the flag",
                setting=given[0],
                value=getattr(settings.tokens, given[0]),
            )
        return dataclasses.replace(
            self,
            long_texts=long_texts if long_texts.rule == WINDOWS else LongTexts(long_texts.rule),
        )

    @property
    def stored(self) -> dict[str, object]:
        if self.long_texts.rule == CUT:
            return {}
        return dict(zip(SETTINGS, self.long_texts, strict=True))

    @abc.abstractmethod
    def targets(self, examples: Examples) -> np.ndarray:
        """Return the targets of the examples, (N, ...); of one without a label an arbitrary one."""

    def encode(self, examples: Examples, form: RowFormat) -> encoded.EncodedExamples:
        return encoded.encode_examples(
            form.tokenizer,
            ((chunk.texts_a, chunk.texts_b) for chunk in examples.chunks()),
            self.targets(examples) if examples.has_labels else None,
            form.max_seq_length,
            form.padding,
            folder=form.folder,
            long_texts=self.long_texts,
        )

    def describe(self, examples: Examples, rows: encoded.EncodedExamples) -> str:
        return "".join(
            [
                f"{len(examples):,} {'pairs' if examples.has_pairs else 'texts'}, "
                f"{len(rows.ids) / len(rows):.1f} tokens each",
                f"; {rows.num_long:,} in 2 to {rows.rows_per_example} rows" * rows.has_windows,
                f"; {rows.num_long:,} read at both ends"
                * (self.long_texts.rule == HEAD_TAIL and rows.num_long > 0),
                f"; {rows.num_truncated:,} cut to {rows.max_seq_length} tokens"
                * (rows.num_truncated > 0),
                f" (--long_texts={WINDOWS} reads more)"
                * (self.long_texts.rule == CUT and 10 * rows.num_long >= len(rows)),
            ]
        )

    def logits(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        encoder: Encoder,
        dtype: tf.DType,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the scores, (B, C), in the compute dtype; where texts have windows, the means over
        these, in float32. Dropout with hidden_dropout_prob applies to the sentence vector, as in
        Google's BERT.
        """
        config = encoder.config
        positions = sentence_positions(batch, config)
        hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed, positions=positions)
        vector = sentence_vector(weights, hidden, batch["input_mask"], config)
        logits = classifier_logits(weights, vector, seed, config.hidden_dropout_prob)
        if "window_texts" not in batch:
            return logits
        return mean_of_windows(logits, batch["window_texts"], batch["num_windows"])

    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return list(logits)

    def join_rows(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        return self.outputs(np.stack(rows).astype(np.float64))

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the outputs of examples from their scores, (N, C) both."""
        return logits

    @abc.abstractmethod
    def predicted_labels(self, outputs: np.ndarray) -> list[str]:
        """Return the prediction for each example as text."""

    def judge(self, evaluated: Judged) -> dict[str, float | None]:
        positive = self.labels.index(self.positive_label) if self.positive_label else 1
        return compute_metrics(*labelled(evaluated), self.metric_names, positive)

    def write(self, output_dir: str, evaluated: Judged) -> str:
        examples, outputs = evaluated.examples, evaluated.outputs
        titles = [f"probability_{label}" for label in self.labels]
        return results.write_predictions(
            output_dir,
            examples,
            titles if self.spec.facts.has_classes else ["value"],
            self.predicted_labels(outputs),
            outputs,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(TextClassification):
    """A task whose examples have one of C classes; the loss is the cross-entropy, in nats.

    label_smoothing: share of the target spread evenly over all classes (Szegedy et al. 2016, arXiv
    1512.00567, section 7).
    """

    label_smoothing: float = 0.0
    config_name = "single_label_classification"
    reads = TextClassification.reads | {"label_smoothing", "class_weights", "positive_label"}
    metrics = ("accuracy", "f1", "auc", "loss")

    def configured(
        self,
        settings: FinetuneSettings,
        holders: Sequence[object],
        examples: Examples,
        trains: bool,
    ) -> typing.Self:
        named: str | None = first_set("positive_label", *holders, default=None)
        task = super().configured(settings, holders, examples, trains)
        task = dataclasses.replace(task, positive_label=choose_positive(self.labels, named))
        if not trains:
            return task
        return dataclasses.replace(
            task,
            label_smoothing=settings.run.label_smoothing,
            class_weights=self.balanced(examples) if settings.run.class_weights else None,
        )

    def balanced(self, examples: Examples) -> tuple[float, ...]:
        """Return the weight of each class, inverse to its number of examples. Raises UserError for
        a class without an example.
        """
        labels = self.labels
        numbers = np.bincount(self.targets(examples), minlength=len(labels))
        absent = [label for label, number in zip(labels, numbers, strict=True) if not number]
        if absent:
            raise UserError(
                f"{examples.path} has no example of {absent[0][:40]!r}",
                "drop the flag, or add examples",
                setting="class_weights",
                value="balanced",
            )
        return tuple(len(examples) / (len(labels) * int(number)) for number in numbers)

    @property
    def details(self) -> dict[str, object]:
        return dict(positive_label=self.positive_label) if self.positive_label else {}

    def targets(self, examples: Examples) -> np.ndarray:
        """Return the index of each example's label, int32 (N,): C or more for a label that the
        model lacks.
        """
        indices = index_labels(self.labels, examples.labels)
        codes = [indices[label] for (label,) in examples.label_sets]
        return np.array(codes, np.int32)[examples.label_codes]

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example times the weight of its class, float32 (B,), from scores,
        (B, C), and targets, int32 (B,).
        """
        losses = cross_entropy(logits, targets)
        if self.label_smoothing:
            wide = tf.cast(logits, tf.float32)
            uniform = tf.reduce_logsumexp(wide, -1) - tf.reduce_mean(wide, -1)
            losses += self.label_smoothing * (uniform - losses)
        return losses if self.class_weights is None else losses * self.weights(targets)

    def weights(self, targets: tf.Tensor) -> tf.Tensor:
        if self.class_weights is None:
            return super().weights(targets)
        return tf.gather(tf.constant(self.class_weights, tf.float32), targets)

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes from the scores."""
        return softmax(logits)

    def predicted_labels(self, outputs: np.ndarray) -> list[str]:
        """Return the most probable class of each example."""
        return [self.labels[index] for index in np.argmax(outputs, -1)]


@typing.final
@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(TextClassification):
    """A task whose examples have a number; the loss is the squared error. C = 1."""

    config_name = "regression"
    metrics = ("pearson", "spearman", "loss")

    def find_labels(self, examples: Examples) -> tuple[str, ...]:
        return ("score",)

    def targets(self, examples: Examples) -> np.ndarray:
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

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, float32 (B,), from scores, (B, 1), and targets, float32
        (B,).
        """
        return tf.square(tf.cast(logits[:, 0], tf.float32) - targets)

    def predicted_labels(self, outputs: np.ndarray) -> list[str]:
        return [f"{value:.6g}" for value in outputs[:, 0]]


@typing.final
@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(TextClassification):
    """A task whose examples have any number of C labels, written in one cell (labels.py). The loss
    is the mean binary cross-entropy over the labels, in nats.
    """

    config_name = "multi_label_classification"
    metrics = ("f1_micro", "f1_macro", "exact_match", "loss")

    @property
    def separator(self) -> str:
        """The text between the labels of a cell."""
        return self.spec.separator or SEPARATOR

    @property
    def details(self) -> dict[str, object]:
        return dict(separator=self.separator)

    def targets(self, examples: Examples) -> np.ndarray:
        """Return a row of 0 and 1 for each example, float32 (N, C or more), with 1 for each of its
        labels; labels that the model lacks have columns after the model's C.
        """
        indices = index_labels(self.labels, examples.labels)
        rows = np.zeros((len(examples.label_sets), 1 + max(indices.values())), np.float32)
        for row, names in zip(rows, examples.label_sets, strict=True):
            row[[indices[label] for label in names]] = 1
        return rows[examples.label_codes]

    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each example, float32 (B,), from scores, (B, C), and targets, float32
        (B, C).
        """
        wide = tf.cast(logits, tf.float32)
        return tf.reduce_mean(
            tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=wide), -1
        )

    def outputs(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each label from the scores."""
        return np.exp(-np.logaddexp(0, -logits))

    def predicted_labels(self, outputs: np.ndarray) -> list[str]:
        """Return, for each example, the labels that are more probable than not, as one text with
        the separator between them.
        """
        return [
            self.separator.join(
                label for label, value in zip(self.labels, row, strict=True) if value > 0.5
            )
            for row in outputs
        ]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of classes, (N, C), from their scores of the same shape."""
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def labelled(evaluated: Evaluated) -> tuple[np.ndarray, np.ndarray]:
    """Return (outputs, targets) of the examples that have a label."""
    has_label = evaluated.examples.label_codes >= 0
    return evaluated.outputs[has_label], np.asarray(evaluated.rows.labels)[has_label]
