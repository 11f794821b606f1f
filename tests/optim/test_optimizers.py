"""AdamW against its formula in float64 NumPy and against values from torch.optim.AdamW; laws that
hold for all optimizers.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.optim import optimizers
from bert_gpu.optim.config import OPTIMIZERS, OptimizerConfig

GRADIENTS = np.array(
    [[0.5, -1.0, 2.0], [0.1, 0.2, -0.3], [-1.0, 0.0, 1.0], [0.3, 0.3, 0.3], [2.0, -2.0, 0.01]]
)


def run(config, gradients, learning_rates=5 * (0.01,), name="layer_0/kernel", jit_compile=False):
    """Weights after each update, starting from [1, -2, 3]."""
    update = tf.function(lambda *args: optimizers.update(*args, config), jit_compile=jit_compile)
    weights = {name: tf.constant([1.0, -2.0, 3.0])}
    slots = {
        slot: tf.constant(value)
        for slot, value in optimizers.initial_slots(weights, config).items()
    }
    path = []
    for step, (gradient, learning_rate) in enumerate(
        zip(gradients, learning_rates, strict=True), start=1
    ):
        weights, slots = update(
            weights,
            {name: tf.constant(gradient, tf.float32)},
            slots,
            tf.constant(learning_rate),
            tf.constant(step),
        )
        path.append(weights[name].numpy())
    return np.array(path)


def reference(config, gradients, learning_rate, decay):
    weight, first_moment, second_moment, path = (
        np.array([1.0, -2.0, 3.0]),
        np.zeros(3),
        np.zeros(3),
        [],
    )
    for step, gradient in enumerate(gradients, start=1):
        first_moment = config.adam_beta1 * first_moment + (1 - config.adam_beta1) * gradient
        second_moment = config.adam_beta2 * second_moment + (1 - config.adam_beta2) * gradient**2
        corrected_first, corrected_second = first_moment, second_moment
        if config.adam_bias_correction:
            corrected_first, corrected_second = (
                first_moment / (1 - config.adam_beta1**step),
                second_moment / (1 - config.adam_beta2**step),
            )
        weight = weight - learning_rate * (
            corrected_first / (np.sqrt(corrected_second) + config.adam_epsilon) + decay * weight
        )
        path.append(weight)
    return np.array(path)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("bias_correction", [True, False])
@pytest.mark.parametrize(
    "name, decay", [("layer_0/kernel", 0.05), ("layer_0/bias", 0.0), ("layer_0/norm/scale", 0.0)]
)
def test_formula(bias_correction, name, decay, jit_compile):
    config = OptimizerConfig(
        weight_decay_rate=0.05, adam_bias_correction=bias_correction, adam_beta2=0.98
    )
    actual = run(config, GRADIENTS, name=name, jit_compile=jit_compile)
    np.testing.assert_allclose(actual, reference(config, GRADIENTS, 0.01, decay), rtol=2e-5)


def test_torch():
    """torch 2.13.0, after the last of GRADIENTS:

    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1)
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float32)
        optimizer.step()
    """
    expected = [0.9762949347496033, -1.9641649723052979, 2.951508045196533]
    np.testing.assert_allclose(
        run(OptimizerConfig(weight_decay_rate=0.1), GRADIENTS)[-1], expected, rtol=2e-6
    )


def test_torch_with_a_changing_learning_rate():
    """torch 2.13.0, after 1, 5 and 10 updates:

    optimizer = torch.optim.AdamW([weight], lr=1.0, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    for step in range(1, 11):
        optimizer.param_groups[0]["lr"] = 0.01 * step
        weight.grad = torch.sin(torch.arange(3) + 1.0 * step) * torch.tensor([1.0, 1e-3, 1e3])
        optimizer.step()
    """
    expected = [
        [0.9890000224113464, -2.007988929748535, 2.986999988555908],
        [0.9237207174301147, -1.9655276536941528, 3.0270087718963623],
        [0.8285778760910034, -1.9119462966918945, 2.9425301551818848],
    ]
    steps = np.arange(1, 11)
    gradients = np.sin(np.arange(3) + steps[:, None]) * [1.0, 1e-3, 1e3]
    path = run(
        OptimizerConfig(weight_decay_rate=0.1, adam_beta2=0.98),
        gradients,
        0.01 * steps.astype(np.float32),
    )
    np.testing.assert_allclose(path[[0, 4, 9]], expected, rtol=2e-6)


@pytest.mark.parametrize("exclude, decays", [("kernel$", False), ("^layer_1/", True), ("", True)])
def test_what_is_not_decayed_is_a_regular_expression(exclude, decays):
    config = OptimizerConfig(weight_decay_rate=0.5, weight_decay_exclude=exclude)
    still = run(config, np.zeros((5, 3)))[-1]
    np.testing.assert_allclose(
        still, np.array([1.0, -2.0, 3.0]) * (0.995**5 if decays else 1.0), rtol=1e-6
    )


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_keeps_its_names_shapes_and_types(kind, jit_compile):
    """So variables can hold it, and a compiled loop can carry it."""
    config = OptimizerConfig(optimizer=kind)
    weights = {
        "embeddings/word": tf.ones((70, 64)),
        "layer_0/kernel": tf.ones((65, 64)),
        "layer_0/bias": tf.ones(64),
    }
    start = optimizers.initial_slots(weights, config)
    update = tf.function(lambda *args: optimizers.update(*args, config), jit_compile=jit_compile)
    after, slots = update(weights, weights, start, tf.constant(0.1), tf.constant(1))
    assert {name: value.shape for name, value in after.items()} == {
        name: value.shape for name, value in weights.items()
    }
    form = {name: (value.shape, value.dtype) for name, value in start.items()}
    assert {
        name: (tuple(value.shape), value.dtype.as_numpy_dtype) for name, value in slots.items()
    } == form
    assert all(name.split("/", 1)[1] in weights for name in start)
    assert optimizers.state_bytes(weights, config) == sum(value.nbytes for value in start.values())
    assert all(np.all(after[name] < weights[name]) for name in weights)


@pytest.mark.parametrize("has_gpu", [False, True])
def test_clipping_is_by_the_global_norm(has_gpu, monkeypatch):
    """has_gpu: use the form for GPUs, which computes the same."""
    monkeypatch.setattr(optimizers, "has_gpu", lambda: has_gpu)
    gradients = {"a": tf.constant([3.0, 0.0]), "b": tf.constant([[4.0]])}
    factor, norm = optimizers.clip_factor(gradients, 1.0)
    assert norm == 5.0 and float(factor) == pytest.approx(0.2)
    assert optimizers.clip_factor(gradients, 10.0)[0] == 1.0
    assert optimizers.clip_factor(gradients, 0.0)[0] == 1.0
    factor, norm = optimizers.clip_factor(
        {name: 8.0 * value for name, value in gradients.items()}, 1.0, scale=8.0
    )
    assert norm == 5.0 and float(factor) == pytest.approx(0.2 / 8.0)
    factor, norm = optimizers.clip_factor({"a": tf.constant([np.inf])}, 1.0)
    assert not np.isfinite(norm)


def test_the_factor_scales_gradients_of_any_type():
    config, learning_rate, one = OptimizerConfig(), tf.constant(1e-3), tf.constant(1)
    weights, gradients = {"a": tf.ones((3, 2))}, {"a": tf.constant([[1.0, 2.0]] * 3)}
    slots = {
        name: tf.constant(value)
        for name, value in optimizers.initial_slots(weights, config).items()
    }
    plain = optimizers.update(weights, gradients, slots, learning_rate, one, config)
    halved = optimizers.update(
        weights,
        {"a": tf.cast(2.0 * gradients["a"], tf.bfloat16)},
        slots,
        learning_rate,
        one,
        config,
        tf.constant(0.5),
    )
    np.testing.assert_array_equal(plain[0]["a"], halved[0]["a"])
    np.testing.assert_array_equal(plain[1]["square/a"], halved[1]["square/a"])


@pytest.mark.parametrize(
    "settings",
    [
        dict(optimizer="sgd"),
        dict(weight_decay_exclude="(bias"),
        dict(adam_beta2=1.0),
    ],
)
def test_bad_settings(settings):
    with pytest.raises(UserError, match=f"^--{next(iter(settings))}=") as caught:
        OptimizerConfig(**settings)
    assert len(str(caught.value)) <= 300


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_lower_layers_have_lower_rates(kind):
    """A weight's update at its own rate equals that of a run in which all have this rate."""
    shape = (128, 4)  # larger than what the 8-bit optimizer leaves in float32
    generator = np.random.default_rng(5)
    depths = {
        "embeddings/word": 3,
        "embeddings/norm/scale": 3,
        "layer_0/feed_forward/in/kernel": 2,
        "layer_1/attention/output/kernel": 1,
        "layer_1/attention/output/bias": 1,
        "mlm/transform/kernel": 0,
        "classifier/bias": 0,
    }
    start = {
        name: generator.normal(size=shape if "kernel" in name else (64,)).astype(np.float32)
        for name in depths
    }
    gradients = {name: generator.normal(size=value.shape) for name, value in start.items()}

    def updated(learning_rate, decay):
        config = OptimizerConfig(optimizer=kind, layer_lr_decay=decay)
        weights = {name: tf.constant(value) for name, value in start.items()}
        slots = optimizers.initial_slots(weights, config)
        slots = {name: tf.constant(value) for name, value in slots.items()}
        parts = optimizers.joint_parts(weights, config, {})
        values = {name: tf.constant(value, tf.float32) for name, value in gradients.items()}
        found, _ = optimizers.update(
            weights, values, slots, tf.constant(learning_rate), 1, config, parts=parts
        )
        return {name: value.numpy() for name, value in found.items()}

    found = updated(0.02, 0.5)
    for depth in range(4):
        alone = updated(0.02 * 0.5**depth, 1.0)
        for name, own in depths.items():
            if own == depth:
                np.testing.assert_allclose(found[name], alone[name], rtol=1e-6, err_msg=name)
                assert not np.allclose(found[name], start[name], atol=1e-5), name
