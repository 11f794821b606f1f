"""Activations computed twice instead of kept (Chen et al. 2016, "Training deep nets with sublinear
memory cost").

The backward pass of `recompute(function, ...)` has the input and the weights alone, and runs the
function again for whatever else it needs. Dropout draws from (seed, place), so the second run is
the first one's twin. What is easily lost is the saving: a compiler that sees two equal computations
makes one of them, and a scheduler that sees two that wait for nothing runs both at once. So the
second run is made to depend on the gradient that comes in: for TensorFlow's own graph by control
edges, which XLA does not know; for XLA in its data.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def recompute(function, x, weights, seed, *, xla):
    """function(x, weights, seed), with the same gradients for x and weights, and none of its
    activations kept.

    Args:
      function: of a tensor, a dict of tensors and a seed to a tensor. Other tensors that it closes
        over get no gradient.
      x: tensor. weights: {name: tensor}. seed: int32 (2,), or None.
      xla: whether this is compiled by XLA (jit_compile).
    """
    names = sorted(weights)

    @tf.custom_gradient
    def run(x, *values):
        def gradient(upstream):
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


def _after(upstream, x, seed, xla):
    """x, seed and upstream again, as values that no compiler knows before `upstream` is there."""
    seeds = [] if seed is None else [seed]
    if xla:
        # The barrier keeps the simplifier off but is gone when XLA schedules (on CPUs it saved
        # nothing: the second run came with the first), the zero stays: 0 * upstream is nothing that
        # XLA may take for 0, because upstream could be infinite.
        x, upstream, *seeds = gen_xla_ops.xla_optimization_barrier([x, upstream, *seeds])
        zero = tf.reshape(upstream, [-1])[0] * 0.0
        x, seeds = x + zero, [value + tf.cast(zero, value.dtype) for value in seeds]
    else:
        with tf.control_dependencies([upstream]):
            x, *seeds = [tf.identity(value) for value in (x, *seeds)]
    return x, seeds[0] if seeds else None, upstream
