"""Writes checkpoints beside the training, in a thread; a failed one is reported, never hidden."""

import concurrent.futures
import dataclasses

from bert_gpu.base import console
from bert_gpu.base.errors import TrainingStopped


class SaveFailed(TrainingStopped):
    """A checkpoint could not be written. The message says which, why, and which one is the
    newest good one.
    """

    is_reported = True  # by the writer


class CheckpointWriter:
    """Writes checkpoints beside the training, one at a time, in a thread.

    A failed save (full disk, permission, limit) is reported once and leaves earlier checkpoints
    alone; training continues, and the next save tries again. `close` raises SaveFailed when the
    last save failed: a run must not seem saved when it is not.

    Args:
      folder: RunFolder. keep: how many of the newest checkpoints stay. warn: takes the text of a
        failure.
    """

    def __init__(self, folder, keep, warn=console.warn):
        self.folder, self.keep, self.warn = folder, keep, warn
        self.thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending = self.failure = None

    @property
    def own(self):
        """The writer of this worker alone, as of shared_folder.SharedWriter."""
        return self

    def save(self, progress, values):
        """Waits for the previous checkpoint, then begins to write this one.

        Args:
          progress: Progress, copied. values: {name: NumPy array}, not copied: they must stay as
            they are until it is written.
        """
        self.wait()
        self.pending = self.thread.submit(self._write, dataclasses.replace(progress), values)

    def wait(self):
        """Returns when everything is written. Call it before fetching the next values, so that
        memory holds one copy, not two.
        """
        pending, self.pending = self.pending, None
        if pending is not None:
            self.failure = pending.result()

    def close(self):
        """Waits, then ends the thread. Raises SaveFailed when the last save failed."""
        try:
            self.wait()
        finally:
            self.thread.shutdown()
        if self.failure is not None:
            raise self.failure

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        try:
            self.close()
        except SaveFailed:
            # another exception matters more; the failed save has been reported
            if kind is None:
                raise

    def _write(self, progress, values):
        """Returns None or a SaveFailed, which it does not raise: a traceback would keep the values
        alive.
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
