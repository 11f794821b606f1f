"""Utilisation, memory, temperature and power of a run's GPUs, from NVML (the source of nvidia-smi).

A thread samples every few seconds; `read` reduces each reading over all GPUs and all samples since
the last `read` to one value. A reading that NVML does not give is absent; one warning says so.
"""

import contextlib
import os
import threading

import pynvml

# name: (function of a GPU, reduction over GPUs and samples). Memory and temperature have limits, so
# their maximum counts.
READINGS = {
    # percent of the time in which a kernel ran
    "gpu_utilization": (lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu, "mean"),
    "gpu_memory_bytes": (lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used, "highest"),
    "gpu_temperature_celsius": (
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "highest",
    ),
    # NVML: milliwatts
    "gpu_power_watts": (lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000, "mean"),
}


class HardwareSampler:
    """Samples the GPUs of a run in a thread, until closed.

    Args:
      gpus: of `visible_gpus`; with none, nothing is sampled and `read` gives {}. seconds:
        between samples.
      warn: called at most once, with a message that NVML or a reading fails.
    """

    def __init__(self, gpus, seconds, warn):
        self.seconds, self.warn, self.has_warned = seconds, warn, False
        self.handles, self.samples = [], {name: [] for name in READINGS}
        self.lock, self.ends, self.thread = threading.Lock(), threading.Event(), None
        if gpus:
            self.handles = self._open(gpus)
        if self.handles:
            self.thread = threading.Thread(target=self._run, name="hardware", daemon=True)
            self.thread.start()

    def read(self):
        """{name: value} since the last call, for the READINGS that have samples."""
        with self.lock:
            samples, self.samples = self.samples, {name: [] for name in READINGS}
        reduce = dict(mean=lambda values: sum(values) / len(values), highest=max)
        return {
            name: float(reduce[READINGS[name][1]](values))
            for name, values in samples.items()
            if values
        }

    def close(self):
        self.ends.set()
        if self.thread is not None:
            self.thread.join()
            self.thread = None
            with contextlib.suppress(pynvml.NVMLError):  # of a GPU that is lost
                pynvml.nvmlShutdown()

    def sample(self):
        """Takes one sample of every reading and every GPU."""
        for name, (reading, _) in READINGS.items():
            try:
                values = [reading(gpu) for gpu in self.handles]
            except pynvml.NVMLError as error:
                self._complain(f"NVML does not report {name} for every GPU ({error})")
                continue
            with self.lock:
                self.samples[name] += values

    def _open(self, gpus):
        """The handles of the GPUs, [] when NVML is missing or does not know one of them."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._complain(
                "no GPU utilisation, memory, temperature or "
                f"power in the log: NVML does not start ({error})"
            )
            return []
        try:
            by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
            return [by_index(gpu) if isinstance(gpu, int) else by_uuid(gpu) for gpu in gpus]
        except pynvml.NVMLError as error:
            self._complain(
                "no GPU utilisation, memory, temperature or power "
                f"in the log: NVML does not know {gpus} ({error})"
            )
            pynvml.nvmlShutdown()
            return []

    def _run(self):
        while not self.ends.is_set():
            self.sample()
            self.ends.wait(self.seconds)

    def _complain(self, text):
        if not self.has_warned:
            self.warn(text)
        self.has_warned = True


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


def count_gpus(environ=os.environ):
    """How many GPUs CUDA would find, from NVML, without starting CUDA; 0 when NVML fails."""
    try:
        pynvml.nvmlInit()
        num_gpus = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_gpus
    names = [name.strip() for name in visible.split(",")]
    is_there = [not name.lstrip("-").isdecimal() or 0 <= int(name) < num_gpus for name in names]
    # CUDA stops at the first one that does not exist
    return (is_there + [False]).index(False) if visible.strip() else 0
