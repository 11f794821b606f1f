"""Samples utilisation, memory, temperature, power, clocks and throttling of a run's GPUs, from NVML
(the source of nvidia-smi).

A thread samples; `read` reduces each reading over all GPUs and all samples since the last `read` to
one value, and some readings to one for each GPU as well. A reading that NVML does not report is
absent; a single warning says so. The energy is added up from a counter with every sample, because a
counter that begins again between two samples is noticed, but not one that does so twice.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

import pynvml

from bert_gpu.devices import nvml
from bert_gpu.runs.metrics import ENERGY

# bits of NVML's mask of the reasons that hold the clocks down
POWER_CAP = 0x4
HARDWARE = 0x8 | 0x80
HEAT = 0x20 | 0x40


def clock_mhz(gpu: object) -> int:
    return pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)


def clock_share(gpu: object) -> float:
    return clock_mhz(gpu) / pynvml.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM)


def is_throttled(reasons: int) -> Callable[[object], bool]:
    """Return a function that takes a GPU's NVML handle and returns whether the GPU's clocks are
    held down for one of `reasons`, bits of NVML's mask.
    """
    # the newer name of this call is missing in older drivers
    return lambda gpu: bool(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu) & reasons)


# {name: (function of a GPU's NVML handle, reduction over GPUs and samples)}. Memory and temperature
# have limits, so their maximum counts.
READINGS: dict[str, tuple[Callable[[object], float], str]] = {
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
# The counter of a GPU's energy, in millijoules since the driver was loaded, has 64 bits in NVML; a
# counter of 32 bits begins again after 1.2 kWh.
WRAP = 1 << 32
COVERED = "GPU utilisation, memory, temperature, power or clocks"


class HardwareSampler:
    """Samples the GPUs of a run in a thread, until closed.

    Args of the constructor:
      gpus: indices or UUIDs from `nvml.visible_gpus`; without any, nothing is sampled and `read`
        returns {}.
      warn: called at most once, with a message that NVML or a reading fails.
      earlier_kwh: energy of earlier sessions of the run, None = not known.
    """

    def __init__(
        self,
        gpus: Sequence[int | str],
        warn: Callable[[str], None],
        earlier_kwh: float | None = 0.0,
    ) -> None:
        self.warn = warn
        self.earlier_kwh = earlier_kwh
        self.millijoules = 0  # of this session
        self.counters: list[int] = []  # of the GPUs at the last reading; [] before the first
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
        """Count the energy since the last reading of the counters, and return {ENERGY: kWh of all
        sessions of the run until now}, {} when it is not known.
        """
        # raised where a GPU has no counter, and after `close`
        with contextlib.suppress(pynvml.NVMLError), self.lock:
            counters = [pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) for gpu in self.handles]
            # before the first reading there is nothing to compare with
            pairs = zip(self.counters, counters, strict=False)
            rises = [(after - before) % WRAP for before, after in pairs]
            self.millijoules += sum(rise for rise in rises if rise < WRAP // 2)  # else it fell
            self.counters = counters
        if not self.counters or self.earlier_kwh is None:
            return {}
        return {ENERGY: self.earlier_kwh + self.millijoules / 3.6e9}

    def close(self) -> None:
        self.energy()
        self.ends.set()
        if self.thread is not None:
            self.thread.join()
            self.nvml.close()

    def sample(self) -> None:
        """Take one sample of every reading and every GPU."""
        self.energy()
        for name, (reading, _) in READINGS.items():
            try:
                values = [reading(gpu) for gpu in self.handles]
            except pynvml.NVMLError as error:
                self._warn_once(f"NVML does not report {name} for every GPU ({error})")
                continue
            with self.lock:
                self.samples[name].append(values)

    def _open(self, gpus: Sequence[int | str]) -> list[object]:
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
