"""Self-attention: its mask, rotary positions, and the attention product, which has a gradient of
its own or is computed by cuDNN.

Legend: B batch, S sequence, P positions that ask, N heads, D dimensions per head.
"""

import functools

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import column_sums, custom_gradient, fused, has_gpu, widened
from bert_gpu.model import cudnn_attention
from bert_gpu.model.layers import draw_bits, drop_threshold, hide_from_xla, plus_bias, sizes


def mask_bias(input_mask):
    """(B, S) of 0 and 1 -> (B, 1, 1, S) float32, added to attention scores: 0 for tokens, -1e9
    for padding.
    """
    return (tf.cast(input_mask, tf.float32)[:, None, None, :] - 1.0) * 1e9


def rotation(length, max_length, size, dtype):
    """Cosines and signed sines by which `rotate` turns positions 0, 1, ...: (S, D) each.

    Dimension i and i + D / 2 are a pair and turn by position / 10000^(2 i / D) (Su et al. 2021,
    RoFormer, 3.2.2, which pairs neighbours; the two differ by the order of the columns of the query
    and key kernels). A constant computed in float64.

    Args:
      length: S, an int or a scalar tensor, at most max_length. size: D.
    """
    angles = np.arange(max_length)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
    cosines = np.concatenate([np.cos(angles), np.cos(angles)], -1).astype(np.float32)
    sines = np.concatenate([-np.sin(angles), np.sin(angles)], -1).astype(np.float32)
    return tf.constant(cosines, dtype)[:length], tf.constant(sines, dtype)[:length]


def rotate(x, cosines, sines):
    """Turns pairs of dimensions by the angle of their position: (..., S, D) -> (..., S, D).

    A score depends only on the difference of two positions, so positions need not restart in packed
    sequences.
    """
    first, second = tf.split(x, 2, -1)
    return x * cosines + tf.concat([second, first], -1) * sines


@functools.cache
def _splitter(num):
    """A function for each number of results: one for all would lose sight of it (fused.py)."""

    def split(qkv, bias):
        return tf.unstack(
            tf.transpose(tf.cast(widened(qkv, bias), qkv.dtype), [2, 0, 3, 1, 4]), num
        )

    return fused(split)


@custom_gradient
def split_heads(qkv, *bias):
    """Queries, keys and values, (B, N, S, D) each, from (B, S, 3, N, D) and an optional bias (3, N,
    D); or some of them.
    """

    def gradient(*upstream):
        joined = tf.transpose(tf.stack(upstream), [1, 3, 0, 2, 4])
        columns = tf.reshape(joined, [-1, np.prod(qkv.shape[2:])])
        return joined, *(tf.reshape(column_sums(columns, b.dtype), b.shape) for b in bias)

    return _splitter(qkv.shape[2])(qkv, bias), gradient


def add_bias(qkv, *bias):
    """(B, S, 3, N, D) plus an optional bias (3, N, D)."""
    columns = tf.reshape(qkv, [-1, np.prod(qkv.shape[2:])])
    return tf.reshape(plus_bias(columns, tf.reshape(bias[0], [-1])), tf.shape(qkv)) if bias else qkv


def attention_from(q, kv, mask, rotations=None, rate=0.0, seed=None, dropout_key="attention"):
    """Attention of the queries at some positions of each row to all of its tokens.

    Args:
      q: (B, P, 1, N, D) and its bias [(1, N, D)] or []. kv: (B, S, 2, N, D) and its bias, likewise.
      mask: float32 bias as in `attention`. rotations: cosines and sines of the queries, (B, 1, P,
        D) each, and of the keys, results of `rotation`; or None. rate, seed,
        dropout_key: dropout of the probabilities.

    Returns:
      (B, P, N, D).
    """
    (q, q_bias), (kv, kv_bias) = q, kv
    (q,), (k, v) = split_heads(q, *q_bias), split_heads(kv, *kv_bias)
    if rotations is not None:
        q, k = (rotate(x, *values) for x, values in zip((q, k), rotations, strict=True))
    return tf.transpose(attention(q, k, v, mask, rate, seed, dropout_key), [0, 2, 1, 3])


def self_attention(qkv, bias, mask, rotation=None, rate=0.0, seed=None, dropout_key="attention"):
    """Attention of one projected tensor to itself. The type of the mask selects the implementation,
    ours or cuDNN's; each gets the layout that it needs.

    Args:
      qkv: (B, S, 3, N, D). bias: [(3, N, D)], added to qkv, or [].
      mask: float32 bias as in `attention`, or cudnn_attention.Mask for cuDNN, which has no dropout.
      rotation: result of `rotation`, or None. rate, seed, dropout_key: dropout of the
        probabilities.

    Returns:
      (B, S, N, D).
    """
    if isinstance(mask, cudnn_attention.Mask):
        if rate and seed is not None:
            raise ValueError(f"cuDNN attention has no dropout, but the dropout rate is {rate}")
        q, k, v = tf.unstack(add_bias(qkv, *bias), axis=2)  # each (B, S, N, D)
        if rotation is not None:
            q, k = (rotate(x, *(values[:, None] for values in rotation)) for x in (q, k))
        return cudnn_attention.attention(q, k, v, mask)
    q, k, v = split_heads(qkv, *bias)
    if rotation is not None:
        q, k = rotate(q, *rotation), rotate(k, *rotation)
    return tf.transpose(attention(q, k, v, mask, rate, seed, dropout_key), [0, 2, 1, 3])


@fused
def _masked(scores, scale, bias):
    return tf.cast(scores, tf.float32) * scale + bias


@fused
def _mark_dropped(probabilities, bits, threshold, share):
    """(probabilities that multiply the values, probabilities kept for the backward pass): dropped
    elements are 0 in the first, which is scaled up, and negative in the second.
    """
    is_kept, wide = bits >= threshold, tf.cast(probabilities, tf.float32)
    return tf.cast(tf.where(is_kept, wide / share, 0.0), probabilities.dtype), tf.where(
        is_kept, probabilities, -probabilities
    )


@fused
def _unmark(marked, share):
    return tf.cast(tf.maximum(tf.cast(marked, tf.float32), 0.0) / share, marked.dtype)


@fused
def _softmax_gradient(marked, dkept, mixed, upstream, scale, share):
    """Gradient of the scores. The softmax gradient subtracts sum_j p_ij dp_ij, which equals the
    product of output and upstream: S x D terms, not S x S (Dao et al. 2022, FlashAttention, B.2).
    """
    projection = tf.reduce_sum(
        tf.cast(upstream, tf.float32) * tf.cast(mixed, tf.float32), -1, keepdims=True
    )
    wide = tf.cast(marked, tf.float32)
    dprobabilities = tf.where(wide > 0.0, tf.cast(dkept, tf.float32) / share, 0.0)
    return tf.cast(tf.abs(wide) * (dprobabilities - projection) * scale, marked.dtype)


def attention(q, k, v, bias, rate=0.0, seed=None, dropout_key="attention"):
    """Scaled dot-product attention (Vaswani et al. 2017, 3.2.1), softmax computed in float32.

    Keeps one (B, N, P, S) array in q's type for the backward pass: the probabilities, on CPUs
    negative where they were dropped.

    Args:
      q: (B, N, P, D). k, v: (B, N, S, D).
      bias: float32, broadcast to (B, N, P, S) and added to the scores: 0, or so far below 0 that it
        masks the token. No gradient flows into it.
      rate, seed, dropout_key: dropout of the
        probabilities.

    Returns:
      (B, N, P, D).
    """
    scale = q.shape[-1] ** -0.5
    drop = bool(rate) and seed is not None

    @custom_gradient
    def attend(q, k, v):
        scores = _masked(tf.matmul(q, k, transpose_b=True), scale, bias)
        # TensorFlow warns of a softmax whose rank it has lost
        scores = tf.ensure_shape(scores, [None] * 4)
        probabilities = kept = stored = tf.cast(tf.nn.softmax(scores), q.dtype)  # (B, N, P, S)
        share = np.float32(1)
        if drop:
            shape, (threshold, share) = sizes(probabilities), drop_threshold(rate)
            kept, marked = _mark_dropped(
                probabilities, draw_bits(shape, seed, dropout_key), threshold, share
            )
            stored = probabilities if has_gpu() else marked  # GPUs draw again
        mixed = tf.matmul(kept, v)

        def gradient(upstream):
            marked = stored
            if drop and has_gpu():
                with tf.control_dependencies([upstream]):  # outside XLA; there the barrier
                    late = hide_from_xla(seed)
                marked = _mark_dropped(
                    stored, draw_bits(shape, late, dropout_key), threshold, share
                )[1]
            dv = tf.matmul(_unmark(marked, share) if drop else marked, upstream, transpose_a=True)
            dkept = tf.matmul(upstream, v, transpose_b=True)
            dscores = _softmax_gradient(marked, dkept, mixed, upstream, scale, share)
            return tf.matmul(dscores, k), tf.matmul(dscores, q, transpose_a=True), dv

        return mixed, gradient

    return attend(q, k, v)
