"""Next sentence (Devlin et al. 2018, section 3.1): does the second segment follow the first? Or, as
the records' labels say, are the two in order (Lan et al. 2019, section 3.1)?

Legend: B batch, H hidden.
"""

import tensorflow as tf

from bert_gpu.model import heads
from bert_gpu.model.layers import sizes
from bert_gpu.pretrain.objectives.interface import PretrainingObjective, row_weights


class Objective(PretrainingObjective):
    """Reads the first position of a row, [CLS]."""

    features = ("next_sentence_labels",)
    heads = ("pooler", "nsp")
    validation_metrics = ("nsp_loss", "nsp_accuracy")

    def weights(self):
        return heads.nsp_weights(self.config)

    def positions(self, batch):
        return tf.zeros([sizes(batch["input_ids"])[0], 1], tf.int32)

    def num_read(self, batch):
        return 1

    def products(self):
        return heads.nsp_products(self.config)

    def counts(self, batch):
        return {"nsp": tf.reduce_sum(row_weights(batch))}

    def sums(self, weights, hidden, batch, dtype):
        logits = heads.nsp_logits(weights, heads.pool(weights, hidden))
        loss, _ = heads.summed_loss(logits, batch["next_sentence_labels"], row_weights(batch))
        return {"nsp": loss}

    def metrics(self, weights, hidden, batch, dtype):
        logits = heads.nsp_logits(weights, heads.pool(weights, hidden))
        labels = batch["next_sentence_labels"], row_weights(batch)
        return {
            "nsp_loss": heads.summed_loss(logits, *labels),
            "nsp_accuracy": heads.summed_correct(logits, *labels),
        }
