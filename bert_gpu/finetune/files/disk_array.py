"""An array that grows beyond memory: what is large goes to a file without a name, mapped back."""

import os
import tempfile

import numpy as np

IN_MEMORY_BYTES = 256 << 20


class DiskArray:
    """Collects int32 arrays (n,) and gives them as one (T,).

    Args of the constructor:
      folder: on whose disk the file is when they are more than `in_memory_bytes`, by default
        IN_MEMORY_BYTES; it, or its nearest parent that exists. The file has no name and goes with
        the process.
    """

    def __init__(self, folder, in_memory_bytes=None):
        self.folder = os.path.abspath(folder)
        self.in_memory_bytes = in_memory_bytes or IN_MEMORY_BYTES
        self.parts, self.num_bytes, self.file = [], 0, None
        while not os.path.isdir(self.folder):
            self.folder = os.path.dirname(self.folder)

    def append(self, array):
        """OSError when the disk is full."""
        self.parts.append(np.ascontiguousarray(array, np.int32))
        self.num_bytes += array.nbytes
        if self.file is None and self.num_bytes > self.in_memory_bytes:
            self.file = tempfile.TemporaryFile(dir=self.folder)
        if self.file is not None:
            for part in self.parts:
                self.file.write(part.data)
            self.parts = []

    def finish(self):
        """The array: in memory, or a read-only map of the file."""
        if self.file is None:
            return np.concatenate(self.parts or [np.zeros(0, np.int32)])
        with self.file:
            self.file.flush()
            return np.memmap(self.file, np.int32, "r")
