"""Reads the resources that a machine has for training: memory, disks, GPUs as their driver reports
them, and the CUDA libraries that TensorFlow loads. Imports no TensorFlow.
"""

import contextlib
import ctypes
import glob
import os
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

import psutil
import pynvml

from bert_gpu.base.environment import cache_folder
from bert_gpu.devices.nvml import handle_of, machine_bytes, session

# {CUDA's major version: {library that TensorFlow opens: pip package that contains it}}
LIBRARIES = {
    "12": {
        "libcudart.so.12": "nvidia-cuda-runtime-cu12",
        "libcublas.so.12": "nvidia-cublas-cu12",
        "libcublasLt.so.12": "nvidia-cublas-cu12",
        "libcufft.so.11": "nvidia-cufft-cu12",
        "libcusolver.so.11": "nvidia-cusolver-cu12",
        "libcusparse.so.12": "nvidia-cusparse-cu12",
        "libcupti.so.12": "nvidia-cuda-cupti-cu12",
        "libnvrtc.so.12": "nvidia-cuda-nvrtc-cu12",
        "libcudnn.so.9": "nvidia-cudnn-cu12",
        "libnccl.so.2": "nvidia-nccl-cu12",
    }
}


def memory() -> dict[str, int]:
    """Return {"total_bytes", "available_bytes"} of the machine's memory, or of the part that its
    container may use.
    """
    total = machine_bytes()
    return dict(total_bytes=total, available_bytes=min(total, psutil.virtual_memory().available))


def disks() -> list[dict[str, Any]]:
    """Return a list with a dict {"what", "path", "free_bytes"} for each folder to which the
    commands write: its role, its path and the free bytes of its disk.
    """
    folders = {
        "current folder": os.getcwd(),
        "cache": cache_folder("numba"),
        "temporary": tempfile.gettempdir(),
    }
    results = []
    for what, path in folders.items():
        with contextlib.suppress(OSError):
            parent = path
            while not os.path.exists(parent):
                parent = os.path.dirname(parent)
            results.append(dict(what=what, path=path, free_bytes=shutil.disk_usage(parent).free))
    return results


def gpus() -> dict[str, object]:
    """Return the report of the GPUs' driver: {"driver" (its version), "cuda" (the highest CUDA
    version), "gpus", "problem"}. gpus: for each GPU {"index", "name", "memory_bytes", "used_bytes",
    "capability", "celsius", "power_limit_watts"}. problem: why there is no report, or None. A value
    that NVML does not report is None.
    """
    report: dict[str, object] = dict(driver=None, cuda=None, gpus=[], problem=None)
    try:
        with session():
            report["driver"] = pynvml.nvmlSystemGetDriverVersion()
            version = reading(pynvml.nvmlSystemGetCudaDriverVersion)
            report["cuda"] = version and f"{version // 1000}.{version % 1000 // 10}"
            report["gpus"] = [gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        report["problem"] = str(error)
    return report


def gpu(index: int) -> dict[str, object]:
    handle = handle_of(index)
    memory = reading(pynvml.nvmlDeviceGetMemoryInfo, handle)
    capability = reading(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    power = reading(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    return dict(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        memory_bytes=memory and memory.total,
        used_bytes=memory and memory.used,
        capability=capability and ".".join(map(str, capability)),
        celsius=reading(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power_limit_watts=power and power / 1000,
    )


def reading(query: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of `query`, one of NVML's functions; None where it raises an error."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def libraries(
    cuda_version: str | None,
    folders: Iterable[str] | None = None,
    load: Callable[[str], object] = ctypes.CDLL,
) -> list[dict[str, object]] | None:
    """Return a list with a dict {"name", "path", "package"} for each library that a TensorFlow for
    this CUDA version opens, with the path None for a missing library; None for a version that is
    not in LIBRARIES.

    folders: folders to search, None = pip's folders of NVIDIA's libraries. load: function that
    opens a library by its name, or raises OSError.
    """
    names = LIBRARIES.get(str(cuda_version).partition(".")[0])
    if names is None:
        return None
    folders = nvidia_folders() if folders is None else folders
    return [
        dict(name=name, path=find_library(name, folders, load), package=package)
        for name, package in names.items()
    ]


def find_library(
    name: str, folders: Iterable[str], load: Callable[[str], object] = ctypes.CDLL
) -> str | None:
    """Return the path of the library `name` in one of the folders, else the name if the system
    finds the library, else None. load: function that opens a library by its name, or raises
    OSError.
    """
    path = next(filter(os.path.exists, (os.path.join(folder, name) for folder in folders)), None)
    if path is not None:
        return path
    try:
        load(name)
    except OSError:
        return None
    return name


def nvidia_folders() -> list[str]:
    """Return pip's folders of NVIDIA's libraries, which TensorFlow searches first."""
    root = os.path.join(sysconfig.get_paths()["purelib"], "nvidia")
    return sorted(glob.glob(os.path.join(glob.escape(root), "*", "lib")))
