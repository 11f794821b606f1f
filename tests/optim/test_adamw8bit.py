"""8-bit AdamW: its values against a nearest-neighbour search and a float64 formula, its memory
against its shapes and its program.
"""

import math
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model import heads
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.optim import adamw8bit, optimizers
from bert_gpu.optim.config import OptimizerConfig

# bitsandbytes 0.50.2, the paper's own software: create_dynamic_map(signed)[n] for some n.
PUBLISHED = {
    True: {
        0: -0.99296875,
        64: -0.09859375,
        126: -5.5e-7,
        127: 0.0,
        128: 5.5e-7,
        129: 3.25e-6,
        130: 7.75e-6,
        192: 0.12109375,
        254: 0.99296874,
        255: 1.0,
    },
    False: {
        0: 0.0,
        1: 3.25e-7,
        2: 7.75e-7,
        3: 2.125e-6,
        7: 1.5625e-5,
        126: 0.09929688,
        127: 0.10351563,
        254: 0.9964844,
        255: 1.0,
    },
}


@pytest.mark.parametrize("signed", [True, False])
def test_map(signed):
    values = adamw8bit.dynamic_map(signed)
    assert values.shape == (256,) and values.dtype == np.float32 and np.all(np.diff(values) > 0)
    for index, value in PUBLISHED[signed].items():
        assert values[index] == pytest.approx(value, rel=2e-7), index


def sample_values(signed, rows=48, width=512):
    """Rows of values of every magnitude that a block can hold, the codes and the midpoints between
    them included.
    """
    rng = np.random.default_rng(1)
    x = (
        rng.standard_normal((rows, width))
        * 10.0 ** rng.uniform(-9, 0, (rows, width))
        * 10.0 ** rng.uniform(-20, 6, (rows, 1))
    )
    values = adamw8bit.dynamic_map(signed).astype(np.float64)
    x[0, :256], x[1, :255], x[2] = values, (values[:-1] + values[1:]) / 2, 0.0
    x[0, -1] = x[1, -1] = 1.0
    x[3], x[4] = 10.0 ** rng.uniform(-7, 0, width), 1.0
    x = (x if signed else np.abs(x)).astype(np.float32)
    if signed:
        x[5:] *= -1  # so that the largest of many rows is negative
    return x


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("signed", [True, False])
def test_encoding_is_to_the_nearest_code(signed, jit_compile):
    x = sample_values(signed)
    codes, absmax = tf.function(
        lambda blocks: adamw8bit.encode(blocks, signed), jit_compile=jit_compile
    )(x)
    np.testing.assert_array_equal(absmax, np.abs(x).max(1))
    normed = x.astype(np.float64) / np.maximum(np.abs(x).max(1, keepdims=True), 1e-38)
    distances = np.abs(normed[:, :, None] - adamw8bit.dynamic_map(signed).astype(np.float64))
    chosen = np.take_along_axis(distances, codes.numpy()[:, :, None].astype(int), 2)[:, :, 0]
    # In the middle of two codes float32 may tip either way.
    np.testing.assert_array_less(chosen - distances.min(2), 2.5e-7 * np.abs(normed) + 1e-30)
    decoded = tf.function(lambda *args: adamw8bit.decode(*args, signed), jit_compile=jit_compile)(
        codes, absmax
    ).numpy()
    np.testing.assert_allclose(
        decoded, adamw8bit.dynamic_map(signed)[codes.numpy()] * absmax.numpy()[:, None], rtol=1e-7
    )


@pytest.mark.parametrize("signed", [True, False])
def test_codes_survive_being_decoded(signed):
    codes = tf.constant(np.arange(256, dtype=np.uint8)[None])
    again, absmax = adamw8bit.encode(adamw8bit.decode(codes, tf.constant([3.0]), signed), signed)
    np.testing.assert_array_equal(again, codes)
    assert absmax == 3.0


def test_what_is_not_finite_stops_nothing():
    codes, absmax = adamw8bit.encode(tf.constant([[np.nan, 1.0, -np.inf]]), True)
    assert codes.shape == (1, 3) and not np.all(np.isfinite(absmax))


def nearest(values, signed, block_size):
    """Values rounded to the nearest 8-bit codes, by search: float64, any shape."""
    flat = values.ravel()
    blocks = np.pad(flat, (0, -len(flat) % block_size)).reshape(-1, block_size)
    largest = np.maximum(np.abs(blocks).max(1, keepdims=True), 1e-300)
    table = adamw8bit.dynamic_map(signed).astype(np.float64)
    codes = np.abs((blocks / largest)[:, :, None] - table).argmin(2)
    return (table[codes] * largest).ravel()[: len(flat)].reshape(values.shape)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_formula(jit_compile):
    """The weights after some updates; 67 x 65 elements are no multiple of the block."""
    config = OptimizerConfig(
        optimizer="adamw8bit", weight_decay_rate=0.05, quantization_block_size=128
    )
    rng, name = np.random.default_rng(3), "layer_0/kernel"
    weight = rng.standard_normal((67, 65)).astype(np.float32)
    update = tf.function(lambda *args: optimizers.update(*args, config), jit_compile=jit_compile)
    slots = {
        name: tf.constant(value)
        for name, value in optimizers.initial_slots({name: weight}, config).items()
    }
    actual, expected, first_moment, second_moment = (
        {name: tf.constant(weight)},
        weight.astype(np.float64),
        np.zeros((67, 65)),
        np.zeros((67, 65)),
    )
    for step in range(1, 6):
        gradient = (rng.standard_normal((67, 65)) * 10.0 ** rng.uniform(-3, 0, (67, 65))).astype(
            np.float32
        )
        actual, slots = update(
            actual, {name: tf.constant(gradient)}, slots, tf.constant(0.01), tf.constant(step)
        )
        first_moment = 0.9 * first_moment + 0.1 * gradient.astype(np.float64)
        second_moment = 0.999 * second_moment + 0.001 * gradient.astype(np.float64) ** 2
        ratio = (first_moment / (1 - 0.9**step)) / (
            np.sqrt(second_moment / (1 - 0.999**step)) + 1e-6
        )
        expected -= 0.01 * (ratio + 0.05 * expected)
        first_moment, second_moment = (
            nearest(first_moment, True, 128),
            nearest(second_moment, False, 128),
        )
    difference = np.abs(actual[name] - expected)
    # A moment between two codes may round to the other one; this is true of few elements.
    assert (
        np.mean(difference > 2e-6 * np.maximum(1, np.abs(expected))) < 2e-3
        and difference.max() < 0.02
    )
    assert {key: value.dtype for key, value in slots.items()} == {
        f"mean_codes/{name}": tf.uint8,
        f"mean_absmax/{name}": tf.float32,
        f"square_codes/{name}": tf.uint8,
        f"square_absmax/{name}": tf.float32,
    }


SHAPES = {
    "embeddings/word": (300, 16),
    "embeddings/position": (512, 16),
    "layer_0/bias": (5000,),
    "layer_0/small/kernel": (63, 65),
    "layer_0/kernel": (64, 64),
}


def test_embeddings_vectors_and_small_weights_are_adamws_to_the_bit():
    rng = np.random.default_rng(5)
    start = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    gradients = [
        {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(3)
    ]
    results = {}
    for kind in ("adamw", "adamw8bit"):
        config = OptimizerConfig(optimizer=kind)
        weights, slots = start, optimizers.initial_slots(start, config)
        for step, gradient in enumerate(gradients, start=1):
            weights, slots = optimizers.update(weights, gradient, slots, 0.01, step, config)
        results[kind] = weights
    same = {
        name: np.array_equal(results["adamw"][name], results["adamw8bit"][name]) for name in SHAPES
    }
    assert same == {name: name != "layer_0/kernel" for name in SHAPES}
    np.testing.assert_allclose(
        results["adamw8bit"]["layer_0/kernel"], results["adamw"]["layer_0/kernel"], atol=0.02
    )


@pytest.mark.parametrize("block_size", [OptimizerConfig().quantization_block_size, 64])
def test_bytes(block_size):
    """At most 0.27 of AdamW's bytes for quantised weights, also with the smallest block; they are
    99.8 % of a BERT-base without its embeddings.
    """
    weights = heads.pretraining_weights(BertEncoder(preset("base")))
    config, full = (
        OptimizerConfig(optimizer="adamw8bit", quantization_block_size=block_size),
        OptimizerConfig(),
    )
    matrices = {
        name: spec
        for name, spec in weights.items()
        if adamw8bit.traits(name, spec.shape, config).is_quantized
    }
    assert optimizers.state_bytes(matrices, config) <= 0.27 * optimizers.state_bytes(matrices, full)
    left = {name: spec for name, spec in weights.items() if name not in matrices}
    sizes = {
        name: math.prod(spec.shape)
        for name, spec in weights.items()
        if not name.startswith("embeddings/")
    }
    assert sum(sizes[name] for name in matrices) > 0.998 * sum(sizes.values())
    assert optimizers.state_bytes(left, config) == optimizers.state_bytes(left, full)
    small = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    assert optimizers.state_bytes(small, config) == sum(
        value.nbytes for value in optimizers.initial_slots(small, config).values()
    )


def test_the_program_holds_nothing_larger_than_the_weight():
    config, name = OptimizerConfig(optimizer="adamw8bit"), "layer_0/kernel"
    weights = {name: tf.ones((256, 128))}
    update = tf.function(lambda *args: optimizers.update(*args, config), jit_compile=True)
    arguments = (
        weights,
        weights,
        optimizers.initial_slots(weights, config),
        tf.constant(0.1),
        tf.constant(1),
    )
    program = update.experimental_get_compiler_ir(*arguments)(
        stage="optimized_hlo", platform_name="CPU"
    )
    sizes = [
        math.prod(map(int, dims.split(",")))
        for dims in re.findall(r"[fsu]\d+\[([\d,]+)\]", program)
    ]
    assert max(sizes) == 256 * 128


class Copier:
    """A small model that predicts the next token of a made-up language, in which the two previous
    tokens decide it.
    """

    VOCAB, LENGTH, WIDTH = 64, 6, 64

    def __init__(self):
        rng = np.random.default_rng(11)
        shapes = {
            "embeddings/word": (self.VOCAB, self.WIDTH),
            "layer_0/kernel": (self.LENGTH * self.WIDTH, 128),
            "layer_0/bias": (128,),
            "layer_1/kernel": (128, 128),
            "output/kernel": (128, self.VOCAB),
        }
        self.weights = {
            name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
            for name, shape in shapes.items()
        }
        self.following = rng.integers(0, self.VOCAB, (self.VOCAB, self.VOCAB))

    def batches(self, num_batches, rows=64):
        """Contexts (rows, LENGTH) and the tokens that follow; one token in five is random."""
        rng = np.random.default_rng(12)
        for _ in range(num_batches):
            tokens = rng.integers(0, self.VOCAB, (rows, self.LENGTH + 1))
            for position in range(2, self.LENGTH + 1):
                follows = self.following[tokens[:, position - 1] % 8, tokens[:, position - 2] % 8]
                tokens[:, position] = np.where(rng.random(rows) < 0.8, follows, tokens[:, position])
            yield tokens[:, :-1].astype(np.int32), tokens[:, -1].astype(np.int32)

    def loss(self, weights, tokens, labels):
        hidden = tf.reshape(
            tf.gather(weights["embeddings/word"], tokens), [-1, self.LENGTH * self.WIDTH]
        )
        hidden = tf.nn.relu(hidden @ weights["layer_0/kernel"] + weights["layer_0/bias"])
        logits = tf.nn.relu(hidden @ weights["layer_1/kernel"]) @ weights["output/kernel"]
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def train(self, config, num_steps):
        """The loss of every step."""

        @tf.function(jit_compile=True)
        def update(weights, slots, tokens, labels, learning_rate, step):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                loss = self.loss(weights, tokens, labels)
            gradients = tape.gradient(loss, weights)
            factor, _ = optimizers.clip_factor(gradients, config.clip_norm)
            return loss, *optimizers.update(
                weights, gradients, slots, learning_rate, step, config, factor
            )

        weights = {name: tf.constant(value) for name, value in self.weights.items()}
        slots = {
            name: tf.constant(value)
            for name, value in optimizers.initial_slots(weights, config).items()
        }
        losses = []
        for step, (tokens, labels) in enumerate(self.batches(num_steps), start=1):
            learning_rate = tf.constant(2e-3 * (1 - step / (num_steps + 1)))
            loss, weights, slots = update(
                weights, slots, tokens, labels, learning_rate, tf.constant(step)
            )
            losses.append(loss)
        return np.array([loss.numpy() for loss in losses])


def test_loss_curve():
    """Within 1 % of AdamW's over 500 steps, both smoothed by means of 25 steps."""
    model = Copier()
    curves = {
        kind: model.train(OptimizerConfig(optimizer=kind), 500).reshape(-1, 25).mean(1)
        for kind in ("adamw", "adamw8bit")
    }
    assert curves["adamw"][-1] < 0.7 * curves["adamw"][0]  # it learns
    np.testing.assert_allclose(curves["adamw8bit"], curves["adamw"], rtol=0.01)
