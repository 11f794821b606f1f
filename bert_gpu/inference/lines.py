"""Lines of a text file or of standard input, in windows of bounded size, with progress. Input that
is not plain UTF-8 text is refused with the messages of the data command.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular
from bert_gpu.base.standard_input import STANDARD_INPUT, open_standard_input
from bert_gpu.text import corpus
from bert_gpu.text.formats import archives, encodings
from bert_gpu.text.formats.table import FORMATS

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
    line_range: range | None = None,
    has_objects: bool = False,
) -> Iterator[list[bytes]]:
    """Yield the lines of a text file, without their ends, in lists of at most WINDOW_LINES and
    about WINDOW_BYTES; one long line makes a larger list. Shows progress.

    Args:
      what: name of the progress bar. line_range: the lines to yield, by index; None = all.
        has_objects: whether the lines are objects of JSON, and not texts.

    Raises:
      UserError: the file is missing, not a file, a table by its name, not plain UTF-8 text or a
        broken archive, or has a line of more than LINE_BYTES.
    """
    if path == STANDARD_INPUT:
        line_lists = cut_windows(standard_input(), path)
        yield from report_lines(check_plain_text(line_lists, "standard input"), console, what)
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
        done = 0

        def report(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes

        bar = console.progress(round(size / 1e6, 1), 0, what, "MB")
        started = time.monotonic()
        num_lines = 0
        try:
            line_lists = cut_windows(archives.plain_pieces(path, report), path)
            for window in select_lines(check_plain_text(line_lists, path), line_range):
                yield window
                num_lines += len(window)
                speed = num_lines / max(time.monotonic() - started, 1e-3)
                bar.update(round(done / 1e6, 1), f"{num_lines:,} texts  {speed:,.0f} texts/s")
        finally:
            bar.close()


def check_plain_text(line_lists: Iterable[list[bytes]], name: str) -> Iterator[list[bytes]]:
    """Yield lists of lines unchanged, except for a byte order mark, which is removed. Raises
    UserError, which names the file, for an archive, a document or a line that is not UTF-8.
    """
    num_lines = 0
    for window in line_lists:
        content = b"\n".join(window)
        if num_lines == 0:
            encodings.check_plain(name, content, encodings.ENDINGS)
            window[0] = window[0].removeprefix(corpus.BYTE_ORDER_MARK)
        corpus.check_utf8(name, content, num_lines)
        yield window
        num_lines += len(window)


def select_lines(
    line_lists: Iterable[list[bytes]], line_range: range | None
) -> Iterator[list[bytes]]:
    """Yield lists of the lines whose index in the file is in a range; of all lines for None."""
    first = 0
    for window in line_lists:
        last = first + len(window)
        if line_range is not None:
            window = window[max(0, line_range.start - first) : max(0, line_range.stop - first)]
        if window:
            yield window
        first = last


def count_lines(path: str) -> int:
    """Return the number of lines of a text file. Raises the UserErrors of `windows`."""
    return sum(len(window) for window in windows(path, Console(quiet=True)))


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


def cut_windows(pieces: Iterable[bytes], path: str) -> Iterator[list[bytes]]:
    """Yield lists of lines from pieces of bytes. A line ends with \\n or \\r\\n; the last line may
    lack its end. Raises UserError, which names `path`, for a line of more than LINE_BYTES, before
    the rest of the line is read.
    """
    window: list[bytes] = []
    num_bytes = 0
    num_lines = 0
    rest: list[bytes] = []
    rest_bytes = 0
    for piece in pieces:
        *lines, last = piece.split(b"\n")
        for line in lines:
            check_length(rest_bytes + len(line), path, num_lines + 1)
            line = b"".join([*rest, line]).removesuffix(b"\r")
            rest = []
            rest_bytes = 0
            window.append(line)
            num_bytes += len(line)
            num_lines += 1
            if len(window) == WINDOW_LINES or num_bytes >= WINDOW_BYTES:
                yield window
                window = []
                num_bytes = 0
        rest.append(last)
        rest_bytes += len(last)
        check_length(rest_bytes, path, num_lines + 1)
    last = b"".join(rest)
    if last:
        window.append(last.removesuffix(b"\r"))
    if window:
        yield window


def check_length(num_bytes: int, path: str, number: int) -> None:
    """Raise UserError for a line of more than LINE_BYTES. number: number of the line, from 1."""
    if num_bytes > LINE_BYTES:
        raise UserError(
            f"line {number:,} has more than {LINE_BYTES >> 20} MB",
            "write one text a line",
            setting="input",
            value=path[-150:],
        )


def report_lines(
    line_lists: Iterable[list[bytes]], console: Console, what: str, seconds: float = 10.0
) -> Iterator[list[bytes]]:
    """Yield lists of lines unchanged, and print every few seconds how many lines were processed.
    The length of standard input is unknown, so that a bar cannot be shown.
    """
    started = last_report = time.monotonic()
    num_lines = 0
    for window in line_lists:
        yield window
        num_lines += len(window)
        now = time.monotonic()
        if now - last_report >= seconds:
            console.say(f"{what}: {num_lines:,}  {num_lines / (now - started):,.0f} texts/s")
            last_report = now
