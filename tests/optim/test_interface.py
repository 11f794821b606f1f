"""An optimizer is one module and one row of the table: a made-up one needs nothing else, and its
step never sees the names of weights.
"""

import ast
import dataclasses
import pathlib
import types

import numpy as np
import pytest

import bert_gpu.optim
from bert_gpu.base import settings
from bert_gpu.base.settings import setting
from bert_gpu.cli import flags
from bert_gpu.optim import adam, adamw, adamw8bit, muon, optimizers
from bert_gpu.optim.config import OPTIMIZERS, OptimizerConfig, summaries
from bert_gpu.optim.interface import CommonSettings, Slot, is_decayed
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress
from tests.train import tiny
from tests.train.tiny import Trainer, batches

FOLDER = pathlib.Path(bert_gpu.optim.__file__).parent


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(adam.Settings):
    sgdm_momentum: float = setting(
        0.9, "Decay of the sum of gradients.", low=0.0, below=1.0, needs=("optimizer", ("sgdm",))
    )
    sgdm_rest_factor: float = setting(
        0.1,
        "AdamW's learning rate, as a share of SGD's.",
        above=0.0,
        needs=("optimizer", ("sgdm",)),
    )


@dataclasses.dataclass(frozen=True)
class Traits:
    is_decayed: bool


def traits(name, shape, config):
    if len(shape) < 2 or "embedding" in name:
        return adamw.traits(name, shape, config)
    return Traits(is_decayed(name, config))


def slots(traits, shape, config):
    return (
        {"momentum": Slot(shape)}
        if isinstance(traits, Traits)
        else adamw.slots(traits, shape, config)
    )


def step(traits, weight, gradient, state, learning_rate, corrections, config):
    if not isinstance(traits, Traits):
        return adamw.step(
            traits,
            weight,
            gradient,
            state,
            learning_rate * config.sgdm_rest_factor,
            corrections,
            config,
        )
    momentum = config.sgdm_momentum * state["momentum"] + gradient
    decay = config.weight_decay_rate if traits.is_decayed else 0.0
    return weight - learning_rate * (momentum + decay * weight), {"momentum": momentum}


# SGD with momentum for the matrices, AdamW with a smaller learning rate for the rest.
SGDM = types.SimpleNamespace(
    SUMMARY="SGD with momentum",
    Settings=Settings,
    traits=traits,
    slots=slots,
    corrections=adam.corrections,
    step=step,
)
TABLE = OPTIMIZERS | {"sgdm": SGDM}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SgdmConfig(Settings, muon.Settings):
    optimizer: str = setting("adamw", summaries(TABLE), choices=tuple(TABLE))

    @property
    def module(self):
        return TABLE[self.optimizer]


def arrays(shapes, seed):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def test_a_row_gives_flags(capsys):
    parsed = flags.parse(
        ["x", "--optimizer=sgdm", "--sgdm_momentum=0.5", "--muon_lr_ratio=0.5"],
        "",
        [],
        [SgdmConfig],
    )
    config = parsed.make(SgdmConfig)
    assert config.sgdm_momentum == 0.5 and config.sgdm_rest_factor == 0.1 and config.module is SGDM
    assert "--muon_lr_ratio has no effect without --optimizer=muon" in capsys.readouterr().err
    with pytest.raises(settings.UserError, match="--sgdm_momentum=1.0: must be below 1.0"):
        SgdmConfig(sgdm_momentum=1.0)
    with pytest.raises(SystemExit):
        flags.parse(["x", "--help"], "", [], [SgdmConfig])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        f"; sgdm: SGD with momentum. One of: {', '.join(OPTIMIZERS)}, sgdm." in text
        and "--sgdm_momentum=FLOAT (default: 0.9)" in text
    )


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "sgdm"])
def test_a_setting_has_an_effect_where_the_optimizer_has_it(kind):
    config = SgdmConfig(optimizer=kind)
    own = {field.name for field in dataclasses.fields(config.module.Settings)}
    common = {field.name for field in dataclasses.fields(CommonSettings)}
    assert {
        field.name
        for field in dataclasses.fields(config)
        if config.without_effect(field.name) is None
    } == own | common


def test_weights_left_to_another_optimizer_get_its_bits():
    """This holds also where the traits of both have the same values."""
    shapes = {
        "layer_0/kernel": (4, 6),
        "embeddings/word": (4, 6),
        "layer_0/scale": (6,),
        "layer_0/bias": (6,),
    }
    weights, gradients = arrays(shapes, 1), arrays(shapes, 2)
    config, others = (
        SgdmConfig(optimizer="sgdm", sgdm_rest_factor=0.5, weight_decay_rate=0.25),
        OptimizerConfig(weight_decay_rate=0.25),
    )
    after, state = optimizers.update(
        weights, gradients, optimizers.initial_slots(weights, config), 0.5, 1, config
    )
    expected, _ = optimizers.update(
        weights, gradients, optimizers.initial_slots(weights, others), 0.25, 1, others
    )
    kernel = weights["layer_0/kernel"]
    np.testing.assert_allclose(
        after["layer_0/kernel"],
        kernel - 0.5 * (gradients["layer_0/kernel"] + 0.25 * kernel),
        rtol=1e-6,
    )
    for name in shapes.keys() - {"layer_0/kernel"}:
        np.testing.assert_array_equal(after[name], expected[name])
    assert {slot for slot in state if slot.endswith("/layer_0/kernel")} == {
        "momentum/layer_0/kernel"
    }


@pytest.mark.parametrize(
    "num_replicas, xla", [(1, "off"), pytest.param(2, "on", marks=pytest.mark.long)]
)
def test_a_row_trains_and_resumes_to_the_bit(tmp_path, monkeypatch, num_replicas, xla):
    monkeypatch.setattr(tiny, "OptimizerConfig", SgdmConfig)
    options = dict(optimizer="sgdm", sgdm_rest_factor=0.2, xla=xla)
    steps = list(batches(1)) * 8
    whole, second = (Trainer(num_replicas, seed=seed, **options) for seed in (7, 8))
    losses = [metrics["loss"] for metrics in whole.run(steps[:3], learning_rate=0.1)]
    folder = RunFolder(str(tmp_path / "run"))
    folder.create({})
    folder.save(Progress(step=3), whole.state.read(), keep=1)
    losses += [metrics["loss"] for metrics in whole.run(steps[3:], learning_rate=0.1, start=3)]
    assert losses[-1] < 0.9 * losses[0]
    second.state.assign(folder.restore(3))
    second.step.seed = whole.step.seed
    assert [
        metrics["loss"] for metrics in second.run(steps[3:], learning_rate=0.1, start=3)
    ] == losses[3:]
    names = set(whole.state.variables())
    assert (
        "slots/momentum/layer_0/attention/qkv/kernel" in names
        and "slots/square/embeddings/word" in names
    )
    assert all(
        np.array_equal(value, second.state.read()[name])
        for name, value in whole.state.read().items()
    )


PARTS = {"kernel": (64, 64), "embedding": (64, 64), "scale": (64,), "bias": (64,)}


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "sgdm"])
def test_weights_of_equal_traits_share_a_step_that_knows_no_name(kind, monkeypatch):
    # A learning rate that no other test uses, so that no step is compiled yet.
    config, traced = SgdmConfig(optimizer=kind, learning_rate=0.0123), []
    plain = config.module.step

    def watched(traits, weight, *arguments):
        traced.append((traits, tuple(weight.shape)))
        assert "secret" not in f"{traits, weight, *arguments}"
        return plain(traits, weight, *arguments)

    monkeypatch.setattr(config.module, "step", watched)

    def update(prefix):
        names = {f"{prefix}_{index}/{part}": (index, part) for index in range(2) for part in PARTS}
        weights = {
            name: np.full(PARTS[part], 2.0 + index, np.float32)
            for name, (index, part) in names.items()
        }
        after, _ = optimizers.update(
            weights, weights, optimizers.initial_slots(weights, config), 0.1, 1, config
        )
        return {names[name]: value.numpy() for name, value in after.items()}

    before = update("secret")
    different = {
        (config.module.traits(part, shape, config), shape) for part, shape in PARTS.items()
    }
    assert len(traced) == len(different) and set(traced) == different
    for key, value in update("secret_too").items():
        np.testing.assert_array_equal(value, before[key])
    assert len(traced) == len(different)  # nothing was compiled again


def test_steps_are_told_apart_by_traits_and_config_alone():
    config, shape = OptimizerConfig(optimizer="adamw8bit"), (64, 64)
    steps = [
        optimizers.compiled_step(adamw8bit.traits(name, shape, equal), equal)
        for name in ("layer_0/kernel", "layer_1/kernel", "layer_0/bias", "embeddings/word")
        for equal in (config, OptimizerConfig(optimizer="adamw8bit"))
    ]
    assert [steps.index(step) for step in steps] == [0, 0, 0, 0, 4, 4, 6, 6]
    assert optimizers.compiled_step(Traits(True), config) is not optimizers.compiled_step(
        adamw.Traits(True), config
    )
    other = dataclasses.replace(config, adam_beta1=0.8)
    assert optimizers.compiled_step(adamw.Traits(True), other) is not optimizers.compiled_step(
        adamw.Traits(True), config
    )


def test_only_the_table_knows_the_optimizers():
    tree = ast.parse((FOLDER / "optimizers.py").read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    own = {module for module in modules if module.startswith("bert_gpu.optim")}
    assert own <= {"bert_gpu.optim.config", "bert_gpu.optim.interface"}
