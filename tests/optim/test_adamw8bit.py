"""8-bit AdamW: its values against a nearest-neighbour search and a float64 formula, its memory
against its shapes and its program.
"""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.optim import adamw8bit, optimizers
from bert_gpu.optim.config import OptimizerConfig
from tests import pretraining
from tests.train import tiny

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
def test_formula(jit_compile, monkeypatch):
    """The weights after some updates; 67 x 65 elements are no multiple of the block."""
    monkeypatch.setattr(adamw8bit, "BLOCK_SIZE", 128)
    compiled_step = functools.cache(optimizers.compiled_step.__wrapped__)
    monkeypatch.setattr(optimizers, "compiled_step", compiled_step)
    config = OptimizerConfig(optimizer="adamw8bit", weight_decay_rate=0.05)
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


def test_bytes():
    """At most 0.27 of AdamW's bytes for quantised weights; they are 99.8 % of a BERT-base without
    its embeddings.
    """
    weights = pretraining.weights(BertEncoder(preset("base")))
    config, full = (
        OptimizerConfig(optimizer="adamw8bit"),
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


def language_batches(number):
    """Batches of tiny.py in a made-up language: what is masked follows from the token shown there,
    and the label from the first token, four times in five.
    """
    rng = np.random.default_rng(1)
    following = rng.integers(5, tiny.VOCAB, tiny.VOCAB)
    for batch in tiny.batches(number):
        shown = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)
        for name, right in (
            ("masked_lm_ids", following[shown]),
            ("next_sentence_labels", batch["input_ids"][:, 0] % 2),
        ):
            is_right = rng.random(right.shape) < 0.8
            batch[name] = np.where(is_right, right, batch[name]).astype(np.int32)
        yield batch


@pytest.mark.long
def test_loss_curve(monkeypatch):
    """A BERT over 500 steps: within 0.1 % of AdamW's, both smoothed by means of 25 steps.

    The clause is 1 %. A benchmark (adamw8bit.py, last in 834719d) found 0.013 % on real text; here
    it is 0.02 %, and rounding that differs from machine to machine grows over the steps, so five
    times that.
    """
    # wide enough that every matrix of the layer is quantised
    model = dataclasses.replace(
        tiny.tiny_model(), num_hidden_layers=1, hidden_size=64, intermediate_size=128
    )
    monkeypatch.setattr(tiny, "tiny_model", lambda *_: model)
    batches, curves = list(language_batches(500)), {}
    for kind in ("adamw", "adamw8bit"):
        trainer, losses = tiny.Trainer(optimizer=kind), []
        for first in range(0, 500, 25):
            rate = 1e-3 * (1 - first / 500)
            part = trainer.run(batches[first : first + 25], rate, first, steps_per_call=25)
            losses.append(np.mean([step["loss"] for step in part]))
        curves[kind] = np.array(losses)
    names = {name.removeprefix("mean_codes/") for name in trainer.state.slots}
    matrices = {
        name for name in trainer.state.weights if name.startswith("layer_0/") and "kernel" in name
    }
    assert len(matrices) == 4 and matrices <= names
    assert curves["adamw"][-1] < 0.5 * curves["adamw"][0]  # it learns
    np.testing.assert_allclose(curves["adamw8bit"], curves["adamw"], rtol=1e-3)
    assert not np.array_equal(curves["adamw8bit"], curves["adamw"])
