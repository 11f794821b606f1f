"""What a sink of a run's metrics is, and the one that every run has: metrics.jsonl. monitor.py has
the table of all sinks.
"""

import json
import os

from bert_gpu.runs.metrics import cut_lines


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
