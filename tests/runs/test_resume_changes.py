"""What a resume says that it changes: the rates of the real schedules, and nothing where nothing
changes.
"""

import dataclasses
import re

import pytest

from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.resume_changes import describe_changes
from bert_gpu.train.plan import BatchPlan

PEAK = 1e-3


def plan(micro_batch=8, accumulation=1, replicas=1, is_ramped=False):
    return BatchPlan(micro_batch, accumulation, replicas, PEAK, "linear", is_ramped)


def with_steps(plan, num_steps, schedule):
    return dataclasses.replace(plan, num_steps=num_steps, schedule=schedule)


def stored(old, kind="CPU", num_steps=100, lr_schedule="step", hours=None):
    """A run.json of a run with the BatchPlan `old`."""
    return dict(
        global_batch_size=old.global_batch_size,
        micro_batch_size=old.micro_batch_size,
        num_replicas=old.num_replicas,
        device_kind=kind,
        num_steps=num_steps,
        free=dict(lr_schedule=lr_schedule, total_training_time=hours),
    )


def changes(schedule, step, num_steps, old=100, **of_plan):
    resumed = plan(**of_plan)
    content = stored(resumed, num_steps=old)
    resumed = with_steps(resumed, num_steps, schedule)
    return describe_changes(content, resumed, "CPU", Progress(step=step))


@pytest.mark.parametrize("curve", ["linear", "cosine", "polynomial", "one_cycle", "triangle"])
@pytest.mark.parametrize("step", [50, 100])
def test_more_steps_say_the_jump_of_the_rate(curve, step):
    schedule = ScheduleConfig(curve=curve)
    (line,) = changes(schedule, step, 200)
    start = f"200 steps instead of 100 steps: the learning rate of step {step + 1} goes from "
    rates = re.fullmatch(r"(\S+) \(old plan\) to (\S+) \(new plan\)", line.removeprefix(start))
    for said, steps in zip(rates.groups(), (100, 200), strict=True):
        expected = PEAK * learning_rate_factor(step, steps, schedule)
        assert float(said) == pytest.approx(expected, rel=1e-3)
    assert (float(rates[1]) == 0) == (step == 100)


@pytest.mark.parametrize(
    "curve, step, says",
    [
        ("constant", 50, False),
        ("constant", 100, False),
        ("constant", 5, True),  # the share of warm-up is of more steps
        ("wsd", 50, False),
        ("wsd", 90, False),
        ("wsd", 95, True),  # it had begun to fall
    ],
)
def test_curves_without_an_end_in_sight_say_nothing(curve, step, says):
    assert len(changes(ScheduleConfig(curve=curve), step, 200)) == says
    assert changes(ScheduleConfig(curve=curve, num_warmup_steps=10), 5, 200) == []


def test_the_same_plan_says_nothing():
    assert changes(ScheduleConfig(), 50, 100) == []


def test_more_time_counts_where_the_clock_has_the_rate():
    def lines(lr_schedule, step, old, new):
        schedule = ScheduleConfig(lr_schedule=lr_schedule, total_training_time=new)
        resumed = plan()
        content = stored(resumed, lr_schedule=old, hours=1.0, num_steps=100)
        progress = Progress(step=step, seconds=1800.0)
        return describe_changes(content, with_steps(resumed, 100, schedule), "CPU", progress)

    assert lines("time", 50, "time", 2.0) == [
        "2 hours instead of 1 hour: the learning rate of step 51 goes from 0.0005 (old plan) to "
        "0.00075 (new plan)"
    ]
    assert lines("step", 50, "step", 2.0) == []  # it only ends the run later
    assert lines("time", 25, "step", 1.0) == [
        "1 hour instead of 100 steps: the learning rate of step 26 goes from 0.00075 (old plan) "
        "to 0.0005 (new plan)"
    ]


@pytest.mark.parametrize(
    "old, new, kinds, change",
    [
        (
            *((8, 1, 1), (4, 2, 1), ("CPU", "CPU")),
            "micro-batch 8 x accumulation 1 on the CPU -> "
            "micro-batch 4 x accumulation 2 on the CPU: ",
        ),
        (
            *((8, 2, 2), (8, 1, 4), ("GPU", "GPU")),
            "micro-batch 8 x accumulation 2 on 2 GPUs -> "
            "micro-batch 8 x accumulation 1 on 4 GPUs: ",
        ),
        (
            *((8, 1, 1), (8, 1, 1), ("GPU", "CPU")),
            "micro-batch 8 x accumulation 1 on 1 GPU -> "
            "micro-batch 8 x accumulation 1 on the CPU: ",
        ),
        (
            *((8, 1, 1), (2, 2, 2), ("CPU", "CPU")),
            "micro-batch 8 x accumulation 1 on the CPU -> "
            "micro-batch 2 x accumulation 2 on 2 replicas on the CPU: ",
        ),
        ((8, 1, 1), (8, 1, 1), ("GPU", "GPU"), None),
    ],
)
def test_another_division_of_the_batch_is_said(old, new, kinds, change):
    content, progress = stored(plan(*old), kinds[0]), Progress(step=50)
    resumed = with_steps(plan(*new), 100, ScheduleConfig())
    lines = describe_changes(content, resumed, kinds[1], progress)
    stays = f"global batch ({resumed.global_batch_size} sequences), order of the records and"
    assert len(lines) == (change is not None)
    for line in lines:
        assert line.startswith(change + stays) and "not bit-identical" in line
