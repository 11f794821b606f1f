"""Files that are written in pieces and get their name when they are complete; among them array
files (.npy) whose number of rows is not known in advance.

Until then a file is named .NAME.PID.partial. If its process is killed, the next writer of the same
file removes it. NumPy's header leaves room for the number of rows, which is written last.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file


class PartialFile:
    """A file that gets its name when the `with` block ends, and is removed after an error. Its
    folder is created.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        folder, name = os.path.split(path)
        with self._naming_output():
            os.makedirs(folder or ".", exist_ok=True)
            remove_leftovers(folder or ".", name)
        self.context = atomic_file(path, "wb")

    def append(self, data: bytes) -> None:
        """Write bytes at the end of the file."""
        with self._naming_output():
            self.file.write(data)

    @contextlib.contextmanager
    def _naming_output(self) -> Iterator[None]:
        """Turn an OSError into a UserError that names --output."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot be written ({error.strerror})",
                "make room, change permissions, or name another file",
                setting="output",
                value=self.path,
            ) from None

    def __enter__(self) -> "PartialFile":
        with self._naming_output():
            self.file = self.context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with self._naming_output():
            self.context.__exit__(*error)


def remove_leftovers(folder: str, name: str) -> None:
    """Remove the partial files of the file `name` in a folder, if the processes that wrote them
    have ended.
    """
    for file in os.listdir(folder):
        match = re.fullmatch(rf"\.{re.escape(name)}\.(\d{{1,9}})\.partial", file)
        if match and not psutil.pid_exists(int(match[1])):
            with contextlib.suppress(OSError):
                os.remove(os.path.join(folder, file))


class NpyWriter(PartialFile):
    """An .npy file to which rows of one shape and type are written."""

    def __init__(
        self, path: str, row_shape: Sequence[int] = (), dtype: npt.DTypeLike = np.float32
    ) -> None:
        super().__init__(path)
        self.row_shape = tuple(row_shape)
        self.dtype = np.dtype(dtype)
        self.num_rows = 0
        self.row_bytes = math.prod(self.row_shape) * self.dtype.itemsize

    def __enter__(self) -> "NpyWriter":
        super().__enter__()
        with self._naming_output():
            self._write_header()
            self.start = self.file.tell()
        return self

    def write(self, rows: np.ndarray, index: int | None = None) -> None:
        """Write rows (n, ...), the first as row `index`; None = after the last row."""
        index = self.num_rows if index is None else index
        data = np.ascontiguousarray(rows, self.dtype)
        assert data.shape[1:] == self.row_shape, (data.shape, self.row_shape)
        with self._naming_output():
            self.file.seek(self.start + index * self.row_bytes)
            self.file.write(data)
        # int, because a NumPy integer would spoil the header
        self.num_rows = max(self.num_rows, int(index) + len(data))

    def finish(self) -> None:
        """Write the number of rows, and all that is buffered, to the disk."""
        with self._naming_output():
            self.file.seek(0)
            self._write_header()
            assert self.file.tell() == self.start
            self.file.flush()
            os.fsync(self.file.fileno())

    def _write_header(self) -> None:
        header = dict(
            descr=np.lib.format.dtype_to_descr(self.dtype),
            fortran_order=False,
            shape=(self.num_rows, *self.row_shape),
        )
        np.lib.format.write_array_header_1_0(self.file, header)
