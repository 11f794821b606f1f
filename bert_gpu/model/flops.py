"""Counts the floating-point operations (FLOPs) of a training step.

FLOPs are counted as in PaLM (Chowdhery et al. 2022, appendix B; Kaplan et al. 2020, 2.1, with the
attention products added): only matrix products, two FLOPs for each multiply-add, and a backward
pass of twice the forward one. Lookups (also those done as products), normalisation, softmax,
dropout and the optimizer count nothing. The masked-word head counts at the P masked positions,
where it is computed, not at all S; so does the last layer, at the P masked words and K sentence
vectors, which alone are read, but for the keys and values of all tokens. Each block states its
multiply-adds beside its code, in functions *_products; this module sums them over a row of S tokens
with P masked words and K sentence vectors.

Model FLOPs are what the mathematics needs; hardware FLOPs are what is computed. They differ where
activations are recomputed, which runs the layers forward once more (counted in full, although a
compiler may drop an unused product), and in packed rows, which are multiplied over all S^2 pairs,
of which T S are within a sequence. The engine adds an optimizer's matrix products (Muon's) to the
hardware FLOPs. Padding is computed, so both counts include it; throughput of real tokens is
reported separately.
"""

import dataclasses
import typing

import numpy as np

from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import mlm_products, nsp_products


class Flops(typing.NamedTuple):
    """Floating-point operations of the forward and backward passes: `model` as needed, `hardware`
    as computed.
    """

    model: float
    hardware: float


@dataclasses.dataclass(frozen=True)
class FlopsCounter:
    """Counts the FLOPs of pretraining.

    encoder: an Encoder whose products are known. next_sentence: whether there is a pooler with a
    head of two classes.
    """

    encoder: Encoder
    next_sentence: bool

    def per_row(self, length, num_predictions, *, attended=None, num_sequences=1):
        """Flops of one row.

        Args:
          length: S. num_predictions: P.
          attended: T, the number of tokens that a position attends to, averaged over the row; None
            = S, for rows of one sequence.
          num_sequences: K, sentence vectors of a row.
        """
        config, computed = self.encoder.config, self.encoder.token_products(length)
        needed = computed if attended is None else self.encoder.token_products(attended)
        others = length * computed.embeddings + num_predictions * mlm_products(config)
        num_read = num_predictions
        if self.next_sentence:
            others += num_sequences * nsp_products(config)
            num_read += num_sequences
        num_unread = length - num_read
        layers = length * computed.layers - num_unread * computed.unread
        again = length * computed.recomputed
        if computed.recomputed:
            again -= num_unread * computed.unread
        return Flops(
            model=6.0 * (length * needed.layers - num_unread * needed.unread + others),
            hardware=6.0 * (layers + others) + 2.0 * again,
        )

    def per_batch(self, batch):
        """Flops of a batch of arrays (or tensors) in Google's features, with or without
        "sequence_ids" for packed rows.
        """
        num_rows, length = np.shape(batch["input_mask"])
        attended, num_sequences = None, 1
        if "sequence_ids" in batch:
            attended, num_sequences = packed_means(np.asarray(batch["sequence_ids"]))
        row = self.per_row(
            length,
            np.shape(batch["masked_lm_positions"])[1],
            attended=attended,
            num_sequences=num_sequences,
        )
        return Flops(model=num_rows * row.model, hardware=num_rows * row.hardware)


def packed_means(sequence_ids):
    """(mean over all positions of the length of their sequence, mean number of sequences in a row)
    of packed rows: int (B, S).

    In the first, the padding of a row (0) counts as a sequence, because attention computes it too.
    """
    starts = np.ones_like(sequence_ids, bool)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    sizes = np.diff(np.append(np.flatnonzero(starts), sequence_ids.size)).astype(np.float64)
    return float(np.sum(sizes**2) / sequence_ids.size), float(
        np.sum(starts & (sequence_ids > 0)) / len(sequence_ids)
    )
