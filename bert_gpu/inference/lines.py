"""Lines of a text file or of standard input in windows of bounded size, with progress. What is no
plain UTF-8 text is refused as the data script refuses it.
"""

import contextlib
import os
import time

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular
from bert_gpu.base.standard_input import STANDARD_INPUT, open_standard_input
from bert_gpu.text import corpus
from bert_gpu.text.formats import archives, encodings

tf = LazyModule("tensorflow")

WINDOW_LINES, WINDOW_BYTES = 8192, 4 << 20
# Tokenizing a line takes some 35 times its size. It is not cut instead: how many bytes the tokens
# that a model reads come from has no bound, for a word of any length is one [UNK].
LINE_BYTES = 16 << 20


def windows(path, console=LOG, what="texts", share=None):
    """Yields lists of lines (bytes, without their ends) of a text file: at most WINDOW_LINES, of
    about WINDOW_BYTES unless one line alone is longer. Shows progress. share: range of the lines
    that are wanted; None = all.

    Raises:
      UserError: the file is missing, not a file, no plain UTF-8 text or a broken archive, or has a
        line of more than LINE_BYTES.
    """
    if path == STANDARD_INPUT:
        found = in_windows(standard_input(), path)
        yield from counted(plain_text(found, "standard input"), console, what)
        return
    check_regular(path)
    with corpus.readable(path), readable_archive(path):
        if os.path.isdir(path):
            raise UserError("is a folder", "name a text file", setting="input", value=path)
        size, done = tf.io.gfile.stat(path).length, 0

        def report(num_bytes):
            nonlocal done
            done += num_bytes

        bar = console.progress(round(size / 1e6, 1), 0, what, "MB")
        started, num_lines = time.monotonic(), 0
        try:
            found = in_windows(archives.plain_pieces(path, report), path)
            for window in shared(plain_text(found, path), share):
                yield window
                num_lines += len(window)
                speed = num_lines / max(time.monotonic() - started, 1e-3)
                bar.update(round(done / 1e6, 1), f"{num_lines:,} texts  {speed:,.0f} texts/s")
        finally:
            bar.close()


def plain_text(found, name):
    """Passes windows on, without a byte order mark. UserError, which names the file, for an archive
    or a document and for a line that is not UTF-8.
    """
    num_lines = 0
    for window in found:
        content = b"\n".join(window)
        if num_lines == 0:
            encodings.check_plain(name, content, encodings.ENDINGS)
            window[0] = window[0].removeprefix(corpus.BYTE_ORDER_MARK)
        corpus.check_utf8(name, content, num_lines)
        yield window
        num_lines += len(window)


def shared(found, share):
    """Of windows, the lines in a range of lines; all of them for None."""
    first = 0
    for window in found:
        last = first + len(window)
        if share is not None:
            window = window[max(0, share.start - first) : max(0, share.stop - first)]
        if window:
            yield window
        first = last


def count_lines(path):
    """Lines of a text file. UserError as for `windows`."""
    return sum(len(window) for window in windows(path, Console(quiet=True)))


def empty(path):
    """The UserError for an input without a line."""
    return UserError("is empty", "it needs a text a line", setting="input", value=path)


@contextlib.contextmanager
def readable_archive(path):
    try:
        yield
    except archives.BROKEN as error:
        problem = "truncated" if isinstance(error, EOFError) else "corrupt"
        raise UserError(f"the archive is {problem}", "copy it again", where=path) from None


def standard_input():
    """The bytes of standard input, in pieces as they come."""
    stream = open_standard_input(
        "--input=-: standard input is a terminal; pipe text into the command, or name a file"
    )
    return iter(lambda: stream.read1(archives.READ_BYTES), b"")


def in_windows(pieces, path):
    """Pieces of bytes -> windows of lines. The last line may lack its end; \\r\\n is one, too.
    UserError, which names `path`, for a line of more than LINE_BYTES, before all of it is read.
    """
    window, num_bytes, num_lines, rest, rest_bytes = [], 0, 0, [], 0
    for piece in pieces:
        *lines, last = piece.split(b"\n")
        for line in lines:
            check_length(rest_bytes + len(line), path, num_lines + 1)
            line = b"".join([*rest, line]).removesuffix(b"\r")
            rest, rest_bytes = [], 0
            window.append(line)
            num_bytes, num_lines = num_bytes + len(line), num_lines + 1
            if len(window) == WINDOW_LINES or num_bytes >= WINDOW_BYTES:
                yield window
                window, num_bytes = [], 0
        rest.append(last)
        rest_bytes += len(last)
        check_length(rest_bytes, path, num_lines + 1)
    last = b"".join(rest)
    if last:
        window.append(last.removesuffix(b"\r"))
    if window:
        yield window


def check_length(num_bytes, path, number):
    """UserError for a line, by its number from 1, of too many bytes."""
    if num_bytes > LINE_BYTES:
        most = f"{LINE_BYTES >> 20} MB"
        raise UserError(
            f"line {number:,} has more than {most}",
            "write one text a line",
            setting="input",
            value=path[-150:],
        )


def counted(found, console, what, seconds=10.0):
    """Passes windows on and says every few seconds how many lines were done: the length of
    standard input is not known.
    """
    started = shown = time.monotonic()
    num_lines = 0
    for window in found:
        yield window
        num_lines += len(window)
        now = time.monotonic()
        if now - shown >= seconds:
            console.say(f"{what}: {num_lines:,}  {num_lines / (now - started):,.0f} texts/s")
            shown = now
