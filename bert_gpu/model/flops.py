"""How much arithmetic a training step takes.

FLOPs are counted as PaLM does it (Chowdhery et al. 2022, appendix B; Kaplan et al. 2020, 2.1, with
the attention products added): products of matrices alone, two for each multiply-add, and a backward
pass of twice the forward one. Lookups (also those that are done as products), normalisation,
softmax, dropout and the optimizer count nothing, and the masked-word head counts at the P places
where it is computed, not at all S. Each block says its multiply-adds beside the code that computes
them, as functions *_products; here they are summed over a row of S tokens with P masked words and K
sentence vectors.

Model FLOPs are what the mathematics asks for; hardware FLOPs are what is computed: layers run
forward once more where activations are recomputed (all of it, though a compiler may find a
product of theirs that nobody reads), and packed rows are multiplied over all their S^2 pairs, of
which T S are within a sequence. Padding is computed, so it counts in both; what real tokens get
of it is said apart.
"""

import dataclasses
import typing

import numpy as np

from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import mlm_products, nsp_products


class Flops(typing.NamedTuple):
    """Floating-point operations of forward and backward passes: `model` needed,
    `hardware` computed.
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
          attended: T, the mean over the places of a row of how many tokens they attend to; None =
            S, rows of one sequence.
          num_sequences: K, sentence vectors of a row.
        """
        config, computed = self.encoder.config, self.encoder.token_products(length)
        needed = computed if attended is None else self.encoder.token_products(attended)
        others = length * computed.embeddings + num_predictions * mlm_products(config)
        if self.next_sentence:
            others += num_sequences * nsp_products(config)
        hardware = 6.0 * (length * computed.layers + others) + 2.0 * length * computed.recomputed
        return Flops(model=6.0 * (length * needed.layers + others), hardware=hardware)

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
    """(mean over all places of how many places their sequence has, mean number of sequences in a
    row) of packed rows: int (B, S).

    Padding (0) counts as one sequence for the first: attention computes it too.
    """
    starts = np.ones_like(sequence_ids, bool)
    starts[:, 1:] = sequence_ids[:, 1:] != sequence_ids[:, :-1]
    sizes = np.diff(np.append(np.flatnonzero(starts), sequence_ids.size)).astype(np.float64)
    return float(np.sum(sizes**2) / sequence_ids.size), float(
        np.sum(starts & (sequence_ids > 0)) / len(sequence_ids)
    )
