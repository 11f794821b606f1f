"""The parts of a transformer as functions of tensors and of a flat dict of weights.

Legend: B batch, S sequence, P positions of a row, H hidden, I inner, R rows: the tokens of a batch,
B x S of them.

Rows stay flat, (R, H), wherever sequences do not matter: each dense layer is then one plain matrix
product, the fastest form on every device. Layers compute in the dtype of the input; sums of many
terms (norm statistics, softmax) are float32. Outside XLA each op is a pass over memory, so the ops
between the matrix products, and their gradients, are compiled into a few passes (fused.py).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_gpu.base.fused import column_sums, custom_gradient, elementwise, fused, has_gpu, widened
from bert_gpu.model.config import ModelConfig


def sizes(x: tf.Tensor) -> list[int | tf.Tensor]:
    """Return the shape of a tensor: ints where they are known, scalar tensors elsewhere."""
    static = x.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def select(hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Return the vectors at some positions of each row: (B, S, H), int32 (B, P) -> (B, P, H).

    The vectors are selected by a product with one-hot rows, which is exact for finite values (in
    float32 on GPUs as exact as TensorFloat-32, like all products). A gather would have a scatter as
    its gradient, which makes XLA on GPUs store all hidden states of the model column by column.
    """
    one_hot = tf.one_hot(positions, sizes(hidden)[1], dtype=hidden.dtype)  # (B, P, S)

    @custom_gradient
    def pick(hidden: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return tf.matmul(one_hot, hidden), lambda upstream: tf.matmul(
            one_hot, upstream, transpose_a=True
        )

    return pick(hidden)


def project(
    weights: Mapping[str, tf.Tensor], name: str, x: tf.Tensor
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return x @ kernel of the dense layer `name`, and the layer's bias, which is not added: x (R,
    in) -> (R, out), and [(out,)], or [] for a layer without bias.

    Callers add the bias in a compiled pass together with the ops that follow. TensorFlow's op for a
    product with its bias takes up to twice as long as the product alone (bfloat16, CPU).
    """
    bias = weights.get(f"{name}/bias")
    return tf.matmul(x, tf.cast(weights[f"{name}/kernel"], x.dtype)), [] if bias is None else [bias]


def dense(weights: Mapping[str, tf.Tensor], name: str, x: tf.Tensor) -> tf.Tensor:
    """Return the output x @ kernel + bias of the dense layer `name`: (R, in) -> (R, out). The bias
    is optional. For small layers, where the pass that adds the bias costs little.
    """
    x, bias = project(weights, name, x)
    return tf.nn.bias_add(x, tf.cast(bias[0], x.dtype)) if bias else x


def _row_means(x: tf.Tensor) -> tf.Tensor:
    """Return the mean of each row, (R, H) -> (R, 1). XLA on CPUs sums along rows one value at a
    time, but along columns many at a time, so rows are first reduced to 32 means along columns.
    """
    size = x.shape[1]
    if not has_gpu() and size is not None and size % 32 == 0:
        x = tf.reduce_mean(tf.reshape(x, [-1, size // 32, 32]), 1)
    return tf.reduce_mean(x, -1, keepdims=True)


@fused
def _normalise(
    x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor, eps: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return x, (R, H), layer-normalised, in x's dtype, and the mean and the inverse standard
    deviation of each row, float32 (R, 1) each.
    """
    wide = tf.cast(x, tf.float32)
    mean = _row_means(wide)
    inverse = tf.math.rsqrt(_row_means(tf.square(wide - mean)) + eps)
    return tf.cast((wide - mean) * inverse * scale + bias, x.dtype), mean, inverse


@fused
def _normalise_gradient(
    x: tf.Tensor, scale: tf.Tensor, mean: tf.Tensor, inverse: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients of x (R, H), scale (H,) and bias (H,) of a layer normalisation. mean,
    inverse: from `_normalise`.
    """
    # Without the barrier, XLA on GPUs computes mean and inverse again here, and can then not sum
    # columns in the same pass that reads x.
    mean, inverse = gen_xla_ops.xla_optimization_barrier([mean, inverse])
    upstream = tf.cast(upstream, tf.float32)
    normal = (tf.cast(x, tf.float32) - mean) * inverse
    scaled = upstream * scale
    projection = tf.reduce_mean(scaled * normal, -1, keepdims=True)
    dx = (scaled - tf.reduce_mean(scaled, -1, keepdims=True) - normal * projection) * inverse
    return tf.cast(dx, x.dtype), tf.reduce_sum(upstream * normal, 0), tf.reduce_sum(upstream, 0)


def layer_norm(weights: Mapping[str, tf.Tensor], name: str, x: tf.Tensor, eps: float) -> tf.Tensor:
    """Return x, (R, H), layer-normalised over the last axis (Ba et al. 2016), in x's dtype;
    statistics are computed in float32. The bias is optional.
    """
    scale = tf.cast(weights[f"{name}/scale"], tf.float32)
    bias = weights.get(f"{name}/bias")

    @custom_gradient
    def normalise(x: tf.Tensor, scale: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        y, mean, inverse = _normalise(x, scale, bias, tf.constant(eps, tf.float32))
        return y, lambda upstream: _normalise_gradient(x, scale, mean, inverse, upstream)

    return normalise(x, scale, tf.zeros_like(scale) if bias is None else tf.cast(bias, tf.float32))


@fused
def _scale_to_unit(x: tf.Tensor, scale: tf.Tensor, eps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x, (R, H), divided by the root mean square of each row and scaled, in x's dtype, and
    the inverse root mean squares, float32 (R, 1).
    """
    wide = tf.cast(x, tf.float32)
    inverse = tf.math.rsqrt(_row_means(tf.square(wide)) + eps)
    return tf.cast(wide * inverse * scale, x.dtype), inverse


@fused
def _scale_to_unit_gradient(
    x: tf.Tensor, scale: tf.Tensor, inverse: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the gradients of x (R, H) and scale (H,) of `_scale_to_unit`, which returned
    `inverse`.
    """
    inverse = gen_xla_ops.xla_optimization_barrier([inverse])[0]  # as in `_normalise_gradient`
    upstream = tf.cast(upstream, tf.float32)
    normal = tf.cast(x, tf.float32) * inverse
    scaled = upstream * scale
    dx = (scaled - normal * tf.reduce_mean(scaled * normal, -1, keepdims=True)) * inverse
    return tf.cast(dx, x.dtype), tf.reduce_sum(upstream * normal, 0)


def rms_norm(weights: Mapping[str, tf.Tensor], name: str, x: tf.Tensor, eps: float) -> tf.Tensor:
    """Return x, (R, H), divided by the root mean square of the last axis and multiplied by a scale,
    in x's dtype (Zhang & Sennrich 2019, "Root Mean Square Layer Normalization", section 3). The
    mean is not subtracted and no bias is added; statistics are computed in float32.
    """

    @custom_gradient
    def normalise(x: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        y, inverse = _scale_to_unit(x, scale, tf.constant(eps, tf.float32))
        return y, lambda upstream: _scale_to_unit_gradient(x, scale, inverse, upstream)

    return normalise(x, tf.cast(weights[f"{name}/scale"], tf.float32))


def norm(
    weights: Mapping[str, tf.Tensor], name: str, x: tf.Tensor, config: ModelConfig
) -> tf.Tensor:
    """Return x, (R, H), normalised as --norm_type says, in x's dtype."""
    function = {"layer_norm": layer_norm, "rms_norm": rms_norm}[config.norm_type]
    return function(weights, name, x, config.layer_norm_eps)


_PLAIN = {
    # the exact gelu, with erf (Hendrycks & Gimpel 2016)
    "gelu": lambda x: 0.5 * x * (1.0 + tf.math.erf(x * np.float32(np.sqrt(0.5)))),
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
}
_GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}


# halves of the factors a5, ..., a1 of 7.1.26, by Horner's scheme
_TAIL = (0.5307027145, -0.7265760135, 0.7107068705, -0.142248368, 0.127414796)


@tf.custom_gradient
def _gelu_with_gradient(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return the gelu of x, float32, which shares its exponential with its gradient. The normal
    distribution function is that of Abramowitz and Stegun 1964, 7.1.26: values are within 5e-7 of
    the exact gelu, nearer than with XLA's erf, and gradients within 4e-7.
    """
    exponential = tf.exp(-0.5 * tf.square(x))
    t = 1.0 / (1.0 + np.float32(0.3275911 * np.sqrt(0.5)) * tf.abs(x))
    sums = tf.zeros([])
    for factor in _TAIL:
        sums = (sums + factor) * t
    tail = exponential * sums  # the probability of a value beyond |x|
    below = tf.where(x < 0.0, tail, 1.0 - tail)
    slope = below + x * exponential * np.float32(1 / np.sqrt(2 * np.pi))
    return x * below, lambda upstream: upstream * slope


_WITH_GRADIENT = {"gelu": _gelu_with_gradient}


def _gated(gate: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    def function(x: tf.Tensor) -> tf.Tensor:
        values, gates = tf.split(x, 2, -1)
        return values * gate(gates)

    return function


ACTIVATIONS = {
    name: elementwise(function, _WITH_GRADIENT.get(name)) for name, function in _PLAIN.items()
} | {
    name: elementwise(_gated(_PLAIN[gate]), _gated((_PLAIN | _WITH_GRADIENT)[gate]))
    for name, gate in _GATES.items()
}


def activate(name: str, x: tf.Tensor, *bias: tf.Tensor) -> tf.Tensor:
    """Return the activation `name` of x + bias: x (R, I) and optionally a bias (I,) -> (R, I). A
    gated activation returns (R, I / 2): the first half of the values times the activation of the
    second half (the order of Cramming).
    """
    return ACTIVATIONS[name](x, *bias)


def ungated(name: str) -> Callable[..., tf.Tensor]:
    """Return the activation `name` as a function of x (R, I) and a bias -> (R, I); for a gated
    activation, that of its gate alone, such as gelu for geglu.
    """
    return ACTIVATIONS[_GATES.get(name, name)]


DRAW_COLUMNS = 2048  # words of 32 bits in a row of `_draw`


def mix(x: tf.Tensor) -> tf.Tensor:
    """Hash uint32 by a bijection in which each input bit flips each output bit half of the time.

    It is lowbias32 of C. Wellons's hash-prospector (public domain), the result of a search for
    little bias among hashes of two multiplications.
    """
    for distance, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = tf.bitwise.bitwise_xor(
            x, tf.bitwise.right_shift(x, tf.constant(distance, tf.uint32))
        ) * tf.constant(factor, tf.uint32)
    return tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(16, tf.uint32)))


@fused
def _draw(num_rows: int | tf.Tensor, key: tf.Tensor) -> tf.Tensor:
    """Return random bits, uint16 (num_rows x DRAW_COLUMNS x 2,): the halves of mix(mix(start + i) ^
    key) for i = 0, 1, ..., where start and key are the two words of the argument `key`, int32 (2,).

    The counters start + i are a sum of a column and a row, because TensorFlow would store a single
    range of them in the program as a constant.
    """
    start, key = tf.unstack(tf.bitcast(key, tf.uint32))
    columns, rows = (tf.cast(tf.range(size), tf.uint32) for size in (DRAW_COLUMNS, num_rows))
    counters = start + rows[:, None] * tf.constant(DRAW_COLUMNS, tf.uint32) + columns
    return tf.reshape(tf.bitcast(mix(tf.bitwise.bitwise_xor(mix(counters), key)), tf.uint16), [-1])


def draw_bits(shape: Sequence[int | tf.Tensor], seed: tf.Tensor, dropout_key: str) -> tf.Tensor:
    """Return 16 random bits, as uint16, for each value of a tensor of this shape, by which a
    dropout drops values.

    The bits are a hash of the value's index in the tensor, the seed and the key (Salmon et al.
    2011, "Parallel random numbers: as easy as 1, 2, 3", without their margin of safety): the same
    with and without XLA, and independent between keys. 16 bits take half the work of 32. The hash
    has so few operations that XLA on GPUs computes it inside the kernel that drops values and
    writes no bits to memory; TensorFlow's own Philox-4x32-10 takes three passes over memory. On a
    CPU the hash takes half of Philox's time.

    Args:
      shape: sizes of the tensor, as from `sizes`. seed: int32 (2,).
      dropout_key: name of the dropout in the network, such as "layer_0/attention".
    """
    name = np.frombuffer(hashlib.sha256(dropout_key.encode()).digest()[:8], "<i4")
    num_values = (
        int(np.prod(shape))
        if all(isinstance(size, int) for size in shape)
        else tf.reduce_prod(tf.stack(shape))
    )
    bits = _draw(-(-num_values // (2 * DRAW_COLUMNS)), tf.bitwise.bitwise_xor(seed, name))
    return tf.reshape(bits[:num_values], shape)


def drop_threshold(rate: float) -> tuple[tf.Tensor, np.float32]:
    """Return (threshold, share) for a dropout rate: a value is dropped if its 16 random bits, as a
    number, are below the threshold; the share of values that stay is within 2^-17 of 1 - rate.

    Values that stay are divided by the exact share, which keeps the mean.
    """
    threshold = min(round(rate * 2**16), 2**16 - 1)
    return tf.constant(threshold, tf.uint16), np.float32(1 - threshold / 2**16)


@fused
def _drop(x: tf.Tensor, bits: tf.Tensor, threshold: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    return tf.where(
        bits >= threshold, tf.cast(tf.cast(x, tf.float32) / share, x.dtype), tf.zeros((), x.dtype)
    )


@fused
def _drop_and_add(
    x: tf.Tensor,
    change: tf.Tensor,
    bits: tf.Tensor,
    threshold: tf.Tensor,
    share: tf.Tensor,
    bias: Sequence[tf.Tensor],
) -> tf.Tensor:
    dropped = tf.where(bits >= threshold, widened(change, bias) / share, 0.0)
    return tf.cast(tf.cast(x, tf.float32) + dropped, x.dtype)


@fused
def _add(x: tf.Tensor, change: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.cast(tf.cast(x, tf.float32) + widened(change, bias), x.dtype)


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor | None, dropout_key: str) -> tf.Tensor:
    """Return x with a share `rate` of its values set to 0 and the others scaled up; x itself for
    rate 0 or seed None. seed, dropout_key: as for `draw_bits`.
    """
    if not rate or seed is None:
        return x
    bits = draw_bits(sizes(x), seed, dropout_key)
    threshold, share = drop_threshold(rate)

    @custom_gradient
    def drop(x: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        return _drop(x, bits, threshold, share), lambda upstream: _drop(
            upstream, bits, threshold, share
        )

    return drop(x)


def add_dropped(
    x: tf.Tensor,
    change: tf.Tensor,
    bias: Sequence[tf.Tensor],
    rate: float,
    seed: tf.Tensor | None,
    dropout_key: str,
) -> tf.Tensor:
    """Return x + dropout(change + bias), the residual connection of a block, in one pass: x and
    change (R, H), and a bias [(H,)] or [] -> (R, H).
    """
    drop = bool(rate) and seed is not None
    if drop:
        bits = draw_bits(sizes(change), seed, dropout_key)
        threshold, share = drop_threshold(rate)

    @custom_gradient
    def add(x: tf.Tensor, change: tf.Tensor, *bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dchange = _drop(upstream, bits, threshold, share) if drop else upstream
            return upstream, dchange, *(column_sums(dchange, b.dtype) for b in bias)

        return (
            _drop_and_add(x, change, bits, threshold, share, bias)
            if drop
            else _add(x, change, bias)
        ), gradient

    return add(x, change, *bias)
