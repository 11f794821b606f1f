"""What the two training scripts share: opening a run's folder, going on from its checkpoint, and training in it."""

import contextlib
import dataclasses
import json
import os
import signal

import numpy as np

from bert_gpu.files import only_writer
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.optim.schedules import mean_batch_share
from bert_gpu.settings import UserError
from bert_gpu.train import checkpoint, loop, memory, monitor, provenance
from bert_gpu.train.batching import pad_rows, plan_batch
from bert_gpu.train.checkpoint import RunFolder
from bert_gpu.train.config import BatchConfig, CadenceConfig, EndingConfig, MonitorConfig
from bert_gpu.train.signals import watch_signals

GAVE_UP = 3  # exit code
NO_GPU_BATCH = 32  # of --train_batch_size=auto where there is no memory of a GPU to fill


def open_run(output_dir, overwrite):
    """(RunFolder, content of its run.json or None for a new run). Writes nothing; what is no run is not overwritten either."""
    folder = RunFolder(output_dir)
    if overwrite:
        folder.exists()
        return folder, None
    return folder, folder.stored()


def run_training(job, configs, folder, stored, content, state, *, overwrite, devices, export, console):
    """Trains from the newest checkpoint, or from the beginning, and leaves model/ behind. Returns the exit code.

    Args:
      job: loop.Job. configs: {settings class: settings}. folder, stored: of `open_run`. content: dict for run.json.
      state: state.TrainState, holding the initial weights. devices: devices.Devices. export(folder, weights): writes the model.
    """
    cadence, ending, monitoring = (configs[kind] for kind in (CadenceConfig, EndingConfig, MonitorConfig))
    progress = folder.newest_progress() if stored is not None else None
    if progress is not None and job.num_steps is not None and progress.step > job.num_steps:
        raise UserError(f"--output_dir={folder.path}: its run has done {progress.step} steps, more than the {job.num_steps} asked for")
    is_over = progress is not None and is_finished(job, progress)
    if is_over and stored.get("exported_step") == progress.step and os.path.isdir(folder.model):
        console.say(f"{folder.path}: this run is finished ({progress.step} steps); nothing to do (--overwrite starts anew)")
        return 0
    with only_writer(folder.path, "run", f"--output_dir={folder.path}"), watch_signals() as caught:
        if progress is not None:
            restore(state, folder, progress)
            total = "" if job.num_steps is None else f" of {job.num_steps}"
            console.say(f"going on from step {progress.step}{total} ({progress.records:,} records consumed)")
        if overwrite:
            folder.clear()
        step = progress.step if progress is not None else None
        progress = progress or checkpoint.Progress()
        try:
            folder.create(content)
            log = monitor.open_log(
                folder, monitoring, step=step, settings=content["settings"] | content["free"], gpus=devices.nvml, warn=console.warn
            )
            with contextlib.closing(log):
                run = loop.Loop(job, cadence, ending, progress, folder, log, console, caught)
                run.run()
            if not caught or run.is_finished():
                if ending.export_best and folder.best_step() is not None:
                    state.assign(folder.restore(folder.best_step()))
                    console.say(f"model/ is that of step {folder.best_step()}, whose validation loss is the lowest")
                export(folder.model, state.read_weights())
                folder.create(content | dict(exported_step=progress.step))
        except loop.GaveUp as problem:
            console.warn(str(problem))
            return GAVE_UP
        except checkpoint.SaveFailed:  # the writer has said so
            return GAVE_UP
        except OSError as error:
            console.warn(f"{error.filename or folder.path}: {error.strerror or error}; make room, then the same command goes on")
            return GAVE_UP
    if caught and not run.is_finished():
        console.warn(f"stopped by {signal.Signals(caught[0]).name} after step {progress.step}; the same command goes on from there")
        return 128 + caught[0]
    return 0


def is_finished(job, progress):
    """Whether a run has done its steps or spent its time."""
    budget = job.schedule.total_training_time
    by_steps = job.num_steps is not None and progress.step >= job.num_steps
    return by_steps or (budget is not None and progress.seconds >= 3600 * budget)


def plan(configs, devices, state, stored, folder, make_step, rows, length, console):
    """The BatchPlan of a run, after --train_batch_size=auto has found its number.

    Args:
      configs: {settings class: settings}. state: TrainState; trying leaves it as it was. stored, folder: of `open_run`.
      make_step: function of a BatchPlan -> TrainStep. rows: a batch of a few rows; they are repeated, and padded to `length`, to try with.
    """
    batch, optimizer, is_ramped = configs[BatchConfig], configs[OptimizerConfig], configs[ScheduleConfig].batch_ramp_proportion > 0
    if batch.train_batch_size == "auto":
        wanted = stored["global_batch_size"] if stored else batch.global_batch_size
        if devices.kind == "CPU":
            size = memory.choose_micro_batch(lambda size: size <= NO_GPU_BATCH, devices.num_replicas, wanted)
            console.say(f"--train_batch_size=auto: no GPU whose memory is to be filled; {size}")
        else:
            size = fill_memory(batch, devices, state, make_step, rows, length, wanted, console)
        batch = dataclasses.replace(batch, train_batch_size=size)
    chosen = plan_batch(batch, optimizer.learning_rate, devices.num_replicas, stored, is_ramped)
    if stored and batch.global_batch_size not in (None, chosen.global_batch_size):
        raise UserError(f"--global_batch_size={batch.global_batch_size}: the run in {folder.path} has {chosen.global_batch_size}")
    unit = chosen.micro_batch_size * chosen.num_replicas
    if stored and is_ramped and stored.get("unit_size", unit) != unit:
        raise UserError(
            f"--train_batch_size={chosen.micro_batch_size}: a run with a batch ramp goes on with GPUs x micro-batch = {stored['unit_size']}"
        )
    return chosen


def fit_recipe(parsed, batch, num_replicas, stored=None):
    """A BatchConfig whose sizes that come from the recipe fit those that do not: the user's, the number of GPUs, the run in progress.

    The micro-batch gets smaller where it does not divide the global batch; a global batch that no micro-batch divides is rounded.
    stored: content of run.json of a run that goes on, whose global batch then counts.
    """
    micro, wanted = batch.train_batch_size, stored["global_batch_size"] if stored else batch.global_batch_size
    if wanted is None:
        return batch
    if "train_batch_size" in parsed.recipe and micro != "auto" and wanted % num_replicas == 0:
        share = wanted // num_replicas
        micro = next(size for size in range(min(micro, share), 0, -1) if share % size == 0)
        batch = dataclasses.replace(batch, train_batch_size=micro)
    if "global_batch_size" not in parsed.recipe:
        return batch
    held = num_replicas * (1 if micro == "auto" else micro)
    return dataclasses.replace(batch, global_batch_size=None if stored else max(1, round(wanted / held)) * held)


def fill_memory(batch, devices, state, make_step, rows, length, wanted, console):
    """The largest micro-batch that fits, found by running steps on rows of full length; UserError when none does."""
    console.say("--train_batch_size=auto: trying what fits")
    first = state.read()
    rows = pad_rows(rows, length)
    accumulates = wanted is not None or (batch.gradient_accumulation_steps or 1) > 1

    def make_trial(size):
        accumulation = 2 if accumulates else 1
        plan = plan_batch(BatchConfig(train_batch_size=size, gradient_accumulation_steps=accumulation), 1.0, devices.num_replicas)
        step = make_step(plan)
        numbers = np.arange(plan.global_batch_size) % len(rows["input_mask"])
        return lambda: step([{name: value[numbers] for name, value in rows.items()}], [0.0], 0).read()

    trial = memory.Trial(make_trial, "GPU:0", console.say)
    size = memory.choose_micro_batch(trial, devices.num_replicas, wanted)
    state.assign(first)
    console.say(f"--train_batch_size=auto: {size}" + (f", {trial.peak_bytes / 2**30:.2f} GB at most" if trial.peak_bytes else ""))
    return size


def fixed_schedule(schedule):
    """What of a ScheduleConfig a run in progress may not change: all but the clock."""
    return {name: value for name, value in schedule.to_dict().items() if name not in ("lr_schedule", "total_training_time")}


def describe_length(num_steps, plan, num_records, schedule):
    """How long a run is, for the log."""
    hours = schedule.total_training_time
    limit = "" if hours is None else f"{hours:g} hours" if num_steps is None else f", at most {hours:g} hours"
    if num_steps is None:
        return limit
    return f"{num_steps:,} steps = {num_steps * records_of_step(plan, schedule) / num_records:.1f} epochs{limit}"


def records_of_step(plan, schedule):
    """Records that a step consumes, the mean over a run: the global batch, or less with a batch ramp."""
    return plan.global_batch_size * (mean_batch_share(plan.num_micro_batches, schedule) if plan.is_ramped else 1.0)


def content(configs, fixed, plan, num_steps, hashes):
    """The content of run.json."""
    free = {}
    for config in configs.values():
        free |= {name: value for name, value in config.to_dict().items() if name not in fixed}
    return dict(
        settings=fixed,
        global_batch_size=plan.global_batch_size,
        unit_size=plan.unit_size,
        learning_rate=plan.learning_rate,
        num_steps=num_steps,
        free=free,
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        hashes=hashes,
    )


def export_mark(folder, mark, export, state):
    """Exports the model as it is now to OUTPUT_DIR/marks/SHARE; returns that folder."""
    path = os.path.join(folder.path, "marks", f"{mark:g}")
    export(path, state.read_weights())
    return path


def restore(state, folder, progress):
    """Loads the newest checkpoint into the variables."""
    try:
        state.assign(folder.restore(progress.step))
    except (KeyError, ValueError) as error:
        raise UserError(f"{folder.path}: the checkpoint of step {progress.step} does not fit the model ({error})") from error


def check_settings(folder, stored, fixed):
    """Refuses to go on with a run whose fixed settings are others."""
    if stored is not None:
        checkpoint.check_resumable(folder, stored, fixed)


def tokenizer_files(tokenizer):
    """{name: bytes} that a model's folder needs beside its weights: the vocabulary, and how `transformers` and we are to use it."""
    if tokenizer is None:
        return {}
    settings = dict(tokenizer_class="BertTokenizer", do_lower_case=tokenizer.do_lower_case)
    return tokenizer.files() | {"tokenizer_config.json": (json.dumps(settings, indent=1) + "\n").encode()}
