"""Several fine-tunings as one job: of several tasks, combinations of settings (cells of a grid),
models exported during a pretraining (at marks), and seeds (trials).

Each fine-tuning is a run of its own in a folder below OUTPUT_DIR, which resumes as any run does;
finished runs are not run again. scores.json has every trial's metrics and their summary, scores.md
the same as tables; a sweep that evaluates nothing leaves both files unchanged.
"""

import dataclasses
import itertools
import os
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from bert_gpu.base.console import Console, LogConsole
from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import folder_name
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.devices.devices import join_workers
from bert_gpu.finetune import scores
from bert_gpu.finetune.config import (
    DEFAULT_TASK,
    FinetuneConfig,
    FinetuneSettings,
    SweepConfig,
    resolve_phases,
)
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.tasks import table
from bert_gpu.runs import trials
from bert_gpu.runs.marks import find_marks, hours_at
from bert_gpu.runs.trials import Row, SweepResult


class Trial(typing.NamedTuple):
    """One fine-tuning of a sweep: its place in the sweep, and its settings.

    task: name of the task. cell: settings that the grid gives the trial, such as
    "learning_rate=2e-05", "" without a grid. mark: share of the pretraining at which the initial
    model was exported, None without marks. number: from 1, of the trials with the same settings but
    for the seed.
    """

    task: str
    cell: str
    mark: float | None
    number: int
    folder: str
    settings: FinetuneSettings


def is_sweep(settings: FinetuneSettings, sweep: SweepConfig) -> bool:
    """Return whether the settings describe more than one fine-tuning."""
    return (
        sweep.num_trials > 1
        or sweep.grid is not None
        or settings.run.task_name == table.ALL
        or bool(find_marks(settings.start.init_checkpoint))
    )


def plan_trials(variants: Mapping[str, FinetuneSettings], sweep: SweepConfig) -> list[Trial]:
    """Return the trials of a sweep, in the order in which they run.

    Args:
      variants: {settings that the grid gives, such as "learning_rate=2e-05", "" without a grid: all
        settings}.

    Raises:
      UserError: --data_dir holds no task, or all trials would read or write the same file.
    """
    settings = next(iter(variants.values()))
    for one in variants.values():
        check_own_files(one.run)
    names: list[str | None] = (
        [*find_tasks(settings.run)] if settings.run.task_name == table.ALL else [None]
    )
    models: Mapping[Any, str | None] = find_marks(settings.start.init_checkpoint) or {None: None}
    trials = []
    for name, (mark, model), (cell, variant), number in itertools.product(
        names, models.items(), variants.items(), range(sweep.num_trials)
    ):
        task = name or variant.run.task_name or DEFAULT_TASK
        parts = [f"mark-{mark:g}" if model else "", folder_name(cell), f"trial-{number + 1}"]
        inner = os.path.join(*filter(None, parts))
        folder = os.path.join(settings.run.output_dir, task if name else "", inner)
        run = dataclasses.replace(
            variant.run, task_name=task, output_dir=folder, seed=variant.run.seed + number
        )
        start = dataclasses.replace(
            variant.start, init_checkpoint=model or variant.start.init_checkpoint
        )
        trial = dataclasses.replace(variant, run=run, start=start)
        trials.append(Trial(task, cell, mark, number + 1, folder, trial))
    return trials


def check_own_files(run: FinetuneConfig) -> None:
    """Raise UserError where a setting names a file that only one fine-tuning can read or write."""
    if run.predict_file == STANDARD_INPUT:
        raise UserError(
            "standard input can be read only once, but there are several trials",
            "save it to a file and name that file",
            setting="predict_file",
            value="-",
        )
    if run.predictions_file is not None:
        raise UserError(
            "several trials cannot share one file",
            "drop it, and each leaves its predictions in its folder",
            setting="predictions_file",
            value=run.predictions_file[:100],
        )


def find_tasks(run: FinetuneConfig) -> list[str]:
    """Return the names of GLUE's tasks that --data_dir holds. Raises UserError when there are
    none.
    """
    if run.data_dir is None:
        raise UserError(
            "needs the folder of GLUE's tasks",
            "name it with --data_dir",
            setting="task_name",
            value=table.ALL,
        )
    names = [
        name
        for name in table.GLUE
        if table.find_folder(table.TASKS[name], run.data_dir) != run.data_dir
    ]
    if not names:
        folders = ", ".join(str(table.TASKS[name].folder) for name in table.GLUE)
        raise UserError(
            f"has no folder of a task of GLUE ({folders})",
            "name the folder that holds them",
            setting="data_dir",
            value=run.data_dir,
        )
    return names


def run_sweep(
    variants: Mapping[str, FinetuneSettings], sweep: SweepConfig, console: Console | None = None
) -> SweepResult:
    """Run the trials of a sweep that are not finished, and write the scores of all trials.

    Args:
      variants, sweep: as for `plan_trials`. console: by default messages go to Python's logger
        "bert_gpu".

    Raises:
      UserError: as for a fine-tuning, after the scores of the earlier trials are written; or
        OUTPUT_DIR holds files that are no sweep's.
    """
    settings = next(iter(variants.values()))
    workers = join_workers(settings.devices)
    console = workers.console(console or LogConsole())
    output_dir = settings.run.output_dir
    plan = plan_trials(variants, sweep)
    hours = hours_at(settings.start.init_checkpoint)
    has_scores = any("eval" in resolve_phases(trial.settings.run) for trial in plan)

    def run(trial: Trial, rows: Sequence[Row]) -> tuple[Row | None, int | None]:
        tuned = finetune(trial.settings, console, reuses_results=True)
        row = None if tuned.signal else row_of(trial, hours, metrics=tuned.metrics)
        return row, tuned.outcome and (tuned.outcome.signal or tuned.outcome.late_signal)

    result = trials.run_trials(
        output_dir,
        {os.path.relpath(trial.folder, output_dir): trial for trial in plan},
        workers,
        console,
        run,
        lambda trial, error: row_of(trial, hours, error=str(error)),
        lambda rows: write_scores(output_dir, rows, has_scores),
    )
    if has_scores:
        console.say(scores.describe(result.rows))
        console.say(f"scores: {result.path}")
    return result


def write_scores(output_dir: str, rows: Sequence[Row], has_scores: bool) -> str:
    """Write scores.json and scores.md; return the path of scores.json. Without has_scores, that is
    when no trial was evaluated, existing files stay as they are.
    """
    path = os.path.join(output_dir, trials.JSON)
    return path if not has_scores and os.path.exists(path) else scores.write(output_dir, rows)


def row_of(
    trial: Trial,
    hours: Mapping[float, float],
    metrics: Mapping[str, Mapping[str, float | None]] | None = None,
    error: str | None = None,
) -> Row:
    """Return a finished trial as an entry of scores.json, with its metrics and score, or with the
    error that ended it.
    """
    row: Row = dict(
        task=trial.task, cell=trial.cell, trial=trial.number, seed=trial.settings.run.seed
    )
    if trial.mark is not None:
        row |= dict(mark=trial.mark, hours=hours.get(trial.mark))
    if error is not None:
        return row | dict(error=error)
    return row | dict(metrics=metrics, score=scores.score(trial.task, metrics or {}))
