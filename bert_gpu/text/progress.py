"""Progress through a text, in bytes, on the console that a command hands in."""

import time


class ByteProgress:
    """A progress bar in megabytes of text, with MB/s and, if tokens are counted, tokens/s. As a
    context, it ends at the total.

    console: makes the bar by progress(total, start, what, unit). total: bytes.
    """

    def __init__(self, console, total, what):
        self.bar, self.total = console.progress(round(total / 1e6, 1), 0, what, "MB"), total
        self.started, self.num_bytes, self.num_tokens = time.monotonic(), 0, 0

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        if error is None:
            self.add(self.total - self.num_bytes)
        self.bar.close()

    def add(self, num_bytes, num_tokens=0):
        """Adds the bytes and tokens done since the last call."""
        self.num_bytes += num_bytes
        self.num_tokens += num_tokens
        seconds = max(time.monotonic() - self.started, 1e-3)
        text = f"{self.num_bytes / seconds / 1e6:.1f} MB/s" + (
            f"  {self.num_tokens / seconds:,.0f} tokens/s" if self.num_tokens else ""
        )
        self.bar.update(round(self.num_bytes / 1e6, 1), text)


def format_bytes(num_bytes):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:,.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
