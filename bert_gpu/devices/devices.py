"""Chooses a run's devices, precision and compilation, once, before TensorFlow starts.

A MirroredStrategy has the replicas of one machine, a MultiWorkerMirroredStrategy those of several
machines, with the same number of replicas on each machine.
"""

import dataclasses
import itertools
import typing
from collections.abc import Sequence

import tensorflow as tf

import bert_gpu
from bert_gpu.base.environment import set_determinism
from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import compile_silently_once, stderr_discarded
from bert_gpu.devices.config import DeviceConfig, choose_gpus
from bert_gpu.devices.nvml import gpu_bytes, visible_gpus
from bert_gpu.devices.workers import ALONE, Alone, Workers, current_workers, join

Tensors = typing.TypeVar("Tensors")
# {value of --all_reduce: TensorFlow's name of the implementation}; for other values TensorFlow
# chooses.
CODES = dict(nccl="NCCL", ring="RING")
# The advice when a process asks for other devices than those with which TensorFlow has started,
# which cannot change any more.
SAME_DEVICES = "ask for the devices of the first call, or start the process anew"
DTYPES = {"float32": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16}


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices that a run trains on, and how they compute."""

    strategy: tf.distribute.Strategy
    kind: str  # "GPU" or "CPU"
    num_replicas: int  # replicas of all workers together
    precision: str
    xla: bool
    communication: tf.distribute.experimental.CommunicationOptions | None  # for the all-reduce
    all_reduce_dtype: tf.DType  # dtype of the gradients in the all-reduce
    # names such as "NVIDIA H200", one for each physical GPU in use, of all workers; () on the CPU
    gpu_names: tuple[str, ...]
    nvml: tuple[int | str, ...]  # the GPUs of this machine, from nvml.visible_gpus
    summary: str  # for the first log line
    # bytes that a replica may use on the smallest GPU; None = not known, or no GPU
    replica_bytes: int | None = None
    workers: Workers | Alone = ALONE

    @property
    def dtype(self) -> tf.DType:
        return DTYPES[self.precision]

    @property
    def local_devices(self) -> Sequence[str]:
        """Names of the devices of this worker's replicas, in the replicas' order."""
        return self.strategy.extended.worker_devices

    @property
    def unit(self) -> str:
        """The word for a replica in messages, "GPU" or "replica"."""
        return "GPU" if self.kind == "GPU" else "replica"


def set_up(config: DeviceConfig) -> Devices:
    """Choose the devices of a run, configure TensorFlow for them and return them. Raises UserError
    when the devices are not available, or not the same on all workers that this process has joined.
    """
    present = tf.config.list_physical_devices("GPU")
    gpus = present[: choose_gpus(config, len(present))]
    kind = "GPU" if gpus else "CPU"
    physical = gpus or tf.config.list_physical_devices("CPU")[:1]
    try:
        # called without GPUs, too: TensorFlow would otherwise allocate the memory of all GPUs of
        # the machine
        tf.config.set_visible_devices(gpus, "GPU")
        if config.virtual_replicas == 1:
            for gpu in gpus:
                limit_memory(gpu, config.gpu_memory_limit)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            "TensorFlow has started with other GPUs or memory limits in this process",
            SAME_DEVICES,
            setting="num_gpus",
            value=len(gpus),
        ) from error
    if config.virtual_replicas > 1:
        if len(physical) > 1:
            raise UserError(
                "needs a single device",
                "choose it with --num_gpus=1",
                setting="virtual_replicas",
                value=config.virtual_replicas,
            )
        split_device(physical[0], config.virtual_replicas, config.gpu_memory_limit)
    names = [f"/{kind.lower()}:{index}" for index in range(len(physical) * config.virtual_replicas)]
    deterministic = config.deterministic if config.deterministic is not None else kind == "CPU"
    set_determinism(deterministic)
    precision = config.precision if config.precision != "auto" else best_precision(gpus)
    xla = config.xla == "on" or (config.xla == "auto" and kind == "GPU")
    workers = current_workers()
    check_all_reduce(config, kind, workers)
    communication = tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=None if workers is ALONE else config.worker_timeout,
        implementation=getattr(
            tf.distribute.experimental.CommunicationImplementation,
            CODES.get(config.all_reduce, "AUTO"),
        ),
    )
    if isinstance(workers, Alone):
        strategy = make_strategy(names)
    else:
        strategy = strategy_of_workers(workers, len(gpus), communication)
        workers.check_alike(
            {
                "the version": (bert_gpu.__version__, tf.__version__),
                "the devices": (kind, len(names)),
                "the precision": precision,
                "xla": xla,
                "all_reduce": config.all_reduce,
                "all_reduce_dtype": config.all_reduce_dtype,
                "deterministic": deterministic,
            }
        )
    nvml = tuple(visible_gpus([index_of(gpu) for gpu in gpus]))
    memory = gpu_bytes(nvml, config.gpu_memory_limit) if gpus else None
    compile_silently_once()  # last: the strategy must be the first to start TensorFlow
    return Devices(
        strategy=strategy,
        kind=kind,
        num_replicas=len(names) * workers.count,
        precision=precision,
        xla=xla,
        communication=communication,
        all_reduce_dtype=DTYPES[config.all_reduce_dtype],
        gpu_names=tuple(itertools.chain(*workers.gather(names_of(gpus)))),
        nvml=nvml,
        summary=describe(gpus, config.virtual_replicas, workers.count),
        replica_bytes=memory and memory // config.virtual_replicas,
        workers=workers,
    )


def join_workers(config: DeviceConfig) -> Workers | Alone:
    """Connect this process to the other workers of its job and return the Workers; ALONE when there
    are no others. Call it before anything that needs TensorFlow.
    """
    workers = join(config.worker_timeout)
    if workers is not ALONE:
        set_up(config)
    return workers


def strategy_of_workers(
    workers: Workers,
    num_gpus: int,
    communication: tf.distribute.experimental.CommunicationOptions,
) -> tf.distribute.MultiWorkerMirroredStrategy:
    """Connect the workers and return their MultiWorkerMirroredStrategy, which is created once in a
    process. num_gpus: GPUs of each worker, 0 for the CPU.
    """
    if workers.strategy is not None:
        return workers.strategy
    workers.prepare()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(dict(worker=list(workers.cluster.addresses))),
        task_type="worker",
        task_id=workers.index,
        num_accelerators=dict(GPU=num_gpus),
        rpc_layer="grpc",
    )
    try:
        with stderr_discarded():  # TensorFlow's server prints its address
            workers.strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver, communication)
    except tf.errors.OpError as error:  # an error of the strategy's server
        raise UserError(
            f"this worker cannot listen there ({error.message[:120]})",
            "is the port in use, or the address that of another machine?",
            where=workers.cluster.addresses[workers.index],
        ) from error
    workers.connect()
    return workers.strategy


def make_strategy(names: Sequence[str]) -> tf.distribute.MirroredStrategy:
    """Return a MirroredStrategy over the named devices. Each strategy gets its own keys of
    collectives, so that several runs in one process do not clash.
    """
    # the number from which the next strategy counts its keys of collectives
    tf.distribute.MirroredStrategy._collective_key_base += 1000
    return tf.distribute.MirroredStrategy(names)


def check_all_reduce(config: DeviceConfig, kind: str, workers: Workers | Alone = ALONE) -> None:
    """Raise UserError for virtual replicas or an all-reduce that these devices do not support."""
    if workers is not ALONE and config.virtual_replicas > 1:
        raise UserError(
            "simulates several GPUs in one process, and this one is one of "
            f"{workers.count} workers",
            "start more workers instead",
            setting="virtual_replicas",
            value=config.virtual_replicas,
        )
    if config.all_reduce == "nccl" and (kind == "CPU" or config.virtual_replicas > 1):
        raise UserError(
            "needs one physical GPU for each replica",
            "use --all_reduce=auto or ring",
            setting="all_reduce",
            value="nccl",
        )


def limit_memory(gpu: tf.config.PhysicalDevice, limit: int | None) -> None:
    """Let the memory of a GPU grow on demand, or reserve `limit` megabytes if it is not None."""
    if limit is None:
        tf.config.experimental.set_memory_growth(gpu, True)
        return
    megabytes = gpu_megabytes(gpu)
    if megabytes is not None and limit > megabytes:
        raise UserError(
            f"the GPU has {megabytes:.0f} megabytes",
            "lower it",
            setting="gpu_memory_limit",
            value=limit,
        )
    tf.config.set_logical_device_configuration(
        gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
    )


def split_device(
    device: tf.config.PhysicalDevice, count: int, memory_limit: int | None = None
) -> None:
    """Split a physical device into `count` logical devices, unless it is split already.

    memory_limit: megabytes that the logical devices of a GPU share equally; None = 90 % of its
    memory.
    """
    # Each logical GPU needs a limit; 90 % leaves room for the CUDA context.
    limit = None
    if device.device_type == "GPU":
        megabytes = memory_limit or 0.9 * (gpu_megabytes(device) or 0)
        if not megabytes:
            raise UserError(
                "needs the size of the GPU's memory, which NVML cannot read",
                "give --gpu_memory_limit",
                setting="virtual_replicas",
                value=count,
            )
        limit = int(megabytes / count)
    present = tf.config.get_logical_device_configuration(device)
    if present and len(present) >= count and present[0].memory_limit == limit:
        return
    configuration = tf.config.LogicalDeviceConfiguration(memory_limit=limit)
    try:
        tf.config.set_logical_device_configuration(device, [configuration] * count)
    except RuntimeError as error:
        raise UserError(
            "TensorFlow has started with other devices in this process",
            SAME_DEVICES,
            setting="virtual_replicas",
            value=count,
        ) from error


def index_of(gpu: tf.config.PhysicalDevice) -> int:
    """Return TensorFlow's index of a physical GPU."""
    return int(gpu.name.rsplit(":", 1)[1])


def gpu_megabytes(gpu: tf.config.PhysicalDevice) -> float | None:
    """Return the memory of a physical GPU (MB of 2^20 bytes), None when NVML cannot read it.
    TensorFlow has no function that returns it.
    """
    size = gpu_bytes(visible_gpus([index_of(gpu)]), None)
    return size and size / 2**20


def best_precision(gpus: Sequence[tf.config.PhysicalDevice]) -> str:
    """Return the precision for --precision=auto: bfloat16 if all GPUs have compute capability 8.0
    (Ampere) or more, float16 if they have 7.0 (Volta, with matrix units) or more, float32 for older
    GPUs and on CPUs.
    """
    capability = lowest_capability(gpus)
    return "bfloat16" if capability >= (8, 0) else "float16" if capability >= (7, 0) else "float32"


def lowest_capability(gpus: Sequence[tf.config.PhysicalDevice]) -> tuple[int, int]:
    """Return the compute capability of the oldest of the physical GPUs, (0, 0) without GPUs."""
    details = map(tf.config.experimental.get_device_details, gpus)
    return min((gpu.get("compute_capability", (0, 0)) for gpu in details), default=(0, 0))


def names_of(gpus: Sequence[tf.config.PhysicalDevice]) -> list[str]:
    """Return the name of each physical GPU, such as "NVIDIA H200"."""
    details = map(tf.config.experimental.get_device_details, gpus)
    return [gpu.get("device_name", "GPU") for gpu in details]


def describe(
    gpus: Sequence[tf.config.PhysicalDevice], virtual_replicas: int, num_workers: int = 1
) -> str:
    if num_workers > 1:
        each = "the CPU, without GPUs" if not gpus else describe(gpus, 1)
        return f"{num_workers} workers, each with {each}"
    if not gpus:
        return (
            "no GPU: training on the CPU"
            if virtual_replicas == 1
            else f"{virtual_replicas} virtual replicas on the CPU"
        )
    names = names_of(gpus)
    text = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return text if virtual_replicas == 1 else f"{virtual_replicas} virtual replicas on {text}"


def narrowed(values: Tensors) -> Tensors:
    """Return a structure of tensors with those of int64 as int32. TensorFlow keeps int32 of a GPU
    in host memory, so integers travel to compiled programs as int64.
    """
    return tf.nest.map_structure(
        lambda value: tf.cast(value, tf.int32) if value.dtype == tf.int64 else value, values
    )
