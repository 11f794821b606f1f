"""How far a run is and how long it will still take: by its steps, or by its time budget, whichever
ends it first.
"""


class Pace:
    """Measures the pace of a session, from its first call of steps on, which compiles and does not
    count.

    Args of the constructor: job: loop.Job. progress: progress.Progress, kept up to date by the
      loop. watch: log_interval.Stopwatch.
    """

    def __init__(self, job, progress, watch):
        self.job, self.progress, self.watch, self.origin = job, progress, watch, None
        # with a batch ramp later steps are larger, so what counts there are records
        self.total = job.num_steps
        if job.plan.is_ramped and job.num_steps is not None:
            self.total = job.num_steps * job.plan.records_of_step(job.schedule)

    def begin(self):
        """Call it when the first call of steps is done."""
        self.origin = (self._done(), self.watch.seconds)

    def share(self):
        """Share of the run that is done, by steps or time, whichever has more; at most 1."""
        shares = [0.0]
        if self.job.num_steps is not None:
            shares.append(self.progress.step / self.job.num_steps)
        if self.job.budget_seconds is not None:
            shares.append(self.watch.seconds / self.job.budget_seconds)
        return min(1.0, max(shares))

    def remaining_seconds(self):
        """Until the steps, or the time, are over, whichever is nearer, at the mean pace of this
        session, validation and saving included. None = not known yet.
        """
        if self.total is not None and self.origin is None:
            return None  # the budget alone might promise too much
        found = []
        if self.job.budget_seconds is not None:
            found.append(max(0.0, self.job.budget_seconds - self.watch.seconds))
        if self.total is not None:
            done, seconds = self._done() - self.origin[0], self.watch.seconds - self.origin[1]
            left = max(0.0, self.total - self._done())
            if done == 0 < left:
                return None
            found.append(left and left * seconds / done)
        return min(found, default=None)

    def _done(self):
        return self.progress.records if self.job.plan.is_ramped else self.progress.step
