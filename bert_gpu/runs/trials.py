"""Several runs as one job, a sweep: runs its trials one after the other, each in a folder of its
own below OUTPUT_DIR, and writes their results, scores.json and scores.md.

A trial is a run, which resumes as any run does; the caller says how it runs and what its row in
scores.json holds.
"""

import contextlib
import json
import os
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bert_gpu.base.console import Console
from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.base.files import check_writable, only_writer, write_text
from bert_gpu.devices.workers import Alone, WorkerLost, Workers

JSON = "scores.json"
MARKDOWN = "scores.md"
Row = dict[str, Any]  # a trial, as an entry of scores.json


class SweepResult(typing.NamedTuple):
    """The result of a sweep. path: path of scores.json. signal: number of the signal that stopped
    the sweep, or None. rows: of the trials that have ended, in their order.
    """

    path: str
    signal: int | None
    rows: list[Row]


def run_trials(
    output_dir: str,
    trials: Mapping[str, Any],
    workers: Workers | Alone,
    console: Console,
    run: Callable[[Any, Sequence[Row]], tuple[Row | None, int | None]],
    lose: Callable[[Any, TrainingStopped], Row],
    write: Callable[[Sequence[Row]], str],
) -> SweepResult:
    """Run the trials of a sweep in their order, and write their scores at the end.

    Args:
      trials: {name of the trial's folder, relative to output_dir: trial}; a trial has its settings.
      run: function of a trial and the rows of those before it that runs it or finds it finished,
        and returns its row, None when it was stopped, and the signal that came, or None.
      lose: function of a trial and the error that ended it that returns its row. write: function of
        the rows that writes the scores, and returns the path of scores.json.

    Raises:
      UserError: as for a run, after the scores of the earlier trials are written; or output_dir
        holds files that are no sweep's.
    """
    workers.on_chief(lambda: check_folder(output_dir, trials))
    rows: list[Row] = []
    caught = None
    with contextlib.ExitStack() as locks, workers.watched():
        lock = only_writer(output_dir, "scores", "output_dir", output_dir)
        workers.on_chief(lambda: locks.enter_context(lock))
        for index, (name, trial) in enumerate(trials.items(), 1):
            console.say(f"--- {index} of {len(trials)}: {name}, seed {trial.settings.run.seed}")
            try:
                row, caught = run(trial, rows)
            except WorkerLost:
                raise
            except UserError:  # such as a value of the grid that does not fit the data
                if rows and not os.path.exists(os.path.join(output_dir, JSON)) and workers.is_chief:
                    write(rows)
                raise
            except TrainingStopped as error:
                row = lose(trial, error)
                console.warn(f"{name}: {error}; the other trials continue")
            if row is not None:
                rows.append(row)
            if caught is not None:
                break
        return SweepResult(workers.from_chief(write, rows), caught, rows)


def check_folder(output_dir: str, names: Collection[str]) -> None:
    """Raise UserError unless `output_dir` is new, empty or the folder of a sweep. names: of the
    trials' folders in it.
    """
    check_writable(output_dir, "output_dir", output_dir)
    ours = {name.split(os.sep)[0] for name in names} | {JSON, MARKDOWN}
    present = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    others = [name for name in sorted(present) if name not in ours and not name.startswith(".")]
    if others and JSON not in present:
        raise UserError(
            f"holds no trials, but {others[0][:60]}",
            "several runs go into a folder of their own, so name another",
            setting="output_dir",
            value=output_dir,
        )


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table of Markdown with aligned columns; the first is the
    heading.
    """
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    texts = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])


def write_scores(output_dir: str, content: Mapping[str, Any], text: str) -> str:
    """Write scores.json and scores.md; return the path of scores.json. text: of scores.md, without
    the last line break.
    """
    path = os.path.join(output_dir, JSON)
    write_text(path, json.dumps(content, indent=1) + "\n")
    write_text(os.path.join(output_dir, MARKDOWN), text + "\n")
    return path
