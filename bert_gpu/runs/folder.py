"""A run's folder, with run.json, metrics.jsonl and checkpoints/: creates it, reads it for a resume,
and never leaves a file half written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors)
and the progress (progress.json), each with a checksum. It is written under a temporary name and
then renamed, so a folder with the final name is complete; for the same reason it is renamed before
it is removed. It holds no random state: the order of the records, masks and dropout are functions
of the seed, the records consumed and the step. run.json holds the resolved settings and decides
whether a run may be resumed.
"""

import contextlib
import dataclasses
import fnmatch
import glob
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import (
    check_local,
    check_writable,
    only_writer,
    read_json,
    sync,
    write_json,
)
from bert_gpu.base.run_names import (
    CHECKPOINTS,
    KEEP,
    LOCK,
    MARKS,
    METRICS,
    MLFLOW_RUN_ID,
    MODEL,
    PROGRESS,
    RUN,
    TENSORBOARD,
    VARIABLES,
    WANDB,
)
from bert_gpu.base.settings import fields_of, without_removed
from bert_gpu.base.tensor_files import load_file, save_file
from bert_gpu.runs.cost import COSTS
from bert_gpu.runs.progress import PROGRESS_FIELDS, RUN_ENTRIES, Progress, RunRecord, read_progress
from bert_gpu.runs.provenance import differences

UNFINISHED_RUN = f".{RUN}.*.partial"  # pattern of temporary files of files.write_text
# a run that resumes from an earlier checkpoint renames a damaged one to step-00001000.damaged
DAMAGED = ".damaged"
MANY_CHARACTERS = 110  # a longer list of changed settings is shortened in a message


class RunFolder:
    """The OUTPUT_DIR of one run. The constructor writes nothing; `create` does.

    is_reserved: whether this process holds the lock of the folder, by `reserved`.
    """

    def __init__(self, path: str) -> None:
        check_local(path, "output_dir")
        self.path = path
        self.is_reserved = False
        self.checkpoints = os.path.join(path, CHECKPOINTS)
        self.metrics = os.path.join(path, METRICS)
        self.tensorboard = os.path.join(path, TENSORBOARD)
        self.model = os.path.join(path, MODEL)

    def read_run(self, fields: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """Return the content of run.json, None when there is no run. Raise UserError when the
        folder holds other files, or when run.json has an impossible value. fields: {setting:
        field}, the settings of the script that wrote the run.
        """
        check_writable(self.path, "output_dir", self.path)
        path = os.path.join(self.path, RUN)
        if os.path.exists(path):
            self._check_kind(path, fields or {})
            return read_run(self.path, fields or {}, "a run's settings (--overwrite starts over)")
        names = os.listdir(self.path) if os.path.exists(self.path) else []
        # a run that ended before its run.json was written leaves at most the lock and partial files
        if any(name != LOCK and not fnmatch.fnmatchcase(name, UNFINISHED_RUN) for name in names):
            raise UserError(
                "exists, is not empty and holds no run",
                "name another folder",
                setting="output_dir",
                value=self.path,
            )
        return None

    def _check_kind(self, path: str, fields: Mapping[str, object]) -> None:
        """Raise UserError when another script wrote the run: one whose settings include input_file
        or data_dir, unlike `fields`. Other problems of run.json are checked later.
        """
        try:
            free = read_json(path, "").get("free")
        except UserError:
            return
        for name in ("input_file", "data_dir"):
            if fields and isinstance(free, dict) and name in free and name not in fields:
                raise UserError(
                    f"holds a run of another script (one with --{name})",
                    "name another folder",
                    setting="output_dir",
                    value=self.path,
                )

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Make this process the folder's only writer; may be nested. Raise UserError when another
        process is writing to the folder.
        """
        if self.is_reserved:
            yield
            return
        with only_writer(self.path, "run", "output_dir", self.path):
            self.is_reserved = True
            try:
                yield
            finally:
                self.is_reserved = False

    def is_known(self) -> bool:
        """Return whether the folder holds run.json or a lock, that is, a run that has begun or was
        killed just before.
        """
        return any(os.path.exists(os.path.join(self.path, name)) for name in (RUN, LOCK))

    def exists(self) -> bool:
        """Return whether the folder holds a run, readable or not. Raise UserError when it holds
        other files.
        """
        check_writable(self.path, "output_dir", self.path)
        return os.path.exists(os.path.join(self.path, RUN)) or self.read_run() is not None

    def create(self, content: Mapping[str, object]) -> None:
        """Write run.json, which marks the folder as a run's, and create the folder of
        checkpoints.
        """
        os.makedirs(self.path, exist_ok=True)
        for leftover in glob.glob(os.path.join(glob.escape(self.path), UNFINISHED_RUN)):
            os.remove(leftover)  # left by a killed process
        write_json(os.path.join(self.path, RUN), content)
        os.makedirs(self.checkpoints, exist_ok=True)

    def clear(self, find_results: Callable[[str], Iterable[str]] = lambda folder: ()) -> None:
        """Remove the files of a run and nothing else.

        find_results: function that gets the run's folder and returns the paths of further files and
        folders of the run, in the order of removal; a folder is removed only if it is empty.
        """
        for name in (CHECKPOINTS, TENSORBOARD, MODEL, MARKS, WANDB):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        own = [os.path.join(self.path, name) for name in (METRICS, MLFLOW_RUN_ID, RUN)]
        own[-1:-1] = find_results(self.path)  # run.json last: it marks the folder as a run's
        for path in own:
            if os.path.isdir(path):
                # raised if the folder has other files or is a link
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            elif os.path.exists(path):
                os.remove(path)

    def drop(self, lost: str | None = None) -> None:
        """Remove the checkpoints and the model of a trial that its sweep no longer needs; run.json
        keeps the progress, so that the trial is not run again. lost: the text of the error that
        ended the trial, None for a finished one.
        """
        with self.reserved():
            content = self.read_run() or {}
            if "dropped" not in content:
                progress = self.newest_progress() or Progress()
                self.create(content | dict(dropped=dataclasses.asdict(progress), lost=lost))
            for name in (CHECKPOINTS, MODEL):
                shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, in rising order."""
        names = os.listdir(self.checkpoints) if os.path.isdir(self.checkpoints) else []
        return sorted(
            int(match[1])
            for match in (re.fullmatch(r"step-(\d+)", name) for name in names)
            if match
        )

    def save(self, progress: Progress, values: Mapping[str, np.ndarray], keep: int) -> None:
        """Write a checkpoint of values {name: array}, then remove old checkpoints as `remove_old`
        does.

        Nothing is removed before the new checkpoint is complete and on the disk. When the new
        checkpoint cannot be written (OSError), no part of it remains, and the other checkpoints
        stay.
        """
        partial = self._hidden(progress.step)
        for leftover in glob.glob(os.path.join(glob.escape(self.checkpoints), ".step-*.partial")):
            # left by a process that was killed while it saved or removed a checkpoint
            shutil.rmtree(leftover)
        try:
            os.makedirs(partial)
            save_file(values, os.path.join(partial, VARIABLES))
            write_json(os.path.join(partial, PROGRESS), dataclasses.asdict(progress))
            for path in (os.path.join(partial, VARIABLES), partial):
                sync(path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        self._discard(progress.step)  # after a rollback there may be a checkpoint of the same step
        os.rename(partial, self._checkpoint(progress.step))
        sync(self.checkpoints)
        self.remove_old(keep, progress.last_good_step)

    def remove_old(self, keep: int, last_good: int | None = None) -> None:
        """Remove all checkpoints except the newest `keep`, the best one, pinned ones and, when the
        latest steps were bad, the one for a rollback: the newest checkpoint of a step of at most
        `last_good`.
        """
        steps = self.steps()
        good = [step for step in steps if last_good is not None and step <= last_good]
        for step in set(steps[:-keep]) - {self.best_step(), *good[-1:]}:
            if not self.is_pinned(step):
                self._discard(step)

    def newest_progress(self) -> Progress | None:
        """Return the Progress of the newest checkpoint whose progress is readable, None without
        checkpoints. Raise UserError when none is readable.
        """
        return self._newest(self.progress_of)

    def newest_whole(
        self, warn: Callable[[str], None], last: int | None = None
    ) -> tuple[Progress, dict[str, np.ndarray]]:
        """Return (Progress, values {name: array}) of the newest undamaged checkpoint; there must be
        at least one checkpoint. Raise UserError when all are damaged.

        warn: called with a text for each newer checkpoint that is damaged. last: the last step that
        is considered; None = all.
        """
        return self._newest(lambda step: (self.progress_of(step), self.restore(step)), warn, last)

    def _newest(
        self,
        read: Callable[[int], object],
        warn: Callable[[str], None] = lambda text: None,
        last: int | None = None,
    ) -> Any:
        """Return read(step) of the newest checkpoint for which it raises no UserError, None without
        checkpoints. Raise UserError when there is no readable one. warn, last: as in
        `newest_whole`.
        """
        problems = []
        steps = [step for step in self.steps() if last is None or step <= last]
        for step in reversed(steps):
            try:
                result = read(step)
            except UserError as error:
                problems.append(error)
                continue
            for problem in problems:
                warn(f"{problem}; the checkpoint of step {step} is taken instead")
            return result
        if problems:
            raise UserError(str(problems[0]), "none before it is whole; --overwrite starts over")
        return None

    def set_aside_after(self, step: int) -> None:
        """Rename the damaged checkpoints of later steps than `step`: they are ignored from then on,
        and stay for inspection.
        """
        for later in self.steps():
            if later > step:
                aside = self._checkpoint(later) + DAMAGED
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(self._checkpoint(later), aside)

    def progress_of(self, step: int) -> Progress:
        """Return the Progress of a checkpoint. Raise UserError when it cannot be read."""
        content = read_json(
            os.path.join(self._checkpoint(step), PROGRESS),
            "a checkpoint's progress",
            PROGRESS_FIELDS,
            tuple(name for name in PROGRESS_FIELDS if name not in COSTS),
        )
        return read_progress(content)

    def write_progress(self, progress: Progress) -> None:
        """Rewrite progress.json of the checkpoint of progress.step, to record a rollback before the
        next save.
        """
        write_json(
            os.path.join(self._checkpoint(progress.step), PROGRESS), dataclasses.asdict(progress)
        )

    def best_step(self) -> int | None:
        """Return the step of the newest checkpoint that had the best validation when it was
        written, or None.
        """
        for step in reversed(self.steps()):
            with contextlib.suppress(UserError):  # skip a checkpoint that cannot be read
                if self.progress_of(step).best_step == step:
                    return step
        return None

    def is_pinned(self, step: int) -> bool:
        return os.path.exists(os.path.join(self._checkpoint(step), KEEP))

    def remove_after(self, step: int) -> None:
        """Remove the checkpoints of later steps than `step`, newest first, for a rollback."""
        for later in reversed(self.steps()):
            if later > step:
                self._discard(later)

    def restore(self, step: int) -> dict[str, np.ndarray]:
        """Return the values {name: array} of a checkpoint. Raise UserError when they are
        damaged.
        """
        return load_file(os.path.join(self._checkpoint(step), VARIABLES))

    def _checkpoint(self, step: int) -> str:
        return os.path.join(self.checkpoints, f"step-{step:08d}")

    def _hidden(self, step: int, what: str = "new") -> str:
        return os.path.join(self.checkpoints, f".step-{step:08d}.{what}.{os.getpid()}.partial")

    def _discard(self, step: int) -> None:
        """Remove a checkpoint, if there is one; renaming it first makes the removal atomic."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._checkpoint(step), self._hidden(step, "old"))
            shutil.rmtree(self._hidden(step, "old"), ignore_errors=True)


def read_run(
    path: str, fields: Mapping[str, Any], what: str = "a run's settings"
) -> dict[str, Any]:
    """Return the content of the run.json in the folder `path`. Raise UserError when it cannot be
    read or has an impossible value.

    fields: {setting: field}, the settings of the script that wrote the run. what: words for the
    content of the file, for the error.
    """
    known = fields_of(RunRecord) | dict(settings=fields, free=fields, versions={}, hashes={})
    return read_json(os.path.join(path, RUN), what, known, RUN_ENTRIES)


def check_resumable(
    path: str,
    content: Mapping[str, Any],
    settings: Mapping[str, object],
    fields: Mapping[str, dataclasses.Field] | None = None,
    recipe: str | None = None,
) -> None:
    """Raise UserError when the fixed settings of a command, which a resume may not change, differ
    from those of the run in the folder; the message lists the differences.

    Args:
      content: the content of run.json.
      settings: the fixed settings of the command; all others may change.
      fields: {setting: field}; for a setting that run.json lacks, as a model's has BERT's value,
        the default is compared.
      recipe: the recipe that the command names; if None, the message suggests the run's recipe.
    """
    old = without_removed(content["settings"], path)
    missing = {
        name: fields[name].default
        for name in settings.keys() - old.keys()
        if fields and name in fields
    }
    changed = differences(missing | old, settings)
    if changed:
        run_recipe = None if recipe else content["free"].get("recipe")
        hint = f"add --recipe={shortened(run_recipe)}, the run's own, to resume it; or "
        changes = [f"--{name}: {change}" for name, change in changed.items()]
        first = list(changes)
        while len(first) > 1 and len("; ".join(first)) > MANY_CHARACTERS:
            first.pop()
        more = f"; and {len(changes) - len(first)} more" if len(first) < len(changes) else ""
        raise UserError(
            f"holds a run with other settings ({'; '.join(first)}{more})",
            f"{hint if run_recipe else ''}name another folder, or --overwrite starts over",
            setting=("output_dir", *changed),
            value=path,
        )
