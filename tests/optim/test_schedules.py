"""Schedules against closed forms."""

import math

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import (
    learning_rate_factor,
    mean_batch_share,
    num_micro_batches_at,
    scale_learning_rate,
)


def factors(num_steps=100, **settings):
    return [
        learning_rate_factor(step, num_steps, ScheduleConfig(**settings))
        for step in range(num_steps + 1)
    ]


def by_the_clock(step=10**9, points=100, **settings):
    """Factors at 0, 1/points, ... 1 of the time; the number of steps must not matter."""
    config = ScheduleConfig(lr_schedule="time", total_training_time=24.0, **settings)
    return [
        learning_rate_factor(step, None, config, progress=point / points)
        for point in range(points + 1)
    ]


def test_linear_is_googles():
    """google-research/bert, optimization.py: the decayed learning rate, replaced by a line from 0
    during warm-up.
    """
    shares = factors(num_warmup_steps=10)
    assert shares[:11] == pytest.approx([step / 10 for step in range(10)] + [0.9])
    assert shares[10:] == pytest.approx([1 - step / 100 for step in range(10, 101)])


def test_cosine():
    assert factors(curve="cosine", warmup_proportion=0.0) == pytest.approx(
        [0.5 + 0.5 * math.cos(math.pi * s / 100) for s in range(101)]
    )


def test_constant():
    assert factors(curve="constant", warmup_proportion=0.2) == pytest.approx(
        [min(1, step / 20) for step in range(101)]
    )


def test_polynomial():
    assert factors(curve="polynomial", warmup_proportion=0.0) == pytest.approx(
        [(1 - step / 100) ** 2 for step in range(101)]
    )
    cubic = factors(curve="polynomial", polynomial_power=3.0, warmup_proportion=0.1)
    assert cubic == pytest.approx(
        [step / 10 for step in range(10)] + [(1 - step / 100) ** 3 for step in range(10, 101)]
    )
    assert factors(curve="polynomial", polynomial_power=1.0) == factors(curve="linear")


def test_one_cycle_is_a_line_up_and_a_line_down():
    for settings in (dict(warmup_proportion=0.2), dict(num_warmup_steps=20)):
        expected = [step / 20 for step in range(20)] + [
            (100 - step) / 80 for step in range(20, 101)
        ]
        assert factors(curve="one_cycle", **settings) == pytest.approx(expected)
    assert factors(curve="one_cycle", warmup_proportion=0.0) == pytest.approx(
        [1 - step / 100 for step in range(101)]
    )


def test_one_cycle_at_one_half_is_crammings():
    """get_one_cycle of JonasGeiping/cramming: step / half, then 2 - step / half."""
    expected = [step / 50 if step < 50 else 2 - step / 50 for step in range(101)]
    assert factors(curve="one_cycle", warmup_proportion=0.5) == pytest.approx(expected)


def test_triangle_is_crammings():
    """get_budget_triangle of JonasGeiping/cramming, falloff 0.25, base 0.25: the lower
    of two lines.
    """
    expected = [min(0.25 + step / 100 * 0.75 / 0.75, 4 - step / 25) for step in range(101)]
    assert factors(curve="triangle") == pytest.approx(expected)
    assert by_the_clock(curve="triangle") == pytest.approx(expected)
    assert factors(curve="triangle", warmup_proportion=0.5) == factors(curve="triangle")


def test_wsd_is_flat_between_warm_up_and_decay():
    """Hu et al. 2024: a line up, the peak, then the decay; Haegele et al. 2024: 1 - sqrt."""
    expected = [
        *(step / 10 for step in range(10)),
        *(1.0 for _ in range(10, 80)),
        *(1 - math.sqrt((step - 80) / 20) for step in range(80, 101)),
    ]
    for settings in (dict(warmup_proportion=0.1), dict(num_warmup_steps=10)):
        assert factors(curve="wsd", decay_proportion=0.2, **settings) == pytest.approx(expected)
    assert by_the_clock(curve="wsd", decay_proportion=0.2) == pytest.approx(expected)
    # warm-up in steps beside decay by the clock
    by_steps = by_the_clock(7, curve="wsd", decay_proportion=0.2, num_warmup_steps=7)
    assert by_steps == pytest.approx([1.0] * 80 + expected[80:])


def test_a_decay_too_short_to_be_a_share():
    assert factors(curve="wsd", decay_proportion=1e-17, num_warmup_steps=0)[-1] == 1.0


def test_wsd_without_a_stable_stage():
    whole = factors(curve="wsd", decay_proportion=1.0, warmup_proportion=0.0)
    assert whole == pytest.approx([1 - math.sqrt(step / 100) for step in range(101)])
    overlapping = factors(curve="wsd", decay_proportion=0.5, warmup_proportion=0.75)
    assert overlapping[74:76] == pytest.approx([74 / 75, 1 - math.sqrt(0.5)])


def test_the_stable_stage_of_wsd_does_not_depend_on_the_steps():
    """So a run can be given more steps before it decays."""
    short, long = (factors(n, curve="wsd", num_warmup_steps=10) for n in (100, 1000))
    assert short[:91] == long[:91] and long[91:901] == [1.0] * 810


@pytest.mark.parametrize(
    "curve", ["linear", "cosine", "polynomial", "one_cycle", "triangle", "wsd"]
)
def test_floor(curve):
    """The falling part is rescaled to lie between the floor and the peak; the rising part does not
    change.
    """
    plain, raised = factors(curve=curve), factors(curve=curve, min_lr_ratio=0.2)
    rising = 75 if curve == "triangle" else 10
    assert raised[:rising] == plain[:rising]
    assert raised[rising:] == pytest.approx([0.2 + 0.8 * factor for factor in plain[rising:]])
    assert raised[-1] == pytest.approx(0.2) and plain[-1] == pytest.approx(0.0)


@pytest.mark.parametrize(
    "curve", ["linear", "cosine", "polynomial", "constant", "one_cycle", "triangle", "wsd"]
)
def test_both_clocks_have_the_same_shapes(curve):
    assert by_the_clock(curve=curve, warmup_proportion=0.25) == pytest.approx(
        factors(curve=curve, warmup_proportion=0.25)
    )


@pytest.mark.parametrize("curve", ["linear", "cosine", "constant", "wsd"])
@pytest.mark.parametrize("progress", [1.0, 1.5])
def test_overtime_stays_at_the_end(curve, progress):
    config = ScheduleConfig(curve=curve, lr_schedule="time", total_training_time=1.0)
    assert learning_rate_factor(7, 10, config, progress) == (1.0 if curve == "constant" else 0.0)


def test_warmup_by_steps_counts_steps_under_the_clock_too():
    config = ScheduleConfig(num_warmup_steps=8, lr_schedule="time", total_training_time=1.0)
    assert [
        learning_rate_factor(step, None, config, progress=0.5) for step in (0, 2, 7, 8, 1000)
    ] == [
        0.0,
        0.25,
        0.875,
        0.5,
        0.5,
    ]


def test_the_curves_of_earlier_runs_are_the_same_bits():
    for num_steps in (7, 100, 12345):
        for step in range(0, num_steps, max(1, num_steps // 97)):
            num_warmup, share = int(num_steps * 0.1), min(1.0, step / num_steps)
            expected = dict(
                linear=1.0 - share, cosine=0.5 * (1.0 + math.cos(math.pi * share)), constant=1.0
            )
            for curve, factor in expected.items():
                assert learning_rate_factor(step, num_steps, ScheduleConfig(curve=curve)) == (
                    step / num_warmup if step < num_warmup else factor
                )


def test_batch_ramp():
    config = ScheduleConfig(batch_ramp_proportion=0.6)
    assert [
        num_micro_batches_at(at, 4, config)
        for at in (0.0, 0.1499, 0.1501, 0.3001, 0.4501, 0.6, 1.0, 2.0)
    ] == [1, 1, 2, 3, 4, 4, 4, 4]
    counts = [num_micro_batches_at(point / 1000, 64, config) for point in range(1001)]
    assert (
        counts[0] == 1
        and counts[600] == 64
        and set(range(1, 65)) == set(counts)
        and counts == sorted(counts)
    )
    assert all(abs(count - 64 * point / 600) <= 1 for point, count in enumerate(counts[:600]))
    assert {num_micro_batches_at(point / 10, 64, ScheduleConfig()) for point in range(11)} == {64}
    assert {num_micro_batches_at(point / 10, 1, config) for point in range(11)} == {1}


def test_warmup_steps_win_over_proportion():
    assert factors(num_warmup_steps=0, warmup_proportion=0.5)[0] == 1.0
    assert factors(warmup_proportion=0.5)[25] == 0.5


def test_scaling():
    assert scale_learning_rate(1e-4, 4, "linear") == pytest.approx(4e-4)
    assert scale_learning_rate(1e-4, 4, "sqrt") == pytest.approx(2e-4)
    assert scale_learning_rate(1e-4, 4, "none") == 1e-4


@pytest.mark.parametrize(
    "settings",
    [
        dict(curve="square"),
        dict(warmup_proportion=1.0),
        dict(num_warmup_steps=-1),
        dict(polynomial_power=0.0),
        dict(min_lr_ratio=1.5),
        dict(total_training_time=0.0),
        dict(batch_ramp_proportion=1.1),
        dict(decay_proportion=0.0),
        dict(decay_proportion=1.1),
        dict(lr_schedule="epoch"),
        dict(lr_schedule="time"),
        dict(min_lr_ratio=0.1, curve="constant"),
        dict(num_warmup_steps=5, curve="triangle"),
        dict(num_warmup_steps=5, curve="one_cycle", lr_schedule="time", total_training_time=1.0),
    ],
)
def test_bad_settings(settings):
    with pytest.raises(UserError, match=f"^--{next(iter(settings))}=") as caught:
        ScheduleConfig(**settings)
    assert len(str(caught.value)) <= 300


def test_the_mean_batch_of_a_ramp():
    """A ramp over the whole run from 1 to 4 micro-batches has 2.5 on average; a ramp over half of
    the run misses half as many.
    """
    assert mean_batch_share(4, ScheduleConfig(batch_ramp_proportion=1.0)) == pytest.approx(2.5 / 4)
    assert mean_batch_share(4, ScheduleConfig(batch_ramp_proportion=0.5)) == pytest.approx(
        (2.5 / 4 + 1) / 2
    )
    assert mean_batch_share(4, ScheduleConfig()) == 1.0
