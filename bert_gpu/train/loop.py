"""The training loop: makes calls into TensorFlow of one or more steps each, and after each call
logs, exports, validates and saves where that is due.
"""

import contextlib
import dataclasses
import functools
import os
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import numpy as np

from bert_gpu.base.console import format_seconds
from bert_gpu.base.errors import UserError
from bert_gpu.base.run_names import MARKS
from bert_gpu.data.mixture import NEVER
from bert_gpu.data.pipeline import prefetch
from bert_gpu.devices.nvml import describe_energy
from bert_gpu.devices.workers import Clock
from bert_gpu.model.flops import Flops
from bert_gpu.monitor.advice import SlowdownWarnings
from bert_gpu.monitor.log_interval import LogInterval, Stopwatch, describe_activities
from bert_gpu.monitor.metrics_log import Log
from bert_gpu.runs.metrics import ENERGY
from bert_gpu.runs.pace import Pace
from bert_gpu.runs.shared_folder import open_writer
from bert_gpu.train.batching import TrainingData, take_batches
from bert_gpu.train.cadence import Cadence, default_steps_per_loop
from bert_gpu.train.divergence import Diverged, DivergenceFound, DivergenceMonitor
from bert_gpu.train.plan import BatchPlan
from bert_gpu.train.run import Run
from bert_gpu.train.start_block import peak_memory
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import DeviceBatches, TrainStep

MAX_ROLLBACKS = 3  # after these, a further divergence stops the run
# The prepared input of a call that runs K steps: K batches on the host, the same batches on the
# devices, and the share of the schedule that is done at each step, None where it is computed only
# when the call begins.
Call = tuple[list[dict[str, np.ndarray]], DeviceBatches, Sequence[float] | None]


class ValidationStopped(Exception):
    """The exception raised when a signal stops a validation, between two of its batches."""


class Position(typing.NamedTuple):
    """The point that a run has reached after a call of steps. step: finished steps. share: the
    share of the run that is done. seconds: training time of all sessions.
    """

    step: int
    share: float
    seconds: float


class Due(typing.NamedTuple):
    """The actions that are due after a call of steps. exports: the shares of the run, of those set
    for exports, that the call passed. is_end: whether the run is complete, not interrupted.
    """

    log: bool
    validation: bool
    save: bool
    exports: list[float]
    is_end: bool


class Loop:
    """Trains until the steps or the time of a run are over, or until a signal is caught.

    Args of the constructor:
      run: the Run, whose progress the loop updates. log: the method `run` closes it.
      validate: function of until_stopped that validates and returns {metric: value}; None = no
        validation. It passes its batches through until_stopped(batches), which raises
        ValidationStopped after a signal.
      export: function of (folder, TrainState, step) that writes the model of a step to the folder;
        None = no export at shares of the run. flops: function of a batch that returns its Flops;
        None = FLOPs are not counted.
      peak_flops: FLOP/s of all GPUs together; None = not known.

    The run's clock is the only one that the loop reads. Decisions by time or by signals depend on
    `now` alone, which has the same time and signals on all workers: they run the loop in lockstep,
    and must decide alike.
    """

    def __init__(
        self,
        step: TrainStep,
        data: TrainingData,
        plan: BatchPlan,
        run: Run,
        log: Log,
        *,
        validate: Callable[..., dict[str, float | None]] | None = None,
        export: Callable[[str, TrainState, int], None] | None = None,
        flops: Callable[[dict[str, np.ndarray]], Flops] | None = None,
        peak_flops: float | None = None,
    ) -> None:
        self.step = step
        self.data = data
        self.plan = plan
        self.training_run = run
        self.log = log
        self.validate = validate
        self.export = export
        self.ending = run.settings.ending
        self.progress = run.progress
        self.folder = run.folder
        self.console = run.console
        self.workers = run.workers
        cadence = run.settings.cadence
        self.steps_per_loop = cadence.steps_per_loop or default_steps_per_loop(
            step.devices.kind, plan.num_micro_batches, bool(data.length_axes)
        )
        cadence = dataclasses.replace(cadence, steps_per_loop=self.steps_per_loop)
        self.cadence = Cadence(cadence, plan.num_steps, data.num_records / plan.records_of_step)
        self.watch = Stopwatch(self.progress.seconds, run.clock)
        self.now = Clock(self.workers, lambda: self.watch.seconds, run.caught)
        self.pace = Pace(plan, self.progress, self.watch)
        self.advice = SlowdownWarnings(self.console.warn, step.devices.kind)
        self.interval = LogInterval(self.watch, flops, peak_flops)
        self.divergence = DivergenceMonitor(self.ending, self.progress.health)
        # progress.seconds includes a validation that preceded the save, so the schedule resumes
        # from call_seconds, the time at the end of the last step
        seconds = self.progress.call_seconds
        self.position = self.before = self._position(
            self.progress.seconds if seconds is None else seconds
        )
        self.is_last = self.is_over()
        self.save_is_late = False
        self.line_is_late = False
        self.saved_step = self.logged_step = self.progress.step
        self.writer = open_writer(
            self.folder, self.ending.keep_checkpoint_max, self.console.warn, self.workers
        )

    def run(self) -> None:
        """Train to the end of the run or until a signal, and save the last step. Raises
        TrainingStopped when the run has diverged or is stopped early.
        """
        try:
            with self.writer:
                self._begin()
                while not self.is_last:
                    with contextlib.closing(self._calls()) as calls:
                        try:
                            while not (self.is_last or self._change_weights()):
                                due = self._run_steps(calls)
                                self._log(due)
                                self._export(due)
                                is_best = self._validate(due)
                                self._save(due.save or is_best)
                        except DivergenceFound as problem:
                            self._roll_back(problem)
            self.console.say(f"time spent: {describe_activities(self.watch.activities)}")
        finally:
            self.log.close(self.is_complete())
        self.training_run.caught = self.now.caught
        self.training_run.is_complete = self.is_complete()
        energy = describe_energy(self.log.energy().get(ENERGY), self.workers.count)
        self.console.say(f"energy: {energy}")

    def _change_weights(self) -> bool:
        """Change the weights of the data sets where that is due, and return whether it was. The
        record from which the later ones hold is written to run.json, and holds for every session.
        """
        mixture = self.data.mixture
        if mixture is None or mixture.changed < NEVER or self.position.share < mixture.change_share:
            return False
        mixture.changed = self.progress.records
        self.training_run.content["weights_changed"] = mixture.changed
        self.folder.create(self.training_run.content)
        self.console.say(f"the weights of the data sets change at record {mixture.changed:,}")
        return True

    def _begin(self) -> None:
        """Validate before the run's first step, or repeat the validation during which the last
        session was stopped.
        """
        step = self.progress.step
        if step and not self.progress.validation_failed:
            return
        try:
            values = self._run_validation()
            if values is not None and step == 0:
                self.ending.criterion(values, is_first=True)
            elif values is not None:
                self._record_validation(values)
                self.folder.write_progress(self.progress)
        except DivergenceFound as problem:
            self._roll_back(problem)

    def is_over(self) -> bool:
        """Return whether the loop must end now: the run is finished, or a signal was caught."""
        return bool(self.now.caught) or self.is_finished()

    def is_finished(self) -> bool:
        """Return whether the run's steps or time are used up, or --early_stop_patience ends it."""
        return self.plan.length.is_finished(
            self.progress.step, self.now.seconds
        ) or self.ending.is_stale(self.progress.num_worse)

    def is_complete(self) -> bool:
        """Return whether the run is finished, its last validation included."""
        return self.is_finished() and not self.progress.validation_failed

    def _position(self, seconds: float) -> Position:
        """Return the Position after the last finished step. seconds: training time at that step."""
        step = self.progress.step
        return Position(step, self.plan.length.share(step, seconds), seconds)

    def _calls(self) -> Generator[Call, None, None]:
        """Yield the prepared input (Call) of one call of steps after another; a thread prepares
        them in advance.

        With a batch ramp the thread only reads records ahead, because the size of a step is known
        only when the step begins.
        """
        rows = self.plan.open_rows(self.data, self.progress.records)
        if not self.plan.is_ramped:
            return prefetch(self._prepared(rows, self.progress.step))
        depth = 2 * self.steps_per_loop * self.plan.num_micro_batches
        return self._prepared(prefetch(rows, depth), self.progress.step)

    def _prepared(
        self, rows: Generator[dict[str, np.ndarray], None, None], step: int
    ) -> Generator[Call, None, None]:

        with contextlib.closing(rows):
            while True:
                steps, shares = self._next_steps(step)
                counts = self.plan.num_micro_batches_at(shares)
                batches = take_batches(
                    rows,
                    len(steps),
                    counts,
                    self.data.length_axes,
                    self.plan.micro_batch_size,
                )
                is_planned = counts or self.plan.schedule_length.budget_seconds is None
                rates = self._learning_rates(steps, shares) if is_planned else None
                on_devices = self.step.put_on_devices(batches, steps.start, counts, rates)
                yield batches, on_devices, shares if counts else None
                step = steps.stop

    def _next_steps(self, step: int) -> tuple[range, Sequence[float]]:
        """Return the range of steps of the call that begins with `step`, and the share of the
        schedule that is done at each of these steps.
        """
        steps = range(step, self.cadence.call_ends(step))
        length = self.plan.schedule_length
        seconds = self.now.seconds
        return steps, [length.share(index, seconds) for index in steps]

    def _learning_rates(self, steps: range, shares: Sequence[float]) -> list[float]:
        return list(map(self.plan.learning_rate_at, steps, shares))

    @contextlib.contextmanager
    def _saving_on_error(self) -> Iterator[None]:
        """Open a context that saves the finished steps when reading data in it fails, for example
        at a corrupt record of training or validation.
        """
        try:
            yield
        except UserError:
            if self.progress.step:
                self._write_line()
                self._write_checkpoint(is_together=False)  # the error may be on one worker only
            raise

    def _run_steps(self, calls: Iterator[Call]) -> Due:
        """Run the steps of the next call in `calls`, and return the actions (Due) that are due
        after it.
        """
        progress = self.progress
        first = progress.step
        since = self.watch.seconds
        with self._saving_on_error():
            batches, on_devices, planned_shares = next(calls)
        waited = self.watch.seconds - since
        steps, shares = self._next_steps(first)
        shares = planned_shares or shares
        learning_rates = self._learning_rates(steps, shares)
        is_first = not self.interval.is_warm
        metrics = self.step(on_devices, learning_rates, first)
        if self.line_is_late:
            self._write_checked_line()
        self.learning_rates = learning_rates
        self.before = self.position
        counts = self.interval.add(metrics, batches, waited)
        for name, before in progress.cost().items():
            setattr(progress, name, before + counts.get(name, 0))
        progress.step = steps.stop
        self._count_records(batches)
        if is_first:
            self._report_first_call(len(steps))
        self.now.sync()
        # evaluated once a call, so that all actions after it agree, and the last save is made
        self.is_last = self.is_over()
        self.position = self._position(self.now.seconds)
        self.log.advance(progress.step, self.pace.share(), self.pace.remaining_seconds())
        return self._due()

    def _count_records(self, batches: Sequence[dict[str, np.ndarray]]) -> None:
        sizes = [len(batch.get("num_windows", batch["input_mask"])) for batch in batches]
        self.progress.records += sum(sizes)
        self.records_of_step = sizes[-1]

    def _report_first_call(self, num_steps: int) -> None:
        """Print how long the first call took, because compiling may take minutes, and the memory
        that it needed.
        """
        self.pace.begin()
        what = "the first step" if num_steps == 1 else f"the first {num_steps} steps"
        seconds = self.watch.activities["compiling"]
        taken = format_seconds(seconds) if seconds >= 60 else f"{seconds:.1f} s"
        memory = peak_memory(self.step.devices)
        self.console.say(
            f"{what} took {taken}, compiling included" + (f"; {memory}" if memory else "")
        )

    def _due(self) -> Due:
        """Return the actions that are due after a call of steps that began at the Position
        `self.before`.
        """
        is_end = self.is_last and self.is_finished()
        save = self.save_is_late or self.cadence.saves(self.progress.step)
        validation = self.cadence.validates(self.before, self.position, save) or is_end
        exports = self.cadence.exports(self.before.share, self.position.share)
        log = self.cadence.logs(self.progress.step) or save or validation or self.is_last
        return Due(log or bool(exports), validation, save, exports, is_end)

    def _validate(self, due: Due) -> bool:
        """Validate when that is due; return whether this was done and is the best validation so
        far.
        """
        # the validation of a checkpoint that still waits for a good step waits, too
        waits = (
            self.save_is_late
            and self._must_postpone_save()
            and not self.cadence.validates(self.before, self.position, saves=False)
        )
        values = self._run_validation() if due.validation and not waits else None
        return values is not None and self._record_validation(values)

    def _record_validation(self, values: dict[str, float | None]) -> bool:
        """Record {metric: value} of a validation in the progress; return whether it is the best so
        far. Raises DivergenceFound when the loss is not finite, TrainingStopped when the loss is
        too high after --early_stop_time.
        """
        loss = values.get("loss")
        self.divergence.check_validation(self.progress.step, loss)
        # a step whose save is postponed cannot be the best: it has no checkpoint
        is_best = not self._must_postpone_save() and self.progress.improve(
            self.ending.criterion(values), self.ending.best_metric
        )
        if self.ending.is_stale(self.progress.num_worse) and not self.is_last:
            self.is_last = True  # the caller saves the last step
            self.console.say(
                f"{self.progress.num_worse} validations since step {self.progress.best_step} were "
                "no better: the run ends (--early_stop_patience)"
            )
        problem = self.divergence.early_stop(self.progress.step, self.now.seconds, loss)
        if problem is not None:
            self._write_checkpoint()
            raise problem
        return is_best

    def _save(self, is_due: bool) -> None:
        """Save a checkpoint when one is due, or later where the save must be postponed, and always
        at the end of the run.
        """
        self.save_is_late = is_due and self._must_postpone_save()
        if (is_due or self.is_last) and not self.save_is_late:
            self._write_checkpoint()

    def _must_postpone_save(self) -> bool:
        """Return whether a checkpoint must wait for a good step: a checkpoint of bad steps would
        replace one to which a rollback can return.
        """
        return self.divergence.health.num_bad > 0 and not self.is_last

    def _export(self, due: Due) -> None:
        """Export the model to OUTPUT_DIR/marks/SHARE for each share of the run whose export is due.
        The caller does this before it saves, because a run that resumes from the checkpoint does
        not pass these shares again. A failed export (disk full) does not end the run.
        """
        if self.export is None:
            return
        for mark in due.exports:
            path = os.path.join(self.folder.path, MARKS, f"{mark:g}")
            model = f"model at {mark:g}"
            export = functools.partial(self.export, path, self.step.state, self.progress.step)
            try:
                with self.watch.paused("saving"):
                    self.workers.on_chief(export)
                    self.console.say(f"{model} of the run: {path}")
            except (OSError, UserError) as error:
                self.console.warn(f"the {model} of the run could not be exported: {error}")

    def _log(self, due: Due) -> None:
        """Write a log line when one is due. On GPUs, a line that nothing waits for is written when
        the next call has begun, so that the GPUs do not wait for its values to be read.
        """
        is_alone = not (due.save or due.validation or due.exports or self.is_last)
        self.line_is_late = due.log and is_alone and self.step.devices.kind == "GPU"
        if self.line_is_late:
            self.interval.end()
        elif due.log:
            self._write_checked_line(due.is_end)

    def _write_checked_line(self, is_end: bool = False) -> None:
        """Write a log line; then raise DivergenceFound when too many of the last steps were bad."""
        self.line_is_late = False
        self._write_line()
        self.divergence.check_steps(self.progress.step, is_end)

    def _write_line(self) -> None:
        """Log the metrics of the steps since the last log line, if there are any, and count the bad
        steps among them.
        """
        if self.logged_step >= self.progress.step:
            return
        with self.workers.waiting():
            steps, values = self.interval.close()
        self.divergence.health.add(self.logged_step, steps)
        self.logged_step = self.progress.step
        values |= dict(
            learning_rate=self.learning_rates[-1],
            global_batch_size=self.records_of_step,
            progress=self.position.share,
            epoch=self.progress.records / self.data.num_records,
            remaining_seconds=self.pace.remaining_seconds(),
        )
        values |= self.progress.cost() | self.log.hardware()
        self.log.write(self.progress.step, values)
        self.advice.observe(values)

    def _run_validation(self) -> dict[str, float | None] | None:
        """Validate, log the results and return {metric: value}. Return None when there is nothing
        to validate on, or when a signal has stopped the validation; the run then ends, and repeats
        the validation when it is resumed.
        """
        if self.validate is None:
            return None
        self.progress.validation_failed = True
        with self._saving_on_error(), self.watch.paused("validation"):
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
            | dict(seconds=self.watch.seconds)
            | self.log.energy(),
        )
        return values

    def _until_stopped(
        self, batches: Iterable[dict[str, np.ndarray]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the batches; raise ValidationStopped before the next one after a signal."""
        for batch in batches:
            self.now.sync()
            if self.now.caught:
                raise ValidationStopped
            yield batch

    def _write_checkpoint(self, is_together: bool = True) -> None:
        """Save a checkpoint of the last finished step unless it is already saved. is_together:
        whether all workers call this method; otherwise only the chief writes.
        """
        is_saved = self.progress.step and self.saved_step == self.progress.step
        if is_saved or not (is_together or self.workers.is_chief):
            return
        writer = self.writer if is_together else self.writer.own
        with self.watch.paused("saving"):
            writer.wait()
            self.progress.seconds = self.now.seconds
            self.progress.call_seconds = self.position.seconds
            self.progress.health = dataclasses.asdict(self.divergence.health)
            values = self.step.state.read() if self.workers.is_chief else None
            writer.save(self.progress, values)  # type: ignore[arg-type]  # SharedWriter takes None
        self.saved_step = self.progress.step

    def _roll_back(self, problem: DivergenceFound) -> None:
        """Restore the last good checkpoint, from which training continues with new data; raise
        TrainingStopped where that is not possible.
        """
        progress = self.progress
        progress.call_seconds = self.before.seconds
        if self.ending.on_divergence == "rollback":
            self.writer.wait()
        with self.watch.paused("saving"):
            self._restore_before(problem)
        self.console.warn(
            f"diverged: {problem}; back to step {progress.step}, "
            f"continuing with record {progress.records:,}"
        )
        self.saved_step = self.logged_step = progress.step
        # the clock is not set back; the position is that before the diverged call, so that actions
        # at the shares of the run that this call passed are due again
        self.position = self._position(self.before.seconds)
        self.divergence = DivergenceMonitor(self.ending)
        self.is_last = self.is_over()
        self.save_is_late = False
        self.interval.clear()
        self.pace.begin()

    def _restore_before(self, problem: DivergenceFound) -> None:
        """Restore the last checkpoint before the bad steps, to the weights, the progress and the
        log. The position in the data is not set back: training continues with later records. Raises
        Diverged when the settings or a missing checkpoint allow no rollback.
        """
        progress = self.progress
        if self.ending.on_divergence == "stop":
            raise Diverged(
                f"diverged: {problem}; lower --learning_rate, or use --on_divergence=rollback"
            )
        good = [step for step in self.folder.steps() if step <= problem.good_until]
        if not good or progress.num_rollbacks >= MAX_ROLLBACKS:
            limit = (
                "there is no checkpoint before that"
                if not good
                else f"it has been rolled back {MAX_ROLLBACKS} times already"
            )
            raise Diverged(f"diverged: {problem}; {limit}; lower --learning_rate")
        try:
            restored, values = self.folder.newest_whole(self.console.warn, good[-1])
        except UserError as error:
            raise Diverged(f"diverged: {problem}; {error}") from error
        self.step.state.assign(values)
        self.folder.remove_after(restored.step)
        self.log.cut(restored.step)
        for name in ("step", "best_step", "best_metric", "best_by", "num_worse"):
            setattr(progress, name, getattr(restored, name))
        progress.seconds = self.now.seconds
        progress.num_rollbacks += 1
        progress.health = None
        # written at once, so that a run that is killed now does not resume with the records of the
        # bad steps
        self.folder.write_progress(progress)
