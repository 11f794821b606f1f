"""A run's folder: run.json, metrics.jsonl, checkpoints/; created, resumed, and never left half
written.

A checkpoint is one folder, checkpoints/step-00001000, with all variables (variables.safetensors)
and the progress (progress.json), each with a checksum. It is written under a temporary name and
then renamed, so a folder with the final name is complete; for the same reason it is renamed before
it is removed. It holds no random state: order, masks and dropout are functions of the seed, the
records consumed and the step.
run.json holds the resolved settings and decides whether a run may be resumed.
"""

import contextlib
import dataclasses
import fnmatch
import glob
import os
import re
import shutil

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
from bert_gpu.base.settings import fields_of
from bert_gpu.base.tensor_files import load_file, save_file
from bert_gpu.runs.progress import PROGRESS_FIELDS, Progress, RunRecord
from bert_gpu.runs.provenance import differences

UNFINISHED_RUN = f".{RUN}.*.partial"  # of files.write_text
# what a damaged checkpoint is renamed to, step-00001000.damaged, when a run goes on from another
DAMAGED = ".damaged"
# of settings that an earlier revision had, the only values that there are now
RETIRED = dict(muon_rest="adamw", quantization_block_size=2048, layer_adaptation_exclude=None)
MANY_CHARACTERS = 110  # of a list of changed settings, of which a message shows the first


class RunFolder:
    """OUTPUT_DIR of one run. The constructor writes nothing; `create` does.

    is_reserved: whether this process is inside `reserved`.
    """

    def __init__(self, path):
        check_local(path, "output_dir")
        self.path, self.is_reserved = path, False
        self.checkpoints = os.path.join(path, CHECKPOINTS)
        self.metrics = os.path.join(path, METRICS)
        self.tensorboard = os.path.join(path, TENSORBOARD)
        self.model = os.path.join(path, MODEL)

    def read_run(self, fields=None):
        """The content of run.json, None when there is no run. UserError when the folder holds other
        files, or run.json a value that is impossible. fields: {setting: field} of the run's kind.
        """
        check_writable(self.path, "output_dir", self.path)
        path = os.path.join(self.path, RUN)
        if os.path.exists(path):
            self._check_kind(path, fields or {})
            return read_run(self.path, fields or {}, "a run's settings (--overwrite starts over)")
        names = os.listdir(self.path) if os.path.exists(self.path) else []
        # a run that ended before its run.json was written has left these two at most
        if any(name != LOCK and not fnmatch.fnmatchcase(name, UNFINISHED_RUN) for name in names):
            raise UserError(
                "exists, is not empty and holds no run",
                "name another folder",
                setting="output_dir",
                value=self.path,
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
                    f"holds a run of another script (one with --{name})",
                    "name another folder",
                    setting="output_dir",
                    value=self.path,
                )

    @contextlib.contextmanager
    def reserved(self):
        """Makes this process the folder's only writer; may be nested. UserError when another one
        is.
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

    def is_known(self):
        """Whether a run has begun here, or was killed before it began."""
        return any(os.path.exists(os.path.join(self.path, name)) for name in (RUN, LOCK))

    def exists(self):
        """Whether the folder holds a run, readable or not. UserError when it holds other files."""
        check_writable(self.path, "output_dir", self.path)
        return os.path.exists(os.path.join(self.path, RUN)) or self.read_run() is not None

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
        for name in (CHECKPOINTS, TENSORBOARD, MODEL, MARKS, WANDB):
            shutil.rmtree(os.path.join(self.path, name), ignore_errors=True)
        own = [os.path.join(self.path, name) for name in (METRICS, MLFLOW_RUN_ID, RUN)]
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
            for path in (os.path.join(partial, VARIABLES), partial):
                sync(path)
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

        warn: called with a text for each newer one that is damaged. last: the last step that is
        considered; None = all.
        """
        return self._newest(lambda step: (self.progress_of(step), self.restore(step)), warn, last)

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
                warn(f"{problem}; the checkpoint of step {step} is taken instead")
            return found
        if problems:
            raise UserError(str(problems[0]), "none before it is whole; --overwrite starts over")
        return None

    def set_aside_after(self, step):
        """Renames the damaged checkpoints of later steps: they are ignored from then on, and kept
        for inspection.
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

    def restore(self, step):
        """The values {name: array} of a checkpoint. UserError when they are damaged."""
        return load_file(os.path.join(self._checkpoint(step), VARIABLES))

    def _checkpoint(self, step):
        return os.path.join(self.checkpoints, f"step-{step:08d}")

    def _hidden(self, step, what="new"):
        return os.path.join(self.checkpoints, f".step-{step:08d}.{what}.{os.getpid()}.partial")

    def _discard(self, step):
        """Removes a checkpoint, if there is one; renaming it first makes that atomic."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._checkpoint(step), self._hidden(step, "old"))
            shutil.rmtree(self._hidden(step, "old"), ignore_errors=True)


def read_run(path, fields, what="a run's settings"):
    """The content of the run.json in a folder; UserError, which says `what` it should be, when it
    cannot be read or has an impossible value. fields: {setting: field} of the run's kind.
    """
    known = fields_of(RunRecord) | dict(settings=fields, free=fields, versions={}, hashes={})
    needed = ("settings", "global_batch_size", "learning_rate")
    return read_json(os.path.join(path, RUN), what, known, needed)


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
    retired = {name: value for name, value in RETIRED.items() if name in stored["settings"]}
    changed = differences(missing | stored["settings"], retired | settings)
    if changed:
        of_run = None if recipe else stored.get("free", {}).get("recipe")
        own = f"add --recipe={shortened(of_run)}, the run's own, to go on with it; or "
        listed = [f"--{name}: {change}" for name, change in changed.items()]
        shown = list(listed)
        while len(shown) > 1 and len("; ".join(shown)) > MANY_CHARACTERS:
            shown.pop()
        more = f"; and {len(listed) - len(shown)} more" if len(shown) < len(listed) else ""
        raise UserError(
            f"holds a run with other settings ({'; '.join(shown)}{more})",
            f"{own if of_run else ''}name another folder, or --overwrite starts over",
            setting=("output_dir", *changed),
            value=folder.path,
        )
