"""Opens the folder and devices of a run, plans its batch and steps, and begins, resumes and ends
the run.

Pretraining and fine-tuning combine these parts with their data, model and objective;
pretrain/run.py shows them in the order in which they run.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from bert_gpu.base.console import Console, LogConsole
from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.base.files import is_inside
from bert_gpu.base.signals import watch_signals
from bert_gpu.devices.devices import Devices, join_workers, set_up
from bert_gpu.devices.workers import Alone, Workers
from bert_gpu.model.flops import Flops
from bert_gpu.monitor import metrics_log
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs import metrics, provenance
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress, read_progress
from bert_gpu.runs.resume_changes import describe_changes
from bert_gpu.runs.shared_folder import SharedFolder, open_folder
from bert_gpu.train import shared_update, start_block
from bert_gpu.train.auto_batch import find_micro_batch
from bert_gpu.train.batching import TrainingData, pad_rows
from bert_gpu.train.config import RunSettings, fit_sizes
from bert_gpu.train.divergence import Diverged, Lost
from bert_gpu.train.plan import BatchPlan, check_same_batch, plan_training
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep

S = typing.TypeVar("S", bound=RunSettings)  # PretrainSettings or FinetuneSettings


class TrainingResult(typing.NamedTuple):
    """The outcome of a run. signal: number of the signal that stopped the run early; None without
    one. late_signal: number of a signal that came when nothing was left to train, or None.
    """

    folder: RunFolder | SharedFolder
    progress: Progress
    signal: int | None = None
    late_signal: int | None = None

    def __repr__(self) -> str:
        progress = self.progress
        best = ""
        if progress.best_metric is not None:  # stored negated unless it is a loss
            best = f", best {progress.best_by or 'loss'} {abs(progress.best_metric):.4g}"
        return f"TrainingResult({self.folder.path!r}: {progress.step} steps{best})"


@dataclasses.dataclass(kw_only=True)
class Run(typing.Generic[S]):
    """A run of pretraining or fine-tuning, which `open_run` opens.

    settings: `open_devices` adjusts their batch sizes to the devices. fields: {setting: field} of
    all settings that run.json of this kind of run may hold.
    run_json: content of run.json of the run to resume, None for a new run. workers: the processes
    that train together. clock: function that returns seconds.
    progress: None until `begin`, unless `is_done` finds a checkpoint. caught: the signals caught so
    far; the list grows. content: the content of run.json that `begin` writes. is_complete: whether
    nothing is left to train. The loop sets both `caught` and `is_complete` at its end.
    """

    settings: S
    fields: dict[str, dataclasses.Field]
    folder: RunFolder | SharedFolder
    run_json: dict[str, typing.Any] | None
    workers: Workers | Alone
    console: Console
    clock: Callable[[], float]
    progress: Progress = None  # type: ignore[assignment]
    caught: list[int] = dataclasses.field(default_factory=list)
    content: dict[str, typing.Any] = dataclasses.field(default_factory=dict)
    is_complete: bool = False

    def check_resumable(self, fixed: Mapping[str, object]) -> None:
        """Raise UserError when run.json of the run to resume has other values than `fixed`,
        {setting: value} of the settings that a resume may not change.
        """
        if self.run_json is not None:
            run_folder.check_resumable(
                self.folder.path, self.run_json, fixed, self.fields, self.settings.recipe
            )

    def is_done(self, plan: BatchPlan) -> bool:
        """Read the progress of the run to resume, and return whether nothing is left to do; if so,
        print that. Raises UserError when the run has done more steps than `plan` has, or when it is
        a trial that its sweep has dropped and `plan` has more; Lost for a dropped trial without a
        result.
        """
        record = self.run_json
        if record is None:
            return False
        if record.get("lost"):
            raise Lost(record["lost"])
        dropped = record.get("dropped")
        progress = read_progress(dropped) if dropped else self.folder.newest_progress()
        if progress is None:
            return False
        self.progress = progress
        folder = self.folder
        ending = self.settings.ending
        if plan.num_steps is not None and progress.step > plan.num_steps:
            raise UserError(
                f"its run has done {progress.step} steps, more than the {plan.num_steps} asked for",
                "raise --num_train_steps, name another folder, or --overwrite starts over",
                setting="output_dir",
                value=folder.path,
            )
        progress.compare_by(ending.best_metric)
        self.is_complete = plan.length.is_finished(
            progress.step, progress.seconds
        ) or ending.is_stale(progress.num_worse)
        if dropped and not self.is_complete:
            raise UserError(
                "cannot be extended: it was not the best trial of its --grid, which keeps only the "
                "checkpoints of the best",
                "name another folder, or --overwrite starts over",
                setting="output_dir",
                value=folder.path,
            )
        is_exported = self.is_complete and record.get("exported_step") == progress.step
        has_model = dropped or self.workers.from_chief(os.path.isdir, folder.model)
        if not (is_exported and has_model):
            return False
        hint = "without its checkpoints" if dropped else hint_to_extend(plan, progress)
        self.console.say(
            f"{folder.path}: this run is finished "
            f"({start_block.counted_steps(progress.step)}); nothing to do "
            f"({hint}, --overwrite starts over)"
        )
        return True

    @contextlib.contextmanager
    def begin(
        self,
        step: TrainStep,
        plan: BatchPlan,
        *,
        fixed: Mapping[str, object],
        hashes: Mapping[str, object],
        losses: Sequence[str] = (),
        find_results: Callable[[str], Iterable[str]] = lambda folder: (),
    ) -> Iterator[metrics_log.Log]:
        """Open a context in which this process alone writes to the folder, and signals are caught.
        Restore the newest checkpoint, or create the folder, and yield the log of metrics.

        Args:
          fixed: {setting: value} that a resume may not change. hashes: {name: hash} of the data,
            for run.json.
          losses: names of the parts of "loss", for the log. find_results: function of the run's
            folder that returns the paths of further files that --overwrite removes.

        Raises TrainingStopped when the run diverges or its folder cannot be written.
        """
        check_layers(self.settings.optimizer, step.state)
        self.content = describe_run(self, plan, step.devices.kind, fixed, hashes)
        watching = watch_signals(self.console.warn, interrupts=self.console.in_program)
        with self.folder.reserved(), watching as self.caught:
            resumed_step = self._restore(step, plan)
            if self.settings.overwrite:
                self.folder.clear(find_results)
            try:
                self.folder.create(self.content)
                yield self._open_log(step.devices.nvml, plan.num_steps, losses, resumed_step)
            except Diverged:
                with contextlib.suppress(OSError):  # the divergence is the error to report
                    self.folder.create(self.content | dict(ended="diverged"))  # removed by a resume
                raise
            except OSError as error:
                problem = (
                    f"{error.filename or self.folder.path}: {error.strerror or error}; "
                    "free some disk space, then repeat the same command"
                )
                raise TrainingStopped(problem) from error

    def _restore(self, step: TrainStep, plan: BatchPlan) -> int | None:
        """Restore the newest checkpoint and return its step; return None when there is none."""
        is_new = self.run_json is None and not self.settings.overwrite
        if is_new and self.folder.read_run() is not None:
            raise UserError(
                "another process has just written a run there",
                "repeat the same command, or name another folder",
                setting="output_dir",
                value=self.folder.path,
            )
        if self.progress is None:
            self.progress = Progress()
            return None
        resume(self, step, plan)
        return self.progress.step

    def _open_log(
        self,
        gpus: Sequence[int | str],
        num_steps: int | None,
        losses: Sequence[str],
        resumed_step: int | None,
    ) -> metrics_log.Log:
        open_log = functools.partial(
            metrics_log.open_log,
            self.folder,
            self.settings.monitor,
            self.content["settings"] | self.content["free"],
            step=resumed_step,
            console=self.console,
            num_steps=num_steps,
            losses=losses,
            gpus=gpus,
            warn=self.console.warn,
        )
        return self.workers.on_chief(open_log) or metrics_log.no_log(self.console.warn)

    def finish(self, state: TrainState, export: Callable[[str, TrainState, int], None]) -> None:
        """Write model/ unless a signal has stopped the loop before the end of the run. export:
        function of (folder, TrainState, step) that writes the model.
        """
        if not self.caught or self.is_complete:
            export_end(self, state, export)
            self.folder.create(self.content | dict(exported_step=self.progress.step))

    def result(self) -> TrainingResult:
        """Return the TrainingResult of the run; after a signal, warn that it can be resumed."""
        if not self.caught or self.is_complete:
            late_signal = next(iter(self.caught), None)
            return TrainingResult(self.folder, self.progress, late_signal=late_signal)
        self.console.warn(
            f"stopped by {signal.Signals(self.caught[0]).name} after step "
            f"{self.progress.step}; the same command resumes from there"
        )
        return TrainingResult(self.folder, self.progress, self.caught[0])


def join(
    settings: RunSettings, console: Console | None, **more: object
) -> tuple[Workers | Alone, Console]:
    """Return (the Workers that train together, the Console of this worker). Raises UserError on all
    workers when one of them has other settings, or other values in `more`, than the rest.
    """
    workers = join_workers(settings.devices)
    check_same_command(workers, settings)
    workers.check_alike(more)
    return workers, workers.console(console or LogConsole())


@contextlib.contextmanager
def open_run(
    settings: S,
    fields: dict[str, dataclasses.Field],
    workers: Workers | Alone,
    console: Console,
    clock: Callable[[], float],
    start: str | None = None,
    trains: bool = True,
) -> Iterator[Run[S]]:
    """Yield the Run in --output_dir. Raises UserError for a folder that holds other files, or that
    another process writes to.

    The folder of an earlier run is reserved before it is read, so that no other process changes it
    meanwhile; the folder of a new run is created and reserved by `Run.begin`.

    Args:
      settings: PretrainSettings or FinetuneSettings. fields, workers, console, clock: as in Run.
      start: folder of the model that the training starts from; it may not lie in the run's folder,
        because --overwrite would remove it. trains: False = the folder is only read.
    """
    output_dir = settings.run.output_dir  # type: ignore[attr-defined]
    folder = open_folder(output_dir, workers)
    if trains and start is not None and is_inside(start, output_dir):
        raise UserError(
            "training writes to that folder",
            f"name another --output_dir than {output_dir}",
            setting="init_checkpoint",
            value=start,
        )
    if settings.overwrite and not trains:
        raise UserError(
            "would remove the run that is to be evaluated",
            "add --do_train, or drop the flag",
            setting="overwrite",
        )
    with folder.reserved() if trains and folder.is_known() else contextlib.nullcontext():
        if settings.overwrite:
            folder.exists()  # raises UserError when the folder holds other files
        yield Run(
            settings=settings,
            fields=fields,
            folder=folder,
            run_json=None if settings.overwrite else folder.read_run(fields),
            workers=workers,
            console=console,
            clock=clock,
        )


def open_devices(run: Run) -> Devices:
    """Set up and return the devices of a run, and adjust the batch sizes in its settings to the
    number of devices.
    """
    devices = set_up(run.settings.devices)
    batch = fit_sizes(run.settings.batch, run.settings.flexible, devices.num_replicas, run.run_json)
    run.settings = dataclasses.replace(run.settings, batch=batch)
    return devices


def fixed_settings(settings: RunSettings, precision: str) -> dict[str, object]:
    """Return {setting: value} of the settings that may not change in a resumed run, for example
    those of the schedule except --lr_schedule and --total_training_time.
    """
    return (
        settings.optimizer.to_dict()
        | {
            name: value
            for name, value in settings.schedule.to_dict().items()
            if name not in ("lr_schedule", "total_training_time")
        }
        | dict(
            freeze=list(settings.memory.freeze),
            lr_scaling=settings.batch.lr_scaling,
            precision=precision,
        )
    )


# Settings that may differ between the workers of a run: devices, and paths of files, whose contents
# are compared where they are read.
OWN_SETTINGS = (
    *("output_dir", "input_file", "eval_input_file", "data_dir", "vocab_file"),
    *("init_checkpoint", "train_file", "dev_file", "test_file"),
)


def check_same_command(workers: Workers | Alone, settings: RunSettings) -> None:
    """Raise UserError on all workers when one of them has other settings. Call it before the
    workers do anything together that depends on the settings, such as opening the run's folder.
    """
    values = settings.values() | dict(overwrite=settings.overwrite, recipe=settings.recipe)
    workers.check_alike({name: values[name] for name in values if name not in OWN_SETTINGS})


def check_layers(optimizer: OptimizerConfig, state: TrainState) -> None:
    """Raise UserError when --layer_lr_decay is set but the names of the weights do not tell the
    layer that a weight is in, as with Model Garden's encoders.
    """
    if optimizer.layer_lr_decay < 1 and not any(
        name.startswith("layer_") for name in state.weights
    ):
        raise UserError(
            "the names of this encoder's weights do not contain their layers",
            "drop the flag",
            setting="layer_lr_decay",
            value=f"{optimizer.layer_lr_decay:g}",
        )


def with_update(
    flops: Callable[[dict[str, np.ndarray]], Flops] | None, step: TrainStep
) -> Callable[[dict[str, np.ndarray]], Flops] | None:
    """Return a function of a batch that returns the result of `flops` with the matrix products of
    the optimizer's update added to its hardware FLOPs; None when `flops` is None.
    """
    if flops is None:
        return None
    update_flops = shared_update.hardware_flops(
        step.devices, step.state.joint_parts, step.is_shared, step.optimizer
    )

    def flops_with_update(batch: dict[str, np.ndarray]) -> Flops:
        passes = flops(batch)
        return passes._replace(hardware=passes.hardware + update_flops)

    return flops_with_update


def resume(run: Run, step: TrainStep, plan: BatchPlan) -> None:
    """Restore the newest undamaged checkpoint, and print what changes when the run is resumed."""
    folder = run.folder
    console = run.console
    ending = run.settings.ending
    # raises UserError for a damaged metrics.jsonl before anything is written
    run.workers.on_chief(functools.partial(metrics.read_lines, folder.metrics))
    run.progress, values = folder.newest_whole(console.warn)
    progress = run.progress
    earlier_metric = progress.best_by
    try:
        step.state.assign(values)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"the checkpoint of step {progress.step} does not fit the model ({error})",
            where=folder.path,
        ) from error
    if progress.compare_by(ending.best_metric):
        console.say(
            f"--best_metric={ending.best_metric}: earlier validations "
            f"were compared by {earlier_metric}; the search for the best one restarts"
        )
    folder.set_aside_after(progress.step)
    # a save that was cut short may have left more checkpoints than --keep_checkpoint_max
    folder.remove_old(ending.keep_checkpoint_max, progress.last_good_step)
    total = "" if plan.num_steps is None else f" of {plan.num_steps}"
    console.say(
        f"resuming from step {progress.step}{total} ({progress.records:,} records consumed)"
    )
    for line in describe_changes(run.run_json or {}, plan, step.devices.kind, progress):
        console.say(line)


def hint_to_extend(plan: BatchPlan, progress: Progress) -> str:
    """Return a hint that names the flag that extends a finished run."""
    if plan.num_steps is not None and progress.step >= plan.num_steps:
        flag = "num_train_steps"
    elif plan.length.is_finished(progress.step, progress.seconds):
        flag = "total_training_time"
    else:
        flag = "early_stop_patience"
    return f"a larger --{flag} extends it"


def print_summary(
    run: Run,
    step: TrainStep,
    plan: BatchPlan,
    data: TrainingData,
    summary_rows: Iterable[tuple[str, str]],
) -> None:
    """Print a description of a run before its first step, unless no steps are left. summary_rows:
    rows (label, text) on the model and the data.
    """
    if run.is_complete:
        return
    devices = step.devices
    console = run.console
    console.block(start_block.rows(run.settings, data, plan, devices, summary_rows))
    if problem := start_block.length_problem(plan, data, run.settings):
        console.warn(problem)


def export_end(run: Run, state: TrainState, export: Callable[[str, TrainState, int], None]) -> None:
    """Write model/ at the end of a run, with the last weights or, with --export_best, the best
    ones. export: function of (folder, TrainState, step) that writes the model.
    """
    folder = run.folder
    console = run.console
    ending = run.settings.ending
    step = run.progress.step
    best = run.progress.best_step
    has_best = ending.export_best and best is not None
    best_step = folder.best_step() if has_best else None
    if has_best and best_step != best:
        console.warn(
            f"the checkpoint of step {best}, which has the best validation "
            f"{ending.best_metric}, is missing; model/ holds the weights of step "
            f"{best_step or step}"
        )
    if best_step is not None:
        step = best_step
        try:
            state.assign(folder.restore(step))
        except UserError as error:
            remedy = "remove its folder, and repeat the command to export the last one"
            raise UserError(f"{error}, which is the best checkpoint", remedy) from error
        console.say(
            f"model/ holds the weights of step {step}, which has the best validation "
            f"{ending.best_metric}"
        )
    run.workers.on_chief(functools.partial(export, folder.model, state, step))


def describe_run(
    run: Run,
    plan: BatchPlan,
    device_kind: str,
    fixed: Mapping[str, object],
    hashes: Mapping[str, object],
) -> dict[str, object]:
    """Return the content of run.json for a run. device_kind: "GPU" or "CPU". fixed: {setting:
    value} that a resume may not change. hashes: {name: hash} of the data.
    """
    settings = run.settings
    free = {name: value for name, value in settings.values().items() if name not in fixed}
    changed = (run.run_json or {}).get("weights_changed")
    return dict(
        settings=fixed,
        **plan.run_record(device_kind),
        free=free | dict(recipe=settings.recipe),
        versions=provenance.versions(),
        git_commit=provenance.git_commit(),
        hashes=hashes,
        **({} if changed is None else dict(weights_changed=changed)),
        **(dict(num_workers=run.workers.count) if run.workers.count > 1 else {}),
    )


def plan_run(
    run: Run, data: TrainingData, devices: Devices, make_step: Callable[..., TrainStep]
) -> BatchPlan:
    """Return the BatchPlan of a run. --train_batch_size=auto is resolved by trials. make_step: as
    for `auto_batch.find_micro_batch`.
    """
    settings = run.settings
    batch = settings.batch
    rows = next(data.open_batches(batch_size=8, position=0))  # fails early on bad records
    if batch.train_batch_size == "auto":
        rows = pad_rows(rows, data.max_seq_length, data.length_axes)
        if "num_windows" in rows:
            rows["num_windows"][:] = data.rows_per_example
        total = run.run_json["global_batch_size"] if run.run_json else batch.global_batch_size
        accumulates = total is not None or (batch.gradient_accumulation_steps or 1) > 1
        say = run.console.say
        size = find_micro_batch(devices, rows, make_step, say, total, accumulates)
        batch = dataclasses.replace(batch, train_batch_size=size)
        settings = dataclasses.replace(settings, batch=batch)
    plan = plan_training(settings, data, devices.num_replicas, run.run_json)
    is_ramped = settings.schedule.batch_ramp_proportion > 0
    if is_ramped and not plan.is_ramped and "batch_ramp_proportion" not in settings.flexible:
        run.console.warn(
            "--batch_ramp_proportion has no effect on a batch of one micro-batch; give a smaller "
            "--train_batch_size, or --gradient_accumulation_steps"
        )
    if run.run_json:
        check_same_batch(plan, batch, is_ramped, run.run_json, run.folder.path)
    return plan
