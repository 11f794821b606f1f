"""Several short pretrainings as one job, the trials of a grid of settings, to find the best
combination, such as the learning rate of each optimizer.

Each trial is a run in a folder below OUTPUT_DIR, which resumes as any run does. The last validation
decides; of the trials that have ended, only the best keeps its checkpoints and its model.
scores.json and scores.md have every trial.
"""

import os
from collections.abc import Mapping, Sequence

from bert_gpu.base.console import Console, LogConsole, format_metric
from bert_gpu.base.errors import TrainingStopped, UserError, shortened
from bert_gpu.base.run_names import METRICS, folder_name
from bert_gpu.data.dataset import Dataset
from bert_gpu.devices.devices import join_workers
from bert_gpu.monitor.sinks.tensorboard import EVAL
from bert_gpu.pretrain.config import PretrainSettings
from bert_gpu.pretrain.run import pretrain
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.metrics import read_lines
from bert_gpu.runs.trials import Row, SweepResult, Trial, markdown, run_trials
from bert_gpu.train.divergence import Lost


def run_sweep(
    common: PretrainSettings,
    cells: Mapping[str, PretrainSettings],
    console: Console | None = None,
) -> SweepResult:
    """Run the trials of a grid that have not ended yet, and write the scores of all.

    Args:
      common: the settings without those of the grid; its output_dir has the scores. cells:
        {settings that the grid gives: all settings}; the output_dir of each is its `folder_name`
        below that of `common`. console: by default messages go to Python's logger "bert_gpu".

    Raises:
      UserError: as for a pretraining; or the data has no validation records. TrainingStopped: no
        trial has a result, or a trial could not save.
    """
    output_dir = common.run.output_dir
    workers = join_workers(common.devices)
    console = workers.console(console or LogConsole())
    plan = {
        folder_name(cell): Trial(settings, dict(cell=cell, seed=settings.run.seed))
        for cell, settings in cells.items()
    }
    data = [Dataset(inputs) for inputs in {s.inputs: 0 for s in cells.values()}]
    if any(dataset.validation is None for dataset in data):
        raise UserError(
            "the data has no validation records, by which trials are compared",
            "build it with --validation_share=0.01, or name some with --eval_input_file",
            setting="grid",
        )

    def run(trial: Trial[PretrainSettings]) -> tuple[Row | None, int | None]:
        result = pretrain(trial.settings, console)
        entries = workers.from_chief(score, trial) if result.signal is None else None
        return entries, result.signal or result.late_signal

    def drop_loser(rows: Sequence[Row]) -> None:
        best = best_of(rows)
        loser = best_of(rows[:-1]) if best is rows[-1] else rows[-1]
        if loser is not None:
            folder = RunFolder(os.path.join(output_dir, folder_name(loser["cell"])))
            folder.drop(loser.get("error"))

    result = run_trials(
        output_dir,
        plan,
        workers,
        console,
        run,
        lambda rows: dict(trials=rows, best=best_of(rows)),
        describe,
        lost=Lost,  # another error, such as that of a full disk, ends the sweep
        lose=lambda trial: workers.from_chief(score, trial) | dict(score=None),
        ended=drop_loser,
    )
    if result.signal is None:
        best = best_of(result.rows)
        if best is None:
            raise TrainingStopped("no trial of --grid has a result; lower its learning rates")
        console.say(f"best: {best['cell']}")
    return result


def score(trial: Trial[PretrainSettings]) -> Row:
    """Return the entries of a row that a trial's log has: step, seconds and metrics of its last
    validation, and as score the MLM loss, or the value of --best_metric.
    """
    lines = read_lines(os.path.join(trial.settings.run.output_dir, METRICS))
    last: Row = next((line for line, _ in reversed(lines) if f"{EVAL}loss" in line), {})
    values = {name.removeprefix(EVAL): last[name] for name in last if name.startswith(EVAL)}
    metric = trial.settings.ending.best_metric
    if metric == "loss" and "mlm_loss" in values:
        metric = "mlm_loss"  # comparable between trials with other objectives beside it
    reached = dict(step=last.get("step", 0), seconds=last.get("seconds", 0.0))
    return reached | dict(metrics=values, metric=metric, score=values.get(metric))


def best_of(rows: Sequence[Row]) -> Row | None:
    """Return the row with the best score: of a loss the lowest, else the highest; of equal ones the
    first. None when no row has a score.
    """
    return min(
        (row for row in rows if row["score"] is not None),
        key=lambda row: row["score"] if row["metric"].endswith("loss") else -row["score"],
        default=None,
    )


def describe(rows: Sequence[Row]) -> str:
    """Return the text of scores.md: a table of Markdown with a line for each trial."""
    best = best_of(rows)
    lines = [["settings", "steps", "minutes", best["metric"] if best else "score", ""]]
    for row in rows:
        score = "-" if row["score"] is None else format_metric(row["score"])
        note = "best" if row is best else shortened(row.get("error", ""))
        settings = ", ".join(row["cell"].split())
        lines.append([settings, str(row["step"]), f"{row['seconds'] / 60:.1f}", score, note])
    return markdown(lines)
