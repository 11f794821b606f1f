"""The encoder: equal to Model Garden's, blind to padding, the same under XLA, with dropout as a
function of the seed.
"""

import warnings

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.model import attention, encoder, heads, layers
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.heads import pooler_weights
from bert_gpu.model.weights import initialize

CONFIG = ModelConfig(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=20,
)
SEED = tf.constant([5, -9])


def random_weights(specs, seed=0):
    """Weights that are never 0 or 1, so that each one matters."""
    generator = np.random.default_rng(seed)
    return {
        name: (0.15 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }


def random_batch(batch_size=3, length=12, seed=0):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(4, length + 1, batch_size)
    batch = {
        "input_ids": generator.integers(0, CONFIG.vocab_size, (batch_size, length)),
        "input_mask": np.arange(length) < lengths[:, None],
        "segment_ids": generator.integers(0, 2, (batch_size, length)),
    }
    return {name: tf.constant(values, tf.int32) for name, values in batch.items()}


SPECS = {**encoder.encoder_weights(CONFIG), **pooler_weights(CONFIG)}


@pytest.fixture(scope="module")
def weights():
    return {name: tf.constant(values) for name, values in random_weights(SPECS).items()}


def garden_encoder(weights):
    """Model Garden's BertEncoderV2 with our weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.nlp.modeling.networks import bert_encoder

        garden = bert_encoder.BertEncoderV2(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.hidden_size,
            num_layers=CONFIG.num_hidden_layers,
            num_attention_heads=CONFIG.num_attention_heads,
            inner_dim=CONFIG.intermediate_size,
            max_sequence_length=CONFIG.max_position_embeddings,
            type_vocab_size=CONFIG.type_vocab_size,
            inner_activation=lambda x: tf.nn.gelu(x, approximate=False),
        )
        garden(
            dict.fromkeys(
                ("input_word_ids", "input_mask", "input_type_ids"), tf.zeros([1, 4], tf.int32)
            )
        )
    heads, size = CONFIG.num_attention_heads, CONFIG.hidden_size // CONFIG.num_attention_heads
    values = [
        weights[f"embeddings/{name}"]
        for name in ("word", "position", "segment", "norm/scale", "norm/bias")
    ]
    for index in range(CONFIG.num_hidden_layers):
        layer = f"layer_{index}"
        kernels = tf.split(weights[f"{layer}/attention/qkv/kernel"], 3, -1)
        biases = tf.split(weights[f"{layer}/attention/qkv/bias"], 3)
        for kernel, bias in zip(kernels, biases, strict=True):
            values += [tf.reshape(kernel, [-1, heads, size]), tf.reshape(bias, [heads, size])]
        values += [
            tf.reshape(weights[f"{layer}/attention/output/kernel"], [heads, size, -1]),
            weights[f"{layer}/attention/output/bias"],
        ]
        values += [
            weights[f"{layer}/{name}"] for name in ("attention/norm/scale", "attention/norm/bias")
        ]
        values += [
            weights[f"{layer}/feed_forward/{name}"]
            for name in ("in/kernel", "in/bias", "output/kernel", "output/bias")
        ]
        values += [weights[f"{layer}/feed_forward/norm/{name}"] for name in ("scale", "bias")]
    values += [weights["pooler/kernel"], weights["pooler/bias"]]
    garden.set_weights([np.asarray(value) for value in values])
    return garden


def test_equals_model_garden(weights):
    batch = random_batch()
    expected = garden_encoder(weights)(
        {
            "input_word_ids": batch["input_ids"],
            "input_mask": batch["input_mask"],
            "input_type_ids": batch["segment_ids"],
        }
    )
    hidden = encoder.encode(weights, batch, CONFIG)
    real = batch["input_mask"].numpy().astype(bool)
    np.testing.assert_allclose(
        hidden.numpy()[real], expected["sequence_output"].numpy()[real], rtol=0, atol=1e-5
    )
    np.testing.assert_allclose(
        heads.pool(weights, hidden), expected["pooled_output"], rtol=0, atol=1e-5
    )


def test_padding_changes_no_real_position(weights):
    batch = random_batch(length=8)
    longer = {
        name: tf.pad(values, [[0, 0], [0, 5]], constant_values=0) for name, values in batch.items()
    }
    other_ids = longer["input_ids"] + tf.constant([0] * 8 + [7] * 5)
    real = batch["input_mask"].numpy().astype(bool)
    expected = encoder.encode(weights, batch, CONFIG).numpy()[real]
    for ids in (longer["input_ids"], other_ids):
        padded = encoder.encode(weights, {**longer, "input_ids": ids}, CONFIG)
        np.testing.assert_allclose(padded.numpy()[:, :8][real], expected, rtol=0, atol=2e-6)


def test_a_row_of_padding_alone_is_finite(weights):
    batch = {**random_batch(), "input_mask": tf.zeros([3, 12], tf.int32)}
    assert np.isfinite(encoder.encode(weights, batch, CONFIG).numpy()).all()


@pytest.mark.parametrize("seed", [None, SEED])
def test_compiled_and_dynamic_shapes_equal_plain(weights, seed):
    batch = random_batch()
    plain = encoder.encode(weights, batch, CONFIG, seed=seed)
    compiled = tf.function(
        lambda batch: encoder.encode(weights, batch, CONFIG, seed=seed), jit_compile=True
    )
    dynamic = tf.function(
        lambda batch: encoder.encode(weights, batch, CONFIG, seed=seed),
        input_signature=[{name: tf.TensorSpec([None, None], tf.int32) for name in batch}],
    )
    np.testing.assert_allclose(compiled(batch), plain, rtol=0, atol=1e-5)
    np.testing.assert_allclose(dynamic(batch), plain, rtol=0, atol=1e-6)


def test_bfloat16_is_close(weights):
    batch = random_batch()
    expected = encoder.encode(weights, batch, CONFIG).numpy()
    hidden = encoder.encode(weights, batch, CONFIG, dtype=tf.bfloat16)
    assert hidden.dtype == tf.bfloat16
    error = np.linalg.norm(tf.cast(hidden, tf.float32).numpy() - expected) / np.linalg.norm(
        expected
    )
    assert error < 0.02


def test_gradients_are_deterministic_dense_and_in_the_weights_dtype(weights):
    batch = random_batch(batch_size=16)

    @tf.function
    def gradients(weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            hidden = encoder.encode(weights, batch, CONFIG, dtype=tf.bfloat16, seed=SEED)
            loss = tf.reduce_sum(tf.square(tf.cast(heads.pool(weights, hidden), tf.float32)))
        return tape.gradient(loss, weights)

    mixed = {
        name: tf.cast(value, tf.bfloat16) if value.shape.rank > 1 else value
        for name, value in weights.items()
    }
    first, second = gradients(mixed), gradients(mixed)
    for name, value in mixed.items():
        assert (
            isinstance(first[name], tf.Tensor)
            and first[name].dtype == value.dtype
            and first[name].shape == value.shape
        )
        assert (first[name].numpy() == second[name].numpy()).all(), name


def test_gelu_and_its_gradient_are_those_of_the_normal_distribution():
    """The values of both forms, and the gradient, at a million places."""
    places = np.linspace(-12, 12, 1_000_001).astype(np.float32)
    x, exact = tf.constant(places), places.astype(np.float64)
    below = scipy.special.ndtr(exact)
    slope = below + exact * np.exp(-(exact**2) / 2) / np.sqrt(2 * np.pi)
    np.testing.assert_allclose(layers._gelu_with_gradient(x), exact * below, rtol=0, atol=5e-7)
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = layers.activate("gelu", x[None])
    gradient = tape.gradient(value, x)
    np.testing.assert_allclose(value[0], exact * below, rtol=0, atol=2e-6)
    np.testing.assert_allclose(gradient, slope, rtol=0, atol=4e-7)


@pytest.mark.parametrize(
    "part, has_gpu",
    [
        ("gelu", False),
        ("layer_norm", False),
        ("rms_norm", False),
        ("attention", False),
        ("attention with dropout", False),
        ("attention with dropout", True),
    ],
)
def test_own_gradients_equal_automatic_ones(part, has_gpu, monkeypatch):
    """has_gpu: use the forms for GPUs, which compute the same."""
    for module in (fused, layers, attention):
        monkeypatch.setattr(module, "has_gpu", lambda: has_gpu)
    generator = np.random.default_rng(1)
    draw = lambda *shape: tf.constant(generator.standard_normal(shape), tf.float32)  # noqa: E731
    bias = attention.mask_bias(tf.constant([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]))
    rate, dropout_key = 0.3, "somewhere"
    threshold, share = layers.drop_threshold(rate)
    mask = tf.cast(layers.draw_bits([2, 3, 5, 5], SEED, dropout_key) >= threshold, tf.float32)

    def plain_attention(q, k, v, factor):
        probabilities = tf.nn.softmax(tf.einsum("bnsd,bntd->bnst", q, k) / np.sqrt(4) + bias)
        return tf.einsum("bnst,bntd->bnsd", probabilities * factor, v)

    def plain_norm(x, scale, bias):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, bias, scale, 1e-6)

    ours, reference, inputs = {
        "gelu": (
            lambda x: layers.activate("gelu", x),
            lambda x: tf.nn.gelu(x, approximate=False),
            [draw(6, 7) * 3],
        ),
        "layer_norm": (
            lambda x, scale, bias: layers.layer_norm(
                {"n/scale": scale, "n/bias": bias}, "n", x, 1e-6
            ),
            plain_norm,
            [draw(6, 7), draw(7), draw(7)],
        ),
        "rms_norm": (
            lambda x, scale: layers.rms_norm({"n/scale": scale}, "n", x, 1e-6),
            lambda x, scale: x / tf.sqrt(tf.reduce_mean(x**2, -1, keepdims=True) + 1e-6) * scale,
            [draw(6, 7), draw(7)],
        ),
        "attention": (
            lambda *qkv: attention.attention(*qkv, bias),
            lambda *qkv: plain_attention(*qkv, 1.0),
            [draw(2, 3, 5, 4)] * 3,
        ),
        "attention with dropout": (
            lambda *qkv: attention.attention(*qkv, bias, rate, SEED, dropout_key),
            lambda *qkv: plain_attention(*qkv, mask / share),
            [draw(2, 3, 5, 4) for _ in range(3)],
        ),
    }[part]
    upstream = None
    results = []
    for function in (ours, reference):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            out = function(*inputs)
        upstream = draw(*out.shape) if upstream is None else upstream
        results.append([out, *tape.gradient(out, inputs, output_gradients=upstream)])
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("shape", [(400, 501), (301, 1001)])
def test_dropout_drops_its_share_and_keeps_the_mean(shape):
    dropped = layers.dropout(tf.ones(shape), 0.1, SEED, "a").numpy()
    kept = dropped != 0
    num_values, deviation = dropped.size, np.sqrt(0.1 * 0.9 / dropped.size)
    assert abs(kept.mean() - 0.9) < 5 * deviation + 2**-16
    assert np.ptp(dropped[kept]) == 0 and abs(dropped[kept][0] * 0.9 - 1) < 2**-15
    assert abs(dropped.mean() - 1) < 5 * deviation / 0.9 + 2**-16, num_values


def test_dropout_is_a_function_of_seed_and_place():
    x = tf.ones([64, 64])
    first = layers.dropout(x, 0.5, SEED, "a").numpy()
    assert (first == layers.dropout(x, 0.5, SEED, "a").numpy()).all()
    for other in (layers.dropout(x, 0.5, SEED, "b"), layers.dropout(x, 0.5, SEED + 1, "a")):
        assert abs((first == other.numpy()).mean() - 0.5) < 0.05
    assert layers.dropout(x, 0.0, SEED, "a") is x and layers.dropout(x, 0.5, None, "a") is x


def test_first_values_follow_the_law_of_google():
    config = ModelConfig(
        vocab_size=3000,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=64,
    )
    values = initialize(encoder.encoder_weights(config), seed=3)
    words = values["embeddings/word"]
    assert (
        words.dtype == np.float32 and np.abs(words).max() <= 0.04 and np.abs(words).max() > 0.0399
    )
    # the deviation of a normal truncated at 2
    assert abs(words.std() - 0.02 * 0.87963) < 1e-4 and abs(words.mean()) < 2e-4
    for name, value in values.items():
        if name.endswith(("bias", "scale")):
            assert (value == name.endswith("scale")).all(), name


def test_first_values_depend_on_seed_and_name_alone():
    few, many = initialize(encoder.encoder_weights(CONFIG), 7), initialize(SPECS, 7)
    assert set(few) < set(many) and all((few[name] == many[name]).all() for name in few)
    assert not (few["layer_0/attention/qkv/kernel"] == few["layer_1/attention/qkv/kernel"]).any()
    assert not (few["embeddings/word"] == initialize(SPECS, 8)["embeddings/word"]).any()
