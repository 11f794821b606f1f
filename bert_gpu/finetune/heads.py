"""The heads of tasks on an encoder, a row each: their weights, and the scores that they compute.

Legend: B batch, S sequence, C classes.
"""

import typing
from collections.abc import Callable

import tensorflow as tf

from bert_gpu.model.heads import (
    classifier_logits,
    classifier_weights,
    sentence_vector,
    token_classifier_weights,
    token_logits,
)


class Head(typing.NamedTuple):
    """A head.

    name: how the names of its weights begin. architecture: the class of transformers with it.
    weights: (encoder, num_classes) -> {name: WeightSpec} with the encoder's.
    logits: (weights, batch, encoder, dtype, seed) -> scores of each row, (B, ...); seed None
    switches dropout off. beside: how the names of what else is its own begin.
    """

    name: str
    architecture: str
    weights: Callable
    logits: Callable
    beside: tuple[str, ...] = ()


def class_logits(weights, batch, encoder, dtype, seed=None):
    """(B, C) in the compute dtype. The sentence vector has the dropout of the hidden states, as in
    Google's BERT.
    """
    config, hidden = encoder.config, encoder.encode(weights, batch, dtype=dtype, seed=seed)
    return classifier_logits(
        weights,
        sentence_vector(weights, hidden, batch["input_mask"], config),
        seed,
        config.hidden_dropout_prob,
    )


def tag_logits(weights, batch, encoder, dtype, seed=None):
    """(B, S, C) in the compute dtype, with the dropout of the hidden states, as in Hugging Face's
    BertForTokenClassification.
    """
    hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
    return token_logits(weights, hidden, seed, encoder.config.hidden_dropout_prob)


CLASSIFIER = Head(
    "classifier",
    "BertForSequenceClassification",
    classifier_weights,
    class_logits,
    beside=("pooler/",),
)
TOKEN_CLASSIFIER = Head(
    "token_classifier", "BertForTokenClassification", token_classifier_weights, tag_logits
)
HEADS = (CLASSIFIER, TOKEN_CLASSIFIER)


def rows_of(tensor):
    """(B, S, C) -> (B x S, C)."""
    return tf.reshape(tensor, [-1, tensor.shape[-1]])
