"""Heads on top of the encoder (masked words, next sentence, classification of texts and of tokens,
answers) and their losses.

Legend: B batch, S sequence, P predictions, H hidden, V vocabulary, C classes.

Heads are functions of the encoder's output and take its config.

Losses are sums, with separate counts: the mean over a step is the sum over all micro-batches and
replicas divided by the global count. Counts need no forward pass, so they are known before the
first backward pass.
"""

from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import column_sums, custom_gradient, fused, widened
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.layers import dense, dropout, norm, project, select, sizes, ungated
from bert_gpu.model.weights import (
    TRANSFORMS,
    WeightSpec,
    dense_products,
    dense_weights,
    norm_weights,
)


def transform_weights(config: ModelConfig, head: str, width: int) -> dict[str, WeightSpec]:
    """Return the specifications of the transform of a head, from H to `width`."""
    dense_name, norm_name = TRANSFORMS[head]
    return {
        **dense_weights(config, dense_name, config.hidden_size, width, config.use_bias),
        **norm_weights(config, norm_name, width),
    }


def transform(
    weights: Mapping[str, tf.Tensor], head: str, x: tf.Tensor, config: ModelConfig
) -> tf.Tensor:
    """Return hidden states after the transform of a head: (R, H) -> (R, width)."""
    dense_name, norm_name = TRANSFORMS[head]
    x, bias = project(weights, dense_name, x)
    return norm(weights, norm_name, ungated(config.hidden_act)(x, *bias), config)


def first_transform(
    weights: Mapping[str, np.ndarray], config: ModelConfig, head: str
) -> dict[str, np.ndarray]:
    """Return the weights with which the transform of a task's head starts: those of masked words,
    under the names of `head`; {} for a model without them.
    """
    return {
        name.replace(mlm, own, 1): value
        for mlm, own in zip(TRANSFORMS["mlm"], TRANSFORMS.get(head, ()), strict=False)
        for name, value in weights.items()
        if config.head_transform and name.startswith(f"{mlm}/")
    }


def mlm_weights(config: ModelConfig) -> dict[str, WeightSpec]:
    """Return the specifications of the masked-word head: transform and output bias. Its output
    kernel is the table of word embeddings, of width E.
    """
    specs = {}
    if config.mlm_transform:
        specs = transform_weights(config, "mlm", config.embedding_width)
    if config.decoder_bias:
        specs["mlm/bias"] = WeightSpec((config.vocab_size,), "zeros")
    return specs


def pooler_weights(config: ModelConfig, width: int | None = None) -> dict[str, WeightSpec]:
    """Return the specifications of the pooler, a dense layer from H to `width`, by default H."""
    if config.head_transform:
        return transform_weights(config, "classifier", config.hidden_size)
    return dense_weights(config, "pooler", config.hidden_size, width or config.hidden_size)


def nsp_weights(config: ModelConfig) -> dict[str, WeightSpec]:
    """Return the specifications of the next-sentence head: the pooler, and a dense layer to 2
    scores.
    """
    return {**pooler_weights(config), **dense_weights(config, "nsp", config.hidden_size, 2)}


def classifier_weights(config: ModelConfig, num_classes: int) -> dict[str, WeightSpec]:
    """Return the specifications of a classifier of texts: the pooler, and a dense layer to a score
    for each class. With one class it is a regressor.
    """
    return {
        **pooler_weights(config, config.pooled_size),
        **dense_weights(config, "classifier", config.pooled_size, num_classes),
    }


def each_token_weights(config: ModelConfig, name: str, num_classes: int) -> dict[str, WeightSpec]:
    """Return the specifications of the head `name`, which gives each token scores."""
    own = transform_weights(config, name, config.hidden_size) if config.head_transform else {}
    return own | dense_weights(config, name, config.hidden_size, num_classes)


# a product with a multiple of so many words is fast on GPUs, with 30,522 words three times as slow
TILE = 64


def mlm_product(
    weights: Mapping[str, tf.Tensor],
    hidden: tf.Tensor,
    config: ModelConfig,
    dtype: tf.DType = tf.float32,
    tile: int = 1,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return (scores of every word at the masked positions, their bias, which the caller adds):
    hidden states of the masked positions (B, P, H) -> (B x P, V), and [(V,)], or [] without a bias.
    V is rounded up to a multiple of `tile`; the bias of words that do not exist is -1e9.
    """
    x = tf.reshape(tf.cast(hidden, dtype), [-1, config.hidden_size])
    if config.mlm_transform:
        x = transform(weights, "mlm", x, config)
    table = tf.cast(weights["embeddings/word"], dtype)
    bias = [weights["mlm/bias"]] if config.decoder_bias else []
    if missing := -config.vocab_size % tile:
        table = tf.pad(table, [[0, missing], [0, 0]])
        own = bias[0] if bias else tf.zeros([config.vocab_size])
        bias = [tf.pad(own, [[0, missing]], constant_values=-1e9)]
    return tf.matmul(x, table, transpose_b=True), bias


def mlm_products(config: ModelConfig) -> int:
    """Return the number of multiply-adds of `mlm_product` for one masked word: H E in the
    transform, if any, and E V in the scores.

    Selecting the masked positions, in the encoder, is a lookup, and counts nothing.
    """
    return dense_products(mlm_weights(config)) + config.embedding_width * config.vocab_size


def mlm_logits(
    weights: Mapping[str, tf.Tensor],
    hidden: tf.Tensor,
    positions: tf.Tensor,
    config: ModelConfig,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Return the scores of every word at the masked positions: hidden states (B, S, H) and
    positions int32 (B, P) -> (B, P, V).
    """
    return chosen_mlm_logits(weights, select(tf.cast(hidden, dtype), positions), config, dtype)


def chosen_mlm_logits(
    weights: Mapping[str, tf.Tensor],
    hidden: tf.Tensor,
    config: ModelConfig,
    dtype: tf.DType = tf.float32,
) -> tf.Tensor:
    """Return the scores of every word from the hidden states of the masked positions: (B, P, H) ->
    (B, P, V).
    """
    logits, bias = mlm_product(weights, hidden, config, dtype)
    return tf.reshape(
        logits + tf.cast(bias[0], dtype) if bias else logits,
        [*sizes(hidden)[:2], config.vocab_size],
    )


def best_words(logits: tf.Tensor, has_piece: np.ndarray, count: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the K = `count` likeliest words for each row of logits, best first: (M, V) ->
    probabilities float32 (M, K) and ids int32 (M, K). K is smaller if there are fewer words.

    has_piece: bool (V,), False for rows of the embedding table that stand for no word piece: their
    scores are part of the softmax, as in training and in transformers, but they are never returned.
    """
    shares = tf.where(has_piece, tf.nn.softmax(tf.cast(logits, tf.float32)), -1.0)
    return tf.math.top_k(shares, min(count, int(has_piece.sum())))


@fused
def _added(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(first, tf.float32) + tf.cast(second, tf.float32), first.dtype)


@custom_gradient
def two_uses_one_gradient(table: tf.Tensor) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """Return a table (V, E) once for each of its two uses, as embeddings and as output kernel, so
    that the gradients of both uses are added in one pass.
    """
    return (tf.identity(table), tf.identity(table)), _added


def nsp_logits(weights: Mapping[str, tf.Tensor], pooled: tf.Tensor) -> tf.Tensor:
    """Return the scores of the next-sentence head: (B, H) -> (B, 2); class 0 means "is next", 1
    "random", as in Google's and Hugging Face's BERT.
    """
    return dense(weights, "nsp", pooled)


def pool(
    weights: Mapping[str, tf.Tensor], hidden: tf.Tensor, activation: str = "tanh"
) -> tf.Tensor:
    """Return the sentence vector, an activation of a dense layer over [CLS], the first token: (B,
    S, H) -> (B, H). S may be 1.
    """
    return getattr(tf.nn, activation)(dense(weights, "pooler", hidden[:, 0]))


def nsp_products(config: ModelConfig) -> int:
    """Return the number of multiply-adds of the next-sentence head for one row: H^2 in the pooler,
    2 H in the scores.
    """
    return dense_products(nsp_weights(config))


def pooling_of(config: ModelConfig, weights: Container[str]) -> tuple[str, int]:
    """Return (pooling, output width) of a model's pooler: those of the classifier if the names
    `weights` include one, else those of the next-sentence head, ("first", H).
    """
    return (
        (config.pooling, config.pooled_size)
        if "classifier/kernel" in weights
        else ("first", config.hidden_size)
    )


def sentence_positions(batch: Mapping[str, tf.Tensor], config: ModelConfig) -> tf.Tensor | None:
    """Return the positions, int32 (B, 1), of the tokens whose hidden states `sentence_vector`
    needs; None = all tokens.
    """
    if config.pooling != "first":
        return None
    return tf.zeros([sizes(batch["input_ids"])[0], 1], tf.int32)


def sentence_vector(
    weights: Mapping[str, tf.Tensor], hidden: tf.Tensor, mask: tf.Tensor, config: ModelConfig
) -> tf.Tensor:
    """Return the input of a classifier for each row: the activation config.pooler_act of a dense
    layer, or the head's transform, which reads [CLS] or the mean of all tokens, as config.pooling
    says.

    Args:
      hidden: hidden states, (B, S, H), or only those at `sentence_positions`, (B, 1, H). mask: (B,
        S), 1 for tokens, 0 for padding.

    Returns:
      (B, config.pooled_size).
    """
    if config.pooling != "first":
        hidden = tf.cast(mean_of_tokens(hidden, mask), hidden.dtype)[:, None]
    if config.head_transform:
        return transform(weights, "classifier", hidden[:, 0], config)
    return pool(weights, hidden, config.pooler_act)


def mean_of_tokens(hidden: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Return the mean of the hidden states of each row's tokens, float32: (B, S, H) and (B, S), 1
    for tokens and 0 for padding -> (B, H).
    """
    share = tf.cast(mask, tf.float32)
    share /= tf.maximum(tf.reduce_sum(share, -1, keepdims=True), 1.0)
    return tf.reduce_sum(tf.cast(hidden, tf.float32) * share[:, :, None], 1)


def mean_of_windows(logits: tf.Tensor, texts: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
    """Return the mean of the scores of each text's rows, float32: (M, C) -> (B, C).

    Args:
      texts: int32 (M,), the index of each row's text, -1 for a row that counts for none. counts:
        int32 (B,), rows of each text.
    """
    sums = tf.math.unsorted_segment_sum(tf.cast(logits, tf.float32), texts, tf.shape(counts)[0])
    return sums / tf.cast(counts, tf.float32)[:, None]


def classifier_logits(
    weights: Mapping[str, tf.Tensor],
    pooled: tf.Tensor,
    seed: tf.Tensor | None = None,
    rate: float = 0.0,
) -> tf.Tensor:
    """Return the scores of each text's classes from the sentence vectors: (B, config.pooled_size)
    -> (B, C). The vectors get dropout unless seed is None.
    """
    return dense(weights, "classifier", dropout(pooled, rate, seed, "classifier"))


def token_logits(
    weights: Mapping[str, tf.Tensor],
    hidden: tf.Tensor,
    config: ModelConfig,
    seed: tf.Tensor | None = None,
    rate: float = 0.0,
) -> tf.Tensor:
    """Return the scores of each token's classes from the hidden states: (B, S, H) -> (B, S, C). The
    hidden states get dropout unless seed is None.
    """
    return _each_token(weights, "token_classifier", hidden, config, seed, rate)


def span_logits(
    weights: Mapping[str, tf.Tensor], hidden: tf.Tensor, config: ModelConfig
) -> list[tf.Tensor]:
    """Return two scores of each token, as the first and as the last token of an answer: (B, S, H)
    -> [(B, S), (B, S)].
    """
    return tf.unstack(_each_token(weights, "span", hidden, config), axis=-1)


def _each_token(
    weights: Mapping[str, tf.Tensor],
    name: str,
    hidden: tf.Tensor,
    config: ModelConfig,
    seed: tf.Tensor | None = None,
    rate: float = 0.0,
) -> tf.Tensor:
    """Return the scores of the head `name` for each token: (B, S, H) -> (B, S, out)."""
    batch_size, length = sizes(hidden)[:2]
    rows = tf.reshape(hidden, [-1, hidden.shape[-1]])
    rows = transform(weights, name, rows, config) if config.head_transform else rows
    rows = dense(weights, name, dropout(rows, rate, seed, name))
    return tf.reshape(rows, [batch_size, length, rows.shape[-1]])


_widened = fused(widened)


@fused
def _sum_of_exponentials(
    logits: tf.Tensor, largest: tf.Tensor, bias: Sequence[tf.Tensor]
) -> tf.Tensor:
    return tf.reduce_sum(tf.exp(widened(logits, bias) - largest[:, None]), -1)


@fused
def _cross_entropy_gradient(
    logits: tf.Tensor,
    labels: tf.Tensor,
    logarithms: tf.Tensor,
    upstream: tf.Tensor,
    classes: tf.Tensor,
    bias: Sequence[tf.Tensor],
) -> tf.Tensor:
    """Return the gradient of the logits, (softmax - one-hot label) x upstream, in one pass over
    memory.

    classes: int32 0, 1, ..., C - 1; it is an argument because XLA computes a range slowly on CPUs.
    """
    wide = tf.exp(widened(logits, bias) - logarithms[:, None]) * upstream[:, None]
    return tf.cast(
        wide - tf.where(classes == labels[:, None], upstream[:, None], 0.0), logits.dtype
    )


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor, *bias: tf.Tensor) -> tf.Tensor:
    """Return -log softmax(logits + bias)[label] in float32: logits (R, C), labels int32 (R,) and
    optionally a bias (C,) -> (R,).
    """
    return cross_entropy_and_correct(logits, labels, *bias)[0]


@custom_gradient
def cross_entropy_and_correct(
    logits: tf.Tensor, labels: tf.Tensor, *bias: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], Callable]:
    """Return two float32 (R,): the result of `cross_entropy`, and 1 where no class scores higher
    than the label, else 0. The second costs nothing beside the first.

    The only array as large as the logits that is kept for the backward pass is the logits. With as
    many classes as a vocabulary has words, TensorFlow's own op takes twice as long on a CPU,
    gradient included, and even longer with deterministic ops.
    """
    wide = _widened(logits, bias)
    largest = tf.reduce_max(wide, -1)
    of_label = tf.gather(wide, labels, batch_dims=1)
    logarithms = largest + tf.math.log(_sum_of_exponentials(logits, largest, bias))

    def gradient(upstream: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor | None, ...]:
        classes = tf.range(sizes(logits)[1])
        dlogits = _cross_entropy_gradient(logits, labels, logarithms, upstream, classes, bias)
        return dlogits, None, *(column_sums(dlogits, b.dtype) for b in bias)

    return (logarithms - of_label, tf.cast(of_label >= largest, tf.float32)), gradient


def summed_loss_and_correct(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, bias: Sequence[tf.Tensor] = ()
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weighted sum of the cross-entropy and the weighted number of correct predictions:
    logits (..., C), labels and weights (...), and a bias [(C,)] or [] -> two float32 scalars.
    """
    logits = tf.reshape(logits, [-1, logits.shape[-1]])
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    weights = tf.reshape(tf.cast(weights, tf.float32), [-1])
    losses, correct = cross_entropy_and_correct(logits, labels, *bias)
    return tf.reduce_sum(losses * weights), tf.reduce_sum(correct * weights)


def summed_loss(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weighted sum of the cross-entropy and the sum of the weights: logits (..., C),
    labels and weights (...) -> two float32 scalars.
    """
    loss, _ = summed_loss_and_correct(logits, labels, weights)
    return loss, tf.reduce_sum(tf.cast(weights, tf.float32))


def summed_correct(
    logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the weighted number of correct predictions, and the sum of the weights; arguments as
    for `summed_loss`.
    """
    correct = tf.cast(
        tf.reshape(tf.argmax(logits, -1, tf.int32), [-1])
        == tf.reshape(tf.cast(labels, tf.int32), [-1]),
        tf.float32,
    )
    weights = tf.reshape(tf.cast(weights, tf.float32), [-1])
    return tf.reduce_sum(correct * weights), tf.reduce_sum(weights)
