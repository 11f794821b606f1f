"""Describes a run before its first step: rows (label, text) for the console.

Nothing is guessed: the time that the run takes is said where an earlier session has measured it,
and otherwise with the first log line.
"""

import math
import os

import tensorflow as tf

from bert_gpu.base.console import format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.devices.nvml import gpu_bytes, machine_bytes
from bert_gpu.runs import metrics
from bert_gpu.train.memory_check import format_size

# Beyond what pretrainings on little text take (40 by default).
MANY_PASSES = 1000
FEW_STEPS = 100  # of a recipe's own length
LENGTHS = ("num_train_steps", "num_train_epochs")


def rows(run, data, plan, devices, summary_rows, min_device_bytes):
    """The rows of a run.Run, without those of which nothing is known.

    data: TrainingData. plan: BatchPlan. devices: Devices. summary_rows, min_device_bytes: as for
    `run.print_summary`.
    """
    settings = run.settings
    tokens = plan.global_batch_size * data.rows_per_example * data.max_seq_length
    at_most = "up to " if plan.is_ramped or data.length_axes else ""
    found = [
        *device_rows(devices, settings.devices.gpu_memory_limit),
        *summary_rows,
        ("batch", plan.describe(devices.unit, data.rows_per_example)),
        ("tokens", f"{at_most}{tokens:,} a step, padding included"),
        ("learning rate", describe_rate(settings, plan)),
        ("length", describe_length(plan, data)),
        ("time", describe_time(plan, run.folder, run.run_json)),
        ("memory", describe_memory(min_device_bytes, devices)),
        ("first step", describe_first_step(devices)),
    ]
    return [(label, text) for label, text in found if text]


def device_rows(devices, memory_limit=None):
    """Rows on devices.Devices. memory_limit: megabytes of a GPU that may be used, or None."""
    if devices.kind == "GPU":
        memory = gpu_bytes(devices.nvml, memory_limit)
        more = "" if memory is None else f", {format_size(memory)} each"
    else:
        more = f"; {os.cpu_count()} cores, {format_size(machine_bytes())}"
    compiled = "on" if devices.xla else "off"
    return [
        ("devices", devices.summary + more),
        ("precision", f"{devices.precision}; XLA {compiled}"),
    ]


def describe_rate(settings, plan):
    schedule, config = settings.schedule, settings.optimizer
    factor = plan.learning_rate / config.learning_rate if config.learning_rate else 1.0
    scaled = ""
    if not math.isclose(factor, 1.0):
        scaled = f" = {config.learning_rate:g} x {factor:.4g} (--lr_scaling={plan.scaling})"
    clock = "by the clock" if schedule.lr_schedule == "time" else "by steps"
    return f"peak {plan.learning_rate:g}{scaled}; {schedule.curve}, {clock}; {config.optimizer}"


def describe_length(plan, data):
    if plan.num_steps is None:
        return "as many steps as the time allows"
    epochs = plan.num_steps * plan.records_of_step / data.num_records
    factor = data.dupe_factor or 1
    passes = f" = {thousands(epochs * factor)} passes over the text (--dupe_factor={factor})"
    return f"{counted_steps(plan.num_steps)} = {thousands(epochs)} epochs" + passes * (factor > 1)


def counted_steps(number):
    return f"{number:,} step{'' if number == 1 else 's'}"


def thousands(number):
    """A number with a digit after the point, and without one from 100 on."""
    return f"{number:,.1f}" if number < 99.95 else f"{number:,.0f}"


def length_problem(plan, data, settings):
    """A warning of a pretraining that is far too long for its text, or of one whose recipe leaves
    it hardly any steps; None of others. Arguments as for `rows`.
    """
    num_steps = plan.num_steps
    if num_steps is None or data.dupe_factor is None:
        return None
    passes = num_steps * plan.records_of_step / data.num_records * data.dupe_factor
    if passes > MANY_PASSES and settings.schedule.total_training_time is None:
        return (
            f"{counted_steps(num_steps)} are {thousands(passes)} passes over the text, which "
            "overfits; give fewer steps (--num_train_steps) or more text"
        )
    own = set(LENGTHS) - {name for name, value in settings.values().items() if value is None}
    if settings.recipe and own <= set(settings.flexible) and num_steps < FEW_STEPS:
        return (
            f"--recipe={settings.recipe}: {counted_steps(num_steps)} of {plan.global_batch_size:,} "
            "sequences, all that its length gives on this data, are too few to learn from; give "
            "more text, --num_train_steps, or a smaller --global_batch_size"
        )
    return None


def describe_time(plan, folder, stored):
    """How long it may take, and how long it will where the run has been measured before."""
    hours, limit = plan.schedule.total_training_time, ""
    if hours is not None:
        limit = f"at most {hours:g} hours" if hours >= 1 else f"at most {60 * hours:g} min"
        limit += " (--total_training_time)"
    if plan.num_steps is None:
        return limit
    pace = stored and last_pace(folder)
    if not pace:
        known = "measured from the first step on; see the log lines"
    else:
        step, steps_per_second = pace
        left = format_seconds(max(0, plan.num_steps - step) / steps_per_second)
        known = f"{left} left at the {steps_per_second:.3g} steps/s of step {step}"
    return f"{limit}; {known}" if limit else known


def last_pace(folder):
    """(step, steps per second) of the last line of metrics.jsonl that says it, or None."""
    try:
        lines = metrics.read_lines(folder.metrics)
    except UserError:  # told when the run is resumed
        return None
    for values, _ in reversed(lines):
        if speed := values.get("steps_per_second"):
            return values["step"], speed
    return None


def describe_memory(min_device_bytes, devices):
    if min_device_bytes is None:
        return ""
    where = "on each GPU" if devices.kind == "GPU" else "in all"
    size = format_size(min_device_bytes)
    return f"at least {size} {where}: weights, gradients, optimizer, activations"


def describe_first_step(devices):
    compiled = "XLA compiles it, which takes seconds to minutes"
    traced = "TensorFlow traces it, which takes a few seconds"
    return f"{compiled if devices.xla else traced}; the time is logged afterwards"


def peak_memory(devices):
    """The most memory that TensorFlow has used on one of the GPUs so far, as text; "" on CPUs."""
    if devices.kind != "GPU":
        return ""
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    try:
        peaks = [
            tf.config.experimental.get_memory_info(name.partition("device:")[2])["peak"]
            for name in names
        ]
    except (ValueError, KeyError, tf.errors.OpError):  # an allocator that keeps no account
        return ""
    total = gpu_bytes(devices.nvml, None)
    has = f", which has {format_size(total)}" if total else ""
    return f"{format_size(max(peaks))} of a GPU's memory in use{has}"
