"""What NVML and the operating system tell of the GPUs and of the memory of this machine."""

import contextlib
import os

import psutil
import pynvml


def visible_gpus(indices, environ=os.environ):
    """NVML's indices of the GPUs with these TensorFlow indices, or their UUIDs where
    CUDA_VISIBLE_DEVICES has UUIDs.

    NVML orders GPUs by PCI bus. CUDA does so too for equal GPUs or with
    CUDA_DEVICE_ORDER=PCI_BUS_ID; otherwise the fastest comes first.
    """
    if environ.get("CUDA_VISIBLE_DEVICES") is None:
        return list(indices)
    names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
    return [int(names[index]) if names[index].isdecimal() else names[index] for index in indices]


def count_gpus():
    """How many GPUs CUDA would find, from NVML, without starting CUDA; 0 when NVML fails."""
    try:
        pynvml.nvmlInit()
        num_gpus = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    names = [name.strip() for name in visible.split(",")]
    is_there = [not name.lstrip("-").isdecimal() or 0 <= int(name) < num_gpus for name in names]
    # CUDA stops at the first one that does not exist
    return (is_there + [False]).index(False) if visible.strip() else 0


CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def machine_bytes():
    """Memory and swap that this process may use."""
    total = psutil.virtual_memory().total + psutil.swap_memory().total
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            total = min(total, int(file.read()))
    return total


def gpu_bytes(gpus, limit):
    """Memory of the smallest of the GPUs (of nvml.visible_gpus), None when NVML does not tell.
    limit: megabytes that may be used, or None.
    """
    found = []
    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        for gpu in gpus:
            by = pynvml.nvmlDeviceGetHandleByIndex
            handle = by(gpu) if isinstance(gpu, int) else pynvml.nvmlDeviceGetHandleByUUID(gpu)
            found.append(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
        pynvml.nvmlShutdown()
    if limit is not None:
        found.append(limit << 20)
    return min(found, default=None)
