"""Refuses a training that cannot fit in memory before anything is allocated: compares the least
memory that the training needs with the memory of its devices and of the machine. Imports no
TensorFlow.

Every number is a lower bound, so a training that is refused is certain not to fit. Counted are the
weights, their gradients and the optimizer's state; the activations that the matrix products of the
backward pass read or, with recomputation, one activation for every group of layers; and the input
rows of the steps that one call into TensorFlow runs.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping, Sequence

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.devices.nvml import gpu_bytes, machine_bytes
from bert_gpu.model.config import ModelConfig
from bert_gpu.train.cadence import default_steps_per_loop
from bert_gpu.train.config import MemoryConfig, RunSettings

if typing.TYPE_CHECKING:
    from bert_gpu.devices.devices import Devices
    from bert_gpu.model.weights import WeightSpec

# imported when used, because it needs TensorFlow
optimizers = LazyModule("bert_gpu.optim.optimizers")

# input_ids, input_mask and segment_ids, as int32 and as int64 (devices.narrowed)
TOKEN_BYTES = 36


class Need(typing.NamedTuple):
    """A part of the memory that a run needs. what: its name in a message. remedy: the flags that
    reduce it, in words.
    """

    what: str
    num_bytes: int
    remedy: str


def check_size(
    settings: RunSettings,
    config: ModelConfig,
    specs_of: "Callable[[ModelConfig], Mapping[str, WeightSpec]] | None",
    devices: "Devices",
    num_tokens: int,
    eval_batch_size: int,
    run_json: Mapping[str, object] | None = None,
) -> int | None:
    """Return the least bytes that a training needs on a device; None when the number of its weights
    or its micro-batch is not known yet. Raises UserError when the training is certain not to fit.

    Args:
      specs_of: function of a ModelConfig -> {name: WeightSpec}; it is called only for models of few
        layers.
      num_tokens: tokens of all rows of an example in the batch with the shortest rows.
        eval_batch_size: examples that a replica validates at once. run_json: content of run.json of
        the run to resume, or None.
    """
    if config.encoder:  # another architecture, whose weights are not known before they are created
        specs_of = None
    micro_batch = settings.batch.train_batch_size
    micro_batch = 1 if micro_batch == "auto" else micro_batch
    copies = settings.devices.virtual_replicas
    on_device = [activations(settings.memory, config, devices, micro_batch * num_tokens)]
    if specs_of is not None:
        on_device.append(weights(settings, config, specs_of))
    on_device = [need._replace(num_bytes=need.num_bytes * copies) for need in on_device]
    rows = row_bytes(settings, devices, num_tokens, micro_batch, eval_batch_size, run_json)
    if devices.kind == "CPU":
        compare([*on_device, rows], "this machine", machine_bytes())
    else:
        compare(on_device, "a GPU", gpu_bytes(devices.nvml, settings.devices.gpu_memory_limit))
        compare([rows], "this machine", machine_bytes())
    if specs_of is None or settings.batch.train_batch_size == "auto":
        return None
    return sum(need.num_bytes for need in on_device)


def compare(needs: Sequence[Need], where: str, available: int | None) -> None:
    """Raise UserError when the needs together exceed the `available` bytes, None = not known.
    where: the name of the device or machine that has these bytes.
    """
    total = sum(need.num_bytes for need in needs)
    if available is None or total <= available:
        return
    largest = max(needs, key=lambda need: need.num_bytes)
    raise UserError(
        f"this run needs at least {format_size(total)}, and {where} has "
        f"{format_size(available)}: {largest.what} take "
        f"{format_size(largest.num_bytes)}",
        largest.remedy,
    )


def weights(
    settings: RunSettings,
    config: ModelConfig,
    specs_of: "Callable[[ModelConfig], Mapping[str, WeightSpec]]",
) -> Need:
    """Return the memory (a Need) of one replica's weights, gradients and optimizer state."""
    # from models of one and two layers: each further layer adds the same as the second
    one, two = (size_of(settings, config, specs_of, num_layers) for num_layers in (1, 2))
    num_parameters, num_bytes = (
        first + (second - first) * (config.num_groups - 1)
        for first, second in zip(one, two, strict=True)
    )
    return Need(
        f"{num_parameters:,} parameters, their gradients and optimizer state",
        num_bytes,
        "lower --hidden_size, --num_hidden_layers or --vocab_size (a smaller --model), or try "
        "--optimizer=adamw8bit",
    )


def size_of(
    settings: RunSettings,
    config: ModelConfig,
    specs_of: "Callable[[ModelConfig], Mapping[str, WeightSpec]]",
    num_layers: int,
) -> tuple[int, int]:
    """Return (number of parameters, bytes of the weights with gradients and optimizer state) of the
    model when it has `num_layers` layers.
    """
    few = dataclasses.replace(config, num_hidden_layers=num_layers, num_hidden_groups=None)
    specs = specs_of(few)
    num_parameters = sum(math.prod(spec.shape) for spec in specs.values())
    if settings.memory.freeze:
        return num_parameters, 4 * num_parameters
    return num_parameters, 8 * num_parameters + optimizers.state_bytes(specs, settings.optimizer)


def activations(
    memory: MemoryConfig, config: ModelConfig, devices: "Devices", num_tokens: int
) -> Need:
    """Return the memory (a Need) of the activations that a micro-batch of `num_tokens` tokens keeps
    for the backward pass.
    """
    width = 3 * config.hidden_size + config.inner_size
    num_layers = config.num_hidden_layers
    if config.encoder:  # another architecture: the least that any backward pass reads
        width = config.hidden_size
    if memory.layers_recomputed:
        width = config.hidden_size
        num_layers //= memory.layers_recomputed
    size = 4 if devices.precision == "float32" else 2
    return Need(
        f"activations of {num_tokens:,} tokens",
        num_tokens * width * num_layers * size,
        "lower --train_batch_size (and raise --gradient_accumulation_steps) or the model's size, "
        "or add --recompute",
    )


def row_bytes(
    settings: RunSettings,
    devices: "Devices",
    num_tokens: int,
    micro_batch: int,
    eval_batch_size: int,
    run_json: Mapping[str, typing.Any] | None,
) -> Need:
    """Return the memory of the machine (a Need) that the input rows take, those of the steps of one
    call or of a validation batch, whichever are more; arguments as for `check_size`.
    """
    batch = settings.batch
    size = micro_batch * devices.num_replicas * (batch.gradient_accumulation_steps or 1)
    size = (run_json and run_json["global_batch_size"]) or batch.global_batch_size or size
    cadence = settings.cadence
    periods = (
        cadence.steps_per_loop or default_steps_per_loop(devices.kind, 1, False),
        cadence.log_steps,
        cadence.save_checkpoints_steps,
        cadence.eval_steps or cadence.save_checkpoints_steps,
        cadence.num_train_steps or 1,
    )
    largest = max(size * min(periods), eval_batch_size * devices.num_replicas)
    return Need(
        f"the rows of a step or a validation ({largest:,})",
        largest * num_tokens * TOKEN_BYTES,
        "lower --train_batch_size, --gradient_accumulation_steps, --global_batch_size, "
        "--steps_per_loop or --eval_batch_size",
    )


def format_size(num_bytes: float) -> str:
    """Return a number of bytes as text, to three digits and with a unit that is a power of 1,000,
    such as "1.23 GB".
    """
    num_bytes = float(f"{num_bytes:.3g}")  # rounded first: 999,999 is 1 MB, not 1,000 kB
    unit = 0
    while num_bytes >= 1000 and unit < 8:
        num_bytes /= 1000
        unit += 1
    return f"{num_bytes:,.3g} {('B', 'kB', 'MB', 'GB', 'TB', 'PB', 'EB', 'ZB', 'YB')[unit]}"
