"""The heads of the fine-tuning tasks: how each computes its scores from an encoder.

Legend: B batch, R rows of an example, S sequence, C classes, H hidden.
"""

import typing
from collections.abc import Callable, Mapping

import tensorflow as tf

from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.heads import (
    classifier_logits,
    mean_of_tokens,
    sentence_positions,
    sentence_vector,
    span_logits,
    token_logits,
)
from bert_gpu.model.layers import sizes
from bert_gpu.model.weights import WeightSpec

ROW_FEATURES = ("input_ids", "input_mask", "segment_ids")
MASKED_SCORE = -1e9  # the score of a token that cannot be chosen


class Head(typing.NamedTuple):
    """The head of a task.

    name: key of the head in interop.heads.HEADS, which lacks a head without weights. architecture:
    name of the class of Hugging Face's transformers that has the head. logits: function of
    (weights, batch, encoder, dtype, seed) -> scores of each row, (B, ...); seed None switches
    dropout off.
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
        own = HEADS[self.name].weights(encoder.config, num_classes) if self.name in HEADS else {}
        return {**encoder.weights(), **own}


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
    config = encoder.config
    return token_logits(weights, hidden, config, seed, config.hidden_dropout_prob)


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
    scores = tf.cast(tf.stack(span_logits(weights, hidden, encoder.config), -1), tf.float32)
    return tf.where(batch["input_mask"][:, :, None] > 0, scores, MASKED_SCORE)


def text_vectors(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    encoder: Encoder,
    dtype: tf.DType,
    seed: tf.Tensor | None = None,
    pooling: str = "mean",
) -> tf.Tensor:
    """Return the vectors of the texts of each example, (B, R, S) -> float32 (B, R, H): the hidden
    state of [CLS] with pooling "cls", else the mean over all tokens.
    """
    *shape, length = sizes(batch["input_ids"])
    rows = {name: tf.reshape(batch[name], [-1, length]) for name in ROW_FEATURES}
    is_first = pooling == "cls"
    positions = tf.zeros_like(rows["input_ids"][:, :1]) if is_first else None
    hidden = encoder.encode(weights, rows, dtype=dtype, seed=seed, positions=positions)
    hidden = tf.cast(hidden, tf.float32)
    vectors = hidden[:, 0] if is_first else mean_of_tokens(hidden, rows["input_mask"])
    return tf.reshape(vectors, [*shape, vectors.shape[-1]])


CLASSIFIER = Head("classifier", "BertForSequenceClassification", class_logits)
TOKEN_CLASSIFIER = Head("token_classifier", "BertForTokenClassification", tag_logits)
SPAN = Head("span", "BertForQuestionAnswering", answer_logits)
SENTENCE = Head("sentence", "BertModel", text_vectors)
TASK_HEADS = (CLASSIFIER, TOKEN_CLASSIFIER, SPAN, SENTENCE)


def rows_of(tensor: tf.Tensor) -> tf.Tensor:
    """Reshape (B, S, C) to (B x S, C)."""
    return tf.reshape(tensor, [-1, tensor.shape[-1]])
