"""Several runs as one job, a sweep: runs its trials one after the other, each in a folder of its
own below OUTPUT_DIR, and writes their results, scores.json and scores.md.

A trial is a run, which resumes as any run does. pretrain/sweep.py and finetune/sweep.py say what
their trials are, how one runs, and what the rows and the tables of the scores hold.
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
S = typing.TypeVar("S")  # settings of a trial


class Trial(typing.NamedTuple, typing.Generic[S]):
    """One run of a sweep. settings: with a folder of its own. row: the entries of its row that are
    known before it runs, such as its seed.
    """

    settings: S
    row: Row


class SweepResult(typing.NamedTuple):
    """The result of a sweep. path: path of scores.json. signal: number of the signal that stopped
    the sweep, or None. rows: of the trials that have ended, in their order.
    """

    path: str
    signal: int | None
    rows: list[Row]


def run_trials(
    output_dir: str,
    trials: Mapping[str, Trial[S]],
    workers: Workers | Alone,
    console: Console,
    run: Callable[[Trial[S]], tuple[Row | None, int | None]],
    content: Callable[[Sequence[Row]], Mapping[str, Any]],
    describe: Callable[[Sequence[Row]], str],
    lost: type[TrainingStopped] = TrainingStopped,
    lose: Callable[[Trial[S]], Row] = lambda trial: {},
    ended: Callable[[Sequence[Row]], None] = lambda rows: None,
    has_scores: bool = True,
) -> SweepResult:
    """Run the trials of a sweep in their order, then write their scores and print them.

    Args:
      trials: {name of the trial's folder, relative to output_dir: trial}.
      run: function of a trial that runs it or finds it finished, and returns the further entries of
        its row, None when it was stopped, and the signal that came, or None.
      content, describe: functions of the rows that return the content of scores.json and the text
        of scores.md.
      lost: class of the errors that end a trial, but not the sweep. lose: function of such a trial
        that returns entries of its row beside the error. ended: called on worker 0 with the rows
        whenever a trial has ended.
      has_scores: whether trials are evaluated; without, scores.json and scores.md are not replaced.

    Raises:
      UserError: as for a run, after the scores of the earlier trials are written; or output_dir
        holds files that are no sweep's.
    """
    workers.on_chief(lambda: check_folder(output_dir, trials))
    path = os.path.join(output_dir, JSON)
    rows: list[Row] = []
    caught = None

    def write(replaces: bool) -> None:
        if replaces or not os.path.exists(path):
            write_text(path, json.dumps(content(rows), indent=1) + "\n")
            write_text(os.path.join(output_dir, MARKDOWN), describe(rows) + "\n")

    with contextlib.ExitStack() as locks, workers.watched():
        lock = only_writer(output_dir, "scores", "output_dir", output_dir)
        workers.on_chief(lambda: locks.enter_context(lock))
        for index, (name, trial) in enumerate(trials.items(), 1):
            console.say(f"--- {index} of {len(trials)}: {name}, seed {trial.row['seed']}")
            try:
                entries, caught = run(trial)
            except WorkerLost:
                raise
            except UserError:  # such as a value of the grid that does not fit the data
                if rows and workers.is_chief:
                    write(replaces=False)
                raise
            except lost as error:
                entries = lose(trial) | dict(error=str(error))
                console.warn(f"{name}: {error}; the other trials continue")
            if entries is not None:
                rows.append(trial.row | entries)
                workers.on_chief(lambda: ended(rows))
            if caught is not None:
                break
        workers.on_chief(lambda: write(has_scores))
    if has_scores:
        console.say(describe(rows))
        console.say(f"scores: {path}")
    return SweepResult(path, caught, rows)


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
