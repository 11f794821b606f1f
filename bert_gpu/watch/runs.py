"""Makes a table of the runs under a folder: the progress of each, and whether it is still running.

Only run.json and the end of metrics.jsonl are read, so that a long run takes no more time than a
short one. A run that cannot be read has a row too, and a line below the table with the reason.
"""

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_gpu.base.console import HUGE, format_metric, format_seconds
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import check_regular, read_json, readable
from bert_gpu.base.run_names import CHECKPOINTS, METRICS, MODEL, RUN
from bert_gpu.base.settings import fields_of
from bert_gpu.runs.metrics import parse_line
from bert_gpu.runs.progress import RUN_ENTRIES, RunRecord
from bert_gpu.watch.run_data import EVAL, as_name, distinct, find_below, is_validation, state_of

TAIL_BYTES = 1 << 16  # bytes at the end of metrics.jsonl that are read and checked
MAX_BYTES = 1 << 24  # bytes that are read where TAIL_BYTES hold no training or no validation line
DAMAGED = "damaged"
NOT_KNOWN = (  # keys that are None for a damaged run
    *("problem", "step", "num_steps", "loss", "eval_loss", "eval_step"),
    *("tokens_per_second", "hours", "remaining_seconds"),
)
HEADINGS = ("run", "state", "step", "loss", "validation", "tokens/s", "hours", "last write")


def find(path: str) -> list[str]:
    """Return the folders of the runs in a folder: the folder itself if it is a run, else the runs
    in the folders below it; runs inside other runs are left out. Raise UserError when there is no
    such folder.
    """
    if not path:
        raise UserError(
            "the folder's name is empty", "name one that holds runs, such as runs", where="runs"
        )
    if not os.path.isdir(path):
        problem = "is not a folder" if os.path.exists(path) else "no such folder"
        raise UserError(problem, "name one that holds runs", where=path[:150])
    return distinct(find_below(path))


def run_status(path: str, now: float | None = None) -> dict[str, object]:
    """Return the status of one run as JSON values, None where something is not known.

    Keys: path, kind ("pretrain" or "finetune"), state (a result of run_data.state_of, or
    "damaged"), problem (text, for a damaged run), step, num_steps, loss, eval_loss, eval_step,
    tokens_per_second, hours, remaining_seconds (for a running run), silent_seconds (since the last
    write). now: seconds since 1970, as time.time() returns; None = the present.
    """
    run: dict[str, object] = dict(path=path, kind=None, state=DAMAGED) | dict.fromkeys(NOT_KNOWN)
    run["silent_seconds"] = silence(path, time.time() if now is None else now)
    try:
        record = read_json(
            os.path.join(path, RUN),
            "a run's settings",
            fields_of(RunRecord) | dict(settings={}),
            RUN_ENTRIES,
        )
        with readable(path):
            training, validation = last_lines(os.path.join(path, METRICS))
        state = state_of(path, record)
    except UserError as error:
        return run | dict(problem=str(error))
    latest = max((training, validation), key=lambda line: line.get("step", -1))
    run |= dict(
        kind="finetune" if "task_name" in record["settings"] else "pretrain",
        state=state,
        num_steps=record["num_steps"],
        step=latest.get("step", 0),
        loss=training.get("loss"),
        eval_loss=validation.get("eval_loss"),
        eval_step=validation.get("step"),
        tokens_per_second=training.get("tokens_per_second"),
    )
    if latest.get("seconds") is not None:
        run["hours"] = latest["seconds"] / 3600
    if run["state"] == "running":
        run["remaining_seconds"] = training.get("remaining_seconds")
    return run


def silence(path: str, now: float) -> float | None:
    """Return the seconds since the last write to a run's files, None when they are not known."""
    times = []
    for name in (RUN, METRICS, CHECKPOINTS, MODEL):
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(path, name)).st_mtime)
    return max(0.0, now - max(times)) if times else None


def last_lines(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (last line of training, last line of validation) of a metrics.jsonl, {name: number}
    each; {} where its last MAX_BYTES have no such line. Raise UserError when one of the last lines
    is damaged. A last line without a line break is skipped, because it is still being written.
    """
    if not os.path.exists(path):
        return {}, {}
    check_regular(path)
    lines: dict[bool, dict[str, object]] = {False: {}, True: {}}
    for text in tail(path, TAIL_BYTES):
        line = parse_line(text, f"{path}, line {shortened(text.strip())!r}")
        lines[is_validation(line)] = line
    if not all(lines.values()) and os.path.getsize(path) > TAIL_BYTES:
        for text in reversed(tail(path, MAX_BYTES)):
            # only a line of the kind, training or validation, that is still lacking is parsed
            if not lines[kind := f'"{EVAL}' in text]:
                lines[kind] = parse_line(text, f"{path}, line {shortened(text.strip())!r}")
            if all(lines.values()):
                break
        else:
            if not any(lines.values()):
                raise UserError(f"no whole line in its last {MAX_BYTES >> 20} MiB", where=path)
    return lines[False], lines[True]


def tail(path: str, num_bytes: int) -> list[str]:
    """Return, as texts, the whole lines among the last num_bytes of a file."""
    with open(path, "rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - num_bytes)
        file.seek(start)
        lines = file.read(num_bytes).decode("utf-8", "replace").split("\n")
    return lines[1:-1] if start else lines[:-1]


def table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a text table with aligned columns. runs: results of `run_status`, one for
    each row.
    """
    rows = [HEADINGS, *(cells(run) for run in runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    problems = [as_name(run["problem"]) for run in runs if run["problem"]]
    return lines + ([""] + problems if problems else [])


def cells(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the texts of the cells of a run's row. run: a result of `run_status`."""

    def cell(name: str, form: Callable[[Any], str]) -> str:
        return "" if run[name] is None else form(run[name])

    step = cell("step", "{:,}".format)
    if run["num_steps"] is not None:
        step += f" of {run['num_steps']:,}"
    ago = cell("silent_seconds", lambda seconds: f"{format_age(seconds)} ago")
    return (
        as_name(run["path"]),
        run["state"],
        step,
        cell("loss", format_metric),
        cell("eval_loss", format_metric),
        cell("tokens_per_second", lambda rate: f"{rate:,.0f}" if rate < HUGE else f"{rate:.4g}"),
        cell("hours", lambda hours: f"{hours:.1f}" if hours < HUGE else f"{hours:.4g}"),
        ago,
    )


def format_age(seconds: float) -> str:
    """Return a time as text, such as 40 s, 12 min, 5:10 h or 3 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{format_seconds(seconds).rpartition(':')[0]} h"
    return f"{seconds / 86400:.0f} days"
