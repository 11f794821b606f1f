"""Several fine-tunings as one job: tasks, cells of a grid, models at marks of a pretraining, trials
with other seeds.

Each is a run of its own in a folder below OUTPUT_DIR, which resumes as any run does; what is
finished is not run again. scores.json has every trial's metrics and what they come to, scores.md
the same as tables; a sweep that evaluates nothing leaves both as they are.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import re
import typing

from bert_gpu.base.console import LogConsole
from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.base.files import check_writable, only_writer
from bert_gpu.base.run_names import MARKS, METRICS
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.devices.devices import join_workers
from bert_gpu.devices.workers import WorkerLost
from bert_gpu.finetune import scores
from bert_gpu.finetune.config import DEFAULT_TASK, resolve_phases
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.tasks import table
from bert_gpu.runs import metrics

LONGEST_NAME = 200  # of a cell's folder, in bytes; file systems allow 255


class Trial(typing.NamedTuple):
    """One fine-tuning of a sweep: what tells it apart, and its settings.

    task: name of the task. cell: its cell of the grid, such as "learning_rate=2e-05", "" without a
    grid. mark: share of the pretraining at which its model was exported, None without marks.
    """

    task: str
    cell: str
    mark: float | None
    number: int
    folder: str
    settings: typing.Any


class SweepResult(typing.NamedTuple):
    """How a sweep ended. path: of scores.json. signal: that stopped it, or None."""

    path: str
    signal: int | None


def is_sweep(settings, sweep):
    """Whether the settings ask for more than one fine-tuning."""
    return (
        sweep.num_trials > 1
        or sweep.grid is not None
        or settings.run.task_name == table.ALL
        or bool(find_marks(settings.start.init_checkpoint))
    )


def find_marks(path: str | None) -> dict[float, str]:
    """{share of the pretraining: the model's folder} in a folder marks/, in rising order; {} of
    another path.
    """
    is_marks = os.path.basename(os.path.normpath(path or "")) == MARKS and os.path.isdir(path)
    names = os.listdir(path) if is_marks else []
    found = {
        float(name): os.path.join(path, name)
        for name in names
        if re.fullmatch(r"\d*\.?\d+(e-\d+)?", name)
    }
    return dict(sorted(found.items()))


def hours_at(path: str | None) -> dict[float, float]:
    """{share: hours} of training until each mark of a folder marks/, from the metrics of the
    pretraining that it belongs to; {} where these are missing, and of another path.
    """
    shares = find_marks(path)
    if not shares:
        return {}
    lines = metrics.read_lines(os.path.join(os.path.dirname(os.path.normpath(path)), METRICS))
    times = [(line["progress"], line["seconds"]) for line, _ in lines if line.get("progress")]
    found = {}
    for share in shares:
        reached = [seconds for progress, seconds in times if progress >= share - 1e-9]
        if reached:
            found[share] = reached[0] / 3600
    return found


def plan_trials(variants, sweep):
    """The Trials of a sweep, in the order in which they run.

    Args:
      variants: {cell of the grid, or "": FinetuneSettings}. sweep: SweepConfig.

    Raises:
      UserError: no task is there, or the trials would read or write one file in turn.
    """
    settings = next(iter(variants.values()))
    for one in variants.values():
        check_own_files(one.run)
    names = find_tasks(settings.run) if settings.run.task_name == table.ALL else [None]
    marks = find_marks(settings.start.init_checkpoint) or {None: None}
    found = []
    for name, (mark, model), (cell, chosen), number in itertools.product(
        names, marks.items(), variants.items(), range(sweep.num_trials)
    ):
        task = name or chosen.run.task_name or DEFAULT_TASK
        inner = [f"mark-{mark:g}" if model else "", folder_name(cell), f"trial-{number + 1}"]
        inner = os.path.join(*filter(None, inner))
        folder = os.path.join(settings.run.output_dir, task if name else "", inner)
        run = dataclasses.replace(
            chosen.run, task_name=task, output_dir=folder, seed=chosen.run.seed + number
        )
        start = dataclasses.replace(
            chosen.start, init_checkpoint=model or chosen.start.init_checkpoint
        )
        trial = dataclasses.replace(chosen, run=run, start=start)
        found.append(Trial(task, cell, mark, number + 1, folder, trial))
    return found


def folder_name(cell):
    """The name of a cell's folder: the cell, or where that has slashes or is long, what a name can
    hold of it and a digest.
    """
    name = cell.replace(" ", ",")
    if os.sep not in name and len(os.fsencode(name)) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(os.fsencode(cell)).hexdigest()[:8]
    plain = re.sub(r"[^\w=,.+-]", "-", name, flags=re.ASCII)
    return f"{plain[: LONGEST_NAME - len(digest) - 1]}-{digest}"


def check_own_files(run):
    """UserError where a FinetuneConfig names a file that only one fine-tuning can read or write."""
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


def find_tasks(run):
    """Names of GLUE's tasks that a FinetuneConfig's data_dir holds; UserError when there are
    none.
    """
    if run.data_dir is None:
        raise UserError(
            "needs the folder of GLUE's tasks",
            "name it with --data_dir",
            setting="task_name",
            value=table.ALL,
        )
    found = [
        name
        for name in table.GLUE
        if table.find_folder(table.TASKS[name], run.data_dir) != run.data_dir
    ]
    if not found:
        folders = ", ".join(table.TASKS[name].folder for name in table.GLUE)
        raise UserError(
            f"has no folder of a task of GLUE ({folders})",
            "name the folder that holds them",
            setting="data_dir",
            value=run.data_dir,
        )
    return found


def run_sweep(variants, sweep, console=None):
    """Runs what is missing of a sweep and writes its scores; returns a SweepResult.

    Args: those of `plan_trials`. console: console.Console; by default messages go to Python's
      logger "bert_gpu".

    Raises:
      UserError: as for a fine-tuning, when the scores of the trials before it are written;
        OUTPUT_DIR holds other files.
    """
    settings = next(iter(variants.values()))
    workers = join_workers(settings.devices)
    console = workers.console(console or LogConsole())
    trials, output_dir = plan_trials(variants, sweep), settings.run.output_dir
    names = {os.path.relpath(trial.folder, output_dir) for trial in trials}
    workers.on_chief(lambda: check_folder(output_dir, names))
    hours, rows, stopped = hours_at(settings.start.init_checkpoint), [], None
    has_scores = any("eval" in resolve_phases(trial.settings.run) for trial in trials)
    with contextlib.ExitStack() as held, workers.watched():
        lock = only_writer(output_dir, "scores", "output_dir", output_dir)
        workers.on_chief(lambda: held.enter_context(lock))
        for index, trial in enumerate(trials, 1):
            name = os.path.relpath(trial.folder, output_dir)
            console.say(f"--- {index} of {len(trials)}: {name}, seed {trial.settings.run.seed}")
            try:
                result = finetune(trial.settings, console, reuses_results=True)
            except WorkerLost:
                raise
            except UserError:  # such as a value of the grid that does not fit the data
                is_new = not os.path.exists(os.path.join(output_dir, scores.JSON))
                if rows and is_new and workers.is_chief:
                    write_scores(output_dir, rows, has_scores)
                raise
            except TrainingStopped as error:
                console.warn(f"{name}: {error}; the others go on")
                rows.append(row_of(trial, hours, error=str(error)))
                continue
            if result.signal is not None:
                stopped = result.signal
                break
            rows.append(row_of(trial, hours, metrics=result.metrics))
        path = workers.from_chief(write_scores, output_dir, rows, has_scores)
    if has_scores:
        console.say(scores.describe(rows))
        console.say(f"scores: {path}")
    return SweepResult(path, stopped)


def write_scores(output_dir, rows, has_scores):
    """Writes scores.json and scores.md; returns the path of the first. Without has_scores, that is
    when no trial was evaluated, earlier ones stay.
    """
    path = os.path.join(output_dir, scores.JSON)
    return path if not has_scores and os.path.exists(path) else scores.write(output_dir, rows)


def row_of(trial, hours, metrics=None, error=None):
    """A finished trial as an entry of scores.json."""
    row = dict(task=trial.task, cell=trial.cell, trial=trial.number, seed=trial.settings.run.seed)
    if trial.mark is not None:
        row |= dict(mark=trial.mark, hours=hours.get(trial.mark))
    if error is not None:
        return row | dict(error=error)
    return row | dict(metrics=metrics, score=scores.score(trial.task, metrics))


def check_folder(output_dir, names):
    """UserError unless a folder is new, empty or a sweep's. names: of the trials' folders in it."""
    check_writable(output_dir, "output_dir", output_dir)
    ours = {name.split(os.sep)[0] for name in names} | {scores.JSON, scores.MARKDOWN}
    present = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    others = [name for name in sorted(present) if name not in ours and not name.startswith(".")]
    if others and scores.JSON not in present:
        raise UserError(
            f"holds no trials, but {others[0][:60]}",
            "several runs go into a folder of their own, so name another",
            setting="output_dir",
            value=output_dir,
        )
