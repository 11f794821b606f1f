"""Parts of a table: a share of its rows for each split, and the hashes that decide on it."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
import math
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Part:
    """The rows of a table that belong to a split, by the number that `share_of` makes of a row:
    "train" has the numbers in train_only and those from train_from on, "test" of the others those
    below test_to, and "dev" the rest. split: name of the split, None for all rows.
    """

    split: str | None = None
    test_to: float = 0.0
    train_from: float = 0.0
    train_only: frozenset[float] = frozenset()

    def takes(self, texts: Iterable[str | None]) -> bool:
        return self.split is None or self.split == self._split_of(share_of(texts))

    def _split_of(self, share: float) -> str:
        if share >= self.train_from or share in self.train_only:
            return "train"
        return "test" if share < self.test_to else "dev"

    def fitted(self, shares: Iterable[float]) -> Part:
        """Return the Part with its bounds moved up so that neither "test" nor "dev" is empty: a
        split without texts gets the text with the next higher share, unless that would leave
        nothing to train on. shares: the `share_of` of all rows.
        """
        texts = sorted(set(shares))
        begin = 0
        bounds: list[float] = []
        for low, high in ((0.0, self.test_to), (self.test_to, self.train_from)):
            is_empty = low < high and bisect.bisect_left(texts, high) <= begin < len(texts) - 1
            bounds.append(math.nextafter(texts[begin], 1) if is_empty else max([high, *bounds]))
            begin = bisect.bisect_left(texts, bounds[-1])
        return dataclasses.replace(self, test_to=bounds[0], train_from=bounds[1])

    def describe(self) -> str:
        """Return, as text, the range of `share_of` that the Part's rows have, such as ", share 0 to
        0.1"; "" for all rows.
        """
        if self.split is None:
            return ""
        bounds = (0.0, self.test_to, self.train_from, 1.0)
        place = ("test", "dev", "train").index(self.split)
        low, high = bounds[place : place + 2]
        only = f", {len(self.train_only)} texts only to train" if self.train_only else ""
        return f", share {low:g} to {high:g}{only}"


def share_of(texts: Iterable[str | None]) -> float:
    """Return a number in [0, 1) that depends only on the texts of an example, not on their order,
    so that equal examples stay in one split whenever and wherever a table is split.
    """
    return hash_of(*texts) / 2**64


def hash_of(*texts: str | None) -> int:
    """Return a number in [0, 2**64) that depends on some texts and not on their order."""
    joined = "\0".join(sorted(text or "" for text in texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(joined).digest()[:8], "big")
