"""How far a run is and how long it will still take: by its steps, or by its time budget, whichever
ends it first.
"""

import typing


class RunLength(typing.NamedTuple):
    """The length of a run, or what its schedule is stretched over. num_steps, budget_seconds: None
    = no limit; the seconds are those of all sessions together.
    """

    num_steps: int | None
    budget_seconds: float | None

    @classmethod
    def of_schedule(cls, clock, num_steps, hours):
        """What a schedule is stretched over. clock: --lr_schedule, "step" or "time"; the other
        length does not count.
        """
        return cls(num_steps, None) if clock == "step" else cls(None, hours and 3600 * hours)

    @property
    def is_unknown(self):
        return self.num_steps is None and self.budget_seconds is None

    def share(self, step, seconds):
        """The fraction that is done, by steps or by time, whichever has more; at most 1."""
        by_steps = 0.0 if self.num_steps is None else step / self.num_steps
        by_time = 0.0 if self.budget_seconds is None else seconds / self.budget_seconds
        return min(1.0, max(by_steps, by_time))

    def is_finished(self, step, seconds):
        """Whether `step` steps or, after at least one step, `seconds` complete the run."""
        by_steps = self.num_steps is not None and step >= self.num_steps
        return by_steps or (
            self.budget_seconds is not None and step > 0 and seconds >= self.budget_seconds
        )


class Pace:
    """Measures the pace of a session, from its first call of steps on, which compiles and does not
    count.

    Args of the constructor: plan: batching.BatchPlan. progress: progress.Progress, kept up to date
      by the loop. watch: log_interval.Stopwatch.
    """

    def __init__(self, plan, progress, watch):
        self.plan, self.progress, self.watch, self.origin = plan, progress, watch, None
        # with a batch ramp later steps are larger, so what counts there are records
        self.total = plan.num_steps
        if plan.is_ramped and plan.num_steps is not None:
            self.total = plan.num_steps * plan.records_of_step

    def begin(self):
        """Call it when the first call of steps is done."""
        self.origin = (self._done(), self.watch.seconds)

    def share(self):
        """The fraction of the run that is done by now."""
        return self.plan.length.share(self.progress.step, self.watch.seconds)

    def remaining_seconds(self):
        """Until the steps, or the time, are over, whichever is nearer, at the mean pace of this
        session, validation and saving included. None = not known yet.
        """
        if self.total is not None and self.origin is None:
            return None  # the budget alone might promise too much
        found = []
        if self.plan.length.budget_seconds is not None:
            found.append(max(0.0, self.plan.length.budget_seconds - self.watch.seconds))
        if self.total is not None:
            done, seconds = self._done() - self.origin[0], self.watch.seconds - self.origin[1]
            left = max(0.0, self.total - self._done())
            if done == 0 < left:
                return None
            found.append(left and left * seconds / done)
        return min(found, default=None)

    def _done(self):
        return self.progress.records if self.plan.is_ramped else self.progress.step
