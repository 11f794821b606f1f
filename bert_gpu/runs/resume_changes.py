"""Describes what changes when a run is resumed: the learning rate and the batch, because the run
has another length, and the division of the global batch over GPUs and micro-batches.

`old` is the content of run.json, with the old plan. `plan` is the new plan.BatchPlan.
"""

import math
from collections.abc import Mapping
from typing import Any

from bert_gpu.optim.schedules import learning_rate_factor, num_micro_batches_at
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
    change = f"{names[1]} instead of {names[0]}"
    step = progress.step + 1
    lines = []
    rates = [
        plan.learning_rate
        * learning_rate_factor(progress.step, steps, schedule, share if clock == "time" else None)
        for (clock, steps, _), share in zip(clocks, shares, strict=True)
    ]
    if not math.isclose(*rates, rel_tol=1e-6):
        lines.append(
            f"{change}: the learning rate of step {step} goes from {rates[0]:.4g} (old plan) to "
            f"{rates[1]:.4g} (new plan)"
        )
    counts = [num_micro_batches_at(share, plan.num_micro_batches, schedule) for share in shares]
    if plan.is_ramped and counts[0] != counts[1]:
        sizes = [count * plan.micro_batch_size * plan.num_replicas for count in counts]
        lines.append(
            f"{change}: the batch of step {step} goes from {sizes[0]} sequences (old plan) to "
            f"{sizes[1]} (new plan)"
        )
    return lines


def describe_length(clock: str, num_steps: int | None, hours: float | None) -> str:
    """Return the length that a schedule is stretched over as text, such as "1,000 steps" or "2.5
    hours".
    """
    number, unit = (f"{hours:g}", "hour") if clock == "time" else (f"{num_steps:,}", "step")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def division_changes(old: Mapping[str, Any], plan: Any, kind: str) -> list[str]:
    micro_batch, num_replicas = old["micro_batch_size"], old["num_replicas"]
    accumulation = old["global_batch_size"] // (micro_batch * num_replicas)
    changed = []
    if micro_batch != plan.micro_batch_size:
        changed.append(f"micro-batch {micro_batch} -> {plan.micro_batch_size}")
    devices = [replicas(num_replicas, old["device_kind"]), replicas(plan.num_replicas, kind)]
    if devices[0] != devices[1]:
        changed.append(" -> ".join(devices))
    if changed and accumulation != plan.num_micro_batches:
        changed[0] += f", accumulation {accumulation} -> {plan.num_micro_batches}"
    return [
        f"{change}: global batch ({plan.global_batch_size} sequences), order of the records and "
        f"learning rate stay the same; {CLOSE}"
        for change in changed
    ]


def replicas(num_replicas: int, kind: str) -> str:
    """Return a number of replicas as text, such as "2 GPUs" or "the CPU"."""
    if kind == "GPU":
        return f"{num_replicas} GPU{'s' if num_replicas > 1 else ''}"
    return "the CPU" if num_replicas == 1 else f"{num_replicas} replicas on the CPU"
