"""Opens a run, plans it, trains from the newest checkpoint or from the beginning, and exports it.

Pretraining and fine-tuning each pass a `Training`; everything else about a run is here.
"""

import contextlib
import dataclasses
import os
import signal
import time
import typing
from collections.abc import Callable

import numpy as np

from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.base.files import is_inside
from bert_gpu.base.run_names import MARKS
from bert_gpu.base.signals import watch_signals
from bert_gpu.devices.workers import ALONE
from bert_gpu.monitor import metrics_log
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs import metrics, provenance
from bert_gpu.runs.progress import Progress
from bert_gpu.runs.resume_changes import describe_changes
from bert_gpu.runs.shared_folder import open_folder
from bert_gpu.train import memory, shared_update, start_block
from bert_gpu.train.batching import pad_rows, plan_batch
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import BatchConfig, RunSettings
from bert_gpu.train.divergence import Diverged
from bert_gpu.train.loop import Job, Loop
from bert_gpu.train.step import Objective, TrainStep

NO_GPU_BATCH = 32  # of --train_batch_size=auto on the CPU


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """What is trained, and on what.

    Attributes:
      objective: step.Objective. seed: of dropout.
      batches_at: function of (position in consumed records, batch_size) -> endless iterator of
        batches.
      num_records: of an epoch. dupe_factor: copies of the text in them, None = no pretraining.
        max_seq_length: of the longest row. has_lengths: whether row lengths may differ between
        calls.
      validate: () -> {name: value}, or None. export: function of (folder, weights, step),
        which writes the model of a step.
      fixed: {setting: value} of the task and the model that a run in progress may not change.
        hashes: {name: hash} for run.json.
      find_results: as for RunFolder.clear.
      about: rows (label, text) on the model and the data, for the log. least_bytes: what the run
        needs on a device at least, None = unknown. flops: function of a batch -> Flops without
        those of the update, None = not counted.
      losses: names in the metrics of the parts of "loss" that validation calls NAME_loss.
      peak_flops: of all GPUs a second, None = unknown.
    """

    objective: Objective
    seed: int
    batches_at: Callable
    num_records: int
    max_seq_length: int
    has_lengths: bool
    validate: Callable | None
    export: Callable
    fixed: dict
    hashes: dict
    dupe_factor: int | None = None
    find_results: Callable = lambda folder: ()
    about: tuple[tuple[str, str], ...] = ()
    least_bytes: int | None = None
    losses: tuple[str, ...] = ()
    flops: Callable | None = None
    peak_flops: float | None = None


class TrainingResult(typing.NamedTuple):
    """How a run ended: its folder, its progress, and the signal that stopped it early, if any.

    folder: RunFolder, or the SharedFolder of several workers.
    """

    folder: typing.Any
    progress: Progress
    signal: int | None = None


@contextlib.contextmanager
def open_run(output_dir, overwrite, trains=True, fields=None, start=None, workers=ALONE):
    """Yields (RunFolder, content of its run.json or None for a new run). UserError for a folder
    that holds other files, or that another process writes to.

    The folder of a run is reserved before it is read, so that what is read stays true; that of a
    new run is made and reserved when its training begins. Without `trains` it is only read.
    fields: as for RunFolder.stored. start: the folder of the model that a training starts from,
    which may not lie in the run's, or --overwrite would remove it. workers: that train together.
    """
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
        yield folder, None if overwrite else folder.stored(fields)


def fixed_settings(settings, precision):
    """{setting: value} of RunSettings that may not change in a resumed run, such as all of the
    schedule but --lr_schedule and --total_training_time.
    """
    schedule = settings.schedule.to_dict()
    return (
        settings.optimizer.to_dict()
        | {
            name: value
            for name, value in schedule.items()
            if name not in ("lr_schedule", "total_training_time")
        }
        | dict(
            freeze=list(settings.memory.freeze),
            lr_scaling=settings.batch.lr_scaling,
            lr_reference_batch_size=settings.batch.lr_reference_batch_size,
            precision=precision,
        )
    )


def check_settings(folder, stored, fixed, fields, recipe):
    """UserError when a run to resume has other fixed settings; fields and recipe as for
    `check_resumable`.
    """
    if stored is not None:
        run_folder.check_resumable(folder, stored, fixed, fields, recipe)


@dataclasses.dataclass(frozen=True)
class Session:
    """A training in this process.

    training: Training. settings: RunSettings. folder, stored: of `open_run`. devices:
    devices.Devices. state: state.TrainState, with the first weights. console: console.Console.
    clock: () -> seconds.
    """

    training: Training
    settings: RunSettings
    folder: typing.Any
    stored: dict | None
    devices: typing.Any
    state: typing.Any
    console: typing.Any
    clock: Callable = time.monotonic

    @property
    def workers(self):
        return self.devices.workers

    def make_step(self, plan):
        """The TrainStep of a BatchPlan."""
        return TrainStep(
            self.devices,
            self.state,
            self.training.objective,
            self.settings.optimizer,
            seed=self.training.seed,
            num_micro_batches=plan.num_micro_batches,
            is_ramped=plan.is_ramped,
            has_lengths=self.training.has_lengths,
        )


def train(session):
    """Trains from the newest checkpoint, or from the beginning, and leaves model/ in the
    run's folder.

    Args:
      session: Session.

    Returns:
      TrainingResult.

    Raises:
      TrainingStopped: the run diverged, stopped early or could not save. UserError.
    """
    job = make_job(session, plan_run(session))
    progress = session.folder.newest_progress() if session.stored is not None else None
    if progress is not None:
        check_progress(session, job, progress)
        if is_exported(session, job, progress):
            session.console.say(
                f"{session.folder.path}: this run is finished "
                f"({start_block.counted_steps(progress.step)}); nothing to do "
                f"({how_to_go_on(job, progress)}, --overwrite starts over)"
            )
            return TrainingResult(session.folder, progress)
    if progress is None or not is_over(session, job, progress):
        say_start(session, job)
    return run_job(session, job, progress)


def planned_steps(training, settings, plan):
    """Steps of the whole run, None = by time."""
    return num_steps_of(
        settings.cadence,
        training.num_records,
        plan.records_of_step(settings.schedule),
        runs_by_time=settings.schedule.lr_schedule == "time",
        dupe_factor=training.dupe_factor or 1,
    )


def make_job(session, plan):
    """The Job of a BatchPlan."""
    training, settings, state = session.training, session.settings, session.state
    num_steps = planned_steps(training, settings, plan)
    step = session.make_step(plan)
    return Job(
        step=step,
        put_on_devices=step.put_on_devices,
        batches_at=lambda position: training.batches_at(position, plan.unit_size),
        validate=training.validate,
        read=state.read,
        assign=state.assign,
        num_steps=num_steps,
        num_records=training.num_records,
        plan=plan,
        schedule=settings.schedule,
        export=lambda mark, step: export_mark(session.folder, mark, step, training.export, state),
        flops=training.flops and with_update(training.flops, step, settings.optimizer),
        peak_flops=training.peak_flops,
        memory=lambda: start_block.peak_memory(session.devices),
        kind=session.devices.kind,
        workers=session.workers,
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


def with_update(flops, step, optimizer):
    """Adds the products of the optimizer to the hardware FLOPs of a step: function of a batch ->
    Flops. flops: the same without them. step: TrainStep. optimizer: OptimizerConfig.
    """
    more = shared_update.hardware_flops(
        step.devices, step.state.joint_parts, step.is_shared, optimizer
    )

    def of_step(batch):
        counted = flops(batch)
        return counted._replace(hardware=counted.hardware + more)

    return of_step


def check_progress(session, job, progress):
    """UserError when a run has done more steps than it shall have. Makes its Progress compare
    validations as the settings say.
    """
    if job.num_steps is not None and progress.step > job.num_steps:
        raise UserError(
            f"its run has done {progress.step} steps, more than the {job.num_steps} asked for",
            "raise --num_train_steps, name another folder, or --overwrite starts over",
            setting="output_dir",
            value=session.folder.path,
        )
    progress.compare_by(session.settings.ending.best_metric)


def is_over(session, job, progress):
    """Whether a run has no steps left to train, or no validation could be better."""
    return job.length.is_finished(
        progress.step, progress.seconds
    ) or session.settings.ending.is_stale(progress.num_worse)


def is_exported(session, job, progress):
    """Whether a run is over and its model is in model/."""
    return (
        is_over(session, job, progress)
        and session.stored.get("exported_step") == progress.step
        and session.workers.from_chief(os.path.isdir, session.folder.model)
    )


def run_job(session, job, progress):
    """Runs a job to its end in the run's folder, as its only writer; returns a TrainingResult.
    progress: Progress of the newest checkpoint, None without one.
    """
    folder, training = session.folder, session.training
    content = describe_run(session, job)
    with folder.reserved(), watch_signals(session.console.warn) as caught:
        if session.stored is None and not session.settings.overwrite:
            check_still_new(folder)
        if progress is not None:
            progress = resume(session, job)
        if session.settings.overwrite:
            folder.clear(training.find_results)
        resumed_step = None if progress is None else progress.step
        progress = progress or Progress()
        try:
            folder.create(content)
            loop = run_loop(session, job, progress, content, resumed_step, caught)
            caught = loop.moment.caught
            if not caught or loop.is_complete():
                export_end(session, progress)
                folder.create(content | dict(exported_step=progress.step))
        except Diverged:
            with contextlib.suppress(OSError):  # what it raises matters more
                folder.create(content | dict(ended="diverged"))  # until it is resumed
            raise
        except OSError as error:
            problem = (
                f"{error.filename or folder.path}: {error.strerror or error}; "
                "free some disk space, then repeat the same command"
            )
            raise TrainingStopped(problem) from error
    if caught and not loop.is_complete():
        session.console.warn(
            f"stopped by {signal.Signals(caught[0]).name} after step "
            f"{progress.step}; the same command resumes from there"
        )
        return TrainingResult(folder, progress, caught[0])
    return TrainingResult(folder, progress)


def check_still_new(folder):
    """UserError when another process has written a run since the folder was looked at."""
    if folder.stored() is not None:
        raise UserError(
            "another process has just written a run there",
            "repeat the same command, or name another folder",
            setting="output_dir",
            value=folder.path,
        )


def resume(session, job):
    """Restores the newest checkpoint that is whole and says what a resumed run does differently;
    returns its Progress.
    """
    folder, console, ending = session.folder, session.console, session.settings.ending
    # refuses it before anything is written
    session.workers.on_chief(lambda: metrics.read_lines(folder.metrics))
    progress = restore(session.state, folder, console.warn)
    by = progress.best_by
    if progress.compare_by(ending.best_metric):
        console.say(
            f"--best_metric={ending.best_metric}: earlier validations "
            f"were compared by {by}; the search for the best one restarts"
        )
    folder.set_aside_after(progress.step)
    # of a save that was cut short
    folder.remove_old(ending.keep_checkpoint_max, progress.last_good_step)
    total = "" if job.num_steps is None else f" of {job.num_steps}"
    console.say(
        f"resuming from step {progress.step}{total} ({progress.records:,} records consumed)"
    )
    plan = (job.plan, session.devices.kind, job.num_steps, job.schedule)
    for line in describe_changes(session.stored, *plan, progress):
        console.say(line)
    return progress


def run_loop(session, job, progress, content, resumed_step, caught):
    """Opens the log and runs the Loop, which it returns.

    Args:
      content: of run.json. resumed_step: that of the checkpoint, None for a new run. caught: of
        `watch_signals`.
    """
    settings, console = session.settings, session.console
    opening = metrics_log.Opening(
        folder=session.folder,
        config=settings.monitor,
        settings=content["settings"] | content["free"],
        step=resumed_step,
        console=console,
        num_steps=job.num_steps,
        losses=session.training.losses,
    )
    log = session.workers.on_chief(
        lambda: metrics_log.open_log(opening, gpus=session.devices.nvml, warn=console.warn)
    )
    with contextlib.closing(log or metrics_log.no_log(console.warn)) as log:
        loop = Loop(
            job,
            settings.cadence,
            settings.ending,
            progress,
            session.folder,
            log,
            console,
            caught,
            session.clock,
        )
        loop.run()
    return loop


def how_to_go_on(job, progress):
    """What lets a finished run go on, in words."""
    if job.num_steps is not None and progress.step >= job.num_steps:
        flag = "num_train_steps"
    elif job.length.is_finished(progress.step, progress.seconds):
        flag = "total_training_time"
    else:
        flag = "early_stop_patience"
    return f"a larger --{flag} goes on with it"


def say_start(session, job):
    """Says what a run is before its first step."""
    training, settings, console = session.training, session.settings, session.console
    length = (job.plan, session.devices, job.num_steps)
    console.block(start_block.rows(training, settings, *length, session.folder, session.stored))
    if problem := start_block.length_problem(job.num_steps, job.plan, training, settings):
        console.warn(problem)
    shared_update.announce(session.devices, session.state.joint_parts, job.step.is_shared, console)


def export_end(session, progress):
    """Writes model/ at the end of a run: the last weights, or the best ones with --export_best."""
    folder, state, console = session.folder, session.state, session.console
    ending, step = session.settings.ending, progress.step
    has_best = ending.export_best and progress.best_step is not None
    best_step = folder.best_step() if has_best else None
    if has_best and best_step != progress.best_step:
        console.warn(
            f"the checkpoint of step {progress.best_step}, which has the best validation "
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
    export = session.training.export
    session.workers.on_chief(lambda: export(folder.model, state.read_weights(), step))


def export_mark(folder, mark, step, export, state):
    """Exports the model as it is now, after `step` steps, to OUTPUT_DIR/marks/SHARE; returns that
    folder.
    """
    path = os.path.join(folder.path, MARKS, f"{mark:g}")
    export(path, state.read_weights(), step)
    return path


def restore(state, folder, warn):
    """Loads the newest checkpoint that is whole into the variables; returns its Progress."""
    progress, values = folder.newest_whole(warn)
    try:
        state.assign(values)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"the checkpoint of step {progress.step} does not fit the model ({error})",
            where=folder.path,
        ) from error
    return progress


def describe_run(session, job):
    """The content of run.json."""
    training, settings, plan = session.training, session.settings, job.plan
    fixed = training.fixed
    free = {name: value for name, value in settings.values().items() if name not in fixed}
    return dict(
        settings=fixed,
        global_batch_size=plan.global_batch_size,
        unit_size=plan.unit_size,
        micro_batch_size=plan.micro_batch_size,
        num_replicas=plan.num_replicas,
        device_kind=session.devices.kind,
        learning_rate=plan.learning_rate,
        num_steps=job.num_steps,
        free=free | dict(recipe=settings.recipe),
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        hashes=training.hashes,
    )


def plan_run(session):
    """The BatchPlan of a run; resolves --train_batch_size=auto, whose trials leave the state
    unchanged.
    """
    settings, stored, devices = session.settings, session.stored, session.devices
    batch, is_ramped = settings.batch, settings.schedule.batch_ramp_proportion > 0
    rows = next(session.training.batches_at(0, 8))  # fails early on bad records
    if batch.train_batch_size == "auto":
        batch = dataclasses.replace(batch, train_batch_size=choose_size(session, rows))
    plan = plan_batch(
        batch, settings.optimizer.learning_rate, devices.num_replicas, stored, is_ramped
    )
    if is_ramped and not plan.is_ramped and "batch_ramp_proportion" not in settings.flexible:
        session.console.warn(
            "--batch_ramp_proportion has no effect on a batch of one micro-batch; give a smaller "
            "--train_batch_size, or --gradient_accumulation_steps"
        )
    if stored and batch.global_batch_size not in (None, plan.global_batch_size):
        raise UserError(
            f"the run in {session.folder.path} has {plan.global_batch_size}",
            setting="global_batch_size",
            value=batch.global_batch_size,
        )
    unit = plan.micro_batch_size * plan.num_replicas
    if stored and is_ramped and stored.get("unit_size", unit) != unit:
        raise UserError(
            f"a run with a batch ramp must keep GPUs x micro-batch = {stored['unit_size']}",
            setting="train_batch_size",
            value=plan.micro_batch_size,
        )
    return plan


def choose_size(session, rows):
    """The micro-batch of --train_batch_size=auto; arguments as for `fill_memory`."""
    devices, console, stored = session.devices, session.console, session.stored
    wanted = stored["global_batch_size"] if stored else session.settings.batch.global_batch_size
    if devices.kind == "CPU":
        size = memory.choose_micro_batch(
            lambda size: 0.0 if size <= NO_GPU_BATCH else None, devices.num_replicas, wanted
        )
        console.say(f"--train_batch_size=auto: {size}, because there is no GPU memory to fill")
        return size
    if session.workers.count > 1:
        raise UserError(
            "tries what fits on one machine",
            "start the command on one of them, and give all of them the number that it finds",
            setting="train_batch_size",
            value="auto",
        )
    return fill_memory(session, rows, wanted)


def fill_memory(session, rows, wanted):
    """The largest micro-batch that fits, found by running steps on rows of full length. UserError
    when none fits.

    Args:
      rows: a batch of a few rows, which are repeated, and padded to the training's longest row.
        wanted: global batch that it must divide, or None.
    """
    devices, state, console = session.devices, session.state, session.console
    console.say("--train_batch_size=auto: trying what fits")
    first = state.read()
    rows = pad_rows(rows, session.training.max_seq_length)
    accumulation = session.settings.batch.gradient_accumulation_steps or 1
    accumulates = wanted is not None or accumulation > 1

    def make_trial(size):
        accumulation = 2 if accumulates else 1
        plan = plan_batch(
            BatchConfig(train_batch_size=size, gradient_accumulation_steps=accumulation),
            1.0,
            devices.num_replicas,
        )
        step = session.make_step(plan)
        indices = np.arange(plan.global_batch_size) % len(rows["input_mask"])
        return lambda: step(
            [{name: value[indices] for name, value in rows.items()}], [0.0], 0
        ).read()

    trial = memory.Trial(make_trial, "GPU:0", console.say, devices.replica_bytes)
    size = memory.choose_micro_batch(trial, devices.num_replicas, wanted)
    state.assign(first)
    console.say(
        f"--train_batch_size=auto: {size}"
        + (f", {trial.peak_bytes / 2**30:.2f} GB at most" if trial.peak_bytes else "")
    )
    return size
