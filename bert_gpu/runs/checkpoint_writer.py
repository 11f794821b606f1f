"""Writes checkpoints in a thread while training continues; a failed save is always reported."""

import concurrent.futures
import dataclasses
import types
from collections.abc import Callable, Mapping

import numpy as np

from bert_gpu.base import console
from bert_gpu.base.errors import TrainingStopped
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress


class SaveFailed(TrainingStopped):
    """Error for a checkpoint that could not be written. The message names the checkpoint, the
    reason, and the newest good checkpoint.
    """

    is_reported = True  # the writer has already printed the message


class CheckpointWriter:
    """Writes checkpoints, one at a time, in a thread while training continues.

    A failed save (full disk, permission, limit) is reported once and leaves earlier checkpoints
    unchanged; training continues, and the next save tries again. `close` raises SaveFailed when the
    last save failed: a run must not seem saved when it is not.

    Args:
      keep: how many of the newest checkpoints stay.
      warn: called with the text of a failure.
    """

    def __init__(
        self, folder: RunFolder, keep: int, warn: Callable[[str], None] = console.warn
    ) -> None:
        self.folder = folder
        self.keep = keep
        self.warn = warn
        self.thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending: concurrent.futures.Future[SaveFailed | None] | None = None
        self.failure: SaveFailed | None = None

    @property
    def own(self) -> "CheckpointWriter":
        """This writer itself; a shared_folder.SharedWriter's `own` is the CheckpointWriter of one
        worker.
        """
        return self

    def save(self, progress: Progress, values: Mapping[str, np.ndarray]) -> None:
        """Wait for the previous checkpoint, then begin to write this one.

        progress is copied. values, {name: array}, are not copied, so they must not change until
        they are written.
        """
        self.wait()
        self.pending = self.thread.submit(self._write, dataclasses.replace(progress), values)

    def wait(self) -> None:
        """Return when the checkpoint begun last is written. Call it before fetching the values of
        the next checkpoint, so that memory holds one copy of the values, not two.
        """
        pending = self.pending
        self.pending = None
        if pending is not None:
            self.failure = pending.result()

    def close(self) -> None:
        """Wait for the checkpoint begun last, then end the thread. Raise SaveFailed when the last
        save failed.
        """
        try:
            self.wait()
        finally:
            self.thread.shutdown()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> "CheckpointWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        try:
            self.close()
        except SaveFailed:
            # another exception matters more; the failed save has been reported
            if kind is None:
                raise

    def _write(self, progress: Progress, values: Mapping[str, np.ndarray]) -> SaveFailed | None:
        """Write a checkpoint. Return None, or a SaveFailed if it cannot be written; the error is
        returned, not raised, because its traceback would keep the values in memory.
        """
        try:
            self.folder.save(progress, values, self.keep)
            return None
        except OSError as error:
            reason = error.strerror or str(error)
        steps = [step for step in self.folder.steps() if step != progress.step]
        newest = (
            f"the newest good one is step {steps[-1]}" if steps else "there is no other one yet"
        )
        text = f"checkpoint of step {progress.step} could not be saved: {reason}; {newest}"
        self.warn(text)
        return SaveFailed(text)
