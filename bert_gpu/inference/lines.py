"""Lines of a text file or of standard input, in windows of bounded size. Input that
is not plain UTF-8 text is refused with the messages of the data command.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular
from bert_gpu.base.standard_input import STANDARD_INPUT, open_standard_input
from bert_gpu.text import corpus
from bert_gpu.text.formats import archives, encodings
from bert_gpu.text.formats.plain import cut_at_lines
from bert_gpu.text.formats.table import FORMATS
from bert_gpu.text.progress import ByteProgress

tf = LazyModule("tensorflow")

WINDOW_LINES = 8192
WINDOW_BYTES = 4 << 20
# A limit, because tokenizing a line takes about 35 times its size in memory. A longer line cannot
# be cut: the tokens that a model reads may come from any number of bytes, since a word of any
# length is one [UNK].
LINE_BYTES = 16 << 20
# endings of names of files whose lines are not texts
TABLES = tuple(ending for row in FORMATS.values() for ending in row.endings)


def windows(
    path: str,
    console: Console = LOG,
    what: str = "texts",
    has_objects: bool = False,
) -> Iterator[list[bytes]]:
    """Yield the lines of a text file, without their ends, in lists of at most WINDOW_LINES and
    about WINDOW_BYTES; one long line makes a larger list. Shows the progress through a file.

    Args:
      what: name of the progress bar. has_objects: whether the lines are objects of JSON, and not
        texts.

    Raises:
      UserError: the file is missing, not a file, a table by its name, not plain UTF-8 text or a
        broken archive, or has a line of more than LINE_BYTES.
    """
    if path == STANDARD_INPUT:
        yield from in_windows(plain_lines(standard_input(), path))
        return
    check_regular(path)
    if not has_objects and archives.plain_name(path).lower().endswith(TABLES):
        raise UserError(
            "is a table, and its lines are not texts",
            "write the texts of its column to a .txt, one a line",
            where=path,
        )
    with corpus.readable(path), readable_archive(path):
        if os.path.isdir(path):
            raise UserError("is a folder", "name a text file", setting="input", value=path)
        size = tf.io.gfile.stat(path).length
        with ByteProgress(console, size, what, "texts") as progress:
            lines = plain_lines(archives.plain_pieces(path, progress.add), path)
            for window in in_windows(lines):
                yield window
                progress.add(0, len(window))


def plain_lines(pieces: Iterable[bytes], path: str) -> Iterator[bytes]:
    """Yield the lines of a text whose bytes come in pieces, without their ends, \\n or \\r\\n, and
    without a byte order mark. Raises UserError, which names the file, for an archive, a document, a
    line that is not UTF-8, or a line of more than LINE_BYTES, before the rest of the line is read.
    """
    name = "standard input" if path == STANDARD_INPUT else path
    number = 0
    for part in cut_at_lines(pieces, LINE_BYTES):
        if not number:
            encodings.check_plain(name, part, encodings.ENDINGS)
            part = part.removeprefix(corpus.BYTE_ORDER_MARK)
        for line in part.removesuffix(b"\n").split(b"\n"):
            number += 1
            if len(line) > LINE_BYTES:
                raise UserError(
                    f"line {number:,} has more than {LINE_BYTES >> 20} MB",
                    "write one text a line",
                    setting="input",
                    value=path[-150:],
                )
            corpus.check_utf8(name, line, number - 1)
            yield line.removesuffix(b"\r")


def in_windows(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines in lists of at most WINDOW_LINES and about WINDOW_BYTES."""
    window: list[bytes] = []
    num_bytes = 0
    for line in lines:
        window.append(line)
        num_bytes += len(line)
        if len(window) == WINDOW_LINES or num_bytes >= WINDOW_BYTES:
            yield window
            window = []
            num_bytes = 0
    if window:
        yield window


def empty_input(path: str) -> UserError:
    """Return the UserError for an input without a line."""
    return UserError("is empty", "it needs a text a line", setting="input", value=path)


@contextlib.contextmanager
def readable_archive(path: str) -> Iterator[None]:
    """Turn the errors of a broken archive into a UserError that names it."""
    try:
        yield
    except archives.BROKEN as error:
        problem = "truncated" if isinstance(error, EOFError) else "corrupt"
        raise UserError(f"the archive is {problem}", "copy it again", where=path) from None


def standard_input() -> Iterator[bytes]:
    """Return the bytes of standard input, in pieces as they arrive."""
    stream = open_standard_input(
        "--input=-: standard input is a terminal; pipe text into the command, or name a file"
    )
    # typing.BinaryIO lacks read1, which sys.stdin.buffer has
    return iter(lambda: stream.read1(archives.READ_BYTES), b"")  # type: ignore[attr-defined]
