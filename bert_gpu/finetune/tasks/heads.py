"""The heads of tasks on an encoder, a row each: the scores that they compute.

Legend: B batch, S sequence, C classes.
"""

import typing
from collections.abc import Callable

import tensorflow as tf

from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.heads import (
    classifier_logits,
    sentence_positions,
    sentence_vector,
    span_logits,
    token_logits,
)

MASKED_SCORE = -1e9  # of a token that cannot be chosen


class Head(typing.NamedTuple):
    """The head of a task.

    name: of its row in interop.heads.HEADS. architecture: the class of transformers with it.
    logits: (weights, batch, encoder, dtype, seed) -> scores of each row, (B, ...); seed None
    switches dropout off.
    """

    name: str
    architecture: str
    logits: Callable

    @property
    def prefixes(self) -> tuple[str, ...]:
        """How the names of its weights, and of what it computes through, begin."""
        return ARCHITECTURES[self.architecture].prefixes

    def weights(self, encoder, num_classes):
        """{name: WeightSpec} of it and of an Encoder."""
        return {**encoder.weights(), **HEADS[self.name].weights(encoder.config, num_classes)}


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


CLASSIFIER = Head("classifier", "BertForSequenceClassification", class_logits)
TOKEN_CLASSIFIER = Head("token_classifier", "BertForTokenClassification", tag_logits)
SPAN = Head("span", "BertForQuestionAnswering", answer_logits)
TASK_HEADS = (CLASSIFIER, TOKEN_CLASSIFIER, SPAN)


def rows_of(tensor):
    """(B, S, C) -> (B x S, C)."""
    return tf.reshape(tensor, [-1, tensor.shape[-1]])
