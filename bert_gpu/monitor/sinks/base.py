"""What a sink of a run's metrics is, and the one that every run has: metrics.jsonl. monitor.py has
the table of all sinks.
"""

import dataclasses
import json
import os

from bert_gpu.base.files import parse_json, readable, write_text
from bert_gpu.base.settings import (
    Settings,
    UserError,
    fields_of,
    setting,
    shortened,
    stored_complaint,
)


class Sink:
    """Takes the metrics of a run. What it raises ends neither the run nor the other sinks.

    recovers: whether it can be written to after an error; otherwise it is dropped.
    """

    recovers = False

    def write(self, step, values):
        """Takes {name: value} of a step; values are Python numbers, or None when missing or not
        finite. Names that begin with "eval_" are of a validation.
        """
        raise NotImplementedError

    def advance(self, step, share, left):
        """Called after each call of steps, between those that are written, which it may not delay.
        share: of the run that is done. left: seconds, None = not known.
        """

    def cut(self, step):
        """Drops what was written after `step`, where that is possible, for a rollback."""

    def close(self):
        """Writes what waits. Called once, last."""


class JsonLines(Sink):
    """metrics.jsonl: flushed lines {"step": step, name: value, ...}. A value that is missing or not
    finite is null.

    A line is written completely or not at all: on a full disk, lines wait in memory and are retried
    with the next one.
    """

    recovers = True

    def __init__(self, path):
        self.path, self.waiting = path, b""
        self.file = open(path, "ab", buffering=0)

    def write(self, step, values):
        """Appends a line after those that wait. OSError when they cannot be written now."""
        self.waiting += (json.dumps({"step": step} | values, allow_nan=False) + "\n").encode()
        self._flush()

    def cut(self, step):
        """Drops the lines after `step`, also those that wait. OSError when there is no disk space
        for it; then the file keeps them.
        """
        self.waiting = b"".join(
            line
            for line in self.waiting.splitlines(keepends=True)
            if json.loads(line)["step"] <= step
        )
        self.file.close()
        try:
            cut_lines(self.path, step)
        finally:
            self.file = open(self.path, "ab", buffering=0)

    def close(self):
        try:
            self._flush()
        finally:
            self.file.close()

    def _flush(self):
        size, done = self.file.seek(0, os.SEEK_END), 0
        try:
            while done < len(self.waiting):
                done += self.file.write(self.waiting[done:])
        except OSError:
            self.file.truncate(size)
            raise
        self.waiting = b""


def cut_lines(path, step):
    """Drops from a metrics.jsonl, if there is one, the lines after `step` (all for None) and a last
    line that was not finished. UserError as for `read_lines`.
    """
    if os.path.exists(path):
        lines = read_lines(path, "correct or remove it, or --overwrite")
        kept = [line for values, line in lines if step is not None and values["step"] <= step]
        write_text(path, "".join(kept))


def read_lines(path, remedy="correct or remove it"):
    """[(object, its text)] of the lines of a metrics.jsonl, [] without one; without the last line
    if it has no end.

    remedy: what to do about a damaged line. UserError names the line, and the key, when it is not
    what `JsonLines` writes, and when the file cannot be read.
    """
    if not os.path.exists(path):
        return []
    with readable(path), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.endswith("\n")]
    return [
        (parse_line(line, f"{path}, line {number}", remedy), line)
        for number, line in enumerate(lines, 1)
    ]


def parse_line(line, where, remedy="correct or remove it"):
    """The object of a line of a metrics.jsonl. UserError, which says `where` the line stands, when
    it is not what `JsonLines` writes.
    """
    try:
        values = parse_json(line)
        problem = metrics_complaint(values)
    except (ValueError, RecursionError) as error:
        problem = f"not valid JSON ({error})"
    if problem:
        raise UserError(f"{where}: {problem}; {remedy}"[:300])
    return values


def metrics_complaint(values):
    """What is wrong with the JSON value of a line, None when nothing is."""
    if not isinstance(values, dict):
        return "not a JSON object"
    if "step" not in values:
        return "has no 'step'"
    if problem := stored_complaint(values, fields_of(MetricsLine)):
        return problem
    odd = [
        name
        for name, value in values.items()
        if value is not None and type(value) not in (int, float)
    ]
    return f"{odd[0][:60]}={shortened(values[odd[0]])}: must be a number or null" if odd else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MetricsLine(Settings):
    """What a line of metrics.jsonl holds besides metrics, which are numbers or null."""

    step: int = setting(0, "Finished steps.", low=0, high=1 << 53)  # floats skip larger ones
