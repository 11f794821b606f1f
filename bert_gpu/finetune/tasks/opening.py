"""Opens the task that the settings, and the notes of a model to evaluate, name."""

import dataclasses
import os

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import DEFAULT_TASK, FinetuneConfig, FinetuneSettings, first_set
from bert_gpu.finetune.notes import TaskNotes
from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.interface import TaskType, open_task_type

# {setting of single types of task: what it applies to, in messages}
OWNERS = dict(
    **dict.fromkeys(("pooler_size", "pooling", "long_texts", "max_windows"), "text classification"),
    **dict.fromkeys(("label_smoothing", "class_weights", "positive_label"), "classification"),
    **dict.fromkeys(("temperature", "query_prefix", "passage_prefix", "max_score"), "similarity"),
)


def open_task(settings: FinetuneSettings, notes: TaskNotes | None = None) -> TaskType:
    """Return the task that settings, and the notes of a model to evaluate, name. Raises UserError
    for a setting that the task does not read.
    """
    spec = resolve_spec(settings.run, notes)
    task = open_task_type(spec.kind)(spec=spec)
    check_settings(settings, task)
    return task


def resolve_spec(config: FinetuneConfig, notes: TaskNotes | None = None) -> table.TaskSpec:
    """Return the task with the columns and the kind that the config sets.

    notes: task.json of a model to evaluate, for settings that the config leaves open; None for a
    training. From the notes on another task than the config's only the kind is taken, and only
    where both tasks are on texts.
    """
    name = config.task_name
    if notes and (name is None or table.bare(name) == table.bare(notes.task_name or name)):
        spec = table.find_task(name or notes.task_name or DEFAULT_TASK)
        return with_columns(dataclasses.replace(spec, separator=notes.separator), config, notes)
    spec = table.find_task(name or DEFAULT_TASK)
    kinds = {spec.kind, notes and notes.task_kind}
    if notes and spec.folder is None and kinds <= set(table.TEXT_KINDS):
        return with_columns(spec, config, TaskNotes(task_kind=notes.task_kind))
    return with_columns(spec, config)


def with_columns(spec: table.TaskSpec, *holders: object) -> table.TaskSpec:
    """Return a spec with the columns and the kind that `holders`, such as settings and notes, set;
    where several set one, the first of them counts. Raises UserError for another kind than the
    spec's unless both kinds are among TEXT_KINDS.
    """
    text_b: str | None = first_set("text_b", *holders, default=None)
    if text_b is not None:
        spec = dataclasses.replace(spec, text_b=text_b or None, requires_text_b=bool(text_b))
    kind = first_set("task_kind", *holders, default=spec.kind)
    if not {spec.kind, kind} <= set(table.TEXT_KINDS) and kind != spec.kind:
        raise UserError(
            f"--task_name={spec.name} is {spec.kind}",
            "drop the flag, or name another task",
            setting="task_kind",
            value=kind,
        )
    if kind != spec.kind:
        spec = dataclasses.replace(spec, kind=kind, metrics=(), labels=None)
    columns: tuple[str, ...] | None = first_set("columns", *holders, default=None)
    return dataclasses.replace(
        spec,
        text_a=first_set("text_a", *holders, default=spec.text_a) or spec.text_a,
        label=first_set("label", *holders, default=spec.label) or spec.label,
        columns=dict.fromkeys(table.SPLITS, columns) if columns else spec.columns,
    )


def check_settings(settings: FinetuneSettings, task: TaskType) -> None:
    """Raise UserError for a setting that does not apply to the task, unless a recipe has set it,
    and for two models as the start of the task similarity.
    """
    spec = task.spec
    for name, owner in OWNERS.items():
        holders = settings.run, settings.start, settings.tokens
        value: object = first_set(name, *holders, default=None)
        if value and name not in task.reads and name not in settings.flexible:
            own = spec.kind if owner == "classification" else spec.name
            raise UserError(
                f"applies to {owner} only, not to {own}",
                "drop it",
                setting=name,
                value=value,
            )
    start = settings.start.init_checkpoint or ""
    if spec.facts.makes_vectors and "," in start and not os.path.exists(start):
        raise UserError(
            "names two models, and one encoder computes both texts; two towers are not supported",
            "name one model; --query_prefix and --passage_prefix tell it the texts apart",
            setting="init_checkpoint",
            value=start[:80],
        )
