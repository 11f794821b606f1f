"""The objective of masked words (Devlin et al. 2018, section 3.1): predict the word at each masked
position.

Legend: B batch, H hidden, P predictions of a row.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import has_gpu
from bert_gpu.data.examples import MASKED_WORDS
from bert_gpu.model import heads
from bert_gpu.model.weights import WeightSpec
from bert_gpu.pretrain.objectives.interface import PretrainingObjective, row_weights


class Objective(PretrainingObjective):
    """Predicts the words at the P masked positions of a row; the word embeddings serve as the
    output layer's kernel.
    """

    features = MASKED_WORDS
    heads = ("mlm",)
    measures = {"mlm_accuracy": "mlm"}
    validation_metrics = ("mlm_loss", "mlm_accuracy")
    reuses_words = True

    def weights(self) -> dict[str, WeightSpec]:
        return heads.mlm_weights(self.config)

    def positions(self, batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
        return tf.cast(batch["masked_lm_positions"], tf.int32)

    def num_read(self, batch: Mapping[str, np.ndarray]) -> int:
        return np.shape(batch["masked_lm_positions"])[1]

    def products(self) -> int:
        return heads.mlm_products(self.config)

    def counts(self, batch: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {"mlm": tf.reduce_sum(word_weights(batch))}

    def sums(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tf.Tensor]:
        tile = heads.TILE if has_gpu() else 1
        logits, bias = heads.mlm_product(weights, hidden, self.config, dtype, tile)
        loss, correct = heads.summed_loss_and_correct(
            logits, batch["masked_lm_ids"], word_weights(batch), bias
        )
        return {"mlm": loss, "mlm_accuracy": correct}

    def metrics(
        self,
        weights: Mapping[str, tf.Tensor],
        hidden: tf.Tensor,
        batch: Mapping[str, tf.Tensor],
        dtype: tf.DType,
    ) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        logits = heads.chosen_mlm_logits(weights, hidden, self.config, dtype)
        labels = batch["masked_lm_ids"], word_weights(batch)
        return {
            "mlm_loss": heads.summed_loss(logits, *labels),
            "mlm_accuracy": heads.summed_correct(logits, *labels),
        }


def word_weights(batch: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Return the weights of the masked words, float32 (B, P) for P words in each of B rows: 0 for
    those that only fill a row or the batch.
    """
    return tf.cast(batch["masked_lm_weights"], tf.float32) * row_weights(batch)[:, None]
