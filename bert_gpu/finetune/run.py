"""Fine-tuning, from the settings to the exported model, its evaluation and predictions."""

import dataclasses
import functools
import time
import typing
from collections.abc import Callable, Mapping, Sequence

from bert_gpu.base.console import Console
from bert_gpu.devices.devices import Devices
from bert_gpu.finetune import results
from bert_gpu.finetune.config import DEFAULT_START, FinetuneSettings, fitted, resolve_phases
from bert_gpu.finetune.describe import (
    describe,
    describe_fitted,
    warn_of_data,
    warn_of_fresh,
)
from bert_gpu.finetune.evaluate import (
    RUN_FIELDS,
    Metrics,
    Run,
    encode,
    evaluate,
    evaluate_only,
    evaluations,
    judge,
    merge_dev_metrics,
    read_files,
    result_key,
    step_of,
)
from bert_gpu.finetune.files.encoded import LENGTH_AXES, training_batches
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.files.splits import Data
from bert_gpu.finetune.first_weights import with_scaled_head
from bert_gpu.finetune.notes import write_notes
from bert_gpu.finetune.objective import task_objective
from bert_gpu.finetune.prediction import Predictor, Stop
from bert_gpu.finetune.start import DROPOUT, Start, start_training
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.finetune.tasks.opening import open_task
from bert_gpu.interop import models
from bert_gpu.interop.sources import NONE
from bert_gpu.model.weights import column_blocks
from bert_gpu.monitor.metrics_log import check_monitoring
from bert_gpu.runs.card_facts import facts_while_training
from bert_gpu.runs.provenance import weights_hash
from bert_gpu.train import run as engine
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.loop import Loop
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size
from bert_gpu.train.state import TrainState, frozen_names
from bert_gpu.train.step import TrainStep


class Result(typing.NamedTuple):
    """The result of a fine-tuning.

    path: folder of the model that was evaluated. metrics: {stem of a file, such as "dev": {name of
    a metric: value}}, with {} for a test file without labels. outcome: the engine's result of the
    training, None without a training.
    """

    path: str
    metrics: dict[str, Metrics]
    outcome: engine.TrainingResult | None

    def __repr__(self) -> str:
        return f"Result({self.path!r}: {self.metrics})"

    @property
    def signal(self) -> int | None:
        """The signal that stopped the training early, or None."""
        return self.outcome and self.outcome.signal


def finetune(
    settings: FinetuneSettings,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
    reuses_results: bool = False,
) -> Result:
    """Fine-tune, evaluate and predict as the settings say. console, clock and errors: as for
    pretrain.run.pretrain.

    reuses_results: whether a training that was already finished returns the metrics stored in its
    folder, if they are of the same data, instead of evaluating and predicting again.
    """
    if "train" not in resolve_phases(settings.run):
        return Result(*evaluate_only(settings, console, clock), None)
    check_monitoring(settings.monitor)
    workers, console = engine.join(settings, console)
    task = open_task(settings)
    source = settings.start.init_checkpoint or DEFAULT_START
    with workers.barrier_at_exit():
        task, files = read_files(task, settings.run, workers)
        opening = engine.open_run(
            settings, RUN_FIELDS, workers, console, clock, None if source == NONE else source
        )
        with opening as run:
            devices = engine.open_devices(run)
            start = open_start(run, task, files["train"][0], devices)
            task, data = encode(run, task, files, start, devices, None)
            run.settings = with_best_metric(run.settings, task, files.get("eval", ()))
            run.settings = fitted(run.settings, start.model, len(data["train"][0].rows))
            fixed = fixed_settings(run.settings, task, devices, start, data)
            workers.check_alike(fixed)
            run.check_resumable(fixed)
            warn_of_data(data, console)
            warn_of_fresh(start, settings.memory.freeze, console)
            start = with_scaled_head(start, data["train"][0].rows, task, run)
            frozen = frozen_names(start.weights, settings.memory.freeze)
            blocks = column_blocks(start.encoder.weights())
            state = TrainState(devices.strategy, start.weights, settings.optimizer, frozen, blocks)
            predict = Predictor(devices, state, start.encoder, task)
            outcome = train(run, task, start, data, devices, state, predict, fixed)
            path = run.folder.model
            if outcome.signal is not None:
                return Result(path, {}, outcome)
            step = step_of(run, outcome.progress.step, run.settings.ending.export_best)
            key = result_key(task, data, path, step)
            if reuses_results and (
                earlier := workers.from_chief(results.read_results, run.folder.path, *key)
            ):
                return Result(path, earlier, outcome)
            # the exported weights are evaluated: a run that was finished earlier is not trained
            # again, so that its weights are not in memory
            state.assign_weights(workers.from_chief(lambda: models.read_model(path).weights))
            return Result(path, evaluate(run, task, data, predict, path, step), outcome)


def open_start(run: Run, task: TaskType, examples: Loaded, devices: Devices) -> Start:
    """Return the model that a training on the examples starts from, with the dropout that the
    settings name. Checks that its weights fit into memory before they are made.
    """
    settings = run.settings
    check = functools.partial(
        check_size,
        settings,
        devices=devices,
        num_tokens=examples.rows_per_example,
    )
    is_own = "max_seq_length" not in settings.flexible
    length = settings.run.max_seq_length if is_own else None
    start = start_training(settings.start, task, settings.run.seed, check, length)
    dropout = {
        name: share for name in DROPOUT if (share := getattr(settings.run, name)) is not None
    }
    return dataclasses.replace(start, model=dataclasses.replace(start.model, **dropout))


def train(
    run: Run,
    task: TaskType,
    start: Start,
    data: Data,
    devices: Devices,
    state: TrainState,
    predict: Predictor,
    fixed: Mapping[str, object],
) -> engine.TrainingResult:
    """Train, or resume a training; return the engine's result. predict: computes the outputs for
    validations from the weights in `state`. fixed: from `fixed_settings`.
    """
    settings = run.settings
    encoded = data["train"][0].rows
    batches = TrainingData(
        open_batches=functools.partial(training_batches, encoded, seed=settings.run.seed),
        num_records=len(encoded),
        max_seq_length=encoded.max_seq_length,
        length_axes=LENGTH_AXES,
        rows_per_example=encoded.rows_per_example,
    )
    make_step = functools.partial(
        TrainStep,
        devices,
        state,
        task_objective(training_encoder(start.encoder, settings.memory, devices), task),
        settings.optimizer.keeping_rows(start.model.first_position),
        seed=settings.run.seed,
        length_axes=batches.length_axes,
    )
    plan = engine.plan_run(run, batches, devices, make_step)
    if not run.is_done(plan):
        step = make_step(num_micro_batches=plan.num_micro_batches, is_ramped=plan.is_ramped)
        defaults = "defaults", describe_fitted(settings, start, len(encoded))
        engine.print_summary(run, step, plan, batches, [*describe(task, start, data), defaults])
        hashes = dict(init_checkpoint=fixed["init_checkpoint"], vocabulary=start.tokenizer.identity)
        has_dev = "eval" in data
        validate = functools.partial(validation, run, task, data, predict) if has_dev else None
        export = functools.partial(write_model, run, task, start, data)
        with run.begin(
            step, plan, fixed=fixed, hashes=hashes, find_results=results.find_results
        ) as log:
            loop = Loop(step, batches, plan, run, log, validate=validate, export=export)
            loop.run()
            run.finish(state, export)
    return run.result()


def validation(
    run: Run,
    task: TaskType,
    data: Data,
    predict: Predictor,
    until_stopped: Stop,
) -> Metrics:
    """Return the metrics of the dev files, for a validation during the training: Loop's
    `validate`.
    """
    evaluated = evaluations(run, data, predict, "eval", until_stopped)
    return merge_dev_metrics({one.stem: judge(task, one) for one in evaluated})


def with_best_metric(
    settings: FinetuneSettings, task: TaskType, dev: Sequence[Loaded]
) -> FinetuneSettings:
    """Return the settings; where --best_metric is "loss", its default, and the task has no loss, as
    squad, it becomes the first of the task's metrics. Raises UserError when it is none of the
    metrics of the dev files.
    """
    names = task.metric_names
    if settings.ending.best_metric == "loss" and "loss" not in names:
        ending = dataclasses.replace(settings.ending, best_metric=names[0])
        settings = dataclasses.replace(settings, ending=ending)
    if dev:
        reported: dict[str, Metrics] = {one.source.stem: dict.fromkeys(names, 0.0) for one in dev}
        settings.ending.criterion(merge_dev_metrics(reported))
    return settings


def fixed_settings(
    settings: FinetuneSettings,
    task: TaskType,
    devices: Devices,
    start: Start,
    data: Data,
) -> dict[str, object]:
    """Return {name: value} of the settings that may not change in a resumed run."""
    spec = task.spec
    examples, rows = data["train"][0]
    return (
        start.model.to_dict()
        | engine.fixed_settings(settings, devices.precision)
        | dict(
            task_name=spec.name,
            task_kind=spec.kind,
            text_a=spec.text_a,
            text_b=examples.text_b,
            label=spec.label,
            labels=list(task.labels),
            label_smoothing=settings.run.label_smoothing,
            class_weights=settings.run.class_weights,
            padding=settings.run.padding,
            training_data=examples.describe(),
            init_checkpoint=weights_hash(start.weights),  # the content counts, not the path
            vocabulary=start.tokenizer.identity[:12],
            max_seq_length=rows.max_seq_length,
            seed=settings.run.seed,
        )
        | task.stored
        | dict(positive_label=task.positive_label)
    )


def write_model(
    run: Run, task: TaskType, start: Start, data: Data, path: str, state: TrainState, step: int
) -> None:
    """Write the model that a training has reached after `step` steps to the folder `path`."""
    examples, rows = data["train"][0]
    files = write_notes(task, examples.text_b is not None, rows.max_seq_length)
    card = facts_while_training(run.folder.path, step, run.console.warn)
    notes = models.Notes(
        [],
        [],
        task.architecture,
        task.labels,
        task.config_name,
        max_seq_length=rows.max_seq_length if task.takes_whole_texts else None,
        embedding=task.embedding.trained_from(start.embedding),
        long_texts=task.long_texts,
    )
    model = models.Model(start.model, state.read_weights(), notes, start.tokenizer, card)
    models.write_own(model, path, files)
