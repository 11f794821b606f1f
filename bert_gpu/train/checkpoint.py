"""A run's folder: run.json, metrics.jsonl, checkpoints/; created, resumed, and never left half written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors) and the progress (progress.json:
step, records consumed, seconds). It is written under a temporary name and renamed, so one that has its name is whole. What decides
whether a run may go on is run.json, which holds the resolved settings.
"""

import dataclasses
import json
import os
import re
import shutil

import numpy as np
from safetensors.numpy import load_file, save_file

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
        path = os.path.join(self.path, RUN)
        if not os.path.exists(path):
            if os.path.exists(self.path) and (not os.path.isdir(self.path) or os.listdir(self.path)):
                raise UserError(f"--output_dir={self.path}: exists, is not empty and holds no run; name another folder, or --overwrite")
            return None
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read as a run's settings; --overwrite starts anew") from error

    def create(self, content):
        os.makedirs(self.checkpoints, exist_ok=True)
        write_text(os.path.join(self.path, RUN), json.dumps(content, indent=1) + "\n")

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
        partial = os.path.join(self.checkpoints, f".{os.path.basename(final)}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        os.makedirs(partial)
        save_file({name: np.asarray(value, order="C") for name, value in values.items()}, os.path.join(partial, VARIABLES))
        with open(os.path.join(partial, PROGRESS), "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(progress), file)
        sync(os.path.join(partial, VARIABLES), os.path.join(partial, PROGRESS))
        shutil.rmtree(final, ignore_errors=True)
        os.rename(partial, final)
        for step in self.steps()[:-keep]:
            shutil.rmtree(self._checkpoint(step))

    def newest_progress(self):
        """The Progress of the newest checkpoint, None when there is none."""
        steps = self.steps()
        if not steps:
            return None
        with open(os.path.join(self._checkpoint(steps[-1]), PROGRESS), encoding="utf-8") as file:
            return Progress(**json.load(file))

    def restore(self, step):
        """The values {name: array} of a checkpoint."""
        path = os.path.join(self._checkpoint(step), VARIABLES)
        try:
            return load_file(path)
        except Exception as error:  # safetensors raises its own error type for corrupt files
            raise UserError(f"{path}: cannot be read ({error}); delete that checkpoint's folder to go on from the one before") from error

    def cut_metrics(self, step):
        """Drops lines of metrics.jsonl after `step`, and a last line that was cut off."""
        if not os.path.exists(self.metrics):
            return
        with open(self.metrics, encoding="utf-8") as file:
            kept = [line for line in file if line.endswith("\n") and json.loads(line)["step"] <= step]
        write_text(self.metrics, "".join(kept))

    def _checkpoint(self, step):
        return os.path.join(self.checkpoints, f"step-{step:08d}")


def sync(*paths):
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def write_text(path, text):
    """Writes a text file under a temporary name, then renames."""
    partial = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(partial, path)


def differences(stored, settings):
    """['name: OLD -> NEW'] of the settings in which a run and a command differ; both are flat dicts."""
    names = sorted(set(stored) | set(settings))
    return [f"--{name}: {stored.get(name)} -> {settings.get(name)}" for name in names if stored.get(name) != settings.get(name)]


def check_resumable(folder, stored, settings):
    """UserError with the difference when a command's fixed settings are not those of the run in the folder."""
    changed = differences(stored["settings"], settings)
    if changed:
        text = f"--output_dir={folder.path}: holds a run with other settings ({'; '.join(changed)})"
        raise UserError(text[:220] + "; name another folder, or --overwrite starts anew")
