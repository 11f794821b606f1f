"""Divides an optimizer's joint work (matrix products for many weights together, see
optim/interface.py) among the replicas: each does a share and sends the results to the others.

This is faster where the work that a replica saves takes longer than the transfer. A replica saves
(R - 1) / R of the work and receives (R - 1) / R of the bytes, so R does not matter.

Legend: R replicas; K inputs of one shape.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.devices.devices import Devices
from bert_gpu.monitor.throughput import peak_flops
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.optim.optimizers import JointPart

Key = TypeVar("Key")
# Share of the peak FLOP/s that large matrix products reach, and bytes per second that each GPU
# receives in an all-gather: over NVLink, or over PCIe 4.0 x16 through the host, which is about as
# fast as 100 Gbit/s between machines. All are rough; none has been measured on several GPUs yet.
PRODUCT_EFFICIENCY = 0.6
NVLINK_BYTES_PER_SECOND, PCIE_BYTES_PER_SECOND = 150e9, 12e9
# {type that TensorFlow's gather rejects or moves through the host: type that moves the same bits}
MOVED_AS = {tf.bfloat16: tf.float16, tf.int32: tf.float32}
NVLINK_NAMES = re.compile(r"SXM|HBM3|H200|B200|GB200", re.IGNORECASE)


def is_worthwhile(
    flops: float,
    num_bytes: int,
    gpu_names: Sequence[str],
    precision: str,
    num_machines: int = 1,
) -> bool:
    """Return whether a step is faster when the replicas divide the optimizer's joint work than when
    each of them does all of it.

    Args:
      flops: FLOPs of the whole joint work. num_bytes: bytes of all its results. gpu_names: names of
        the GPUs from TensorFlow, empty on CPUs, whose virtual replicas share one memory. precision:
        type of the matrix products, such as "bfloat16".
    """
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    peaks = [
        peak
        for name in gpu_names
        if (peak := peak_flops(name, precision, tensor_float_32)) is not None
    ]
    if not peaks or len(peaks) < len(gpu_names):  # an unknown GPU is likely slow: sharing pays
        return True
    has_nvlink = num_machines == 1 and all(map(NVLINK_NAMES.search, gpu_names))
    link = NVLINK_BYTES_PER_SECOND if has_nvlink else PCIE_BYTES_PER_SECOND
    return flops / (PRODUCT_EFFICIENCY * min(peaks)) > num_bytes / link


def joint_cost(
    parts: Mapping[str, JointPart], config: OptimizerConfig, dtype: tf.DType
) -> tuple[float, int]:
    """Return (FLOPs, bytes of the results) of an optimizer's joint work, the work that replicas can
    divide; (0, 0) for an optimizer without joint work.

    parts: {weight: JointPart} from `optimizers.joint_parts`. dtype: type of the matrix products.
    """
    shapes = [part.shape for part in parts.values()]
    flops = sum(config.module.joint_flops(shape, dtype) for shape in shapes)
    return flops, dtype.size * sum(map(math.prod, shapes))


def is_shared(devices: Devices, parts: Mapping[str, JointPart], config: OptimizerConfig) -> bool:
    """Return whether the replicas of a run divide the optimizer's joint work. parts: {weight:
    JointPart}, as for `joint_cost`.
    """
    if not parts or devices.num_replicas == 1:
        return False
    flops, num_bytes = joint_cost(parts, config, devices.dtype)
    return is_worthwhile(
        flops, num_bytes, devices.gpu_names, devices.precision, devices.workers.count
    )


def announce(
    devices: Devices, parts: Mapping[str, JointPart], shared: bool, console: Console
) -> None:
    """Print whether each replica does a share of the optimizer's joint work or all of it."""
    if parts and devices.num_replicas > 1:
        share = "a share of the update" if shared else "the whole update"
        console.say(f"each {devices.unit} does {share}")


def hardware_flops(
    devices: Devices, parts: Mapping[str, JointPart], shared: bool, config: OptimizerConfig
) -> float:
    """Return the FLOPs that all replicas together spend on the optimizer's joint work in a step.
    shared: whether they divide the work; otherwise each does all of it.
    """
    flops, _ = joint_cost(parts, config, devices.dtype)
    return flops if shared else flops * devices.num_replicas


def own_share(
    inputs: Mapping[tuple, tf.Tensor], replica: tf.Tensor, num_replicas: int
) -> dict[tuple, tf.Tensor]:
    """Return the inputs of the joint work that one of R replicas takes. From {shape: K inputs, (K,
    *shape)} come {shape: its share, (ceil(K / R), *shape)}, with zeros after the last input.
    replica: index of the replica, an int32 scalar.
    """
    shares = {}
    for shape, value in inputs.items():
        size = math.ceil(value.shape[0] / num_replicas)
        missing = size * num_replicas - value.shape[0]
        padded = tf.pad(value, [[0, missing], *[[0, 0]] * len(shape)])
        shares[shape] = tf.slice(padded, [replica * size, *[0] * len(shape)], [size, *shape])
    return shares


def gather(
    context: tf.distribute.ReplicaContext,
    shares: Mapping[Key, tf.Tensor],
    options: tf.distribute.experimental.CommunicationOptions | None,
) -> dict[Key, tf.Tensor]:
    """Return, on every replica, the shares of all R replicas, concatenated in their order: {key:
    (n, ...)} of each replica -> {key: (R x n, ...)}. A key is the shape of inputs of the joint
    work, of which n = ceil(K / R), or a name.
    """

    def all_gather(value: tf.Tensor) -> tf.Tensor:
        bits = tf.bitcast(value, MOVED_AS.get(value.dtype, value.dtype))
        whole = tf.bitcast(context.all_gather(bits, 0, options), value.dtype)
        # the gather forgets the shape
        num_rows = context.num_replicas_in_sync * value.shape[0]
        return tf.ensure_shape(whole, [num_rows, *value.shape[1:]])

    return {key: all_gather(value) for key, value in shares.items()}
