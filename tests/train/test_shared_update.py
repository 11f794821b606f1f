"""The laws of the training step with an optimizer that works on many weights together (Muon), and
whether replicas divide that work.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base import fused
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.flops import Flops
from bert_gpu.model.weights import column_blocks
from bert_gpu.optim import muon, optimizers
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress
from bert_gpu.train import shared_update
from bert_gpu.train.run import with_update
from bert_gpu.train.state import copies
from tests import pretraining
from tests.train.tiny import Trainer, batches, distance

# With Adam's own epsilon, gradients near 0 divided by themselves are noise.
MUON = dict(optimizer="muon", adam_epsilon=1e-3, clip_norm=0.3)  # which clips each step
CONFIG, STEPS = OptimizerConfig(optimizer="muon"), 4


def weights_after(*arguments, **options):
    trainer = Trainer(*arguments, **MUON | options)
    trainer.run(batches(STEPS))
    return trainer


@pytest.fixture(scope="module")
def one():
    """The weights after STEPS steps of one replica, and before them."""
    trainer = Trainer(**MUON)
    start = trainer.state.read_weights()
    trainer.run(batches(STEPS))
    return trainer.state.read_weights(), start


@pytest.fixture(scope="module")
def shared():
    """A trainer of two replicas that divide the update, after STEPS steps of two micro-batches; its
    state after two of them; the shapes of what a replica orthogonalises.
    """
    trainer, shapes = Trainer(2, 2, **MUON), set()

    def watched(value, work=muon.joint_work):
        shapes.add(tuple(value.shape))
        return work(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muon, "joint_work", watched)
        steps = list(batches(STEPS))
        trainer.run(steps[:2])
        middle = trainer.state.read()
        trainer.run(steps[2:], start=2)
    return trainer, middle, shapes


def assert_replicas_are_equal(trainer):
    for variable in trainer.state.variables().values():
        first, *others = (copy.numpy() for copy in copies(variable))
        assert all(np.array_equal(first, other) for other in others)


def test_division_of_the_batch_and_of_the_update_changes_nothing(one, shared):
    """Each replica does half: of four squares (16, 16) of a layer and the head's, with zeros behind
    them, and of two matrices (16, 32).
    """
    trainer, _, shapes = shared
    assert trainer.step.is_shared and shapes == {(3, 16, 16), (1, 16, 32)}
    assert distance(one[0], trainer.state.read_weights()) < 1e-5
    assert_replicas_are_equal(trainer)


def test_replicas_that_do_all_of_the_update_change_nothing(one, monkeypatch):
    monkeypatch.setattr(shared_update, "is_worthwhile", lambda *_: False)
    trainer = weights_after(2)
    assert not trainer.step.is_shared
    assert distance(one[0], trainer.state.read_weights()) < 1e-5
    assert_replicas_are_equal(trainer)


def test_resumed_steps_of_one_call_are_those_of_single_calls_to_the_bit(shared, tmp_path):
    whole, middle, _ = shared
    folder = RunFolder(str(tmp_path / "run"))
    folder.create({})
    folder.save(Progress(step=2), middle, keep=1)
    trainer = Trainer(2, 2, seed=8, **MUON)
    trainer.step.seed = whole.step.seed
    trainer.state.assign(folder.restore(2))
    trainer.run(list(batches(STEPS))[2:], start=2, steps_per_call=2)
    assert trainer.step.is_shared
    after, expected = trainer.state.read(), whole.state.read()
    assert all(np.array_equal(value, after[name]) for name, value in expected.items())


def test_a_ramp_divides_the_update(shared):
    """Two of at most three micro-batches."""
    whole, middle, _ = shared
    trainer = Trainer(2, 3, is_ramped=True, **MUON)
    trainer.state.assign(middle)
    for index, batch in list(enumerate(batches(STEPS)))[2:]:
        trainer.step([batch], [1e-2], index, [2])
    assert trainer.step.is_shared
    assert distance(whole.state.read_weights(), trainer.state.read_weights()) < 1e-5


def test_clipping_acts_on_the_whole_batch(one, shared):
    """A gradient's share in the momentum, and AdamW's weights, depend on its norm."""
    assert distance(one[0], shared[0].state.read_weights()) < 1e-5
    assert distance(weights_after(clip_norm=1.0).state.read_weights(), one[0]) > 1e-3


@pytest.mark.parametrize(
    "num_replicas, precision",
    [pytest.param(2, "bfloat16", marks=pytest.mark.long), (1, "float16")],
)
def test_lower_precision_is_close(one, num_replicas, precision):
    """Also of what the replicas send to each other."""
    trainer = weights_after(num_replicas, precision=precision)
    assert trainer.step.is_shared == (num_replicas == 2)
    assert distance(one[0], trainer.state.read_weights()) < 0.1 * distance(*one)


def test_what_is_not_finite_changes_nothing(shared):
    trainer = shared[0]
    kept = trainer.state.read()
    table = trainer.state.weights["embeddings/word"]
    for copy in copies(table):
        copy.assign(tf.fill(copy.shape, np.inf))
    assert trainer.run(batches(1), start=STEPS)[0]["skipped"] == 1.0
    after = trainer.state.read()
    trainer.state.assign(kept)
    same = {name for name in kept if np.array_equal(kept[name], after[name])}
    assert set(kept) - same == {"weights/embeddings/word", "num_skipped"}


def test_frozen_weights_take_no_part(one):
    trainer = weights_after(freeze=("layers:1",))
    for name, value in trainer.state.read_weights().items():
        assert np.array_equal(value, one[1][name]) == name.startswith("layer_0/"), name
    assert "momentum/mlm/transform/kernel" in trainer.state.slots
    assert not [name for name in trainer.state.slots if "layer_0/" in name]


def test_products_of_the_update_are_hardware_flops(shared):
    step = shared[0].step
    work = 5 * 5 * (4 * 16**3 + 2 * 16**3) + 2 * (4 * 16**2 * 32 + 34 * 16**3)
    counted = with_update(lambda batch: Flops(7.0, batch), step)
    assert counted(11.0) == Flops(7.0, 11.0 + work)
    parts = step.state.joint_parts
    assert shared_update.hardware_flops(step.devices, parts, False, CONFIG) == 2 * work
    assert shared_update.hardware_flops(step.devices, {}, False, OptimizerConfig()) == 0


@pytest.fixture(scope="module")
def base():
    """JointParts of base."""
    specs = pretraining.weights(BertEncoder(preset("base")))
    return optimizers.joint_parts(specs, CONFIG, column_blocks(specs))


H100, H100_PCIE = "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"
RTX_3060, RTX_4090 = "NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 4090"


@pytest.mark.parametrize(
    "gpus, precision, expected",
    [
        ([H100, H100], "bfloat16", True),  # NVLink
        ([H100_PCIE, H100_PCIE], "bfloat16", False),
        ([RTX_4090, RTX_4090], "bfloat16", False),
        ([RTX_3060, RTX_3060], "bfloat16", True),
        ([RTX_3060, RTX_3060], "float32", True),
        ([H100_PCIE, H100_PCIE], "float32", False),
        ([H100_PCIE, RTX_3060], "bfloat16", True),  # the slowest counts
        ([H100, "unheard of"], "bfloat16", True),
        ([], "float32", True),
    ],
)
def test_the_cost_model(gpus, precision, expected, base, monkeypatch):
    monkeypatch.setattr(fused, "has_gpu", lambda: bool(gpus))
    cost = shared_update.joint_cost(base, CONFIG, tf.as_dtype(precision))
    assert shared_update.is_worthwhile(*cost, gpus, precision) == expected


def test_the_cost_model_asks_for_tensor_float_32(base, monkeypatch):
    """Without it, an H100's products take seven times as long."""
    monkeypatch.setattr(fused, "has_gpu", lambda: True)
    monkeypatch.setattr(tf.config.experimental, "tensor_float_32_execution_enabled", lambda: False)
    cost = shared_update.joint_cost(base, CONFIG, tf.float32)
    assert shared_update.is_worthwhile(*cost, [H100_PCIE] * 2, "float32")


class Told:
    """A console that keeps what it is told."""

    def __init__(self):
        self.said, self.warned = [], []
        self.say, self.warn = self.said.append, self.warned.append


@pytest.mark.parametrize(
    "num_replicas, optimizer, said",
    [
        (2, "muon", ["each replica does a share of the update"]),
        (1, "muon", []),
        (2, "adamw", []),
    ],
)
def test_who_updates_is_said(num_replicas, optimizer, said, base, shared):
    devices = dataclasses.replace(shared[0].devices, num_replicas=num_replicas)
    parts, console = base if optimizer == "muon" else {}, Told()
    is_shared = shared_update.is_shared(devices, parts, OptimizerConfig(optimizer=optimizer))
    shared_update.announce(devices, parts, is_shared, console)
    assert (console.said, console.warned) == (said, [])
