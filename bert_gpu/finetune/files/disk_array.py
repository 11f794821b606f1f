"""An array that may outgrow memory: a large one is written to a file without a name and mapped."""

import tempfile

import numpy as np

from bert_gpu.base.files import existing_parent

IN_MEMORY_BYTES = 256 << 20


class DiskArray:
    """Collects int32 arrays of one axis, and returns them joined to one array (T,).

    Args of the constructor:
      folder: decides the disk of the file that holds the array when it has more than
        `in_memory_bytes`, by default IN_MEMORY_BYTES: the disk of the folder or of its nearest
        parent that exists. The file has no name and is removed with the process.
    """

    def __init__(self, folder: str, in_memory_bytes: int | None = None) -> None:
        self.file = tempfile.SpooledTemporaryFile(
            in_memory_bytes or IN_MEMORY_BYTES, dir=existing_parent(folder)
        )

    def append(self, array: np.ndarray) -> None:
        """Append an array. Raises OSError when the disk is full."""
        self.file.write(np.ascontiguousarray(array, np.int32).data)

    def finish(self) -> np.ndarray:
        """Return the array: in memory, or a read-only map of the file."""
        with self.file:
            if self.file.name is not None:  # the array is on the disk
                self.file.flush()
                return np.memmap(self.file, np.int32, "r")
            self.file.seek(0)
            return np.frombuffer(self.file.read(), np.int32)
