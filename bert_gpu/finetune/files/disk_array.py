"""An array that grows beyond memory: what is large goes to a file without a name, mapped back."""

import tempfile

import numpy as np

from bert_gpu.base.files import existing_parent

IN_MEMORY_BYTES = 256 << 20


class DiskArray:
    """Collects int32 arrays (n,) and gives them as one (T,).

    Args of the constructor:
      folder: on whose disk the file is when they are more than `in_memory_bytes`, by default
        IN_MEMORY_BYTES; it, or its nearest parent that exists. The file has no name and goes with
        the process.
    """

    def __init__(self, folder, in_memory_bytes=None):
        self.file = tempfile.SpooledTemporaryFile(
            in_memory_bytes or IN_MEMORY_BYTES, dir=existing_parent(folder)
        )

    def append(self, array):
        """OSError when the disk is full."""
        self.file.write(np.ascontiguousarray(array, np.int32).data)

    def finish(self):
        """The array: in memory, or a read-only map of the file."""
        with self.file:
            if self.file.name is not None:  # it outgrew memory
                self.file.flush()
                return np.memmap(self.file, np.int32, "r")
            self.file.seek(0)
            return np.frombuffer(self.file.read(), np.int32)
