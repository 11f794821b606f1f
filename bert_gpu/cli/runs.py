"""What the two training scripts share: opening a run's folder, going on from its checkpoint, and training in it."""

import contextlib
import json
import os
import platform
import signal

import tensorflow as tf

import bert_gpu
from bert_gpu.settings import UserError
from bert_gpu.train import checkpoint, loop
from bert_gpu.train.checkpoint import Progress, RunFolder
from bert_gpu.train.monitor import MetricsLog


def open_run(output_dir, overwrite):
    """(RunFolder, content of its run.json or None for a new run). Writes nothing."""
    folder = RunFolder(output_dir)
    return folder, None if overwrite else folder.stored()


def run_training(job, loop_config, folder, stored, content, state, *, overwrite, export, console):
    """Trains from the newest checkpoint, or from the beginning, and leaves model/ behind. Returns the exit code.

    Args:
      job: loop.Job. loop_config: loop.LoopConfig. folder, stored: of `open_run`. content: dict for run.json.
      state: step.TrainState, holding the initial weights. export(folder, weights): writes the model.
    """
    progress = folder.newest_progress() if stored is not None else None
    if progress is not None and progress.step >= job.num_steps and os.path.isdir(folder.model):
        console.say(f"{folder.path}: this run is finished ({progress.step} steps); nothing to do (--overwrite starts anew)")
        return 0
    if progress is not None:
        restore(state, folder, progress)
        console.say(f"going on from step {progress.step} of {job.num_steps} ({progress.records:,} records consumed)")
    if overwrite:
        folder.clear()
    folder.create(content)
    progress = progress or Progress()
    folder.cut_metrics(progress.step)
    with contextlib.closing(MetricsLog(folder.metrics, os.path.join(folder.path, "tensorboard"))) as log:
        progress, stopped_by = loop.train(job, loop_config, progress, folder, log, console)
    if stopped_by is not None:
        console.warn(f"stopped by {signal.Signals(stopped_by).name} after step {progress.step}; the same command goes on from there")
        return 128 + stopped_by
    export(folder.model, state.read_weights())
    folder.save(progress, state.read(), loop_config.keep_checkpoint_max)
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
    vocab = "".join(f"{piece}\n" for piece in tokenizer.vocab)
    return {"vocab.txt": vocab.encode(), "tokenizer_config.json": (json.dumps(settings, indent=1) + "\n").encode()}
