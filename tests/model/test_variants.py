"""Each switch of the encoder computes what its paper says, and its gradient is the
derivative of that.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.fused import inlined
from bert_gpu.model import encoder, heads
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from tests import pretraining
from tests.model import reference
from tests.model.variants import (
    VARIANTS,
    as_tensors,
    random_batch,
    random_weights,
    value_and_gradients,
)

LENGTHS, LENGTH = [9, 5], 9


def in_float64(weights):
    return {name: value.astype(np.float64) for name, value in weights.items()}


@pytest.mark.parametrize("name", VARIANTS)
def test_outputs_equal_the_reference(name):
    config = VARIANTS[name]
    weights, batch = random_weights(config), random_batch(config, LENGTHS, LENGTH)
    hidden = encoder.encode(as_tensors(weights), as_tensors(batch), config)
    positions = np.tile(np.arange(LENGTH), [2, 1])
    scores = heads.mlm_logits(as_tensors(weights), hidden, tf.constant(positions), config)
    for row, length in enumerate(LENGTHS):
        expected = reference.encode(
            in_float64(weights),
            batch["input_ids"][row, :length],
            batch["segment_ids"][row, :length],
            config,
        )
        np.testing.assert_allclose(hidden[row, :length], expected, rtol=0, atol=1e-5)
        expected = reference.mlm_scores(in_float64(weights), expected, config)
        np.testing.assert_allclose(scores[row, :length], expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_gradients_are_the_derivatives_of_the_reference(name):
    """For each weight, along one random direction, by central differences in float64."""
    config = VARIANTS[name]
    weights, batch = random_weights(config), random_batch(config, LENGTHS, LENGTH)
    weights = {
        key: value for key, value in weights.items() if not key.startswith(("nsp", "pooler"))
    }
    loss, gradients = value_and_gradients(
        lambda w: pretraining.losses(w, as_tensors(batch), BertEncoder(config))["mlm"],
        as_tensors(weights),
        is_traced=False,
    )
    exact, generator, step = in_float64(weights), np.random.default_rng(1), 1e-6
    np.testing.assert_allclose(loss, reference.mlm_loss(exact, batch, config), rtol=1e-5)
    scale = max(np.linalg.norm(gradient) for gradient in gradients.values())
    for key, value in exact.items():
        direction = generator.standard_normal(value.shape)
        up, down = (
            reference.mlm_loss({**exact, key: value + sign * step * direction}, batch, config)
            for sign in (1, -1)
        )
        slope = np.sum(gradients[key] * direction)
        assert abs(slope - (up - down) / (2 * step)) < 2e-5 * scale, key
        assert np.any(gradients[key] != 0), key


@pytest.mark.parametrize("name", ["crammed", "all at once", "disentangled"])
def test_compiled_equals_plain(name):
    config = dataclasses.replace(VARIANTS[name], num_hidden_layers=2)
    weights, seed = as_tensors(random_weights(config)), tf.constant([7, 8])
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH))

    def loss_fn(weights):
        return pretraining.losses(weights, batch, BertEncoder(config), seed=seed)["mlm"]

    plain, compiled = (value_and_gradients(loss_fn, weights, jit=jit) for jit in (False, True))
    np.testing.assert_allclose(plain[0], compiled[0], rtol=1e-5)
    for key in weights:
        np.testing.assert_allclose(
            plain[1][key], compiled[1][key], rtol=1e-4, atol=1e-4, err_msg=key
        )


@pytest.mark.parametrize(
    "name, dtype",
    [
        ("crammed", tf.bfloat16),
        ("all at once", tf.bfloat16),
        ("disentangled", tf.bfloat16),
        ("disentangled", tf.float16),
    ],
)
def test_half_precision_is_close(name, dtype):
    config = VARIANTS[name]
    weights, batch = (
        as_tensors(random_weights(config)),
        as_tensors(random_batch(config, LENGTHS, LENGTH)),
    )
    expected = encoder.encode(weights, batch, config).numpy()
    hidden = encoder.encode(weights, batch, config, dtype=dtype)
    assert hidden.dtype == dtype
    assert np.linalg.norm(tf.cast(hidden, tf.float32).numpy() - expected) < 0.03 * np.linalg.norm(
        expected
    )


@pytest.mark.parametrize("length", [9, 12])
@pytest.mark.parametrize("name", ["disentangled", "c2p pre", "p2c local"])
def test_written_gradients_equal_tensorflows(name, length):
    """Of rows in one block and in four."""
    config = VARIANTS[name]
    weights = as_tensors(random_weights(config))
    batch = as_tensors(random_batch(config, [length, 5], length))

    def loss_fn(weights):
        return pretraining.losses(weights, batch, BertEncoder(config))["mlm"]

    loss, gradients = value_and_gradients(loss_fn, weights, is_traced=False)
    with inlined():
        expected, theirs = value_and_gradients(loss_fn, weights, is_traced=False)
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    for key, gradient in gradients.items():
        size = np.linalg.norm(theirs[key])
        assert np.linalg.norm(gradient - theirs[key]) <= 1e-5 * size + 1e-6, key


def num_weights(config, next_sentence):
    return sum(
        np.prod(spec.shape)
        for spec in pretraining.weights(BertEncoder(config), next_sentence).values()
    )


def test_presets_have_the_published_numbers_of_weights():
    """BERT: with pooler and heads. Crammed, counted by hand: embeddings + 16 x (4 H H + 1.5 H I + 2
    norms) + 2 norms + 1.
    """
    assert num_weights(preset("base"), True) == 110_106_428  # transformers' BertForPreTraining
    crammed = 32768 * 768 + 16 * (4 * 768**2 + 768 * 3072 + 1536 * 768 + 4 * 768) + 2 * 2 * 768 + 1
    assert num_weights(preset("crammed", vocab_size=32768), False) == crammed
    # the final norm
    assert num_weights(preset("budget24h"), True) == num_weights(preset("large"), True) + 2 * 1024


def test_first_values_of_the_position_scale_make_unit_vectors():
    """Sines and cosines of E dimensions have the norm sqrt(E / 2); Cramming starts from
    E^-0.5 of them.
    """
    config = preset("crammed", vocab_size=10, num_hidden_layers=1)
    assert initialize(encoder.encoder_weights(config), 0)[
        "embeddings/position_scale"
    ] == np.float32(768**-0.5)
