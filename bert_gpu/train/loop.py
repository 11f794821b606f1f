"""The loop: calls of steps, and what is due after each: log, judge, export, validate, save."""

import contextlib
import dataclasses
import functools
import os
import typing

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import MARKS
from bert_gpu.data.pipeline import prefetch
from bert_gpu.monitor.advice import SlowdownWarnings
from bert_gpu.monitor.log_interval import LogInterval, Stopwatch, describe_activities
from bert_gpu.runs.pace import Pace
from bert_gpu.runs.shared_folder import open_writer
from bert_gpu.train.batching import take_batches
from bert_gpu.train.cadence import Cadence
from bert_gpu.train.divergence import DivergenceFound, DivergenceMonitor, roll_back
from bert_gpu.train.start_block import peak_memory


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
    """Trains until the steps or the time of a run are over, or until a signal is caught.

    Args of the constructor:
      step: step.TrainStep. data: batching.TrainingData. plan: batching.BatchPlan. run: run.Run,
        whose progress is kept up to date.
      log: metrics_log.Log, which `run` closes.
      validate: function of until_stopped -> {name: value}, or None; it takes the batches of each
        iterator through until_stopped(iterator), which a ValidationStopped ends.
      export: function of (folder, TrainState, step), which writes the model of a step; None = no
        export at marks of progress. flops: function of a batch -> Flops, None = not counted.
      peak_flops: of all GPUs a second, None = unknown.

    The run's clock is the only one that the loop reads. What it decides by time or by signals
    follows from `now`, which is the same for all workers; they run the loop in lockstep.
    """

    def __init__(
        self, step, data, plan, run, log, *, validate=None, export=None, flops=None, peak_flops=None
    ):
        self.step, self.data, self.plan, self.training_run, self.log = step, data, plan, run, log
        self.validate, self.export = validate, export
        self.ending, self.progress, self.folder = run.settings.ending, run.progress, run.folder
        self.console, self.workers = run.console, run.workers
        cadence = run.settings.cadence
        self.steps_per_loop = cadence.steps_per_loop
        steps_of_epoch = data.num_records / plan.records_of_step
        self.cadence = Cadence(cadence, plan.num_steps, steps_of_epoch)
        self.watch = Stopwatch(self.progress.seconds, run.clock)
        self.now = self.workers.clock(self.watch, run.caught)
        self.pace = Pace(plan, self.progress, self.watch)
        self.advice = SlowdownWarnings(self.console.warn, step.devices.kind)
        self.interval = LogInterval(self.watch, flops, peak_flops, data.rows_per_example)
        self.divergence = DivergenceMonitor(self.ending, self.progress.health)
        # progress.seconds includes the validation before the save; the schedule resumes from the
        # end of the last step
        seconds = self.progress.call_seconds
        self.position = self.before = self._position(
            self.progress.seconds if seconds is None else seconds
        )
        self.is_last = self.is_over()
        self.save_is_late = False
        self.saved_seconds = self.progress.seconds
        self.saved_step = self.logged_step = self.progress.step
        self.writer = open_writer(
            self.folder, self.ending.keep_checkpoint_max, self.console.warn, self.workers
        )

    def run(self):
        """Trains to the end, and saves there. Raises TrainingStopped."""
        with contextlib.closing(self.log):
            with self.writer:
                self._begin()
                while not self.is_last:
                    with contextlib.closing(self._calls()) as calls:
                        try:
                            while not self.is_last:
                                due = self._run_steps(calls)
                                self._log(due)
                                self._export(due)
                                is_best = self._validate(due)
                                self._save(due.save or is_best)
                        except DivergenceFound as problem:
                            self._go_back(problem)
            self.console.say(f"time spent: {describe_activities(self.watch.activities)}")

    def _begin(self):
        """Validates before the first step, and what was saved without its validation."""
        step = self.progress.step
        if step and not self.progress.validation_failed:
            return
        try:
            values = self._read_validation()
            if values is not None and step == 0:
                self.ending.criterion(values, is_first=True)
            elif values is not None:
                self._judge_validation(values)
                self.folder.write_progress(self.progress)
        except DivergenceFound as problem:
            self._go_back(problem)

    def is_over(self):
        return bool(self.now.caught) or self.is_finished()

    def is_finished(self):
        """Whether all steps are done, the time is spent, or validations are no longer better."""
        return self.plan.length.is_finished(
            self.progress.step, self.now.seconds
        ) or self.ending.is_stale(self.progress.num_worse)

    def is_complete(self):
        """Whether the run is finished, its last validation included."""
        return self.is_finished() and not self.progress.validation_failed

    def _position(self, seconds):
        """The Position of the current step."""
        step = self.progress.step
        return Position(step, self.plan.length.share(step, seconds), seconds)

    def _calls(self):
        """Yields one call after another: (K host batches, the same on the devices, the progress at
        each step, or None to take it when they run).

        A thread prepares them in advance. With a batch ramp it only reads ahead: how much a step
        takes is known only when it begins.
        """
        rows = self.plan.open_rows(self.data, self.progress.records)
        if not self.plan.is_ramped:
            return prefetch(self._prepared(rows, self.progress.step))
        depth = 2 * self.steps_per_loop * self.plan.num_micro_batches
        return self._prepared(prefetch(rows, depth), self.progress.step)

    def _prepared(self, rows, step):
        with contextlib.closing(rows):
            while True:
                steps, shares = self._next_steps(step)
                counts = self.plan.num_micro_batches_at(shares)
                batches = take_batches(rows, len(steps), counts, self.data.length_axes)
                on_devices = self.step.put_on_devices(batches, counts)
                yield batches, on_devices, shares if counts else None
                step = steps.stop

    def _next_steps(self, step):
        """(The steps of the call that begins at a step, the progress at each)."""
        steps = range(step, self.cadence.call_ends(step))
        length, seconds = self.plan.schedule_length, self.now.seconds
        return steps, [length.share(index, seconds) for index in steps]

    @contextlib.contextmanager
    def _keeping_steps(self):
        """A corrupt record, of the training or of the validation, must not lose finished steps."""
        try:
            yield
        except UserError:
            if self.progress.step:
                self._write_line()
                self._write_checkpoint(is_together=False)  # it may be that of one worker
            raise

    def _run_steps(self, calls):
        """Runs the next of `calls`; returns what is due after it."""
        progress, first = self.progress, self.progress.step
        self.before = self.position
        since = self.watch.seconds
        with self._keeping_steps():
            batches, on_devices, planned_shares = next(calls)
        waited = self.watch.seconds - since
        steps, shares = self._next_steps(first)
        shares = planned_shares or shares
        self.learning_rates = list(map(self.plan.learning_rate_at, steps, shares))
        is_first = not self.interval.is_warm
        metrics = self.step(on_devices, self.learning_rates, first)
        self.interval.add(metrics, batches, waited)
        progress.step = steps.stop
        self._count_records(batches)
        if is_first:
            self._tell_of_first_call(len(steps))
        self.now.sync()
        # checked once a call, so that the last save always follows
        self.is_last = self.is_over()
        self.position = self._position(self.now.seconds)
        self.log.advance(progress.step, self.pace.share(), self.pace.remaining_seconds())
        return self._due()

    def _count_records(self, batches):
        sizes = [len(batch["input_mask"]) for batch in batches]
        self.progress.records += sum(sizes)
        self.records_of_step = sizes[-1]
        for batch in batches:
            if "row_weights" in batch:
                self.progress.num_skipped_records += int(np.sum(batch["row_weights"] == 0))

    def _tell_of_first_call(self, num_steps):
        """Says how long it took, since compiling may take minutes, and what memory it needed."""
        self.pace.begin()
        what = "the first step" if num_steps == 1 else f"the first {num_steps} steps"
        seconds = self.watch.activities["compiling"]
        taken = format_seconds(seconds) if seconds >= 60 else f"{seconds:.1f} s"
        memory = peak_memory(self.step.devices)
        self.console.say(
            f"{what} took {taken}, compiling included" + (f"; {memory}" if memory else "")
        )

    def _due(self):
        """What is due after the call that began at `before`."""
        is_end = self.is_last and self.is_finished()
        save = self.save_is_late or self.cadence.saves(
            self.progress.step, self.now.seconds - self.saved_seconds
        )
        validation = self.cadence.validates(self.before, self.position, save) or is_end
        log = self.cadence.logs(self.progress.step) or save or validation or self.is_last
        exports = self.cadence.exports(self.before.share, self.position.share)
        return Due(log, validation, save, exports, is_end)

    def _validate(self, due):
        """Validates when due; returns whether it is the best validation so far."""
        values = self._read_validation() if due.validation else None
        return values is not None and self._judge_validation(values)

    def _judge_validation(self, values):
        """Records the {name: value} of a validation in progress; returns whether it is the best so
        far. Raises DivergenceFound when its loss is not finite, TrainingStopped when too high.
        """
        loss = values.get("loss")
        self.divergence.check_validation(self.progress.step, loss)
        # only a saved checkpoint can be the best one
        is_best = not self._must_wait() and self.progress.improve(
            self.ending.criterion(values), self.ending.best_metric
        )
        if self.ending.is_stale(self.progress.num_worse) and not self.is_last:
            self.is_last = True  # what follows is saved
            self.console.say(
                f"{self.progress.num_worse} validations since step {self.progress.best_step} were "
                "no better: the run ends (--early_stop_patience)"
            )
        problem = self.divergence.gives_up(self.progress.step, self.now.seconds, loss)
        if problem is not None:
            self._write_checkpoint()
            raise problem
        return is_best

    def _save(self, is_due):
        """Saves when due, later where it has to wait, and at the end."""
        self.save_is_late = is_due and self._must_wait()
        if (is_due or self.is_last) and not self.save_is_late:
            self._write_checkpoint()

    def _must_wait(self):
        """Whether a checkpoint has to wait for a good step: after bad ones it would evict those to
        return to.
        """
        return self.divergence.health.num_bad > 0 and not self.is_last

    def _export(self, due):
        """Exports the model to OUTPUT_DIR/marks/SHARE at the marks that are due, before the save: a
        run that resumes from it will not pass them again. When that fails (disk full), the run goes
        on.
        """
        for mark in due.exports if self.export else ():
            path, model = os.path.join(self.folder.path, MARKS, f"{mark:g}"), f"model at {mark:g}"
            export = functools.partial(self.export, path, self.step.state, self.progress.step)
            try:
                with self.watch.paused("saving"):
                    self.workers.on_chief(export)
                    self.console.say(f"{model} of the run: {path}")
            except (OSError, UserError) as error:
                self.console.warn(f"the {model} of the run could not be exported: {error}")

    def _log(self, due):
        """Logs when due; raises DivergenceFound when too many of the last steps were bad."""
        if due.log:
            self._write_line()
            self.divergence.check_steps(self.progress.step, due.is_end)

    def _write_line(self):
        """Writes the metrics of the steps since the last line, if any, and counts the bad ones."""
        if self.logged_step >= self.progress.step:
            return
        with self.workers.waiting():
            steps, values = self.interval.close()
        self.divergence.health.add(self.logged_step, steps, self.ending.max_loss_jump)
        self.logged_step = self.progress.step
        values |= dict(
            learning_rate=self.learning_rates[-1],
            global_batch_size=self.records_of_step,
            progress=self.position.share,
            epoch=self.progress.records / self.data.num_records,
            remaining_seconds=self.pace.remaining_seconds(),
        )
        if self.progress.num_skipped_records:
            values |= dict(skipped_records=self.progress.num_skipped_records)
        values |= self.log.hardware()
        self.log.write(self.progress.step, values)
        self.advice.observe(values)

    def _read_validation(self):
        """Validates; returns {name: value}, None without validation, and for one that a signal has
        stopped: the run ends then, and validates here when it is resumed.
        """
        if self.validate is None:
            return None
        self.progress.validation_failed = True
        with self._keeping_steps(), self.watch.paused("validation"):
            try:
                values = self.validate(self._until_stopped)
            except ValidationStopped:
                self.is_last = True
                return None
        self.progress.validation_failed = False
        self.is_last = self.is_last or bool(self.now.caught)
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
            self.now.sync()
            if self.now.caught:
                raise ValidationStopped
            yield batch

    def _write_checkpoint(self, is_together=True):
        """Saves, unless this step is saved. is_together: whether all workers are here."""
        is_saved = self.progress.step and self.saved_step == self.progress.step
        if is_saved or not (is_together or self.workers.is_chief):
            return
        writer = self.writer if is_together else self.writer.own
        with self.watch.paused("saving"):
            writer.wait()
            self.progress.seconds = self.now.seconds
            self.progress.call_seconds = self.position.seconds
            self.progress.health = dataclasses.asdict(self.divergence.health)
            writer.save(self.progress, self.step.state.read() if self.workers.is_chief else None)
        self.saved_seconds = self.now.seconds
        self.saved_step = self.progress.step

    def _go_back(self, problem):
        """Returns to the last good checkpoint, or raises TrainingStopped; later calls continue with
        new data.
        """
        progress = self.progress
        progress.call_seconds = self.before.seconds
        if self.ending.on_divergence == "rollback":
            self.writer.wait()
        with self.watch.paused("saving"):
            roll_back(problem, self.training_run, self.step.state, self.log, self.now.seconds)
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
