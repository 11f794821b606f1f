"""Laws of the global batch and its learning rate."""

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.train.config import BatchConfig
from bert_gpu.train.plan import plan_batch


def plan(num_replicas=1, resumed=None, **settings):
    return plan_batch(BatchConfig(**settings), 1e-4, num_replicas, resumed)


def test_batch_is_per_gpu_and_the_learning_rate_follows_the_number_of_gpus():
    made = plan(4, train_batch_size=32)
    assert made.global_batch_size == 128
    assert made.learning_rate == pytest.approx(4e-4)


def test_accumulation_alone_does_not_scale_the_learning_rate():
    made = plan(1, train_batch_size=32, gradient_accumulation_steps=8)
    assert made.global_batch_size == 256
    assert made.learning_rate == pytest.approx(1e-4)


def test_global_batch_derives_accumulation():
    assert plan(2, train_batch_size=8, global_batch_size=64).num_micro_batches == 4


def test_the_learning_rate_grows_with_the_root_of_the_gpus_or_not_at_all():
    root = plan(4, train_batch_size=64, lr_scaling="sqrt").learning_rate
    assert root == pytest.approx(2e-4)
    assert plan(4, train_batch_size=64, lr_scaling="none").learning_rate == 1e-4


def test_a_resume_keeps_global_batch_and_learning_rate():
    made = plan(4, resumed=dict(global_batch_size=64, learning_rate=3e-4), train_batch_size=8)
    assert (made.num_micro_batches, made.global_batch_size, made.learning_rate) == (2, 64, 3e-4)


@pytest.mark.parametrize(
    "settings, complaint",
    [
        (
            dict(train_batch_size=32, global_batch_size=100),
            "--global_batch_size=100 is not a multiple of 64.*nearest possible is 128",
        ),
        (dict(train_batch_size=32, global_batch_size=16), "nearest possible is 64"),
        (dict(global_batch_size=64, gradient_accumulation_steps=2), "give one of them"),
        (dict(train_batch_size=0), "--train_batch_size=0: must be at least 1"),
    ],
)
def test_bad_batches(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        plan(2, **settings)


def test_resume_that_does_not_divide():
    with pytest.raises(
        UserError, match="global batch of 48 is not a multiple of 64.*change --train_batch_size"
    ):
        plan(2, resumed=dict(global_batch_size=48, learning_rate=1e-4), train_batch_size=32)
    with pytest.raises(
        UserError, match="not a multiple of 192.*a number of GPUs that divides it, such as 2"
    ):
        plan(3, resumed=dict(global_batch_size=64, learning_rate=1e-4), train_batch_size=64)
    derived = plan(
        1,
        resumed=dict(global_batch_size=64, learning_rate=1e-4),
        train_batch_size=32,
        gradient_accumulation_steps=4,
    )
    assert derived.num_micro_batches == 2


def test_it_says_how_the_batch_is_divided():
    text = plan(4, train_batch_size=32, gradient_accumulation_steps=2).describe("GPU")
    for part in (
        "micro-batch 32",
        "accumulation 2",
        "4 GPUs",
        "global batch 256",
    ):
        assert part in text
