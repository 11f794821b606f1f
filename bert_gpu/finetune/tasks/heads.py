"""The heads of tasks on an encoder, a row each: their weights, and the scores that they compute.

Legend: B batch, S sequence, C classes.
"""

import typing
from collections.abc import Callable

import tensorflow as tf

from bert_gpu.model.heads import (
    classifier_logits,
    classifier_weights,
    sentence_positions,
    sentence_vector,
    span_logits,
    span_weights,
    token_classifier_weights,
    token_logits,
)

MASKED_SCORE = -1e9  # of a token that cannot be chosen


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
    config = encoder.config
    hidden = encoder.encode(
        weights, batch, dtype=dtype, seed=seed, positions=sentence_positions(batch, config)
    )
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


def answer_logits(weights, batch, encoder, dtype, seed=None):
    """float32 (B, S, 2): the scores of each token as an answer's first and as its last,
    MASKED_SCORE where there is only padding, so that no result depends on how much there is.
    """
    hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
    scores = tf.cast(tf.stack(span_logits(weights, hidden), -1), tf.float32)
    return tf.where(batch["input_mask"][:, :, None] > 0, scores, MASKED_SCORE)


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
SPAN = Head(
    "span", "BertForQuestionAnswering", lambda encoder, _: span_weights(encoder), answer_logits
)
HEADS = (CLASSIFIER, TOKEN_CLASSIFIER, SPAN)


def rows_of(tensor):
    """(B, S, C) -> (B x S, C)."""
    return tf.reshape(tensor, [-1, tensor.shape[-1]])
