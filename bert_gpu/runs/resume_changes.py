"""Describes what changes when a run is resumed: the learning rate, because the run has another
length, and the division of the global batch over GPUs and micro-batches.

`old` is the content of run.json, with the old plan. `plan` is the new plan.BatchPlan.
"""

import math
from collections.abc import Mapping
from typing import Any

from bert_gpu.optim.schedules import learning_rate_factor
from bert_gpu.runs.pace import RunLength
from bert_gpu.runs.progress import Progress

CLOSE = (
    "dropout draws other masks and sums are rounded in another order, so that results are close "
    "to, but not bit-identical with, those before"
)


def describe_changes(
    old: Mapping[str, object], plan: object, kind: str, progress: Progress
) -> list[str]:
    """Return a line of text for each change. kind: "GPU" or "CPU", the devices of the resumed run.
    progress: the state that the run resumes from.
    """
    return [
        *schedule_changes(old, plan, progress),
        *division_changes(old, plan, kind),
    ]


def schedule_changes(old: Mapping[str, Any], plan: Any, progress: Progress) -> list[str]:
    free = old["free"]
    schedule = plan.schedule
    clocks = (
        (free.get("lr_schedule"), old["num_steps"], free.get("total_training_time")),
        (schedule.lr_schedule, plan.num_steps, schedule.total_training_time),
    )
    lengths = [RunLength.of_schedule(*clock) for clock in clocks]
    if any(length.is_unknown for length in lengths) or clocks[0] == clocks[1]:
        return []
    shares = [length.share(progress.step, progress.seconds) for length in lengths]
    names = [describe_length(*clock) for clock in clocks]
    if names[0] == names[1]:  # the schedule is the same; only a time budget has changed
        return []
    rates = [
        plan.learning_rate
        * learning_rate_factor(progress.step, steps, schedule, share if clock == "time" else None)
        for (clock, steps, _), share in zip(clocks, shares, strict=True)
    ]
    if math.isclose(*rates, rel_tol=1e-6):
        return []
    return [
        f"{names[1]} instead of {names[0]}: the learning rate of step {progress.step + 1} goes "
        f"from {rates[0]:.4g} (old plan) to {rates[1]:.4g} (new plan)"
    ]


def describe_length(clock: str, num_steps: int | None, hours: float | None) -> str:
    """Return the length that a schedule is stretched over as text, such as "1,000 steps" or "2.5
    hours".
    """
    number, unit = (f"{hours:g}", "hour") if clock == "time" else (f"{num_steps:,}", "step")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def division_changes(old: Mapping[str, Any], plan: Any, kind: str) -> list[str]:
    micro_batch, num_replicas = old["micro_batch_size"], old["num_replicas"]
    accumulation = old["global_batch_size"] // (micro_batch * num_replicas)
    before = (micro_batch, accumulation, replicas(num_replicas, old["device_kind"]))
    after = (plan.micro_batch_size, plan.num_micro_batches, replicas(plan.num_replicas, kind))
    if before == after:
        return []
    change = " -> ".join(
        "micro-batch {} x accumulation {} on {}".format(*x) for x in (before, after)
    )
    return [
        f"{change}: global batch ({plan.global_batch_size} sequences), order of the records and "
        f"learning rate stay the same; {CLOSE}"
    ]


def replicas(num_replicas: int, kind: str) -> str:
    """Return a number of replicas as text, such as "2 GPUs" or "the CPU"."""
    if kind == "GPU":
        return f"{num_replicas} GPU{'s' if num_replicas > 1 else ''}"
    return "the CPU" if num_replicas == 1 else f"{num_replicas} replicas on the CPU"
