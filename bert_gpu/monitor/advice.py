"""Warns once of each cause that slows a run down, and names the remedy: waiting for data, clocks
that are held down, validation.

The warnings depend only on the logged metrics, averaged over at least a minute. Validation comes in
bursts, so its time is compared with the whole session's.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
from typing import Any

SUSTAINED_SECONDS = 60.0
WAITS = 0.2  # share of the time spent waiting for data that brings a warning
BUSY = 90.0  # percent of GPU utilisation from which waiting for data does not matter
THROTTLED = 0.5  # share of samples with lowered clocks that brings a warning
POWER_CLOCK = 0.75  # share of the highest clock below which the power limit brings a warning
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
        # a GPU at its power limit is often somewhat below its highest clock
        clock = self._mean("gpu_clock_share")
        is_slow = clock is not None and clock < POWER_CLOCK
        for cause, matters in (("heat", True), ("hardware", True), ("power", is_slow)):
            held = self._mean(f"gpu_throttled_{cause}")
            if matters and held is not None and held >= THROTTLED:
                yield (
                    "clocks",
                    f"the GPUs' clocks are held down ({cause}); check their cooling, power supply "
                    "and power limit (nvidia-smi -q -d PERFORMANCE)",
                )
                return
