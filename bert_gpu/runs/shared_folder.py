"""A run's folder that several workers use: worker 0 alone reads and writes it, and all workers get
the result, or the error.

So the folder may be on a local disk of worker 0, and workers never decide differently because they
read it at different times.
"""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_gpu.devices.workers import ALONE, Alone, Workers
from bert_gpu.runs.checkpoint_writer import CheckpointWriter, SaveFailed
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress


def open_folder(path: str, workers: Alone | Workers = ALONE) -> "RunFolder | SharedFolder":
    """Return the run's folder at `path`: a RunFolder for one worker, a SharedFolder for several."""
    folder = RunFolder(path)
    return folder if workers is ALONE else SharedFolder(folder, workers)


def open_writer(
    folder: "RunFolder | SharedFolder",
    keep: int,
    warn: Callable[[str], None],
    workers: Alone | Workers = ALONE,
) -> "CheckpointWriter | SharedWriter":
    """Return the checkpoint writer of a folder that `open_folder` returned; keep, warn: as for
    CheckpointWriter.
    """
    if isinstance(folder, SharedFolder):
        return SharedWriter(CheckpointWriter(folder.own, keep, warn), workers)
    return CheckpointWriter(folder, keep, warn)


class SharedFolder:
    """A run's folder for several workers, with the methods of RunFolder. Worker 0 carries out each
    call and all workers get its result; all must call the same methods in the same order.

    own: the RunFolder, which only worker 0 may use.
    """

    def __init__(self, folder: RunFolder, workers: Alone | Workers) -> None:
        self.own = folder
        self.workers = workers

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.own, name)
        return functools.partial(self.workers.from_chief, value) if callable(value) else value

    def newest_whole(
        self, warn: Callable[[str], None], last: int | None = None
    ) -> tuple[Progress, dict[str, np.ndarray]]:
        return self.workers.from_chief(self.own.newest_whole, warn, last)

    def restore(self, step: int) -> dict[str, np.ndarray]:
        return self.workers.from_chief(self.own.restore, step)

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            self.workers.on_chief(lambda: stack.enter_context(self.own.reserved()))
            yield


class SharedWriter:
    """A checkpoint writer for several workers, with the methods of CheckpointWriter; an error on
    worker 0 is raised on all workers.

    own: the CheckpointWriter, for worker 0 alone; unlike the SharedWriter, it need not be called on
    all workers at the same time.
    """

    def __init__(self, writer: CheckpointWriter, workers: Alone | Workers) -> None:
        self.own = writer
        self.workers = workers

    def save(self, progress: Progress, values: Mapping[str, np.ndarray] | None) -> None:
        """Save as CheckpointWriter does. values: None on workers other than 0."""
        self.wait()
        if self.workers.is_chief:
            self.own.save(progress, values)  # type: ignore[arg-type]  # worker 0 has values

    def wait(self) -> None:
        self.workers.on_chief(self.own.wait)

    def __enter__(self) -> "SharedWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> None:
        if kind is None:
            self.workers.on_chief(self.own.close)
        else:
            with contextlib.suppress(SaveFailed):  # the error that ends the run matters more
                self.own.close()
