"""A run: its folder, its devices, its plan, and how it begins, resumes and ends.

Pretraining and fine-tuning compose these parts with their data, model and objective;
pretrain/run.py shows how, from top to bottom.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import typing
from collections.abc import Callable

import numpy as np

from bert_gpu.base.console import LogConsole
from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.base.files import is_inside
from bert_gpu.base.signals import watch_signals
from bert_gpu.devices.devices import join_workers, set_up
from bert_gpu.monitor import metrics_log
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs import metrics, provenance
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.resume_changes import describe_changes
from bert_gpu.runs.shared_folder import open_folder
from bert_gpu.train import memory, shared_update, start_block
from bert_gpu.train.batching import check_same_batch, pad_rows, plan_batch
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import RunSettings, fit_sizes
from bert_gpu.train.divergence import Diverged

NO_GPU_BATCH = 32  # of --train_batch_size=auto on the CPU


class TrainingResult(typing.NamedTuple):
    """How a run ended: its folder, its progress, and the signal that stopped it early, if any.

    folder: RunFolder, or the SharedFolder of several workers.
    """

    folder: typing.Any
    progress: Progress
    signal: int | None = None

    def __repr__(self):
        done, best = self.progress, ""
        if done.best_metric is not None:  # minus a metric whose highest is best
            best = f", best {done.best_by or 'loss'} {abs(done.best_metric):.4g}"
        return f"TrainingResult({self.folder.path!r}: {done.step} steps{best})"


@dataclasses.dataclass(kw_only=True)
class Run:
    """A run of a command, which `open_run` opens.

    settings: RunSettings; `open_devices` fits their sizes to the devices. fields: {setting: field}
    of the run's kind, for run.json.
    folder: RunFolder, or the SharedFolder of several workers. run_json: content of its run.json,
    None for a new run. workers: that train together. console: Console. clock: () -> seconds.
    progress: where it stands, None before its first step. caught: the signals caught, a list that
    grows. content: of run.json, from `begin` on. is_complete: whether nothing is left to train.
    """

    settings: RunSettings
    fields: dict
    folder: typing.Any
    run_json: dict | None
    workers: typing.Any
    console: typing.Any
    clock: Callable
    progress: Progress | None = None
    caught: list = dataclasses.field(default_factory=list)
    content: dict | None = None
    is_complete: bool = False

    def check_resumable(self, fixed):
        """UserError when a run to resume has other fixed settings, {setting: value}."""
        if self.run_json is not None:
            run_folder.check_resumable(
                self.folder, self.run_json, fixed, self.fields, self.settings.recipe
            )

    def is_done(self, plan):
        """Whether nothing is left to do, which it says; finds out where the run stands. UserError
        when it has done more steps than the BatchPlan has.
        """
        self.progress = self.folder.newest_progress() if self.run_json is not None else None
        if self.progress is None:
            return False
        folder, progress, ending = self.folder, self.progress, self.settings.ending
        if plan.num_steps is not None and progress.step > plan.num_steps:
            raise UserError(
                f"its run has done {progress.step} steps, more than the {plan.num_steps} asked for",
                "raise --num_train_steps, name another folder, or --overwrite starts over",
                setting="output_dir",
                value=folder.path,
            )
        progress.compare_by(ending.best_metric)
        self.is_complete = plan.length.is_finished(
            progress.step, progress.seconds
        ) or ending.is_stale(progress.num_worse)
        is_exported = self.is_complete and self.run_json.get("exported_step") == progress.step
        if not (is_exported and self.workers.from_chief(os.path.isdir, folder.model)):
            return False
        self.console.say(
            f"{folder.path}: this run is finished "
            f"({start_block.counted_steps(progress.step)}); nothing to do "
            f"({hint_to_extend(plan, progress)}, --overwrite starts over)"
        )
        return True

    @contextlib.contextmanager
    def begin(self, step, plan, *, fixed, hashes, losses=(), find_results=lambda folder: ()):
        """A context in which this process alone writes to the folder, and signals are caught: it
        begins with the newest checkpoint, or with a new folder, and yields the Log.

        Args:
          step: TrainStep. plan: BatchPlan. fixed: {setting: value} that a resume may not change.
            hashes: {name: hash} for run.json.
          losses: as for metrics_log.open_log. find_results: as for RunFolder.clear.

        Raises TrainingStopped when the run diverges or its folder cannot be written.
        """
        self.content = describe_run(self, plan, step.devices.kind, fixed, hashes)
        watching = watch_signals(self.console.warn, interrupts=self.console.in_program)
        with self.folder.reserved(), watching as self.caught:
            resumed_step = self._restore(step, plan)
            if self.settings.overwrite:
                self.folder.clear(find_results)
            try:
                self.folder.create(self.content)
                yield self._open_log(step.devices.nvml, plan.num_steps, losses, resumed_step)
            except Diverged:
                with contextlib.suppress(OSError):  # what it raises matters more
                    self.folder.create(self.content | dict(ended="diverged"))  # until a resume
                raise
            except OSError as error:
                problem = (
                    f"{error.filename or self.folder.path}: {error.strerror or error}; "
                    "free some disk space, then repeat the same command"
                )
                raise TrainingStopped(problem) from error

    def _restore(self, step, plan):
        """Restores the newest checkpoint, if there is one; returns its step, else None."""
        is_new = self.run_json is None and not self.settings.overwrite
        if is_new and self.folder.stored() is not None:
            raise UserError(
                "another process has just written a run there",
                "repeat the same command, or name another folder",
                setting="output_dir",
                value=self.folder.path,
            )
        if self.progress is None:
            self.progress = Progress()
            return None
        resume(self, step, plan)
        return self.progress.step

    def _open_log(self, gpus, num_steps, losses, resumed_step):
        open_log = functools.partial(
            metrics_log.open_log,
            self.folder,
            self.settings.monitor,
            self.content["settings"] | self.content["free"],
            step=resumed_step,
            console=self.console,
            num_steps=num_steps,
            losses=losses,
            gpus=gpus,
            warn=self.console.warn,
        )
        return self.workers.on_chief(open_log) or metrics_log.no_log(self.console.warn)

    def finish(self, loop, export):
        """Writes model/ when a Loop has come to the end of the run. export: as for Loop."""
        self.caught = loop.now.caught
        self.is_complete = loop.is_complete()
        if not self.caught or self.is_complete:
            export_end(self, loop.step.state, export)
            self.folder.create(self.content | dict(exported_step=self.progress.step))

    def result(self):
        """The TrainingResult; says how to go on after a signal."""
        if not self.caught or self.is_complete:
            return TrainingResult(self.folder, self.progress)
        self.console.warn(
            f"stopped by {signal.Signals(self.caught[0]).name} after step "
            f"{self.progress.step}; the same command resumes from there"
        )
        return TrainingResult(self.folder, self.progress, self.caught[0])


def join(settings, console, **more):
    """(The Workers that train together, the Console of this one). UserError on all of them when one
    has other RunSettings, or other values of `more`.
    """
    workers = join_workers(settings.devices)
    check_same_command(workers, settings)
    workers.check_alike(more)
    return workers, workers.console(console or LogConsole())


@contextlib.contextmanager
def open_run(settings, fields, workers, console, clock, start=None, trains=True):
    """Yields the Run in --output_dir. UserError for a folder that holds other files, or that
    another process writes to.

    The folder of a run is reserved before it is read, so that what is read stays true; that of a
    new run is made and reserved when its training begins. Without `trains` it is only read.
    fields, workers, console, clock: of the Run. start: the folder of the model that a training
    starts from, which may not lie in the run's, or --overwrite would remove it.
    """
    output_dir, overwrite = settings.run.output_dir, settings.overwrite
    folder = open_folder(output_dir, workers)
    if trains and start is not None and is_inside(start, output_dir):
        raise UserError(
            "training writes to that folder",
            f"name another --output_dir than {output_dir}",
            setting="init_checkpoint",
            value=start,
        )
    if overwrite and not trains:
        raise UserError(
            "would remove what is evaluated here",
            "add --do_train, or drop the flag",
            setting="overwrite",
        )
    with folder.reserved() if trains and folder.is_known() else contextlib.nullcontext():
        if overwrite:
            folder.exists()
        yield Run(
            settings=settings,
            fields=fields,
            folder=folder,
            run_json=None if overwrite else folder.stored(fields),
            workers=workers,
            console=console,
            clock=clock,
        )


def open_devices(run):
    """The Devices of a Run, whose settings get sizes that fit them."""
    devices = set_up(run.settings.devices)
    batch = fit_sizes(run.settings.batch, run.settings.flexible, devices.num_replicas, run.run_json)
    run.settings = dataclasses.replace(run.settings, batch=batch)
    return devices


def fixed_settings(settings, precision):
    """{setting: value} of RunSettings that may not change in a resumed run, such as all of the
    schedule but --lr_schedule and --total_training_time.
    """
    return (
        settings.optimizer.to_dict()
        | {
            name: value
            for name, value in settings.schedule.to_dict().items()
            if name not in ("lr_schedule", "total_training_time")
        }
        | dict(
            freeze=list(settings.memory.freeze),
            lr_scaling=settings.batch.lr_scaling,
            lr_reference_batch_size=settings.batch.lr_reference_batch_size,
            precision=precision,
        )
    )


# Settings of which the workers of a run may each have their own: devices, and places of files, of
# which the content is compared where they are read.
OWN_SETTINGS = (
    *("gpus", "output_dir", "input_file", "eval_input_file", "data_dir", "vocab_file"),
    *("init_checkpoint", "train_file", "dev_file", "test_file", "predict_file"),
)


def check_same_command(workers, settings):
    """UserError on all workers when one of them has other RunSettings. Call it before anything that
    depends on them is done together: opening the run's folder, training.
    """
    values = settings.values() | dict(overwrite=settings.overwrite, recipe=settings.recipe)
    workers.check_alike({name: values[name] for name in values if name not in OWN_SETTINGS})


def check_layers(optimizer, state):
    """UserError when learning rates shall differ between layers that the weights' names do not
    tell, as those of Model Garden's encoders.
    """
    if optimizer.layer_lr_decay < 1 and not any(
        name.startswith("layer_") for name in state.weights
    ):
        raise UserError(
            "the weights of this encoder are not known by layers",
            "drop the flag",
            setting="layer_lr_decay",
            value=f"{optimizer.layer_lr_decay:g}",
        )


def with_update(flops, step):
    """Adds the products of the optimizer to the hardware FLOPs of a TrainStep: function of a batch
    -> Flops. flops: the same without them, None = not counted.
    """
    if flops is None:
        return None
    more = shared_update.hardware_flops(
        step.devices, step.state.joint_parts, step.is_shared, step.optimizer
    )

    def of_step(batch):
        counted = flops(batch)
        return counted._replace(hardware=counted.hardware + more)

    return of_step


def resume(run, step, plan):
    """Restores the newest checkpoint that is whole and says what a resumed run does differently."""
    folder, console, ending = run.folder, run.console, run.settings.ending
    # refuses it before anything is written
    run.workers.on_chief(functools.partial(metrics.read_lines, folder.metrics))
    run.progress, values = folder.newest_whole(console.warn)
    progress, by = run.progress, run.progress.best_by
    try:
        step.state.assign(values)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"the checkpoint of step {progress.step} does not fit the model ({error})",
            where=folder.path,
        ) from error
    if progress.compare_by(ending.best_metric):
        console.say(
            f"--best_metric={ending.best_metric}: earlier validations "
            f"were compared by {by}; the search for the best one restarts"
        )
    folder.set_aside_after(progress.step)
    # of a save that was cut short
    folder.remove_old(ending.keep_checkpoint_max, progress.last_good_step)
    total = "" if plan.num_steps is None else f" of {plan.num_steps}"
    console.say(
        f"resuming from step {progress.step}{total} ({progress.records:,} records consumed)"
    )
    for line in describe_changes(run.run_json, plan, step.devices.kind, progress):
        console.say(line)


def hint_to_extend(plan, progress):
    """Names the flag that extends a finished run."""
    if plan.num_steps is not None and progress.step >= plan.num_steps:
        flag = "num_train_steps"
    elif plan.length.is_finished(progress.step, progress.seconds):
        flag = "total_training_time"
    else:
        flag = "early_stop_patience"
    return f"a larger --{flag} goes on with it"


def print_summary(run, step, plan, data, summary_rows, min_device_bytes=None):
    """Prints what a Run is before its first step; nothing of one that has no steps left.

    summary_rows: (label, text) on the model and the data. min_device_bytes: what the run needs on a
    device at least, None = unknown.
    """
    if run.is_complete:
        return
    devices, console = step.devices, run.console
    console.block(start_block.rows(run, data, plan, devices, summary_rows, min_device_bytes))
    if problem := start_block.length_problem(plan, data, run.settings):
        console.warn(problem)
    shared_update.announce(devices, step.state.joint_parts, step.is_shared, console)


def export_end(run, state, export):
    """Writes model/ at the end of a Run: the last weights, or the best ones with --export_best."""
    folder, console, ending = run.folder, run.console, run.settings.ending
    step, best = run.progress.step, run.progress.best_step
    has_best = ending.export_best and best is not None
    best_step = folder.best_step() if has_best else None
    if has_best and best_step != best:
        console.warn(
            f"the checkpoint of step {best}, which has the best validation "
            f"{ending.best_metric}, is missing; model/ holds the weights of step "
            f"{best_step or step}"
        )
    if best_step is not None:
        step = best_step
        try:
            state.assign(folder.restore(step))
        except UserError as error:
            remedy = "remove its folder, and repeat the command to export the last one"
            raise UserError(f"{error}, which is the best checkpoint", remedy) from error
        console.say(
            f"model/ holds the weights of step {step}, which has the best validation "
            f"{ending.best_metric}"
        )
    run.workers.on_chief(functools.partial(export, folder.model, state, step))


def describe_run(run, plan, device_kind, fixed, hashes):
    """The content of run.json; arguments as for `Run.begin`."""
    settings = run.settings
    free = {name: value for name, value in settings.values().items() if name not in fixed}
    return dict(
        settings=fixed,
        **plan.run_record(device_kind),
        free=free | dict(recipe=settings.recipe),
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        hashes=hashes,
    )


def plan_run(run, data, devices, state, make_step):
    """The BatchPlan of a Run; resolves --train_batch_size=auto, whose trials leave the state
    unchanged.

    Args:
      data: TrainingData. devices: Devices. state: TrainState. make_step: function of
        (num_micro_batches=) -> TrainStep.
    """
    settings, stored = run.settings, run.run_json
    check_layers(settings.optimizer, state)
    batch, is_ramped = settings.batch, settings.schedule.batch_ramp_proportion > 0
    rows = next(data.open_batches(batch_size=8, position=0))  # fails early on bad records
    if batch.train_batch_size == "auto":
        size = choose_size(run, data, devices, rows, state, make_step)
        batch = dataclasses.replace(batch, train_batch_size=size)
    plan = plan_batch(
        batch, settings.optimizer.learning_rate, devices.num_replicas, stored, is_ramped
    )
    if is_ramped and not plan.is_ramped and "batch_ramp_proportion" not in settings.flexible:
        run.console.warn(
            "--batch_ramp_proportion has no effect on a batch of one micro-batch; give a smaller "
            "--train_batch_size, or --gradient_accumulation_steps"
        )
    if stored:
        check_same_batch(plan, batch, is_ramped, stored, run.folder.path)
    plan = dataclasses.replace(plan, schedule=settings.schedule)
    num_steps = num_steps_of(
        settings.cadence,
        data.num_records,
        plan.records_of_step,
        runs_by_time=settings.schedule.lr_schedule == "time",
        dupe_factor=data.dupe_factor or 1,
    )
    return dataclasses.replace(plan, num_steps=num_steps)


def choose_size(run, data, devices, rows, state, make_step):
    """The micro-batch of --train_batch_size=auto; arguments as for `fill_memory`."""
    console, stored, batch = run.console, run.run_json, run.settings.batch
    wanted = stored["global_batch_size"] if stored else batch.global_batch_size
    if devices.kind == "CPU":
        size = memory.choose_micro_batch(
            lambda size: 0.0 if size <= NO_GPU_BATCH else None, devices.num_replicas, wanted
        )
        console.say(f"--train_batch_size=auto: {size}, because there is no GPU memory to fill")
        return size
    if run.workers.count > 1:
        raise UserError(
            "tries what fits on one machine",
            "start the command on one of them, and give all of them the number that it finds",
            setting="train_batch_size",
            value="auto",
        )
    accumulates = wanted is not None or (batch.gradient_accumulation_steps or 1) > 1
    rows = pad_rows(rows, data.max_seq_length, data.length_axes)
    return fill_memory(devices, rows, state, make_step, console.say, wanted, accumulates)


def fill_memory(devices, rows, state, make_step, say, wanted=None, accumulates=False):
    """The largest micro-batch that fits, found by running steps on rows of full length. UserError
    when none fits.

    Args:
      devices: Devices. rows: a batch of a few rows, which are repeated. state: TrainState, which
        stays as it is. make_step: as for `plan_run`. say: takes a line of text.
      wanted: global batch that it must divide, or None. accumulates: whether a step has several
        micro-batches.
    """
    say("--train_batch_size=auto: trying what fits")
    first = state.read()
    num_micro_batches = 2 if accumulates else 1
    make_trial = functools.partial(trial_step, make_step, num_micro_batches, rows)
    trial = memory.Trial(make_trial, "GPU:0", say, devices.replica_bytes)
    size = memory.choose_micro_batch(trial, devices.num_replicas, wanted)
    state.assign(first)
    say(
        f"--train_batch_size=auto: {size}"
        + (f", {trial.peak_bytes / 2**30:.2f} GB at most" if trial.peak_bytes else "")
    )
    return size


def trial_step(make_step, num_micro_batches, rows, size):
    """A callable that runs a step of micro-batches of this size on repeated rows, and waits."""
    step = make_step(num_micro_batches=num_micro_batches)
    num_examples = size * num_micro_batches * step.devices.num_replicas
    batch = {
        name: np.resize(value, (num_examples, *value.shape[1:])) for name, value in rows.items()
    }
    return lambda: step([batch], [0.0], 0).read()
