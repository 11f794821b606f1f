"""TFRecord files as one array of records: written atomically with an index, read at random with
checksums.

A TFRecord is length (8 bytes), checksum of the length (4), the record, checksum of the record (4);
checksums are CRC-32C, masked (tensorflow/core/lib/io/record_writer.h). A shard gets its name
when it is complete: until then it is .NAME.PID.partial, which no *.tfrecord* glob matches. The
index beside it (int64 offsets) lets a reader seek; a file without one is scanned once. A
gzip-compressed shard has the same name, as with TensorFlow's writers, and its offsets are those of
the unpacked content.
"""

import contextlib
import functools
import gzip
import mmap
import os
import shutil
import struct
import tempfile
import zlib

import google_crc32c
import numpy as np
import tensorflow as tf

from bert_gpu.settings import UserError

HEADER, FOOTER = 12, 4
GZIP_LEVEL = 6  # as in TensorFlow's writers


def masked_crc(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@functools.lru_cache(1 << 14)
def header(length):
    """The bytes before a record of `length` bytes."""
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", masked_crc(packed))


def shard_path(prefix, index, num_shards, split=""):
    """DIR/NAME-00003-of-00008.tfrecord, or DIR/NAME-validation-00000-of-00001.tfrecord with
    split='validation'.
    """
    middle = f"-{split}" if split else ""
    return f"{prefix}{middle}-{index:05d}-of-{num_shards:05d}.tfrecord"


def index_path(path):
    return path.removesuffix(".tfrecord") + ".index"


class ShardWriter:
    """Writes one shard. It gets its name when the `with` block succeeds and is removed otherwise.

    num_bytes: size on disk without the index, known after the block. compress: gzip; its header has
    no time and no path, so that the bytes depend on the content alone.
    """

    def __init__(self, path, compress=False):
        self.path, self.compress = path, compress
        self.partial = os.path.join(
            os.path.dirname(path),
            f".{os.path.basename(path).removesuffix('.tfrecord')}.{os.getpid()}.partial",
        )
        self.sizes = []
        self.num_bytes = 0

    def __enter__(self):
        self.file = self.sink = tf.io.gfile.GFile(self.partial, "wb")
        if self.compress:
            self.sink = gzip.GzipFile("", "wb", GZIP_LEVEL, self.file, mtime=0)
        self.sink.write(b"")  # creates the file even when there is no record
        return self

    def write(self, buffer, splits):
        """Appends the records buffer[splits[i] : splits[i + 1]] of a uint8 array."""
        data, chunks = buffer.tobytes(), []
        for start, end in zip(splits[:-1].tolist(), splits[1:].tolist(), strict=True):
            record = data[start:end]
            chunks += (header(end - start), record, struct.pack("<I", masked_crc(record)))
        with self._explained():
            self.sink.write(b"".join(chunks))
        self.sizes.append(np.diff(splits) + HEADER + FOOTER)

    def __exit__(self, error, *_):
        if error is not None:
            self._remove()
            return
        try:
            with self._explained():
                self._finish()
        except UserError:
            self._remove()
            raise

    def _finish(self):
        if self.compress:
            self.sink.close()  # writes the end of the archive; the file stays open
        self.num_bytes = self.file.tell()
        self.file.close()
        offsets = np.concatenate(
            [[0], np.cumsum(np.concatenate(self.sizes) if self.sizes else [])]
        ).astype("<i8")
        with tf.io.gfile.GFile(self.partial + ".index", "wb") as file:
            file.write(offsets.tobytes())
        tf.io.gfile.rename(self.partial + ".index", index_path(self.path), overwrite=True)
        tf.io.gfile.rename(self.partial, self.path, overwrite=True)

    def _remove(self):
        # closing fails too when writing failed
        with contextlib.suppress(tf.errors.OpError):
            self.file.close()
        tf.io.gfile.remove(self.partial)

    @contextlib.contextmanager
    def _explained(self):
        """Turns a full disk and the like into a UserError."""
        try:
            yield
        except tf.errors.OpError as error:
            what = " ".join(error.message.split())[-80:]
            raise UserError(
                f"{self.path}: cannot be written ({what}); "
                "make room, then run the same command again to resume"
            ) from error


def open_unpacked(path):
    """An open binary file with a descriptor; a gzip-compressed file is unpacked first."""
    file = open(path, "rb")
    if file.read(2) != b"\x1f\x8b":
        return file
    file.close()
    unpacked = tempfile.TemporaryFile()
    try:
        with gzip.open(path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked, 1 << 24)
        unpacked.flush()
    except BaseException:
        unpacked.close()
        raise
    return unpacked


class RecordFile:
    """One TFRecord file, read at random. A gzip-compressed one is unpacked to a
    temporary file first.

    With `skip`, a function that gets a message, a truncated file keeps the records before the cut,
    and a corrupt record reads as None; without it both raise UserError.
    """

    def __init__(self, path, skip=None):
        self.path, self.skip = path, skip
        try:
            with open_unpacked(path) as file:
                size = os.fstat(file.fileno()).st_size
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(
                f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})"
            ) from error
        if size == 0 and not os.path.exists(index_path(path)):
            raise UserError(
                f"{path}: the file is empty; write it again with create_pretraining_data.py"
            )
        self.offsets = self._index(size)

    def __len__(self):
        return len(self.offsets) - 1

    def fingerprint(self):
        """CRC-32C of the file's size, beginning and end, to notice that it has changed."""
        return masked_crc(
            struct.pack("<Q", len(self.data)) + self.data[: 1 << 16] + self.data[-(1 << 16) :]
        )

    def _index(self, size):
        sidecar = index_path(self.path)
        if sidecar != self.path and os.path.exists(sidecar):
            offsets = np.fromfile(sidecar, "<i8")
            is_sound = len(offsets) and offsets[0] == 0 and offsets[-1] == size
            if is_sound and (np.diff(offsets) >= HEADER + FOOTER).all():
                return offsets
        return self._scan(size)

    def _scan(self, size):
        """Offsets of all records of a file without an index, from the length of each record."""
        offsets, offset, problem = [0], 0, None
        while offset < size and problem is None:
            header = self.data[offset : offset + HEADER]
            length, crc = struct.unpack("<QI", header) if len(header) == HEADER else (size, None)
            if crc is not None and crc != masked_crc(header[:8]):
                problem = "not a TFRecord, or a corrupt length"
            elif offset + HEADER + length + FOOTER > size:
                problem = "the file ends inside a record"
            else:
                offset += HEADER + length + FOOTER
                offsets.append(offset)
        if problem is not None and (self.skip is None or len(offsets) == 1):
            raise UserError(self._broken(offset, problem))
        if problem is not None:
            self.skip(
                f"{self.path}: {problem} (byte {offset}); "
                f"the {len(offsets) - 1} records before it are used"
            )
        return np.array(offsets, np.int64)

    def _broken(self, offset, what):
        return (
            f"{self.path}: {what} (byte {offset}); write the file again "
            "with create_pretraining_data.py, or give --skip_corrupt_records"
        )

    def read(self, index):
        """The bytes of one record. UserError names file and offset when its checksum is wrong."""
        start, end = int(self.offsets[index]), int(self.offsets[index + 1])
        record = self.data[start + HEADER : end - FOOTER]
        (length,) = struct.unpack("<Q", self.data[start : start + 8])
        (crc,) = struct.unpack("<I", self.data[end - FOOTER : end])
        if length == len(record) and crc == masked_crc(record):
            return record
        if self.skip is None:
            raise UserError(self._broken(start, f"record {index} is corrupt"))
        return None


class RecordSet:
    """The records of several files as one array, in the order of the files."""

    def __init__(self, paths, skip=None):
        self.files = [RecordFile(path, skip) for path in paths]
        self.starts = np.concatenate([[0], np.cumsum([len(file) for file in self.files])]).astype(
            np.int64
        )

    def __len__(self):
        return int(self.starts[-1])

    def read(self, indices):
        """The bytes of the records with these indices (N,), in that order."""
        which = np.searchsorted(self.starts, indices, side="right") - 1
        local = np.asarray(indices) - self.starts[which]
        return [
            self.files[file].read(index)
            for file, index in zip(which.tolist(), local.tolist(), strict=True)
        ]

    def sizes(self):
        """Size of each record in bytes (N,), which grows with its number of tokens."""
        return np.concatenate([np.diff(file.offsets) for file in self.files])

    def locate(self, index):
        """'FILE, record K' of a record, for messages."""
        which = int(np.searchsorted(self.starts, index, side="right") - 1)
        return f"{self.files[which].path}, record {int(index - self.starts[which])}"
