"""Small functions compiled by XLA into few passes over memory, inside steps that are not compiled as a whole (those of CPUs).

Outside XLA every elementwise op reads and writes all of its values; a GELU and its gradient are eleven such passes. Compiling the whole
step is no way out on CPUs, where XLA's matrix products are slower than TensorFlow's. So only what stands between the products is
compiled. Inside a step that XLA compiles, these functions dissolve in it.
"""

import os
import sys

import tensorflow as tf


def fused(function, reduce_retracing=True):
    """Compiles a function of tensors, a decorator. Each shape is compiled once a process."""
    return tf.function(function, jit_compile=True, autograph=False, reduce_retracing=reduce_retracing)


def elementwise(function):
    """Makes of a function from float32 to float32 one of any float type, with one pass forward and one backward.

    Args:
      function: (..., n) -> (..., m) of TensorFlow ops; its gradient is derived, inside the compiled pass, from the input alone.
    """

    @fused
    def forward(x):
        return tf.cast(function(tf.cast(x, tf.float32)), x.dtype)

    @fused
    def backward(x, upstream):
        wide = tf.cast(x, tf.float32)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wide)
            y = function(wide)
        return tf.cast(tape.gradient(y, wide, tf.cast(upstream, tf.float32)), x.dtype)

    @tf.custom_gradient
    def call(x):
        return forward(x), lambda upstream: backward(x, upstream)

    return call


def hush():
    """Lets XLA say once, to nobody, that it compiles. It logs that past TensorFlow's log level; call it when the devices are set up."""
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
