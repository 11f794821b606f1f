"""The loop: calls of steps, and what is due after each: log, judge, validate, save, export."""

import contextlib
import dataclasses
import os
import time
import typing
from collections.abc import Callable

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.data.pipeline import prefetch
from bert_gpu.devices.workers import ALONE, Alone, Workers
from bert_gpu.monitor.advice import SlowdownWarnings
from bert_gpu.monitor.log_interval import LogInterval, Stopwatch, describe_activities
from bert_gpu.monitor.profile import Profiler
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor, num_micro_batches_at
from bert_gpu.runs.checkpoint_writer import SaveFailed
from bert_gpu.runs.pace import Pace, RunLength
from bert_gpu.runs.shared_folder import open_writer
from bert_gpu.train.batching import BatchPlan, join, same_length
from bert_gpu.train.cadence import Cadence
from bert_gpu.train.divergence import DivergenceFound, DivergenceMonitor, roll_back


@dataclasses.dataclass(frozen=True)
class Job:
    """What the loop runs.

    step(batches on the devices, learning_rates, step) -> step.Metrics. batches_at(records) ->
    iterator of units, dicts of arrays, from that position on.
    put_on_devices(batches, num_micro_batches): puts the batches of a call on the devices; None
    leaves them as they are.
    validate(until_stopped) -> {name: value}; it takes the batches of each iterator through
    until_stopped(iterator), which a ValidationStopped ends. read() -> {name: array} for a
    checkpoint; assign(values) is its inverse. export(share, step): exports the model at a mark of
    progress, returns its folder.
    flops(batch) -> Flops; peak_flops of all devices, None = unknown. memory() -> a text on the
    memory in use, "" = not known. kind: of the devices, "GPU" or "CPU". workers: of the run
    (workers.py); all of them run the loop in lockstep.
    A unit is a global batch; with a batch ramp it is one micro-batch of every replica, and a step
    takes several.
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
    put_on_devices: Callable | None = None
    export: Callable | None = None
    flops: Callable | None = None
    peak_flops: float | None = None
    memory: Callable = lambda: ""
    kind: str = "CPU"
    workers: Workers | Alone = ALONE

    @property
    def length(self):
        """The RunLength of the whole run."""
        hours = self.schedule.total_training_time
        return RunLength(self.num_steps, hours and 3600 * hours)

    @property
    def schedule_length(self):
        """The RunLength that the schedule is stretched over."""
        schedule = self.schedule
        return RunLength.of_schedule(
            schedule.lr_schedule, self.num_steps, schedule.total_training_time
        )


class ValidationStopped(Exception):
    """A signal has stopped a validation between two of its batches."""


class Position(typing.NamedTuple):
    """Where a run is after a call: finished steps, the share of the run that is done, and the
    seconds then.
    """

    step: int
    share: float
    seconds: float


class Due(typing.NamedTuple):
    """What is due after a call of steps. exports: the marks of progress that it crossed. is_end:
    whether the run is complete, not interrupted.
    """

    log: bool
    validation: bool
    save: bool
    exports: list
    is_end: bool


class Loop:
    """Runs a job until its steps or its time are over, or until a signal is caught.

    Args of the constructor:
      job: Job. cadence: CadenceConfig. ending: EndingConfig. progress: Progress to start from;
        kept up to date.
      folder: RunFolder. log: monitor.Log. console: Console. caught: list of the signals caught,
        from `watch_signals`.
      clock: () -> seconds; the only clock that the loop reads.

    What it decides by its clock or by signals follows from `moment`, which is the same for all
    workers.
    """

    def __init__(
        self, job, cadence, ending, progress, folder, log, console, caught, clock=time.monotonic
    ):
        self.job, self.ending, self.progress, self.folder, self.log = (
            job,
            ending,
            progress,
            folder,
            log,
        )
        self.console, self.workers = console, job.workers
        self.steps_per_loop = cadence.steps_per_loop
        self.cadence = Cadence(
            cadence, job.num_steps, job.num_records / job.plan.records_of_step(job.schedule)
        )
        self.watch = Stopwatch(progress.seconds, clock)
        self.moment = self.workers.moment(lambda: self.watch.seconds, caught)
        self.pace = Pace(job, progress, self.watch)
        self.advice = SlowdownWarnings(console.warn, job.kind)
        self.profiler = Profiler(
            cadence.profiled if self.workers.is_chief else None,
            os.path.join(folder.tensorboard, "train"),
            console,
        )
        self.interval, self.divergence = (
            LogInterval(self.watch, job.flops, job.peak_flops),
            DivergenceMonitor(ending, progress.health),
        )
        # the seconds of a checkpoint are later, after what was due when it was written
        seconds = progress.seconds if progress.call_seconds is None else progress.call_seconds
        self.position = self.before = self._position(seconds)
        self.is_last = self.is_over()
        self.save_is_late = False
        self.saved_seconds, self.saved_step, self.logged_step = (
            progress.seconds,
            progress.step,
            progress.step,
        )
        self.writer = open_writer(
            folder, ending.keep_checkpoint_max, ending.on_save_error, console.warn, self.workers
        )

    def run(self):
        """Trains to the end, and saves there. Raises TrainingStopped."""
        with self.writer, contextlib.closing(self.profiler):
            try:
                self._begin()
            except DivergenceFound as problem:
                self._go_back(problem)
            while not self.is_last:
                with contextlib.closing(self._calls()) as calls:
                    try:
                        while not self.is_last:
                            self._turn(calls)
                    except DivergenceFound as problem:
                        self._go_back(problem)
            self.profiler.end(self.progress.step)
        self.console.say(f"time spent: {describe_activities(self.watch.activities)}")

    def _begin(self):
        """Validates before the first step, and what was saved without its validation."""
        step = self.progress.step
        if step == 0 and (values := self._validate()) is not None:
            self.ending.criterion(values, is_first=True)
        elif step and self.progress.validation_failed:
            if (values := self._validate()) is not None:
                self._judge_validation(values)
                self.folder.write_progress(self.progress)

    def _turn(self, calls):
        """One call of steps, and what is due after it."""
        before = self.before = self.position
        self.profiler.before(self.progress.step)
        self._train(calls)
        self.profiler.after(self.progress.step, self.interval.wait)
        self.log.advance(self.progress.step, self.pace.share(), self.pace.remaining_seconds())
        due = self._due(before)
        if due.log:
            self._log()
            self.divergence.check_steps(self.progress.step, due.is_end)
        try:
            for mark in due.exports:  # first: a run resumed from the checkpoint is past them
                self._export(mark)
        except SaveFailed:
            self._save_if_good(due.save)
            raise
        is_best = due.validation and self._judge_validation(self._validate())
        self._save_if_good(due.save or is_best)

    def is_over(self):
        return bool(self.moment.caught) or self.is_finished()

    def is_finished(self):
        """Whether all steps are done, the time is spent, or validations are no longer better."""
        return self.job.length.is_finished(
            self.progress.step, self.moment.seconds
        ) or self.ending.is_stale(self.progress.num_worse)

    def is_complete(self):
        """Whether the run is finished, its last validation included."""
        return self.is_finished() and not self.progress.validation_failed

    def _position(self, seconds):
        """The Position of the current step."""
        step = self.progress.step
        return Position(step, self.job.length.fraction(step, seconds), seconds)

    def _calls(self):
        """Yields one call after another: (K host batches, the same on the devices, the progress at
        each step, or None to take it when they run).

        A thread prepares them in advance. With a batch ramp a step's number of units is known only
        when it begins, so only reading runs ahead.
        """
        units = self.job.batches_at(self.progress.records)
        if not self.job.plan.is_ramped:
            return prefetch(self._assemble(units, self.progress.step))
        depth = 2 * self.steps_per_loop * self.job.plan.num_micro_batches
        return self._assemble(prefetch(units, depth), self.progress.step)

    def _assemble(self, units, step):
        put_on_devices = self.job.put_on_devices or (lambda batches, num_micro_batches: batches)
        with contextlib.closing(units):
            while True:
                steps, shares, num_micro_batches = self._plan(step)
                batches = same_length(
                    [
                        join([next(units) for _ in range(count or 1)])
                        for count in num_micro_batches or [None] * len(steps)
                    ]
                )
                yield (
                    batches,
                    put_on_devices(batches, num_micro_batches),
                    shares if num_micro_batches else None,
                )
                step = steps.stop

    def _plan(self, step):
        """The call that begins at a step: (its steps, the progress at each, num_micro_batches of
        each or None without a ramp).
        """
        steps = range(step, self.cadence.call_ends(step))
        length, seconds = self.job.schedule_length, self.moment.seconds
        shares = [length.fraction(index, seconds) for index in steps]
        if not self.job.plan.is_ramped:
            return steps, shares, None
        return (
            steps,
            shares,
            [
                num_micro_batches_at(share, self.job.plan.num_micro_batches, self.job.schedule)
                for share in shares
            ],
        )

    def _next_call(self, calls):
        """(The next of `calls`, the seconds spent waiting for it)."""
        since = self.watch.seconds
        with self._keeping_steps():
            return next(calls), self.watch.seconds - since

    @contextlib.contextmanager
    def _keeping_steps(self):
        """A corrupt record, of the training or of the validation, must not lose finished steps."""
        try:
            yield
        except UserError:
            if self.progress.step:
                self._log()
                self._save(is_together=False)  # it may be that of one worker
            raise

    def _train(self, calls):
        """One call of steps."""
        progress, job = self.progress, self.job
        first = progress.step
        (batches, on_devices, shares), waited = self._next_call(calls)
        steps, now, _ = self._plan(first)
        by_time = job.schedule.lr_schedule == "time"
        learning_rates = [
            job.plan.learning_rate
            * learning_rate_factor(step, job.num_steps, job.schedule, share if by_time else None)
            for step, share in zip(steps, shares or now, strict=True)
        ]
        is_first = not self.interval.is_warm
        self.interval.add(job.step(on_devices, learning_rates, first), batches, waited)
        progress.step = steps.stop
        progress.records += sum(len(batch["input_mask"]) for batch in batches)
        progress.num_skipped_records += sum(
            int(np.sum(batch["row_weights"] == 0)) for batch in batches if "row_weights" in batch
        )
        self.records_of_step, self.learning_rate = (
            len(batches[-1]["input_mask"]),
            learning_rates[-1],
        )
        if is_first:
            self._tell_of_first_call(len(steps))
        self.moment.agree()
        # checked once a call, so that the last save always follows
        self.is_last = self.is_over()
        self.position = self._position(self.moment.seconds)

    def _tell_of_first_call(self, num_steps):
        """Says how long it took, since compiling may take minutes, and what memory it needed."""
        self.pace.begin()
        what = "the first step" if num_steps == 1 else f"the first {num_steps} steps"
        seconds = self.watch.activities["compiling"]
        taken = format_seconds(seconds) if seconds >= 60 else f"{seconds:.1f} s"
        memory = self.job.memory()
        self.console.say(
            f"{what} took {taken}, compiling included" + (f"; {memory}" if memory else "")
        )

    def _due(self, before):
        """What is due after the call that began at the Position `before`."""
        is_end = self.is_last and self.is_finished()
        save = self.save_is_late or self.cadence.saves(
            self.progress.step, self.moment.seconds - self.saved_seconds
        )
        validation = self.cadence.validates(before, self.position, save) or is_end
        log = self.cadence.logs(self.progress.step) or save or validation or self.is_last
        exports = self.cadence.exports(before.share, self.position.share) if self.job.export else []
        return Due(log, validation, save, exports, is_end)

    def _judge_validation(self, values):
        """Records a validation in progress; returns whether it is the best so far. Raises
        DivergenceFound when its loss is not finite, TrainingStopped when it is too high.

        values: {name: value} of the validation, None without one.
        """
        if values is None:
            return False
        loss = values.get("loss")
        self.divergence.check_validation(self.progress.step, loss)
        # weights that are not saved are not the best, whatever they are worth
        is_best = not self._must_wait() and self.progress.improve(
            self.ending.criterion(values), self.ending.best_metric
        )
        if self.ending.is_stale(self.progress.num_worse) and not self.is_last:
            self.is_last = True  # what follows is saved
            self.console.say(
                f"{self.progress.num_worse} validations since step {self.progress.best_step} were "
                "no better: the run ends (--early_stop_patience)"
            )
        problem = self.divergence.gives_up(self.progress.step, self.moment.seconds, loss)
        if problem is not None:
            self._save()
            raise problem
        return is_best

    def _save_if_good(self, is_due):
        """Saves when due, later where it has to wait, and at the end."""
        self.save_is_late = is_due and self._must_wait()
        if (is_due or self.is_last) and not self.save_is_late:
            self._save()

    def _must_wait(self):
        """Whether a checkpoint has to wait for a good step: after bad ones it would evict those to
        return to.
        """
        return self.divergence.health.num_bad > 0 and not self.is_last

    def _export(self, mark):
        """Exports the model at a mark of progress; when that fails (disk full), --on_save_error
        decides whether the run goes on.
        """
        try:
            with self.watch.paused("saving"):
                path = self.workers.on_chief(lambda: self.job.export(mark, self.progress.step))
                self.console.say(f"model at {mark:g} of the run: {path}")
        except (OSError, UserError) as error:
            self.console.warn(f"the model at {mark:g} of the run could not be exported: {error}")
            if self.ending.on_save_error == "stop":
                raise SaveFailed(str(error)) from error

    def _log(self):
        """Writes the metrics of the steps since the last line, if any, and counts the bad ones."""
        if self.logged_step >= self.progress.step:
            return
        with self.workers.waiting():
            steps, values = self.interval.close()
        self.divergence.health.add(self.logged_step, steps)
        self.logged_step = self.progress.step
        values |= dict(
            learning_rate=self.learning_rate,
            global_batch_size=self.records_of_step,
            progress=self.position.share,
            epoch=self.progress.records / self.job.num_records,
            remaining_seconds=self.pace.remaining_seconds(),
        )
        if self.progress.num_skipped_records:
            values |= dict(skipped_records=self.progress.num_skipped_records)
        values |= self.log.hardware()
        self.log.write(self.progress.step, values)
        self.advice.observe(values)

    def _validate(self):
        """Validates; returns {name: value}, None without validation, and for one that a signal has
        stopped: the run ends then, and validates here when it is resumed.
        """
        if self.job.validate is None:
            return None
        self.progress.validation_failed = True
        with self._keeping_steps(), self.watch.paused("validation"):
            try:
                values = self.job.validate(self._until_stopped)
            except ValidationStopped:
                self.is_last = True
                return None
        self.progress.validation_failed = False
        self.is_last = self.is_last or bool(self.moment.caught)
        step = self.progress.step
        self.log.write(
            step,
            {f"eval_{name}": value for name, value in values.items()}
            | dict(seconds=self.watch.seconds),
        )
        return values

    def _until_stopped(self, batches):
        """Yields batches; raises ValidationStopped before the next one when a signal is caught."""
        for batch in batches:
            self.moment.agree()
            if self.moment.caught:
                raise ValidationStopped
            yield batch

    def _save(self, is_together=True):
        """Saves, unless this step is saved. is_together: whether all workers are here."""
        if self.saved_step == self.progress.step and self.progress.step:
            return
        if not is_together and not self.workers.is_chief:
            return
        writer = self.writer if is_together else self.writer.own
        with self.watch.paused("saving"):
            writer.wait()
            self.progress.seconds, self.progress.call_seconds, self.progress.health = (
                self.moment.seconds,
                self.position.seconds,
                self.divergence.health.state(),
            )
            writer.save(self.progress, self.job.read() if self.workers.is_chief else None)
        self.saved_seconds, self.saved_step = self.moment.seconds, self.progress.step

    def _go_back(self, problem):
        """Returns to the last good checkpoint, or raises TrainingStopped; later calls continue with
        new data.
        """
        progress = self.progress
        progress.call_seconds = self.before.seconds
        if self.ending.on_divergence == "rollback":
            self.writer.wait()
        with self.watch.paused("saving"):
            roll_back(
                problem,
                self.ending,
                progress,
                self.folder,
                self.log,
                self.job.assign,
                self.moment.seconds,
                self.console.warn,
            )
        self.console.warn(
            f"diverged: {problem}; back to step {progress.step}, "
            f"continuing with record {progress.records:,}"
        )
        self.saved_step = self.logged_step = progress.step
        # by time it does not go back, but what the call that diverged crossed is due again
        self.position = self._position(self.before.seconds)
        self.divergence, self.is_last = DivergenceMonitor(self.ending), self.is_over()
        self.save_is_late = False
        self.interval.clear()
        self.pace.begin()
