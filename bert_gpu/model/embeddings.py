"""Turns token ids into the vectors that enter the first layer: embeddings of words, segments and
positions are summed, normalised and, where they are narrower than the layers, widened.

Legend: B batch, S sequence, E embedding width (H unless factorised, as in ALBERT), H hidden, V
vocabulary, R = B x S rows.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import custom_gradient
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.layers import dense, dropout, norm, sizes
from bert_gpu.model.packed import restarted_positions
from bert_gpu.model.weights import WeightSpec, dense_products, dense_weights, norm_weights


def embedding_weights(config: ModelConfig) -> dict[str, WeightSpec]:
    width = config.embedding_width
    tables = {
        "word": config.vocab_size,
        "position": config.max_position_embeddings,
        "segment": config.type_vocab_size,
    }
    if config.position_embedding_type != "absolute":
        del tables["position"]
    specs = {
        f"embeddings/{name}": WeightSpec((num_rows, width), "normal", config.initializer_range)
        for name, num_rows in tables.items()
        if num_rows
    }
    if config.position_embedding_type == "scaled_sinusoidal":
        specs["embeddings/position_scale"] = WeightSpec((1,), "constant", width**-0.5)
    if config.embedding_norm:
        specs.update(norm_weights(config, "embeddings/norm", width))
    if width != config.hidden_size:
        specs.update(
            dense_weights(
                config, "embeddings/projection", width, config.hidden_size, config.use_bias
            )
        )
    return specs


def embedding_products(config: ModelConfig) -> int:
    """Return the number of multiply-adds of `embed` for one token: E H where the embeddings are
    widened, else 0. Lookups count nothing, nor does the product that replaces the lookup of
    segments.
    """
    return dense_products(embedding_weights(config))


@custom_gradient
def look_up(table: tf.Tensor, ids: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return the rows of an embedding table at some ids: table (V, E), int ids (R,) -> (R, E).

    The gradient is dense, as XLA and the all-reduce need it, and summed in float32: frequent tokens
    occur thousands of times in a batch, more than bfloat16 can count.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        total = tf.math.unsorted_segment_sum(tf.cast(upstream, tf.float32), ids, sizes(table)[0])
        return tf.cast(total, table.dtype), None

    return tf.gather(table, ids), gradient


def sinusoids(num_positions: int, width: int) -> np.ndarray:
    """Return sines (columns 2 i) and cosines (columns 2 i + 1) of position / 10000^(2 i / width),
    for i = 0, 1, ...: float32 (num_positions, width).

    The formula is from Vaswani et al. 2017, 3.5; it is computed in float64.
    """
    angles = np.arange(num_positions)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return (
        np.stack([np.sin(angles), np.cos(angles)], -1)
        .reshape(num_positions, width)
        .astype(np.float32)
    )


def position_vectors(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    config: ModelConfig,
    dtype: tf.DType,
) -> tf.Tensor:
    """Return the position embeddings to add to the word embeddings: (S, E), or (B, S, E) for packed
    rows, where positions restart in each sequence.
    """
    learnt = config.position_embedding_type == "absolute"
    table = (
        weights["embeddings/position"]
        if learnt
        else tf.constant(sinusoids(config.max_position_embeddings, config.embedding_width))
    )
    if learnt and config.first_position:
        table = table[config.first_position :]
    batch_size, length = sizes(batch["input_ids"])
    if "sequence_ids" not in batch:
        vectors = table[:length]
    else:
        positions = restarted_positions(batch["sequence_ids"])
        vectors = look_up(table, tf.reshape(positions, [-1]))
        vectors = tf.reshape(vectors, [batch_size, length, config.embedding_width])
    return tf.cast(
        vectors if learnt else vectors * tf.cast(weights["embeddings/position_scale"], tf.float32),
        dtype,
    )


def embed(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    config: ModelConfig,
    *,
    dtype: tf.DType = tf.float32,
    seed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the input of the first layer, (R, H), from a batch with "input_ids" and "segment_ids",
    (B, S) each, and with "sequence_ids" if rows are packed.
    """
    batch_size, length = sizes(batch["input_ids"])
    segments = batch["segment_ids"]
    if config.type_vocab_size == 1:
        segments = tf.zeros_like(segments)
    x = look_up(tf.cast(weights["embeddings/word"], dtype), tf.reshape(batch["input_ids"], [-1]))
    if config.type_vocab_size:
        # A product with one-hot rows, not a lookup: the gradient of a product is a product too,
        # whereas that of a lookup would add R rows to two rows of the table, one after the other.
        kinds = tf.one_hot(tf.reshape(segments, [-1]), config.type_vocab_size, dtype=dtype)
        x += tf.matmul(kinds, tf.cast(weights["embeddings/segment"], dtype))
    # the other types act in the attention
    if config.position_embedding_type in ("absolute", "scaled_sinusoidal"):
        x = tf.reshape(x, [batch_size, length, config.embedding_width]) + position_vectors(
            weights, batch, config, dtype
        )
        x = tf.reshape(x, [-1, config.embedding_width])
    if config.embedding_norm:
        x = norm(weights, "embeddings/norm", x, config)
    x = dropout(x, config.hidden_dropout_prob, seed, "embeddings")
    return (
        x
        if config.embedding_width == config.hidden_size
        else dense(weights, "embeddings/projection", x)
    )
