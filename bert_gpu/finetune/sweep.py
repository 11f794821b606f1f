"""Several fine-tunings as one job: of several tasks, combinations of settings (cells of a grid),
models exported during a pretraining (at marks), and seeds (trials).

Each fine-tuning is a run of its own in a folder below OUTPUT_DIR, which resumes as any run does;
finished runs are not run again. scores.json has every trial's metrics and their summary, scores.md
the same as tables; a sweep that evaluates nothing leaves both files unchanged.
"""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence

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
from bert_gpu.runs.trials import Row, SweepResult, Trial


def is_sweep(settings: FinetuneSettings, sweep: SweepConfig) -> bool:
    """Return whether the settings describe more than one fine-tuning."""
    return (
        sweep.num_trials > 1
        or sweep.grid is not None
        or settings.run.task_name == table.ALL
        or bool(find_marks(settings.start.init_checkpoint))
    )


def plan_trials(
    variants: Mapping[str, FinetuneSettings], sweep: SweepConfig
) -> dict[str, Trial[FinetuneSettings]]:
    """Return {folder relative to OUTPUT_DIR: trial} of a sweep, in the order in which they run.

    A trial's row has its task; the settings that the grid gives it, "" without a grid; its number,
    from 1, among the trials with the same settings but for the seed; and, with marks, the share of
    the pretraining at which its initial model was exported, and the hours until then.

    Args:
      variants: {settings that the grid gives, such as "learning_rate=2e-05", "" without a grid: all
        settings}.

    Raises:
      UserError: --data_dir holds no task, or all trials would read or write the same file.
    """
    settings = next(iter(variants.values()))
    for one in variants.values():
        check_own_files(one.run)
    has_all = settings.run.task_name == table.ALL
    names: Sequence[str | None] = find_tasks(settings.run) if has_all else [None]
    checkpoint = settings.start.init_checkpoint
    models: Sequence[tuple[float | None, str | None]] = [*find_marks(checkpoint).items()]
    hours = hours_at(checkpoint)
    trials = {}
    for name, (mark, model), (cell, variant), number in itertools.product(
        names, models or [(None, None)], variants.items(), range(1, sweep.num_trials + 1)
    ):
        task = name or variant.run.task_name or DEFAULT_TASK
        parts = (name, model and f"mark-{mark:g}", folder_name(cell), f"trial-{number}")
        folder = os.path.join(*filter(None, parts))
        run = dataclasses.replace(
            variant.run,
            task_name=task,
            output_dir=os.path.join(settings.run.output_dir, folder),
            seed=variant.run.seed + number - 1,
        )
        start = dataclasses.replace(
            variant.start, init_checkpoint=model or variant.start.init_checkpoint
        )
        row: Row = dict(task=task, cell=cell, trial=number, seed=run.seed)
        row |= {} if mark is None else dict(mark=mark, hours=hours.get(mark))
        trials[folder] = Trial(dataclasses.replace(variant, run=run, start=start), row)
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
    plan = plan_trials(variants, sweep)

    def run(trial: Trial[FinetuneSettings]) -> tuple[Row | None, int | None]:
        tuned = finetune(trial.settings, console, reuses_results=True)
        caught = tuned.outcome and (tuned.outcome.signal or tuned.outcome.late_signal)
        score = scores.score(trial.row["task"], tuned.metrics)
        return None if tuned.signal else dict(metrics=tuned.metrics, score=score), caught

    return trials.run_trials(
        settings.run.output_dir,
        plan,
        workers,
        console,
        run,
        scores.content,
        scores.describe,
        has_scores=any("eval" in resolve_phases(trial.settings.run) for trial in plan.values()),
    )
