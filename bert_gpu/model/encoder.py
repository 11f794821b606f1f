"""The BERT encoder (Devlin et al. 2018): weights as specifications, and a pure function from weights and a batch to hidden states.

Legend: B batch, S sequence, H hidden, N heads, D dimensions per head, R = B x S rows.

A model's weights are one flat dict {name: tensor}, names separated by slashes. Nothing here holds state: whoever trains owns the
variables, reads them to tensors, casts those of rank 2 and more to the compute dtype and calls `encode`. Which layers there are is
decided once, in `encoder_weights`; `encode` finds what it needs by name.
"""

import hashlib
import typing

import numpy as np
import tensorflow as tf

from bert_gpu.model.layers import ACTIVATIONS, attention, dense, dropout, layer_norm, mask_bias, sizes


class WeightSpec(typing.NamedTuple):
    """Shape of a weight and where it starts: "normal" (truncated, with the deviation below), "zeros" or "ones"."""

    shape: tuple[int, ...]
    initializer: str
    stddev: float = 0.0


def dense_weights(config, name, num_inputs, num_outputs):
    """Specifications of a dense layer: kernel (in, out) and bias (out,)."""
    return {
        f"{name}/kernel": WeightSpec((num_inputs, num_outputs), "normal", config.initializer_range),
        f"{name}/bias": WeightSpec((num_outputs,), "zeros"),
    }


def norm_weights(name, size):
    return {f"{name}/scale": WeightSpec((size,), "ones"), f"{name}/bias": WeightSpec((size,), "zeros")}


def embedding_weights(config):
    tables = {"word": config.vocab_size, "position": config.max_position_embeddings, "segment": config.type_vocab_size}
    return {
        **{
            f"embeddings/{name}": WeightSpec((num_rows, config.hidden_size), "normal", config.initializer_range)
            for name, num_rows in tables.items()
        },
        **norm_weights("embeddings/norm", config.hidden_size),
    }


def layer_weights(config, name):
    hidden, inner = config.hidden_size, config.intermediate_size
    return {
        **dense_weights(config, f"{name}/attention/qkv", hidden, 3 * hidden),
        **dense_weights(config, f"{name}/attention/output", hidden, hidden),
        **norm_weights(f"{name}/attention/norm", hidden),
        **dense_weights(config, f"{name}/feed_forward/in", hidden, inner),
        **dense_weights(config, f"{name}/feed_forward/output", inner, hidden),
        **norm_weights(f"{name}/feed_forward/norm", hidden),
    }


def encoder_weights(config):
    """{name: WeightSpec} of embeddings and layers; pooler and heads are specified in heads.py."""
    specs = embedding_weights(config)
    for index in range(config.num_hidden_layers):
        specs.update(layer_weights(config, f"layer_{index}"))
    return specs


def initialize(specs, seed):
    """First values, {name: float32 array}. The numbers of a weight depend on (seed, its name) alone: adding a head changes no other.

    The normal distribution is cut at two deviations, not rescaled, as in Google's BERT.
    """

    def draw(name, spec):
        if spec.initializer != "normal":
            return np.full(spec.shape, {"zeros": 0, "ones": 1}[spec.initializer], np.float32)
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
        generator = np.random.Generator(np.random.Philox(key=key))
        values = generator.standard_normal(int(np.prod(spec.shape)), dtype=np.float32)
        while len(outside := np.flatnonzero(np.abs(values) > 2)):
            values[outside] = generator.standard_normal(len(outside), dtype=np.float32)
        return (values * np.float32(spec.stddev)).reshape(spec.shape)

    return {name: draw(name, spec) for name, spec in specs.items()}


@tf.custom_gradient
def look_up(table, ids):
    """Rows of an embedding table: (V, H), (R,) -> (R, H).

    The gradient is dense, which XLA and an all-reduce need, and summed in float32: frequent tokens occur thousands of times in a
    batch, more than bfloat16 can count.
    """

    def gradient(upstream):
        total = tf.math.unsorted_segment_sum(tf.cast(upstream, tf.float32), ids, sizes(table)[0])
        return tf.cast(total, table.dtype), None

    return tf.gather(table, ids), gradient


def embed(weights, batch, config, *, dtype=tf.float32, seed=None):
    """Sum of word, position and segment embeddings, normalised: input_ids, segment_ids (B, S) -> (R, H)."""
    batch_size, length = sizes(batch["input_ids"])
    table = {name: tf.cast(weights[f"embeddings/{name}"], dtype) for name in ("word", "position", "segment")}
    words = look_up(table["word"], tf.reshape(batch["input_ids"], [-1]))
    # A product with one-hot rows, not a lookup: its gradient is a product too, where adding R rows into two would queue up.
    segments = tf.matmul(tf.one_hot(tf.reshape(batch["segment_ids"], [-1]), config.type_vocab_size, dtype=dtype), table["segment"])
    x = tf.reshape(words + segments, [batch_size, length, config.hidden_size]) + table["position"][:length]
    x = layer_norm(weights, "embeddings/norm", tf.reshape(x, [-1, config.hidden_size]), config.layer_norm_eps)
    return dropout(x, config.hidden_dropout_prob, seed, "embeddings")


def attention_block(weights, name, x, bias, config, batch_size, length, seed):
    """Self-attention: (R, H) -> (R, H), the three projections in one product."""
    num_heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    qkv = tf.reshape(dense(weights, f"{name}/qkv", x), [batch_size, length, 3, num_heads, size])
    q, k, v = tf.unstack(tf.transpose(qkv, [2, 0, 3, 1, 4]))  # each (B, N, S, D)
    mixed = attention(q, k, v, bias, config.attention_probs_dropout_prob, seed, f"{name}/probabilities")
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, config.hidden_size])
    return dense(weights, f"{name}/output", mixed)


def feed_forward_block(weights, name, x, config):
    """Two dense layers with an activation between them: (R, H) -> (R, H)."""
    return dense(weights, f"{name}/output", ACTIVATIONS[config.hidden_act](dense(weights, f"{name}/in", x)))


def encode(weights, batch, config, *, dtype=tf.float32, seed=None):
    """Hidden states of the last layer.

    Args:
      weights: {name: tensor} with at least the names of `encoder_weights`; float32 or already of the compute dtype.
      batch: int32 "input_ids", "input_mask" (1 for tokens, 0 for padding) and "segment_ids", (B, S) each.
      dtype: compute dtype of products and activations.
      seed: int32 (2,) that dropout draws from; None switches dropout off.

    Returns:
      (B, S, H) in the compute dtype.
    """
    batch_size, length = sizes(batch["input_ids"])
    bias = mask_bias(batch["input_mask"])
    x = embed(weights, batch, config, dtype=dtype, seed=seed)

    def add_and_norm(name, x, change):
        change = dropout(change, config.hidden_dropout_prob, seed, name)
        return layer_norm(weights, f"{name}/norm", x + change, config.layer_norm_eps)

    for index in range(config.num_hidden_layers):
        name = f"layer_{index}/attention"
        x = add_and_norm(name, x, attention_block(weights, name, x, bias, config, batch_size, length, seed))
        name = f"layer_{index}/feed_forward"
        x = add_and_norm(name, x, feed_forward_block(weights, name, x, config))
    return tf.reshape(x, [batch_size, length, config.hidden_size])


def pool(weights, hidden):
    """The sentence vector: tanh of a dense layer over [CLS], the first token: (B, S, H) -> (B, H)."""
    return tf.tanh(dense(weights, "pooler", hidden[:, 0]))
