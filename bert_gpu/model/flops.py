"""Counts the floating-point operations (FLOPs) of a training step.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B; Kaplan et al. 2020, 2.1, with the
attention products added): only matrix products, two FLOPs for each multiply-add, and a backward
pass of twice the forward one. Lookups (also those done as products), normalisation, softmax,
dropout and the optimizer count nothing. A head counts only for the positions that it reads, not for
all S; so does the last layer, except for its keys and values, which count for all tokens. Each
block states its multiply-adds beside its code, in functions *_products; this module sums them over
a row of S tokens.

Model FLOPs are those that the mathematics needs; hardware FLOPs are those that are computed. They
differ where activations are recomputed, which runs the layers forward once more (counted in full,
although a compiler may drop an unused product), and in packed rows, where attention is computed for
all S^2 pairs of tokens, of which T S are within a sequence (a token attends to T tokens on
average). They differ likewise in local layers, where T S pairs are within the window, and S^2 are
computed or, in blocks, S times twice the window. The engine adds an optimizer's matrix products
(Muon's) to the hardware FLOPs. Padding is computed, so both counts include it; throughput of real
tokens is reported separately.
"""

import dataclasses
import typing
from collections.abc import Mapping, Sequence

import numpy as np

from bert_gpu.model.encoders import Encoder


class Flops(typing.NamedTuple):
    """Floating-point operations of the forward and backward passes: those that the model needs, and
    those that the hardware computes.
    """

    model: float
    hardware: float


@dataclasses.dataclass(frozen=True)
class FlopsCounter:
    """Counts the FLOPs of pretraining. encoder: an Encoder whose `token_products` does not return
    None.
    """

    encoder: Encoder

    def per_row(
        self,
        length: int,
        heads: Sequence[tuple[int, int]],
        *,
        attended: tuple[float, float] | None = None,
    ) -> Flops:
        """Return the Flops of one row.

        Args:
          length: S. heads: for each head (number of hidden states of a row that it reads,
            multiply-adds for each of them).
          attended: T, the number of tokens that a position attends to, averaged over the row, and
            the same in local layers; None = as many as are computed.
        """
        computed = self.encoder.token_products(length)
        needed = computed if attended is None else self.encoder.token_products(*attended)
        assert computed is not None and needed is not None
        others = length * computed.embeddings
        for num_read, products in heads:
            others += num_read * products
        num_unread = length - sum(num_read for num_read, _ in heads)
        layers = length * computed.layers - num_unread * computed.unread
        again = length * computed.recomputed
        if computed.recomputed:
            again -= num_unread * computed.unread
        return Flops(
            model=6.0 * (length * needed.layers - num_unread * needed.unread + others),
            hardware=6.0 * (layers + others) + 2.0 * again,
        )

    def per_batch(self, batch: Mapping[str, np.ndarray], heads: Sequence[tuple[int, int]]) -> Flops:
        """Return the Flops of a batch, {feature: array or tensor} with the feature names of
        Google's BERT, and with "sequence_ids" for packed rows. heads: as for `per_row`.
        """
        num_rows, length = np.shape(batch["input_mask"])
        ids = np.asarray(batch.get("sequence_ids", np.ones([1, length])))
        attended = mean_attended(ids), mean_attended(ids, self.encoder.config.reach)
        row = self.per_row(length, heads, attended=attended)
        return Flops(model=num_rows * row.model, hardware=num_rows * row.hardware)


def mean_attended(sequence_ids: np.ndarray, reach: int | None = None) -> float:
    """Return the mean number of tokens that a token attends to, over all tokens of packed rows: all
    of its sequence or, with local attention, those at most `reach` tokens away. sequence_ids: int
    (B, S). Padding (id 0) counts as a sequence, because attention is computed for it too.
    """
    starts = np.ones_like(sequence_ids, bool)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    lengths = np.diff(np.append(np.flatnonzero(starts), sequence_ids.size)).astype(np.float64)
    reaches = np.minimum(lengths - 1, np.inf if reach is None else reach)
    # of L tokens, L - d have one that is d tokens to the right, for each d up to the reach
    pairs = lengths * (1 + 2 * reaches) - reaches * (reaches + 1)
    return float(np.sum(pairs) / sequence_ids.size)
