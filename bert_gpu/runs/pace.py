"""Computes how much of a run is done and how long the rest will take: by its steps, or by its time
budget, whichever ends it first.
"""

import typing
from typing import Any

from bert_gpu.runs.progress import Progress


class RunLength(typing.NamedTuple):
    """The length of a run, or of its schedule, in steps and in seconds of training of all sessions
    together. None = no limit.
    """

    num_steps: int | None
    budget_seconds: float | None

    @classmethod
    def of_schedule(cls, clock: str, num_steps: int | None, hours: float | None) -> "RunLength":
        """Return the length that a schedule is stretched over. clock: --lr_schedule, "step"
        (num_steps counts, hours are ignored) or "time" (the reverse).
        """
        return cls(num_steps, None) if clock == "step" else cls(None, hours and 3600 * hours)

    @property
    def is_unknown(self) -> bool:
        return self.num_steps is None and self.budget_seconds is None

    def share(self, step: int, seconds: float) -> float:
        """Return the share of the run that is done after `step` steps and `seconds` of training: by
        steps or by time, whichever is larger; at most 1.
        """
        by_steps = 0.0 if self.num_steps is None else step / self.num_steps
        by_time = 0.0 if self.budget_seconds is None else seconds / self.budget_seconds
        return min(1.0, max(by_steps, by_time))

    def is_finished(self, step: int, seconds: float) -> bool:
        """Return whether `step` steps or, after at least one step, `seconds` complete the run."""
        by_steps = self.num_steps is not None and step >= self.num_steps
        return by_steps or (
            self.budget_seconds is not None and step > 0 and seconds >= self.budget_seconds
        )


class Pace:
    """Measures how fast a session trains. The session's first call of training steps, which
    includes compilation, does not count.

    Args of the constructor:
      plan: plan.BatchPlan.
      progress: the run's Progress, which the training loop updates.
      watch: log_interval.Stopwatch, whose `seconds` are the training time of all sessions.
    """

    def __init__(self, plan: Any, progress: Progress, watch: Any) -> None:
        self.plan = plan
        self.progress = progress
        self.watch = watch
        self.origin: tuple[float, float] | None = None
        # with a batch ramp later steps have larger batches, so that records are counted, not steps
        self.total = plan.num_steps
        if plan.is_ramped and plan.num_steps is not None:
            self.total = plan.num_steps * plan.records_of_step

    def begin(self) -> None:
        """Begin the measurement; call this when the session's first call of training steps is
        done.
        """
        self.origin = (self._done(), self.watch.seconds)

    def share(self) -> float:
        """Return the share of the run that is done by now."""
        return self.plan.length.share(self.progress.step, self.watch.seconds)

    def remaining_seconds(self) -> float | None:
        """Return the estimated seconds until the run ends, by its steps or its time budget,
        whichever is sooner, at the mean pace of this session, validation and saving included. None
        = not known yet.
        """
        if self.total is not None and self.origin is None:
            return None  # the steps may end the run long before the budget does
        estimates = []
        if self.plan.length.budget_seconds is not None:
            estimates.append(max(0.0, self.plan.length.budget_seconds - self.watch.seconds))
        if self.total is not None and self.origin is not None:
            done = self._done() - self.origin[0]
            seconds = self.watch.seconds - self.origin[1]
            remaining = max(0.0, self.total - self._done())
            if done == 0 < remaining:
                return None
            estimates.append(remaining and remaining * seconds / done)
        return min(estimates, default=None)

    def _done(self) -> int:
        return self.progress.records if self.plan.is_ramped else self.progress.step
