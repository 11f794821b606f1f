"""Progress through a text, in bytes, on a command's console."""

import time

from bert_gpu.base.console import Console


class ByteProgress:
    """A progress bar in megabytes of text, with MB/s and, if tokens are counted, tokens/s. A `with`
    block that ends without an error fills the bar. total: in bytes. what: label of the bar.
    """

    def __init__(self, console: Console, total: int, what: str) -> None:
        self.bar = console.progress(round(total / 1e6, 1), 0, what, "MB")
        self.total = total
        self.started = time.monotonic()
        self.num_bytes = 0
        self.num_tokens = 0

    def __enter__(self) -> "ByteProgress":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self.add(self.total - self.num_bytes)
        self.bar.close()

    def add(self, num_bytes: int, num_tokens: int = 0) -> None:
        """Add the bytes and tokens done since the last call."""
        self.num_bytes += num_bytes
        self.num_tokens += num_tokens
        seconds = max(time.monotonic() - self.started, 1e-3)
        text = f"{self.num_bytes / seconds / 1e6:.1f} MB/s" + (
            f"  {self.num_tokens / seconds:,.0f} tokens/s" if self.num_tokens else ""
        )
        self.bar.update(round(self.num_bytes / 1e6, 1), text)
