"""Divides an optimizer's joint work (optim/interface.py) among the replicas: each does a share and
sends the results to the others.

This is faster where the work that a replica saves takes longer than the transfer. A replica saves
(R - 1) / R of the work and receives (R - 1) / R of the bytes, so R does not matter.

Legend: R replicas; K inputs of one shape.
"""

import math
import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.devices.devices import Devices
from bert_gpu.monitor.throughput import peak_flops
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.optim.optimizers import JointPart

# Share of the peak that large products reach, and bytes per second that each GPU receives in an
# all-gather: over NVLink, or over PCIe 4.0 x16 through the host, which is about as fast as
# 100 Gbit/s between machines. All are rough; none has been measured on several GPUs yet.
PRODUCT_EFFICIENCY = 0.6
NVLINK_BYTES_PER_SECOND, PCIE_BYTES_PER_SECOND = 150e9, 12e9
NVLINK_NAMES = re.compile(r"SXM|HBM3|H200|B200|GB200", re.IGNORECASE)


def is_worthwhile(
    flops: float,
    num_bytes: int,
    gpu_names: Sequence[str],
    precision: str,
    num_machines: int = 1,
) -> bool:
    """Return whether it is faster when the replicas divide the joint work.

    Args:
      flops: of all work. num_bytes: of all results. gpu_names: as TensorFlow gives them, empty on
        CPUs, whose virtual replicas share one memory. precision: of the products.
    """
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    peaks = [
        peak
        for name in gpu_names
        if (peak := peak_flops(name, precision, tensor_float_32)) is not None
    ]
    if not peaks or len(peaks) < len(gpu_names):  # an unknown GPU is more likely slow than fast
        return True
    has_nvlink = num_machines == 1 and all(map(NVLINK_NAMES.search, gpu_names))
    link = NVLINK_BYTES_PER_SECOND if has_nvlink else PCIE_BYTES_PER_SECOND
    return flops / (PRODUCT_EFFICIENCY * min(peaks)) > num_bytes / link


def joint_cost(
    parts: Mapping[str, JointPart], config: OptimizerConfig, dtype: tf.DType
) -> tuple[float, int]:
    """Return (FLOPs, bytes of the results) of an optimizer's joint work, (0, 0) without such work.

    parts: from `optimizers.joint_parts`. dtype: of the products.
    """
    shapes = [part.shape for part in parts.values()]
    flops = sum(config.module.joint_flops(shape, dtype) for shape in shapes)
    return flops, dtype.size * sum(map(math.prod, shapes))


def is_shared(devices: Devices, parts: Mapping[str, JointPart], config: OptimizerConfig) -> bool:
    """Return whether the replicas of a run divide the joint work. parts: as for `joint_cost`."""
    # a hierarchical reduction gathers on one GPU, which sends everything to the others
    if not parts or devices.num_replicas == 1 or devices.all_reduce == "hierarchical":
        return False
    flops, num_bytes = joint_cost(parts, config, devices.dtype)
    return is_worthwhile(
        flops, num_bytes, devices.gpu_names, devices.precision, devices.workers.count
    )


def announce(
    devices: Devices, parts: Mapping[str, JointPart], shared: bool, console: Console
) -> None:
    """Print whether each replica does a share of the joint work or all of it."""
    if parts and devices.num_replicas > 1:
        share = "a share of the update" if shared else "the whole update"
        console.say(f"each {devices.unit} does {share}")


def hardware_flops(
    devices: Devices, parts: Mapping[str, JointPart], shared: bool, config: OptimizerConfig
) -> float:
    """Return the FLOPs of all replicas together for the joint work of a step."""
    flops, _ = joint_cost(parts, config, devices.dtype)
    return flops if shared else flops * devices.num_replicas


def own_share(
    inputs: Mapping[tuple, tf.Tensor], replica: tf.Tensor, num_replicas: int
) -> dict[tuple, tf.Tensor]:
    """Return the inputs that one replica works on: {shape: (K, ...)} -> {shape: (ceil(K / R),
    ...)}, with zeros after the last input. replica: index of the replica, an int32 scalar.
    """
    shares = {}
    for shape, value in inputs.items():
        size = math.ceil(value.shape[0] / num_replicas)
        missing = size * num_replicas - value.shape[0]
        padded = tf.pad(value, [[0, missing], *[[0, 0]] * len(shape)])
        start = [replica * size, *[0] * len(shape)]
        shares[shape] = tf.slice(padded, start, [size, *shape])
    return shares


def gather(
    context: tf.distribute.ReplicaContext,
    shares: Mapping[tuple, tf.Tensor],
    options: tf.distribute.experimental.CommunicationOptions | None,
) -> dict[tuple, tf.Tensor]:
    """Return the shares of all replicas, concatenated, on every replica: {shape: (ceil(K / R),
    ...)} -> {shape: (R x ceil(K / R), ...)}.
    """

    def all_gather(value: tf.Tensor) -> tf.Tensor:
        if value.dtype != tf.bfloat16:
            return context.all_gather(value, 0, options)
        # TensorFlow's gather rejects bfloat16; float16 moves the same bits
        return tf.bitcast(
            context.all_gather(tf.bitcast(value, tf.float16), 0, options), tf.bfloat16
        )

    return {shape: all_gather(value) for shape, value in shares.items()}
