"""Hidden states at some positions are those of the whole encoder there, and so are their gradients,
although the last layer computes little for the other tokens.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model import cudnn_attention, encoder, heads
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.encoders import open_encoder
from tests import pretraining
from tests.model.test_cudnn_attention import emulated_call
from tests.model.variants import (
    VARIANTS,
    as_tensors,
    random_batch,
    random_weights,
    value_and_gradients,
)

LENGTHS, LENGTH = [9, 5], 9
POSITIONS = np.array([[0, 3, 8, 3], [4, 0, 1, 0]], np.int32)  # in any order, and twice
PACKED = np.array([[1] * 4 + [2] * 5, [1] * 2 + [2] * 3 + [0] * 4], np.int32)


def losses_of(config, batch, is_traced=True, **how):
    """(loss, gradients) of the hidden states at POSITIONS times random values: selected from all,
    and computed alone.
    """
    weights = as_tensors(random_weights(config))
    factors = np.random.default_rng(1).standard_normal((*POSITIONS.shape, config.hidden_size))
    factors = tf.constant(factors, tf.float32)

    def selected(weights):
        hidden = encoder.encode(weights, batch, config, **how)
        return tf.reduce_sum(tf.gather(hidden, POSITIONS, batch_dims=1) * factors)

    def alone(weights):
        hidden = encoder.encode(weights, batch, config, positions=tf.constant(POSITIONS), **how)
        assert hidden.shape == factors.shape
        return tf.reduce_sum(hidden * factors)

    own = {name: weights[name] for name in encoder.encoder_weights(config)}
    return tuple(value_and_gradients(run, own, is_traced=is_traced) for run in (selected, alone))


def assert_equal(found, expected):
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5, atol=1e-4)
    for name, gradient in expected[1].items():
        size = np.linalg.norm(gradient)
        assert np.linalg.norm(found[1][name] - gradient) <= 1e-5 * size + 1e-6, name
    assert any(np.any(gradient != 0) for gradient in expected[1].values())


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", VARIANTS)
def test_states_and_gradients_are_those_of_the_whole_encoder(name, is_packed):
    config = VARIANTS[name]
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH))
    if is_packed:
        batch["sequence_ids"] = tf.constant(PACKED)
    expected, found = losses_of(config, batch, is_traced=name == "bert")
    assert_equal(found, expected)


@pytest.mark.parametrize("name, every", [("bert", 1), ("all at once", 3)])
def test_recomputed_layers_give_the_same(name, every):
    batch = as_tensors(random_batch(VARIANTS[name], LENGTHS, LENGTH))
    expected, found = losses_of(VARIANTS[name], batch, recompute_every=every)
    assert_equal(found, expected)


@pytest.mark.parametrize("name, is_packed", [("bert", True), ("all at once", False)])
def test_cudnns_attention_gives_the_same(monkeypatch, name, is_packed):
    monkeypatch.setattr(cudnn_attention, "fused_call", emulated_call)
    monkeypatch.setitem(cudnn_attention.BLOCKED, tf.float32, -1e9)
    batch = as_tensors(random_batch(VARIANTS[name], LENGTHS, LENGTH))
    if is_packed:
        batch["sequence_ids"] = tf.constant(PACKED)
    expected, found = losses_of(VARIANTS[name], batch, attention="cudnn")
    assert_equal(found, expected)


def test_model_gardens_encoder_gives_its_own():
    config = VARIANTS["bert"]
    model = open_encoder(type(config)(**vars(config) | dict(encoder="garden:bert")))
    generator = np.random.default_rng(2)
    weights = {
        name: tf.constant(0.1 * generator.standard_normal(spec.shape), tf.float32)
        for name, spec in model.weights().items()
    }
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH))
    whole = model.encode(weights, batch)
    found = model.encode(weights, batch, positions=tf.constant(POSITIONS))
    np.testing.assert_array_equal(found, tf.gather(whole, POSITIONS, batch_dims=1))


def test_dropout_still_falls_on_every_site_of_the_last_layer():
    """With a rate of almost 1, each of the sites alone changes what is read."""
    config = VARIANTS["bert"]
    weights = as_tensors(random_weights(config))
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH))

    def states(**rates):
        changed = type(config)(**vars(config) | rates)
        how = dict(positions=tf.constant(POSITIONS), seed=tf.constant([1, 2]))
        return encoder.encode(weights, batch, changed, **how).numpy()

    none = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    without = states(**none)
    for name in none:
        assert np.abs(states(**none | {name: 0.9}) - without).max() > 0.1, name
    again = [states(hidden_dropout_prob=0.5) for _ in range(2)]
    np.testing.assert_array_equal(*again)


@pytest.mark.parametrize("next_sentence", [False, True])
def test_pretraining_reads_the_masked_words_and_the_first_token(next_sentence):
    """The losses are those of heads on all hidden states."""
    config = VARIANTS["pre"]
    weights = as_tensors(random_weights(config))
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH, num_predictions=4))
    if next_sentence:
        batch["next_sentence_labels"] = tf.constant([0, 1])
    parts = pretraining.objective(BertEncoder(config), next_sentence).parts
    assert [part.positions(batch).shape[1] for part in parts] == [4, 1][: len(parts)]
    found = pretraining.losses(weights, batch, BertEncoder(config))
    hidden = encoder.encode(weights, batch, config)
    scores = heads.mlm_logits(weights, hidden, batch["masked_lm_positions"], config)
    expected = heads.summed_loss(scores, batch["masked_lm_ids"], batch["masked_lm_weights"])[0]
    np.testing.assert_allclose(found["mlm"], expected, rtol=1e-5)
    assert set(found) == ({"mlm", "nsp"} if next_sentence else {"mlm"})
    if next_sentence:
        scores = heads.nsp_logits(weights, heads.pool(weights, hidden))
        expected = heads.summed_loss(scores, batch["next_sentence_labels"], tf.ones([2]))[0]
        np.testing.assert_allclose(found["nsp"], expected, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_classifiers_read_what_their_pooling_needs(pooling):
    config = type(VARIANTS["bert"])(**vars(VARIANTS["bert"]) | dict(pooling=pooling))
    batch = as_tensors(random_batch(config, LENGTHS, LENGTH))
    positions = heads.sentence_positions(batch, config)
    assert (positions is None) == (pooling == "mean")
    weights = as_tensors(random_weights(config, num_classes=3))
    whole, read = (
        heads.sentence_vector(
            weights,
            encoder.encode(weights, batch, config, positions=where),
            batch["input_mask"],
            config,
        )
        for where in (None, positions)
    )
    np.testing.assert_allclose(read, whole, atol=1e-6)
