"""Self-attention: what it may see, rotary positions, and the product itself with a gradient of its own, or cuDNN's in its place.

Legend: B batch, S sequence, N heads, D dimensions per head.
"""

import numpy as np
import tensorflow as tf

from bert_gpu.fused import fused
from bert_gpu.model import cudnn_attention
from bert_gpu.model.layers import draw_bits, drop_threshold, sizes


def mask_bias(input_mask):
    """(B, S) of 0 and 1 -> (B, 1, 1, S) float32, added to attention scores: 0 for tokens, -1e9 for padding."""
    return (tf.cast(input_mask, tf.float32)[:, None, None, :] - 1.0) * 1e9


def rotation(length, max_length, size, dtype):
    """Cosines and signed sines that `rotate` turns the places 0, 1, ... by: (S, D) each.

    Dimension i and i + D / 2 are a pair, and turn by place / 10000^(2 i / D) (Su et al. 2021, RoFormer, 3.2.2, which pairs neighbours; the
    two differ by the order of the columns of the query and key kernels). A constant computed in float64.

    Args:
      length: S, a number or a scalar tensor, at most max_length. size: D.
    """
    angles = np.arange(max_length)[:, None] / 10000.0 ** (np.arange(0, size, 2) / size)
    cosines = np.concatenate([np.cos(angles), np.cos(angles)], -1).astype(np.float32)
    sines = np.concatenate([-np.sin(angles), np.sin(angles)], -1).astype(np.float32)
    return tf.constant(cosines, dtype)[:length], tf.constant(sines, dtype)[:length]


def rotate(x, cosines, sines):
    """Turns pairs of dimensions by the angle of their place: (..., S, D) -> (..., S, D).

    A score depends on the difference of two places alone, so packed sequences need no places of their own.
    """
    first, second = tf.split(x, 2, -1)
    return x * cosines + tf.concat([second, first], -1) * sines


def self_attention(qkv, mask, rotation=None, rate=0.0, seed=None, place="attention"):
    """Attention of one projected tensor to itself, by the implementation that the mask is of, in the layout that this one wants.

    Args:
      qkv: (B, S, 3, N, D).
      mask: float32 bias as in `attention`, or cudnn_attention.Mask for cuDNN, which takes no dropout.
      rotation: of `rotation`, or None. rate, seed, place: dropout of the probabilities.

    Returns:
      (B, S, N, D).
    """
    if isinstance(mask, cudnn_attention.Mask):
        if rate and seed is not None:
            raise ValueError(f"cuDNN attention drops no probabilities, and the rate is {rate}")
        q, k, v = tf.unstack(qkv, axis=2)  # each (B, S, N, D)
        if rotation is not None:
            q, k = (rotate(x, *(values[:, None] for values in rotation)) for x in (q, k))
        return cudnn_attention.attention(q, k, v, mask)
    qkv = tf.transpose(qkv, [2, 0, 3, 1, 4])
    if rotation is None:
        q, k, v = tf.unstack(qkv)  # each (B, N, S, D)
    else:
        (q, k), v = tf.unstack(rotate(qkv[:2], *rotation)), qkv[2]
    return tf.transpose(attention(q, k, v, mask, rate, seed, place), [0, 2, 1, 3])


@fused
def _drop_unscaled(x, bits, threshold):
    return tf.where(bits >= threshold, x, tf.zeros((), x.dtype))


@fused
def _softmax_gradient(probabilities, dprobabilities, projection):
    return tf.cast(probabilities * (tf.cast(dprobabilities, tf.float32) - projection), dprobabilities.dtype)


@fused
def _dropped_softmax_gradient(probabilities, dkept, projection, bits, threshold):
    dprobabilities = tf.where(bits >= threshold, tf.cast(dkept, tf.float32), 0.0)
    return tf.cast(probabilities * (dprobabilities - projection), dkept.dtype)


def attention(q, k, v, bias, rate=0.0, seed=None, place="attention"):
    """Scaled dot-product attention (Vaswani et al. 2017, 3.2.1), softmax in float32.

    Args:
      q, k, v: (B, N, S, D).
      bias: float32, broadcast to (B, N, S, S) and added to the scores; a constant, no gradient flows into it.
      rate, seed, place: dropout of the probabilities.

    Returns:
      (B, N, S, D).
    """
    scale = q.shape[-1] ** -0.5
    drop = bool(rate) and seed is not None

    @tf.custom_gradient
    def attend(q, k, v):
        # Scales, this one and dropout's, go to q and v, which are smaller than the (B, N, S, S) of scores and probabilities.
        scaled_q = q * scale
        scores = tf.cast(tf.matmul(scaled_q, k, transpose_b=True), tf.float32) + bias
        probabilities = tf.nn.softmax(scores)  # (B, N, S, S), float32
        kept, value_scale = tf.cast(probabilities, q.dtype), 1.0
        if drop:
            bits, (threshold, share) = draw_bits(sizes(kept), seed, place), drop_threshold(rate)
            kept, value_scale = _drop_unscaled(kept, bits, threshold), 1 / share
        scaled_v = v * value_scale if drop else v
        mixed = tf.matmul(kept, scaled_v)

        def gradient(upstream):
            dv = tf.matmul(kept, upstream, transpose_a=True)
            dkept = tf.matmul(upstream, scaled_v, transpose_b=True)
            # The softmax gradient subtracts sum_j p_ij dp_ij, which is the product of output and upstream: S x D terms, not S x S
            # (Dao et al. 2022, FlashAttention, B.2).
            projection = tf.reduce_sum(tf.cast(upstream, tf.float32) * tf.cast(mixed, tf.float32), -1, keepdims=True)
            if drop:
                dscores = _dropped_softmax_gradient(probabilities, dkept, projection, bits, threshold)
            else:
                dscores = _softmax_gradient(probabilities, dkept, projection)
            dq, dk = tf.matmul(dscores, k) * scale, tf.matmul(dscores, scaled_q, transpose_a=True)
            return dq, dk, dv * value_scale if drop else dv

        return mixed, gradient

    return attend(q, k, v)
