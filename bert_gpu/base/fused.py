"""Compiles small functions with XLA into few passes over memory, for training steps that XLA does
not compile as a whole, which are those on CPUs.

Outside XLA every elementwise op reads and writes all of its values; a GELU and its gradient need
eleven such passes. Compiling the whole step does not help on CPUs, where XLA's matrix products are
slower than TensorFlow's, so only the ops between the matrix products are compiled. In a step that
XLA compiles as a whole, these functions become part of the step. Shapes: R rows, C columns.
"""

import contextlib
import contextvars
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from bert_gpu.base.console import tolerate_lost_stream
from bert_gpu.base.environment import OUR_FLAGS


def fused(function: Callable, reduce_retracing: bool = True) -> Callable:
    """Compile a function of tensors with XLA, once per process for each shape (a decorator).

    Pass an optional tensor as a sequence that may be empty: TensorFlow 2.20 fails on calls with
    different numbers of arguments.
    """
    compiled = tf.function(
        function, jit_compile=True, autograph=False, reduce_retracing=reduce_retracing
    )

    @functools.wraps(function)
    def call(*arguments: object) -> tf.Tensor:
        return (function if _inlined.get() else compiled)(*arguments)

    return call


_inlined = contextvars.ContextVar("inlined", default=False)


def custom_gradient(function: Callable) -> Callable:
    """Give a function the gradient that it returns, by tf.custom_gradient; inside `inlined`, leave
    the gradient to TensorFlow (a decorator).

    function: (*tensors) -> (results, function from the results' gradients to the tensors'
    gradients).
    """
    with_gradient = tf.custom_gradient(function)

    @functools.wraps(function)
    def call(*arguments: tf.Tensor) -> tf.Tensor:
        return function(*arguments)[0] if _inlined.get() else with_gradient(*arguments)

    return call


@contextlib.contextmanager
def inlined() -> Iterator[None]:
    """Trace fused functions inside this context as plain TensorFlow ops without custom gradients:
    for graphs that are exported to programs which have neither XLA nor our code.
    """
    token = _inlined.set(True)
    try:
        yield
    finally:
        _inlined.reset(token)


@fused
def hide_from_xla(x: tf.Tensor) -> tf.Tensor:
    """Return x behind an optimization barrier. XLA does not see that the result equals x, so it
    computes values from it again instead of keeping those computed from x.
    """
    return gen_xla_ops.xla_optimization_barrier([x])[0]


def widened(x: tf.Tensor, bias: Sequence[tf.Tensor] = ()) -> tf.Tensor:
    """Return x as float32, plus the bias, a sequence of one tensor or none."""
    x = tf.cast(x, tf.float32)
    return x + tf.cast(bias[0], tf.float32) if bias else x


def elementwise(
    function: Callable[[tf.Tensor], tf.Tensor],
    with_gradient: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Callable[..., tf.Tensor]:
    """Return a function of tensors of any float type that applies `function` in float32, with one
    pass over memory forward and one backward.

    Args:
      function: (..., n) -> (..., m), made of TensorFlow ops. The backward pass computes its
        gradient from its input alone, so that no other values are kept.
      with_gradient: the same function for the backward pass, written so that its gradient takes
        less work. None = `function`.

    Returns: a function of x (R, n) and an optional bias (n,), which is added to x in the same pass,
    before `function`.
    """

    @fused
    def forward(x: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.cast(function(widened(x, bias)), x.dtype)

    @fused
    def backward(x: tf.Tensor, upstream: tf.Tensor, bias: Sequence[tf.Tensor]) -> tf.Tensor:
        wide = widened(x, bias)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wide)
            y = (with_gradient or function)(wide)
        return tf.cast(tape.gradient(y, wide, tf.cast(upstream, tf.float32)), x.dtype)

    @custom_gradient
    def call(x: tf.Tensor, *bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            dx = backward(x, upstream, bias)
            return dx, *(column_sums(dx, b.dtype) for b in bias)

        return forward(x, bias), gradient

    return call


@functools.cache
def has_gpu() -> bool:
    return bool(tf.config.list_logical_devices("GPU"))


def column_sums(x: tf.Tensor, dtype: tf.DType = tf.float32) -> tf.Tensor:
    """Return the sum of each column, (R, C) -> (C,), which is the gradient of a bias. On CPUs the
    sums are a matrix product with ones, several times faster than a reduction.

    float16 is always summed in float32: a product would be float16, whose range is too small for
    sums of gradients that are multiplied by the loss scale.
    """
    if has_gpu() or x.dtype == tf.float16:
        return tf.cast(tf.reduce_sum(tf.cast(x, tf.float32), 0), dtype)
    return tf.cast(tf.matmul(tf.ones([1, tf.shape(x)[0]], x.dtype), x)[0], dtype)


@functools.cache
def compile_silently_once() -> None:
    """Compile a trivial function with stderr discarded, which hides the line that XLA logs at its
    first compilation, regardless of TensorFlow's log level.

    If the user has set XLA_FLAGS, stderr stays: XLA reads them in this call, and prints what is
    wrong with them before it aborts. Call this after the devices are set up; later calls do
    nothing.
    """
    are_ours = os.environ.get("XLA_FLAGS") == OUR_FLAGS
    hiding = stderr_discarded() if are_ours else contextlib.nullcontext()
    with hiding, tf.device("CPU:0"):
        fused(lambda x: x + 1.0)(tf.constant(0.0))


@contextlib.contextmanager
def stderr_discarded() -> Iterator[None]:
    """Discard text that is written to stderr inside this context, also by libraries in C++."""
    with tolerate_lost_stream(sys.stderr):
        sys.stderr.flush()
    stderr = os.dup(2)
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(devnull)
