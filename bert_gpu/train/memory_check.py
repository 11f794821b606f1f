"""Refuses a training that cannot fit in memory before anything is allocated: compares a lower bound
of the memory that it needs with that of its devices and of the machine. Imports no TensorFlow.

Counted are the weights, their gradients and the optimizer's state; the activations that the matrix
products of the backward pass read or, with recomputation, one activation for every group of layers;
and the input rows of one step.
"""

import dataclasses
import math
import typing
from collections.abc import Callable, Mapping

from bert_gpu.base.console import format_bytes
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.devices.nvml import gpu_bytes, machine_bytes
from bert_gpu.model.config import ModelConfig
from bert_gpu.train.config import MemoryConfig, RunSettings

if typing.TYPE_CHECKING:
    from bert_gpu.devices.devices import Devices
    from bert_gpu.model.weights import WeightSpec

# imported when used, because it needs TensorFlow
optimizers = LazyModule("bert_gpu.optim.optimizers")

# input_ids, input_mask and segment_ids, as int32 and as int64 (devices.narrowed)
TOKEN_BYTES = 36


def check_size(
    settings: RunSettings,
    config: ModelConfig,
    specs_of: "Callable[[ModelConfig], Mapping[str, WeightSpec]]",
    devices: "Devices",
    num_tokens: int,
) -> None:
    """Raise UserError when a training is certain not to fit in memory.

    Args:
      specs_of: function of a ModelConfig -> {name: WeightSpec}; it is called only for models of few
        layers, and not for another architecture, whose weights are not known before they are made.
      num_tokens: tokens of all rows of an example in the batch with the shortest rows.
    """
    batch = settings.batch
    micro_batch = 1 if batch.train_batch_size == "auto" else batch.train_batch_size
    on_device = activation_bytes(settings.memory, config, devices, micro_batch * num_tokens)
    if not config.encoder:
        on_device += weight_bytes(settings, config, specs_of)
    on_device *= settings.devices.virtual_replicas
    num_examples = batch.global_batch_size or micro_batch * (batch.gradient_accumulation_steps or 1)
    rows = num_examples * num_tokens * TOKEN_BYTES
    if devices.kind == "CPU":
        needs: list[tuple[str, int, int | None]] = [
            ("this machine", on_device + rows, machine_bytes())
        ]
    else:
        gpu = gpu_bytes(devices.nvml, settings.devices.gpu_memory_limit)
        needs = [("a GPU", on_device, gpu), ("this machine", rows, machine_bytes())]
    for where, needed, available in needs:
        if available is not None and needed > available:
            raise UserError(
                f"this run needs at least {format_bytes(needed)}, and {where} has "
                f"{format_bytes(available)}",
                "take a smaller model (--model, --hidden_size), add --recompute, or lower "
                "--train_batch_size (auto finds the largest), --gradient_accumulation_steps or "
                "--global_batch_size",
            )


def weight_bytes(
    settings: RunSettings,
    config: ModelConfig,
    specs_of: "Callable[[ModelConfig], Mapping[str, WeightSpec]]",
) -> int:
    """Return the bytes of one replica's weights, gradients and optimizer state, from models of one
    and two layers: each further layer adds the same as the second.
    """
    sizes = []
    for num_layers in (1, 2):
        few = dataclasses.replace(config, num_hidden_layers=num_layers, num_hidden_groups=None)
        specs = specs_of(few)
        num_bytes = 4 * sum(math.prod(spec.shape) for spec in specs.values())
        if not settings.memory.freeze:
            num_bytes = 2 * num_bytes + optimizers.state_bytes(specs, settings.optimizer)
        sizes.append(num_bytes)
    return sizes[0] + (sizes[1] - sizes[0]) * (config.num_groups - 1)


def activation_bytes(
    memory: MemoryConfig, config: ModelConfig, devices: "Devices", num_tokens: int
) -> int:
    """Return the bytes of the activations of `num_tokens` tokens that a replica keeps for the
    backward pass.
    """
    width = config.hidden_size  # the least that any backward pass reads
    if not config.encoder and not memory.recompute_every:
        width = 3 * config.hidden_size + config.inner_size
    num_layers = config.num_hidden_layers // (memory.recompute_every or 1)
    return num_tokens * width * num_layers * (4 if devices.precision == "float32" else 2)
