"""The interface of the types of task (texts, words, answers, vectors of texts): how a type reads
its files, encodes its examples, computes metrics and writes predictions.

A task type is a module of this package with the functions of `TaskType`; run.py trains and
evaluates all of them alike. Adding one takes its module, its row in table.KINDS, and a task in
table.TASKS.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.table import TaskSpec

if TYPE_CHECKING:
    from bert_gpu.finetune.config import FinetuneSettings
    from bert_gpu.finetune.files.encoded import EncodedExamples
    from bert_gpu.finetune.files.examples import Loaded, Source
    from bert_gpu.finetune.start import Start
    from bert_gpu.finetune.tasks.heads import Head
    from bert_gpu.finetune.tasks.problem_types import ProblemType


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """The outputs of a model for the examples of a file.

    examples: the file's examples, from TaskType.open_examples. problem_type: from
    TaskType.make_problem_type. labels: names of the classes. outputs: the problem type's outputs
    for all rows.
    """

    settings: FinetuneSettings
    examples: Any
    rows: EncodedExamples
    problem_type: Any
    labels: tuple[str, ...]
    outputs: Any

    @property
    def stem(self) -> str:
        """The name of the file without its ending; it names results."""
        return self.examples.source.stem


class TaskType(typing.Protocol):
    """The functions that the module of a task type provides. `labels` are the names of the classes.
    `problem_type` comes from `make_problem_type`, `examples` from `open_examples`. DEFAULTS has
    the functions that a module may lack.
    """

    HEAD: Head

    def open_examples(
        self, task: TaskSpec, source: Source, needs_label: bool, labels: tuple[str, ...] | None
    ) -> Loaded:
        """Read the examples of a source. labels: the classes of the training or of the model, None
        for a training file.
        """

    def find_labels(self, task: TaskSpec, examples: Any) -> tuple[str, ...]:
        """Return the classes in the training examples, in the order of the logits; () without
        classes.
        """

    def defaults(self, examples: Any) -> dict[str, Any]:
        """Return {field: default} of the fields of TokenConfig whose values in the training a model
        must be used with. examples: the training examples or, without a training, examples to
        evaluate or predict.
        """

    def make_problem_type(
        self, settings: FinetuneSettings, task: TaskSpec, labels: tuple[str, ...], examples: Any
    ) -> ProblemType:
        """Return the problem type, with the loss that the settings describe. examples: the training
        examples, None without a training.
        """

    def encode(
        self,
        examples: Any,
        problem_type: Any,
        start: Start,
        settings: FinetuneSettings,
        max_seq_length: int,
        folder: str,
    ) -> EncodedExamples:
        """Return the examples as encoded rows, R = rows_per_example for each example; where R is
        above 1, batches have the shape (B, R, S). folder: as for disk_array.DiskArray.
        """

    def describe(self, examples: Any, rows: EncodedExamples) -> str:
        """Return a text with the numbers of examples and rows, for the log."""

    def metric_names(
        self, task: TaskSpec, problem_type: Any, labels: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the names of the metrics, the most important first."""

    def judge(self, evaluated: Evaluated, names: Sequence[str]) -> dict[str, float | None]:
        """Return the metrics of examples with labels by name; None where one is not defined."""

    def after_evaluation(self, output_dir: str, evaluated: Evaluated) -> None:
        """Write the files that an evaluation leaves beside its metrics, such as pictures."""

    def write(self, output_dir: str, evaluated: Evaluated) -> str:
        """Write the predictions; return the path of the main file."""


# {function of TaskType: what it is where a module lacks it}
DEFAULTS: dict[str, Any] = dict(
    find_labels=lambda task, examples: (),
    defaults=lambda examples: {},
    metric_names=lambda task, problem_type, labels: task.metrics or problem_type.metrics,
    after_evaluation=lambda output_dir, evaluated: None,
)


def open_task_type(task: TaskSpec) -> TaskType:
    """Return the functions of the module of a task's type."""
    module = importlib.import_module(f"{__package__}.{table.KINDS[task.kind]}")
    return typing.cast(TaskType, types.SimpleNamespace(**DEFAULTS | vars(module)))
