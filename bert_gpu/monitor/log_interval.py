"""Measures mean metrics and throughput between two log lines, and how a session spends its time.

Values are fetched from the device only when the interval between two log lines ends, so that the
training loop does not wait for every step.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.monitor.throughput import utilization

# The uses of a session's time: steps; waiting for data; the first call of steps, which compiles;
# validation; saving, which is checkpoints and exports.
ACTIVITIES = ("training", "input", "compiling", "validation", "saving")


class Stopwatch:
    """Counts the seconds of a run over all sessions, and the seconds of this session by activity.

    Args of the constructor: spent: seconds of earlier sessions. clock: function that returns
    seconds since an arbitrary moment.
    """

    def __init__(self, spent: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.spent = spent
        self.clock = clock
        self.started = clock()
        self.others = dict.fromkeys(ACTIVITIES[1:], 0.0)  # {activity: seconds}, without training

    @property
    def seconds(self) -> float:
        return self.spent + self.clock() - self.started

    @property
    def training_seconds(self) -> float:
        """The seconds without validation and saving, but with waiting and compiling."""
        return self.seconds - self.others["validation"] - self.others["saving"]

    @property
    def activities(self) -> dict[str, float]:
        """{activity: seconds of this session}; time that is not counted otherwise is training."""
        training = self.seconds - self.spent - sum(self.others.values())
        return dict(training=max(0.0, training)) | self.others

    @contextlib.contextmanager
    def paused(self, activity: str) -> Iterator[None]:
        """Open a context whose time counts as `activity`, "validation" or "saving", not as
        training.
        """
        since = self.clock()
        try:
            yield
        finally:
            self.count(activity, self.clock() - since)

    def count(self, activity: str, seconds: float) -> None:
        """Count seconds that have passed as one of ACTIVITIES other than training."""
        self.others[activity] += seconds


def shares_of(
    activities: Mapping[str, float], before: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return {"time_ACTIVITY": share of the time, 0 to 1} for the time between `before`, an earlier
    reading of Stopwatch.activities, and the reading `activities`; {} when no time has passed.
    before: None = the start of the session.
    """
    seconds = {name: now - (before or {}).get(name, 0.0) for name, now in activities.items()}
    total = sum(seconds.values())
    if total <= 0:
        return {}
    return {f"time_{name}": max(0.0, part) / total for name, part in seconds.items()}


def describe_activities(activities: Mapping[str, float]) -> str:
    """Return Stopwatch.activities in words: the whole time, and the shares that do not round to
    0 %.
    """
    words = dict(training="steps", input="waiting for data")
    shares = [
        f"{share:.0%} {words.get(name, name)}"
        for name, share in zip(activities, shares_of(activities).values(), strict=False)
        if share >= 0.005
    ]
    return "; ".join([format_seconds(sum(activities.values())), ", ".join(shares)])


class StepMetrics(Protocol):
    """The metrics of a call of K steps, such as step.Metrics."""

    def read(self) -> dict[str, np.ndarray]:
        """Return {metric: (K,) array}."""


class LogInterval:
    """Metrics and throughput since the last log line.

    The first call of a session traces and compiles: its metrics count, its time does not.
    Throughput is that of all GPUs together: steps, sequences, tokens (real ones) and padded_tokens
    (all positions of the rows) per second, and input_wait, the share of time in which the loop
    waited for data. Metrics whose names begin with "time_" tell the share of time of each activity,
    validation and saving included.

    Args of the constructor: flops: function of a host batch that returns (model FLOPs, hardware
    FLOPs) of its step, as model.flops.Flops; None = not counted. peak_flops: FLOP/s of all GPUs;
    None = not known, and then there is no "mfu".
    """

    def __init__(
        self,
        watch: Stopwatch,
        flops: Callable[[dict[str, np.ndarray]], tuple[float, float]] | None = None,
        peak_flops: float | None = None,
    ) -> None:
        self.watch = watch
        self.flops = flops
        self.peak_flops = peak_flops
        self.is_warm = False  # whether the first call is done
        self.ended: tuple[float, dict[str, float], float] | None = None
        self.clear()

    def clear(self) -> None:
        """Start a new interval, and drop the metrics added to the current one."""
        names = (
            "steps",
            "sequences",
            "tokens",
            "padded_tokens",
            *(("model_flops", "hardware_flops") if self.flops else ()),
        )
        self.metrics: list[StepMetrics] = []  # of each call
        self.totals: dict[str, float] = dict.fromkeys(names, 0)
        self.waited = 0.0
        self.opened, self.activities, _ = self.ended or self._now()
        self.ended = None

    def _now(self) -> tuple[float, dict[str, float], float]:
        watch = self.watch
        return watch.training_seconds, watch.activities, watch.seconds

    def end(self) -> None:
        """End the interval's time now. Its metrics can be read later by `close`, while the next
        interval's steps run.
        """
        self.ended = self._now()

    def add(
        self, metrics: StepMetrics, batches: Sequence[dict[str, np.ndarray]], waited: float
    ) -> dict[str, float]:
        """Add the step.Metrics of a call of steps; return {name: number} of its sequences, tokens
        and FLOPs. batches: the call's batches on the host. waited: seconds that the loop waited for
        these batches.
        """
        masks = [batch["input_mask"] for batch in batches]
        lengths = np.concatenate([np.sum(mask, -1).ravel() for mask in masks])
        counts: dict[str, float] = dict(
            steps=len(batches),
            sequences=int(np.sum(lengths > 1)),  # a row of one token is none
            tokens=int(np.sum(lengths[lengths > 1])),
            padded_tokens=sum(map(np.size, masks)),
        )
        if self.flops:
            flops = [self.flops(batch) for batch in batches]
            counts["model_flops"] = sum(model for model, _ in flops)
            counts["hardware_flops"] = sum(hardware for _, hardware in flops)
        self.metrics.append(metrics)
        self.watch.count("input", waited)
        if not self.is_warm:
            metrics.read()
            now = self.watch.training_seconds
            self.watch.count("compiling", max(0.0, now - self.opened - waited))
            self.is_warm = True
            self.opened = now
        else:
            self.waited += waited
            for name, count in counts.items():
                self.totals[name] += count
        return counts

    def close(self) -> tuple[dict[str, np.ndarray], dict[str, float | None]]:
        """Return {metric: (n,)} of the n steps of the interval, and {name: value} of the means over
        its finite steps and of the throughput; start the next interval.
        """
        calls = [metrics.read() for metrics in self.metrics]
        steps = {
            name: np.concatenate([call[name] for call in calls]).astype(np.float64)
            for name in calls[0]
        }
        self.ended = self.ended or self._now()
        training_seconds, activities, seconds = self.ended
        elapsed = training_seconds - self.opened
        is_finite = steps["skipped"] == 0
        means = {
            name: float(np.mean(v[is_finite])) if is_finite.any() else None
            for name, v in steps.items()
            if name != "skipped"
        }
        is_timed = self.totals["steps"] > 0 and elapsed > 0
        rates: dict[str, float | None] = {
            f"{name}_per_second": total / elapsed if is_timed else None
            for name, total in self.totals.items()
        }
        rates["input_wait"] = min(1.0, self.waited / elapsed) if is_timed else None
        if self.flops and is_timed:
            peak_shares = utilization(
                rates["model_flops_per_second"],
                rates["hardware_flops_per_second"],
                self.totals["tokens"] / self.totals["padded_tokens"],
                self.peak_flops,
            )
            rates |= {name: value for name, value in peak_shares.items() if value is not None}
        rates |= shares_of(activities, self.activities)
        self.clear()
        return steps, means | dict(skipped_steps=int(np.sum(~is_finite)), seconds=seconds) | rates
