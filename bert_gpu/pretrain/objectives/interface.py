"""What a pretraining objective has.

Legend: B batch, H hidden, K hidden states that an objective reads of each row.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from bert_gpu.model.layers import sizes


class PretrainingObjective:
    """A head on some of the encoder's hidden states, its losses, and what is measured of it.

    features: names of the features of a batch that it reads, beside the encoder's.
    heads: those of interop.heads.HEADS that it trains; the exported class has them. A head that is
    in no table stays in checkpoints alone.
    measures: {name: the loss whose count divides it} of what `sums` returns beside the losses.
    validation_metrics: names of what `metrics` returns; the mean of NAME_loss is part of "loss".
    reuses_words: whether it reads the word embeddings, whose gradients then have two parts.
    """

    features: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, str]] = {}
    validation_metrics: ClassVar[tuple[str, ...]] = ()
    reuses_words: ClassVar[bool] = False

    def __init__(self, config: Any, tokenizer: Any = None) -> None:
        """Take a ModelConfig and the tokenizer of the data, None where it is not known."""
        self.config, self.tokenizer = config, tokenizer

    def weights(self) -> dict:
        """{name: WeightSpec} beside the encoder's."""

    def positions(self, batch: Mapping) -> tf.Tensor:
        """The positions whose hidden states it reads: int32 (B, K)."""

    def num_read(self, batch: Mapping) -> int:
        """K of a batch of arrays."""

    def products(self) -> int:
        """Multiply-adds of its head for one hidden state."""

    def counts(self, batch: Mapping) -> dict[str, tf.Tensor]:
        """{loss: float32 scalar} that each sum is divided by; needs no forward pass."""

    def sums(
        self, weights: Mapping, hidden: tf.Tensor, batch: Mapping, dtype: tf.DType
    ) -> dict[str, tf.Tensor]:
        """{loss or measure: float32 scalar}, sums over a batch, from hidden (B, K, H)."""

    def metrics(
        self, weights: Mapping, hidden: tf.Tensor, batch: Mapping, dtype: tf.DType
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """{validation metric: (sum, count)} of a batch, from hidden (B, K, H)."""


def row_weights(batch: Mapping) -> tf.Tensor:
    """Weights of the rows, float32 (B,): 0 for those that only fill the batch."""
    if "row_weights" in batch:
        return tf.cast(batch["row_weights"], tf.float32)
    return tf.ones([sizes(batch["input_ids"])[0]])
