"""Muon against singular value decompositions and a NumPy Muon, and which weights it takes."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.model import garden
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import column_blocks
from bert_gpu.optim import adamw, muon, optimizers
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.shared_update import own_share
from tests import pretraining, task_heads
from tests.model.test_garden import OPTIONS, small_encoder

CONFIG = OptimizerConfig(optimizer="muon")


def polynomial(values):
    """Jordan's five steps on singular values."""
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


def base_shapes():
    """(rows, columns) of all matrices of base that Muon takes, gated layers included."""
    shapes = set()
    for activation in ("gelu", "geglu"):
        config = dataclasses.replace(preset("base"), hidden_act=activation)
        specs = pretraining.weights(BertEncoder(config))
        for part in optimizers.joint_parts(specs, CONFIG, column_blocks(specs)).values():
            shapes.add(part.shape[1:])
    return sorted(shapes)


SPECTRA = {  # singular values of a matrix by their indices 1, 2, 3, ... and their number
    "1/k": lambda k, number: 1 / k,
    "exponential": lambda k, number: np.exp(-12 * k / number),
    "one large": lambda k, number: np.where(k == 1, 1.0, 0.01),
    "a plateau of small ones": lambda k, number: np.where(2 * k <= number, 1.0, 0.003),
}


def matrix_of(rng, shape, spectrum):
    """A random matrix with Frobenius norm 1; with the singular values of SPECTRA, up to a factor,
    or those of independent normal elements.
    """
    if spectrum == "random":
        matrix = rng.standard_normal(shape)
    else:
        rank = min(shape)
        left, right = (np.linalg.qr(rng.standard_normal((side, rank)))[0] for side in shape)
        matrix = left * SPECTRA[spectrum](np.arange(1, rank + 1), rank) @ right.T
    return (matrix / np.linalg.norm(matrix)).astype(np.float32)


@pytest.mark.parametrize(
    "shape, dtype, spectrum",
    [
        *((shape, dtype, "random") for shape in base_shapes() for dtype in ("float32", "bfloat16")),
        ((64, 64), "float16", "random"),
        *(((192, 768), dtype, "1/k") for dtype in ("float32", "bfloat16")),
        ((64, 192), "float16", "1/k"),
    ],
)
def test_singular_values_move_to_one(shape, dtype, spectrum):
    """U S V^T becomes U p(S) V^T. p is within 0.68 to 1.203 where a singular value is above 1 / 500
    of the Frobenius norm; five steps lift smaller ones, which square random matrices have, by at
    most 3.4445^5.
    """
    matrix = matrix_of(np.random.default_rng(sum(shape)), shape, spectrum)
    state = {"momentum": tf.zeros(shape)}
    traits = muon.traits("layer_0/x/kernel", shape, CONFIG)
    matrices = muon.joint_input(traits, tf.constant(matrix), state, 1, CONFIG, tf.as_dtype(dtype))
    found = tf.cast(muon.joint_work(matrices), tf.float32)[0].numpy()
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    seen = left.T @ found @ right.T
    new, rounding = np.diag(seen), dict(float32=5e-4, bfloat16=0.15, float16=0.02)[dtype]
    assert np.abs(seen - np.diag(new)).max() < rounding
    np.testing.assert_allclose(new, polynomial(values.astype(np.float64)), atol=2 * rounding)
    large = values > 1 / 500
    assert large.mean() > 0.9
    assert new[large].min() > 0.68 - rounding and new.max() < 1.203 + rounding
    assert np.sum(found * (left @ right)) > 0.97 * np.linalg.norm(found) * np.sqrt(min(shape))


@pytest.mark.parametrize("has_gpu", [False, True])
@pytest.mark.parametrize("tensor_float_32", [False, True])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_products_of_fewer_bits_need_a_second_gram_matrix(
    has_gpu, tensor_float_32, dtype, monkeypatch
):
    monkeypatch.setattr(fused, "has_gpu", lambda: has_gpu)
    experimental = tf.config.experimental
    monkeypatch.setattr(experimental, "tensor_float_32_execution_enabled", lambda: tensor_float_32)
    is_exact = dtype == tf.float32 and not (has_gpu and tensor_float_32)
    assert muon.steps_per_gram(8, 16, dtype) == ((5,) if is_exact else (3, 2))
    assert muon.steps_per_gram(8, 15, dtype) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("spectrum", ["random", *SPECTRA])
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_two_gram_matrices_are_about_as_exact_as_one_for_each_step(spectrum, dtype, monkeypatch):
    """Against U p(S) V^T, of wide matrices: errors are 0.8 to 1.45 times those. With a single Gram
    matrix 1/k is all noise in bfloat16.
    """
    matrix = matrix_of(np.random.default_rng(4), (96, 384), spectrum)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    exact = left * polynomial(values.astype(np.float64)) @ right

    def error(steps_per_gram):
        monkeypatch.setattr(muon, "steps_per_gram", lambda *arguments: steps_per_gram)
        found = tf.cast(muon.newton_schulz(tf.cast(matrix, dtype)), tf.float32).numpy()
        return np.linalg.norm(found - exact) / np.linalg.norm(exact)

    default = muon.steps_per_gram(*matrix.shape, dtype)
    usual = error((1, 1, 1, 1, 1))
    assert error(default) < 2 * usual
    if spectrum == "1/k":
        assert error((5,)) > (50 if dtype == tf.bfloat16 else 2) * usual


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 16, 64)])
def test_a_gpu_takes_all_matrices_at_once(shape, dtype, monkeypatch):
    rng = np.random.default_rng(5)
    matrices = tf.cast(np.stack([matrix_of(rng, shape[1:], "random") for _ in range(3)]), dtype)
    one_by_one = tf.cast(muon.joint_work(matrices), tf.float32)
    monkeypatch.setattr(fused, "has_gpu", lambda: True)
    work = tf.function(muon.joint_work, jit_compile=True, autograph=False)
    together = tf.cast(work(matrices), tf.float32)
    atol = 1e-5 if dtype == tf.float32 else 0.1
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=atol)


@pytest.fixture(scope="module")
def update_of_gradients():
    """Function of a scale -> the orthogonalised momentum of one random gradient times that."""
    gradient = np.random.default_rng(1).standard_normal((12, 8)).astype(np.float32)
    traits = muon.traits("layer_0/x/kernel", (12, 8), CONFIG)

    @fused.fused
    def update(gradient):
        state = {"momentum": tf.zeros([12, 8])}
        return muon.joint_input(traits, gradient, state, 1, CONFIG, tf.float32)

    return lambda scale: muon.joint_work(update(tf.constant(gradient * np.float32(scale)))).numpy()


@pytest.mark.parametrize(
    "exponent", [-45, -40, -38, -37, -36, -30, -29, -25, -20, -19, -10, 20, 30]
)
def test_the_scale_of_the_gradients_does_not_matter(exponent, update_of_gradients):
    found = update_of_gradients(10.0**exponent)
    assert np.isfinite(found).all() and np.abs(found).max() < 1.3
    if exponent >= -30:
        np.testing.assert_allclose(found, update_of_gradients(1.0), atol=2e-6)


def test_no_gradient_no_update():
    found = muon.joint_input(
        muon.Traits(True, 1),
        tf.zeros([4, 8]),
        {"momentum": tf.zeros([4, 8])},
        2,
        CONFIG,
        tf.float32,
    )
    assert found.shape == [2, 4, 4] and not muon.joint_work(found).numpy().any()


# Name: shape, matrices side by side, axes of rows. All sides, orders and ranks that models have.
SHAPES = {
    "layer_0/attention/qkv/kernel": ((12, 36), 3, 1),
    "layer_0/attention/output/kernel": ((12, 12), 1, 1),
    "layer_0/feed_forward/in/kernel": ((12, 64), 2, 1),
    "layer_0/feed_forward/output/kernel": ((32, 12), 1, 1),
    "encoder/transformer/layer_1/self_attention/query/kernel": ((12, 3, 4), 1, 1),
    "encoder/transformer/layer_1/self_attention/attention_output/kernel": ((3, 4, 12), 1, 2),
    "mlm/transform/kernel": ((12, 8), 1, 1),
}
REST = {"embeddings/word": (20, 12), "layer_0/attention/qkv/bias": (36,), "pooler/kernel": (12, 12)}


class Reference:
    """Muon in NumPy, float64, one matrix at a time, written from the papers."""

    def __init__(self):
        self.state = {}

    def step(self, name, weight, gradient, learning_rate, count):
        if name in REST:
            first, second = self.state.get(name, (0.0, 0.0))
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            self.state[name] = first, second
            update = first / (1 - 0.9**count) / (np.sqrt(second / (1 - 0.999**count)) + 1e-6)
            decay = 0.0 if "bias" in name else 0.01
            return weight - 0.5 * learning_rate * (update + decay * weight)
        shape, num_blocks, num_row_axes = SHAPES[name]
        momentum = 0.95 * self.state.get(name, 0.0) + gradient  # as Jordan has it
        self.state[name] = momentum
        nesterov = gradient + 0.95 * momentum
        matrix = nesterov.reshape(int(np.prod(shape[:num_row_axes])), -1)
        updates = []
        for block in np.split(matrix, num_blocks, axis=1):
            x = block / np.linalg.norm(block)
            for _ in range(5):
                y = x @ x.T
                x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
            updates.append(0.2 * np.sqrt(max(block.shape)) * x)
        update = np.concatenate(updates, axis=1).reshape(shape)
        return weight - learning_rate * (update + 0.01 * weight)


def random_values(rng, shapes):
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_equals_a_numpy_muon():
    """20 steps on random gradients."""
    rng = np.random.default_rng(3)
    shapes = {name: values[0] for name, values in SHAPES.items()} | REST
    config = OptimizerConfig(optimizer="muon", muon_lr_ratio=0.5)
    blocks = {name: count for name, (_, count, _) in SHAPES.items() if count > 1}
    weights = random_values(rng, shapes)
    parts = optimizers.joint_parts(weights, config, blocks)
    expected, reference = dict(weights), Reference()
    slots = optimizers.initial_slots(weights, config)
    assert slots["momentum/layer_0/attention/qkv/kernel"].nbytes == 4 * 12 * 36
    for count in range(1, 21):
        gradients = dict(reversed(random_values(rng, shapes).items()))  # order does not matter
        weights, slots = optimizers.update(
            weights, gradients, slots, 0.01, count, config, parts=parts
        )
        expected = {
            name: reference.step(name, weight, gradients[name].astype(np.float64), 0.01, count)
            for name, weight in expected.items()
        }
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=1e-5, err_msg=name)


def matrices_of(specs, config=CONFIG):
    return set(optimizers.joint_parts(specs, config, column_blocks(specs)))


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_it_takes_the_matrices_of_the_layers_and_of_the_transform(activation):
    config = dataclasses.replace(
        preset("tiny"), embedding_size=64, hidden_act=activation, vocab_size=100
    )
    specs = pretraining.weights(BertEncoder(config)) | task_heads.specs(
        "classifier", BertEncoder(config), 2
    )
    layers = {name for name in specs if name.startswith("layer_") and name.endswith("/kernel")}
    assert len(layers) == 8 and matrices_of(specs) == layers | {"mlm/transform/kernel"}
    blocks = column_blocks(specs)
    gated = {f"layer_{index}/feed_forward/in/kernel": 2 for index in range(2)}
    assert blocks == {f"layer_{index}/attention/qkv/kernel": 3 for index in range(2)} | (
        gated if activation == "geglu" else {}
    )
    for name in specs.keys() - matrices_of(specs):
        assert isinstance(muon.traits(name, specs[name].shape, CONFIG), adamw.Traits)


SPARSE = "encoder/transformer/layer_1"
LEFT = {  # matrices of Model Garden's encoders that AdamW gets
    "query_bert": {"encoder/word_embeddings/embedding_projection/kernel"},
    "mobilebert": {"encoder/mobile_bert_embedding/embedding_projection/kernel"},
    "sparse_mixer": {  # a matrix for each expert; a small head; what mixes tokens
        f"{SPARSE}/moe/experts/intermediate/kernel",
        f"{SPARSE}/moe/experts/output/kernel",
        f"{SPARSE}/moe/router/router_weights/kernel",
        f"{SPARSE}/linear_transform/seq_kernel",
        f"{SPARSE}/linear_transform/hidden_kernel",
    },
}


@pytest.mark.parametrize("name", garden.SUPPORTED)
def test_it_takes_the_matrices_of_model_gardens_layers(name):
    specs = small_encoder(f"{name}{OPTIONS.get(name, '')}").weights()
    found = matrices_of(specs)
    kernels = {weight for weight in specs if weight.endswith("kernel")}
    assert found and found <= kernels and kernels - found == LEFT.get(name, set())
    for weight in found:
        traits = muon.traits(weight, specs[weight].shape, CONFIG)
        assert 16 in muon.sides(traits, specs[weight].shape, 1), weight


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 8, 15), (2, 8, 32)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_flops_are_those_of_the_products(shape, dtype):
    work = tf.function(muon.joint_work, autograph=False)
    graph = work.get_concrete_function(tf.TensorSpec(shape, dtype)).graph
    products = [op for op in graph.get_operations() if "MatMul" in op.type]
    flops = sum(2 * np.prod(op.inputs[0].shape) * op.outputs[0].shape[-1] for op in products)
    assert flops == muon.joint_flops(shape, dtype) > 0


@pytest.mark.parametrize("count, num_replicas", [(4, 2), (5, 2), (1, 4), (6, 4)])
def test_shares_are_the_whole(count, num_replicas):
    """Each input is in one share, in order; shares have equal sizes."""
    inputs = {(2, 3): tf.reshape(tf.range(count * 6), [count, 2, 3])}
    shares = [own_share(inputs, tf.constant(r), num_replicas)[2, 3] for r in range(num_replicas)]
    joined = tf.concat(shares, 0).numpy()
    assert len({tuple(share.shape) for share in shares}) == 1
    np.testing.assert_array_equal(joined[:count], inputs[2, 3])
    assert not joined[count:].any()
