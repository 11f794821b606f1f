"""Laws of the training step: a global batch gives the same update however it is divided; what is not finite is skipped."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.train.step import copies, divide_batch
from tests.train.laws import Trainer, batches, distance


def losses(metrics):
    return np.array([[step["loss"], step["mlm"], step["nsp"]] for step in metrics])


@pytest.fixture(scope="module")
def one():
    trainer = Trainer(1, 1)
    return losses(trainer.run(batches(10))), trainer.state.read_weights()


@pytest.mark.parametrize("num_replicas, accumulation", [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_division_of_the_batch_changes_nothing(one, num_replicas, accumulation):
    """1 x 16 = 2 replicas x 8 = accumulation 2 x 8 = 2 x 2 x 4: the losses of ten steps, and the final weights."""
    trainer = Trainer(num_replicas, accumulation)
    np.testing.assert_allclose(losses(trainer.run(batches(10))), one[0], rtol=1e-5)
    assert distance(one[1], trainer.state.read_weights()) < 1e-5


def test_xla_changes_nothing(one):
    trainer = Trainer(2, 2, xla="on")
    np.testing.assert_allclose(losses(trainer.run(batches(10))), one[0], rtol=1e-4)


def test_training_lowers_the_loss(one):
    batch = list(batches(1)) * 30
    metrics = Trainer().run(batch)
    assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]


def test_replicas_stay_equal():
    trainer = Trainer(4, dropout=0.1)
    trainer.run(batches(3))
    for variable in trainer.state.variables().values():
        first, *others = (copy.numpy() for copy in copies(variable))
        assert len(others) == 3 and all(np.array_equal(first, other) for other in others)


def test_same_seed_same_bits():
    first, second, other = (losses(Trainer(2, 2, dropout=0.3, seed=seed).run(batches(3))) for seed in (1, 1, 2))
    assert np.array_equal(first, second) and not np.array_equal(first, other)


@pytest.mark.parametrize("num_replicas, accumulation", [(2, 1), (1, 2)])
def test_replicas_and_micro_batches_draw_their_own_dropout(num_replicas, accumulation):
    """A row alone, and the same row twice, one on each: with equal draws the two losses would be one."""
    row = {name: value[:1] for name, value in next(batches(1)).items()}
    twice = {name: np.repeat(value, 2, 0) for name, value in row.items()}
    calm = [trainer.run([batch])[0]["mlm"] for trainer, batch in ((Trainer(), row), (Trainer(num_replicas, accumulation), twice))]
    assert calm[0] == pytest.approx(calm[1], rel=1e-6)
    alone = Trainer(dropout=0.3).run([row])[0]["mlm"]
    assert Trainer(num_replicas, accumulation, dropout=0.3).run([twice])[0]["mlm"] != pytest.approx(alone, rel=1e-4)


def test_bfloat16_is_close(one):
    metrics = losses(Trainer(precision="bfloat16").run(batches(10)))
    np.testing.assert_allclose(metrics, one[0], rtol=0.03)


def test_float16_overflow_skips_halves_and_recovers(one):
    trainer = Trainer(2, 2, precision="float16")
    for copy in copies(trainer.state.loss_scale):
        copy.assign(2.0**24)
    before = trainer.state.read_weights()
    metrics = trainer.run(batches(1))
    assert metrics[0]["skipped"] == 1.0
    assert distance(before, trainer.state.read_weights()) == 0.0
    assert trainer.state.read()["loss_scale"] == 2.0**23
    metrics = trainer.run(batches(25))
    state = trainer.state.read()
    skipped = sum(step["skipped"] for step in metrics)
    assert metrics[-1]["skipped"] == 0.0 and state["num_skipped"] == 1 + skipped
    assert state["num_updates"] == 25 - skipped
    assert state["loss_scale"] == 2.0 ** (23 - skipped)


def test_float16_is_close(one):
    metrics = Trainer(precision="float16").run(batches(10))
    assert not any(step["skipped"] for step in metrics)
    np.testing.assert_allclose(losses(metrics), one[0], rtol=0.03)


def test_a_step_that_is_not_finite_is_skipped():
    trainer = Trainer(2)
    before = trainer.state.read()
    assert trainer.run(batches(1), rate=1e-3)[0]["skipped"] == 0.0
    kernel = trainer.state.weights["layer_0/attention/output/kernel"]
    middle = trainer.state.read()
    for copy in copies(kernel):
        copy.assign(tf.fill(copy.shape, np.inf))
    assert trainer.run(batches(1))[0]["skipped"] == 1.0
    after = trainer.state.read()
    assert after["num_updates"] == middle["num_updates"] == before["num_updates"] + 1
    assert all(np.array_equal(middle[name], after[name]) for name in after if name.startswith("slots/"))


def test_global_batches_are_divided_in_order():
    parts = divide_batch(dict(x=np.arange(12)), 2, 3)
    assert [part["x"].tolist() for part in parts] == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
