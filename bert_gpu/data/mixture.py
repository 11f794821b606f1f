"""Mixes data sets by weight: chooses the set of each record of a run.

Weights are shares of the tokens; the mean tokens of a set's records turn them into shares of the
records. After n records each set has given n times its share, to within one record. The choice
depends on the shares and the record number alone, so the position of a run in its data stays one
number.

Legend: K data sets, W records of a window.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_gpu.base.compiled import compiled
from bert_gpu.data.random_bits import derive_key, permutation

NEVER = 1 << 62  # a record number that no run reaches


class MixedSet(NamedTuple):
    """One data set of a mixture.

    dupe_factor: passes over the text that its records hold. tokens_per_record: mean, without
    padding. weights: shares of the tokens, at first and after the weights have changed; one number
    if they never do.
    """

    name: str
    num_records: int
    dupe_factor: int
    tokens_per_record: float
    weights: Sequence[float]


@dataclasses.dataclass
class Mixture:
    """The data sets of a run, in the order of their records, and the change of their weights.

    change_share: the share of the run at which the weights change; 1 = never. changed: the number
    of the first record that the later weights choose; NEVER = not decided yet.
    """

    sets: Sequence[MixedSet]
    change_share: float = 1.0
    changed: int = NEVER

    def rows(self, num_read: float) -> list[tuple[str, str]]:
        """Return a row (label, text) for each set. num_read: records of all sets that the run
        reads; 0 = not known.
        """
        first = num_read * self.change_share if self.changed == NEVER else self.changed
        last = max(0, num_read - first)
        rows = []
        for number, (one, *share) in enumerate(zip(self.sets, *self.shares(), strict=True), 1):
            weights = ", then ".join(f"{weight:.3g}" for weight in one.weights)
            epochs = ((num_read - last) * share[0] + last * share[-1]) / one.num_records
            read = f"; {epochs:,.2f} epochs = {epochs * one.dupe_factor:,.2f} passes over its text"
            text = (
                f"{one.name}: {weights} of the tokens; {one.num_records:,} records of "
                f"{one.tokens_per_record:.4g} tokens{read if num_read else ''}"
            )
            rows.append((f"data set {number}", text))
        return rows

    def shares(self) -> np.ndarray:
        """Return the shares of the records (1 or 2, K), at first and later."""
        rates = [np.array(one.weights) / one.tokens_per_record for one in self.sets]
        return np.ascontiguousarray(np.transpose(rates / np.sum(rates, 0)))

    def orders(self, first: int, size: int, seed: int | None, unit: int) -> Iterator[np.ndarray]:
        """Yield the records of window number `first`, and of each later one, in their order: epoch
        of the record's set x N + record index (W,).

        N: records of all sets. size: W. seed: of the order of each epoch; None = the order of the
        files. unit: the weights change at a multiple of this record number.
        """

        def order_of(number: int, epoch: int) -> np.ndarray:
            if seed is None:
                return np.arange(sizes[number])
            return permutation(derive_key(seed, "data set", number, epoch), sizes[number])

        sizes = np.array([one.num_records for one in self.sets])
        # one order of each set, so that the epochs of a small set do not evict that of a large one
        cached = [functools.lru_cache(1)(functools.partial(order_of, n)) for n in range(len(sizes))]
        offsets = np.cumsum(sizes) - sizes
        shares = self.shares()
        # records of each set so far, before and after the weights have changed
        counts = np.zeros((2, len(sizes)), np.int64)
        changed = -(-self.changed // unit) * unit

        for window in itertools.count():
            sets, places = np.empty((2, size), np.int64)
            change = min(max(0, changed - window * size), size)
            choose(shares[0], counts[0], counts[1], sets[:change], places[:change])
            choose(shares[-1], counts[1], counts[0], sets[change:], places[change:])
            if window < first:
                continue
            epochs, places = np.divmod(places, sizes[sets])
            for number, epoch in sorted(set(zip(sets.tolist(), epochs.tolist(), strict=True))):
                is_own = (sets == number) & (epochs == epoch)
                places[is_own] = cached[number](epoch)[places[is_own]]
            yield epochs * sizes.sum() + offsets[sets] + places


@compiled
def choose(
    shares: np.ndarray,
    counts: np.ndarray,
    others: np.ndarray,
    sets: np.ndarray,
    places: np.ndarray,
) -> None:
    """Write the set of each of the next records into `sets` (W,), and how many records of this set
    come before it into `places` (W,).

    A set's next record may come as soon as the set is behind its share, and must come before the
    set is behind by a whole record. Of the sets whose record may come, the one is chosen that must
    come first. That this is always in time is known of Pfair scheduling on one processor (Baruah et
    al. 1996, "Proportionate progress"). To choose the set that is behind most is not enough: among
    30 sets, one came to be behind by two records.

    shares (K,): of the records. counts (K,), updated: records of each set that these shares have
    chosen. others (K,): records of each set that other shares have chosen.
    """
    number = counts.sum()
    for index in range(len(sets)):
        number += 1
        chosen = -1
        earliest = np.inf
        for one in range(len(shares)):
            due = (counts[one] + 1) / shares[one]
            if counts[one] < number * shares[one] and due < earliest:
                chosen = one
                earliest = due
        sets[index] = chosen
        places[index] = others[chosen] + counts[chosen]
        counts[chosen] += 1
