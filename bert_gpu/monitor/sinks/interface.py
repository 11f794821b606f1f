"""The interface of a sink of a run's metrics, and the sink that every run has: metrics.jsonl.
metrics_log.py has the table of all sinks.
"""

import json
import os
from collections.abc import Mapping

from bert_gpu.runs.metrics import cut_lines


class Sink:
    """Receives the metrics of a run. Its errors end neither the run nor the other sinks.

    recovers: whether the sink can be written to after an error; otherwise it is dropped.
    is_complete: whether the run has done all its steps; set before `close`.
    """

    recovers = False
    is_complete = True

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write {metric: value} of a step; a value is None when it is missing or not finite.
        Metrics of a validation have names that begin with "eval_".
        """
        raise NotImplementedError

    def advance(self, step: int, share: float, seconds_left: float | None) -> None:
        """Show the progress after a call of steps, without delay; most calls are followed by no
        `write`. share: of the run that is done. seconds_left: None = not known.
        """

    def cut(self, step: int) -> None:
        """Drop the lines of steps after `step` where the sink can do so; called at a rollback."""

    def close(self) -> None:
        """Write the lines that are not written yet, and close the sink. Called once, after all
        other methods.
        """


class JsonLines(Sink):
    """The file metrics.jsonl, with flushed lines {"step": step, name: value, ...}. A value that is
    missing or not finite is null.

    A line is written completely or not at all: on a full disk, lines wait in memory and are written
    with the next one.
    """

    recovers = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.waiting = b""
        self.file = open(path, "ab", buffering=0)

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """Append a line, after the lines that an error has kept in memory. Raises OSError when they
        cannot be written now.
        """
        self.waiting += (json.dumps({"step": step, **values}, allow_nan=False) + "\n").encode()
        self._flush()

    def cut(self, step: int) -> None:
        """Drop the lines of steps after `step`, in the file and in memory. Raises OSError when the
        disk has no space to rewrite the file, which then keeps its lines.
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

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self.file.close()

    def _flush(self) -> None:
        size = self.file.seek(0, os.SEEK_END)
        done = 0
        try:
            while done < len(self.waiting):
                done += self.file.write(self.waiting[done:])
        except OSError:
            self.file.truncate(size)
            raise
        self.waiting = b""
