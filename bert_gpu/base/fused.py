"""Small functions that XLA compiles into few passes over memory, for steps that are not compiled as
a whole (those on CPUs).

Outside XLA every elementwise op reads and writes all of its values; a GELU and its gradient are
eleven such passes. Compiling the whole step does not help on CPUs, where XLA's matrix products are
slower than TensorFlow's. So only the ops between the products are compiled. In a step that XLA
compiles as a whole, these functions become part of it.
"""

import contextlib
import contextvars
import functools
import os
import sys

import tensorflow as tf

from bert_gpu.base.console import tolerate_lost_stream
from bert_gpu.base.environment import OUR_FLAGS


def fused(function, reduce_retracing=True):
    """Decorator: XLA compiles a function of tensors, once per process for each shape.

    Pass an optional tensor as a sequence that may be empty: TensorFlow 2.20 fails on calls with
    different numbers of arguments.
    """
    compiled = tf.function(
        function, jit_compile=True, autograph=False, reduce_retracing=reduce_retracing
    )

    @functools.wraps(function)
    def call(*arguments):
        return (function if _inlined.get() else compiled)(*arguments)

    return call


_inlined = contextvars.ContextVar("inlined", default=False)


def custom_gradient(function):
    """tf.custom_gradient: function(*tensors) -> (results, function of their gradients). Inside
    `inlined` it gives the results alone.
    """
    with_gradient = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)[0] if _inlined.get() else with_gradient(*arguments)

    return call


@contextlib.contextmanager
def inlined():
    """What is traced inside gets the plain ops of fused functions, and no gradients of our own: for
    graphs that leave for programs which have neither XLA nor our code.
    """
    token = _inlined.set(True)
    try:
        yield
    finally:
        _inlined.reset(token)


def widened(x, bias=()):
    """x as float32, plus the bias if there is one. bias: a sequence of one tensor or none."""
    x = tf.cast(x, tf.float32)
    return x + tf.cast(bias[0], tf.float32) if bias else x


def elementwise(function):
    """Turns an elementwise function of float32 into one of any float type, with one pass forward
    and one pass backward.

    Args:
      function: (..., n) -> (..., m), made of TensorFlow ops; the compiled backward pass computes
        its gradient from the input alone.

    Returns: a function of (R, n) and an optional bias (n,), which is added first, in the same pass.
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

    @custom_gradient
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
    """The gradient of a bias: (R, C) -> (C,). On CPUs it is a product with ones, several times
    faster than a reduction.

    float16 is always reduced in float32: its product would be float16, and sums of scaled gradients
    exceed its range.
    """
    if has_gpu() or x.dtype == tf.float16:
        return tf.cast(tf.reduce_sum(tf.cast(x, tf.float32), 0), dtype)
    return tf.cast(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0], dtype)


@functools.cache
def compile_silently_once():
    """Compiles a trivial function with stderr discarded. XLA logs its first compilation regardless
    of TensorFlow's log level, and this hides that line. Where the user has set XLA_FLAGS, it shows:
    XLA reads them now, and says what is wrong with them before it aborts. Call it once the devices
    are set up; later calls do nothing.
    """
    are_ours = os.environ.get("XLA_FLAGS") == OUR_FLAGS
    hiding = stderr_discarded() if are_ours else contextlib.nullcontext()
    with hiding, tf.device("CPU:0"):
        fused(lambda x: x + 1.0)(tf.constant(0.0))


@contextlib.contextmanager
def stderr_discarded():
    """Discards what is written to standard error inside, by libraries in C++ as well."""
    with tolerate_lost_stream(sys.stderr):
        sys.stderr.flush()
    stderr, devnull = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
