"""Prints messages, warnings and progress; in a program that uses the library, logs them."""

import logging
import sys
import time

import tqdm


class Console:
    """Prints to the terminal. quiet: warnings only. Progress is a bar on a terminal, and occasional
    lines elsewhere.
    """

    def __init__(self, quiet=False, stream=None):
        self.quiet, self.stream = quiet, stream or sys.stdout

    def say(self, text):
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    def warn(self, text):
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def progress(self, total, start, what, unit="step"):
        if self.quiet:
            return NoProgress()
        return (
            Bar(total, start, what, unit)
            if sys.stderr.isatty()
            else Lines(self, total, start, what, unit)
        )


class LogConsole(Console):
    """For a program that uses the library: messages go to Python's logger "bert_gpu", and there are
    no bars.
    """

    def __init__(self):
        super().__init__(quiet=True)
        self.logger = logging.getLogger("bert_gpu")

    def say(self, text):
        self.logger.info(text)

    def warn(self, text):
        self.logger.warning(text)


class NoProgress:
    def update(self, done, text=""):
        pass

    def close(self):
        pass


class Bar:
    """A tqdm bar: share done, time left, and a few metrics."""

    def __init__(self, total, start, what, unit):
        self.bar = tqdm.tqdm(
            total=total, initial=start, desc=what, unit=unit, dynamic_ncols=True, smoothing=0.1
        )

    def update(self, done, text=""):
        if text:
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(done - self.bar.n)

    def close(self):
        self.bar.close()


class Lines:
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
                f"{self.what}: {self.unit} {done}/{self.total}  "
                f"{self.latest}  {format_seconds(left)} left"
            )
            self.shown, self.is_done = now, is_last

    def close(self):
        pass


def format_seconds(seconds):
    seconds = int(seconds)
    return (
        f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        if seconds >= 3600
        else f"{seconds // 60}:{seconds % 60:02d}"
    )
