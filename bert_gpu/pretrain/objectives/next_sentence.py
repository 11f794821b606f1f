"""The objective of the next sentence (Devlin et al. 2018, section 3.1): predict whether the second
segment follows the first or, with other labels in the records, whether the two are in order (Lan et
al. 2019, section 3.1).

Legend: B batch, H hidden.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.model import heads
from bert_gpu.model.layers import sizes
from bert_gpu.model.weights import WeightSpec
from bert_gpu.pretrain.objectives.interface import PretrainingObjective, row_weights


class Objective(PretrainingObjective):
    """Predicts the label of a pair from the first position of its row, [CLS]."""

    features = ("next_sentence_labels",)
    heads = ("pooler", "nsp")
    validation_metrics = ("nsp_loss", "nsp_accuracy")

    def weights(self) -> dict[str, WeightSpec]:
        return heads.nsp_weights(self.config)

    def positions(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return tf.zeros([sizes(batch["input_ids"])[0], 1], tf.int32)

    def num_read(self, batch: Mapping[str, np.ndarray]) -> int:
        return 1

    def products(self) -> int:
        return heads.nsp_products(self.config)

    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"nsp": tf.reduce_sum(row_weights(batch))}

    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tf.Tensor]:
        logits = heads.nsp_logits(weights, heads.pool(weights, hidden))
        loss, _ = heads.summed_loss(logits, batch["next_sentence_labels"], row_weights(batch))
        return {"nsp": loss}

    def metrics(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        logits = heads.nsp_logits(weights, heads.pool(weights, hidden))
        labels = batch["next_sentence_labels"], row_weights(batch)
        return {
            "nsp_loss": heads.summed_loss(logits, *labels),
            "nsp_accuracy": heads.summed_correct(logits, *labels),
        }
