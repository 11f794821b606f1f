"""Computes activations again in the backward pass instead of keeping them (Chen et al. 2016,
"Training deep nets with sublinear memory cost").

The backward pass of `recompute(function, ...)` keeps only the input and the weights, and runs the
function again for all else. Dropout draws from (seed, dropout_key), so the second run repeats the
first. The saving is easily lost: a compiler merges two equal computations, and a scheduler runs
both at once when neither waits for anything. So the second run depends on the incoming gradient:
in TensorFlow's own graph by control edges, which XLA ignores; under XLA through its data.
"""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def recompute(function, x, weights, seed, *, xla):
    """Returns function(x, weights, seed), with the same gradients for x and weights, but keeps none
    of its activations.

    Args:
      function: takes a tensor, a dict of tensors and a seed, and returns a tensor. Other tensors
        that it closes over get no gradient.
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
    """x, seed and upstream as values that no compiler can use before `upstream` is computed."""
    seeds = [] if seed is None else [seed]
    if xla:
        # The barrier stops the simplifier but is gone when XLA schedules (on CPUs it saved nothing:
        # both runs were scheduled together). The zero stays: XLA may not replace 0 * upstream by 0,
        # because upstream could be infinite.
        x, upstream, *seeds = gen_xla_ops.xla_optimization_barrier([x, upstream, *seeds])
        zero = tf.reshape(upstream, [-1])[0] * 0.0
        x, seeds = x + zero, [value + tf.cast(zero, value.dtype) for value in seeds]
    else:
        with tf.control_dependencies([upstream]):
            x, *seeds = [tf.identity(value) for value in (x, *seeds)]
    return x, seeds[0] if seeds else None, upstream
