"""A pretraining objective for tests: how many characters has the masked piece?

Legend: B batch, H hidden, P predictions of a row.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.data.examples import MASKED_WORDS
from bert_gpu.model import heads
from bert_gpu.model.layers import dense
from bert_gpu.model.weights import dense_products, dense_weights
from bert_gpu.pretrain.objectives.interface import PretrainingObjective
from bert_gpu.pretrain.objectives.masked_words import word_weights

LONGEST = 15  # characters; longer pieces count as these


class Objective(PretrainingObjective):
    """Reads the P masked positions of a row; a head of its own scores the lengths 0 to LONGEST."""

    features = MASKED_WORDS
    measures = {"piece_length_accuracy": "piece_length"}
    validation_metrics = ("piece_length_loss", "piece_length_accuracy")

    def __init__(self, config, tokenizer=None):
        super().__init__(config, tokenizer)
        lengths = [min(len(piece.removeprefix("##")), LONGEST) for piece in tokenizer.vocab]
        self.lengths = np.array(lengths, np.int32)

    def weights(self):
        return dense_weights(self.config, "piece_length", self.config.hidden_size, LONGEST + 1)

    def positions(self, batch):
        return tf.cast(batch["masked_lm_positions"], tf.int32)

    def num_read(self, batch):
        return np.shape(batch["masked_lm_positions"])[1]

    def products(self):
        return dense_products(self.weights())

    def counts(self, batch):
        return {"piece_length": tf.reduce_sum(word_weights(batch))}

    def sums(self, weights, hidden, batch, dtype):
        loss, correct = heads.summed_loss_and_correct(*self._scored(weights, hidden, batch))
        return {"piece_length": loss, "piece_length_accuracy": correct}

    def metrics(self, weights, hidden, batch, dtype):
        scored = self._scored(weights, hidden, batch)
        return {
            "piece_length_loss": heads.summed_loss(*scored),
            "piece_length_accuracy": heads.summed_correct(*scored),
        }

    def _scored(self, weights, hidden, batch):
        """Scores (B x P, LONGEST + 1), lengths (B, P) and their weights (B, P)."""
        rows = tf.reshape(hidden, [-1, self.config.hidden_size])
        lengths = tf.gather(self.lengths, tf.cast(batch["masked_lm_ids"], tf.int32))
        return dense(weights, "piece_length", rows), lengths, word_weights(batch)
