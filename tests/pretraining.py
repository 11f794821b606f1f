"""The objectives of pretraining on an encoder, for tests: masked words, and next sentences where
there are labels.
"""

import tensorflow as tf

from bert_gpu.pretrain.objectives.joint import open_objective
from bert_gpu.pretrain.objectives.table import OBJECTIVES


def objective(encoder, next_sentence=True):
    """The JointObjective on an Encoder."""
    return open_objective(("mlm", "nsp") if next_sentence else ("mlm",), encoder)


def weights(encoder, next_sentence=True):
    return objective(encoder, next_sentence).weights()


def of_batch(encoder, batch):
    return objective(encoder, "next_sentence_labels" in batch)


def sums(weights, batch, encoder, *, dtype=tf.float32, seed=None):
    return of_batch(encoder, batch).sums(weights, batch, dtype, seed)


def losses(weights, batch, encoder, *, dtype=tf.float32, seed=None):
    """The losses among `sums`."""
    found = sums(weights, batch, encoder, dtype=dtype, seed=seed)
    return {name: value for name, value in found.items() if name in OBJECTIVES}


def counts(batch):
    names = ("mlm", "nsp") if "next_sentence_labels" in batch else ("mlm",)
    parts = (OBJECTIVES[name].module.Objective(None) for name in names)
    return {name: count for part in parts for name, count in part.counts(batch).items()}


def metrics(weights, batch, encoder, dtype=tf.float32):
    return of_batch(encoder, batch).metrics(weights, batch, dtype)
