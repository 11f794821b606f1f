"""The laws of the training step with an optimizer that works on many weights together (Muon), and
whether replicas divide that work.
"""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

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
    monkeypatch.setattr(shared_update, "is_shared", lambda *_: False)
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


@pytest.mark.parametrize(
    "gpus, more, expected",
    [
        ([H100, H100], {}, True),  # NVLink
        ([H100, H100], dict(workers=types.SimpleNamespace(count=2)), False),
        ([H100_PCIE, H100_PCIE], {}, False),
        ([H100, "unheard of"], {}, False),
        ([], {}, True),
        ([], dict(num_replicas=1), False),
    ],
)
def test_the_update_is_divided_over_nvlink_and_in_one_memory(gpus, more, expected, base, shared):
    devices = dataclasses.replace(shared[0].devices, gpu_names=gpus, **more)
    assert shared_update.is_shared(devices, base) == expected
    assert not shared_update.is_shared(devices, {})
