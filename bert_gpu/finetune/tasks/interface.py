"""The types of task (texts, words, answers): what their files hold, what rows are made of it, how
predictions are judged and written.

A task type is a module of this room with what `TaskType` says; run.py trains and evaluates every
one of them alike. Adding one takes its module, its row in table.KINDS, and a task (table.TASKS).
"""

import dataclasses
import importlib
import typing

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.tasks import table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What a model has made of a file.

    settings: FinetuneSettings. examples: those of the file. rows: encoded.EncodedExamples of them.
    problem_type: ProblemType. labels: names of the classes. outputs: the problem type's, of all
    rows.
    """

    settings: typing.Any
    examples: typing.Any
    rows: typing.Any
    problem_type: typing.Any
    labels: tuple[str, ...]
    outputs: typing.Any

    @property
    def stem(self):
        """The name of the file without its ending; it names results."""
        return self.examples.source.stem


class TaskType(typing.Protocol):
    """What the module of a task type provides. `rows` are encoded.EncodedExamples, `labels` the
    names of the classes, `problem_type` is of `make_problem_type`.
    """

    HEAD: typing.Any  # of heads.py
    PREDICTED: str  # name of the file of predictions

    def check(self, settings):
        """UserError for FinetuneSettings that mean nothing for it."""

    def open_examples(self, task, source, needs_label, labels):
        """The examples.Loaded of an examples.Source. labels: the classes of the training or of the
        model, None of a training file.
        """

    def find_labels(self, task, examples):
        """The classes in the training examples, in the order of the logits; () without classes."""

    def defaults(self, examples):
        """{field of TokenConfig: default} of those that a model is trained with and must be used
        with. examples: those of the training, else others of the task.
        """

    def make_problem_type(self, settings, task, labels, examples):
        """The ProblemType (problem_types.py), with the losses that FinetuneSettings want. examples:
        those of the training, None without one.
        """

    def encode(self, examples, problem_type, start, settings, max_seq_length, folder):
        """The rows of examples, of each as many as their rows_per_example; with several, batches
        are (B, R, S). folder: as for disk_array.DiskArray.
        """

    def describe(self, examples, rows):
        """The sizes of examples and rows, for the log."""

    def metric_names(self, task, problem_type, labels):
        """Names of the metrics, the most important first."""

    def judge(self, evaluated, names):
        """{name: float or None} of the metrics of an Evaluated with labels."""

    def after_evaluation(self, output_dir, evaluated):
        """Writes what a finished evaluation leaves beside its metrics."""

    def write(self, output_dir, evaluated):
        """Writes the predictions; returns the path of the file that one reads first."""


def open_task_type(task) -> TaskType:
    """The module of a TaskSpec's type."""
    return importlib.import_module(f"{__package__}.{table.KINDS[task.kind]}")


def check_texts_only(settings, task_name):
    """UserError for FinetuneSettings that are of classifiers of texts; a recipe's give way."""
    for config, name in (
        (settings.run, "pictures"),
        (settings.start, "pooling"),
        (settings.start, "pooler_size"),
    ):
        if getattr(config, name) and name not in settings.flexible:
            raise UserError(
                f"applies to text classification only, not to {task_name}", "drop it", setting=name
            )
