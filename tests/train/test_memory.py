"""The search finds the largest micro-batch under any limit, and out of memory is caught."""

import pytest
import tensorflow as tf

from bert_gpu.settings import UserError
from bert_gpu.train.config import MemoryConfig
from bert_gpu.train.memory import Trial, choose_micro_batch, largest_that_fits

SIZES = [1, 2, 4, *range(8, 4000, 8)]


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 9, 23, 64, 100, 777, 3992, 9000])
def test_the_largest_that_fits_is_found(limit):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= limit

    assert largest_that_fits(fits, SIZES) == max(size for size in SIZES if size <= limit)
    assert len(tried) <= 20 and len(set(tried)) == len(tried)


def test_nothing_fits():
    assert largest_that_fits(lambda size: False, SIZES) is None
    with pytest.raises(UserError, match="not even one sequence.*muon_rest=adamw8bit"):
        choose_micro_batch(lambda size: False, 1)


@pytest.mark.parametrize(
    "num_replicas, global_batch_size, expected",
    [(1, 1024, 64), (2, 1024, 64), (4, 96, 24), (1, 100, 50), (1, 6, 6)],
)
def test_the_micro_batch_divides_the_global_batch(num_replicas, global_batch_size, expected):
    assert choose_micro_batch(lambda size: size <= 70, num_replicas, global_batch_size) == expected


def test_out_of_memory_is_caught_and_told():
    """A device with room for 40 rows: larger batches raise TensorFlow's error."""
    told = []

    def make_step(size):
        def step():
            if size > 40:
                raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")

        return step

    assert largest_that_fits(Trial(make_step, say=told.append), SIZES) == 40
    assert any("does not fit" in line for line in told) and "  micro-batch 40: fits" in told


def test_other_errors_are_not_taken_for_full_memory():
    def step():
        raise tf.errors.InvalidArgumentError(None, None, "shapes")

    with pytest.raises(tf.errors.InvalidArgumentError):
        Trial(lambda size: step)(8)


def test_recompute_flags():
    assert MemoryConfig().layers_recomputed == 0
    assert MemoryConfig(recompute=True).layers_recomputed == 1
    assert MemoryConfig(recompute_every=3).layers_recomputed == 3
