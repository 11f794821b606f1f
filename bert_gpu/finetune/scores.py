"""The scores of a sweep's trials: median, mean and spread of each cell (a combination of settings
in the grid), the best cell of each task by its dev file, GLUE's table with its mean, and the scores
at marks of a pretraining.

The score of a trial is GLUE's: the mean of the metrics that GLUE reports for the task, for MNLI
over both dev files. A GLUE mean over some of the tasks is marked with their number.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bert_gpu.finetune.tasks import table
from bert_gpu.runs.trials import Row, markdown


def score(task: str, metrics: Mapping[str, Mapping[str, float | None]]) -> float | None:
    """Return the score of a trial, in [-1, 1]; None when a metric is not defined.

    Args:
      task: name of the task. metrics: {stem of a file: {name of a metric: value}}; only dev files
        count.
    """
    names = table.find_task(task).reported
    dev = [values for stem, values in metrics.items() if stem.startswith("dev") and values]
    parts = [
        values[name]
        for values in dev
        for name in (names if set(names) <= set(values) else list(values)[:1])
    ]
    defined = [value for value in parts if value is not None]
    return statistics.fmean(defined) if parts and len(defined) == len(parts) else None


def cells_of(rows: Sequence[Row]) -> dict[tuple[str, float | None, str], list[Row]]:
    """Return {(task, mark, cell): rows of the cell's trials}, in the order of the rows; mark is
    None for a trial without one.
    """
    cells: dict[tuple[str, float | None, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row["task"], row.get("mark"), row["cell"]), []).append(row)
    return cells


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return {"trials": number of trials of a cell, "diverged": number that diverged, and "median",
    "mean", "deviation", "lowest", "highest" of their scores}. All five are None where no trial has
    a score; deviation, that of a sample, also for a single score.
    """
    values = [row["score"] for row in rows if row.get("score") is not None]
    counts: dict[str, Any] = dict(trials=len(rows), diverged=sum("error" in row for row in rows))
    if not values:
        return counts | dict.fromkeys(("median", "mean", "deviation", "lowest", "highest"))
    return counts | dict(
        median=statistics.median(values),
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        lowest=min(values),
        highest=max(values),
    )


def best_cells(rows: Sequence[Row]) -> dict[tuple[str, float | None], tuple[str, dict[str, Any]]]:
    """Return {(task, mark): (cell, its `summary`)} of the cell with the highest median score of
    each task and mark; of equal cells the first.
    """
    cells: dict[tuple[str, float | None], list[tuple[str, dict[str, Any]]]] = {}
    for (task, mark, cell), trials in cells_of(rows).items():
        values = summary(trials)
        if values["median"] is not None:
            cells.setdefault((task, mark), []).append((cell, values))
    return {key: max(ones, key=lambda one: one[1]["median"]) for key, ones in cells.items()}


def content(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the content of scores.json."""
    cells = [
        dict(task=task, cell=cell) | ({} if mark is None else dict(mark=mark)) | summary(trials)
        for (task, mark, cell), trials in cells_of(rows).items()
    ]
    best = [
        dict(task=task, cell=cell, median=values["median"])
        | ({} if mark is None else dict(mark=mark))
        for (task, mark), (cell, values) in best_cells(rows).items()
    ]
    tables = dict(trials=rows, cells=cells, best=best)
    glue = glue_row(rows)
    return tables | (dict(glue=glue) if len(glue) > 2 else {})


def glue_row(rows: Sequence[Row]) -> dict[str, float]:
    """Return {name of a GLUE task's folder: median of its best cell, "mean": mean of these medians}
    of the trials without marks; {} where there are none.
    """
    medians = {
        folder: values["median"]
        for (task, mark), (_, values) in best_cells(rows).items()
        if mark is None and (folder := table.find_task(task).folder)
    }
    return medians | (dict(mean=statistics.fmean(medians.values())) if medians else {})


def describe(rows: Sequence[Row]) -> str:
    """Return the text of scores.md: its tables in Markdown, with aligned columns that a console
    shows readably, too.
    """
    parts = [cells_table(rows)]
    if any("mark" in row for row in rows):
        parts.append(marks_table(rows))
    glue = glue_row(rows)
    if len(glue) > 2:
        number = len(glue) - 1
        note = "" if number == len(table.GLUE) else f" of {number} of {len(table.GLUE)} tasks"
        heading = [f"mean{note}" if name == "mean" else name for name in glue]
        parts.append(markdown([heading, [as_percent(value) for value in glue.values()]]))
    return "\n\n".join(parts)


def cells_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line for each cell, in which the last column has every trial's
    score; scores are in percent.
    """
    lines = [["task", "settings", "trials", "median", "mean", "deviation", "each"]]
    for (task, mark, cell), trials in cells_of(rows).items():
        values = summary(trials)
        where = [] if mark is None else [f"mark {mark:g}"]
        each = [as_percent(row.get("score")) for row in trials]
        lines.append(
            [
                task,
                ", ".join(where + cell.split()) or "-",
                str(values["trials"]),
                *(as_percent(values[name]) for name in ("median", "mean", "deviation")),
                " ".join(each),
            ]
        )
    return markdown(lines)


def marks_table(rows: Sequence[Row]) -> str:
    """Return a Markdown table of the best cells' medians, with a line for each mark of the
    pretraining and a column for each task.
    """
    best = best_cells(rows)
    names = list(dict.fromkeys(row["task"] for row in rows))
    hours = {row["mark"]: row.get("hours") for row in rows}
    lines = [["share of the pretraining", "hours", *names]]
    for mark, spent in hours.items():
        medians = [
            best[task, mark][1]["median"] if (task, mark) in best else None for task in names
        ]
        time = "-" if spent is None else f"{spent:.3g}"
        lines.append([f"{mark:g}", time, *map(as_percent, medians)])
    return markdown(lines)


def as_percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"
