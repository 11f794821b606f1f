"""cuDNN attention without a GPU: the lowered calls are JAX's, the mathematics around them is plain
attention's, and unsuitable settings are refused.

cudnn_calls.json holds JAX's calls, written by cudnn_oracle.py; set BERT_GPU_JAX_PYTHON to a Python
with JAX to write them again.
"""

import dataclasses
import functools
import json
import os
import pathlib
import re
import subprocess
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.model import cudnn_attention, encoder
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.train.config import MemoryConfig
from bert_gpu.train.memory import choose_attention, training_encoder
from tests.model.variants import (
    VARIANTS,
    as_tensors,
    random_batch,
    random_weights,
    value_and_gradients,
)

FOLDER = pathlib.Path(__file__).parent
CASES = json.loads((FOLDER / "cudnn_calls.json").read_text())
JAX = os.environ.get("BERT_GPU_JAX_PYTHON")


def lowered_calls(mask, dtype, batch_size, length, num_heads, size):
    """[forward, backward] as in cudnn_calls.json, of our attention and its gradient."""
    dtype = tf.as_dtype(dtype)

    @tf.function(jit_compile=True)
    def run(q, k, v, input_mask, sequence_ids):
        batch = dict(input_mask=input_mask) | (
            dict(sequence_ids=sequence_ids) if mask == "bias" else {}
        )
        with tf.GradientTape() as tape:
            tape.watch((q, k, v))
            mixed = cudnn_attention.attention(q, k, v, cudnn_attention.make_mask(batch, dtype))
        return mixed, tape.gradient(mixed, (q, k, v))

    heads, tokens = (
        tf.zeros([batch_size, length, num_heads, size], dtype),
        tf.ones([batch_size, length], tf.int32),
    )
    text = run.experimental_get_compiler_ir(heads, heads, heads, tokens, tokens)(
        stage="hlo", platform_name="CPU"
    )
    calls = [line.split(" = ", 1)[1] for line in text.splitlines() if " custom-call(" in line]
    return [
        re.sub(r" ?/\*index=\d+\*/| %[\w.-]+|, metadata=\{[^{}]*\}", "", call) for call in calls
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case["case"])))
def test_the_lowered_calls_are_jaxs(case):
    """Target, order of operands, layouts, interface version and configuration, to the letter."""
    assert lowered_calls(*case["case"]) == [case["forward"], case["backward"]]


@pytest.mark.long
@pytest.mark.skipif(JAX is None, reason="needs jax 0.7.0: set BERT_GPU_JAX_PYTHON")
def test_jax_writes_the_stored_calls():
    done = subprocess.run(
        [JAX, str(FOLDER / "cudnn_oracle.py")], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == CASES


def emulated_call(target, operands, results, config):
    """What cuDNN computes, in float32, from the operands in its order; NaN wherever it
    promises nothing.
    """
    fused = json.loads(config)["cudnn_fmha_backend_config"]
    operands, is_backward = list(operands), target.endswith("Backward")
    q, k, v = (operands.pop(0) for _ in range(3))  # (B, S, N, D)
    if is_backward:
        statistics, upstream = operands.pop(0), operands.pop(0)
    scores = fused["fmha_scale"] * tf.einsum("bqnd,bknd->bnqk", q, k)
    if "Bias" in target:
        scores += operands.pop(0)
    mixed = operands.pop(0) if is_backward else None
    is_real = tf.ones(q.shape[:2], tf.bool)
    if fused["mask_type"] == "PADDING":
        (is_real, is_key) = (tf.sequence_mask(lengths, q.shape[1]) for lengths in operands)
        scores = tf.where(is_key[:, None, None, :], scores, -np.inf)
        operands = []
    assert not operands
    is_query, is_token = is_real[:, None, :, None], is_real[:, :, None, None]
    if not is_backward:
        log_sums = tf.reduce_logsumexp(scores, -1)
        mixed = tf.einsum("bnqk,bknd->bqnd", tf.exp(scores - log_sums[..., None]), v)
        outputs = [tf.where(is_token, mixed, np.nan), tf.where(is_query[..., 0], log_sums, np.nan)]
    else:
        p = tf.where(is_query, tf.exp(scores - statistics[..., None]), 0.0)
        upstream, mixed = (tf.where(is_token, x, 0.0) for x in (upstream, mixed))
        projection = tf.einsum("bqnd,bqnd->bnq", upstream, mixed)[..., None]
        ds = p * (tf.einsum("bqnd,bknd->bnqk", upstream, v) - projection) * fused["fmha_scale"]
        gradients = (
            "bnqk,bknd->bqnd",
            ds,
            k,
            "bnqk,bqnd->bknd",
            ds,
            q,
            "bnqk,bqnd->bknd",
            p,
            upstream,
        )
        outputs = [tf.where(is_token, tf.einsum(*gradients[i : i + 3]), np.nan) for i in (0, 3, 6)]
    for output, spec in zip(outputs, results, strict=True):
        assert output.shape == spec.shape and output.dtype == spec.dtype
    return outputs


@pytest.fixture
def emulated(monkeypatch):
    """cuDNN attention emulated on a CPU, in float32, to compare it closely with plain attention."""
    monkeypatch.setattr(cudnn_attention, "fused_call", emulated_call)
    monkeypatch.setitem(cudnn_attention.BLOCKED, tf.float32, -1e9)


def make_batch(config, kind):
    """Rows of 12 tokens: padded, one of them only padding; or packed, with padding at the end."""
    batch = random_batch(config, [12, 5, 1, 0], 12)
    if kind == "packed":
        ids = [
            [1] * 12,
            [1] * 3 + [2] * 4 + [3] * 5,
            [1] * 5 + [2] * 4 + [0] * 3,
            [1] * 2 + [0] * 10,
        ]
        batch["sequence_ids"] = np.array(ids, np.int32)
        batch["input_mask"] = (batch["sequence_ids"] > 0).astype(np.int32)
    return as_tensors(batch)


@pytest.mark.parametrize(
    "name, kind, recompute_every",
    [
        ("bert", "packed", 0),
        ("all at once", "padded", 1),
    ],
)
def test_tokens_and_gradients_are_those_of_plain_attention(emulated, name, kind, recompute_every):
    config = dataclasses.replace(VARIANTS[name], num_hidden_layers=2)
    weights, batch = as_tensors(random_weights(config)), make_batch(config, kind)
    is_token = batch["input_mask"].numpy() > 0
    shape = (*is_token.shape, config.hidden_size)
    factors = (
        np.random.default_rng(1).standard_normal(shape).astype(np.float32) * is_token[..., None]
    )

    def run(weights, **settings):
        return encoder.encode(weights, batch, config, **settings)

    fused = dict(attention="cudnn", recompute_every=recompute_every)
    hidden = run(weights, **fused).numpy()
    assert np.isfinite(hidden).all()
    np.testing.assert_allclose(hidden[is_token], run(weights).numpy()[is_token], rtol=0, atol=1e-5)
    (loss, gradients), (expected, expected_gradients) = (
        value_and_gradients(
            lambda weights, settings=settings: tf.reduce_sum(run(weights, **settings) * factors),
            weights,
        )
        for settings in (fused, {})
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    for key, gradient in gradients.items():
        assert (
            np.linalg.norm(gradient - expected_gradients[key])
            <= 1e-5 * np.linalg.norm(expected_gradients[key]) + 1e-5
        ), key


@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_values_that_cudnn_leaves_in_padding_spread_nowhere(emulated, kind):
    """Gradients into padding too: even with a loss of padding, none becomes NaN."""
    generator = np.random.default_rng(0)
    q, k, v = (tf.constant(generator.standard_normal((4, 12, 2, 8)), tf.float32) for _ in range(3))
    mask = cudnn_attention.make_mask(make_batch(VARIANTS["bert"], kind), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch((q, k, v))
        mixed = cudnn_attention.attention(q, k, v, mask)
    assert np.isfinite(mixed).all()
    assert all(np.isfinite(gradient).all() for gradient in tape.gradient(mixed, (q, k, v)))


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_a_blocked_score_counts_nothing_and_is_a_number(dtype):
    ids = tf.constant([[1, 1, 2, 0]])
    bias = tf.cast(
        cudnn_attention.make_mask(dict(input_mask=ids, sequence_ids=ids), dtype).bias, tf.float32
    ).numpy()
    assert np.isfinite(bias).all()
    sees = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(tf.nn.softmax(bias + 100 * (sees == 0)).numpy()[0, 0] > 0, sees)


def test_unsupported_settings_are_refused():
    batch = make_batch(VARIANTS["bert"], "padded")
    weights = as_tensors(random_weights(VARIANTS["bert"]))
    with pytest.raises(ValueError, match="has no dropout"):
        encoder.encode(
            weights, batch, VARIANTS["bert"], seed=tf.constant([1, 2]), attention="cudnn"
        )
    signature = [
        {
            name: tf.TensorSpec([None, None], tf.int32)
            for name in ("input_ids", "input_mask", "segment_ids")
        }
    ]
    run = functools.partial(encoder.encode, weights, config=VARIANTS["bert"], attention="cudnn")
    with pytest.raises(ValueError, match="not all known"):
        tf.function(run, input_signature=signature).get_concrete_function()


MODEL = ModelConfig(attention_probs_dropout_prob=0.0, hidden_size=128, num_attention_heads=2)
GPU = dict(kind="GPU", xla=True, precision="bfloat16", capability=(8, 0), size=64, dropout=0.0)


@pytest.mark.parametrize(
    "change, problem",
    [
        (dict(), None),
        (dict(precision="float16", size=128, capability=(12, 0), is_packed=True, length=128), None),
        (dict(length=127), None),
        (dict(kind="CPU", capability=(0, 0)), "needs a GPU"),
        (dict(capability=(7, 5)), "one has 7.5"),
        (dict(xla=False), "drop --xla=off"),
        (dict(precision="float32"), "not in float32"),
        (dict(size=60), "have 60"),
        (dict(size=136), "have 136"),
        (dict(dropout=0.1), "is 0.1; give --attention_probs_dropout_prob=0"),
        (dict(is_packed=True, length=127), "even number"),
    ],
)
def test_obstacles(change, problem):
    found = cudnn_attention.obstacle(**GPU | change)
    assert found is None if problem is None else problem in found


@pytest.mark.parametrize("setting, capability, deterministic, dropout, chosen", [
    ("plain", (9, 0), False, 0.0, "plain"),
    ("auto", (8, 9), False, 0.0, "plain"),
    ("auto", (9, 0), False, 0.0, "cudnn"),
    ("auto", (9, 0), False, 0.1, "plain"),
    ("auto", (9, 0), True, 0.0, "plain"),
    ("auto", (0, 0), False, 0.0, "plain"),
    ("cudnn", (8, 0), False, 0.0, "cudnn"),
    ("cudnn", (9, 0), True, 0.0, "cudnn"),
    ("cudnn", (0, 0), False, 0.0, None),
])  # fmt: skip
def test_choice(monkeypatch, setting, capability, deterministic, dropout, chosen):
    has_gpu = capability != (0, 0)
    monkeypatch.setattr("bert_gpu.train.memory.lowest_capability", lambda gpus: capability)
    monkeypatch.setattr(
        "bert_gpu.train.memory.tf_config.is_op_determinism_enabled", lambda: deterministic
    )
    devices = types.SimpleNamespace(
        kind="GPU" if has_gpu else "CPU",
        xla=has_gpu,
        precision="bfloat16" if has_gpu else "float32",
    )
    model = dataclasses.replace(MODEL, attention_probs_dropout_prob=dropout)
    config = MemoryConfig(attention=setting)
    choose = functools.partial(choose_attention, BertEncoder(model), config, devices)
    if chosen is not None:
        assert choose() == chosen
        return
    with pytest.raises(UserError) as caught:
        choose()
    assert str(caught.value) == "--attention=cudnn: needs a GPU, or give --attention=plain"


def test_every_refusal_fits_in_a_line():
    for change in (
        dict(precision="float32"),
        dict(dropout=0.123456),
        dict(size=1000),
        dict(is_packed=True, length=127),
    ):
        assert (
            len(
                f"--attention=cudnn: {cudnn_attention.obstacle(**GPU | change)}, "
                "or give --attention=plain"
            )
            <= 300
        )


def test_the_choice_reaches_the_encoder(monkeypatch):
    monkeypatch.setattr("bert_gpu.train.memory.lowest_capability", lambda gpus: (9, 0))
    monkeypatch.setattr("bert_gpu.train.memory.tf_config.is_op_determinism_enabled", lambda: False)
    devices = types.SimpleNamespace(kind="GPU", xla=True, precision="bfloat16")
    assert training_encoder(BertEncoder(MODEL), MemoryConfig(), devices).attention == "cudnn"
    assert (
        training_encoder(BertEncoder(MODEL), MemoryConfig(attention="plain"), devices).attention
        == "plain"
    )
    with pytest.raises(UserError, match="attention_probs_dropout_prob"):
        dropping = BertEncoder(dataclasses.replace(MODEL, attention_probs_dropout_prob=0.1))
        training_encoder(dropping, MemoryConfig(attention="cudnn"), devices)
