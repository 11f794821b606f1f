"""Describes what a resumed run does differently from before: the learning rate and the batch that a
new length brings, another division of the global batch over GPUs and micro-batches.

`stored` is the content of run.json, whose plan is the old one; what an older version has not
written there is not compared.
"""

import math

from bert_gpu.optim.schedules import learning_rate_factor, num_micro_batches_at
from bert_gpu.runs.pace import RunLength

CLOSE = (
    "dropout draws other masks and sums are rounded in another order, so that results are close "
    "to, but not bit-identical with, those before"
)


def describe_changes(stored, plan, kind, progress):
    """A line of text for each change.

    Args:
      stored: dict. plan: batching.BatchPlan, the new one. kind: "GPU" or "CPU". progress:
        progress.Progress, where the run goes on.
    """
    return [
        *schedule_changes(stored, plan, progress),
        *division_changes(stored, plan, kind),
    ]


def schedule_changes(stored, plan, progress):
    free, schedule = stored.get("free", {}), plan.schedule
    clocks = (
        (free.get("lr_schedule", "step"), stored.get("num_steps"), free.get("total_training_time")),
        (schedule.lr_schedule, plan.num_steps, schedule.total_training_time),
    )
    lengths = [RunLength.of_schedule(*clock) for clock in clocks]
    if any(length.is_unknown for length in lengths) or clocks[0] == clocks[1]:
        return []
    shares = [length.share(progress.step, progress.seconds) for length in lengths]
    named = [describe_length(*clock) for clock in clocks]
    if named[0] == named[1]:  # a budget that only cuts the run off
        return []
    what, step = f"{named[1]} instead of {named[0]}", progress.step + 1
    lines = []
    rates = [
        plan.learning_rate
        * learning_rate_factor(progress.step, steps, schedule, share if clock == "time" else None)
        for (clock, steps, _), share in zip(clocks, shares, strict=True)
    ]
    if not math.isclose(*rates, rel_tol=1e-6):
        lines.append(
            f"{what}: the learning rate of step {step} goes from {rates[0]:.4g} (old plan) to "
            f"{rates[1]:.4g} (new plan)"
        )
    counts = [num_micro_batches_at(share, plan.num_micro_batches, schedule) for share in shares]
    if plan.is_ramped and counts[0] != counts[1]:
        sizes = [count * plan.micro_batch_size * plan.num_replicas for count in counts]
        lines.append(
            f"{what}: the batch of step {step} goes from {sizes[0]} sequences (old plan) to "
            f"{sizes[1]} (new plan)"
        )
    return lines


def describe_length(clock, num_steps, hours):
    """The length that a schedule is stretched over, in words."""
    number, unit = (f"{hours:g}", "hour") if clock == "time" else (f"{num_steps:,}", "step")
    return f"{number} {unit}{'' if number == '1' else 's'}"


def division_changes(stored, plan, kind):
    micro_batch = stored.get("micro_batch_size")
    num_replicas, old_kind = stored.get("num_replicas"), stored.get("device_kind")
    if None in (micro_batch, num_replicas, old_kind):
        return []
    accumulation = stored["global_batch_size"] // (micro_batch * num_replicas)
    changed = []
    if micro_batch != plan.micro_batch_size:
        changed.append(f"micro-batch {micro_batch} -> {plan.micro_batch_size}")
    devices = [replicas(num_replicas, old_kind), replicas(plan.num_replicas, kind)]
    if devices[0] != devices[1]:
        changed.append(" -> ".join(devices))
    if changed and accumulation != plan.num_micro_batches:
        changed[0] += f", accumulation {accumulation} -> {plan.num_micro_batches}"
    return [
        f"{change}: global batch ({plan.global_batch_size} sequences), order of the records and "
        f"learning rate stay the same; {CLOSE}"
        for change in changed
    ]


def replicas(num_replicas, kind):
    """A number of replicas, in words."""
    if kind == "GPU":
        return f"{num_replicas} GPU{'s' if num_replicas > 1 else ''}"
    return "the CPU" if num_replicas == 1 else f"{num_replicas} replicas on the CPU"
