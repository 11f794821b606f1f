"""Prints messages, warnings and progress; in a program that uses the library, logs them.

An output stream may fail during a job: its terminal or pipe is closed, or its disk is full. This
never stops the job, because messages go through `print_to`, which drops text that cannot be
written.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import functools
import logging
import math
import os
import shutil
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from bert_gpu.base.errors import LINE_CHARACTERS, UserError, one_line, printable

if TYPE_CHECKING:
    import tqdm

HUGE = 1e9  # a metric of at least this size is written with an exponent
LOGGER = logging.getLogger("bert_gpu")


class Console:
    """Prints messages, warnings and progress; if quiet, warnings only. Progress is a bar on a
    terminal, and occasional lines elsewhere.

    Attributes:
      in_program: whether the caller is a program or a notebook that uses the library, not the
        command line.
    """

    in_program = False

    def __init__(
        self,
        quiet: bool = False,
        stream: TextIO | None = None,
        origin_of: Callable[[UserError], str | None] | None = None,
    ) -> None:
        """Create a console. origin_of: function that returns where the value of an error's setting
        comes from, such as a recipe; `warn` adds this to the message.
        """
        self.quiet = quiet
        self.stream = stream or sys.stdout
        self.origin_of = origin_of

    def say(self, text: str) -> None:
        if not self.quiet:
            print_to(self.stream, text)

    def warn(self, text: str | UserError) -> None:
        if self.origin_of is not None and isinstance(text, UserError):
            text.origin = self.origin_of(text)
        (LOGGER.warning if self.in_program else warn)(str(text))

    def block(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print (label, text) rows in two columns; long texts are wrapped at a terminal's width."""
        for line in aligned(rows, columns_of(self.stream)):
            self.say(line)

    def progress(
        self, total: float, start: float, what: str, unit: str = "step"
    ) -> Bar | NoProgress:
        """Return an object whose `update(done)` shows the progress from `start` to `total`, counted
        in `unit`; `what` is its label.
        """
        if self.quiet:
            return NoProgress()
        return (
            Bar(total, start, what, unit)
            if self.has_bars()
            else Lines(self, total, start, what, unit)
        )

    def share_bar(self, what: str) -> ShareBar | None:
        """Return a ShareBar labelled `what`; None if the console is quiet or cannot show bars."""
        return ShareBar(what) if self.has_bars() and not self.quiet else None

    def has_bars(self) -> bool:
        return in_notebook() if self.in_program else is_terminal(sys.stderr)


class LogConsole(Console):
    """A console for a program that uses the library: messages go to Python's logger "bert_gpu", and
    progress bars appear in a notebook only.
    """

    in_program = True

    def __init__(
        self, quiet: bool = False, origin_of: Callable[[UserError], str | None] | None = None
    ) -> None:
        super().__init__(quiet or not in_notebook(), origin_of=origin_of)

    def say(self, text: str) -> None:
        LOGGER.info(text)


class NoProgress:
    """Progress that is not shown."""

    def update(self, done: float, text: str = "") -> None:
        pass

    def close(self) -> None:
        pass


class Bar:
    """A tqdm progress bar with the share done, the time left and a text, such as metrics."""

    def __init__(self, total: float, start: float, what: str, unit: str) -> None:
        self.bar = open_bar(
            total=total, initial=start, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1
        )

    def update(self, done: float, text: str = "") -> None:
        if text:
            self.bar.set_postfix_str(text, refresh=False)
        with tolerate_lost_stream(sys.stderr):
            self.bar.update(done - self.bar.n)

    def close(self) -> None:
        with tolerate_lost_stream(sys.stderr):
            self.bar.close()


class ShareBar:
    """A progress bar for the share of a job that is done, followed by as many fields of text as the
    terminal has room for.

    The bar is drawn whenever its fields change, and otherwise at most every SECONDS, so that it
    does not flicker.
    """

    SECONDS = 0.5
    MIN_COLUMNS = 2  # least width of the bar without its text

    def __init__(self, what: str) -> None:
        first = "{l_bar}{bar}| the first step compiles"
        self.bar = open_bar(total=1.0, desc=what, miniters=1, delay=1e9, bar_format=first)
        # columns_of returns None once the terminal is closed
        self.bar.dynamic_ncols = lambda stream: ((columns_of(stream) or 80) - len("^C"), None)
        self.started = time.monotonic()
        self.drawn = -math.inf
        self.fields: list[tuple[int, str]] = []

    def show(
        self,
        share: float,
        count: str,
        remaining: str,
        fields: list[tuple[int, str]] | None = None,
    ) -> None:
        """Draw the bar.

        Args:
          share: the share of the job that is done, 0 to 1. count: the steps done, such as "20/120".
            remaining: the time left, as text.
          fields: (importance, text) pairs in the order shown; a narrow terminal leaves out the
            least important ones. None = the fields of the last call; the bar is then not drawn if
            it was drawn less than SECONDS ago.
        """
        now = time.monotonic()
        if fields is None and now - self.drawn < self.SECONDS:
            return
        self.drawn = now
        self.fields = self.fields if fields is None else fields
        self.bar.delay = 0  # until now the delay has kept tqdm from drawing an empty bar
        self.bar.n = min(1.0, share)
        start = f"{count} [{self.bar.format_interval(now - self.started)}<{remaining}"
        other_columns = len(self.bar.desc) + len(f": 100%|| {start}]^C") + self.MIN_COLUMNS
        texts = fitting(self.fields, (columns_of(sys.stderr) or 80) - other_columns)
        text = "".join(f", {field}" for field in texts).replace("{", "{{").replace("}", "}}")
        self.bar.bar_format = f"{{l_bar}}{{bar}}| {start}{text}]"
        with tolerate_lost_stream(sys.stderr):
            self.bar.refresh()

    def close(self) -> None:
        with tolerate_lost_stream(sys.stderr):
            self.bar.close()


def open_bar(**options: object) -> tqdm.tqdm:
    """Return a tqdm progress bar on standard error or, in a notebook, in the cell's output."""
    import tqdm  # imported here, because --help should not wait for it

    if not in_notebook():
        return tqdm.tqdm(**options)
    import tqdm.auto

    return tqdm.auto.tqdm(**options)


def in_notebook() -> bool:
    """Return whether this process runs the cells of a notebook."""
    python = sys.modules.get("IPython")
    return hasattr(python and python.get_ipython(), "kernel")


LOG = LogConsole()


class Lines(NoProgress):
    """Progress as lines for logs: at most one every ten seconds, and one at the end."""

    SECONDS = 10.0

    def __init__(self, console: Console, total: float, start: float, what: str, unit: str) -> None:
        self.console = console
        self.total = total
        self.start = start
        self.what = what
        self.unit = unit
        self.started = time.monotonic()
        self.printed = self.started
        self.text = ""
        self.is_done = False

    def update(self, done: float, text: str = "") -> None:
        now = time.monotonic()
        self.text = text or self.text
        is_last = done == self.total and not self.is_done
        if (now - self.printed >= self.SECONDS or is_last) and done > self.start:
            seconds = (now - self.started) / (done - self.start) * (self.total - done)
            self.console.say(
                f"{self.what}: {done}/{self.total} {self.unit}  "
                f"{self.text}  {format_seconds(seconds)} left"
            )
            self.printed = now
            self.is_done = is_last


def fitting(fields: Iterable[tuple[int, str]], room: int) -> list[str]:
    """Return the texts of those (importance, text) fields that fit into `room` columns, in their
    order.

    Each text takes two more columns, for a separator. The least important are left out first; of
    equally important ones, the last.
    """
    remaining = list(fields)
    while remaining and sum(len(text) + 2 for _, text in remaining) > room:
        least = min(importance for importance, _ in remaining)
        del remaining[max(index for index, field in enumerate(remaining) if field[0] == least)]
    return [text for _, text in remaining]


def aligned(rows: Iterable[tuple[str, str]], columns: int | None = None) -> list[str]:
    """Return (label, text) rows as lines in two columns, "label:" and the text. The text is wrapped
    so that lines have at most `columns` characters; None = it is not wrapped.
    """
    rows = [(f"{label}:", text) for label, text in rows]
    width = 2 + max(len(label) for label, _ in rows)
    lines = []
    for label, text in rows:
        room = 10_000 if columns is None else max(20, columns - width)
        first, *more = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        lines += [f"{label:<{width}}{first}".rstrip(), *(" " * width + part for part in more)]
    return lines


def broken(text: str, columns: int | None) -> str:
    """Return a text wrapped into lines of at most `columns` characters, all but the first indented;
    None = the text is returned unchanged.
    """
    if columns is None:
        return text
    return textwrap.fill(text, columns, subsequent_indent="  ", break_on_hyphens=False)


def columns_of(stream: TextIO) -> int | None:
    """Return the width, in characters, of the terminal that a stream writes to; None when the
    stream is not a terminal.
    """
    if not is_terminal(stream):
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def print_to(stream: TextIO, text: str) -> None:
    """Print a text to a standard stream; drop it if the stream is closed or its reader is gone.

    Control characters, which could steer a terminal, are printed as escapes. A progress bar on the
    terminal is drawn again below the text.
    """
    tqdm = sys.modules.get("tqdm")  # None if nothing has imported tqdm, so that there is no bar
    with tolerate_lost_stream(stream):
        if tqdm:
            tqdm.tqdm.write(printable(text), file=stream)
        else:
            print(printable(text), file=stream)
        stream.flush()


def warn(text: str, limit: int | None = LINE_CHARACTERS) -> None:
    """Print a warning to stderr, as a line of at most `limit` characters (None = any number);
    inside `warnings_to_log`, log it.
    """
    if _logs_warnings.get():
        LOGGER.warning(text)
    else:
        print_to(sys.stderr, one_line(f"warning: {text}", limit))


@contextlib.contextmanager
def warnings_to_log() -> Iterator[None]:
    """Send the texts that `warn` gets inside this context to Python's logger "bert_gpu"."""
    token = _logs_warnings.set(True)
    try:
        yield
    finally:
        _logs_warnings.reset(token)


_logs_warnings = contextvars.ContextVar("logs_warnings", default=False)


@functools.cache
def warn_once(text: str) -> None:
    """Print a warning unless this process has printed the same one."""
    warn(text)


@contextlib.contextmanager
def warnings_of_libraries() -> Iterator[None]:
    """Print the first line of each warning that a library issues inside this context, in the same
    form as bert-gpu's own warnings.
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: warn(str(message).partition("\n")[0])
        yield


def answer(text: str) -> None:
    """Print the result of a command to stdout.

    Raises SystemExit(0) when the reader of stdout is gone; UserError when stdout fails for another
    reason.
    """
    try:
        print(printable(text), flush=True)
    except BrokenPipeError:
        discard(sys.stdout)
        raise SystemExit(0) from None
    except OSError as error:
        discard(sys.stdout)
        raise UserError(
            f"standard output: {error.strerror}", "make room, or send it somewhere else"
        ) from error


@contextlib.contextmanager
def tolerate_lost_stream(stream: TextIO) -> Iterator[None]:
    """Ignore failed writes to a stream inside this context. After a failure the stream is
    redirected to /dev/null, unless its disk was only full.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: this process has closed the stream
        # a full disk may get room again; the stream's buffer is then written with the next text
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            discard(stream)


def discard(stream: TextIO) -> None:
    """Redirect a standard stream to /dev/null, with the text that is still in its buffer."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def open_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, on /dev/null; let stdout and stderr
    escape characters that they cannot encode.

    Otherwise the first files that the process opens would get the descriptors of the closed
    streams, and libraries would write their messages into these files.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor: `number`
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def close_streams() -> None:
    """Write the buffers of stdout and stderr; discard them if that fails, because Python would
    end with an error otherwise.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            discard(stream)


def is_terminal(stream: TextIO) -> bool:
    with contextlib.suppress(ValueError):
        return stream.isatty()
    return False


def format_seconds(seconds: float) -> str:
    """Return a duration as M:SS or H:MM:SS."""
    seconds = int(seconds)
    return (
        f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        if seconds >= 3600
        else f"{seconds // 60}:{seconds % 60:02d}"
    )


def format_metric(value: float | None) -> str:
    """Return a metric with four digits behind the point; a huge one as 1.5e+300, and "none" for
    None or a value that is not finite.
    """
    if value is None or not math.isfinite(value):
        return "none"
    return f"{value:.4f}" if abs(value) < HUGE else f"{value:.4g}"


def format_bytes(num_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
