"""AdamW against its formula in float64 NumPy, and against numbers from torch.optim.AdamW."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.optim import optimizers
from bert_gpu.optim.optimizers import OptimizerConfig


def run(config, gradients, rate=0.01, name="layer_0/kernel"):
    """Weights after each update, from [1, -2, 3] on."""
    weights = {name: tf.constant([1.0, -2.0, 3.0])}
    slots = {slot: tf.zeros(3) for slot in optimizers.slot_names(weights)}
    path = []
    for number, gradient in enumerate(gradients, start=1):
        weights, slots = optimizers.adamw(weights, {name: tf.constant(gradient, tf.float32)}, slots, rate, number, config)
        path.append(weights[name].numpy())
    return np.array(path)


# torch 2.13.0: AdamW(lr=.01, betas=(.9, .999), eps=1e-6, weight_decay=.1) from [1, -2, 3], after these five gradients.
TORCH = [0.9762949347496033, -1.9641649723052979, 2.951508045196533]
GRADIENTS = np.array([[0.5, -1.0, 2.0], [0.1, 0.2, -0.3], [-1.0, 0.0, 1.0], [0.3, 0.3, 0.3], [2.0, -2.0, 0.01]])


def reference(config, gradients, rate, decay):
    weight, mean, square, path = np.array([1.0, -2.0, 3.0]), np.zeros(3), np.zeros(3), []
    for number, gradient in enumerate(gradients, start=1):
        mean = config.adam_beta1 * mean + (1 - config.adam_beta1) * gradient
        square = config.adam_beta2 * square + (1 - config.adam_beta2) * gradient**2
        corrected_mean, corrected_square = mean, square
        if config.adam_bias_correction:
            corrected_mean, corrected_square = mean / (1 - config.adam_beta1**number), square / (1 - config.adam_beta2**number)
        weight = weight - rate * (corrected_mean / (np.sqrt(corrected_square) + config.adam_epsilon) + decay * weight)
        path.append(weight)
    return np.array(path)


@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize("name, decay", [("layer_0/kernel", 0.05), ("layer_0/bias", 0.0), ("layer_0/norm/scale", 0.0)])
def test_formula(bias_correction, name, decay):
    config = OptimizerConfig(weight_decay_rate=0.05, adam_bias_correction=bias_correction, adam_beta2=0.98)
    np.testing.assert_allclose(run(config, GRADIENTS, name=name), reference(config, GRADIENTS, 0.01, decay), rtol=2e-5)


def test_torch():
    config = OptimizerConfig(weight_decay_rate=0.1)
    np.testing.assert_allclose(run(config, GRADIENTS)[-1], TORCH, rtol=2e-6)


def test_clipping_is_by_the_global_norm():
    gradients = {"a": tf.constant([3.0, 0.0]), "b": tf.constant([[4.0]])}
    clipped, norm = optimizers.clip(gradients, 1.0)
    assert norm == 5.0
    np.testing.assert_allclose(clipped["a"], [0.6, 0.0])
    np.testing.assert_allclose(clipped["b"], [[0.8]])
    untouched, _ = optimizers.clip(gradients, 10.0)
    np.testing.assert_array_equal(untouched["a"], gradients["a"])
    switched_off, _ = optimizers.clip(gradients, 0.0)
    np.testing.assert_array_equal(switched_off["b"], gradients["b"])
