"""Divides an optimizer's joint work (optim/interface.py) over the replicas: each does a share and
sends it to the others.

It pays where the work that a replica saves takes longer than the transfer. A replica saves
(R - 1) / R of the work and receives (R - 1) / R of the bytes, so R does not matter.

Legend: R replicas; K inputs of one shape.
"""

import math
import re

import tensorflow as tf

from bert_gpu.monitor.throughput import peak_flops

# Share of the peak that large products reach, and bytes per second that each GPU receives of an
# all-gather: of NVLink, or of PCIe 4.0 x16 through the host, which is about that of 100 Gbit/s
# between machines. All are rough, and nothing of this has been measured on several GPUs yet.
PRODUCT_EFFICIENCY = 0.6
NVLINK_BYTES_PER_SECOND, PCIE_BYTES_PER_SECOND = 150e9, 12e9
NVLINK_NAMES = re.compile(r"SXM|HBM3|H200|B200|GB200", re.IGNORECASE)


def is_worthwhile(flops, num_bytes, gpu_names, precision, num_machines=1):
    """Whether replicas should divide joint work.

    Args:
      flops: of all work. num_bytes: of all results. gpu_names: as TensorFlow gives them, empty on
        CPUs, whose virtual replicas share one memory. precision: of the products.
    """
    tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    peaks = [peak_flops(name, precision, tensor_float_32) for name in gpu_names]
    if not peaks or None in peaks:  # an unknown GPU is more likely slow than fast
        return True
    has_nvlink = num_machines == 1 and all(map(NVLINK_NAMES.search, gpu_names))
    link = NVLINK_BYTES_PER_SECOND if has_nvlink else PCIE_BYTES_PER_SECOND
    return flops / (PRODUCT_EFFICIENCY * min(peaks)) > num_bytes / link


def joint_cost(parts, config, dtype):
    """(FLOPs, bytes of the results) of an optimizer's joint work, (0, 0) for one without.

    Args:
      parts: of `optimizers.joint_parts`. config: OptimizerConfig. dtype: tf.DType of the products.
    """
    shapes = [part.shape for part in parts.values()]
    flops = sum(config.module.joint_flops(shape, dtype) for shape in shapes)
    return flops, dtype.size * sum(map(math.prod, shapes))


def is_shared(devices, parts, config):
    """Whether the replicas of a run divide joint work; parts and config as for `joint_cost`."""
    # a hierarchical reduction gathers on one GPU, which sends all to the others
    if not parts or devices.num_replicas == 1 or devices.all_reduce == "hierarchical":
        return False
    flops, num_bytes = joint_cost(parts, config, devices.dtype)
    return is_worthwhile(
        flops, num_bytes, devices.gpu_names, devices.precision, devices.workers.count
    )


def announce(devices, parts, shared, console):
    """Says which replica does what of the joint work."""
    if parts and devices.num_replicas > 1:
        share = "a share of the update" if shared else "the whole update"
        console.say(f"each {devices.unit} does {share}")


def hardware_flops(devices, parts, shared, config):
    """FLOPs of all replicas together for the joint work of a step."""
    flops, _ = joint_cost(parts, config, devices.dtype)
    return flops if shared else flops * devices.num_replicas


def own_share(inputs, replica, num_replicas):
    """The inputs that one replica works on: {shape: (K, ...)} -> {shape: (ceil(K / R), ...)}, with
    zeros after the last input. replica: int32 scalar tensor.
    """
    shares = {}
    for shape, value in inputs.items():
        size = math.ceil(value.shape[0] / num_replicas)
        missing = size * num_replicas - value.shape[0]
        padded = tf.pad(value, [[0, missing], *[[0, 0]] * len(shape)])
        start = [replica * size, *[0] * len(shape)]
        shares[shape] = tf.slice(padded, start, [size, *shape])
    return shares


def gather(context, shares, options):
    """The shares of all replicas, concatenated, on all replicas: {shape: (ceil(K / R), ...)} ->
    {shape: (R x ceil(K / R), ...)}.
    """

    def all_gather(value):
        if value.dtype != tf.bfloat16:
            return context.all_gather(value, 0, options)
        # TensorFlow's gather does not take bfloat16; only bits are moved.
        return tf.bitcast(
            context.all_gather(tf.bitcast(value, tf.float16), 0, options), tf.bfloat16
        )

    return {shape: all_gather(value) for shape, value in shares.items()}
