"""Heads and losses against straightforward references."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model import encoder, heads, layers
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.pretrain.objectives import masked_words
from tests import pretraining, task_heads

CONFIG = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
)
ENCODER = BertEncoder(CONFIG)
BATCH, LENGTH, PREDICTIONS = 4, 10, 3


@pytest.fixture(scope="module")
def weights():
    generator = np.random.default_rng(0)
    specs = {**pretraining.weights(ENCODER), **task_heads.specs("classifier", ENCODER, 5)}
    return {
        name: tf.constant(0.3 * generator.standard_normal(spec.shape), tf.float32)
        for name, spec in specs.items()
    }


@pytest.fixture(scope="module")
def batch():
    generator = np.random.default_rng(1)
    batch = {
        "input_ids": generator.integers(0, 50, (BATCH, LENGTH)),
        "input_mask": np.ones((BATCH, LENGTH)),
        "segment_ids": generator.integers(0, 2, (BATCH, LENGTH)),
        "masked_lm_positions": [[1, 4, 5], [2, 3, 0], [9, 0, 0], [7, 8, 9]],
        "masked_lm_ids": generator.integers(0, 50, (BATCH, PREDICTIONS)),
        "next_sentence_labels": [[0], [1], [1], [0]],
    }
    batch = {name: tf.constant(values, tf.int32) for name, values in batch.items()}
    return {
        **batch,
        "masked_lm_weights": tf.constant([[1.0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]),
    }


def plain_losses(weights, batch, rows):
    """A second implementation of the losses, word by word over the whole sequence, with
    TensorFlow's own norm, activation and loss.
    """
    hidden = encoder.encode(weights, batch, CONFIG)
    x = tf.nn.gelu(
        tf.einsum("bsh,hk->bsk", hidden, weights["mlm/transform/kernel"])
        + weights["mlm/transform/bias"]
    )
    mean, variance = tf.nn.moments(x, -1, keepdims=True)
    x = (x - mean) / tf.sqrt(variance + CONFIG.layer_norm_eps) * weights[
        "mlm/norm/scale"
    ] + weights["mlm/norm/bias"]
    logits = tf.einsum("bsh,vh->bsv", x, weights["embeddings/word"]) + weights["mlm/bias"]
    mlm = 0.0
    for row in range(BATCH):
        for word in range(PREDICTIONS):
            at = logits[row, batch["masked_lm_positions"][row, word]]
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(
                batch["masked_lm_ids"][row, word], at
            )
            mlm += loss * batch["masked_lm_weights"][row, word] * rows[row]
    pooled = tf.tanh(hidden[:, 0] @ weights["pooler/kernel"] + weights["pooler/bias"])
    logits = pooled @ weights["nsp/kernel"] + weights["nsp/bias"]
    nsp = tf.nn.sparse_softmax_cross_entropy_with_logits(
        batch["next_sentence_labels"][:, 0], logits
    )
    return {"mlm": mlm, "nsp": tf.reduce_sum(nsp * rows)}


@pytest.mark.parametrize("rows", [None, [1.0, 0, 1, 0]])
@pytest.mark.parametrize("jit", [False, True])
def test_losses_and_gradients_equal_the_reference(weights, batch, rows, jit, monkeypatch):
    """jit: also use the forms for GPUs, which fill the vocabulary up with words of no score."""
    assert CONFIG.vocab_size % heads.TILE
    monkeypatch.setattr(masked_words, "has_gpu", lambda: jit)
    weights = {name: value for name, value in weights.items() if not name.startswith("classifier")}
    full = batch if rows is None else {**batch, "row_weights": tf.constant(rows)}

    def value_and_gradients(losses_fn):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = losses_fn()
            total = losses["mlm"] + 3 * losses["nsp"]
        return losses, tape.gradient(total, weights)

    ours = tf.function(
        lambda: value_and_gradients(lambda: pretraining.losses(weights, full, ENCODER)),
        jit_compile=jit,
    )
    losses, gradients = ours()
    expected, expected_gradients = value_and_gradients(
        lambda: plain_losses(weights, batch, rows or [1.0] * BATCH)
    )
    for name in ("mlm", "nsp"):
        np.testing.assert_allclose(losses[name], expected[name], rtol=1e-5)
    for name in weights:
        np.testing.assert_allclose(
            gradients[name],
            tf.convert_to_tensor(expected_gradients[name]),
            rtol=1e-4,
            atol=1e-4,
            err_msg=name,
        )


def test_counts_need_no_weights_and_equal_those_of_the_metrics(weights, batch):
    full = {**batch, "row_weights": tf.constant([1.0, 1, 0, 1])}
    counts = pretraining.counts(full)
    metrics = pretraining.metrics(weights, full, ENCODER)
    assert {name: float(count) for name, count in counts.items()} == {"mlm": 8, "nsp": 3}
    assert set(metrics) == {"mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"}
    sums = pretraining.sums(weights, full, ENCODER)
    assert sums["mlm_accuracy"] == metrics["mlm_accuracy"][0], "without dropout they are the same"
    losses = pretraining.losses(weights, full, ENCODER)
    assert losses.keys() == counts.keys()
    for name in ("mlm", "nsp"):
        assert metrics[f"{name}_loss"][1] == metrics[f"{name}_accuracy"][1] == counts[name]
        np.testing.assert_allclose(metrics[f"{name}_loss"][0], losses[name], rtol=1e-6)


def test_selected_places_are_those_of_a_gather_to_the_bit():
    generator = np.random.default_rng(3)
    hidden = tf.cast(generator.standard_normal((3, 7, 5)), tf.bfloat16)
    positions = tf.constant([[0, 6, 6], [1, 2, 3], [5, 0, 0]])
    upstream = tf.cast(generator.integers(-4, 5, (3, 3, 5)), tf.bfloat16)  # whose sums are exact
    found = []
    for select in (
        layers.select,
        lambda hidden, positions: tf.gather(hidden, positions, batch_dims=1),
    ):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            selected = select(hidden, positions)
        found.append(
            [
                tf.cast(x, tf.float32).numpy()
                for x in (selected, tape.gradient(selected, hidden, upstream))
            ]
        )
    for ours, reference in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, reference)


def test_without_next_sentences_there_is_no_such_loss(batch):
    words_only = {name: value for name, value in batch.items() if name != "next_sentence_labels"}
    specs = pretraining.weights(ENCODER, next_sentence=False)
    assert not any(name.startswith(("nsp", "pooler")) for name in specs)
    weights = {name: tf.constant(value) for name, value in initialize(specs, 0).items()}
    assert (
        set(pretraining.losses(weights, words_only, ENCODER))
        == set(pretraining.counts(words_only))
        == {"mlm"}
    )
    assert set(pretraining.metrics(weights, words_only, ENCODER)) == {
        "mlm_loss",
        "mlm_accuracy",
    }


def test_accuracy_counts_weighted_hits():
    logits = tf.one_hot([[3, 1], [2, 0]], 5)
    correct, count = heads.summed_correct(
        logits, tf.constant([[3, 1], [0, 0]]), tf.constant([[1.0, 0], [1, 1]])
    )
    assert (float(correct), float(count)) == (2, 3)
    correct, count = heads.summed_correct(
        tf.constant([[2.0, 1], [0, 3]]), tf.constant([[1], [1]]), tf.ones([2])
    )
    assert (float(correct), float(count)) == (1, 2)


def test_losses_of_a_fresh_model_are_those_of_guessing(batch):
    weights = {
        name: tf.constant(value)
        for name, value in initialize(pretraining.weights(ENCODER), 0).items()
    }
    losses, counts = (
        pretraining.losses(weights, batch, ENCODER),
        pretraining.counts(batch),
    )
    assert (
        abs(losses["mlm"] / counts["mlm"] - np.log(50)) < 0.3
        and abs(losses["nsp"] / counts["nsp"] - np.log(2)) < 0.1
    )


def test_large_logits_stay_finite():
    with tf.GradientTape() as tape:
        logits = tf.constant([[2e4, -2e4, 0.0]])
        tape.watch(logits)
        loss = heads.cross_entropy(logits, tf.constant([1]))
    np.testing.assert_allclose(loss, [4e4])
    np.testing.assert_allclose(tape.gradient(loss, logits), [[1, -1, 0]])


def test_bfloat16_losses_are_close(weights, batch):
    mixed = {
        name: tf.cast(value, tf.bfloat16) if value.shape.rank > 1 else value
        for name, value in weights.items()
    }
    exact = pretraining.losses(weights, batch, ENCODER)
    close = pretraining.losses(mixed, batch, ENCODER, dtype=tf.bfloat16)
    for name in exact:
        assert close[name].dtype == tf.float32
        np.testing.assert_allclose(close[name], exact[name], rtol=0.03)


def test_classifier_drops_only_with_a_seed(weights):
    pooled = tf.ones([2, CONFIG.hidden_size])
    plain = heads.classifier_logits(weights, pooled)
    assert plain.shape == (2, 5)
    np.testing.assert_array_equal(plain, heads.classifier_logits(weights, pooled, rate=0.5))
    assert (
        plain.numpy() != heads.classifier_logits(weights, pooled, tf.constant([1, 2]), 0.5).numpy()
    ).any()
