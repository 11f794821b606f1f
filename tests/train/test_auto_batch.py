"""The search finds the largest micro-batch under any limit, and out of memory is caught."""

import random
import statistics
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.train.auto_batch import choose_micro_batch, largest_that_fits, try_size

SIZES = [1, 2, 4, *range(8, 4000, 8)]


def search(limit, shares=lambda size: 0.0):
    """(the size that is found, the sizes tried) where sizes up to a limit fit."""
    tried = []

    def share_of(size):
        tried.append(size)
        return shares(size) if size <= limit else None

    return largest_that_fits(share_of, SIZES), tried


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 23, 64, 100, 777, 3992, 9000])
@pytest.mark.parametrize("is_known", [True, False])
def test_the_largest_that_fits_is_found(limit, is_known):
    """Whether the share of the memory is known or not; exactly where sizes are far apart."""
    found, tried = search(limit, lambda size: (0.2 + 0.77 * size / limit) if is_known else 0.0)
    best = max(size for size in SIZES if size <= limit)
    assert found <= best <= 1.03 * found
    assert len(tried) <= 16 and len(set(tried)) == len(tried)


def test_memory_that_is_known_saves_tries():
    """Memory is linear in the size, above what the update takes; some of it cannot be had. At the
    limit others of the same size differ by 2 %.
    """
    rng = random.Random(1)
    tries, failures, doublings = [], [], []
    for _ in range(300):
        limit, floor = rng.randrange(8, 2000), rng.choice((0.0, 0.3))

        def shares(size, limit=limit, floor=floor):
            return max(floor, (0.2 + 0.77 * size / limit) * rng.uniform(0.98, 1.02))

        found, tried = search(limit, shares)
        assert max(size for size in SIZES if size <= limit) <= 1.03 * found
        tries.append(len(tried))
        failures.append(sum(size > limit for size in tried))
        doublings.append(len(search(limit)[1]))
    assert max(tries) <= 14 and max(failures) <= 8
    assert statistics.mean(tries) <= 0.7 * statistics.mean(doublings)
    assert statistics.mean(failures) <= 2.5


def test_nothing_fits():
    assert largest_that_fits(lambda size: None, SIZES) is None
    with pytest.raises(UserError, match="not even one sequence.*optimizer=adamw8bit"):
        choose_micro_batch(lambda size: None, 1)


@pytest.mark.parametrize(
    "num_replicas, global_batch_size, expected",
    [(1, 1024, 64), (2, 1024, 64), (4, 96, 24), (1, 100, 50), (1, 6, 6)],
)
def test_the_micro_batch_divides_the_global_batch(num_replicas, global_batch_size, expected):
    shares = lambda size: 0.0 if size <= 70 else None  # noqa: E731
    assert choose_micro_batch(shares, num_replicas, global_batch_size) == expected


class Step:
    """A step on a GPU of 8 GB with 6 GB in use, or with room for 40 rows."""

    num_micro_batches = 2
    devices = types.SimpleNamespace(num_replicas=1, replica_bytes=8 << 30)

    def __init__(self, error=None):
        self.error = error

    def __call__(self, batches, learning_rates, first):
        if self.error is not None and len(batches[0]["x"]) > 80:
            raise self.error
        return types.SimpleNamespace(read=lambda: None)


@pytest.fixture
def used(monkeypatch):
    accounts = tf.config.experimental
    monkeypatch.setattr(accounts, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(accounts, "get_memory_info", lambda device: dict(peak=6 << 30))


ROWS = dict(x=np.zeros((3, 2)))


def test_out_of_memory_is_caught_and_told(used, monkeypatch):
    """Larger batches raise TensorFlow's error."""
    told = []
    step = Step(tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor"))
    monkeypatch.setattr(Step.devices, "replica_bytes", None)
    assert (
        largest_that_fits(lambda size: try_size(lambda: step, ROWS, told.append, size), SIZES) == 40
    )
    assert any("does not fit" in line for line in told)
    assert "  micro-batch 40: fits, 6.00 GB" in told


def test_a_trial_returns_the_share_of_the_memory(used, monkeypatch):
    assert try_size(Step, ROWS, print, 16) == 0.75
    monkeypatch.setattr(Step.devices, "replica_bytes", None)  # NVML does not tell
    assert try_size(Step, ROWS, print, 16) == 0.0


def test_other_errors_are_not_taken_for_full_memory(used):
    step = Step(tf.errors.InvalidArgumentError(None, None, "shapes"))
    with pytest.raises(tf.errors.InvalidArgumentError):
        try_size(lambda: step, ROWS, print, 48)


def test_a_global_batch_that_the_gpus_cannot_divide():
    with pytest.raises(UserError, match="a global batch of 64 .* among 3 GPUs; train on 2 of them"):
        choose_micro_batch(lambda size: 0.0, 3, 64)
