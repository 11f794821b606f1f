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

from bert_gpu.settings import TrainingStopped, UserError
from bert_gpu.train import (
    memory,
    monitor,
    provenance,
    run_files,
    run_folder,
    shared_update,
    sinks,
    start_block,
)
from bert_gpu.train.batching import pad_rows, plan_batch
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import BatchConfig
from bert_gpu.train.divergence import Diverged
from bert_gpu.train.loop import Job, Loop
from bert_gpu.train.progress import Progress
from bert_gpu.train.resume_changes import describe_changes
from bert_gpu.train.shared_folder import open_folder
from bert_gpu.train.signals import watch_signals
from bert_gpu.train.step import Objective, TrainStep
from bert_gpu.train.workers import ALONE

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
            f"--init_checkpoint={start}: training writes to that folder; "
            f"name another --output_dir than {output_dir}"
        )
    if overwrite and not trains:
        raise UserError(
            "--overwrite: would remove what is evaluated here; add --do_train, or drop the flag"
        )
    with folder.reserved() if trains and folder.is_known() else contextlib.nullcontext():
        if overwrite:
            folder.exists()
        yield folder, None if overwrite else folder.stored(fields)


def is_inside(path, folder):
    """Whether a path is a folder or lies in it."""
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath([path, folder]) == folder


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


def train(training, settings, folder, stored, devices, state, console, clock=time.monotonic):
    """Trains from the newest checkpoint, or from the beginning, and leaves model/ in the
    run's folder.

    Args:
      training: Training. settings: RunSettings. folder, stored: of `open_run`. devices:
        devices.Devices.
      state: state.TrainState, with the first weights. console: console.Console. clock:
        () -> seconds.

    Returns:
      TrainingResult.

    Raises:
      TrainingStopped: the run diverged, stopped early or could not save. UserError.
    """

    def make_step(plan):
        sizes = dict(
            num_micro_batches=plan.num_micro_batches,
            is_ramped=plan.is_ramped,
            has_lengths=training.has_lengths,
        )
        return TrainStep(
            devices, state, training.objective, settings.optimizer, seed=training.seed, **sizes
        )

    check_layers(settings.optimizer, state)
    devices.workers.check_alike(alike_settings(training, settings))
    plan = plan_run(training, settings, folder, stored, devices, state, make_step, console)
    runs_by_time = settings.schedule.lr_schedule == "time"
    num_steps = num_steps_of(
        settings.cadence,
        training.num_records,
        plan.records_of_step(settings.schedule),
        runs_by_time,
    )
    step = make_step(plan)
    job = Job(
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
        export=lambda mark, step: export_mark(folder, mark, step, training.export, state),
        flops=training.flops and with_update(training.flops, step, settings.optimizer),
        peak_flops=training.peak_flops,
        memory=lambda: start_block.peak_memory(devices),
        kind=devices.kind,
        workers=devices.workers,
    )
    return run_job(job, training, settings, folder, stored, devices, state, console, clock)


# Settings of which the workers of a run may each have their own: places of files and devices.
OWN_SETTINGS = ("gpus", "output_dir", "input_file", "eval_input_file", "data_dir", "vocab_file")


def alike_settings(training, settings):
    """{name: value} of what all workers must have been given alike; the data's content among it."""
    values = settings.values() | training.fixed | training.hashes
    return {name: value for name, value in values.items() if name not in OWN_SETTINGS}


def check_layers(optimizer, state):
    """UserError when learning rates shall differ between layers that the weights' names do not
    tell, as those of Model Garden's encoders.
    """
    if optimizer.layer_lr_decay < 1 and not any(
        name.startswith("layer_") for name in state.weights
    ):
        raise UserError(
            f"--layer_lr_decay={optimizer.layer_lr_decay:g}: the weights of this encoder are not "
            "known by layers; drop the flag"
        )


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


def run_job(job, training, settings, folder, stored, devices, state, console, clock):
    """Runs a job to its end in the run's folder, as its only writer; arguments and results are
    those of `train`.
    """
    workers = devices.workers
    progress = folder.newest_progress() if stored is not None else None
    if progress is not None and job.num_steps is not None and progress.step > job.num_steps:
        raise UserError(
            f"--output_dir={folder.path}: its run has done {progress.step} "
            f"steps, more than the {job.num_steps} asked for; raise --num_train_steps, "
            "name another folder, or --overwrite starts over"
        )
    if progress is not None:
        progress.compare_by(settings.ending.best_metric)
    is_over = progress is not None and (
        job.is_finished(progress.step, progress.seconds)
        or settings.ending.is_stale(progress.num_worse)
    )
    is_exported = is_over and stored.get("exported_step") == progress.step
    if is_exported and workers.from_chief(os.path.isdir, folder.model):
        console.say(
            f"{folder.path}: this run is finished ({start_block.counted_steps(progress.step)}); "
            f"nothing to do ({how_to_go_on(job, progress)}, --overwrite starts over)"
        )
        return TrainingResult(folder, progress)
    if not is_over:
        say_start(job, training, settings, folder, stored, devices, state, console)
    content = describe_run(job, training, settings, devices)
    with folder.reserved(), watch_signals() as caught:
        if stored is None and not settings.overwrite and folder.stored() is not None:
            raise UserError(
                f"--output_dir={folder.path}: another process has just written "
                "a run there; repeat the same command, or name another folder"
            )
        if progress is not None:
            # refuses it before anything is written
            workers.on_chief(lambda: sinks.read_lines(folder.metrics))
            progress = restore(state, folder, console.warn)
            by = progress.best_by
            if progress.compare_by(settings.ending.best_metric):
                console.say(
                    f"--best_metric={settings.ending.best_metric}: earlier validations "
                    f"were compared by {by}; the search for the best one restarts"
                )
            folder.set_aside_after(progress.step)
            # of a save that was cut short
            folder.remove_old(settings.ending.keep_checkpoint_max, progress.last_good_step)
            total = "" if job.num_steps is None else f" of {job.num_steps}"
            console.say(
                f"resuming from step {progress.step}{total} ({progress.records:,} records consumed)"
            )
            plan = (job.plan, devices.kind, job.num_steps, job.schedule)
            for line in describe_changes(stored, *plan, progress):
                console.say(line)
        if settings.overwrite:
            folder.clear(training.find_results)
        step = progress.step if progress is not None else None
        progress = progress or Progress()
        try:
            folder.create(content)
            shown = content["settings"] | content["free"]
            opening = monitor.Opening(
                folder=folder,
                config=settings.monitor,
                settings=shown,
                step=step,
                console=console,
                num_steps=job.num_steps,
                losses=training.losses,
            )
            log = workers.on_chief(
                lambda: monitor.open_log(opening, gpus=devices.nvml, warn=console.warn)
            )
            with contextlib.closing(log or monitor.no_log(console.warn)) as log:
                loop = Loop(
                    job,
                    settings.cadence,
                    settings.ending,
                    progress,
                    folder,
                    log,
                    console,
                    caught,
                    clock,
                )
                loop.run()
            caught = loop.moment.caught
            if not caught or loop.is_finished():
                export_end(settings, training.export, folder, state, progress, workers, console)
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
    if caught and not loop.is_finished():
        console.warn(
            f"stopped by {signal.Signals(caught[0]).name} after step "
            f"{progress.step}; the same command resumes from there"
        )
        return TrainingResult(folder, progress, caught[0])
    return TrainingResult(folder, progress)


def how_to_go_on(job, progress):
    """What lets a finished run go on, in words."""
    if job.num_steps is not None and progress.step >= job.num_steps:
        flag = "num_train_steps"
    elif job.is_finished(progress.step, progress.seconds):
        flag = "total_training_time"
    else:
        flag = "early_stop_patience"
    return f"a larger --{flag} goes on with it"


def say_start(job, training, settings, folder, stored, devices, state, console):
    """Says what a run is before its first step; arguments are those of `run_job`."""
    plan, num_steps = job.plan, job.num_steps
    console.block(start_block.rows(training, settings, plan, devices, num_steps, folder, stored))
    if problem := start_block.length_problem(num_steps, plan, training, settings):
        console.warn(problem)
    shared_update.announce(devices, state.joint_parts, job.step.is_shared, console)


def export_end(settings, export, folder, state, progress, workers, console):
    """Writes model/ at the end of a run: the last weights, or the best ones with --export_best."""
    ending, step = settings.ending, progress.step
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
            raise UserError(f"{error}, which is the best checkpoint; {remedy}") from error
        console.say(
            f"model/ holds the weights of step {step}, which has the best validation "
            f"{ending.best_metric}"
        )
    workers.on_chief(lambda: export(folder.model, state.read_weights(), step))


def export_mark(folder, mark, step, export, state):
    """Exports the model as it is now, after `step` steps, to OUTPUT_DIR/marks/SHARE; returns that
    folder.
    """
    path = os.path.join(folder.path, run_files.MARKS, f"{mark:g}")
    export(path, state.read_weights(), step)
    return path


def restore(state, folder, warn):
    """Loads the newest checkpoint that is whole into the variables; returns its Progress."""
    progress, values = folder.newest_whole(warn)
    try:
        state.assign(values)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{folder.path}: the checkpoint of step "
            f"{progress.step} does not fit the model ({error})"
        ) from error
    return progress


def describe_run(job, training, settings, devices):
    """The content of run.json."""
    fixed = training.fixed
    free = {name: value for name, value in settings.values().items() if name not in fixed}
    return dict(
        settings=fixed,
        global_batch_size=job.plan.global_batch_size,
        unit_size=job.plan.unit_size,
        micro_batch_size=job.plan.micro_batch_size,
        num_replicas=job.plan.num_replicas,
        device_kind=devices.kind,
        learning_rate=job.plan.learning_rate,
        num_steps=job.num_steps,
        free=free | dict(recipe=settings.recipe),
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        hashes=training.hashes,
    )


def plan_run(training, settings, folder, stored, devices, state, make_step, console):
    """The BatchPlan of a run; resolves --train_batch_size=auto.

    Args: those of `train`. make_step: function of a BatchPlan -> TrainStep. The trials leave the
      state unchanged.
    """
    batch, is_ramped = settings.batch, settings.schedule.batch_ramp_proportion > 0
    rows = next(training.batches_at(0, 8))  # fails early on bad records
    if batch.train_batch_size == "auto":
        wanted = stored["global_batch_size"] if stored else batch.global_batch_size
        if devices.kind == "CPU":
            size = memory.choose_micro_batch(
                lambda size: 0.0 if size <= NO_GPU_BATCH else None, devices.num_replicas, wanted
            )
            console.say(f"--train_batch_size=auto: {size}, because there is no GPU memory to fill")
        elif devices.workers.count > 1:
            raise UserError(
                "--train_batch_size=auto: tries what fits on one machine; start the command on one "
                "of them, and give all of them the number that it finds"
            )
        else:
            size = fill_memory(
                batch, devices, state, make_step, rows, training.max_seq_length, wanted, console
            )
        batch = dataclasses.replace(batch, train_batch_size=size)
    plan = plan_batch(
        batch, settings.optimizer.learning_rate, devices.num_replicas, stored, is_ramped
    )
    if is_ramped and not plan.is_ramped and "batch_ramp_proportion" not in settings.flexible:
        console.warn(
            "--batch_ramp_proportion has no effect on a batch of one micro-batch; give a smaller "
            "--train_batch_size, or --gradient_accumulation_steps"
        )
    if stored and batch.global_batch_size not in (None, plan.global_batch_size):
        raise UserError(
            f"--global_batch_size={batch.global_batch_size}: "
            f"the run in {folder.path} has {plan.global_batch_size}"
        )
    unit = plan.micro_batch_size * plan.num_replicas
    if stored and is_ramped and stored.get("unit_size", unit) != unit:
        raise UserError(
            f"--train_batch_size={plan.micro_batch_size}: a run with a batch "
            f"ramp must keep GPUs x micro-batch = {stored['unit_size']}"
        )
    return plan


def fill_memory(batch, devices, state, make_step, rows, length, wanted, console):
    """The largest micro-batch that fits, found by running steps on rows of full length. UserError
    when none fits.

    Args:
      batch: BatchConfig. make_step: function of a BatchPlan -> TrainStep. wanted: global batch that
        it must divide, or None.
      rows: a batch of a few rows, which are repeated, and padded to `length` tokens.
    """
    console.say("--train_batch_size=auto: trying what fits")
    first = state.read()
    rows = pad_rows(rows, length)
    accumulates = wanted is not None or (batch.gradient_accumulation_steps or 1) > 1

    def make_trial(size):
        accumulation = 2 if accumulates else 1
        plan = plan_batch(
            BatchConfig(train_batch_size=size, gradient_accumulation_steps=accumulation),
            1.0,
            devices.num_replicas,
        )
        step = make_step(plan)
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
