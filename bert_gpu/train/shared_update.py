"""Divides an optimizer's joint work (matrix products for many weights together, see
optim/interface.py) among the replicas: each does a share and sends the results to the others.

This is faster where the work that a replica saves takes longer than the transfer: for Muon on an
H100, by its peak rates, over NVLink but not over PCIe. It has not been measured on several GPUs.

Legend: R replicas; K inputs of one shape.
"""

import math
import re
from collections.abc import Mapping
from typing import TypeVar

import tensorflow as tf

from bert_gpu.devices.devices import Devices
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.optim.optimizers import JointPart

Key = TypeVar("Key")
# {type that TensorFlow's gather rejects or moves through the host: type that moves the same bits}
MOVED_AS = {tf.bfloat16: tf.float16, tf.int32: tf.float32}
NVLINK_NAMES = re.compile(r"SXM|HBM3|H200|B200|GB200", re.IGNORECASE)


def is_shared(devices: Devices, parts: Mapping[str, JointPart]) -> bool:
    """Return whether the replicas of a run divide the optimizer's joint work: those of GPUs that
    exchange the results over NVLink, and virtual ones, which share one memory. parts: {weight:
    JointPart} from `optimizers.joint_parts`.
    """
    if not parts or devices.num_replicas == 1:
        return False
    has_nvlink = all(map(NVLINK_NAMES.search, devices.gpu_names))
    return has_nvlink and (devices.workers.count == 1 or not devices.gpu_names)


def hardware_flops(
    devices: Devices, parts: Mapping[str, JointPart], shared: bool, config: OptimizerConfig
) -> float:
    """Return the FLOPs that all replicas together spend on the optimizer's joint work in a step.
    shared: whether they divide the work; otherwise each does all of it.
    """
    flops = sum(config.module.joint_flops(part.shape, devices.dtype) for part in parts.values())
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
