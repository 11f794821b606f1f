"""Warns once of each cause that slows a run down, and names the remedy: waiting for data, clocks
that are held down, one GPU slower than the others, validation.

The warnings depend only on the logged metrics, averaged over at least a minute. Validation comes in
bursts, so its time is compared with the whole session's.
"""

import collections
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SUSTAINED_SECONDS = 60.0
WAITS = 0.2  # share of the time spent waiting for data that brings a warning
BUSY = 90.0  # percent of GPU utilisation from which waiting for data does not matter
THROTTLED = 0.5  # share of samples with lowered clocks that brings a warning
# share of the highest clock below which the power limit brings a warning: GPUs at that limit are
# often somewhat below the highest clock
POWER_CLOCK = 0.75
SLOW_CLOCK = 0.8  # share of the other GPUs' median clock below which a GPU is slow
VALIDATION = 0.25  # share of the session's time in validation that brings a warning
VALIDATIONS = 3  # validations before the first warning about them


class SlowdownWarnings:
    """Watches the metrics logged in a session, and warns of what slows training down.

    Args of the constructor: warn: function that prints a text. kind: of the devices, "GPU" or
    "CPU".
    """

    def __init__(self, warn: Callable[[str], None], kind: str = "GPU") -> None:
        self.warn = warn
        self.kind = kind
        self.warned: set[str] = set()  # topics of the warnings given
        # log lines of the last minute: (seconds that the line covers, {metric: value})
        self.lines: collections.deque[tuple[float, Mapping[str, Any]]] = collections.deque()
        self.since: float | None = None  # training time in seconds at the last log line
        self.seconds = self.validation_seconds = 0.0  # seconds of this session
        self.num_validations = 0

    def observe(self, values: Mapping[str, Any]) -> None:
        """Take {metric: number or None} of a log line of training, and warn of problems that have
        not been warned of.
        """
        now = values["seconds"]
        since = self.since
        self.since = now
        if since is None or now < since:  # the first line, which includes compiling, or a rollback
            self.lines.clear()
            return
        self.lines.append((now - since, values))
        share = values.get("time_validation") or 0.0
        self.seconds += now - since
        self.validation_seconds += share * (now - since)
        self.num_validations += share > 0
        while sum(seconds for seconds, _ in self.lines) - self.lines[0][0] >= SUSTAINED_SECONDS:
            self.lines.popleft()
        if sum(seconds for seconds, _ in self.lines) < SUSTAINED_SECONDS:
            return
        for topic, text in self._problems():
            if topic not in self.warned:
                self.warned.add(topic)
                self.warn(text)

    def _mean(self, name: str) -> float | None:
        """Return the mean of a metric over the log lines of the last minute, weighted by the
        seconds of each line; None when a line lacks the metric.
        """
        if any(line.get(name) is None for _, line in self.lines):
            return None
        total = sum(seconds * line[name] for seconds, line in self.lines)
        return total / sum(seconds for seconds, _ in self.lines)

    def _problems(self) -> Iterator[tuple[str, str]]:
        """Yield (topic, text of the warning) for each problem that the recent log lines show."""
        waits = self._mean("input_wait")
        busy = self._mean("gpu_utilization")
        if waits is not None and waits >= WAITS and (busy is None or busy < BUSY):
            subject = "the GPUs wait" if self.kind == "GPU" else "training waits"
            yield (
                "input",
                f"{subject} for data {waits:.0%} of the time; put the records on a local disk, "
                "give the run more CPU cores, or build the data with --masking=static",
            )
        share = self.validation_seconds / self.seconds
        if self.num_validations >= VALIDATIONS and share >= VALIDATION:
            yield (
                "validation",
                f"validation takes {share:.0%} of the time; give a larger --eval_batch_size, or "
                "validate less often with --eval_steps or --validation_marks",
            )
        heat = self._mean("gpu_throttled_heat")
        hardware = self._mean("gpu_throttled_hardware")
        if heat is not None and heat >= THROTTLED:
            celsius = self._mean("gpu_temperature_celsius")
            temperature = "" if celsius is None else f" at {celsius:.0f} degrees Celsius"
            yield (
                "heat",
                f"heat holds the GPUs' clocks down{temperature}; check their cooling, or lower "
                "their power limit (nvidia-smi -pl)",
            )
        elif hardware is not None and hardware >= THROTTLED:
            yield (
                "hardware",
                "the GPUs' hardware holds their clocks down; check the power supply and cooling "
                "(nvidia-smi -q -d PERFORMANCE says why)",
            )
        power = self._mean("gpu_throttled_power")
        clock = self._mean("gpu_clock_share")
        if power is not None and power >= THROTTLED and clock is not None and clock < POWER_CLOCK:
            yield (
                "power",
                f"the power limit holds the GPUs' clocks at {clock:.0%} of the highest; raise it "
                "where the machine allows it (nvidia-smi -pl)",
            )
        yield from self._slow_gpu()

    def _slow_gpu(self) -> Iterator[tuple[str, str]]:
        names = [name for name in self.lines[-1][1] if re.fullmatch(r"gpu_\d+_clock_mhz", name)]
        clocks = {
            name.split("_")[1]: mean for name in names if (mean := self._mean(name)) is not None
        }
        if len(clocks) < max(2, len(names)):
            return
        slowest = min(clocks, key=lambda gpu: clocks[gpu])
        others = statistics.median(clock for gpu, clock in clocks.items() if gpu != slowest)
        if clocks[slowest] < SLOW_CLOCK * others:
            yield (
                "slow GPU",
                f"GPU {slowest} of the run is slower than the others: {clocks[slowest]:,.0f} MHz, "
                f"theirs {others:,.0f}; every step waits for it (nvidia-smi -q -d PERFORMANCE says "
                "why, CUDA_VISIBLE_DEVICES leaves it out)",
            )
