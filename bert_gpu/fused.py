"""Small functions compiled by XLA into few passes over memory, inside steps that are not compiled
as a whole (those of CPUs).

Outside XLA every elementwise op reads and writes all of its values; a GELU and its gradient are
eleven such passes. Compiling the whole step is no way out on CPUs, where XLA's matrix products are
slower than TensorFlow's. So only what stands between the products is compiled. Inside a step that
XLA compiles, these functions dissolve in it.
"""

import functools
import os
import sys

import tensorflow as tf


def fused(function, reduce_retracing=True):
    """Compiles a function of tensors, a decorator. Each shape is compiled once a process.

    What a call may lack is a sequence that may be empty: TensorFlow 2.20 fails on calls with
    different numbers of arguments.
    """
    return tf.function(
        function, jit_compile=True, autograph=False, reduce_retracing=reduce_retracing
    )


def widened(x, bias=()):
    """x as float32, plus the bias if there is one: a sequence of one or none."""
    x = tf.cast(x, tf.float32)
    return x + tf.cast(bias[0], tf.float32) if bias else x


def elementwise(function):
    """Makes of a function from float32 to float32 one of any float type, with one pass forward and
    one backward.

    Args:
      function: (..., n) -> (..., m) of TensorFlow ops; its gradient is derived, inside the compiled
        pass, from the input alone.

    Returns: a function of (R, n), and optionally of a bias (n,) that is added first, in
      the same pass.
    """

    @fused
    def forward(x, bias):
        return tf.cast(function(widened(x, bias)), x.dtype)

    @fused
    def backward(x, upstream, bias):
        wide = widened(x, bias)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wide)
            y = function(wide)
        return tf.cast(tape.gradient(y, wide, tf.cast(upstream, tf.float32)), x.dtype)

    @tf.custom_gradient
    def call(x, *bias):
        def gradient(upstream):
            dx = backward(x, upstream, bias)
            return dx, *(column_sums(dx, b.dtype) for b in bias)

        return forward(x, bias), gradient

    return call


@functools.cache
def has_gpu():
    return bool(tf.config.list_logical_devices("GPU"))


def column_sums(x, dtype=tf.float32):
    """The gradient of a bias: (R, C) -> (C,). On CPUs a product with ones, which is several times
    faster than a reduction there.

    Not of float16, because a product comes out as what went in, and a scaled loss has sums
    above its range.
    """
    if has_gpu() or x.dtype == tf.float16:
        return tf.cast(tf.reduce_sum(tf.cast(x, tf.float32), 0), dtype)
    return tf.cast(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0], dtype)


def hush():
    """Lets XLA say once, to nobody, that it compiles. It logs that past TensorFlow's log level;
    call it when the devices are set up.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        with tf.device("CPU:0"):
            fused(lambda x: x + 1.0)(tf.constant(0.0))
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
