"""What the trials of a sweep come to: median, mean and spread of each cell, the best cell of each
task by its dev file, GLUE's table with its mean, the curve over marks of a pretraining.

The score of a trial is what GLUE counts: the mean of the metrics that it reports for the task, and
over MNLI's two files. A GLUE mean over fewer tasks than there are says over how many it is.
"""

import json
import os
import statistics

from bert_gpu.base.files import write_text
from bert_gpu.finetune.tasks import table

JSON, MARKDOWN = "scores.json", "scores.md"


def score(task, metrics):
    """The score of a trial, in [-1, 1]; None when a metric is not defined.

    Args:
      task: its name. metrics: {stem of a file: {name: value}}; test files do not count.
    """
    names = table.find_task(task).reported
    dev = [values for stem, values in metrics.items() if stem.startswith("dev") and values]
    found = [
        values[name]
        for values in dev
        for name in (names if set(names) <= set(values) else list(values)[:1])
    ]
    return None if not found or None in found else statistics.fmean(found)


def cells_of(rows):
    """{(task, mark, cell): rows of its trials}, in order."""
    found = {}
    for row in rows:
        found.setdefault((row["task"], row.get("mark"), row["cell"]), []).append(row)
    return found


def summary(rows):
    """{"trials", "diverged", "median", "mean", "deviation", "lowest", "highest"} of the trials of a
    cell; the numbers are None without a score. deviation: of the sample, None for one trial.
    """
    values = [row["score"] for row in rows if row.get("score") is not None]
    found = dict(trials=len(rows), diverged=sum("error" in row for row in rows))
    if not values:
        return found | dict.fromkeys(("median", "mean", "deviation", "lowest", "highest"))
    return found | dict(
        median=statistics.median(values),
        mean=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else None,
        lowest=min(values),
        highest=max(values),
    )


def best_cells(rows):
    """{(task, mark): (cell, summary)}: the cell of the highest median, the first one of equals."""
    found = {}
    for (task, mark, cell), trials in cells_of(rows).items():
        made = summary(trials)
        before = found.get((task, mark))
        if made["median"] is not None and (before is None or made["median"] > before[1]["median"]):
            found[task, mark] = cell, made
    return found


def content(rows):
    """What scores.json holds."""
    cells = [
        dict(task=task, cell=cell) | ({} if mark is None else dict(mark=mark)) | summary(trials)
        for (task, mark, cell), trials in cells_of(rows).items()
    ]
    best = [
        dict(task=task, cell=cell, median=made["median"])
        | ({} if mark is None else dict(mark=mark))
        for (task, mark), (cell, made) in best_cells(rows).items()
    ]
    found = dict(trials=rows, cells=cells, best=best)
    glue = glue_row(rows)
    return found | (dict(glue=glue) if len(glue) > 2 else {})


def glue_row(rows):
    """{folder of a task of GLUE: median of its best cell, "mean": ...} without marks."""
    medians = {
        table.find_task(task).folder: made["median"]
        for (task, mark), (_, made) in best_cells(rows).items()
        if mark is None and table.find_task(task).folder
    }
    return medians | (dict(mean=statistics.fmean(medians.values())) if medians else {})


def write(output_dir, rows):
    """Writes scores.json and scores.md; returns the path of the first."""
    path = os.path.join(output_dir, JSON)
    write_text(path, json.dumps(content(rows), indent=1) + "\n")
    write_text(os.path.join(output_dir, MARKDOWN), describe(rows) + "\n")
    return path


def describe(rows):
    """The tables, in Markdown with aligned columns, which a console shows as well."""
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


def cells_table(rows):
    """A line a cell, with every trial's score; scores times 100."""
    lines = [["task", "settings", "trials", "median", "mean", "deviation", "each"]]
    for (task, mark, cell), trials in cells_of(rows).items():
        made = summary(trials)
        where = [] if mark is None else [f"mark {mark:g}"]
        each = [as_percent(row.get("score")) for row in trials]
        lines.append(
            [
                task,
                ", ".join(where + cell.split()) or "-",
                str(made["trials"]),
                *(as_percent(made[name]) for name in ("median", "mean", "deviation")),
                " ".join(each),
            ]
        )
    return markdown(lines)


def marks_table(rows):
    """A line a mark, a column a task."""
    best, names = best_cells(rows), list(dict.fromkeys(row["task"] for row in rows))
    hours = {row["mark"]: row.get("hours") for row in rows}
    lines = [["share of the pretraining", "hours", *names]]
    for mark, spent in hours.items():
        found = [best[task, mark][1]["median"] if (task, mark) in best else None for task in names]
        shown = "-" if spent is None else f"{spent:.3g}"
        lines.append([f"{mark:g}", shown, *map(as_percent, found)])
    return markdown(lines)


def as_percent(value):
    return "-" if value is None else f"{100 * value:.2f}"


def markdown(lines):
    """Lines of cells as a table of Markdown with aligned columns; the first is the heading."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([shown[0], rule, *shown[1:]])
