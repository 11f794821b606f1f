"""The interface of the types of task (texts, words, answers, vectors of texts): how a type reads
its files, encodes its examples, computes scores and losses, and judges and writes predictions.

A type is a subclass of `TaskType` in a module of this package, and a row of table.KINDS; a task of
that type is a row of table.TASKS.
Legend: N examples, B batch, S sequence, C scores of a row (classes, labels, or 1).
"""

import abc
import dataclasses
import importlib
import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files.encoded import EncodedExamples
from bert_gpu.finetune.files.examples import Loaded, Source
from bert_gpu.finetune.tasks.table import KINDS, TaskSpec
from bert_gpu.interop.formats import Embedding
from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.weights import WeightSpec
from bert_gpu.text.long_texts import LongTexts
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

E = typing.TypeVar("E", bound=Loaded)  # the examples of a file
R = typing.TypeVar("R")  # what an evaluation keeps of the scores of a row
O = typing.TypeVar("O")  # noqa: E741  # the outputs of all examples


class RowFormat(typing.NamedTuple):
    """How examples become rows of tokens.

    max_seq_length: maximum tokens of a row. padding: as in EncodedExamples. folder: as for
    disk_array.DiskArray. seed: of what is drawn at random.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    padding: str
    folder: str
    seed: int


class Evaluated(typing.NamedTuple, typing.Generic[E, O]):
    """The outputs of a model for the examples of a file."""

    examples: E
    rows: EncodedExamples
    outputs: O

    @property
    def stem(self) -> str:
        """The name of the file without its ending; it names results."""
        return self.examples.source.stem


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskType(abc.ABC, typing.Generic[E, R, O]):
    """A task. The class has what all tasks of its type share; the fields are known when the files
    are read (`labels`) and the settings are resolved (`configured`).

    Class attributes:
      head: key of its head in interop.heads.HEADS, which lacks a head without weights.
      architecture: name of the class of Hugging Face's transformers that has the head.
      config_name: name of the type in Hugging Face's config.json, None where that has none.
      target: key of the targets in a batch.
      takes_whole_texts: whether a text that is too
        long for a row is cut. stores_columns: whether task.json has the columns of the training
        file. reads: names of the settings of single types that this type reads.
      metrics: names of the metrics, the most important first; those of the spec come before.

    Fields:
      spec: columns, labels and metrics. labels: names of the classes, in the order of the scores;
        () before the training file is read, and without classes.
      positive_label: of two classes the one whose F1 is reported. class_weights: a factor of the
        loss for each class, or None.
      temperature: divides the cosines in the loss of pairs of texts among all texts of the global
        batch (contrastive.py); None where examples have losses of their own.
      embedding: rules by which a trained model makes vectors. long_texts: what it reads of texts
        that are longer than a row.
    """

    head: typing.ClassVar[str]
    architecture: typing.ClassVar[str]
    config_name: typing.ClassVar[str | None] = None
    target: typing.ClassVar[str] = "labels"
    takes_whole_texts: typing.ClassVar[bool] = False
    stores_columns: typing.ClassVar[bool] = False
    reads: typing.ClassVar[frozenset[str]] = frozenset()
    metrics: typing.ClassVar[tuple[str, ...]] = ()

    spec: TaskSpec
    labels: tuple[str, ...] = ()
    positive_label: str | None = None
    class_weights: tuple[float, ...] | None = None
    temperature: float | None = None
    embedding: Embedding = Embedding()
    long_texts: LongTexts = LongTexts()

    # Files and settings

    @abc.abstractmethod
    def read(self, source: Source, needs_label: bool) -> E:
        """Return the examples of a source."""

    def find_labels(self, examples: E) -> tuple[str, ...]:
        """Return the classes in the training examples, in the order of the scores; () without
        classes. Raises UserError when there is only one.
        """
        return ()

    def configured(
        self, settings: FinetuneSettings, holders: Sequence[object], examples: E, trains: bool
    ) -> typing.Self:
        """Return the task with what settings and examples decide. holders: settings, notes of the
        model and more, of which the first one that has a value counts (config.first_set). examples:
        the training examples or, without a training, examples to evaluate or predict.
        """
        return self

    @property
    def stored(self) -> dict[str, object]:
        """The settings with which a trained model must be used, {field of notes.TaskNotes: value};
        a resumed run may not change them.
        """
        return {}

    @property
    def details(self) -> dict[str, object]:
        """Facts of the training that the log shows and task.json has, {field of notes.TaskNotes:
        value}.
        """
        return {}

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the metrics, the most important first."""
        return self.spec.metrics or self.metrics

    @abc.abstractmethod
    def encode(self, examples: E, form: RowFormat) -> EncodedExamples:
        """Return the examples as encoded rows, R = rows_per_example for each example; where R is
        above 1, batches have the shape (B, R, S).
        """

    @abc.abstractmethod
    def describe(self, examples: E, rows: EncodedExamples) -> str:
        """Return a text with the numbers of examples and rows, for the log."""

    # Scores and losses

    @classmethod
    def prefixes(cls) -> tuple[str, ...]:
        """Return the beginnings of the names of the head's weights, and of the weights of other
        heads that it uses.
        """
        return ARCHITECTURES[cls.architecture].prefixes

    @classmethod
    def weight_specs(cls, encoder: Encoder, num_classes: int) -> dict[str, WeightSpec]:
        """Return the specifications of the weights of an encoder and the head, by name."""
        own = HEADS[cls.head].weights(encoder.config, num_classes) if cls.head in HEADS else {}
        return {**encoder.weights(), **own}

    @abc.abstractmethod
    def logits(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        encoder: Encoder,
        dtype: tf.DType,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the scores of each row, (B, ...). seed None switches dropout off."""

    @abc.abstractmethod
    def losses(self, logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        """Return the loss of each row, float32 (B,), from its scores and targets, (B, ...)."""

    def weights(self, targets: tf.Tensor) -> tf.Tensor:
        """Return the weight of each row in the mean loss, float32 (B,); by default 1."""
        return tf.ones(tf.shape(targets)[:1])

    @abc.abstractmethod
    def row_outputs(self, logits: np.ndarray, batch: Mapping[str, np.ndarray]) -> Sequence[R]:
        """Return the part of each row's scores, (B, ...), that an evaluation keeps. batch: as
        `encoded.make_batch` returns it.
        """

    @abc.abstractmethod
    def join_rows(self, rows: Sequence[R]) -> O:
        """Return the outputs of all examples, in their order, from the `row_outputs` of each row.

        Outputs are computed in float64, so that even a very unlikely class has a probability above
        0.
        """

    # Results

    @abc.abstractmethod
    def judge(self, evaluated: Evaluated[E, O]) -> dict[str, float | None]:
        """Return the metrics of examples with labels by name; None where one is not defined."""

    def after_evaluation(self, output_dir: str, evaluated: Evaluated[E, O]) -> None:
        """Write the files that an evaluation leaves beside its metrics, such as predictions."""

    @abc.abstractmethod
    def write(self, output_dir: str, evaluated: Evaluated[E, O]) -> str:
        """Write the predictions; return the path of the main file."""


def open_task_type(kind: str) -> type[TaskType]:
    """Return the type of the tasks of a kind, one of table.KINDS."""
    module, _, name = KINDS[kind].type.partition(".")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)
