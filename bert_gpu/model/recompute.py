"""Computes activations again in the backward pass instead of keeping them (Chen et al. 2016,
"Training deep nets with sublinear memory cost").

`recompute(function, ...)` keeps only the input and the weights for the backward pass, which runs
the function again. Dropout draws from (seed, dropout_key), so the second run repeats the first. A
compiler could merge the two equal computations, and a scheduler could run both at once, so that no
memory would be saved. The second run therefore depends on the incoming gradient: in TensorFlow's
own graph by control edges, which XLA ignores; under XLA through its data.
"""

from collections.abc import Callable, Mapping

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def recompute(
    function: Callable[[tf.Tensor, dict[str, tf.Tensor], tf.Tensor | None], tf.Tensor],
    x: tf.Tensor,
    weights: Mapping[str, tf.Tensor],
    seed: tf.Tensor | None,
    *,
    xla: bool,
) -> tf.Tensor:
    """Return function(x, weights, seed), with the same gradients for x and weights, but keep none
    of the function's activations in memory.

    Args:
      function: computes a tensor from x, {name: weight} and the seed; tensors that it closes over
        get no gradient.
      seed: int32 (2,). xla: whether XLA compiles the call (jit_compile).
    """
    names = sorted(weights)

    @tf.custom_gradient
    def run(x: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            late_x, late_seed, late_upstream = _after(upstream, x, seed, xla)
            with (
                tf.control_dependencies([] if xla else [upstream]),
                tf.GradientTape(watch_accessed_variables=False) as tape,
            ):
                tape.watch((late_x, values))
                y = function(late_x, dict(zip(names, values, strict=True)), late_seed)
            return tape.gradient(
                y,
                (late_x, *values),
                late_upstream,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )

        return function(x, dict(zip(names, values, strict=True)), seed), gradient

    return run(x, *(weights[name] for name in names))


def _after(
    upstream: tf.Tensor, x: tf.Tensor, seed: tf.Tensor | None, xla: bool
) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor]:
    """Return x, seed and upstream as values that no compiler can use before `upstream` is
    computed.
    """
    seeds = [] if seed is None else [seed]
    if xla:
        # The barrier keeps XLA's simplifier from merging the two runs, but is removed before XLA
        # schedules (on CPUs the barrier alone saved no memory: both runs were scheduled together).
        # So a zero computed from upstream is added, too, which XLA may not remove: 0 * upstream is
        # not 0 where upstream is infinite.
        x, upstream, *seeds = gen_xla_ops.xla_optimization_barrier([x, upstream, *seeds])
        zero = tf.reshape(upstream, [-1])[0] * 0.0
        x = x + zero
        seeds = [value + tf.cast(zero, value.dtype) for value in seeds]
    else:
        with tf.control_dependencies([upstream]):
            x, *seeds = [tf.identity(value) for value in (x, *seeds)]
    return x, seeds[0] if seeds else None, upstream
