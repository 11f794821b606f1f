"""A run's folder as several workers see it: worker 0 alone reads and writes it, and all of them get
the answer, or the error.

So the folder may be on a local disk of worker 0, and workers never decide differently because they
looked at it at different times.
"""

import contextlib
import functools

from bert_gpu.devices.workers import ALONE
from bert_gpu.runs.checkpoint_writer import CheckpointWriter, SaveFailed
from bert_gpu.runs.folder import RunFolder


def open_folder(path, workers=ALONE):
    """The RunFolder of a path, or that which Workers share."""
    folder = RunFolder(path)
    return folder if workers is ALONE else SharedFolder(folder, workers)


def open_writer(folder, keep, warn, workers=ALONE):
    """The CheckpointWriter of a folder of `open_folder`; arguments are those of its constructor."""
    if workers is ALONE:
        return CheckpointWriter(folder, keep, warn)
    return SharedWriter(CheckpointWriter(folder.own, keep, warn), workers)


class SharedFolder:
    """Has what a RunFolder has; all workers call the same methods in the same order.

    own: the RunFolder, for worker 0 alone.
    """

    def __init__(self, folder, workers):
        self.own, self.workers = folder, workers

    def __getattr__(self, name):
        found = getattr(self.own, name)
        return functools.partial(self.workers.from_chief, found) if callable(found) else found

    def newest_whole(self, warn, last=None):
        return self.workers.arrays_from_chief(self.own.newest_whole, warn, last)

    def restore(self, step):
        return self.workers.arrays_from_chief(self.own.restore, step)

    @contextlib.contextmanager
    def reserved(self):
        with contextlib.ExitStack() as held:
            self.workers.on_chief(lambda: held.enter_context(self.own.reserved()))
            yield


class SharedWriter:
    """Has the methods of a CheckpointWriter; what fails on worker 0 fails on all workers.

    own: the CheckpointWriter, for worker 0 alone, where the others may be elsewhere.
    """

    def __init__(self, writer, workers):
        self.own, self.workers = writer, workers

    def save(self, progress, values):
        """As CheckpointWriter.save; values: None on the other workers."""
        self.wait()
        if self.workers.is_chief:
            self.own.save(progress, values)

    def wait(self):
        self.workers.on_chief(self.own.wait)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None:
            self.workers.on_chief(self.own.close)
        else:
            with contextlib.suppress(SaveFailed):  # what ends the run matters more
                self.own.close()
