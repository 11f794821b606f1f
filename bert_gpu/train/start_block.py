"""Describes a run before its first step: rows (label, text) for the console.

The time that the run takes is not guessed: it is printed with the first log line.
"""

import math
import os
from collections.abc import Iterable

import tensorflow as tf

from bert_gpu.base.console import format_bytes
from bert_gpu.devices.devices import Devices
from bert_gpu.devices.nvml import gpu_bytes, machine_bytes
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.config import RunSettings
from bert_gpu.train.plan import BatchPlan

# passes over the text; even pretrainings on little text make fewer (40 by default)
MANY_PASSES = 1000
FEW_STEPS = 100  # a run with fewer, when a recipe sets its length, brings a warning
LENGTHS = ("num_train_steps", "num_train_epochs")
# {whether XLA compiles the step: what happens in the first one}
FIRST_STEP = {
    True: "XLA compiles it, which takes seconds to minutes",
    False: "TensorFlow traces it, which takes a few seconds",
}


def rows(
    settings: RunSettings,
    data: TrainingData,
    plan: BatchPlan,
    devices: Devices,
    summary_rows: Iterable[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Return the rows (label, text) that describe a run, without the rows whose text is empty.
    summary_rows: further rows, on the model and the data.
    """
    tokens = plan.global_batch_size * data.rows_per_example * data.max_seq_length
    at_most = "up to " if plan.is_ramped or data.length_axes else ""
    candidates = [
        *device_rows(devices, settings.devices.gpu_memory_limit),
        *summary_rows,
        ("batch", plan.describe(devices.unit, data.rows_per_example)),
        ("tokens", f"{at_most}{tokens:,} a step, padding included"),
        ("learning rate", describe_rate(settings, plan)),
        ("length", describe_length(plan, data)),
        ("time", describe_time(plan.schedule.total_training_time)),
        ("first step", f"{FIRST_STEP[devices.xla]}; the time is logged afterwards"),
    ]
    return [(label, text) for label, text in candidates if text]


def device_rows(devices: Devices, memory_limit: int | None = None) -> list[tuple[str, str]]:
    """Return the rows (label, text) on the devices and the precision. memory_limit: megabytes of
    each GPU that may be used; None = all.
    """
    if devices.kind == "GPU":
        memory = gpu_bytes(devices.nvml, memory_limit)
        more = "" if memory is None else f", {format_bytes(memory)} each"
    else:
        more = f"; {os.cpu_count()} cores, {format_bytes(machine_bytes())}"
    return [
        ("devices", devices.summary + more),
        ("precision", f"{devices.precision}; XLA {'on' if devices.xla else 'off'}"),
    ]


def describe_rate(settings: RunSettings, plan: BatchPlan) -> str:
    schedule = settings.schedule
    config = settings.optimizer
    factor = plan.learning_rate / config.learning_rate if config.learning_rate else 1.0
    scaled = ""
    if not math.isclose(factor, 1.0):
        scaled = f" = {config.learning_rate:g} x {factor:.4g} (--lr_scaling={plan.scaling})"
    clock = "by the clock" if schedule.lr_schedule == "time" else "by steps"
    return f"peak {plan.learning_rate:g}{scaled}; {schedule.curve}, {clock}; {config.optimizer}"


def describe_length(plan: BatchPlan, data: TrainingData) -> str:
    if plan.num_steps is None:
        return "as many steps as the time allows"
    epochs = plan.num_steps * plan.records_of_step / data.num_records
    factor = data.dupe_factor or 1
    passes = f" = {thousands(epochs * factor)} passes over the text (--dupe_factor={factor})"
    has_passes = factor > 1 and data.mixture is None  # a mixture has passes of each data set
    return f"{counted_steps(plan.num_steps)} = {thousands(epochs)} epochs" + passes * has_passes


def counted_steps(number: int) -> str:
    return f"{number:,} step{'' if number == 1 else 's'}"


def thousands(number: float) -> str:
    """Return a number as text with commas between thousands, and with one decimal if it is below
    100.
    """
    return f"{number:,.1f}" if number < 99.95 else f"{number:,.0f}"


def length_problem(plan: BatchPlan, data: TrainingData, settings: RunSettings) -> str | None:
    """Return a warning about a pretraining that is far too long for its text, or whose recipe gives
    it hardly any steps on this data; None when neither is the case.
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
    lengths = set(LENGTHS) - {name for name, value in settings.values().items() if value is None}
    if settings.recipe and lengths <= set(settings.flexible) and num_steps < FEW_STEPS:
        return (
            f"--recipe={settings.recipe}: {counted_steps(num_steps)} of {plan.global_batch_size:,} "
            "sequences, all that its length gives on this data, are too few to learn from; give "
            "more text, --num_train_steps, or a smaller --global_batch_size"
        )
    return None


def describe_time(hours: float | None) -> str:
    """Return the time limit of a run, --total_training_time, in words; "" without a limit."""
    if hours is None:
        return ""
    limit = f"{hours:g} hours" if hours >= 1 else f"{60 * hours:g} min"
    return f"at most {limit} (--total_training_time)"


def peak_memory(devices: Devices) -> str:
    """Return the most memory that TensorFlow has used on one of the GPUs so far, in words; "" on
    CPUs.
    """
    if devices.kind != "GPU":
        return ""
    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    try:
        peaks = [
            tf.config.experimental.get_memory_info(name.partition("device:")[2])["peak"]
            for name in names
        ]
    except (ValueError, KeyError, tf.errors.OpError):  # some allocators do not count their memory
        return ""
    total = gpu_bytes(devices.nvml, None)
    has = f", which has {format_bytes(total)}" if total else ""
    return f"{format_bytes(max(peaks))} of a GPU's memory in use{has}"
