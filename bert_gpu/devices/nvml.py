"""Reads the GPUs and the memory of this machine, from NVML and from the operating system."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

import psutil
import pynvml


@contextlib.contextmanager
def session() -> Iterator[None]:
    """Start NVML, and shut it down at the end of the context. Raises NVMLError when it does not
    start; errors of the shutdown, such as that of a lost GPU, are ignored.
    """
    pynvml.nvmlInit()
    try:
        yield
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def handle_of(gpu: int | str) -> object:
    """Return NVML's handle of a GPU, an index or UUID from `visible_gpus`. Call it inside a
    `session`.
    """
    if isinstance(gpu, int):
        return pynvml.nvmlDeviceGetHandleByIndex(gpu)
    return pynvml.nvmlDeviceGetHandleByUUID(gpu)


def visible_gpus(
    indices: Iterable[int], environ: Mapping[str, str] = os.environ
) -> list[int | str]:
    """Return NVML's indices of the GPUs with these TensorFlow indices, or their UUIDs where
    CUDA_VISIBLE_DEVICES has UUIDs.

    NVML orders GPUs by PCI bus. CUDA does so too for equal GPUs or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; otherwise CUDA puts the fastest first, and the indices may name
    other GPUs.
    """
    if environ.get("CUDA_VISIBLE_DEVICES") is None:
        return list(indices)
    names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return [int(names[index]) if names[index].isdecimal() else names[index] for index in indices]


def count_gpus() -> int:
    """Return how many GPUs CUDA would find, from NVML, without starting CUDA; 0 when NVML fails."""
    try:
        with session():
            num_gpus = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    names = [name.strip() for name in visible.split(",")]
    is_there = [not name.lstrip("-").isdecimal() or 0 <= int(name) < num_gpus for name in names]
    # CUDA ignores the list from the first GPU that does not exist
    return (is_there + [False]).index(False) if visible.strip() else 0


def describe_energy(kwh: float | None, num_workers: int) -> str:
    """Return the energy of a run in words. kwh: of the GPUs of worker 0; None = not known."""
    if kwh is None:
        return "unknown (only GPUs from Volta on count it)"
    whose = "its GPUs" if num_workers == 1 else f"the GPUs of worker 0 of {num_workers} workers"
    return f"{kwh:.3g} kWh of {whose}, all of their processes counted (NVML)"


CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def machine_bytes() -> int:
    """Return the bytes of memory and swap that this process may use: those of the machine, or the
    limit of the process's cgroup if that is lower.
    """
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            total = min(total, int(file.read()))
    return total


def gpu_bytes(gpus: Iterable[int | str], limit: int | None) -> int | None:
    """Return the bytes of memory of the smallest of the GPUs, None when they are not known.

    gpus: from `visible_gpus`. limit: megabytes that may be used; None = all.
    """
    sizes = []
    with contextlib.suppress(pynvml.NVMLError), session():
        for gpu in gpus:
            sizes.append(pynvml.nvmlDeviceGetMemoryInfo(handle_of(gpu)).total)
    if limit is not None:
        sizes.append(limit << 20)
    return min(sizes, default=None)
