"""What NVML says arrives in the right units and means; what it does not say is absent
and told once.
"""

import threading
import time
import types

import pynvml
import pytest

from bert_gpu.devices import nvml as nvml_sessions
from bert_gpu.devices.nvml import describe_energy, visible_gpus
from bert_gpu.monitor import hardware, metrics_log
from bert_gpu.monitor.advice import SlowdownWarnings
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.monitor.hardware import HardwareSampler
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.metrics import read_lines

HOT = pynvml.nvmlClocksThrottleReasonHwSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown


class NVMLError(Exception):
    pass


class FakeNvml:
    """The calls of pynvml that are used, for two GPUs whose readings a test sets."""

    NVMLError, NVML_TEMPERATURE_GPU, NVML_CLOCK_SM = NVMLError, 0, 1

    def __init__(
        self,
        utilization=(50, 100),
        used=(1 << 30, 3 << 30),
        celsius=(60, 71),
        milliwatts=(200_000, 300_500),
        clocks=(1980, 1485),
        reasons=(0, pynvml.nvmlClocksThrottleReasonSwPowerCap),
        millijoules=(0, 0),
    ):
        self.utilization, self.used, self.celsius, self.milliwatts = (
            utilization,
            used,
            celsius,
            milliwatts,
        )
        self.clocks, self.reasons = clocks, reasons
        self.millijoules = millijoules
        self.fails, self.num_open, self.asked = set(), 0, []

    def nvmlInit(self):
        self.check("init")
        self.num_open += 1

    def nvmlShutdown(self):
        self.num_open -= 1

    def nvmlDeviceGetHandleByIndex(self, number):
        self.asked.append(number)
        if number > 1:
            raise NVMLError("Invalid Argument")
        return number

    def nvmlDeviceGetHandleByUUID(self, uuid):
        self.asked.append(uuid)
        return dict(a=0, b=1)[uuid]

    def nvmlDeviceGetUtilizationRates(self, gpu):
        self.check("utilization")
        return types.SimpleNamespace(gpu=self.utilization[gpu], memory=99)

    def nvmlDeviceGetMemoryInfo(self, gpu):
        self.check("memory")
        return types.SimpleNamespace(total=80 << 30, used=self.used[gpu], free=0)

    def nvmlDeviceGetTemperature(self, gpu, sensor):
        self.check("temperature")
        return self.celsius[gpu]

    def nvmlDeviceGetPowerUsage(self, gpu):
        self.check("power")
        return self.milliwatts[gpu]

    def nvmlDeviceGetClockInfo(self, gpu, kind):
        assert kind == self.NVML_CLOCK_SM
        self.check("clock")
        return self.clocks[gpu]

    def nvmlDeviceGetMaxClockInfo(self, gpu, kind):
        assert kind == self.NVML_CLOCK_SM
        return 1980

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu):
        self.check("reasons")
        return self.reasons[gpu]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu):
        self.check("energy")
        return self.millijoules[gpu]

    def check(self, what):
        if what in self.fails:
            raise NVMLError("GPU is lost")


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    for module in (hardware, nvml_sessions):
        monkeypatch.setattr(module, "pynvml", fake)
    return fake


def sampler_of(gpus, warn=pytest.fail):
    """A sampler that has taken its first sample and takes no other by itself."""
    sampler = HardwareSampler(gpus, warn)
    wait_for_sample(sampler)
    return sampler


def wait_for_sample(sampler):
    for _ in range(60_000):  # ten minutes, which only end a hang
        if sampler.samples["gpu_throttled_hardware"]:  # the last of them
            return
        time.sleep(0.01)
    pytest.fail("no sample")


def test_the_binding_has_what_is_used():
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert len(names) == 15 and all(hasattr(pynvml, name) for name in names)


def test_numbers_over_gpus_and_samples(nvml):
    sampler = sampler_of([0, 1])
    nvml.utilization, nvml.used, nvml.celsius, nvml.milliwatts = (
        (0, 10),
        (2 << 30, 1 << 30),
        (80, 50),
        (100_000, 100_000),
    )
    nvml.clocks = (990, 1485)
    nvml.reasons = (
        pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonGpuIdle,
    )
    sampler.sample()
    assert sampler.read() == dict(
        gpu_utilization=(50 + 100 + 0 + 10) / 4,
        gpu_memory_bytes=3 << 30,
        gpu_temperature_celsius=80,
        gpu_power_watts=(200 + 300.5 + 100 + 100) / 4,
        gpu_clock_mhz=(1980 + 1485 + 990 + 1485) / 4,
        gpu_clock_share=(1 + 0.75 + 0.5 + 0.75) / 4,
        gpu_throttled_power=1 / 4,
        gpu_throttled_heat=1 / 4,
        gpu_throttled_hardware=1 / 4,
        gpu_0_clock_mhz=(1980 + 990) / 2,
        gpu_1_clock_mhz=1485,
        gpu_0_temperature_celsius=80,
        gpu_1_temperature_celsius=71,
    )
    assert sampler.read() == {}  # nothing new since
    sampler.sample()
    values = sampler.read()
    assert values["gpu_utilization"] == 5 and all(type(value) is float for value in values.values())
    sampler.close()
    assert nvml.num_open == 0


def test_only_the_gpus_of_the_run(nvml):
    sampler = sampler_of([1])
    assert sampler.read() == dict(
        gpu_utilization=100.0,
        gpu_memory_bytes=float(3 << 30),
        gpu_temperature_celsius=71.0,
        gpu_power_watts=300.5,
        gpu_clock_mhz=1485.0,
        gpu_clock_share=0.75,
        gpu_throttled_power=1.0,
        gpu_throttled_heat=0.0,
        gpu_throttled_hardware=0.0,
    )
    sampler.close()


def test_the_thread_goes_on_by_itself_and_ends(nvml, monkeypatch):
    monkeypatch.setattr(hardware, "SECONDS", 0.001)
    sampler = HardwareSampler([0], pytest.fail)
    for _ in range(3):
        wait_for_sample(sampler)
        assert sampler.read()["gpu_utilization"] == 50.0
    sampler.close()
    assert "hardware" not in {thread.name for thread in threading.enumerate()}
    sampler.close()
    assert nvml.num_open == 0


def test_what_nvml_stops_giving_is_absent_and_told_once(nvml):
    told = []
    sampler = sampler_of([0, 1], told.append)
    sampler.read()
    nvml.fails = {"power", "reasons"}
    for _ in range(3):
        sampler.sample()
    assert sampler.read().keys() == {
        "gpu_utilization",
        "gpu_memory_bytes",
        "gpu_temperature_celsius",
        "gpu_clock_mhz",
        "gpu_clock_share",
        "gpu_0_clock_mhz",
        "gpu_1_clock_mhz",
        "gpu_0_temperature_celsius",
        "gpu_1_temperature_celsius",
    }
    nvml.fails = {"power", "utilization", "memory", "temperature", "clock", "reasons"}
    sampler.sample()
    assert sampler.read() == {}
    assert len(told) == 1 and "gpu_power_watts" in told[0] and "GPU is lost" in told[0]
    nvml.fails = set()
    sampler.sample()
    assert len(sampler.read()) == 9 + 2 * 2
    sampler.close()


def test_without_nvml_nothing_is_pretended(nvml):
    told = []
    nvml.fails = {"init"}
    sampler = HardwareSampler([0], told.append)
    assert (
        sampler.read() == {}
        and sampler.thread is None
        and len(told) == 1
        and "NVML does not start" in told[0]
    )
    sampler.close()
    nvml.fails = set()
    sampler = HardwareSampler([0, 7], told.append)
    assert sampler.read() == {} and len(told) == 2 and "does not find [0, 7]" in told[1]
    sampler.close()
    assert nvml.num_open == 0


def test_on_the_cpu_nvml_is_not_even_asked(nvml):
    nvml.fails = {"init"}
    sampler = HardwareSampler([], pytest.fail)
    assert sampler.read() == {}
    sampler.close()


def test_the_log_gives_them(nvml, tmp_path):
    log = metrics_log.Log({}, sampler_of([0]), pytest.fail)
    assert log.hardware()["gpu_power_watts"] == 200.0
    log.close()
    assert nvml.num_open == 0


def test_throttling_that_lasts_is_warned_of(nvml):
    """From the binding to the warning; a GPU at its power limit that keeps its clocks is fine."""
    told, nvml.clocks = [], (1980, 1800)
    sampler, advice = sampler_of([0, 1]), SlowdownWarnings(told.append)
    for minute in range(4):
        if minute == 2:
            assert told == []
            nvml.reasons, nvml.celsius = (0, HOT), (70, 92)
        sampler.sample()
        advice.observe(dict(seconds=60.0 * minute) | sampler.read())
    sampler.close()
    assert len(told) == 1 and told[0].startswith("the GPUs' clocks are held down (heat)")


def test_which_gpus_those_of_tensorflow_are(nvml):
    assert visible_gpus([0, 2], {}) == [0, 2]
    assert visible_gpus([0, 2], dict(CUDA_VISIBLE_DEVICES="3, 1,0")) == [3, 0]
    uuids = visible_gpus([1], dict(CUDA_VISIBLE_DEVICES="a,b"))
    assert uuids == ["b"]
    assert visible_gpus([], dict(CUDA_VISIBLE_DEVICES="-1")) == []
    sampler = sampler_of(uuids)
    assert nvml.asked == ["b"] and sampler.read()["gpu_utilization"] == 100.0
    sampler.close()


def test_energy_of_a_counter_that_begins_again_twice_between_two_log_lines(nvml):
    """1.2 kWh are 2**32 millijoules; GPU 1 has a counter that does not begin again."""
    start, step = 1 << 32, 1_440_000_000  # .4 kWh
    nvml.millijoules = (start - 1000, start - 1000)
    sampler = HardwareSampler([], pytest.fail)
    sampler.handles = [0, 1]  # without the thread, which takes samples of its own
    log = metrics_log.Log({}, sampler, pytest.fail)
    sampler.sample()
    for number in range(1, 6):
        total = start - 1000 + step * number
        nvml.millijoules = (total % (1 << 32), total)
        sampler.sample()
    assert (start - 1000 + 5 * step) // (1 << 32) == 2  # wraps that GPU 0 has behind it
    nvml.millijoules = (nvml.millijoules[0] + 3_600_000, nvml.millijoules[1])
    assert log.hardware()["energy_kwh"] == pytest.approx(2 * 5 * 0.4 + 0.001, rel=1e-12)


@pytest.mark.parametrize("before, after", [(900_000_000, 50_000), (1 << 40, 1 << 39), (70, 69)])
def test_a_counter_that_falls_counts_from_there(nvml, before, after):
    """A fall is no rise of nearly 1.2 kWh."""
    nvml.millijoules = (before, 0)
    sampler = HardwareSampler([], pytest.fail)
    sampler.handles = [0]
    sampler.sample()
    nvml.millijoules = (after, 0)
    assert sampler.energy() == dict(energy_kwh=0.0)
    nvml.millijoules = (after + 7000, 0)
    assert sampler.energy() == dict(energy_kwh=7000 / 3.6e9)


def test_energy_adds_up_over_a_resume(nvml, tmp_path):
    """What came after the last checkpoint counts too, up to the last log line."""
    folder = RunFolder(str(tmp_path / "run"))
    folder.create({})

    def session(step, *kwh):
        """Opens the log, and writes a line a step; returns the lines of the file."""
        nvml.millijoules = (5_000_000, 5_000_000)
        config = MonitorConfig(tensorboard=False)
        log = metrics_log.open_log(folder, config, {}, step=step, gpus=[0, 1], warn=pytest.fail)
        wait_for_sample(log.sampler)
        for number, energy in enumerate(kwh, (step or 0) + 1):
            nvml.millijoules = (5_000_000 + round(3.6e9 * energy), 5_000_000)
            log.write(number, log.energy())
        log.close()
        return [
            (values["step"], values.get("energy_kwh")) for values, _ in read_lines(folder.metrics)
        ]

    assert session(None, 0.001, 0.002, 0.003) == [(1, 0.001), (2, 0.002), (3, 0.003)]
    assert session(2, 0.001) == [(1, 0.001), (2, 0.002), (3, pytest.approx(0.004))]
    nvml.fails = {"energy"}  # a machine without a counter: from then on it is not known
    assert session(3, 0.0)[-1] == (4, None)
    nvml.fails = set()
    assert session(4, 0.001)[-1] == (5, None)
    assert session(None, 0.0005) == [(1, 0.0005)]  # a new run


def test_energy_is_unknown_without_a_counter(nvml):
    nvml.fails = {"energy"}
    old = sampler_of([0])
    assert old.energy() == {} and old.read()["gpu_power_watts"] == 200.0
    old.close()
    none = HardwareSampler([], pytest.fail)
    assert none.energy() == {}
    none.close()
    assert describe_energy(None, 1) == "unknown (only GPUs from Volta on count it)"
    assert (
        describe_energy(1.23456, 1) == "1.23 kWh of its GPUs, all of their processes counted (NVML)"
    )
    assert describe_energy(0.00001, 4).startswith("1e-05 kWh of the GPUs of worker 0 of 4 workers")
