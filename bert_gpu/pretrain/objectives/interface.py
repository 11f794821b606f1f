"""The interface of a pretraining objective.

Legend: B batch, H hidden, K hidden states that an objective reads of each row.
"""

import abc
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import tensorflow as tf

from bert_gpu.model.config import ModelConfig
from bert_gpu.model.layers import sizes
from bert_gpu.model.weights import WeightSpec
from bert_gpu.text.tokenizers.wordpiece import Tokenizer


class PretrainingObjective(abc.ABC):
    """A head on some of the encoder's hidden states, with its losses and measures.

    features: names of the features of a batch that the objective reads, beside the encoder's.
    heads: names in interop.heads.HEADS of the heads that the objective trains, which are exported.
    A head that is not in that table is saved in checkpoints only.
    measures: {measure: the loss whose count divides it}; measures are sums that `sums` returns
    beside the losses.
    validation_metrics: names of the metrics that `metrics` returns; the mean of NAME_loss is part
    of "loss".
    reuses_words: whether the objective reads the word embeddings, whose gradients then have two
    parts.
    """

    features: ClassVar[tuple[str, ...]] = ()
    heads: ClassVar[tuple[str, ...]] = ()
    measures: ClassVar[Mapping[str, str]] = {}
    validation_metrics: ClassVar[tuple[str, ...]] = ()
    reuses_words: ClassVar[bool] = False

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None) -> None:
        """Keep the model's config and the tokenizer of the data; tokenizer: None = not known."""
        self.config = config
        self.tokenizer = tokenizer

    @abc.abstractmethod
    def weights(self) -> dict[str, WeightSpec]:
        """Return {name: WeightSpec} of the head's weights, without the encoder's."""

    @abc.abstractmethod
    def positions(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Return the positions in each row whose hidden states the objective reads: int32 (B, K),
        for B rows of K positions.
        """

    @abc.abstractmethod
    def num_read(self, batch: Mapping[str, np.ndarray]) -> int:
        """Return how many hidden states the objective reads of each row of a batch."""

    @abc.abstractmethod
    def products(self) -> int:
        """Return the number of multiply-adds that the head does for one hidden state."""

    @abc.abstractmethod
    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Return {loss: float32 scalar}, the number by which the sum of this loss over a batch is
        divided; needs no forward pass.
        """

    @abc.abstractmethod
    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tf.Tensor]:
        """Return {loss or measure: float32 scalar}, sums over a batch. hidden: (B, K, H), the K
        hidden states of size H that the objective reads of each of B rows.
        """

    @abc.abstractmethod
    def metrics(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Return {validation metric: (sum, count)} of a batch. hidden: (B, K, H), the K hidden
        states of size H that the objective reads of each of B rows.
        """


def row_weights(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the weights of the rows, float32 (B,): 0 for rows that only fill the batch."""
    if "row_weights" in batch:
        return tf.cast(batch["row_weights"], tf.float32)
    return tf.ones([sizes(batch["input_ids"])[0]])
