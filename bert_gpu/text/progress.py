"""Progress through a text, in bytes, on a command's console."""

import time

from bert_gpu.base.console import Console


class ByteProgress:
    """A progress bar in megabytes of text, with MB/s and, if tokens or other parts are counted,
    tokens/s. A `with` block that ends without an error fills the bar. total: in bytes. what: label
    of the bar. parts: what is counted.
    """

    def __init__(self, console: Console, total: int, what: str, parts: str = "tokens") -> None:
        self.bar = console.progress(round(total / 1e6, 1), 0, what, "MB")
        self.total = total
        self.parts = parts
        self.started = time.monotonic()
        self.num_bytes = 0
        self.num_parts = 0

    def __enter__(self) -> "ByteProgress":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.add(self.total - self.num_bytes)
        self.bar.close()

    def add(self, num_bytes: int, num_parts: int = 0) -> None:
        """Add the bytes and parts done since the last call."""
        self.num_bytes += num_bytes
        self.num_parts += num_parts
        seconds = max(time.monotonic() - self.started, 1e-3)
        text = f"{self.num_bytes / seconds / 1e6:.1f} MB/s" + (
            f"  {self.num_parts / seconds:,.0f} {self.parts}/s" if self.num_parts else ""
        )
        self.bar.update(round(self.num_bytes / 1e6, 1), text)
