"""Computes self-attention: the mask, rotary positions, and the attention of queries to keys and
values, which has a hand-written gradient here or runs in cuDNN. Local attention, of a token to
those at most `reach` tokens away, is a mask, too; in long rows it is computed in blocks.

Legend: B batch, S sequence, P positions with queries, N heads, D dimensions per head, C blocks of a
row, W tokens of a block.
"""

import functools
import typing
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import (
    column_sums,
    custom_gradient,
    fused,
    has_gpu,
    hide_from_xla,
    widened,
)
from bert_gpu.model import cudnn_attention
from bert_gpu.model.disentangled import Relative, masked_sum, products_gradient
from bert_gpu.model.layers import draw_bits, drop_threshold, sizes


def mask_bias(input_mask: tf.Tensor) -> tf.Tensor:
    """Return the mask as a bias to add to attention scores: input_mask (B, S), 1 for tokens and 0
    for padding -> (B, 1, 1, S) float32, 0 for tokens and -1e9 for padding.
    """
    return (tf.cast(input_mask, tf.float32)[:, None, None, :] - 1.0) * 1e9


def band(length: int | tf.Tensor, reach: int, positions: tf.Tensor | None = None) -> tf.Tensor:
    """Return the mask of local attention as a bias to add to attention scores: float32, 0 between
    tokens at most `reach` apart, -1e9 elsewhere: (1, 1, S, S), or for the queries at some positions
    only, int32 (B, P), (B, 1, P, S).
    """
    keys = tf.range(length)
    queries = keys[None] if positions is None else positions
    is_far = tf.abs(queries[:, None, :, None] - keys) > reach
    return tf.where(is_far, tf.constant(-1e9), tf.constant(0.0))


class Blocks(typing.NamedTuple):
    """The mask of local attention that is computed in blocks of W = 2 x reach tokens. The tokens of
    a block attend to those of the block and of half a block on each side.

    reach: number of tokens on each side to which a token attends. bias: float32 (B x C, 1, W, 2 W),
    added to the scores.
    """

    reach: int
    bias: tf.Tensor


def split_blocks(x: tf.Tensor, reach: int) -> tf.Tensor:
    """Return rows, after half a block of zeros, in blocks, the last of which are filled with zeros:
    (B, S, ...) -> (B, C + 1, W, ...). S must be known.
    """
    batch_size, length, *rest = sizes(x)
    width = 2 * reach
    num_blocks = 1 - (-length // width)
    paddings = [[0, 0], [reach, num_blocks * width - reach - length], *([[0, 0]] * len(rest))]
    return tf.reshape(tf.pad(x, paddings), [batch_size, num_blocks, width, *rest])


def join_blocks(blocks: tf.Tensor, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the queries and the keys of each block of a row, from the result of `split_blocks`
    with its third axis moved to `axis`: (B, C, W, ...) and (B, C, 2 W, ...), so moved.
    """
    before = blocks[:, :-1]
    after = blocks[:, 1:]
    middle = [tf.split(before, 2, axis)[1], tf.split(after, 2, axis)[0]]
    return tf.concat(middle, axis), tf.concat([before, after], axis)


def make_blocks(ids: tf.Tensor, reach: int) -> Blocks:
    """Return the Blocks of rows in which tokens attend to those of the same id only: int32 (B, S),
    0 for padding.
    """
    width = 2 * reach
    queries, keys = join_blocks(split_blocks(ids, reach), 2)
    distances = tf.range(2 * width) - reach - tf.range(width)[:, None]  # (W, 2 W)
    is_other = queries[:, :, :, None] != keys[:, :, None]
    bias = tf.where(is_other | (tf.abs(distances) > reach), tf.constant(-1e9), tf.constant(0.0))
    return Blocks(reach, tf.reshape(bias, [-1, 1, width, 2 * width]))


def block_attention(
    qkv: tf.Tensor,
    bias: Sequence[tf.Tensor],
    mask: Blocks,
    rotation: tuple[tf.Tensor, tf.Tensor] | None,
    *dropout: typing.Any,
) -> tf.Tensor:
    """Return local self-attention, computed in blocks; arguments and result are those of
    `self_attention`, dropout: its rate, seed and dropout_key.
    """
    batch_size, length, _, num_heads, size = sizes(qkv)
    width = 2 * mask.reach
    blocks = split_blocks(qkv, mask.reach)
    parts = split_heads(tf.reshape(blocks, [-1, *blocks.shape[2:]]), *bias)
    shape = [batch_size, blocks.shape[1], num_heads, width, size]
    joined = [join_blocks(tf.reshape(x, shape), 3) for x in parts]
    q, k, v = (
        tf.reshape(x, [-1, num_heads, num_tokens, size])
        for x, num_tokens in (
            (joined[0][0], width),
            (joined[1][1], 2 * width),
            (joined[2][1], 2 * width),
        )
    )
    if rotation is not None:
        # scores depend on differences of positions alone, so those in the first blocks do for all
        q = rotate(q, *(values[mask.reach : mask.reach + width] for values in rotation))
        k = rotate(k, *(values[: 2 * width] for values in rotation))
    mixed = tf.transpose(attention(q, k, v, mask.bias, *dropout), [0, 2, 1, 3])
    return tf.reshape(mixed, [batch_size, -1, num_heads, size])[:, :length]


def rotation(
    length: int | tf.Tensor, max_length: int, size: int, dtype: tf.DType, base: float = 10000.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the cosines and sines by which `rotate` turns positions 0, 1, ...: (S, D) each, with
    the sines of the first D / 2 dimensions negated.

    Dimensions i and i + D / 2 are a pair, which turns by the angle position / base^(2 i / D) (Su et
    al. 2021, RoFormer, 3.2.2). RoFormer pairs neighbouring dimensions instead, which differs
    only by the order of the columns of the query and key kernels. The results are constants,
    computed in float64.

    Args:
      length: S, at most max_length. size: D.
    """
    angles = np.arange(max_length)[:, None] / base ** (np.arange(0, size, 2) / size)
    cosines = np.concatenate([np.cos(angles), np.cos(angles)], -1).astype(np.float32)
    sines = np.concatenate([-np.sin(angles), np.sin(angles)], -1).astype(np.float32)
    return tf.constant(cosines, dtype)[:length], tf.constant(sines, dtype)[:length]


def rotate(x: tf.Tensor, cosines: tf.Tensor, sines: tf.Tensor) -> tf.Tensor:
    """Return queries or keys x, (..., S, D), with each pair of dimensions turned by the angle of
    its position. cosines, sines: from `rotation`.

    An attention score then depends only on the difference of two positions, so positions need not
    restart in each sequence of a packed row.
    """
    first, second = tf.split(x, 2, -1)
    return x * cosines + tf.concat([second, first], -1) * sines


@functools.cache
def _splitter(num: int) -> Callable:
    """Return the compiled function by which `split_heads` splits a projection into `num` tensors.
    Each number has a function of its own, because one for all would be traced with relaxed shapes,
    in which the number is unknown (fused.py).
    """

    def split(qkv: tf.Tensor, bias: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return tf.unstack(
            tf.transpose(tf.cast(widened(qkv, bias), qkv.dtype), [2, 0, 3, 1, 4]), num
        )

    return fused(split)


@custom_gradient
def split_heads(qkv: tf.Tensor, *bias: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
    """Return queries, keys and values, [(B, N, S, D)] x 3, from their projection (B, S, 3, N, D)
    and an optional bias (3, N, D), which is added. With 1 or 2 instead of 3, return as many
    tensors.
    """

    def gradient(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        joined = tf.transpose(tf.stack(upstream), [1, 3, 0, 2, 4])
        columns = tf.reshape(joined, [-1, np.prod(qkv.shape[2:])])
        return joined, *(tf.reshape(column_sums(columns, b.dtype), b.shape) for b in bias)

    return _splitter(qkv.shape[2])(qkv, bias), gradient


@custom_gradient
def split_by_token(qkv: tf.Tensor, *bias: tf.Tensor) -> tuple[list[tf.Tensor], Callable]:
    """Return queries, keys and values in the order of cuDNN, [(B, S, N, D)] x 3; arguments as for
    `split_heads`.
    """

    def gradient(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        # side by side, so that XLA copies four values at a time; hidden, because it would make the
        # joining a part of the product with them, for which all layers keep three arrays
        size = np.prod(qkv.shape[3:])
        joined = hide_from_xla(tf.concat([tf.reshape(part, [-1, size]) for part in upstream], 1))
        sums = (tf.reshape(column_sums(joined, b.dtype), b.shape) for b in bias)
        return tf.reshape(joined, tf.shape(qkv)), *sums

    # sliced before the bias is added: XLA's kernel for slices of a computed tensor is slow on GPUs,
    # .36 ms in a layer of base for .07 of bytes (dev/gpu.md)
    slices = enumerate(tf.unstack(qkv, axis=2))
    parts = [tf.cast(widened(x, [b[i] for b in bias]), qkv.dtype) for i, x in slices]
    return parts, gradient


def attention_from(
    query: tuple[tf.Tensor, Sequence[tf.Tensor]],
    key_value: tuple[tf.Tensor, Sequence[tf.Tensor]],
    mask: tf.Tensor,
    query_rotation: tuple[tf.Tensor, tf.Tensor] | None = None,
    key_rotation: tuple[tf.Tensor, tf.Tensor] | None = None,
    rate: float = 0.0,
    seed: tf.Tensor | None = None,
    dropout_key: str = "attention",
) -> tf.Tensor:
    """Return the attention of queries at some positions of each row to all tokens of the row.

    Args:
      query: projected queries (B, P, 1, N, D) and their bias, [(1, N, D)] or []. key_value:
        projected keys and values (B, S, 2, N, D) and their bias, [(2, N, D)] or [].
      mask: float32, added to the scores like the `bias` of `attention`.
      query_rotation: cosines and sines, (B, 1, P, D) each. key_rotation: from `rotation`. Both are
        None without rotary positions.
      rate, seed, dropout_key: dropout of the attention probabilities, as for `layers.dropout`.

    Returns:
      (B, P, N, D).
    """
    (q,) = split_heads(query[0], *query[1])
    k, v = split_heads(key_value[0], *key_value[1])
    if query_rotation is not None and key_rotation is not None:
        q = rotate(q, *query_rotation)
        k = rotate(k, *key_rotation)
    return tf.transpose(attention(q, k, v, mask, rate, seed, dropout_key), [0, 2, 1, 3])


def self_attention(
    qkv: tf.Tensor,
    bias: Sequence[tf.Tensor],
    mask: tf.Tensor | cudnn_attention.Mask | Blocks,
    rotation: tuple[tf.Tensor, tf.Tensor] | None = None,
    rate: float = 0.0,
    seed: tf.Tensor | None = None,
    dropout_key: str = "attention",
    relative: Relative | None = None,
) -> tf.Tensor:
    """Return self-attention from the projection to queries, keys and values. The type of the mask
    selects the implementation, ours, ours in blocks, or cuDNN's.

    Args:
      qkv: queries, keys and values, (B, S, 3, N, D). bias: [(3, N, D)], added to qkv, or [].
      mask: float32, added to the scores like the `bias` of `attention`; or a cudnn_attention.Mask,
        for cuDNN, which has no dropout; or Blocks.
      rotation: the result of the function `rotation`; None without rotary positions. rate, seed,
        dropout_key: dropout of the attention probabilities, as for `layers.dropout`. relative: of
        disentangled attention, which only our own implementation has.

    Returns:
      (B, S, N, D).
    """
    if isinstance(mask, cudnn_attention.Mask):
        if rate and seed is not None:
            raise ValueError(f"cuDNN attention has no dropout, but the dropout rate is {rate}")
        q, k, v = split_by_token(qkv, *bias)
        if rotation is not None:
            q, k = (rotate(x, *(values[:, None] for values in rotation)) for x in (q, k))
        return cudnn_attention.attention(q, k, v, mask)
    if isinstance(mask, Blocks):
        return block_attention(qkv, bias, mask, rotation, rate, seed, dropout_key)
    q, k, v = split_heads(qkv, *bias)
    if rotation is not None:
        q = rotate(q, *rotation)
        k = rotate(k, *rotation)
    mixed = attention(q, k, v, mask, rate, seed, dropout_key, relative)
    return tf.transpose(mixed, [0, 2, 1, 3])


@fused
def _mark_dropped(
    probabilities: tf.Tensor, bits: tf.Tensor, threshold: tf.Tensor, share: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the attention probabilities after dropout twice: to multiply the values, with dropped
    elements 0 and the others divided by `share`; and for the backward pass, with dropped elements
    negated.
    """
    is_kept = bits >= threshold
    wide = tf.cast(probabilities, tf.float32)
    return tf.cast(tf.where(is_kept, wide / share, 0.0), probabilities.dtype), tf.where(
        is_kept, probabilities, -probabilities
    )


@fused
def _unmark(marked: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.maximum(tf.cast(marked, tf.float32), 0.0) / share, marked.dtype)


@fused
def _softmax_gradient(
    marked: tf.Tensor,
    dkept: tf.Tensor,
    mixed: tf.Tensor,
    upstream: tf.Tensor,
    scale: tf.Tensor | float,
    share: tf.Tensor,
) -> tf.Tensor:
    """Return the gradient of the attention scores. The gradient of softmax subtracts sum_j p_ij
    dp_ij, which is computed as the sum over D of output times upstream gradient: S x D terms
    instead of S x S (Dao et al. 2022, FlashAttention, B.2).
    """
    projection = tf.reduce_sum(
        tf.cast(upstream, tf.float32) * tf.cast(mixed, tf.float32), -1, keepdims=True
    )
    wide = tf.cast(marked, tf.float32)
    dprobabilities = tf.where(wide > 0.0, tf.cast(dkept, tf.float32) / share, 0.0)
    return tf.cast(tf.abs(wide) * (dprobabilities - projection) * scale, marked.dtype)


def attention(
    q: tf.Tensor,
    k: tf.Tensor,
    v: tf.Tensor,
    bias: tf.Tensor,
    rate: float = 0.0,
    seed: tf.Tensor | None = None,
    dropout_key: str = "attention",
    relative: Relative | None = None,
) -> tf.Tensor:
    """Return scaled dot-product attention (Vaswani et al. 2017, 3.2.1), softmax in float32.

    One (B, N, P, S) array in q's dtype is kept for the backward pass: the attention probabilities,
    on CPUs negated where dropout dropped them.

    Args:
      q: (B, N, P, D). k, v: (B, N, S, D).
      bias: float32, broadcast to (B, N, P, S) and added to the scores: 0, or a number so far below
        0 that it masks the token. The bias gets no gradient.
      rate, seed, dropout_key: dropout of the attention probabilities, as for `layers.dropout`.
      relative: terms of the scores that depend on the distance of tokens; P is then S.

    Returns:
      (B, N, P, D).
    """
    c2p, p2c = relative.products(q, k) if relative else ([], [])
    scale = (q.shape[-1] * (1 + len(c2p) + len(p2c))) ** -0.5
    drop = bool(rate) and seed is not None

    @custom_gradient
    def attend(
        q: tf.Tensor, k: tf.Tensor, v: tf.Tensor, *products: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        terms = products[: len(c2p)], products[len(c2p) :]
        scores = masked_sum(tf.matmul(q, k, transpose_b=True), *terms, scale, bias)
        # sets the rank, because TensorFlow warns of a softmax over a tensor of unknown rank
        scores = tf.ensure_shape(scores, [None] * 4)
        probabilities = tf.cast(tf.nn.softmax(scores), q.dtype)  # (B, N, P, S)
        for_values = probabilities
        for_gradient = probabilities
        share = np.float32(1)
        if drop:
            shape = sizes(probabilities)
            threshold, share = drop_threshold(rate)
            for_values, marked = _mark_dropped(
                probabilities, draw_bits(shape, seed, dropout_key), threshold, share
            )
            for_gradient = probabilities if has_gpu() else marked  # GPUs draw the bits again
        mixed = tf.matmul(for_values, v)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            marked = for_gradient
            if drop and has_gpu():
                # delays the second draw until the backward pass: outside XLA by the control edge,
                # under XLA by the barrier of `hide_from_xla`
                with tf.control_dependencies([upstream]):
                    late = hide_from_xla(seed)
                marked = _mark_dropped(
                    for_gradient, draw_bits(shape, late, dropout_key), threshold, share
                )[1]
            dv = tf.matmul(_unmark(marked, share) if drop else marked, upstream, transpose_a=True)
            dkept = tf.matmul(upstream, v, transpose_b=True)
            dscores = _softmax_gradient(marked, dkept, mixed, upstream, scale, share)
            dproducts = products_gradient(dscores, c2p, p2c)
            return tf.matmul(dscores, k), tf.matmul(dscores, q, transpose_a=True), dv, *dproducts

        return mixed, gradient

    return attend(q, k, v, *c2p, *p2c)
