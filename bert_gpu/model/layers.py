"""The parts of a transformer as functions of tensors and of a flat dict of weights.

Legend: B batch, S sequence, H hidden, I inner, R rows: the tokens of a batch, B x S of them.

Rows are kept flat, (R, H), wherever sequences do not matter: every product is then one plain matrix product, which all back ends
are fastest at. Compute happens in the dtype of the input; whatever sums many terms (norm statistics, softmax) is float32. Outside XLA
each op is a pass over memory, and these passes are what a fast encoder saves on; so layer norm, GELU and attention (attention.py) bring
their own gradients, with fewer of them than automatic differentiation would make. XLA fuses either form.
"""

import hashlib

import numpy as np
import tensorflow as tf


def sizes(x):
    """The shape of a tensor as a list: numbers where they are known, scalar tensors elsewhere."""
    static = x.shape.as_list()
    if None not in static:
        return static
    dynamic = tf.shape(x)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(static)]


def dense(weights, name, x):
    """x @ kernel + bias: (R, in) -> (R, out). A layer without a "bias" in the weights adds none."""
    x = tf.matmul(x, tf.cast(weights[f"{name}/kernel"], x.dtype))
    bias = weights.get(f"{name}/bias")
    return x if bias is None else tf.nn.bias_add(x, tf.cast(bias, x.dtype))


def layer_norm(weights, name, x, eps):
    """Layer normalisation over the last axis (Ba et al. 2016): (R, H) -> (R, H), statistics in float32, result in x's dtype."""

    @tf.custom_gradient
    def normalise(x, scale, bias):
        wide = tf.cast(x, tf.float32)
        centred = wide - tf.reduce_mean(wide, -1, keepdims=True)
        inverse_deviation = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + eps)  # (R, 1)
        normal = centred * inverse_deviation

        def gradient(upstream):
            upstream = tf.cast(upstream, tf.float32)
            scaled = upstream * scale
            projection = tf.reduce_mean(scaled * normal, -1, keepdims=True)
            dx = (scaled - tf.reduce_mean(scaled, -1, keepdims=True) - normal * projection) * inverse_deviation
            return tf.cast(dx, x.dtype), _sum_rows(upstream * normal), _sum_rows(upstream)

        return tf.cast(normal * scale + bias, x.dtype), gradient

    return normalise(x, tf.cast(weights[f"{name}/scale"], tf.float32), tf.cast(weights[f"{name}/bias"], tf.float32))


def _sum_rows(x):
    """(R, H) -> (H,). The gradient op of bias_add sums columns twice as fast as reduce_sum on a CPU."""
    return tf.raw_ops.BiasAddGrad(out_backprop=x)


@tf.custom_gradient
def gelu(x):
    """x * Phi(x), exact (Hendrycks & Gimpel 2016)."""
    constant = x.dtype.as_numpy_dtype
    t = x * constant(np.sqrt(0.5))
    cdf = constant(0.5) + constant(0.5) * tf.math.erf(t)

    def gradient(upstream):
        # cdf + x * density(x); with x = sqrt(2) t all constant factors of x * density fit into the exponent.
        return upstream * (cdf + t * tf.exp(constant(-0.5 * np.log(np.pi)) - tf.square(t)))

    return x * cdf, gradient


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_new": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
    "silu": tf.nn.silu,
}
GATES = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}


def activate(name, x):
    """The activation `name` of x, (R, I). A gate halves the width: the first half times the activation of the second, as in Cramming."""
    if name not in GATES:
        return ACTIVATIONS[name](x)
    values, gates = tf.split(x, 2, -1)
    return values * ACTIVATIONS[GATES[name]](gates)


def ungated(name):
    """The function from (R, I) to (R, I) that a gated activation gates by; any other is itself."""
    return ACTIVATIONS[GATES.get(name, name)]


def keep_mask(shape, rate, seed, place, dtype):
    """Draws which values dropout keeps: 1 for kept, 0 for dropped, and the share that is kept.

    Numbers come from Philox, keyed by the seed and by the place, so that they are the same with and without XLA and independent
    between places. A draw has 16 bits: half the work of 32, and the share kept is within 2^-17 of what was asked for; the exact share
    is returned, so that scaling by it keeps the mean.

    Args:
      shape: list of numbers or scalar tensors, as `sizes` gives it.
      rate: share to drop, above 0 and below 1.
      seed: int32 (2,).
      place: name of the place in the network.
    """
    key = np.frombuffer(hashlib.sha256(place.encode()).digest()[:8], "<i4")
    num_values = int(np.prod(shape)) if all(isinstance(size, int) for size in shape) else tf.reduce_prod(tf.stack(shape))
    bits = tf.random.stateless_uniform(
        [(num_values + 1) // 2], tf.bitwise.bitwise_xor(seed, key), minval=None, maxval=None, dtype=tf.uint32, alg="philox"
    )
    draws = tf.reshape(tf.reshape(tf.bitcast(bits, tf.uint16), [-1])[:num_values], shape)
    threshold = min(round(rate * 2**16), 2**16 - 1)
    return tf.cast(draws >= tf.constant(threshold, tf.uint16), dtype), 1 - threshold / 2**16


def dropout(x, rate, seed, place):
    """Zeroes a share `rate` of the values and scales up the others. The identity, with no op at all, for rate 0 or seed None."""
    if not rate or seed is None:
        return x
    mask, share = keep_mask(sizes(x), rate, seed, place, x.dtype)
    return x * (mask * (1 / share))
