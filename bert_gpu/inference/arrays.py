"""Files that are written piece by piece and appear when they are whole; array files (.npy) among
them, whose number of rows need not be known before.

A file has a hidden name, .NAME.PID.partial, until then; what a killed process has left goes when
the same file is written again. NumPy's header leaves room for the number
of rows, which is written last.
"""

import contextlib
import math
import os
import re

import numpy as np
import psutil

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file


class PartialFile:
    """A file of an atomic_file, whose folder is made. As a context it gives the file its name, or
    removes it after an error.
    """

    def __init__(self, path: str):
        self.path = path
        folder, name = os.path.split(path)
        with self._blaming():
            os.makedirs(folder or ".", exist_ok=True)
            remove_leftovers(folder or ".", name)
        self.whole = atomic_file(path, "wb")

    def append(self, data: bytes) -> None:
        """Write bytes behind the others."""
        with self._blaming():
            self.file.write(data)

    @contextlib.contextmanager
    def _blaming(self):
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot be written ({error.strerror})",
                "make room, change permissions, or name another file",
                setting="output",
                value=self.path,
            ) from None

    def __enter__(self):
        with self._blaming():
            self.file = self.whole.__enter__()
        return self

    def __exit__(self, *error):
        with self._blaming():
            self.whole.__exit__(*error)


def remove_leftovers(folder, name):
    """Removes the partial files of a name whose processes have ended."""
    for left in os.listdir(folder):
        match = re.fullmatch(rf"\.{re.escape(name)}\.(\d{{1,9}})\.partial", left)
        if match and not psutil.pid_exists(int(match[1])):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, left))


class NpyWriter(PartialFile):
    """An .npy file of rows of one shape and type."""

    def __init__(self, path, row_shape=(), dtype=np.float32):
        super().__init__(path)
        self.row_shape, self.dtype, self.num_rows = tuple(row_shape), np.dtype(dtype), 0
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize

    def __enter__(self):
        super().__enter__()
        with self._blaming():
            self._write_header()
            self.start = self.file.tell()
        return self

    def write(self, rows, index=None):
        """Writes rows (n, ...) at a row's index; by default behind the last."""
        index = self.num_rows if index is None else index
        data = np.ascontiguousarray(rows, self.dtype)
        assert data.shape[1:] == self.row_shape, (data.shape, self.row_shape)
        with self._blaming():
            self.file.seek(self.start + index * self.row_bytes)
            self.file.write(data)
        self.num_rows = max(self.num_rows, int(index) + len(data))  # NumPy's would spoil the header

    def finish(self):
        """Writes the number of rows, and all that is buffered, to the disk."""
        with self._blaming():
            self.file.seek(0)
            self._write_header()
            assert self.file.tell() == self.start
            self.file.flush()
            os.fsync(self.file.fileno())

    def _write_header(self):
        header = dict(
            descr=np.lib.format.dtype_to_descr(self.dtype),
            fortran_order=False,
            shape=(self.num_rows, *self.row_shape),
        )
        np.lib.format.write_array_header_1_0(self.file, header)
