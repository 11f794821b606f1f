"""A table of the runs under a folder: how far each is, and whether it still goes on.

Only run.json and the end of metrics.jsonl are read, so that long runs answer at once. A run that
cannot be read is a row that says why.
"""

import contextlib
import os
import time

from bert_gpu.base.console import HUGE, format_metric, format_seconds
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import check_regular, read_json, readable
from bert_gpu.base.run_names import CHECKPOINTS, METRICS, MODEL, RUN
from bert_gpu.base.settings import fields_of
from bert_gpu.runs.metrics import parse_line
from bert_gpu.runs.progress import RunRecord
from bert_gpu.watch.run_data import EVAL, as_name, distinct, find_below, is_validation, state_of

TAIL_BYTES = 1 << 16  # of metrics.jsonl that are read and checked
MAX_BYTES = 1 << 24  # of it that are searched for a line of a kind that is not there
DAMAGED = "damaged"
NOT_KNOWN = (  # of a damaged run
    *("problem", "step", "num_steps", "loss", "eval_loss", "eval_step"),
    *("tokens_per_second", "hours", "remaining_seconds"),
)
HEADINGS = ("run", "state", "step", "loss", "validation", "tokens/s", "hours", "last write")


def find(path):
    """Folders of runs in a folder and the folders below it, none inside another; the folder itself
    may be one. UserError when there is no such folder.
    """
    if not path:
        raise UserError(
            "the folder's name is empty", "name one that holds runs, such as runs", where="runs"
        )
    if not os.path.isdir(path):
        problem = "is not a folder" if os.path.exists(path) else "no such folder"
        raise UserError(problem, "name one that holds runs", where=path[:150])
    return distinct(find_below(path))


def look(path, now=None):
    """What one run is up to: a dict of JSON values, None where something is not known.

    Keys: path, kind ("pretrain" or "finetune"), state (as of run_data.state_of,
    or "damaged"), problem (of a damaged one), step, num_steps, loss, eval_loss, eval_step,
    tokens_per_second, hours, remaining_seconds (of a running one), silent_seconds (since the last
    write). now: time.time().
    """
    run = dict(path=path, kind=None, state=DAMAGED) | dict.fromkeys(NOT_KNOWN)
    run["silent_seconds"] = silence(path, time.time() if now is None else now)
    try:
        record = read_json(
            os.path.join(path, RUN),
            "a run's settings",
            fields_of(RunRecord) | dict(settings={}),
            ("settings",),
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
        num_steps=record.get("num_steps"),
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


def silence(path, now):
    """Seconds since something was written to a run's files, None when that is not known."""
    times = []
    for name in (RUN, METRICS, CHECKPOINTS, MODEL):
        with contextlib.suppress(OSError):
            times.append(os.stat(os.path.join(path, name)).st_mtime)
    return max(0.0, now - max(times)) if times else None


def last_lines(path):
    """(last line of training, last line of validation) of a metrics.jsonl, {} each where there is
    none in its last MAX_BYTES. UserError when one of its last lines is damaged; one without an end
    is being written.
    """
    if not os.path.exists(path):
        return {}, {}
    check_regular(path)
    found = {False: {}, True: {}}
    for text in tail(path, TAIL_BYTES):
        line = parse_line(text, f"{path}, line {shortened(text.strip())!r}")
        found[is_validation(line)] = line
    if not all(found.values()) and os.path.getsize(path) > TAIL_BYTES:
        for text in reversed(tail(path, MAX_BYTES)):
            # parses only lines of the kind that is lacking
            if not found[kind := f'"{EVAL}' in text]:
                found[kind] = parse_line(text, f"{path}, line {shortened(text.strip())!r}")
            if all(found.values()):
                break
        else:
            if not any(found.values()):
                raise UserError(f"no whole line in its last {MAX_BYTES >> 20} MiB", where=path)
    return found[False], found[True]


def tail(path, num_bytes):
    """The whole lines among the last bytes of a file, as texts."""
    with open(path, "rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - num_bytes)
        file.seek(start)
        lines = file.read(num_bytes).decode("utf-8", "replace").split("\n")
    return lines[1:-1] if start else lines[:-1]


def table(runs):
    """The lines of a table of `look`'s results, columns aligned."""
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


def cells(run):
    """The texts of a row of the table."""

    def shown(name, form):
        return "" if run[name] is None else form(run[name])

    step = shown("step", "{:,}".format)
    if run["num_steps"] is not None:
        step += f" of {run['num_steps']:,}"
    ago = shown("silent_seconds", lambda seconds: f"{format_age(seconds)} ago")
    return (
        as_name(run["path"]),
        run["state"],
        step,
        shown("loss", format_metric),
        shown("eval_loss", format_metric),
        shown("tokens_per_second", lambda rate: f"{rate:,.0f}" if rate < HUGE else f"{rate:.4g}"),
        shown("hours", lambda hours: f"{hours:.1f}" if hours < HUGE else f"{hours:.4g}"),
        ago,
    )


def format_age(seconds):
    """A time as one is told it: 40 s, 12 min, 5:10 h, 3 days."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{format_seconds(seconds).rpartition(':')[0]} h"
    return f"{seconds / 86400:.0f} days"
