"""LAMB against its formula in float64 NumPy, and against Model Garden's."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.optim import optimizers
from bert_gpu.optim.config import OptimizerConfig

LEARNING_RATES = [0.01, 0.02, 0.03, 0.02, 0.01]
SHAPES = {
    "layer_0/kernel": (5, 3),
    "layer_0/bias": (3,),
    "layer_0/norm/scale": (3,),
    "zeros/kernel": (2, 2),
    "still/kernel": (2, 3),
}


def start():
    """Weights, one of them all 0, and gradients, one of them always 0."""
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()
    }
    weights["zeros/kernel"][:] = 0.0
    gradients = [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in LEARNING_RATES
    ]
    for step in gradients:
        step["still/kernel"][:] = 0.0
    return weights, gradients


def run(config, weights, gradients, jit_compile=False):
    update = tf.function(lambda *args: optimizers.update(*args, config), jit_compile=jit_compile)
    slots = {
        name: tf.constant(value)
        for name, value in optimizers.initial_slots(weights, config).items()
    }
    weights = {name: tf.constant(value) for name, value in weights.items()}
    for step, (gradient, learning_rate) in enumerate(
        zip(gradients, LEARNING_RATES, strict=True), start=1
    ):
        weights, slots = update(
            weights, gradient, slots, tf.constant(learning_rate), tf.constant(step)
        )
    return {name: value.numpy() for name, value in weights.items()}


def reference(config, weights, gradients, undecayed, unadapted):
    """You et al. 2020, Algorithm 2, with the identity for phi."""
    result = {}
    for name, weight in weights.items():
        weight, first_moment, second_moment = weight.astype(np.float64), 0.0, 0.0
        for step, (gradient, learning_rate) in enumerate(
            zip(gradients, LEARNING_RATES, strict=True), start=1
        ):
            gradient = gradient[name].astype(np.float64)
            first_moment = config.adam_beta1 * first_moment + (1 - config.adam_beta1) * gradient
            second_moment = (
                config.adam_beta2 * second_moment + (1 - config.adam_beta2) * gradient**2
            )
            corrections = (
                (1 - config.adam_beta1**step, 1 - config.adam_beta2**step)
                if config.adam_bias_correction
                else (1, 1)
            )
            ratio = (first_moment / corrections[0]) / (
                np.sqrt(second_moment / corrections[1]) + config.adam_epsilon
            )
            update = ratio + (0 if name in undecayed else config.weight_decay_rate) * weight
            norms = np.linalg.norm(weight), np.linalg.norm(update)
            weight = (
                weight
                - learning_rate
                * (1.0 if name in unadapted or 0 in norms else norms[0] / norms[1])
                * update
            )
        result[name] = weight
    return result


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_formula(bias_correction, jit_compile):
    config = OptimizerConfig(
        optimizer="lamb", weight_decay_rate=0.05, adam_bias_correction=bias_correction
    )
    plain = {"layer_0/bias", "layer_0/norm/scale"}
    weights, gradients = start()
    expected = reference(config, weights, gradients, plain, plain)
    for name, value in run(config, weights, gradients, jit_compile).items():
        np.testing.assert_allclose(value, expected[name], rtol=2e-5, atol=5e-7, err_msg=name)


def test_model_garden():
    lamb = pytest.importorskip("official.modeling.optimization.lamb")
    weights, gradients = start()
    variables = {name: tf.Variable(value, name=name) for name, value in weights.items()}
    theirs = lamb.LAMB(0.0, weight_decay_rate=0.05, exclude_from_weight_decay=["norm", "bias"])
    for gradient, learning_rate in zip(gradients, LEARNING_RATES, strict=True):
        theirs.learning_rate = learning_rate
        theirs.apply_gradients(
            (tf.constant(gradient[name]), variable) for name, variable in variables.items()
        )
    ours = run(OptimizerConfig(optimizer="lamb", weight_decay_rate=0.05), weights, gradients)
    for name, variable in variables.items():
        np.testing.assert_allclose(ours[name], variable.numpy(), rtol=2e-6, atol=5e-7, err_msg=name)


def test_the_step_is_as_long_as_the_weight_times_the_learning_rate():
    weights, gradients = start()
    config = OptimizerConfig(optimizer="lamb", weight_decay_rate=0.0)
    moved, _ = optimizers.update(
        weights, gradients[0], optimizers.initial_slots(weights, config), 0.1, 1, config
    )
    name = "layer_0/kernel"
    length = np.linalg.norm(moved[name] - weights[name])
    np.testing.assert_allclose(length, 0.1 * np.linalg.norm(weights[name]), rtol=1e-5)
