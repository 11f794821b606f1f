"""A run's folder: run.json, metrics.jsonl, checkpoints/; created, resumed, and never left
half written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors)
and the progress (progress.json), each with a checksum. It is written under a temporary name and
then renamed, so a folder with the final name is complete; for the same reason it is renamed before
it is removed. It holds no random state: order, masks and dropout are functions of the seed, the
records consumed and the step.
run.json holds the resolved settings and decides whether a run may be resumed.
"""

import concurrent.futures
import contextlib
import dataclasses
import fnmatch
import glob
import math
import os
import re
import shutil

from bert_gpu import console
from bert_gpu.files import check_local, check_writable, only_writer, read_json, write_json
from bert_gpu.settings import GaveUp, Settings, UserError, fields_of, setting, shortened
from bert_gpu.tensor_files import load_file, save_file
from bert_gpu.train.config import SAVE_ERRORS
from bert_gpu.train.divergence import HealthState
from bert_gpu.train.provenance import differences

VARIABLES, PROGRESS, RUN, METRICS = (
    "variables.safetensors",
    "progress.json",
    "run.json",
    "metrics.jsonl",
)
SAMPLES = "samples.jsonl"  # what its models took masked words for; benchmarks/record.py writes it
LOCK = ".run.lock"  # of files.only_writer; it stays
UNFINISHED_RUN = f".{RUN}.*.partial"  # of files.write_text
# an empty file of this name in a checkpoint's folder keeps it, whatever --keep_checkpoint_max says
KEEP = "KEEP"
# what a damaged checkpoint is renamed to, step-00001000.damaged, when a run goes on from another
DAMAGED = ".damaged"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(Settings):
    """What a resume takes from run.json, besides the settings."""

    global_batch_size: int = setting(1, "Records of a step.", low=1)
    unit_size: int = setting(1, "Records of one micro-batch of every replica.", low=1)
    micro_batch_size: int | None = setting(None, "Records that a replica processes at once.", low=1)
    num_replicas: int | None = setting(None, "GPUs, or virtual replicas.", low=1)
    device_kind: str | None = setting(None, "Of the replicas.", choices=("GPU", "CPU"))
    learning_rate: float = setting(1e-4, "The highest of the schedule, as scaled.", low=0.0)
    num_steps: int | None = setting(None, "Steps of the whole run; None = by time.", low=1)
    exported_step: int | None = setting(None, "The step whose model is in model/.", low=0)
    git_commit: str | None = setting(None, "Of the code.")
    ended: str | None = setting(
        None, "How it ended, when not by itself or a signal.", choices=("diverged",)
    )


@dataclasses.dataclass(kw_only=True)
class Progress:
    """Where a run stands. A rollback sets the step back, never the records.

    best_step and best_metric are None before the first validation, health at the start. health:
    the state of divergence.Health.
    """

    step: int = setting(0, "Updates tried.", low=0)
    records: int = setting(0, "Training records consumed.", low=0)
    seconds: float = setting(0.0, "Spent in training, all sessions.", low=0.0)
    call_seconds: float | None = setting(
        None, "Of them, those up to the end of the last call of steps.", low=0.0
    )
    best_step: int | None = setting(None, "Of the best validation so far.", low=0)
    best_metric: float | None = setting(
        None, "Of the best validation, the loss, or minus a metric whose highest is best."
    )
    best_by: str | None = setting(None, "The name of that metric, as --best_metric.")
    num_worse: int = setting(0, "Validations since the best.", low=0)
    validation_failed: bool = setting(
        False, "Whether the validation after these steps could not read its records."
    )
    num_rollbacks: int = setting(0, "Times that the run returned to a checkpoint.", low=0)
    health: dict | None = setting(
        None, "The latest bad steps in a row.", inside=fields_of(HealthState)
    )
    num_skipped_records: int = setting(0, "Of the records, those that were bad.", low=0)

    def improve(self, metric, name="loss"):
        """Records the criterion of a validation of the current step if it is finite and the lowest
        so far; returns whether it was. name: of the metric, as --best_metric.
        """
        self.compare_by(name)
        is_best = (
            metric is not None
            and math.isfinite(metric)
            and (self.best_metric is None or metric < self.best_metric)
        )
        if is_best:
            self.best_step, self.best_metric = self.step, float(metric)
        self.num_worse = 0 if is_best else self.num_worse + 1
        return is_best

    def compare_by(self, name):
        """Forgets the best validation if it was the best by another metric; returns whether it
        was.
        """
        is_other = self.best_by not in (None, name)
        if is_other:
            self.best_step, self.best_metric, self.num_worse = None, None, 0
        self.best_by = name
        return is_other

    @property
    def last_good_step(self):
        """The step before the latest bad ones, None when the last step was good."""
        health = HealthState(**self.health or {})
        return health.bad_since if health.num_bad else None


PROGRESS_FIELDS = fields_of(Progress)


class RunFolder:
    """OUTPUT_DIR of one run. The constructor writes nothing; `create` does.

    is_reserved: whether this process is inside `reserved`.
    """

    def __init__(self, path):
        check_local(path, "--output_dir")
        self.path, self.is_reserved = path, False
        self.checkpoints = os.path.join(path, "checkpoints")
        self.metrics = os.path.join(path, METRICS)
        self.tensorboard = os.path.join(path, "tensorboard")
        self.model = os.path.join(path, "model")

    def stored(self, fields=None):
        """The content of run.json, None when there is no run. UserError when the folder holds other
        files, or run.json a value that is impossible. fields: {setting: field} of the run's kind.
        """
        check_writable(self.path, f"--output_dir={self.path}")
        path = os.path.join(self.path, RUN)
        if os.path.exists(path):
            what = "a run's settings (--overwrite starts over)"
            self._check_kind(path, fields or {})
            return read_json(
                path,
                what,
                fields_of(RunRecord)
                | dict(settings=fields or {}, free=fields or {}, versions={}, hashes={}),
                ("settings", "global_batch_size", "learning_rate"),
            )
        if os.path.exists(self.path) and any(map(self._is_foreign, os.listdir(self.path))):
            raise UserError(
                f"--output_dir={self.path}: exists, "
                "is not empty and holds no run; name another folder"
            )
        return None

    def _check_kind(self, path, fields):
        """UserError for a run of another script, which --input_file and --data_dir tell apart. What
        else is wrong with the file is found later.
        """
        try:
            free = read_json(path, "").get("free")
        except UserError:
            return
        for name in ("input_file", "data_dir"):
            if fields and isinstance(free, dict) and name in free and name not in fields:
                raise UserError(
                    f"--output_dir={self.path}: holds a run of another script (one with "
                    f"--{name}); name another folder"
                )

    @contextlib.contextmanager
    def reserved(self):
        """Makes this process the folder's only writer; may be nested. UserError when another one
        is.
        """
        if self.is_reserved:
            yield
            return
        with only_writer(self.path, "run", f"--output_dir={self.path}"):
            self.is_reserved = True
            try:
                yield
            finally:
                self.is_reserved = False

    def is_known(self):
        """Whether a run has begun here, or was killed before it began."""
        return any(os.path.exists(os.path.join(self.path, name)) for name in (RUN, LOCK))

    def exists(self):
        """Whether the folder holds a run, readable or not. UserError when it holds other files."""
        check_writable(self.path, f"--output_dir={self.path}")
        return os.path.exists(os.path.join(self.path, RUN)) or self.stored() is not None

    def _is_foreign(self, name):
        """Whether a run that ended before its run.json was written cannot have left a file."""
        return name != LOCK and not fnmatch.fnmatchcase(name, UNFINISHED_RUN)

    def create(self, content):
        """Writes run.json, which makes the folder that of a run, and the folder of checkpoints."""
        os.makedirs(self.path, exist_ok=True)
        for leftover in glob.glob(os.path.join(glob.escape(self.path), UNFINISHED_RUN)):
            os.remove(leftover)  # of a process that was killed here
        write_json(os.path.join(self.path, RUN), content)
        os.makedirs(self.checkpoints, exist_ok=True)

    def clear(self, find_results=lambda folder: ()):
        """Removes the files of a run and nothing else.

        Args:
          find_results: function of the folder -> paths of further files that the run's owner has
            written, and of folders, which go when they are empty; in the order in which they go.
        """
        for name in ("checkpoints", "tensorboard", "model", "marks", "wandb"):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        names = (METRICS, SAMPLES, "mlflow_run_id.txt", RUN)
        own = [os.path.join(self.path, name) for name in names]
        own[-1:-1] = find_results(self.path)  # run.json last: it marks the folder as a run's
        for path in own:
            if os.path.isdir(path):
                with contextlib.suppress(OSError):  # it has files of others, or is a link
                    os.rmdir(path)
            elif os.path.exists(path):
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
        """Writes a checkpoint of `values` {name: array}, then removes old ones: the newest `keep`
        and others that `remove_old` names stay.

        Removes nothing before the new one is complete and on the disk. When that cannot be written
        (OSError), it leaves no trace and the others stay.
        """
        partial = self._hidden(progress.step)
        for leftover in glob.glob(os.path.join(glob.escape(self.checkpoints), ".step-*.partial")):
            shutil.rmtree(leftover)  # of a process that was killed while it saved or removed
        try:
            os.makedirs(partial)
            save_file(values, os.path.join(partial, VARIABLES))
            write_json(os.path.join(partial, PROGRESS), dataclasses.asdict(progress))
            sync(os.path.join(partial, VARIABLES), os.path.join(partial, PROGRESS), partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._discard(progress.step)  # of the same step, after a rollback
        os.rename(partial, self._checkpoint(progress.step))
        sync(self.checkpoints)
        self.remove_old(keep, progress.last_good_step)

    def remove_old(self, keep, last_good=None):
        """Removes checkpoints, but for the newest `keep`, the best and the pinned ones, and, when
        the latest steps were bad, that to return to: the newest up to the step `last_good`.
        """
        steps = self.steps()
        good = [step for step in steps if last_good is not None and step <= last_good]
        for step in set(steps[:-keep]) - {self.best_step(), *good[-1:]}:
            if not self.is_pinned(step):
                self._discard(step)

    def newest_progress(self):
        """The Progress of the newest checkpoint of which it can be read, None without checkpoints.
        UserError when it can be read of none.
        """
        return self._newest(self.progress_of)

    def newest_whole(self, warn, last=None):
        """(Progress, {name: array}) of the newest checkpoint that is whole, None without
        checkpoints. UserError when none is.

        warn: is told of each newer one that is damaged, and of one that has no checksum. last: the
        last step that is considered; None = all.
        """
        return self._newest(
            lambda step: (self.progress_of(step), self.restore(step, warn)), warn, last
        )

    def _newest(self, read, warn=lambda text: None, last=None):
        """read(step) of the newest checkpoint for which it raises no UserError."""
        problems, steps = [], [step for step in self.steps() if last is None or step <= last]
        for step in reversed(steps):
            try:
                found = read(step)
            except UserError as error:
                problems.append(error)
                continue
            for problem in problems:
                warn(f"{problem}; the checkpoint of step {step} is taken instead"[:300])
            return found
        if problems:
            raise UserError(
                f"{problems[0]}"[:230] + "; none before it is whole; --overwrite starts over"
            )
        return None

    def set_aside_after(self, step):
        """Renames the checkpoints of later steps, which are damaged: they count no more, and stay
        to be looked at.
        """
        for later in self.steps():
            if later > step:
                aside = self._checkpoint(later) + DAMAGED
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self._checkpoint(later), aside)

    def progress_of(self, step):
        """The Progress of a checkpoint. UserError when it cannot be read."""
        content = read_json(
            os.path.join(self._checkpoint(step), PROGRESS),
            "a checkpoint's progress",
            PROGRESS_FIELDS,
            ("step", "records", "seconds"),
        )
        # fields that older files lack get their defaults, those of later ones are left out
        return Progress(
            **{name: value for name, value in content.items() if name in PROGRESS_FIELDS}
        )

    def write_progress(self, progress):
        """Rewrites progress.json of the checkpoint of progress.step, to record a rollback before
        the next save.
        """
        write_json(
            os.path.join(self._checkpoint(progress.step), PROGRESS), dataclasses.asdict(progress)
        )

    def best_step(self):
        """The step of the newest checkpoint that had the best validation when written, or
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

    def restore(self, step, warn=lambda text: None):
        """The values {name: array} of a checkpoint. UserError when they are damaged; warn: is told
        when they have no checksum.
        """
        path = os.path.join(self._checkpoint(step), VARIABLES)
        values, has_checksum = load_file(path)
        if not has_checksum:
            warn(f"{path}: has no checksum (it is of an older version), so it is taken as it is")
        return values

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

    def __init__(self, folder, keep, on_error="continue", warn=console.warn):
        assert on_error in SAVE_ERRORS
        self.folder, self.keep, self.on_error, self.warn = folder, keep, on_error, warn
        self.thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.pending = self.failure = None

    @property
    def own(self):
        """The writer of this worker alone, as of shared_folder.SharedWriter."""
        return self

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
        steps = [step for step in self.folder.steps() if step != progress.step]
        newest = (
            f"the newest good one is step {steps[-1]}" if steps else "there is no other one yet"
        )
        text = f"checkpoint of step {progress.step} could not be saved: {reason}; {newest}"
        self.warn(text)
        return SaveFailed(text)


def sync(*paths):
    """Flushes files and folders to the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def check_resumable(folder, stored, settings, fields=None, recipe=None):
    """UserError that lists where a command's fixed settings differ from those of the run in the
    folder.

    The caller decides what is fixed: anything outside `settings` may change. fields: {setting:
    field}. A run of an older version lacks some settings; those had the field's default. recipe:
    the command's; a command without one is told that of the run.
    """
    missing = {
        name: fields[name].default
        for name in settings.keys() - stored["settings"].keys()
        if fields and name in fields
    }
    changed = differences(missing | stored["settings"], settings)
    if changed:
        of_run = None if recipe else stored.get("free", {}).get("recipe")
        own = f"add --recipe={shortened(of_run)}, the run's own, to go on with it; or "
        start, end = (
            f"--output_dir={folder.path}: holds a run with other settings (",
            f"); {own if of_run else ''}name another folder, or --overwrite starts over",
        )
        shown = list(changed)
        while len(shown) > 1 and len(start + "; ".join(shown) + end) > 280:
            shown.pop()
        more = f"; and {len(changed) - len(shown)} more" if len(shown) < len(changed) else ""
        raise UserError((start + "; ".join(shown))[: 300 - len(more + end)] + more + end)
