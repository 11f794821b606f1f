"""A run's folder: run.json, metrics.jsonl, checkpoints/; created, resumed, and never left half written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors) and the progress (progress.json:
step, records consumed, seconds). It is written under a temporary name and renamed, so one that has its name is whole. What decides
whether a run may go on is run.json, which holds the resolved settings.
"""

import dataclasses
import glob
import itertools
import json
import os
import re
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

from bert_gpu.files import check_writable, read_json, write_json, write_text
from bert_gpu.settings import UserError

VARIABLES, PROGRESS, RUN, METRICS = "variables.safetensors", "progress.json", "run.json", "metrics.jsonl"


@dataclasses.dataclass
class Progress:
    """Where a run stands. step: updates tried. records: training records consumed. seconds: spent in training, all sessions."""

    step: int = 0
    records: int = 0
    seconds: float = 0.0


class RunFolder:
    """OUTPUT_DIR of one run. Making the object only looks; `create` writes."""

    def __init__(self, path):
        self.path = path
        self.checkpoints = os.path.join(path, "checkpoints")
        self.metrics = os.path.join(path, METRICS)
        self.model = os.path.join(path, "model")

    def stored(self):
        """The content of run.json, None when there is no run. UserError when the folder holds something else."""
        check_writable(self.path, f"--output_dir={self.path}")
        path = os.path.join(self.path, RUN)
        if os.path.exists(path):
            return read_json(path, "a run's settings (--overwrite starts anew)", ("settings", "global_batch_size", "learning_rate"))
        if os.path.exists(self.path) and set(os.listdir(self.path)) - {".run.lock"}:  # left by a run killed before it began
            raise UserError(f"--output_dir={self.path}: exists, is not empty and holds no run; name another folder")
        return None

    def exists(self):
        """Whether the folder holds a run, sound or not. UserError when it holds something else."""
        check_writable(self.path, f"--output_dir={self.path}")
        return os.path.exists(os.path.join(self.path, RUN)) or self.stored() is not None

    def create(self, content):
        os.makedirs(self.checkpoints, exist_ok=True)
        write_json(os.path.join(self.path, RUN), content)

    def clear(self):
        """Removes what a run writes, and nothing else."""
        for name in (RUN, METRICS, "eval_results.json", "test_results.tsv"):
            path = os.path.join(self.path, name)
            if os.path.exists(path):
                os.remove(path)
        for name in ("checkpoints", "tensorboard", "model"):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    def steps(self):
        """Steps of the whole checkpoints, in rising order."""
        names = os.listdir(self.checkpoints) if os.path.isdir(self.checkpoints) else []
        return sorted(int(match[1]) for match in (re.fullmatch(r"step-(\d+)", name) for name in names) if match)

    def save(self, progress, values, keep):
        """Writes a checkpoint of `values` {name: array} and keeps the newest `keep`."""
        final = self._checkpoint(progress.step)
        partial = os.path.join(self.checkpoints, f".{os.path.basename(final)}.{os.getpid()}.partial")
        for leftover in glob.glob(os.path.join(glob.escape(self.checkpoints), ".step-*.partial")):
            shutil.rmtree(leftover)  # of a process that was killed while it saved
        os.makedirs(partial)
        save_file({name: np.asarray(value, order="C") for name, value in values.items()}, os.path.join(partial, VARIABLES))
        with open(os.path.join(partial, PROGRESS), "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(progress), file)
        sync(os.path.join(partial, VARIABLES), os.path.join(partial, PROGRESS))
        shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
        sync(self.checkpoints)
        for step in self.steps()[:-keep]:
            shutil.rmtree(self._checkpoint(step))

    def newest_progress(self):
        """The Progress of the newest checkpoint, None when there is none."""
        steps = self.steps()
        if not steps:
            return None
        path = os.path.join(self._checkpoint(steps[-1]), PROGRESS)
        content = read_json(path, "a checkpoint's progress; delete that checkpoint's folder to go on from the one before")
        try:
            return Progress(step=int(content["step"]), records=int(content["records"]), seconds=float(content["seconds"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path}: is no progress; delete that checkpoint's folder to go on from the one before") from error

    def restore(self, step):
        """The values {name: array} of a checkpoint."""
        path = os.path.join(self._checkpoint(step), VARIABLES)
        try:
            return load_file(path)
        except Exception as error:  # safetensors raises its own error type for corrupt files
            raise UserError(f"{path}: cannot be read ({error}); delete that checkpoint's folder to go on from the one before") from error

    def cut_metrics(self, step):
        """Drops lines of metrics.jsonl after `step` (all for None), and from the first line that is broken on."""
        if not os.path.exists(self.metrics):
            return
        with open(self.metrics, encoding="utf-8", errors="replace") as file:
            kept = list(itertools.takewhile(lambda line: is_metrics_line(line) and step is not None, file))
        write_text(self.metrics, "".join(line for line in kept if json.loads(line)["step"] <= step))

    def _checkpoint(self, step):
        return os.path.join(self.checkpoints, f"step-{step:08d}")


def sync(*paths):
    """Makes sure that files and folders are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def is_metrics_line(line):
    try:
        return line.endswith("\n") and isinstance(json.loads(line)["step"], int)
    except (ValueError, TypeError, KeyError):
        return False


def differences(stored, settings):
    """['name: OLD -> NEW'] of the settings in which a run and a command differ; both are dicts."""
    settings = json.loads(json.dumps(settings))
    names = sorted(set(stored) | set(settings))
    changed = [(name, stored.get(name), settings.get(name)) for name in names if stored.get(name) != settings.get(name)]
    return [f"--{name} has changed" if isinstance(new, dict) else f"--{name}: {old} -> {new}" for name, old, new in changed]


def check_resumable(folder, stored, settings):
    """UserError with the difference when a command's fixed settings are not those of the run in the folder."""
    changed = differences(stored["settings"], settings)
    if changed:
        text = f"--output_dir={folder.path}: holds a run with other settings ({'; '.join(changed)})"
        raise UserError(text[:220] + "; name another folder, or --overwrite starts anew")
