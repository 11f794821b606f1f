"""What a run measures between two log lines: mean metrics and throughput.

Values are fetched from the device only when an interval closes, so that the loop never
waits for a step.
"""

import contextlib
import time

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.monitor.throughput import utilization

# What the time of a session is spent on: steps; waiting for data; the first call of steps, which
# compiles; validation; saving, which is checkpoints and exports.
ACTIVITIES = ("training", "input", "compiling", "validation", "saving")


class Stopwatch:
    """Seconds that a run has spent over all sessions, and what those of this session were spent on.

    clock: () -> seconds, of any origin. spent: seconds of earlier sessions.
    """

    def __init__(self, spent=0.0, clock=time.monotonic):
        self.spent, self.clock, self.started = spent, clock, clock()
        self.others = dict.fromkeys(ACTIVITIES[1:], 0.0)

    @property
    def seconds(self):
        return self.spent + self.clock() - self.started

    @property
    def training_seconds(self):
        """Without validation and saving; waiting and compiling count."""
        return self.seconds - self.others["validation"] - self.others["saving"]

    @property
    def activities(self):
        """{activity: seconds of this session}; what is nothing else is training."""
        training = self.seconds - self.spent - sum(self.others.values())
        return dict(training=max(0.0, training)) | self.others

    @contextlib.contextmanager
    def paused(self, activity):
        """Counts the time inside as "validation" or "saving", not as training."""
        since = self.clock()
        try:
            yield
        finally:
            self.count(activity, self.clock() - since)

    def count(self, activity, seconds):
        """Counts seconds that have passed as one of ACTIVITIES other than training."""
        self.others[activity] += seconds


def shares_of(activities, before=None):
    """{"time_ACTIVITY": share of the seconds}, 0 to 1, of Stopwatch.activities since an earlier
    state of them; {} when no time has passed.
    """
    seconds = {name: now - (before or {}).get(name, 0.0) for name, now in activities.items()}
    total = sum(seconds.values())
    if total <= 0:
        return {}
    return {f"time_{name}": max(0.0, part) / total for name, part in seconds.items()}


def describe_activities(activities):
    """Stopwatch.activities in words: all of the time, and the shares that do not round to 0 %."""
    words = dict(training="steps", input="waiting for data")
    shares = [
        f"{share:.0%} {words.get(name, name)}"
        for name, share in zip(activities, shares_of(activities).values(), strict=False)
        if share >= 0.005
    ]
    return "; ".join([format_seconds(sum(activities.values())), ", ".join(shares)])


class LogInterval:
    """Metrics and throughput since the last log line.

    The first call of a session traces and compiles: its metrics count, its time does not.
    Throughput is that of all GPUs together: steps, sequences, tokens (real ones) and padded_tokens
    (all positions of the rows) per second, and input_wait, the share of time in which the loop
    waited for data. Where the time went, validation and saving included, is in "time_" names.

    Args of the constructor: watch: Stopwatch. flops: function of a host batch -> model.flops.Flops
      of its step, None = not counted. peak_flops: of all GPUs a second, None = unknown, without
      "mfu". rows_per_example: sequences of an example of a batch.
    """

    def __init__(self, watch, flops=None, peak_flops=None, rows_per_example=1):
        self.watch, self.flops, self.peak_flops, self.is_warm = watch, flops, peak_flops, False
        self.rows_per_example = rows_per_example
        self.clear()

    def clear(self):
        names = (
            "steps",
            "sequences",
            "tokens",
            "padded_tokens",
            *(("model_flops", "hardware_flops") if self.flops else ()),
        )
        self.metrics, self.totals, self.waited = [], dict.fromkeys(names, 0), 0.0
        self.opened, self.activities = self.watch.training_seconds, self.watch.activities

    def add(self, metrics, batches, waited):
        """One call's step.Metrics, its host batches, and the seconds it waited for them."""
        self.metrics.append(metrics)
        self.watch.count("input", waited)
        if not self.is_warm:
            metrics.read()
            now = self.watch.training_seconds
            self.watch.count("compiling", max(0.0, now - self.opened - waited))
            self.is_warm, self.opened = True, now
            return
        self.waited += waited
        self.totals["steps"] += len(batches)
        for batch in batches:
            self.totals["sequences"] += len(batch["input_mask"]) * self.rows_per_example
            self.totals["tokens"] += int(np.sum(batch["input_mask"]))
            self.totals["padded_tokens"] += int(np.size(batch["input_mask"]))
            if self.flops:
                counted = self.flops(batch)
                self.totals["model_flops"] += counted.model
                self.totals["hardware_flops"] += counted.hardware

    def close(self):
        """Returns (metrics of each step {name: (n,)}, {name: float or None} of the means over the
        finite steps and of the throughput), and starts the next interval.
        """
        calls = [metrics.read() for metrics in self.metrics]
        steps = {
            name: np.concatenate([call[name] for call in calls]).astype(np.float64)
            for name in calls[0]
        }
        elapsed = self.watch.training_seconds - self.opened
        is_finite = steps["skipped"] == 0
        means = {
            name: float(np.mean(v[is_finite])) if is_finite.any() else None
            for name, v in steps.items()
            if name != "skipped"
        }
        is_timed = self.totals["steps"] > 0 and elapsed > 0
        rates = {
            f"{name}_per_second": total / elapsed if is_timed else None
            for name, total in self.totals.items()
        }
        rates["input_wait"] = min(1.0, self.waited / elapsed) if is_timed else None
        if self.flops and is_timed:
            share = self.totals["tokens"] / self.totals["padded_tokens"]
            used = utilization(
                rates["model_flops_per_second"],
                rates["hardware_flops_per_second"],
                share,
                self.peak_flops,
            )
            rates |= {name: value for name, value in used.items() if value is not None}
        rates |= shares_of(self.watch.activities, self.activities)
        self.clear()
        return steps, means | dict(
            skipped_steps=int(np.sum(~is_finite)), seconds=self.watch.seconds
        ) | rates
