"""The loop: calls of steps, and what happens between them (logging, validation, checkpoints, rollback, signals, the clock)."""

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable

from bert_gpu.data.pipeline import prefetch
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import mean_batch_share, num_micro_batches_at, rate_factor
from bert_gpu.settings import UserError
from bert_gpu.train.batching import BatchPlan, join, same_length
from bert_gpu.train.cadence import Cadence
from bert_gpu.train.checkpoint import CheckpointWriter, SaveFailed
from bert_gpu.train.window import Health, Stopwatch, Window


@dataclasses.dataclass(frozen=True)
class Job:
    """What the loop runs.

    step(placed, rates, step) -> step.Metrics. batches_at(records) -> iterator of units, dicts of arrays, from that position on.
    place(batches, numbers): puts the batches of a call on the devices; None leaves them as they are.
    validate() -> {name: value} or None. read() -> {name: array} for a checkpoint; assign(values) is its inverse.
    export(share): exports the model at a mark of progress. flops(batch) -> model.flops.Flops; peak_flops of all devices, None = unknown.
    A unit is a global batch; with a batch ramp it is one micro-batch of every replica, and a step takes several.
    """

    step: Callable
    batches_at: Callable
    validate: Callable | None
    read: Callable
    assign: Callable
    num_steps: int | None
    num_records: int
    plan: BatchPlan
    schedule: ScheduleConfig
    place: Callable | None = None
    export: Callable | None = None
    flops: Callable | None = None
    peak_flops: float | None = None


class GaveUp(Exception):
    """A run that is not worth going on with: it diverged, or an early stop. The message says since when, and what to try."""


class Loop:
    """Runs a job until its steps or its time are over, or until a signal is caught.

    Args of the constructor:
      job: Job. cadence: CadenceConfig. ending: EndingConfig. progress: Progress to start from; kept up to date.
      folder: RunFolder. log: monitor.Log. console: Console. caught: list that signal numbers arrive in, of `watch_signals`.
      clock: () -> seconds.
    """

    def __init__(self, job, cadence, ending, progress, folder, log, console, caught, clock=time.monotonic):
        self.job, self.ending, self.progress, self.folder, self.log = job, ending, progress, folder, log
        self.console, self.caught = console, caught
        self.steps_per_loop = cadence.steps_per_loop
        share = mean_batch_share(job.plan.num_micro_batches, job.schedule) if job.plan.is_ramped else 1.0
        self.cadence = Cadence(cadence, job.num_steps, job.num_records / (job.plan.global_batch_size * share))
        self.budget = None if job.schedule.total_training_time is None else 3600 * job.schedule.total_training_time
        self.watch = Stopwatch(progress.seconds, clock)
        self.window, self.health = Window(self.watch, job.flops, job.peak_flops), Health(ending.max_loss_jump, progress.health)
        self.is_last, self.share_done = self.is_over(), self.share(progress.step, progress.seconds)
        self.save_is_late = False
        self.saved_seconds, self.saved_step, self.logged_step = progress.seconds, progress.step, progress.step
        self.writer = CheckpointWriter(folder, ending.keep_checkpoint_max, ending.on_save_error, console.warn)

    def run(self):
        """Trains to the end, and saves there. Raises GaveUp, SaveFailed."""
        self.bar = self.console.progress(
            self.job.num_steps or self.budget, self._done(), "training", "step" if self.job.num_steps else "second"
        )
        with self.writer, contextlib.closing(self.bar):
            if self.progress.step == 0:
                self._validate()
            while not self.is_last:
                with contextlib.closing(self._calls()) as calls:
                    while not self.is_last and self._call(calls):
                        pass

    def is_over(self):
        return bool(self.caught) or self.is_finished()

    def is_finished(self):
        """Whether all steps are done, or the time is spent."""
        done = self.job.num_steps is not None and self.progress.step >= self.job.num_steps
        return done or (self.budget is not None and self.progress.step > 0 and self.watch.seconds >= self.budget)

    def share(self, step, seconds):
        """Progress: the share of the run that is behind, by the clock that its schedule has; at most 1."""
        if self.job.schedule.lr_schedule == "time":
            return min(1.0, seconds / self.budget)
        return step / self.job.num_steps

    def _calls(self):
        """One call after another: (K host batches, the same on the devices, the progress at each step; None: as it is when they run).

        They are made in a thread of its own. With a ramp, how many units a step takes is known only when it begins; then only reading is
        ahead.
        """
        units = self.job.batches_at(self.progress.records)
        if not self.job.plan.is_ramped:
            return prefetch(self._assemble(units, self.progress.step))
        depth = 2 * self.steps_per_loop * self.job.plan.num_micro_batches
        return self._assemble(prefetch(units, depth), self.progress.step)

    def _assemble(self, units, step):
        place = self.job.place or (lambda batches, numbers: batches)
        with contextlib.closing(units):
            while True:
                steps, shares, numbers = self._plan(step)
                batches = same_length([join([next(units) for _ in range(number or 1)]) for number in numbers or [None] * len(steps)])
                yield batches, place(batches, numbers), shares if numbers else None
                step = steps.stop

    def _plan(self, step):
        """The call that begins at a step: (its steps, the progress at each, the micro-batches of each; None without a ramp)."""
        steps = range(step, self.cadence.call_ends(step))
        by_time = self.job.schedule.lr_schedule == "time"
        now = self.share(step, self.watch.seconds)
        shares = [now if by_time else self.share(number, 0) for number in steps]
        if not self.job.plan.is_ramped:
            return steps, shares, None
        return steps, shares, [num_micro_batches_at(share, self.job.plan.num_micro_batches, self.job.schedule) for share in shares]

    def _call(self, calls):
        """One call of steps and what is due after it. False when the data must be taken up elsewhere."""
        progress, job = self.progress, self.job
        first = progress.step
        since = time.monotonic()
        try:
            batches, placed, shares = next(calls)
        except UserError:  # a corrupt record costs no steps that were done
            self._log(self.share(first, self.watch.seconds))
            self._save()
            raise
        waited = time.monotonic() - since
        steps, now, _ = self._plan(first)
        shares = shares or now
        by_time = job.schedule.lr_schedule == "time"
        rates = [
            job.plan.learning_rate * rate_factor(step, job.num_steps, job.schedule, share if by_time else None)
            for step, share in zip(steps, shares, strict=True)
        ]
        self.window.add(job.step(placed, rates, first), batches, waited)
        progress.step = steps.stop
        progress.records += sum(len(batch["input_mask"]) for batch in batches)
        self.records_of_step, self.rate = len(batches[-1]["input_mask"]), rates[-1]

        self.is_last = is_last = self.is_over()  # looked at once, so that what ends a run is always followed by its last save
        before, after = (first, self.share_done), (progress.step, self.share(progress.step, self.watch.seconds))
        self.share_done = after[1]
        is_due = self.save_is_late or self.cadence.saves(progress.step, self.watch.seconds - self.saved_seconds)
        validates = self.cadence.validates(before, after, is_due) or (is_last and not self.caught)
        if self.cadence.logs(progress.step) or is_due or validates or is_last:
            self._log(after[1])
            if self._is_diverged(is_last and not self.caught):
                self._go_back(f"the last {self.health.num_bad} steps up to {progress.step} were not finite, or their loss jumped")
                return False
        is_best = False
        if validates:
            loss = self._validate()
            if not math.isfinite(loss or 0.0):
                self._go_back(f"the validation loss of step {progress.step} is not finite")
                return False
            is_best = progress.improve(loss)
            self._stop_early(loss)
        # What is saved amid bad steps would push out what they can go back to: such a save waits for a good step.
        self.save_is_late = (is_due or is_best) and self.health.num_bad > 0 and not is_last
        if (is_due or is_best or is_last) and not self.save_is_late:
            self._save()
        for mark in self.cadence.exports(before[1], after[1]) if job.export else ():
            self._export(mark)
        return True

    def _export(self, mark):
        """Exports the model at a mark of progress; when that fails (disk full), --on_save_error says whether the run goes on."""
        try:
            with self.watch.paused():
                self.console.say(f"model at {mark:g} of the run: {self.job.export(mark)}")
        except (OSError, UserError) as error:
            self.console.warn(f"the model at {mark:g} of the run could not be exported: {error}")
            if self.ending.on_save_error == "stop":
                raise SaveFailed(str(error)) from error

    def _done(self):
        return self.progress.step if self.job.num_steps else int(self.watch.seconds)

    def _log(self, share):
        if self.logged_step >= self.progress.step:
            return
        steps, values = self.window.close()
        self.health.add(self.logged_step, steps)
        self.logged_step = self.progress.step
        values |= dict(
            learning_rate=self.rate,
            global_batch_size=self.records_of_step,
            progress=share,
            epoch=self.progress.records / self.job.num_records,
        )
        self.log.write(self.progress.step, values | self.log.hardware())
        speed = values["tokens_per_second"] or 0
        self.bar.update(self._done(), f"loss {format_metric(values['loss'])}  {speed:,.0f} tokens/s")

    def _validate(self):
        """Validates; returns the loss, None when there is none."""
        if self.job.validate is None:
            return None
        with self.watch.paused():
            values = self.job.validate()
        step = self.progress.step
        self.log.write(step, {f"eval_{name}": value for name, value in values.items()} | dict(seconds=self.watch.seconds))
        self.console.say(f"validation at step {step}: " + "  ".join(f"{k} {format_metric(v)}" for k, v in values.items()))
        return values.get("loss")

    def _stop_early(self, loss):
        """Raises GaveUp when the validation loss is too high after the time that it was given."""
        minutes, wanted = self.ending.early_stop_time, self.ending.early_stop_eval_loss
        if minutes is not None and loss is not None and self.watch.seconds >= 60 * minutes and loss > wanted:
            self._save()
            step = self.progress.step
            raise GaveUp(f"early stop at step {step}: the validation loss is {loss:.3f} after {minutes:g} minutes, not {wanted:g}")

    def _save(self):
        if self.saved_step == self.progress.step and self.progress.step:
            return
        with self.watch.paused():
            self.writer.wait()
            self.progress.seconds, self.progress.health = self.watch.seconds, self.health.state()
            self.writer.save(self.progress, self.job.read())
        self.saved_seconds, self.saved_step = self.watch.seconds, self.progress.step

    def _is_diverged(self, is_last):
        """Whether there were too many bad steps; a run does not end well on three of them, or without any good step."""
        health, most = self.health, self.ending.max_bad_steps
        return health.num_bad >= (min(3, most) if is_last else most) or (is_last and health.num_bad and not health.num_good)

    def _go_back(self, reason):
        """Goes back to the last checkpoint before the bad steps, on with later data; or raises GaveUp."""
        progress = self.progress
        since = self.health.bad_since if self.health.num_bad else progress.step - 1
        if self.ending.on_divergence == "stop":
            raise GaveUp(f"diverged: {reason}; lower --learning_rate, or use --on_divergence=rollback")
        self.writer.wait()
        good = [step for step in self.folder.steps() if step <= since]
        if not good or progress.num_rollbacks >= self.ending.max_rollbacks:
            limit = "there is no checkpoint before that" if not good else f"--max_rollbacks={self.ending.max_rollbacks} are done"
            raise GaveUp(f"diverged: {reason}; {limit}; lower --learning_rate")
        with self.watch.paused():
            restored = self.folder.progress_of(good[-1])
            self.job.assign(self.folder.restore(restored.step))
            self.folder.remove_after(restored.step)
            self.log.cut(restored.step)
            progress.step, progress.seconds, progress.num_rollbacks = restored.step, self.watch.seconds, progress.num_rollbacks + 1
            progress.best_step, progress.best_metric = restored.best_step, restored.best_metric
            progress.health = None
            self.folder.write_progress(progress)  # the data moved on: a run killed now goes on with what comes next
        self.console.warn(f"diverged: {reason}; back to step {progress.step}, on with record {progress.records:,}")
        self.saved_step = self.logged_step = progress.step
        self.health, self.is_last = Health(self.ending.max_loss_jump), self.is_over()
        self.window.clear()


def format_metric(value):
    return "none" if value is None or not math.isfinite(value) else f"{value:.4f}"
