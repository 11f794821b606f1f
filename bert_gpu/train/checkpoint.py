"""A run's folder: run.json, metrics.jsonl, checkpoints/; created, resumed, and never left
half written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors)
and the progress (progress.json). It is written under a temporary name and then renamed, so a folder
with the final name is complete; for the same reason it is renamed before it is removed. It holds no
random state: order, masks and dropout are functions of the seed, the records consumed and the step.
run.json holds the resolved settings and decides whether a run may be resumed.
"""

import concurrent.futures
import contextlib
import dataclasses
import glob
import json
import math
import os
import re
import shutil
import sys

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from bert_gpu.files import check_local, check_writable, read_json, write_json
from bert_gpu.settings import GaveUp, UserError
from bert_gpu.train.config import SAVE_ERRORS
from bert_gpu.train.provenance import differences

VARIABLES, PROGRESS, RUN, METRICS = (
    "variables.safetensors",
    "progress.json",
    "run.json",
    "metrics.jsonl",
)
LOCK = ".run.lock"  # of files.only_writer; it stays
# an empty file of this name in a checkpoint's folder keeps it, whatever --keep_checkpoint_max says
KEEP = "KEEP"


@dataclasses.dataclass
class Progress:
    """Where a run stands.

    step: updates tried. records: training records consumed; a rollback sets the step back, never
    the records. seconds: spent in training, all sessions. best_step, best_metric: of the lowest
    validation loss so far, None before the first validation.
    num_rollbacks: times that the run diverged and returned to a checkpoint. health: the state of
    divergence.Health, None at the start.
    """

    step: int = 0
    records: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_metric: float | None = None
    num_rollbacks: int = 0
    health: dict | None = None

    def improve(self, metric):
        """Records a validation loss of the current step if it is finite and the lowest so far;
        returns whether it was.
        """
        is_best = (
            metric is not None
            and math.isfinite(metric)
            and (self.best_metric is None or metric < self.best_metric)
        )
        if is_best:
            self.best_step, self.best_metric = self.step, float(metric)
        return is_best

    @classmethod
    def from_json(cls, content):
        """Reads the dict of a progress.json; fields that older files lack get their defaults.
        Raises KeyError, TypeError or ValueError for any other content.
        """
        content = dict(best_step=None, best_metric=None, num_rollbacks=0) | content
        best = (
            (None, None)
            if content["best_step"] is None
            else (int(content["best_step"]), float(content["best_metric"]))
        )
        steps = (int(content["step"]), int(content["records"]), float(content["seconds"]))
        return cls(
            *steps, *best, num_rollbacks=int(content["num_rollbacks"]), health=content.get("health")
        )


class RunFolder:
    """OUTPUT_DIR of one run. The constructor writes nothing; `create` does."""

    def __init__(self, path):
        check_local(path, "--output_dir")
        self.path = path
        self.checkpoints = os.path.join(path, "checkpoints")
        self.metrics = os.path.join(path, METRICS)
        self.tensorboard = os.path.join(path, "tensorboard")
        self.model = os.path.join(path, "model")

    def stored(self):
        """The content of run.json, None when there is no run. UserError when the folder holds other
        files.
        """
        check_writable(self.path, f"--output_dir={self.path}")
        path = os.path.join(self.path, RUN)
        if os.path.exists(path):
            return read_json(
                path,
                "a run's settings (--overwrite starts over)",
                ("settings", "global_batch_size", "learning_rate"),
            )
        # left by a run killed before it began
        if os.path.exists(self.path) and set(os.listdir(self.path)) - {LOCK}:
            raise UserError(
                f"--output_dir={self.path}: exists, "
                "is not empty and holds no run; name another folder"
            )
        return None

    def exists(self):
        """Whether the folder holds a run, readable or not. UserError when it holds other files."""
        check_writable(self.path, f"--output_dir={self.path}")
        return os.path.exists(os.path.join(self.path, RUN)) or self.stored() is not None

    def create(self, content):
        os.makedirs(self.checkpoints, exist_ok=True)
        write_json(os.path.join(self.path, RUN), content)

    def clear(self, results=()):
        """Removes the files of a run and nothing else. results: names of further files that the
        run's owner writes.
        """
        for name in ("checkpoints", "tensorboard", "model", "marks", "wandb"):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        for name in (METRICS, *results, RUN):  # run.json last: it marks the folder as a run's
            path = os.path.join(self.path, name)
            if os.path.exists(path):
                os.remove(path)

    def steps(self):
        """Steps of the complete checkpoints, in rising order."""
        names = os.listdir(self.checkpoints) if os.path.isdir(self.checkpoints) else []
        return sorted(
            int(match[1])
            for match in (re.fullmatch(r"step-(\d+)", name) for name in names)
            if match
        )

    def save(self, progress, values, keep):
        """Writes a checkpoint of `values` {name: array}, then removes old ones: the newest `keep`,
        the best and the pinned ones stay.

        Removes nothing before the new one is complete and on the disk. When that cannot be written
        (OSError), it leaves no trace and the others stay.
        """
        partial = self._hidden(progress.step)
        for leftover in glob.glob(os.path.join(glob.escape(self.checkpoints), ".step-*.partial")):
            shutil.rmtree(leftover)  # of a process that was killed while it saved or removed
        try:
            os.makedirs(partial)
            write_variables(values, os.path.join(partial, VARIABLES))
            with open(os.path.join(partial, PROGRESS), "w", encoding="utf-8") as file:
                json.dump(dataclasses.asdict(progress), file)
            sync(os.path.join(partial, VARIABLES), os.path.join(partial, PROGRESS), partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._discard(progress.step)  # of the same step, after a rollback
        os.rename(partial, self._checkpoint(progress.step))
        sync(self.checkpoints)
        steps = self.steps()
        for step in set(steps[:-keep]) - {self.best_step()}:
            if not self.is_pinned(step):
                self._discard(step)

    def newest_progress(self):
        """The Progress of the newest checkpoint, None when there is none."""
        steps = self.steps()
        return self.progress_of(steps[-1]) if steps else None

    def progress_of(self, step):
        """The Progress of a checkpoint. UserError when it cannot be read."""
        path = os.path.join(self._checkpoint(step), PROGRESS)
        content = read_json(
            path,
            "a checkpoint's progress; "
            "delete that checkpoint's folder to resume from the one before",
        )
        try:
            return Progress.from_json(content)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: is not a valid progress file; delete that "
                "checkpoint's folder to resume from the one before"
            ) from error

    def write_progress(self, progress):
        """Rewrites progress.json of the checkpoint of progress.step, to record a rollback before
        the next save.
        """
        write_json(
            os.path.join(self._checkpoint(progress.step), PROGRESS), dataclasses.asdict(progress)
        )

    def best_step(self):
        """The step of the newest checkpoint that had the lowest validation loss when written, or
        None.
        """
        for step in reversed(self.steps()):
            with contextlib.suppress(UserError):  # skip a checkpoint that cannot be read
                if self.progress_of(step).best_step == step:
                    return step
        return None

    def is_pinned(self, step):
        return os.path.exists(os.path.join(self._checkpoint(step), KEEP))

    def remove_after(self, step):
        """Removes the checkpoints of later steps, newest first: for a rollback."""
        for later in reversed(self.steps()):
            if later > step:
                self._discard(later)

    def restore(self, step):
        """The values {name: array} of a checkpoint."""
        path = os.path.join(self._checkpoint(step), VARIABLES)
        try:
            return load_file(path)
        except Exception as error:  # safetensors raises its own error type for corrupt files
            raise UserError(
                f"{path}: cannot be read ({error}); delete that "
                "checkpoint's folder to resume from the one before"
            ) from error

    def _checkpoint(self, step):
        return os.path.join(self.checkpoints, f"step-{step:08d}")

    def _hidden(self, step, what="new"):
        return os.path.join(self.checkpoints, f".step-{step:08d}.{what}.{os.getpid()}.partial")

    def _discard(self, step):
        """Removes a checkpoint, if there is one; renaming it first makes that atomic."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._checkpoint(step), self._hidden(step, "old"))
            shutil.rmtree(self._hidden(step, "old"), ignore_errors=True)


class SaveFailed(GaveUp):
    """A checkpoint could not be written. The message says which, why, and which one is the
    newest good one.
    """

    is_told = True  # by the writer


class CheckpointWriter:
    """Writes checkpoints beside the training, one at a time, in a thread.

    A failed save (full disk, permission, limit) is reported once and leaves earlier checkpoints
    alone. With on_error="continue" training continues and the next save tries again; with "stop"
    the next `save` or `wait` raises SaveFailed. `close` always raises it when the last save failed:
    a run must not seem saved when it is not.

    Args:
      folder: RunFolder. keep: how many of the newest checkpoints stay. on_error: one of
        SAVE_ERRORS. warn: takes the text of a failure.
    """

    def __init__(
        self, folder, keep, on_error="continue", warn=lambda text: print(text, file=sys.stderr)
    ):
        assert on_error in SAVE_ERRORS
        self.folder, self.keep, self.on_error, self.warn = folder, keep, on_error, warn
        self.thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending = self.failure = None

    def save(self, progress, values):
        """Waits for the previous checkpoint, then begins to write this one.

        Args:
          progress: Progress, copied. values: {name: NumPy array}, not copied: they must stay as
            they are until it is written.
        """
        self.wait()
        self.pending = self.thread.submit(self._write, dataclasses.replace(progress), values)

    def wait(self):
        """Returns when everything is written. Call it before fetching the next values, so that
        memory holds one copy, not two.
        """
        pending, self.pending = self.pending, None
        if pending is not None:
            self.failure = pending.result()
        if self.failure is not None and self.on_error == "stop":
            raise self.failure

    def close(self):
        """Waits, then ends the thread. Raises SaveFailed when the last save failed, whatever
        on_error says.
        """
        try:
            self.wait()
        finally:
            self.thread.shutdown()
        if self.failure is not None:
            raise self.failure

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        try:
            self.close()
        except SaveFailed:
            # another exception matters more; the failed save has been reported
            if kind is None:
                raise

    def _write(self, progress, values):
        """Returns None or a SaveFailed, which it does not raise: a traceback would keep the values
        alive.
        """
        try:
            self.folder.save(progress, values, self.keep)
            return None
        except OSError as error:
            reason = error.strerror or str(error)
        steps = self.folder.steps()
        newest = (
            f"the newest good one is step {steps[-1]}" if steps else "there is no other one yet"
        )
        text = f"checkpoint of step {progress.step} could not be saved: {reason}; {newest}"
        self.warn(text)
        return SaveFailed(text)


def write_variables(values, path):
    """Writes {name: array} as safetensors. Raises OSError like any other write."""
    try:
        save_file({name: np.asarray(value, order="C") for name, value in values.items()}, path)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), path) from error


def sync(*paths):
    """Flushes files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_resumable(folder, stored, settings):
    """UserError that lists where a command's fixed settings differ from those of the run in the
    folder.

    The caller decides what is fixed: anything outside `settings` may change.
    """
    changed = differences(stored["settings"], settings)
    if changed:
        start, end = (
            f"--output_dir={folder.path}: holds a run with other settings (",
            "); name another folder, or --overwrite starts over",
        )
        shown = list(changed)
        while len(shown) > 1 and len(start + "; ".join(shown) + end) > 280:
            shown.pop()
        more = f"; and {len(changed) - len(shown)} more" if len(shown) < len(changed) else ""
        raise UserError((start + "; ".join(shown))[: 300 - len(more + end)] + more + end)
