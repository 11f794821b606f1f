"""Chooses a run's devices, precision and compilation, once, before TensorFlow starts."""

import dataclasses
import os

import tensorflow as tf
from tensorflow.python.framework import config as tf_config

from bert_gpu.fused import compile_silently_once
from bert_gpu.settings import UserError
from bert_gpu.train.config import choose_gpus
from bert_gpu.train.hardware import visible_gpus

CODES = dict(nccl="NCCL", ring="RING")  # of --all_reduce; TensorFlow chooses for the others
DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16}


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a run trains on."""

    strategy: tf.distribute.Strategy
    kind: str  # "GPU" or "CPU"
    num_replicas: int
    precision: str
    xla: bool
    communication: tf.distribute.experimental.CommunicationOptions | None  # of the all-reduce
    wire_dtype: tf.DType  # of gradients in the all-reduce
    all_reduce: str  # as --all_reduce
    shared_update: str  # as --shared_update
    # such as "NVIDIA H200", one for each physical GPU in use; () on the CPU
    gpu_names: tuple[str, ...]
    nvml: tuple  # the same GPUs as NVML knows them, of hardware.visible_gpus
    summary: str  # for the first log line

    @property
    def dtype(self):
        return DTYPES[self.precision]

    @property
    def unit(self):
        """What a replica is called in messages."""
        return "GPU" if self.kind == "GPU" else "replica"


def set_up(config):
    """Chooses the devices and configures TensorFlow for them. UserError when they are not
    available.
    """
    present = tf.config.list_physical_devices("GPU")
    gpus = [present[index] for index in choose_gpus(config, len(present))]
    kind = "GPU" if gpus else "CPU"
    physical = gpus or tf.config.list_physical_devices("CPU")[:1]
    try:
        # also on the CPU: TensorFlow would otherwise take the GPUs' memory
        tf.config.set_visible_devices(gpus, "GPU")
        if config.virtual_replicas == 1:
            for gpu in gpus:
                limit_memory(gpu, config.gpu_memory_limit)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"--num_gpus={len(gpus)}: TensorFlow has started "
            "with other GPUs or memory limits in this process"
        ) from error
    if config.virtual_replicas > 1:
        if len(physical) > 1:
            raise UserError(
                f"--virtual_replicas={config.virtual_replicas}: "
                "needs a single device; choose it with --num_gpus=1"
            )
        split_device(physical[0], config.virtual_replicas, config.gpu_memory_limit)
    names = [f"/{kind.lower()}:{index}" for index in range(len(physical) * config.virtual_replicas)]
    deterministic = config.deterministic if config.deterministic is not None else kind == "CPU"
    if deterministic:
        tf.config.experimental.enable_op_determinism()
    elif tf_config.is_op_determinism_enabled():  # by an earlier run of this process
        tf_config.disable_op_determinism()
    precision = config.precision if config.precision != "auto" else best_precision(gpus)
    check_all_reduce(config, kind)
    compile_silently_once()
    implementation = getattr(
        tf.distribute.experimental.CommunicationImplementation, CODES.get(config.all_reduce, "AUTO")
    )
    return Devices(
        strategy=make_strategy(names, config.all_reduce),
        kind=kind,
        num_replicas=len(names),
        precision=precision,
        xla=config.xla == "on" or (config.xla == "auto" and kind == "GPU"),
        communication=tf.distribute.experimental.CommunicationOptions(
            bytes_per_pack=round(config.all_reduce_pack_megabytes * 2**20),
            implementation=implementation,
        ),
        wire_dtype=DTYPES[config.all_reduce_dtype],
        all_reduce=config.all_reduce,
        shared_update=config.shared_update,
        gpu_names=tuple(
            tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus
        ),
        nvml=tuple(visible_gpus([int(gpu.name.rsplit(":", 1)[1]) for gpu in gpus])),
        summary=describe(gpus, config.virtual_replicas),
    )


def make_strategy(names, all_reduce):
    """A MirroredStrategy over devices. Each gets its own collective keys, so that several runs in
    one process do not clash.
    """
    # where each new strategy starts counting its keys
    tf.distribute.MirroredStrategy._collective_key_base += 1000
    cross_device_ops = (
        tf.distribute.HierarchicalCopyAllReduce() if all_reduce == "hierarchical" else None
    )
    try:
        return tf.distribute.MirroredStrategy(names, cross_device_ops=cross_device_ops)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        cluster = os.environ.get("TF_CONFIG")
        if cluster is None:
            raise
        raise UserError(
            f"TF_CONFIG={cluster[:80]}: TensorFlow cannot read it ({str(error)[:100]}); "
            "correct or unset the environment variable"
        ) from error


def check_all_reduce(config, kind):
    """UserError for an all-reduce that these devices do not support."""
    if config.all_reduce == "nccl" and (kind == "CPU" or config.virtual_replicas > 1):
        raise UserError(
            "--all_reduce=nccl: needs one physical GPU for "
            "each replica; use --all_reduce=auto or ring"
        )
    if config.all_reduce == "hierarchical" and config.all_reduce_pack_megabytes:
        raise UserError(
            f"--all_reduce_pack_megabytes={config.all_reduce_pack_megabytes}: "
            "does not work with --all_reduce=hierarchical; drop one of them"
        )


def limit_memory(gpu, limit):
    """Memory grows on demand, up to `limit` megabytes when that is not None."""
    if limit is None:
        tf.config.experimental.set_memory_growth(gpu, True)
        return
    if limit > gpu_memory_mib(gpu):
        raise UserError(
            f"--gpu_memory_limit={limit}: the GPU has {gpu_memory_mib(gpu):.0f} megabytes; lower it"
        )
    tf.config.set_logical_device_configuration(
        gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
    )


def split_device(device, count, memory_limit=None):
    """Splits a physical device into `count` logical devices, unless it is split already; they share
    a GPU's `memory_limit` (MB).
    """
    made = tf.config.get_logical_device_configuration(device)
    if made and len(made) >= count:
        return
    # Logical GPUs need a share of the memory each; 90 % leaves room for the CUDA context.
    limit = None
    if device.device_type == "GPU":
        limit = int((memory_limit or 0.9 * gpu_memory_mib(device)) / count)
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
    try:
        tf.config.set_logical_device_configuration(device, [configuration] * count)
    except RuntimeError as error:
        raise UserError(
            f"--virtual_replicas={count}: TensorFlow has started with fewer devices in this process"
        ) from error


def gpu_memory_mib(device):
    details = tf.config.experimental.get_device_details(device)
    return details.get("device_memory_size", 16 << 30) / 2**20


def best_precision(gpus):
    """bfloat16 from compute capability 8.0 (Ampere), float16 from 7.0 (Volta, with matrix units),
    float32 otherwise and on CPUs.
    """
    if not gpus:
        return "float32"
    capability = min(
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in gpus
    )
    return "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"


def describe(gpus, virtual_replicas):
    if not gpus:
        return (
            "no GPU: training on the CPU"
            if virtual_replicas == 1
            else f"{virtual_replicas} virtual replicas on the CPU"
        )
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus
    ]
    text = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return text if virtual_replicas == 1 else f"{virtual_replicas} virtual replicas on {text}"
