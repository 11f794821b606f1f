"""Local attention in blocks computes what the mask does, for any length, packed or padded; FLOPs
count the pairs of tokens in the window.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base import console
from bert_gpu.model import cudnn_attention, encoder
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.flops import mean_attended
from tests.model.test_cudnn_attention import emulated_call
from tests.model.test_flops import row_flops, traced_products
from tests.model.variants import (
    SMALL,
    VARIANTS,
    as_tensors,
    random_batch,
    random_weights,
    value_and_gradients,
)

LOCAL = ModelConfig(
    **SMALL | dict(num_hidden_layers=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    position_embedding_type="rotary",
    rotary_base=50.0,
    local_attention=4,
)


def states_and_gradients(batch, monkeypatch, long_row, positions, **how):
    """(sum of random multiples of the states of real tokens, and of those at some positions, read
    alone; its gradients), in blocks if rows have at least `long_row` tokens.
    """
    monkeypatch.setattr(encoder, "LONG_ROW", long_row)
    weights = as_tensors(random_weights(LOCAL))
    own = {name: weights[name] for name in encoder.encoder_weights(LOCAL)}
    factors = np.random.default_rng(1).standard_normal(
        (*batch["input_mask"].shape, LOCAL.hidden_size)
    )
    factors = tf.constant(factors * batch["input_mask"][:, :, None], tf.float32)

    def loss(weights):
        total = 0.0
        for read, multiples in (
            (None, factors),
            (tf.constant(positions), factors[:, : positions.shape[1]]),
        ):
            hidden = encoder.encode(weights, as_tensors(batch), LOCAL, positions=read, **how)
            total += tf.reduce_sum(hidden * multiples)
        return total

    return value_and_gradients(loss, own, jit=how.get("xla", False), is_traced=bool(how))


def assert_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-4)
    for name, gradient in expected[1].items():
        size = np.linalg.norm(gradient)
        assert size > 0, name
        assert np.linalg.norm(found[1][name] - gradient) <= 1e-5 * size + 1e-6, name


@pytest.mark.parametrize(
    "length, is_packed, how",
    [
        (9, True, dict(recompute_every=1)),
        (13, False, {}),
        pytest.param(8, False, {}, marks=pytest.mark.long),
        pytest.param(11, True, dict(xla=True), marks=pytest.mark.long),
    ],
)
def test_blocks_equal_the_mask(monkeypatch, length, is_packed, how):
    batch = random_batch(LOCAL, [length, length // 2], length)
    if is_packed:
        batch["sequence_ids"] = batch["input_mask"].copy()
        batch["sequence_ids"][0, length // 3 :] = 2
    positions = np.array([[0, length // 3, length - 1, 2], [1, 0, 1, length // 2 - 1]], np.int32)
    expected = states_and_gradients(batch, monkeypatch, length + 1, positions)
    assert_equal(states_and_gradients(batch, monkeypatch, 1, positions, **how), expected)


def test_only_tokens_in_the_window_matter(monkeypatch):
    """Of one local layer between global ones that are made blind, to the last bit."""
    config = dataclasses.replace(LOCAL, global_attention_every=2)
    weights = random_weights(config)
    weights["layer_0/attention/output/kernel"][:] = 0  # the global layer mixes nothing
    for long_row in (1, 100):
        monkeypatch.setattr(encoder, "LONG_ROW", long_row)
        batch = random_batch(config, [20], 20)
        before = encoder.encode(as_tensors(weights), as_tensors(batch), config)
        batch["input_ids"][0, 9] = (batch["input_ids"][0, 9] + 1) % config.vocab_size
        after = encoder.encode(as_tensors(weights), as_tensors(batch), config)
        changed = np.flatnonzero(np.any(before.numpy() != after.numpy(), -1))
        assert changed.tolist() == [7, 8, 9, 10, 11]


def test_dropout_in_blocks_repeats_with_its_seed(monkeypatch):
    monkeypatch.setattr(encoder, "LONG_ROW", 1)
    config = dataclasses.replace(LOCAL, attention_probs_dropout_prob=0.3)
    weights = as_tensors(random_weights(config))
    batch = as_tensors(random_batch(config, [16] * 4, 16))
    plain = encoder.encode(weights, batch, config)
    draws = [encoder.encode(weights, batch, config, seed=tf.constant([n, 5])) for n in range(2)]
    assert np.any(draws[0].numpy() != draws[1].numpy())
    again = encoder.encode(weights, batch, config, seed=tf.constant([0, 5]))
    np.testing.assert_array_equal(draws[0], again)
    assert np.any(draws[0].numpy() != plain.numpy())


@pytest.mark.parametrize("reach", [None, 1, 3, 50])
def test_pairs_in_the_window_are_counted(reach):
    ids = np.repeat([[1, 2, 3, 0], [4, 5, 5, 6]], 7, axis=1)
    sequences = (ids[:, :, None] == ids[:, None]) & (ids[0] >= 0)
    places = np.arange(28)
    if reach is not None:
        sequences &= abs(places[:, None] - places) <= reach
    assert mean_attended(ids, reach) == pytest.approx(sequences.sum() / ids.size)


@pytest.mark.parametrize("is_last", [False, True])
def test_flops_of_blocks_are_those_of_the_traced_program(monkeypatch, is_last):
    """The model's FLOPs are those of the window, the hardware's those that are computed."""
    monkeypatch.setattr(encoder, "LONG_ROW", 1)
    config = dataclasses.replace(LOCAL, num_hidden_layers=2 if is_last else 4)
    own, length, num_read = BertEncoder(config), 24, 5
    batch = as_tensors(random_batch(config, [length] * 2, length, num_read))
    weights = {name: tf.zeros(spec.shape) for name, spec in own.weights().items()}

    def states(weights):
        return own.encode(weights, batch, positions=batch["masked_lm_positions"])

    graph = tf.function(states, autograph=False).get_concrete_function(weights).graph
    head = 3 * 2 * num_read * (config.hidden_size**2 + config.hidden_size * config.vocab_size)
    flops = row_flops(own, False, length, num_read)
    assert 2 * (flops.hardware - head) == 3 * traced_products(graph)
    in_window = sum(min(i, 2) + min(length - 1 - i, 2) + 1 for i in range(length)) / length
    pairs = own.token_products(length, in_window)
    assert pairs.layers < own.token_products(length).layers
    monkeypatch.setattr(encoder, "LONG_ROW", 100)
    assert row_flops(own, False, length, num_read).model == flops.model < flops.hardware


def test_cudnns_global_layers_stand_beside_local_ones(monkeypatch):
    monkeypatch.setattr(cudnn_attention, "fused_call", emulated_call)
    monkeypatch.setitem(cudnn_attention.BLOCKED, tf.float32, -1e9)
    weights = as_tensors(random_weights(LOCAL))
    batch = as_tensors(random_batch(LOCAL, [9, 5], 9))
    expected, found = (
        encoder.encode(weights, batch, LOCAL, attention=kind).numpy() for kind in ("plain", "cudnn")
    )
    real = batch["input_mask"].numpy() > 0
    np.testing.assert_allclose(found[real], expected[real], rtol=0, atol=1e-5)


def test_cudnn_says_once_that_local_layers_are_plain(capsys):
    console.warn_once.cache_clear()
    for config in (VARIANTS["rotary"], LOCAL, LOCAL):
        BertEncoder(config).for_training(attention="cudnn")
    assert capsys.readouterr().err.count("cuDNN has no local attention") == 1
