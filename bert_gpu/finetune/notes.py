"""task.json in a model's folder: the task that the model was trained for, and the settings with
which it must be used.
"""

import dataclasses
import json
import os

from bert_gpu.base.files import CHECKSUM, json_checksum, read_json
from bert_gpu.base.settings import fields_of, like, setting
from bert_gpu.finetune.config import FinetuneConfig, StartConfig, TokenConfig
from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.interface import TaskType, open_task_type
from bert_gpu.finetune.tasks.labels import SEPARATORS
from bert_gpu.finetune.tasks.tag_schemes import NAMES
from bert_gpu.interop.formats import Notes
from bert_gpu.interop.sources import TASK
from bert_gpu.interop.usage import KINDS

# keys that a task.json may lack, beside the fields of TokenConfig
OPTIONAL = ("tag_scheme", "separator", "positive_label", "pooling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskNotes(TokenConfig):
    """The content of task.json. The labels are in the model's config.json. Further settings of
    single tasks may be missing.
    """

    task_name: str | None = like(FinetuneConfig, "task_name")
    task_kind: str | None = like(FinetuneConfig, "task_kind")
    text_a: str | None = like(FinetuneConfig, "text_a")
    text_b: str | None = like(FinetuneConfig, "text_b")
    label: str | None = like(FinetuneConfig, "label")
    columns: tuple[str, ...] | None = like(FinetuneConfig, "columns")
    max_seq_length: int | None = like(FinetuneConfig, "max_seq_length")
    tag_scheme: str | None = setting(None, "How tags spell entities.", choices=NAMES)
    separator: str | None = setting(
        None, "Separator between the labels of a cell.", choices=SEPARATORS
    )
    positive_label: str | None = like(FinetuneConfig, "positive_label")
    pooling: str | None = like(StartConfig, "pooling")


def write_notes(task: TaskType, has_pairs: bool, max_seq_length: int) -> dict[str, bytes]:
    """Return {"task.json": its bytes}, the file that `read_notes` reads."""
    spec = task.spec
    values = dict(
        task_name=spec.name,
        task_kind=spec.kind,
        text_a=spec.text_a,
        text_b=spec.text_b if has_pairs else "",
        label=spec.label,
        columns=spec.columns.get("train") if task.stores_columns else None,
        max_seq_length=max_seq_length,
        **task.stored,
    )
    values |= task.details
    values[CHECKSUM] = json_checksum(values)
    return {TASK: (json.dumps(values, indent=1) + "\n").encode()}


def read_notes(path: str, task_type: type[TaskType], file_notes: Notes) -> TaskNotes:
    """Return the task that the model in a folder was trained for: its task.json or, without that
    file, notes derived from the type of its head and from `file_notes`, which were read with the
    model.
    """
    file = os.path.join(path, TASK)
    if os.path.exists(file):
        fields = fields_of(TaskNotes)
        optional = (*fields_of(TokenConfig), *OPTIONAL)
        keys = tuple(name for name in fields if name not in optional)
        notes = read_json(file, "the task of a fine-tuned model", fields, keys=keys)
        columns = notes.get("columns") and tuple(notes["columns"])
        known = {name: value for name, value in notes.items() if name in fields}
        return TaskNotes(**known | dict(columns=columns))
    length = file_notes.max_seq_length
    if task_type.config_name is None:
        specs = table.TASKS.values()
        spec = next(spec for spec in specs if open_task_type(spec.kind) is task_type)
        return TaskNotes(task_name=spec.name, task_kind=spec.kind, max_seq_length=length)
    kinds = {problem: kind for kind, problem in KINDS.items()}
    return TaskNotes(task_kind=kinds.get(file_notes.problem_type or ""), max_seq_length=length)
