"""Warns of what slows a run down, once each, with what to change: waiting for data, clocks that are
held down, one GPU slower than the others, validation.

It looks at the lines of metrics alone, and at nothing shorter than a minute; validation comes in
bursts, so of it the whole session counts.
"""

import collections
import re
import statistics

SUSTAINED_SECONDS = 60.0
WAITS, BUSY = 0.2, 90.0  # share of time; percent of utilisation above which nothing is missing
THROTTLED = 0.5  # share of the samples
POWER_CLOCK = 0.75  # of the highest: GPUs at their power limit are often somewhat below it
SLOW_CLOCK = 0.8  # of the other GPUs'
VALIDATION, VALIDATIONS = 0.25, 3  # share of the session; how many before it is judged


class SlowdownWarnings:
    """Args of the constructor: warn: takes a text. kind: "GPU" or "CPU"."""

    def __init__(self, warn, kind="GPU"):
        self.warn, self.kind, self.warned = warn, kind, set()
        self.lines, self.since = collections.deque(), None  # (seconds of the line, its values)
        self.seconds = self.validation_seconds = 0.0  # of the session
        self.num_validations = 0

    def observe(self, values):
        """Takes the values of a line of training: {name: number or None}."""
        now, since = values["seconds"], self.since
        self.since = now
        if since is None or now < since:  # the first line, which compiled, or after a rollback
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

    def _mean(self, name):
        """Over the time of the lines; None when one of them does not say."""
        values = [(seconds, line.get(name)) for seconds, line in self.lines]
        if any(value is None for _, value in values):
            return None
        return sum(seconds * value for seconds, value in values) / sum(s for s, _ in values)

    def _problems(self):
        """Yields (topic, text)."""
        waits, busy = self._mean("input_wait"), self._mean("gpu_utilization")
        if waits is not None and waits >= WAITS and (busy is None or busy < BUSY):
            who = "the GPUs wait" if self.kind == "GPU" else "training waits"
            yield (
                "input",
                f"{who} for data {waits:.0%} of the time; put the records on a local disk, give "
                "the run more CPU cores, or build the data without --gzip_compress and with "
                "--masking=static",
            )
        share = self.validation_seconds / self.seconds
        if self.num_validations >= VALIDATIONS and share >= VALIDATION:
            yield (
                "validation",
                f"validation takes {share:.0%} of the time; give a larger --eval_batch_size, or "
                "validate less often with --eval_steps or --validation_marks",
            )
        heat, hardware = self._mean("gpu_throttled_heat"), self._mean("gpu_throttled_hardware")
        if heat is not None and heat >= THROTTLED:
            celsius = self._mean("gpu_temperature_celsius")
            shown = "" if celsius is None else f" at {celsius:.0f} degrees Celsius"
            yield (
                "heat",
                f"heat holds the GPUs' clocks down{shown}; check their cooling, or lower "
                "their power limit (nvidia-smi -pl)",
            )
        elif hardware is not None and hardware >= THROTTLED:
            yield (
                "hardware",
                "the GPUs' hardware holds their clocks down; check the power supply and cooling "
                "(nvidia-smi -q -d PERFORMANCE says why)",
            )
        power, clock = self._mean("gpu_throttled_power"), self._mean("gpu_clock_share")
        if None not in (power, clock) and power >= THROTTLED and clock < POWER_CLOCK:
            yield (
                "power",
                f"the power limit holds the GPUs' clocks at {clock:.0%} of the highest; raise it "
                "where the machine allows it (nvidia-smi -pl)",
            )
        yield from self._slow_gpu()

    def _slow_gpu(self):
        names = [name for name in self.lines[-1][1] if re.fullmatch(r"gpu_\d+_clock_mhz", name)]
        clocks = {name.split("_")[1]: self._mean(name) for name in names}
        if len(clocks) < 2 or None in clocks.values():
            return
        slowest = min(clocks, key=clocks.get)
        others = statistics.median(clock for gpu, clock in clocks.items() if gpu != slowest)
        if clocks[slowest] < SLOW_CLOCK * others:
            yield (
                "slow GPU",
                f"GPU {slowest} of the run is slower than the others: {clocks[slowest]:,.0f} MHz, "
                f"theirs {others:,.0f}; every step waits for it (nvidia-smi -q -d PERFORMANCE says "
                "why, --gpus leaves it out)",
            )
