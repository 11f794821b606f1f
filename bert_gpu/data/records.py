"""TFRecord files as one array of records: written atomically with an index, read at random with
checksums.

A TFRecord is length (8 bytes), checksum of the length (4), the record, checksum of the record (4);
checksums are CRC-32C, masked (tensorflow/core/lib/io/record_writer.h). A shard gets its name when
it is complete: until then it is .NAME.HOST.PID.partial, which no *.tfrecord* glob matches. The
index beside it holds the offset and the checksum of each record, so that a reader can seek, and
notices a record that was replaced by another whole one; a file without an index is scanned once. A
gzip-compressed shard has the same name, as with TensorFlow's writers, and its offsets are those of
the unpacked content.

Records are read by pread, not through a memory map: a file that becomes shorter while it is mapped
kills the process by SIGBUS.
"""

import contextlib
import functools
import gzip
import itertools
import os
import resource
import socket
import struct
import tempfile
import types
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, within_free_space

HEADER, FOOTER = 12, 4
NO_RECORDS = "not a TFRecord file, or damaged at its beginning"
# An index: these bytes, offsets (N + 1) int64, checksums (N) uint32, and the checksum of all that.
INDEX_MAGIC = b"bertgpu1"
SPARE_FILES = 128  # file descriptors that a process needs besides those of its shards


def masked_crc(data: bytes) -> int:
    return masked(google_crc32c.value(data))


def masked(crc: Any) -> Any:
    """Return a CRC-32C, an integer or an array of uint64, as TFRecords store it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(1 << 14)
def header(length: int) -> bytes:
    """Return the header before a record of `length` bytes: the length and the checksum of the
    length.
    """
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc(packed))


def shard_path(prefix: str, index: int, num_shards: int, split: str = "") -> str:
    """Return DIR/NAME-00003-of-00008.tfrecord, or DIR/NAME-validation-00000-of-00001.tfrecord with
    split="validation". prefix: DIR/NAME.
    """
    middle = f"-{split}" if split else ""
    return f"{prefix}{middle}-{index:05d}-of-{num_shards:05d}.tfrecord"


def index_path(path: str) -> str:
    return path.removesuffix(".tfrecord") + ".index"


class ShardWriter:
    """Writes one shard. The file gets its name when the `with` block succeeds and is removed
    otherwise.

    num_bytes: size on disk without the index, set when the block ends.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        name = os.path.basename(path).removesuffix(".tfrecord")
        # nodes of a cluster share folders and may have processes with the same id
        writer = f"{socket.gethostname()}.{os.getpid()}"
        self.partial = os.path.join(os.path.dirname(path), f".{name}.{writer}.partial")
        self.sizes: list[np.ndarray] = []
        self.crcs: list[np.ndarray] = []
        self.num_bytes = 0

    def __enter__(self) -> "ShardWriter":
        self.shard = contextlib.ExitStack()
        with self._explained():
            self.file = self.shard.enter_context(atomic_file(self.path, "wb", self.partial))
        return self

    def write(self, buffer: np.ndarray, splits: np.ndarray) -> None:
        """Append the records buffer[splits[i] : splits[i + 1]] of a uint8 array."""
        data = buffer.tobytes()
        sizes = np.diff(splits)
        records = [data[start:end] for start, end in itertools.pairwise(splits.tolist())]
        crcs = masked(np.array([*map(google_crc32c.value, records)], np.uint64)).astype("<u4")
        footers = (footer for (footer,) in struct.iter_unpack("4s", crcs.tobytes()))
        chunks = zip(map(header, sizes.tolist()), records, footers, strict=True)
        with self._explained():
            self.file.write(b"".join(itertools.chain.from_iterable(chunks)))
        self.crcs.append(crcs)
        self.sizes.append(sizes + HEADER + FOOTER)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool | None:
        if error is not None:
            return self.shard.__exit__(kind, error, traceback)
        with self._explained(), self.shard:
            self._finish()
        return None

    def _finish(self) -> None:
        self.num_bytes = self.file.tell()
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([[], *self.sizes]))])
        crcs = np.concatenate([[], *self.crcs])
        with atomic_file(index_path(self.path), "wb", self.partial + ".index") as file:
            file.write(pack_index(offsets, crcs))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn an OSError, such as a full disk, into a UserError."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot be written ({error.strerror})",
                "make room, then repeat the same command",
                where=self.path,
            ) from error


def open_unpacked(path: str) -> BinaryIO:
    """Return the file opened for reading bytes; a gzip-compressed file is first unpacked to a
    temporary file, which is returned.
    """
    file = open(path, "rb")
    if file.read(2) != b"\x1f\x8b":
        return file
    file.close()
    unpacked = tempfile.TemporaryFile()
    try:
        with gzip.open(path, "rb") as packed:
            pieces = iter(functools.partial(packed.read, 1 << 22), b"")
            unpacked.writelines(within_free_space(pieces, tempfile.gettempdir()))
        unpacked.flush()
    except BaseException:
        unpacked.close()
        raise
    return unpacked


def pack_index(offsets: np.ndarray, crcs: np.ndarray) -> bytes:
    """Return the bytes of an index file. offsets: (N + 1,), of each record and of the end of the
    file. crcs: (N,), masked checksums of the records.
    """
    content = INDEX_MAGIC + offsets.astype("<i8").tobytes() + crcs.astype("<u4").tobytes()
    return content + struct.pack("<I", masked_crc(content))


def read_index(path: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (offsets (N + 1,), crcs (N,)) of an index file, as in `pack_index`; None for a file in
    another format.

    Raise UserError when the checksum of the index is wrong.
    """
    with open(path, "rb") as file:
        content = file.read()
    if not content.startswith(INDEX_MAGIC):
        return None
    num_records, rest = divmod(len(content) - len(INDEX_MAGIC) - 8 - 4, 8 + 4)
    if rest or num_records < 0 or content[-4:] != struct.pack("<I", masked_crc(content[:-4])):
        raise UserError(
            "is corrupt",
            "delete it, and the records are read without it, or build the data again",
            where=path,
        )
    offsets = np.frombuffer(content, "<i8", num_records + 1, len(INDEX_MAGIC))
    return offsets, np.frombuffer(content[:-4], "<u4", offset=len(INDEX_MAGIC) + offsets.nbytes)


class RecordFile:
    """One TFRecord file, whose records can be read in any order. A gzip-compressed one is unpacked
    to a temporary file first.

    offsets: (N + 1,), of each record and of the end of the file.
    crcs: (N,), the masked checksums that the records must have, from the index or, without an
    index, as they were when the file was opened.
    A truncated file and a corrupt record raise UserError.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open_unpacked(path) as file:
                self.size = os.fstat(file.fileno()).st_size
                self.descriptor = os.dup(file.fileno())
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"cannot be read ({getattr(error, 'strerror', None) or error})", where=path
            ) from error
        weakref.finalize(self, os.close, self.descriptor)
        if self.size == 0 and not os.path.exists(index_path(path)):
            raise UserError(
                "the file is empty", "write it again with create_pretraining_data.py", where=path
            )
        self.offsets, self.crcs = self._index()

    def __len__(self) -> int:
        return len(self.crcs)

    def fingerprint(self) -> int:
        """Return the CRC-32C of the offsets and checksums of all records, which identifies the
        content.
        """
        return google_crc32c.extend(
            google_crc32c.value(self.offsets.astype("<i8").tobytes()),
            self.crcs.astype("<u4").tobytes(),
        )

    def _bytes(self, start: int, size: int) -> bytes:
        """Return `size` bytes of the file from `start` on; fewer if the file ends before."""
        try:
            return os.pread(self.descriptor, size, start)
        except OSError as error:
            raise UserError(f"cannot be read ({error.strerror})", where=self.path) from error

    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        sidecar = index_path(self.path)
        has_index = sidecar != self.path and os.path.exists(sidecar)
        index = read_index(sidecar) if has_index else None
        if index is None or index[0][-1] > self.size:  # no index, or a truncated file
            return self._scan()
        if index[0][-1] < self.size:
            raise UserError(
                f"holds other records than {os.path.basename(sidecar)} says",
                "build the data again",
                where=self.path,
            )
        return index

    def _scan(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (offsets, crcs) of all records of a file without an index, from the length before
        each record.
        """
        offsets = [0]
        crcs: list[bytes] = []
        offset = 0
        problem = None
        header = self._bytes(0, HEADER)
        while offset < self.size and problem is None:
            length, crc = (
                struct.unpack("<QI", header) if len(header) == HEADER else (self.size, None)
            )
            if crc is not None and crc != masked_crc(header[:8]):
                problem = "a corrupt length" if offset else NO_RECORDS
            elif offset + HEADER + length + FOOTER > self.size:
                problem = "the file ends inside a record"
            else:
                offset += HEADER + length + FOOTER
                around = self._bytes(offset - FOOTER, FOOTER + HEADER)
                header = around[FOOTER:]
                offsets.append(offset)
                crcs.append(around[:FOOTER])
        if problem is not None:
            raise UserError(self._broken(offset, problem))
        return np.array(offsets, np.int64), np.frombuffer(b"".join(crcs), "<u4")

    def _broken(self, offset: int, problem: str) -> str:
        if problem is NO_RECORDS:
            return f"{self.path}: {problem}; make TFRecords of text with create_pretraining_data.py"
        return (
            f"{self.path}: {problem} (byte {offset}); write the file again "
            "with create_pretraining_data.py"
        )

    def read(self, index: int) -> bytes:
        """Return the bytes of one record. Raise UserError, with file and offset, when its checksum
        is wrong.
        """
        start = int(self.offsets[index])
        end = int(self.offsets[index + 1])
        frame = self._bytes(start, end - start)
        record = frame[HEADER:-FOOTER]
        if (
            len(frame) == end - start
            and int.from_bytes(frame[:8], "little") == len(record)
            and int.from_bytes(frame[-FOOTER:], "little") == masked_crc(record) == self.crcs[index]
        ):
            return record
        if len(frame) < end - start:
            raise UserError(self._broken(start, f"the file now ends inside record {index}"))
        if int.from_bytes(frame[-FOOTER:], "little") == masked_crc(record):
            raise UserError(self._broken(start, f"record {index} is not the one that was written"))
        raise UserError(self._broken(start, f"record {index} is corrupt"))


def allow_files(num_files: int) -> None:
    """Increase this process's limit of open files, as far as allowed, so that it can open num_files
    shards.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < num_files + SPARE_FILES:
        limit = num_files + SPARE_FILES
        limit = limit if hard == resource.RLIM_INFINITY else min(hard, limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


class RecordSet:
    """The records of several files as one array, in the order of the files."""

    def __init__(self, paths: Sequence[str]) -> None:
        allow_files(len(paths))
        self.files = [RecordFile(path) for path in paths]
        self.starts = np.concatenate([[0], np.cumsum([len(file) for file in self.files])]).astype(
            np.int64
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, indices: npt.ArrayLike) -> list[bytes]:
        """Return the records with these indices (N,), in that order; see RecordFile.read."""
        which = np.searchsorted(self.starts, indices, side="right") - 1
        local = np.asarray(indices) - self.starts[which]
        return [
            self.files[file].read(index)
            for file, index in zip(which.tolist(), local.tolist(), strict=True)
        ]

    def sizes(self) -> np.ndarray:
        """Return the size of each record in bytes (N,), which grows with its number of tokens."""
        return np.concatenate([np.diff(file.offsets) for file in self.files])

    def locate(self, index: int) -> str:
        """Return "FILE, record K" of a record, for messages."""
        which = int(np.searchsorted(self.starts, index, side="right") - 1)
        return f"{self.files[which].path}, record {int(index - self.starts[which])}"
