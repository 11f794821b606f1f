"""The heads of the fine-tuning tasks: how each computes its scores from an encoder.

Legend: B batch, S sequence, C classes.
"""

import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import (
    classifier_logits,
    sentence_positions,
    sentence_vector,
    span_logits,
    token_logits,
)
from bert_gpu.model.weights import WeightSpec

MASKED_SCORE = -1e9  # the score of a token that cannot be chosen


class Head(typing.NamedTuple):
    """The head of a task.

    name: key of the head in interop.heads.HEADS. architecture: name of the class of Hugging Face's
    transformers that has the head. logits: function of (weights, batch, encoder, dtype, seed) ->
    scores of each row, (B, ...); seed None switches dropout off.
    """

    name: str
    architecture: str
    logits: Callable[..., tf.Tensor]

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Beginnings of the names of the head's weights, and of the weights of other heads that it
        uses.
        """
        return ARCHITECTURES[self.architecture].prefixes

    def weights(self, encoder: Encoder, num_classes: int) -> dict[str, WeightSpec]:
        """Return the specifications of the weights of the encoder and the head, by name."""
        return {**encoder.weights(), **HEADS[self.name].weights(encoder.config, num_classes)}


def class_logits(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    encoder: Encoder,
    dtype: tf.DType,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the scores of the classes, (B, C), in the compute dtype. Dropout with
    hidden_dropout_prob applies to the sentence vector, as in Google's BERT.
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


def tag_logits(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    encoder: Encoder,
    dtype: tf.DType,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the scores of the tags of each token, (B, S, C), in the compute dtype, with the
    dropout of the hidden states, as in Hugging Face's BertForTokenClassification.
    """
    hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
    return token_logits(weights, hidden, seed, encoder.config.hidden_dropout_prob)


def answer_logits(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    encoder: Encoder,
    dtype: tf.DType,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the scores of each token as an answer's first and as its last, float32 (B, S, 2).
    Padding has MASKED_SCORE, so that no result depends on the amount of padding.
    """
    hidden = encoder.encode(weights, batch, dtype=dtype, seed=seed)
    scores = tf.cast(tf.stack(span_logits(weights, hidden), -1), tf.float32)
    return tf.where(batch["input_mask"][:, :, None] > 0, scores, MASKED_SCORE)


CLASSIFIER = Head("classifier", "BertForSequenceClassification", class_logits)
TOKEN_CLASSIFIER = Head("token_classifier", "BertForTokenClassification", tag_logits)
SPAN = Head("span", "BertForQuestionAnswering", answer_logits)
TASK_HEADS = (CLASSIFIER, TOKEN_CLASSIFIER, SPAN)


def rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """Reshape (B, S, C) to (B x S, C)."""
    return tf.reshape(tensor, [-1, tensor.shape[-1]])
