"""Prints messages, warnings and progress; in a program that uses the library, logs them.

A console may vanish under a job: its terminal or its pipe is closed, its disk is full. That never
stops the job. What is printed for a person goes through `print_to`, which drops what nobody can read.
"""

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

from bert_gpu.base.errors import UserError, one_line, printable

HUGE = 1e9  # from which a metric is written with an exponent
LOGGER = logging.getLogger("bert_gpu")


class Console:
    """Prints to the terminal. quiet: warnings only. Progress is a bar on a terminal, and occasional
    lines elsewhere. in_program: whether a program or a notebook goes on afterwards.
    """

    in_program = False

    def __init__(self, quiet=False, stream=None, origin_of=None):
        """origin_of: function of a UserError -> the origin of its setting, for warnings."""
        self.quiet, self.stream, self.origin_of = quiet, stream or sys.stdout, origin_of

    def say(self, text):
        if not self.quiet:
            print_to(self.stream, text)

    def warn(self, text):
        if self.origin_of is not None and isinstance(text, UserError):
            text.origin = self.origin_of(text)
        (LOGGER.warning if self.in_program else warn)(str(text))

    def block(self, rows):
        """Says rows of (label, text) in two columns; a terminal's width breaks long texts."""
        for line in aligned(rows, columns_of(self.stream)):
            self.say(line)

    def progress(self, total, start, what, unit="step"):
        if self.quiet:
            return NoProgress()
        return (
            Bar(total, start, what, unit)
            if self.has_bars()
            else Lines(self, total, start, what, unit)
        )

    def share_bar(self, what):
        """A ShareBar on a terminal; None elsewhere, where lines serve."""
        return ShareBar(what) if self.has_bars() and not self.quiet else None

    def has_bars(self):
        return in_notebook() if self.in_program else is_terminal(sys.stderr)


class LogConsole(Console):
    """For a program that uses the library: messages go to Python's logger "bert_gpu", and there are
    no bars but in a notebook.
    """

    in_program = True

    def __init__(self, quiet=False, origin_of=None):
        super().__init__(quiet or not in_notebook(), origin_of=origin_of)

    def say(self, text):
        LOGGER.info(text)


class NoProgress:
    """The methods of progress, which do nothing."""

    def update(self, done, text=""):
        pass

    def close(self):
        pass


class Bar:
    """A tqdm bar: share done, time left, and a few metrics."""

    def __init__(self, total, start, what, unit):
        self.bar = open_bar(
            total=total, initial=start, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1
        )

    def update(self, done, text=""):
        if text:
            self.bar.set_postfix_str(text, refresh=False)
        with tolerate_lost_stream(sys.stderr):
            self.bar.update(done - self.bar.n)

    def close(self):
        with tolerate_lost_stream(sys.stderr):
            self.bar.close()


class ShareBar:
    """A bar over the share that is done, with fields of text: as many as the terminal has room for.

    It is drawn at most every SECONDS, so that it is calm, and whenever its fields change.
    """

    SECONDS, LEAST_BAR = 0.5, 2  # columns

    def __init__(self, what):
        first = "{l_bar}{bar}| the first step compiles"
        self.bar = open_bar(total=1.0, desc=what, miniters=1, delay=1e9, bar_format=first)
        # a terminal may be gone by now, and then has no width
        self.bar.dynamic_ncols = lambda stream: ((columns_of(stream) or 80) - len("^C"), None)
        self.started, self.drawn, self.fields = time.monotonic(), -math.inf, []

    def show(self, share, count, left, fields=None):
        """Draws it anew.

        Args:
          share: 0 to 1. count: text, such as "20/120". left: the time left, as text.
          fields: [(importance, text)] in their order; those of the lowest importance give way on a
            narrow terminal. None: those shown before, and it may wait.
        """
        now = time.monotonic()
        if fields is None and now - self.drawn < self.SECONDS:
            return
        self.drawn, self.fields = now, self.fields if fields is None else fields
        self.bar.delay = 0  # of tqdm, which would draw an empty bar first
        self.bar.n = min(1.0, share)
        start = f"{count} [{self.bar.format_interval(now - self.started)}<{left}"
        taken = len(self.bar.desc) + len(f": 100%|| {start}]^C") + self.LEAST_BAR
        fields = fitting(self.fields, (columns_of(sys.stderr) or 80) - taken)
        text = "".join(f", {field}" for field in fields)
        self.bar.bar_format = f"{{l_bar}}{{bar}}| {start}{escaped(text)}]"
        with tolerate_lost_stream(sys.stderr):
            self.bar.refresh()

    def close(self):
        with tolerate_lost_stream(sys.stderr):
            self.bar.close()


def open_bar(**options):
    """Return a tqdm bar on standard error or, in a notebook, on its page."""
    import tqdm  # here, because --help should not wait for it

    if not in_notebook():
        return tqdm.tqdm(**options)
    import tqdm.auto

    return tqdm.auto.tqdm(**options)


def in_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    python = sys.modules.get("IPython")
    return hasattr(python and python.get_ipython(), "kernel")


LOG = LogConsole()


class Lines(NoProgress):
    """Progress as lines for logs, at most one every ten seconds, and the last."""

    SECONDS = 10.0

    def __init__(self, console, total, start, what, unit):
        self.console, self.total, self.what, self.unit = console, total, what, unit
        self.start, self.started, self.shown, self.latest = (
            start,
            time.monotonic(),
            time.monotonic(),
            "",
        )
        self.is_done = False

    def update(self, done, text=""):
        now = time.monotonic()
        self.latest = text or self.latest
        is_last = done == self.total and not self.is_done
        if (now - self.shown >= self.SECONDS or is_last) and done > self.start:
            left = (now - self.started) / (done - self.start) * (self.total - done)
            self.console.say(
                f"{self.what}: {done}/{self.total} {self.unit}  "
                f"{self.latest}  {format_seconds(left)} left"
            )
            self.shown, self.is_done = now, is_last


def fitting(fields, room):
    """The texts of (importance, text) that fit into `room` columns with two more each, in their
    order; the least important ones, of these the last, are left out first.
    """
    kept = list(fields)
    while kept and sum(len(text) + 2 for _, text in kept) > room:
        least = min(field[0] for field in kept)
        del kept[max(index for index, field in enumerate(kept) if field[0] == least)]
    return [text for _, text in kept]


def escaped(text):
    """A text as it stands in a format string."""
    return text.replace("{", "{{").replace("}", "}}")


def aligned(rows, columns=None):
    """Lines of (label, text) rows with the texts below each other, broken at `columns` if given."""
    rows = [(f"{label}:", text) for label, text in rows]
    width = 2 + max(len(label) for label, _ in rows)
    lines = []
    for label, text in rows:
        room = 10_000 if columns is None else max(20, columns - width)
        first, *more = textwrap.wrap(text, room, break_on_hyphens=False) or [""]
        lines += [f"{label:<{width}}{first}".rstrip(), *(" " * width + part for part in more)]
    return lines


def broken(text, columns):
    """A text as lines of at most so many columns, the later ones indented; as it is for None."""
    if columns is None:
        return text
    return textwrap.fill(text, columns, subsequent_indent="  ", break_on_hyphens=False)


def columns_of(stream):
    """The width of a stream's terminal, None when it is none."""
    if not is_terminal(stream):
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns or 80
    return shutil.get_terminal_size().columns


def print_to(stream, text):
    """Prints text to a standard stream, if anybody is there to read it. Control characters, which
    could steer a terminal, are shown as escapes. A bar on the terminal makes room for the text and
    is drawn again below.
    """
    tqdm = sys.modules.get("tqdm")  # without it there is no bar
    with tolerate_lost_stream(stream):
        if tqdm:
            tqdm.tqdm.write(printable(text), file=stream)
        else:
            print(printable(text), file=stream)
        stream.flush()


def warn(text):
    """Print a warning to stderr; inside `warnings_to_log`, log it."""
    if _logs_warnings.get():
        LOGGER.warning(text)
    else:
        print_to(sys.stderr, one_line(f"warning: {text}"))


@contextlib.contextmanager
def warnings_to_log():
    """Warnings inside go to Python's logger "bert_gpu"."""
    token = _logs_warnings.set(True)
    try:
        yield
    finally:
        _logs_warnings.reset(token)


_logs_warnings = contextvars.ContextVar("logs_warnings", default=False)


@functools.cache
def warn_once(text):
    """Warns unless this process has printed the same warning."""
    warn(text)


@contextlib.contextmanager
def warnings_of_libraries():
    """Shows what libraries warn of inside as our own warnings are: the first line of the text."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: warn(str(message).partition("\n")[0])
        yield


def answer(text):
    """Prints what a command was asked for on stdout. When its reader has gone, the command ends.

    Raises SystemExit(0) then; UserError when stdout takes no more for another reason.
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
def tolerate_lost_stream(stream):
    """Writes inside go to a stream that may be lost: then they, and all later ones, are dropped."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: it was closed in this process
        # a full disk may have room again: then what is in the buffer is written with the next text
        if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT):
            discard(stream)


def discard(stream):
    """Sends all that is and will be written to a standard stream nowhere."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def open_streams():
    """Gives the process the standard streams that it lacks, and lets them take any character.

    Without it, the first files that are opened would get the numbers of closed streams, and take
    what libraries write to these.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def close_streams():
    """Writes out the buffers of stdout and stderr; drops them if that fails, so that the end of
    the process does not.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            discard(stream)


def is_terminal(stream):
    with contextlib.suppress(ValueError):
        return stream.isatty()
    return False


def format_seconds(seconds):
    seconds = int(seconds)
    return (
        f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        if seconds >= 3600
        else f"{seconds // 60}:{seconds % 60:02d}"
    )


def format_metric(value):
    """A loss or another metric: four digits behind the point; a huge one as 1.5e+300."""
    if value is None or not math.isfinite(value):
        return "none"
    return f"{value:.4f}" if abs(value) < HUGE else f"{value:.4g}"
