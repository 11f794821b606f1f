"""Laws of Model Garden's encoders: they are pure functions of weights and seed, equal ours where
the architecture does, and train alike.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.model import garden
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep
from tests import pretraining

LENGTH, PREDICTIONS = 32, 4
# Options with which two layers and rows of 32 tokens have all parts of each encoder.
OPTIONS = {
    "bigbird": ",block_size=4,num_rand_blocks=2",
    "kernel": ",num_random_features=8",
    "sparse_mixer": ",moe_layers=(1,),attention_layers=(0,),num_experts=2",
    "fnet": ",attention_layers=[1]",
}
SEED = tf.constant([1, 2])
BIGBIRD = pytest.param("bigbird", marks=pytest.mark.long)  # takes as long as all others
NAMES = [BIGBIRD if name == "bigbird" else name for name in garden.SUPPORTED]


def small(dropout=0.1, **fields):
    sizes = dict(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=LENGTH,
        initializer_range=0.1,
    )
    return ModelConfig(
        **sizes | fields, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
    )


def small_encoder(name, **fields):
    """Model Garden's encoder NAME[,FIELD=VALUE...] of a small config."""
    return open_encoder(small(encoder=f"garden:{name}", **fields))


def batches(num_batches, rows=4, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(num_batches):
        lengths = rng.integers(8, LENGTH + 1, rows)
        mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int32)
        yield dict(
            input_ids=(rng.integers(5, 50, (rows, LENGTH)) * mask).astype(np.int32),
            input_mask=mask,
            segment_ids=((np.arange(LENGTH) >= lengths[:, None] // 2) * mask).astype(np.int32),
            masked_lm_positions=rng.integers(1, 8, (rows, PREDICTIONS)).astype(np.int32),
            masked_lm_ids=rng.integers(5, 50, (rows, PREDICTIONS)).astype(np.int32),
            masked_lm_weights=np.ones((rows, PREDICTIONS), np.float32),
            next_sentence_labels=rng.integers(0, 2, rows).astype(np.int32),
        )


def tensors(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def first_values(specs, seed=3):
    return {name: tf.constant(value) for name, value in initialize(specs, seed).items()}


@pytest.mark.parametrize("name", NAMES)
def test_an_encoder_is_a_function_of_weights_and_seed(name):
    """Gradients reach every weight, a seed repeats its dropout, no seed means no dropout, and
    attention ignores padding.
    """
    model, batch = small_encoder(f"{name}{OPTIONS.get(name, '')}"), tensors(next(batches(1)))
    weights = first_values(model.weights())

    @tf.function
    def run(weights, ids, seed):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            hidden = model.encode(weights, {**batch, "input_ids": ids}, seed=seed)
            loss = tf.reduce_sum(hidden**3)
        return hidden, tape.gradient(loss, weights)

    hidden, gradients = run(weights, batch["input_ids"], SEED)
    assert hidden.shape == [4, LENGTH, 16] and hidden.dtype == tf.float32
    for weight, gradient in gradients.items():
        assert isinstance(gradient, tf.Tensor) and np.abs(gradient).max() > 0, weight
    again, _ = run(weights, batch["input_ids"], SEED)
    other, _ = run(weights, batch["input_ids"], SEED + 1)
    assert (again.numpy() == hidden.numpy()).all() and not np.allclose(other, hidden, atol=1e-3)
    changed = {**weights, "embeddings/word": weights["embeddings/word"] * 2}
    assert not np.allclose(run(changed, batch["input_ids"], SEED)[0], hidden, atol=1e-3)

    hidden = model.encode(weights, batch).numpy()
    dry = small_encoder(f"{name}{OPTIONS.get(name, '')}", dropout=0.0)
    assert (dry.encode(weights, batch, seed=SEED).numpy() == hidden).all()
    if name not in ("fnet", "sparse_mixer"):  # these mix padding into all positions
        padding = batch["input_mask"].numpy() == 0
        # MobileBERT's embeddings combine three neighbours, so the last token sees the first
        # padding.
        unseen = padding & np.roll(padding, 1, axis=1) if name == "mobilebert" else padding
        assert unseen.any()
        shown = model.encode(
            weights, {**batch, "input_ids": tf.where(unseen, 7, batch["input_ids"])}
        ).numpy()
        np.testing.assert_allclose(shown[~padding], hidden[~padding], rtol=0, atol=1e-5)


def as_ours(theirs, config):
    """Model Garden's weights, or their gradients, by our names: {name: array}."""
    get = {name.removeprefix("encoder/"): np.asarray(value) for name, value in theirs.items()}
    flat = lambda name, *shape: get.pop(name).reshape(shape)  # noqa: E731
    hidden = config.hidden_size
    ours = {
        "embeddings/word": get.pop("embeddings/word"),
        "embeddings/position": get.pop("position_embedding/embeddings"),
        "embeddings/segment": get.pop("type_embeddings/embeddings"),
    }
    norms, dense = {"embeddings/norm": "embeddings/layer_norm"}, {}
    if config.embedding_width != hidden:
        dense["embeddings/projection"] = "embedding_projection"
    for group in range(config.num_groups):
        block = f"transformer/layer_{group}" if config.num_groups > 1 else "transformer"
        attention = f"{block}/self_attention"
        parts = ("query", "key", "value")
        ours[f"layer_{group}/attention/qkv/kernel"] = np.concatenate(
            [flat(f"{attention}/{part}/kernel", hidden, hidden) for part in parts], 1
        )
        ours[f"layer_{group}/attention/qkv/bias"] = np.concatenate(
            [flat(f"{attention}/{part}/bias", hidden) for part in parts]
        )
        ours[f"layer_{group}/attention/output/kernel"] = flat(
            f"{attention}/attention_output/kernel", hidden, hidden
        )
        ours[f"layer_{group}/attention/output/bias"] = get.pop(f"{attention}/attention_output/bias")
        norms[f"layer_{group}/attention/norm"] = f"{block}/self_attention_layer_norm"
        norms[f"layer_{group}/feed_forward/norm"] = f"{block}/output_layer_norm"
        dense |= {
            f"layer_{group}/feed_forward/in": f"{block}/intermediate",
            f"layer_{group}/feed_forward/output": f"{block}/output",
        }
    for name, their_name in norms.items():
        ours |= {
            f"{name}/scale": get.pop(f"{their_name}/gamma"),
            f"{name}/bias": get.pop(f"{their_name}/beta"),
        }
    for name, their_name in dense.items():
        ours |= {f"{name}/{part}": get.pop(f"{their_name}/{part}") for part in ("kernel", "bias")}
    return ours | get  # what is left are the heads, of equal names


@pytest.mark.parametrize(
    "name, activation, fields",
    [
        ("bert", "gelu", {}),
        ("bert_v2", "gelu_new", {}),
        ("albert", "gelu_new", dict(embedding_size=8, num_hidden_groups=1)),
    ],
)
def test_losses_and_gradients_equal_those_of_our_encoder(name, activation, fields):
    config, batch = small(dropout=0.0, hidden_act=activation, **fields), tensors(next(batches(1)))
    model, own = (
        open_encoder(dataclasses.replace(config, encoder=f"garden:{name}")),
        BertEncoder(config),
    )
    theirs = first_values(pretraining.weights(model))
    # Biases start at 0 and scales at 1; other values tell more.
    theirs = {
        weight: value + 0.1 * tf.random.stateless_normal(value.shape, [7, len(weight)])
        for weight, value in theirs.items()
    }
    ours = {weight: tf.constant(value) for weight, value in as_ours(theirs, config).items()}
    assert {weight: tuple(value.shape) for weight, value in ours.items()} == {
        weight: spec.shape for weight, spec in pretraining.weights(own).items()
    }

    def run(weights, encoder):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            losses = pretraining.losses(weights, batch, encoder, seed=SEED)
            loss = tf.add_n(list(losses.values()))
        return losses, tape.gradient(loss, weights)

    their_losses, their_gradients = run(theirs, model)
    our_losses, our_gradients = run(ours, own)
    for loss, value in our_losses.items():
        np.testing.assert_allclose(their_losses[loss], value, rtol=1e-5)
    for weight, gradient in as_ours(their_gradients, config).items():
        np.testing.assert_allclose(
            gradient, our_gradients[weight], rtol=1e-4, atol=2e-5, err_msg=weight
        )


def test_first_values_follow_their_initializers_and_ours():
    config = small()
    theirs, ours = small_encoder("bert").weights(), BertEncoder(config).weights()
    kinds = lambda specs: sorted(  # noqa: E731
        (int(np.prod(spec.shape)), *spec[1:]) for spec in specs.values() if len(spec.shape) == 1
    )  # fmt: skip
    assert theirs["embeddings/word"] == ours["embeddings/word"]
    # their q, k and v have biases of (N, D) each
    assert kinds(theirs) == [spec for spec in kinds(ours) if spec[0] != 3 * 16]
    assert sum(np.prod(spec.shape) for spec in theirs.values()) == sum(
        np.prod(spec.shape) for spec in ours.values()
    )
    assert {
        spec.value for name, spec in theirs.items() if name.endswith(("kernel", "embeddings"))
    } == {config.initializer_range}


def test_names_do_not_depend_on_what_was_built_before():
    garden.build.cache_clear()
    model = small_encoder("reuse")
    first = model.weights()
    small_encoder("reuse", hidden_act="relu").weights()
    garden.build.cache_clear()
    assert model.weights() == first


@pytest.mark.parametrize("name", ["bert", BIGBIRD])
def test_bfloat16_and_compiled_are_close(name):
    model, batch = small_encoder(f"{name}{OPTIONS.get(name, '')}"), tensors(next(batches(1)))
    weights = first_values(model.weights())
    expected = model.encode(weights, batch, seed=SEED).numpy()
    compiled = tf.function(
        lambda weights: model.encode(weights, batch, seed=SEED), jit_compile=True
    )
    np.testing.assert_allclose(compiled(weights), expected, rtol=0, atol=1e-4)
    cast = {
        name: tf.cast(value, tf.bfloat16) if value.shape.rank >= 2 else value
        for name, value in weights.items()
    }
    hidden = model.encode(cast, batch, dtype=tf.bfloat16)
    expected = model.encode(weights, batch).numpy()
    assert hidden.dtype == tf.bfloat16
    assert (
        np.linalg.norm(tf.cast(hidden, tf.float32).numpy() - expected) / np.linalg.norm(expected)
        < 0.05
    )


@pytest.mark.long
def test_training_on_two_replicas_and_checkpoints():
    """ALBERT's loss falls, replicas stay equal, and a restored state repeats the same bits."""
    model = small_encoder("albert", embedding_size=8)
    devices = set_up(DeviceConfig(num_gpus=0, virtual_replicas=2))
    weights = initialize(pretraining.weights(model), seed=5)
    optimizer = OptimizerConfig()
    objective = pretraining.objective(model)

    def trainer(weights):
        state = TrainState(devices.strategy, weights, optimizer, column_blocks={})
        return state, TrainStep(devices, state, objective, optimizer, num_micro_batches=1, seed=9)

    def train(step, indices):
        losses = []
        for index in indices:
            losses += list(step([steps[index % len(steps)]], [1e-2], index).read()["loss"])
        return losses

    steps = list(batches(3, rows=8))
    state, step = trainer(weights)
    losses = train(step, range(30))
    assert np.isfinite(losses).all() and np.mean(losses[-3:]) < 0.8 * np.mean(losses[:3]), losses
    for variable in state.weights.values():
        first, second = variable.values
        assert (first.numpy() == second.numpy()).all()
    saved = state.read()
    after = train(step, range(30, 32)), state.read_weights()
    other, other_step = trainer({name: np.zeros_like(value) for name, value in weights.items()})
    other.assign(saved)
    assert train(other_step, range(30, 32)) == after[0]
    for name, value in other.read_weights().items():
        assert (value == after[1][name]).all(), name


@pytest.mark.parametrize(
    "text, named",
    [
        ("garden:gpt", "known are bert"),
        ("garden:funnel", "shortens the sequence"),
        ("garden:xlnet", "permuted"),
        ("garden:kernel,feature=3", "num_random_features"),
        ("garden:kernel,num_random_features=many", "of type int"),
        ("garden:bert,hidden_size=32", "--hidden_size"),
        ("garden:bert,norm_first=1", "of type bool"),
        ("garden:kernel,redraw=True", "redraw is not supported"),
    ],
)
def test_unknown_encoders_and_fields_are_refused(text, named):
    with pytest.raises(UserError, match=f"--encoder={text.split(',')[0]}.*{named}") as error:
        open_encoder(small(encoder=text))
    assert len(str(error.value)) <= 300


@pytest.mark.parametrize(
    "fields, named",
    [
        (dict(hidden_act="geglu"), "--hidden_act=geglu"),
        (dict(norm_first=True), "--norm_first=True"),
        (dict(norm_type="rms_norm"), "--norm_type=rms_norm"),
        (dict(use_bias=False), "--use_bias=False"),
        (dict(position_embedding_type="rotary"), "--position_embedding_type=rotary"),
        (dict(type_vocab_size=0), "--type_vocab_size=0"),
        (dict(num_hidden_groups=1), "--num_hidden_groups=1"),
        (dict(layer_norm_eps=1e-5), "--layer_norm_eps=1e-05"),
    ],
)
def test_switches_that_an_encoder_does_not_have_are_refused(fields, named):
    with pytest.raises(UserError, match=f"{named}: --encoder=garden:bert has no such switch"):
        small_encoder("bert", **fields).weights()


def test_rows_that_an_encoder_cannot_take_are_refused():
    batch = tensors(next(batches(1)))
    shorter = {
        name: value[:, : LENGTH - 2] if value.shape.rank == 2 else value
        for name, value in batch.items()
    }
    fnet, bert = small_encoder("fnet"), small_encoder("bert")
    assert (fnet.fixed_length, bert.fixed_length) == (LENGTH, None)
    with pytest.raises(UserError, match=f"exactly --max_position_embeddings={LENGTH}.* 30"):
        fnet.encode(first_values(fnet.weights()), shorter)
    weights = first_values(bert.weights())
    assert bert.encode(weights, shorter).shape == [4, LENGTH - 2, 16]
    with pytest.raises(UserError, match="packed rows"):
        bert.encode(weights, {**batch, "sequence_ids": batch["input_mask"]})
    with pytest.raises(UserError, match="--precision=bfloat16.*--precision=float32"):
        small_encoder("mobilebert").check(LENGTH, "bfloat16")
    with pytest.raises(UserError, match="Model Garden cannot build it"):
        small_encoder("bigbird,block_size=16").weights()
    with pytest.raises(UserError, match="multiple of 5 tokens"):
        small_encoder("bigbird,block_size=5").check(LENGTH, "float32")


@pytest.mark.parametrize("how", [dict(recompute_every=1), dict(attention="cudnn", xla=True)])
def test_it_trains_as_it_is_or_not_at_all(how):
    model = small_encoder("albert")
    assert model.for_training(xla=True) == model
    with pytest.raises(
        UserError,
        match=(
            "^--(recompute_every|attention=cudnn): works only with our own "
            "encoder, not with --encoder=garden:albert; drop"
        ),
    ):
        model.for_training(**how)
    assert "garden:albert" in model.cudnn_obstacle(kind="GPU")
