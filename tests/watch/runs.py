"""Folders of runs, as training leaves them, made without a training."""

import json

import numpy as np

from bert_gpu.base.files import write_json
from bert_gpu.watch import run_data

SETTINGS = dict(
    num_hidden_layers=2,
    hidden_size=16,
    optimizer="adamw",
    learning_rate=1e-3,
    precision="float32",
    seed=1,
    max_seq_length=32,
)


def line(step, **more):
    """A line of training: loss 8 / step, a second a step, 4 sequences of 10 real tokens each."""
    speed = dict(tokens_per_second=40.0, sequences_per_second=4.0, global_batch_size=4)
    speed |= dict(tokens=40 * step)
    return dict(step=step, loss=8 / step, gradient_norm=1.0, seconds=float(step)) | speed | more


def validation(step, **more):
    return dict(step=step, eval_loss=9 / max(step, 1), seconds=step + 0.5) | more


def make_run(folder, lines, *, settings=None, free=None, results=None, **record):
    """Writes a run's folder; returns it. lines: dicts, or texts that are written as they are."""
    folder.mkdir(parents=True)
    content = dict(
        settings=SETTINGS | (settings or {}),
        global_batch_size=4,
        unit_size=4,
        micro_batch_size=4,
        learning_rate=1e-3,
        num_steps=100,
        num_replicas=1,
        device_kind="CPU",
        free=dict(model="tiny", input_file="data/*.tfrecord") | (free or {}),
        versions={},
        hashes={},
        git_commit=None,
    )
    write_json(str(folder / "run.json"), content | record)
    write_lines(folder / "metrics.jsonl", lines)
    if results is not None:
        (folder / "eval_results.json").write_text(json.dumps(results))
    return folder


def write_lines(path, lines):
    texts = [text if isinstance(text, str) else json.dumps(text) + "\n" for text in lines]
    path.write_text("".join(texts))


def noisy(num_steps, seed=0, every=1):
    """Lines of a training with noise, and of its validation every ten."""
    draw = np.random.default_rng(seed)
    for step in range(every, num_steps + 1, every):
        yield line(step, loss=9.0 - np.log(step) + draw.normal() / 4, learning_rate=1e-3 / step)
        if step % (10 * every) == 0:
            yield validation(
                step, eval_loss=9.2 - np.log(step), eval_mlm_accuracy=step / num_steps / 2
            )


def read_runs(paths):
    """[Run] of folders."""
    names = run_data.names_of(paths)
    return [run_data.read_run(path, name) for path, name in zip(paths, names, strict=True)]
