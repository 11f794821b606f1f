"""What a machine has that a training needs: memory, disks, GPUs as their driver sees them, and the
CUDA libraries that TensorFlow loads; its processor is in processor.py. Nothing here needs
TensorFlow.
"""

import contextlib
import ctypes
import glob
import os
import shutil
import sysconfig
import tempfile

import psutil
import pynvml

from bert_gpu.base.environment import cache_folder
from bert_gpu.devices.nvml import handle_of, machine_bytes, session

# {CUDA's major version: {library that TensorFlow opens: pip package that has it}}
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


def memory():
    """{total_bytes, available_bytes}, within the limit of a container."""
    total = machine_bytes()
    return dict(total_bytes=total, available_bytes=min(total, psutil.virtual_memory().available))


def disks():
    """[{what, path, free_bytes}] of the folders that the commands write to."""
    folders = {
        "current folder": os.getcwd(),
        "cache": cache_folder("numba"),
        "temporary": tempfile.gettempdir(),
    }
    found = []
    for what, path in folders.items():
        with contextlib.suppress(OSError):
            there = path
            while not os.path.exists(there):
                there = os.path.dirname(there)
            found.append(dict(what=what, path=path, free_bytes=shutil.disk_usage(there).free))
    return found


def gpus():
    """What the driver says: {driver, cuda, gpus: [{index, name, memory_bytes, used_bytes,
    capability, celsius, power_limit_watts}], problem}; problem: why there is nothing, or None.
    A reading that NVML does not give is None.
    """
    found = dict(driver=None, cuda=None, gpus=[], problem=None)
    try:
        with session():
            found["driver"] = pynvml.nvmlSystemGetDriverVersion()
            version = reading(pynvml.nvmlSystemGetCudaDriverVersion)
            found["cuda"] = version and f"{version // 1000}.{version % 1000 // 10}"
            found["gpus"] = [gpu(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError as error:
        found["problem"] = str(error)
    return found


def gpu(index):
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


def reading(ask, *arguments):
    """What NVML answers, None where it does not."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def libraries(cuda_version, folders=None, load=ctypes.CDLL):
    """[{name, path, package}] of the libraries that a TensorFlow for a CUDA version opens; path:
    where it is, None = missing. None for a version that is not in the table.

    folders: that may hold pip's NVIDIA packages. load: opens a library by its name, or raises
    OSError.
    """
    names = LIBRARIES.get(str(cuda_version).partition(".")[0])
    if names is None:
        return None
    folders = nvidia_folders() if folders is None else folders
    return [
        dict(name=name, path=find_library(name, folders, load), package=package)
        for name, package in names.items()
    ]


def find_library(name, folders, load=ctypes.CDLL):
    """The path of a library in one of the folders, its name where the system finds it, or None."""
    path = next(filter(os.path.exists, (os.path.join(folder, name) for folder in folders)), None)
    if path is not None:
        return path
    try:
        load(name)
    except OSError:
        return None
    return name


def nvidia_folders():
    """Where pip puts the libraries of its NVIDIA packages, where TensorFlow looks first."""
    root = os.path.join(sysconfig.get_paths()["purelib"], "nvidia")
    return sorted(glob.glob(os.path.join(glob.escape(root), "*", "lib")))
