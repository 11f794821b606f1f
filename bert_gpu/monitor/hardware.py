"""Samples utilisation, memory, temperature, power, clocks and throttling of a run's GPUs, from NVML
(the source of nvidia-smi).

A thread samples; `read` reduces each reading over all GPUs and all samples since the last `read` to
one value, and some readings to one for each GPU as well. A reading that NVML does not report is
absent; a single warning says so. The energy is added up from a counter with every sample, because a
counter that begins again between two samples is noticed, but not one that does so twice.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pynvml

from bert_gpu.devices import nvml
from bert_gpu.runs.metrics import ENERGY

# bits of NVML's mask of the reasons that hold the clocks down
POWER_CAP = 0x4
HARDWARE = 0x8 | 0x80
HEAT = 0x20 | 0x40


def clock_mhz(gpu: Any) -> int:
    return pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)


def clock_share(gpu: Any) -> float:
    return clock_mhz(gpu) / pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)


def is_throttled(reasons: int) -> Callable[[Any], bool]:
    """Return a function that takes a GPU's NVML handle and returns whether the GPU's clocks are
    held down for one of `reasons`, bits of NVML's mask.
    """
    # the newer name of this call is missing in older drivers
    return lambda gpu: bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & reasons)


# {name: (function of a GPU's NVML handle, reduction over GPUs and samples)}. Memory and temperature
# have limits, so their maximum counts.
READINGS: dict[str, tuple[Callable[[Any], float], str]] = {
    # percent of the time in which a kernel ran
    "gpu_utilization": (lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu, "mean"),
    "gpu_memory_bytes": (lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used, "highest"),
    "gpu_temperature_celsius": (
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "highest",
    ),
    # NVML reports milliwatts
    "gpu_power_watts": (lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000, "mean"),
    # clock of the multiprocessors, in MHz and as a share of the GPU's highest clock
    "gpu_clock_mhz": (clock_mhz, "mean"),
    "gpu_clock_share": (clock_share, "mean"),
    # share of the samples in which the clocks were held down, by cause
    "gpu_throttled_power": (is_throttled(POWER_CAP), "mean"),
    "gpu_throttled_heat": (is_throttled(HEAT), "mean"),
    "gpu_throttled_hardware": (is_throttled(HARDWARE), "mean"),
}
# readings that are logged for each GPU too where there are several, as gpu_0_clock_mhz
PER_GPU = ("gpu_clock_mhz", "gpu_temperature_celsius")
SECONDS = 5.0  # from one sample to the next
COVERED = "GPU utilisation, memory, temperature, power or clocks"


class HardwareSampler:
    """Samples the GPUs of a run in a thread, until closed.

    Args of the constructor:
      gpus: indices or UUIDs from `nvml.visible_gpus`; without any, nothing is sampled and `read`
        returns {}.
      warn: called at most once, with a message that NVML or a reading fails.
      earlier_kwh: energy of earlier sessions of the run, None = not known. clock: function that
        returns seconds.
    """

    def __init__(
        self,
        gpus: Sequence[int | str],
        warn: Callable[[str], None],
        earlier_kwh: float | None = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.warn = warn
        self.earlier_kwh = earlier_kwh
        self.clock = clock
        self.joules = 0.0  # of this session
        # (time, millijoules of each GPU) of the last reading; without GPUs before the first
        self.counters: tuple[float, list[int]] = (0.0, [])
        self.has_warned = False
        self.nvml = contextlib.ExitStack()
        # {reading: samples, each a list with a value for every GPU}
        self.samples: dict[str, list[list[float]]] = {name: [] for name in READINGS}
        self.lock = threading.Lock()
        self.ends = threading.Event()
        self.thread: threading.Thread | None = None
        self.handles = self._open(gpus) if gpus else []
        if self.handles:
            self.thread = threading.Thread(target=self._run, name="hardware", daemon=True)
            self.thread.start()

    def read(self) -> dict[str, float]:
        """Return {reading: value over all samples since the last call} for the READINGS that have
        samples. The numbers in names such as gpu_0_clock_mhz count the run's GPUs from 0.
        """
        with self.lock:
            samples, self.samples = self.samples, {name: [] for name in READINGS}
        values = {
            name: reduced(name, [value for sample in rows for value in sample])
            for name, rows in samples.items()
            if rows
        }
        if len(self.handles) > 1:
            for name in PER_GPU:
                for gpu, column in enumerate(zip(*samples[name], strict=True)):
                    values[name.replace("gpu", f"gpu_{gpu}", 1)] = reduced(name, column)
        return values

    def energy(self) -> dict[str, float]:
        """Return {ENERGY: kWh of all sessions of the run until now}, {} when it is not known."""
        with contextlib.suppress(pynvml.NVMLError):  # raised after `close`, too
            self._count_energy()
        if not self.counters[1] or self.earlier_kwh is None:
            return {}
        return {ENERGY: self.earlier_kwh + self.joules / 3.6e6}

    def close(self) -> None:
        self.energy()
        self.ends.set()
        if self.thread is not None:
            self.thread.join()
            self.nvml.close()

    def sample(self) -> None:
        """Take one sample of every reading and every GPU."""
        with contextlib.suppress(pynvml.NVMLError):  # the log says that the energy is unknown
            self._count_energy()
        for name, (reading, _) in READINGS.items():
            try:
                values = [reading(gpu) for gpu in self.handles]
            except pynvml.NVMLError as error:
                self._warn_once(f"NVML does not report {name} for every GPU ({error})")
                continue
            with self.lock:
                self.samples[name].append(values)

    def _count_energy(self) -> None:
        """Add the energy since the last call. Raises NVMLError where a GPU has no counter."""
        with self.lock:
            counters = [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self.handles]
            now = self.clock()
            seconds = now - self.counters[0]
            # before the first reading there is nothing to compare with
            readings = zip(self.handles, self.counters[1], counters, strict=False)
            watts = READINGS["gpu_power_watts"][0]
            self.joules += sum(
                nvml.joules_between(before, after, seconds, functools.partial(watts, gpu))
                for gpu, before, after in readings
            )
            self.counters = now, counters

    def _open(self, gpus: Sequence[int | str]) -> list[Any]:
        """Return NVML's handles of the GPUs, [] when NVML or one of the GPUs is missing."""
        try:
            self.nvml.enter_context(nvml.session())
        except pynvml.NVMLError as error:
            self._warn_once(f"no {COVERED} in the log: NVML does not start ({error})")
            return []
        try:
            return [nvml.handle_of(gpu) for gpu in gpus]
        except pynvml.NVMLError as error:
            self._warn_once(f"no {COVERED} in the log: NVML does not find {gpus} ({error})")
            self.nvml.close()
            return []

    def _run(self) -> None:
        while not self.ends.is_set():
            self.sample()
            self.ends.wait(SECONDS)

    def _warn_once(self, text: str) -> None:
        if not self.has_warned:
            self.warn(text)
        self.has_warned = True


def reduced(name: str, values: Iterable[float]) -> float:
    """Return the mean or the highest of the values of the reading `name`, as READINGS says."""
    values = list(values)
    mean = sum(values) / len(values)
    return float(mean if READINGS[name][1] == "mean" else max(values))
