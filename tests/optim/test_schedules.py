"""Schedules against closed forms."""

import math

import pytest

from bert_gpu.optim.schedules import ScheduleConfig, rate_factor, scale_rate
from bert_gpu.settings import UserError


def factors(num_steps=100, **settings):
    return [rate_factor(step, num_steps, ScheduleConfig(**settings)) for step in range(num_steps + 1)]


def test_linear_is_googles():
    """google-research/bert, optimization.py: the decayed rate, replaced by a line from 0 during warm-up."""
    rates = factors(num_warmup_steps=10)
    assert rates[:11] == pytest.approx([step / 10 for step in range(10)] + [0.9])
    assert rates[10:] == pytest.approx([1 - step / 100 for step in range(10, 101)])


def test_cosine():
    assert factors(curve="cosine", warmup_proportion=0.0) == pytest.approx([0.5 + 0.5 * math.cos(math.pi * s / 100) for s in range(101)])


def test_constant():
    assert factors(curve="constant", warmup_proportion=0.2) == pytest.approx([min(1, step / 20) for step in range(101)])


def test_warmup_steps_win_over_proportion():
    assert factors(num_warmup_steps=0, warmup_proportion=0.5)[0] == 1.0
    assert factors(warmup_proportion=0.5)[25] == 0.5


def test_scaling():
    assert scale_rate(1e-4, 128, 32, "linear") == pytest.approx(4e-4)
    assert scale_rate(1e-4, 128, 32, "sqrt") == pytest.approx(2e-4)
    assert scale_rate(1e-4, 128, 32, "none") == 1e-4


@pytest.mark.parametrize("settings", [dict(curve="square"), dict(warmup_proportion=1.0), dict(num_warmup_steps=-1)])
def test_bad_settings(settings):
    with pytest.raises(UserError, match=f"--{next(iter(settings))}="):
        ScheduleConfig(**settings)
