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
        "GPUs to train on, of each machine. Default: all GPUs, or the CPU when there is none.",
        low=0,
        aliases=("n_gpus",),
    )
    gpus: str | None = setting(
        None, "Indices of the GPUs to train on, separated by commas, for example 0,2."
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


def choose_gpus(config: DeviceConfig, num_present: int, finder: str = "TensorFlow") -> list[int]:
    """Return the indices of the GPUs that the config selects, [] for the CPU. Raises UserError when
    it asks for GPUs that do not exist or contradicts itself.

    num_present: GPUs of this machine. finder: the library that counted them, for the error message.
    """
    count_text = f"{finder} found {num_present or 'none'} here"
    if config.gpus is not None:
        indices = [part.strip() for part in config.gpus.split(",")]
        if not all(part.isdecimal() and int(part) < num_present for part in indices) or len(
            set(indices)
        ) < len(indices):
            raise UserError(
                "must be different GPU indices from 0, separated by commas",
                count_text,
                setting="gpus",
                value=config.gpus,
            )
        if config.num_gpus not in (None, len(indices)):
            raise UserError(
                "the two disagree",
                "give one of them",
                setting="num_gpus",
                value=f"{config.num_gpus} and --gpus={config.gpus}",
            )
        return [int(part) for part in indices]
    if config.num_gpus is not None and config.num_gpus > num_present:
        hint = f"use --num_gpus={num_present}" if num_present else "use --num_gpus=0 for the CPU"
        raise UserError(
            count_text,
            f"{hint}, or see `nvidia-smi` and pip install 'bert-gpu[gpu]'",
            setting="num_gpus",
            value=config.num_gpus,
        )
    return list(range(num_present if config.num_gpus is None else config.num_gpus))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchConfig(Settings):
    """Settings of the launcher: the number of workers, and of restarts after a worker has died."""

    num_workers: int = setting(
        2,
        "Processes to start; the GPUs of this machine are divided among them.",
        low=1,
        high=64,
    )
    restarts: int = setting(
        0,
        "How many times all workers are started again after one of them has died; they resume "
        "from the last checkpoint. Bad input and divergence do not cause a restart.",
        low=0,
    )
