"""What the two training scripts share: opening a run's folder, going on from its checkpoint, and training in it."""

import contextlib
import json
import os
import platform
import signal

import tensorflow as tf

import bert_gpu
from bert_gpu.files import only_writer
from bert_gpu.settings import UserError
from bert_gpu.train import checkpoint, loop
from bert_gpu.train.checkpoint import Progress, RunFolder
from bert_gpu.train.monitor import MetricsLog

DIVERGED = 3  # exit code


def open_run(output_dir, overwrite):
    """(RunFolder, content of its run.json or None for a new run). Writes nothing; what is no run is not overwritten either."""
    folder = RunFolder(output_dir)
    if overwrite:
        folder.exists()
        return folder, None
    return folder, folder.stored()


def run_training(job, loop_config, folder, stored, content, state, *, overwrite, export, console):
    """Trains from the newest checkpoint, or from the beginning, and leaves model/ behind. Returns the exit code.

    Args:
      job: loop.Job. loop_config: loop.LoopConfig. folder, stored: of `open_run`. content: dict for run.json.
      state: step.TrainState, holding the initial weights. export(folder, weights): writes the model.
    """
    progress = folder.newest_progress() if stored is not None else None
    if progress is not None and progress.step > job.num_steps:
        raise UserError(f"--output_dir={folder.path}: its run has done {progress.step} steps, more than the {job.num_steps} asked for")
    is_exported = progress is not None and stored.get("exported_step") == progress.step and os.path.isdir(folder.model)
    if is_exported and progress.step == job.num_steps:
        console.say(f"{folder.path}: this run is finished ({progress.step} steps); nothing to do (--overwrite starts anew)")
        return 0
    with only_writer(folder.path, "run", f"--output_dir={folder.path}"), loop.watch_signals() as caught:
        if progress is not None:
            restore(state, folder, progress)
            console.say(f"going on from step {progress.step} of {job.num_steps} ({progress.records:,} records consumed)")
        if overwrite:
            folder.clear()
        folder.create(content)
        folder.cut_metrics(progress.step if progress is not None else None)
        progress = progress or Progress()
        try:
            with contextlib.closing(MetricsLog(folder.metrics, os.path.join(folder.path, "tensorboard"))) as log:
                loop.train(job, loop_config, progress, folder, log, console, caught)
        except loop.Diverged as problem:
            console.warn(f"diverged: {problem}")
            return DIVERGED
        if progress.step == job.num_steps:
            export(folder.model, state.read_weights())
            folder.create(content | dict(exported_step=progress.step))
    if caught:
        console.warn(f"stopped by {signal.Signals(caught[0]).name} after step {progress.step}; the same command goes on from there")
        return 128 + caught[0]
    return 0


def restore(state, folder, progress):
    """Loads the newest checkpoint into the variables."""
    try:
        state.assign(folder.restore(progress.step))
    except (KeyError, ValueError) as error:
        raise UserError(f"{folder.path}: the checkpoint of step {progress.step} does not fit the model ({error})") from error


def versions():
    """Versions of what a run's numbers depend on."""
    return {"bert_gpu": bert_gpu.__version__, "tensorflow": tf.__version__, "python": platform.python_version()}


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
