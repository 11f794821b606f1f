"""Self-attention: what it may see, rotary positions, and the product itself with a gradient of its
own, or cuDNN's in its place.

Legend: B batch, S sequence, N heads, D dimensions per head.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.fused import column_sums, fused, has_gpu, widened
from bert_gpu.model import cudnn_attention
from bert_gpu.model.layers import as_if_unknown, draw_bits, drop_threshold, plus_bias, sizes


def mask_bias(input_mask):
    """(B, S) of 0 and 1 -> (B, 1, 1, S) float32, added to attention scores: 0 for tokens, -1e9
    for padding.
    """
    return (tf.cast(input_mask, tf.float32)[:, None, None, :] - 1.0) * 1e9


def rotation(length, max_length, size, dtype):
    """Cosines and signed sines that `rotate` turns the places 0, 1, ... by: (S, D) each.

    Dimension i and i + D / 2 are a pair, and turn by place / 10000^(2 i / D) (Su et al. 2021,
    RoFormer, 3.2.2, which pairs neighbours; the two differ by the order of the columns of the query
    and key kernels). A constant computed in float64.

    Args:
      length: S, a number or a scalar tensor, at most max_length. size: D.
    """
    angles = np.arange(max_length)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
    cosines = np.concatenate([np.cos(angles), np.cos(angles)], -1).astype(np.float32)
    sines = np.concatenate([-np.sin(angles), np.sin(angles)], -1).astype(np.float32)
    return tf.constant(cosines, dtype)[:length], tf.constant(sines, dtype)[:length]


def rotate(x, cosines, sines):
    """Turns pairs of dimensions by the angle of their place: (..., S, D) -> (..., S, D).

    A score depends on the difference of two places alone, so packed sequences need no places
    of their own.
    """
    first, second = tf.split(x, 2, -1)
    return x * cosines + tf.concat([second, first], -1) * sines


@fused
def _split_heads(qkv, bias):
    return tf.unstack(tf.transpose(tf.cast(widened(qkv, bias), qkv.dtype), [2, 0, 3, 1, 4]))


@tf.custom_gradient
def split_heads(qkv, *bias):
    """Queries, keys and values, (B, N, S, D) each, from (B, S, 3, N, D) and a bias (3, N, D), if
    there is one.
    """

    def gradient(*upstream):
        joined = tf.transpose(tf.stack(upstream), [1, 3, 0, 2, 4])
        columns = tf.reshape(joined, [-1, np.prod(qkv.shape[2:])])
        return joined, *(tf.reshape(column_sums(columns, b.dtype), b.shape) for b in bias)

    return _split_heads(qkv, bias), gradient


def add_bias(qkv, *bias):
    """(B, S, 3, N, D) plus a bias (3, N, D), if there is one."""
    columns = tf.reshape(qkv, [-1, np.prod(qkv.shape[2:])])
    return tf.reshape(plus_bias(columns, tf.reshape(bias[0], [-1])), tf.shape(qkv)) if bias else qkv


def self_attention(qkv, bias, mask, rotation=None, rate=0.0, seed=None, place="attention"):
    """Attention of one projected tensor to itself, by the implementation that the mask is of, in
    the layout that this one wants.

    Args:
      qkv: (B, S, 3, N, D). bias: [(3, N, D)], to be added to it, or [].
      mask: float32 bias as in `attention`, or cudnn_attention.Mask for cuDNN, which
        takes no dropout.
      rotation: of `rotation`, or None. rate, seed, place: dropout of the probabilities.

    Returns:
      (B, S, N, D).
    """
    if isinstance(mask, cudnn_attention.Mask):
        if rate and seed is not None:
            raise ValueError(f"cuDNN attention drops no probabilities, and the rate is {rate}")
        q, k, v = tf.unstack(add_bias(qkv, *bias), axis=2)  # each (B, S, N, D)
        if rotation is not None:
            q, k = (rotate(x, *(values[:, None] for values in rotation)) for x in (q, k))
        return cudnn_attention.attention(q, k, v, mask)
    q, k, v = split_heads(qkv, *bias)
    if rotation is not None:
        q, k = rotate(q, *rotation), rotate(k, *rotation)
    return tf.transpose(attention(q, k, v, mask, rate, seed, place), [0, 2, 1, 3])


@fused
def _masked(scores, scale, bias):
    return tf.cast(scores, tf.float32) * scale + bias


@fused
def _mark_dropped(probabilities, bits, threshold, share):
    """(what multiplies the values, what the backward pass keeps): the first scaled up and 0 where
    dropped, the second negative there.
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
    """Gradient of the scores. What the softmax gradient subtracts, sum_j p_ij dp_ij, is the product
    of output and upstream: S x D terms, not S x S (Dao et al. 2022, FlashAttention, B.2).
    """
    projection = tf.reduce_sum(
        tf.cast(upstream, tf.float32) * tf.cast(mixed, tf.float32), -1, keepdims=True
    )
    wide = tf.cast(marked, tf.float32)
    dprobabilities = tf.where(wide > 0.0, tf.cast(dkept, tf.float32) / share, 0.0)
    return tf.cast(tf.abs(wide) * (dprobabilities - projection) * scale, marked.dtype)


def attention(q, k, v, bias, rate=0.0, seed=None, place="attention"):
    """Scaled dot-product attention (Vaswani et al. 2017, 3.2.1), softmax computed in float32.

    One (B, N, S, S) array is kept for the backward pass, of q's type: the probabilities, on CPUs
    negative where they were dropped.

    Args:
      q, k, v: (B, N, S, D).
      bias: float32, broadcast to (B, N, S, S) and added to the scores: 0, or so far below that it
        takes away. No gradient flows into it.
      rate, seed, place: dropout of the probabilities.

    Returns:
      (B, N, S, D).
    """
    scale = q.shape[-1] ** -0.5
    drop = bool(rate) and seed is not None

    @tf.custom_gradient
    def attend(q, k, v):
        scores = _masked(tf.matmul(q, k, transpose_b=True), scale, bias)
        # TensorFlow warns of a softmax whose rank it has lost
        scores = tf.ensure_shape(scores, [None] * 4)
        probabilities = kept = stored = tf.cast(tf.nn.softmax(scores), q.dtype)  # (B, N, S, S)
        share = np.float32(1)
        if drop:
            shape, (threshold, share) = sizes(probabilities), drop_threshold(rate)
            kept, marked = _mark_dropped(
                probabilities, draw_bits(shape, seed, place), threshold, share
            )
            stored = probabilities if has_gpu() else marked  # GPUs draw again
        mixed = tf.matmul(kept, v)

        def gradient(upstream):
            marked = stored
            if drop and has_gpu():
                with tf.control_dependencies([upstream]):  # outside XLA; there the barrier
                    late = as_if_unknown(seed)
                marked = _mark_dropped(stored, draw_bits(shape, late, place), threshold, share)[1]
            dv = tf.matmul(_unmark(marked, share) if drop else marked, upstream, transpose_a=True)
            dkept = tf.matmul(upstream, v, transpose_b=True)
            dscores = _softmax_gradient(marked, dkept, mixed, upstream, scale, share)
            return tf.matmul(dscores, k), tf.matmul(dscores, q, transpose_a=True), dv

        return mixed, gradient

    return attend(q, k, v)
