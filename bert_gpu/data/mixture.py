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
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from bert_gpu.base.compiled import compiled
from bert_gpu.data.random_bits import derive_key, permutation

UNIT = 1 << 40  # shares of the records are multiples of 1 / UNIT, so that sums of them are exact
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

    change_share: the share of the run at which the weights change; inf = never. changed: the number
    of the first record that the later weights choose; NEVER = not decided yet.
    """

    sets: Sequence[MixedSet]
    change_share: float = math.inf
    changed: int = NEVER

    def rows(self, num_read: float, first: float = NEVER) -> list[tuple[str, str]]:
        """Return a row (label, text) for each set. num_read: records of all sets that the run
        reads; 0 = not known. first: those before the weights change, if that is not decided yet.
        """
        shares = self.quotas() / UNIT
        first = min(num_read, first if self.changed == NEVER else self.changed)
        rows = []
        for number, (one, *share) in enumerate(zip(self.sets, *shares, strict=True), 1):
            weights = ", then ".join(f"{weight:.3g}" for weight in one.weights)
            epochs = (first * share[0] + (num_read - first) * share[-1]) / one.num_records
            read = f"; {epochs:,.2f} epochs = {epochs * one.dupe_factor:,.2f} passes over its text"
            text = (
                f"{one.name}: {weights} of the tokens; {one.num_records:,} records of "
                f"{one.tokens_per_record:.4g} tokens{read if num_read else ''}"
            )
            rows.append((f"data set {number}", text))
        return rows

    def quotas(self) -> np.ndarray:
        """Return the shares of the records x UNIT (1 or 2, K), at first and later."""
        rates = [np.array(one.weights) / one.tokens_per_record for one in self.sets]
        shares = np.transpose(rates) / np.sum(rates, 0)[:, None]
        quotas = np.maximum(1, np.rint(shares * UNIT)).astype(np.int64, order="C")
        quotas[range(len(quotas)), np.argmax(quotas, 1)] += UNIT - quotas.sum(1)
        return quotas

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
        cached = [functools.lru_cache(1)(functools.partial(order_of, n)) for n in range(len(sizes))]
        offsets = np.cumsum(sizes) - sizes
        state = np.zeros((3, len(sizes)), np.int64)
        changed = -(-self.changed // unit) * unit
        quotas = self.quotas()
        for window in itertools.count():
            sets, places = np.empty((2, size), np.int64)
            choose(quotas, state, window * size, changed, sets, places)
            if window < first:
                continue
            epochs, places = np.divmod(places, sizes[sets])
            for number, epoch in sorted(set(zip(sets.tolist(), epochs.tolist(), strict=True))):
                is_own = (sets == number) & (epochs == epoch)
                places[is_own] = cached[number](epoch)[places[is_own]]
            yield epochs * sizes.sum() + offsets[sets] + places


@compiled
def choose(
    quotas: np.ndarray,
    state: np.ndarray,
    position: int,
    changed: int,
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

    quotas (1 or 2, K): shares of the records x UNIT, at first and later. state (3, K), updated: how
    many records each set is behind, x UNIT; the record number before which its next record must
    come; its records so far. position: records of the run so far. changed: number of the first
    record for the later shares.
    """
    behind = state[0]
    deadlines = state[1]
    for index in range(len(sets)):
        number = position + index
        phase = int(number >= changed)
        if number == 0 or number == changed:
            behind[:] = 0
            deadlines[:] = number + (UNIT + quotas[phase] - 1) // quotas[phase]
        chosen = -1
        for one in range(len(behind)):
            behind[one] += quotas[phase, one]
            if behind[one] > 0 and (chosen < 0 or deadlines[one] < deadlines[chosen]):
                chosen = one
        behind[chosen] -= UNIT
        quota = quotas[phase, chosen]
        deadlines[chosen] = number + 1 + (UNIT - behind[chosen] + quota - 1) // quota
        sets[index] = chosen
        places[index] = state[2, chosen]
        state[2, chosen] += 1
