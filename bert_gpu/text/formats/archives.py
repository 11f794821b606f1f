"""Compressed text, tables and standard input -> plain files in a spool folder, because only a plain
file can be read from the middle.

The name of a spool file has a hash of the source's bytes, and the file gets this name when it is
complete: an existing file need not be unpacked again, and a changed source gets another name. The
texts of tables are written as lines, one document each. A line break in a text becomes another
character at which sentences also end, so that the sentences stay the same.
"""

import errno
import hashlib
import os
import typing
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import zstandard

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, publish, within_free_space
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats.encodings import ARCHIVES, ENDINGS, Archive
from bert_gpu.text.formats.plain import LINE_BREAK
from bert_gpu.text.formats.table import FORMATS, Format

READ_BYTES = 1 << 20
# Bytes of a stored file that are read at once: often only its first lines are needed, and packed
# bytes of equal characters may grow 32,000-fold, to 128 MiB.
PIECE_BYTES = 1 << 12
BROKEN = (EOFError, zlib.error, zstandard.ZstdError)  # errors of a broken archive


def is_compressed(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def plain_name(path: str) -> str:
    """Return a path without its ending .gz or .zst, if it has one."""
    return os.path.splitext(path)[0] if is_compressed(path) else path


def needs_spool(path: str, text_format: TextFormat) -> bool:
    return is_compressed(path) or not text_format.row.is_streamed


def packed_bytes(paths: Sequence[str], formats: Sequence[TextFormat]) -> int:
    """Return the total number of bytes that `unpack` will report: the sizes of the files that it
    unpacks.
    """
    return sum(
        tf.io.gfile.stat(path).length
        for path, text_format in zip(paths, formats, strict=True)
        if needs_spool(path, text_format)
    )


def unpack(
    paths: Sequence[str],
    formats: Sequence[TextFormat],
    folder: str,
    report: Callable[[int], object] = lambda num_bytes: None,
    names: Sequence[str] | None = None,
) -> tuple[list[str], list[TextFormat]]:
    """Unpack the compressed files and the tables among the paths.

    Args:
      paths: files that end in .gz or .zst (with one or several members or frames) are unpacked, and
        the texts of tables are extracted; others stay as they are.
      formats: one per path.
      folder: for the plain files; created when it is needed. Complete files of an earlier call are
        used again while their source has not changed.
      report: called with the number of packed bytes done since the last call; they add up to
        `packed_bytes`.
      names: of the files in messages; default: their paths.

    Returns:
      The paths and the formats of the plain files, one per path.

    Raises:
      UserError: a file is missing, truncated or corrupt, or cannot be written. The incomplete
        file is removed.
    """
    plain = [
        unpack_file(path, text_format, folder, report, name)
        if needs_spool(path, text_format)
        else path
        for path, text_format, name in zip(paths, formats, names or paths, strict=True)
    ]
    return plain, [
        text_format if text_format.row.is_streamed else text_format.replaced("documents")
        for text_format in formats
    ]


def unpack_file(
    path: str, text_format: TextFormat, folder: str, report: Callable[[int], object], name: str
) -> str:
    base = os.path.basename(plain_name(path))
    row = text_format.row
    if not row.is_streamed:
        field = hashlib.blake2b(text_format.text_field.encode(), digest_size=4).hexdigest()
        base = f"{base}-{text_format.input_format}-{field}"
    with corpus.readable(name):
        size = tf.io.gfile.stat(path).length
        target = os.path.join(folder, f"{content_hash(path)}-{base}")
    if os.path.exists(target):
        report(size)
        return target
    source: Any = path if row.reads_path else plain_pieces(path, report)
    if not row.is_streamed:
        # a tsv is read twice, because the whole file decides on its quotes
        again = [plain_pieces(path, lambda num_bytes: None)] * (row.name == "tsv")
        source = lines_of_texts(row.load_reader()(source, text_format, name, *again))
    write_spool(source, target, name)
    if row.reads_path:  # its reader counts no bytes
        report(size)
    return target


def spool_standard_input(stream: typing.BinaryIO, folder: str) -> tuple[str, bool]:
    """Copy a stream to a file in `folder`, named by a hash of its bytes and by the ending of the
    format whose first bytes it has. Returns (path, whether the file is new). Raises UserError.
    """
    unfinished = os.path.join(folder, f"stdin.{os.getpid()}")
    write_spool(iter(lambda: stream.read(READ_BYTES), b""), unfinished, "standard input")
    with open(unfinished, "rb") as file:
        head = file.read(64)  # longer than the first bytes of all formats
    rows: list[Archive | Format] = [*ARCHIVES, *FORMATS.values()]
    ending = next(
        (row.endings[0] for row in rows if row.endings and head.startswith(row.magic)), ""
    )
    target = os.path.join(folder, f"{content_hash(unfinished)}-stdin{ending}")
    is_new = not os.path.exists(target)
    publish(unfinished, target)
    return target, is_new


def lines_of_texts(texts: Iterable[str]) -> Iterator[bytes]:
    """Yield texts as lines of UTF-8. A text of space alone becomes LINE_BREAK, which is no document
    but is counted as a row without text. A byte order mark comes first: it marks the file as text,
    although the first text may begin like an archive.
    """
    yield corpus.BYTE_ORDER_MARK
    for text in texts:
        text = text.strip() or LINE_BREAK
        yield text.replace("\n", LINE_BREAK).encode() + b"\n"


def write_spool(pieces: Iterable[bytes], target: str, name: str) -> None:
    """Write pieces to the file `target`, which appears when it is complete. Raises UserError."""
    folder = os.path.dirname(target)
    created_folder = not os.path.exists(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        # All processes use this name, so that the next process overwrites a killed one's file.
        with atomic_file(target, "wb", f"{target}.unfinished") as file:
            file.writelines(within_free_space(pieces, folder))
    except (OSError, tf.errors.OpError, *BROKEN) as error:
        if isinstance(error, OSError) and error.errno is not None:
            problem = f"cannot be unpacked to {folder} ({error.strerror})"
            remedy = write_remedy(error)
        elif isinstance(error, EOFError):
            problem = "the archive is truncated"
            remedy = "copy it again"
        else:
            problem = f"the archive is corrupt ({' '.join(str(error).split())[:80]})"
            remedy = "copy it again, or rename it if it is not compressed"
        raise UserError(problem, remedy, where=name) from None
    finally:
        if created_folder and os.path.exists(folder) and not os.listdir(folder):
            os.rmdir(folder)


def write_remedy(error: OSError) -> str:
    """Return the remedy, for a message, for an error of writing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "make room or choose another folder"
    return "choose another folder, or change its permissions"


def content_hash(path: str) -> str:
    """Return a hash of a file's bytes: 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in corpus.file_pieces(path, path):
        digest.update(piece)
    return digest.hexdigest()


def plain_pieces(path: str, report: Callable[[int], object]) -> Iterator[bytes]:
    """Yield the bytes of a file, unpacked if it is compressed. Raises the errors of
    `unpacked_pieces`. report: called with the number of stored bytes that were read.
    """
    start = next((row.start for row in ARCHIVES if path.lower().endswith(row.endings)), None)
    pieces = stored_pieces(path, report)
    yield from unpacked_pieces(pieces, start) if start else pieces


def stored_pieces(path: str, report: Callable[[int], object]) -> Iterator[bytes]:
    """Yield the bytes of a file as it is stored, and report their number."""
    with corpus.open_binary(path) as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
            report(len(piece))


def unpacked_pieces(pieces: Iterable[bytes], start: Callable[[], Any]) -> Iterator[bytes]:
    """Yield the plain bytes of an archive that comes in pieces. start: makes an unpacker, as
    Archive.start does. Raises EOFError when the archive ends too early, zlib.error or ZstdError
    when it is corrupt.
    """
    unpacker = start()
    for rest in pieces:
        while rest:
            if unpacker.eof:
                rest = rest.lstrip(b"\0")  # some tools pad the file with zeros
                if not rest:
                    break
                unpacker = start()
            yield unpacker.decompress(rest)
            rest = unpacker.unused_data if unpacker.eof else b""
    if not unpacker.eof:
        raise EOFError
