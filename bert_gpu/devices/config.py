"""Settings of a run's devices and of the launcher of workers, and the choice of GPUs that follows
from them.
"""

import dataclasses

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceConfig(Settings):
    """The devices of a run."""

    num_gpus: int | None = setting(
        None,
        "GPUs to train on, of each machine; CUDA_VISIBLE_DEVICES=0,2 in the environment chooses "
        "them. Default: all GPUs, or the CPU when there is none.",
        low=0,
        aliases=("n_gpus",),
    )
    virtual_replicas: int = setting(
        1,
        "Simulate data parallelism with this many replicas on one device: the "
        "same results as on real GPUs, without the speed.",
        low=1,
        high=64,
    )
    precision: str = setting(
        "auto",
        "Dtype of the matrix products; weights and optimizer state stay float32. "
        "auto = bfloat16 on GPUs that support it, float16 on older GPUs, float32 "
        "on CPUs.",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    xla: str = setting(
        "auto",
        "Compile the step with XLA. auto = on for GPUs, off for CPUs.",
        choices=("auto", "on", "off"),
    )
    all_reduce: str = setting(
        "auto",
        "How gradients are summed over GPUs. auto = NCCL on GPUs, a ring on CPUs and virtual "
        "replicas.",
        choices=("auto", "nccl", "ring"),
    )
    all_reduce_dtype: str = setting(
        "float32",
        "Dtype of the gradients in the all-reduce. bfloat16 halves the traffic "
        "and rounds each gradient to 8 significant bits.",
        choices=("float32", "bfloat16"),
    )
    worker_timeout: float = setting(
        300.0,
        "On several machines: how long a worker waits for another that does not answer or does not "
        "come to the next step, before it ends with exit code 4.",
        low=10.0,
        unit="seconds",
    )
    gpu_memory_limit: int | None = setting(
        None,
        "Megabytes that TensorFlow may use on each GPU. Default: as many as it needs.",
        low=256,
    )
    deterministic: bool | None = setting(
        None,
        "Use only deterministic operations, so that a repeated run gives bitwise "
        "equal results. Default: on for CPUs, off for GPUs.",
    )


def choose_gpus(config: DeviceConfig, num_present: int, finder: str = "TensorFlow") -> int:
    """Return the number of GPUs that the config asks for, 0 for the CPU. Raises UserError when
    there are fewer.

    num_present: GPUs of this machine. finder: the library that counted them, for the error message.
    """
    if config.num_gpus is not None and config.num_gpus > num_present:
        hint = f"use --num_gpus={num_present}" if num_present else "use --num_gpus=0 for the CPU"
        raise UserError(
            f"{finder} found {num_present or 'none'} here",
            f"{hint}, or see `nvidia-smi` and pip install 'bert-gpu[gpu]'",
            setting="num_gpus",
            value=config.num_gpus,
        )
    return num_present if config.num_gpus is None else config.num_gpus


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchConfig(Settings):
    """The setting of the launcher."""

    num_workers: int = setting(
        2,
        "Processes to start; the GPUs of this machine are divided among them.",
        low=1,
        high=64,
    )
