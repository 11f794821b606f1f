"""Fine-tuning: passes the task, the model and its head to the training engine, then evaluates and
predicts.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.settings import Settings, fields_of, like
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.devices.devices import Devices
from bert_gpu.devices.workers import Alone, Workers
from bert_gpu.finetune import results
from bert_gpu.finetune.config import (
    DEFAULT_START,
    FILES,
    FinetuneConfig,
    FinetuneSettings,
    check_settings,
    first_set,
    resolve_phases,
    resolve_task,
)
from bert_gpu.finetune.files.encoded import LENGTH_AXES, EncodedExamples, training_batches
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.files.splits import (
    describe_overlap,
    read_splits,
    standard_input_spooled,
    with_data_of_run,
)
from bert_gpu.finetune.objective import task_objective
from bert_gpu.finetune.prediction import Predictor
from bert_gpu.finetune.start import (
    DROPOUT,
    Start,
    TaskNotes,
    Trained,
    check_fits,
    find_trained,
    is_same_task,
    read_notes,
    start_trained,
    start_training,
    write_notes,
)
from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.heads import CLASSIFIER
from bert_gpu.finetune.tasks.interface import Evaluated, TaskType, open_task_type
from bert_gpu.finetune.tasks.problem_types import ProblemType
from bert_gpu.interop import models
from bert_gpu.interop.sources import NONE
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.weights import column_blocks
from bert_gpu.monitor.metrics_log import check_monitoring
from bert_gpu.runs import shared_folder
from bert_gpu.runs.card_facts import facts_while_training
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.provenance import weights_hash
from bert_gpu.train import run as engine
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.config import MemoryConfig
from bert_gpu.train.loop import Loop
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size
from bert_gpu.train.start_block import device_rows
from bert_gpu.train.state import TrainState, frozen_names
from bert_gpu.train.step import TrainStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings that have a value in run.json even where the user gave none."""

    max_seq_length: int = like(FinetuneConfig, "max_seq_length")


class Result(typing.NamedTuple):
    """The result of a fine-tuning.

    path: folder of the model that was evaluated. metrics: {stem of a file, such as "dev": {name of
    a metric: value}}, with {} for a test file without labels. outcome: the engine's result of the
    training, None without a training.
    """

    path: str
    metrics: dict[str, dict[str, float | None]]
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
    check_monitoring(settings.monitor)
    phases = resolve_phases(settings.run)
    trains = "train" in phases
    workers, console = engine.join(settings, console)
    if workers.count > 1 and STANDARD_INPUT == settings.run.predict_file:
        raise UserError(
            "standard input is that of one worker",
            "write it to a file that all of them see, and name that",
            setting="predict_file",
            value="-",
        )
    trained = None if trains else find_trained(settings.start, settings.run.output_dir)
    notes = None if trained is None else read_notes(trained.path, trained.head, trained.notes)
    if trained is not None:
        run = with_data_of_run(settings.run, phases, trained.path)
        settings = dataclasses.replace(settings, run=run)
        phases = resolve_phases(run)
    task = resolve_task(settings.run, notes)
    task_type = open_task_type(task)
    check_settings(settings, task)
    if trained is not None and notes is not None:
        check_use(trained, notes, task, console)
    init_checkpoint = settings.start.init_checkpoint or DEFAULT_START
    start = None if init_checkpoint == NONE else init_checkpoint
    with workers.barrier_at_exit(), standard_input_spooled(settings.run) as run:
        settings = dataclasses.replace(settings, run=run)
        examples = read_splits(task, run, phases, trained and trained.labels)
        task = examples[phases[-1]][0].task  # reading the files sets task.separator and metrics
        workers.check_alike(data_facts(examples))
        results.check_predictions_file(run, examples.get("predict", ()), task_type.PREDICTED)
        open_run: Callable[..., contextlib.AbstractContextManager[engine.Run]] = (
            engine.open_run if trains else open_results
        )
        with open_run(settings, RUN_FIELDS, workers, console, clock, start) as opened:
            prepared = prepare(opened, task, examples, trained, notes)
            print_start(prepared, console)
            return run_prepared(prepared, reuses_results)


def check_use(trained: Trained, notes: TaskNotes, task: table.TaskSpec, console: Console) -> None:
    """Raise UserError when a fine-tuned model has another head or another kind of task than the
    task to evaluate; warn when its classes have no names.
    """
    head = open_task_type(task).HEAD
    if trained.head is not head:
        raise UserError(
            f"needs a {head.architecture}, and {trained.path} is a {trained.head.architecture}",
            "name another model, or drop the flag",
            setting="task_name",
            value=task.name,
        )
    if notes.task_kind not in (None, task.kind):
        raise UserError(
            f"is {task.kind} here, and {trained.path[:120]} was trained for {notes.task_kind}",
            "drop --task_name and --task_kind, or name another model",
            setting="task_name",
            value=task.name,
        )
    if trained.labels and trained.labels != trained.notes.labels and task.kind != "regression":
        console.warn(
            f"{trained.path[:150]}: its classes have no names, so their numbers stand for them, 0 "
            f"to {len(trained.labels) - 1}; name them in id2label of its config.json"
        )


def run_prepared(prepared: "Prepared", reuses_results: bool) -> Result:
    """Train, evaluate and predict a prepared run; return its result."""
    state = first_state(prepared)
    outcome = None
    predict = Predictor(prepared.devices, state, prepared.start.encoder, prepared.problem_type)
    if prepared.trains:
        outcome = train_task(prepared, state, predict)
        if outcome.signal is not None:
            return Result(prepared.path, {}, outcome)
        if reuses_results and (earlier := earlier_results(prepared, outcome)):
            return Result(prepared.path, earlier, outcome)
        # the exported weights are evaluated: a run that was finished earlier is not trained again,
        # so that its weights are not in memory
        state.assign_weights(
            prepared.run.workers.arrays_from_chief(lambda: models.read_model(prepared.path).weights)
        )
    metrics = evaluate_and_predict(prepared, predict, outcome)
    return Result(prepared.path, metrics, outcome)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """Settings, data and model of a run, read, checked and encoded.

    Attributes:
      run: the engine's run, whose settings have all defaults filled in. length: maximum tokens of a
        row.
      tokens: {field of TokenConfig: value} with which the model is trained and must be used.
      examples, encoded: {phase: list with one entry for each file of the phase}.
      metric_names: names of the metrics, the most important first. fixed: {name: value} of the
        settings that a resumed run may not change; {} without a training.
    """

    run: engine.Run
    task: table.TaskSpec
    task_type: TaskType
    devices: Devices
    start: Start
    problem_type: ProblemType
    length: int
    tokens: dict[str, Any]
    examples: dict[str, list[Loaded]]
    encoded: dict[str, list[EncodedExamples]]
    metric_names: tuple[str, ...]
    fixed: dict[str, Any]

    @property
    def settings(self) -> FinetuneSettings:
        return typing.cast(FinetuneSettings, self.run.settings)

    @property
    def trains(self) -> bool:
        return bool(self.fixed)

    @property
    def path(self) -> str:
        """The folder of the model that is evaluated: for a training the exported one."""
        return self.run.folder.model if self.trains else self.start.path


def prepare(
    run: engine.Run,
    task: table.TaskSpec,
    examples: dict[str, list[Loaded]],
    trained: Trained | None,
    notes: TaskNotes | None,
) -> Prepared:
    """Read the model, encode the examples and check that settings, model and examples fit together.

    Args:
      examples: {phase: list with the examples of each file}. trained, notes: the model to evaluate
        and its task.json (start.py); both None for a training.
    """
    task_type = open_task_type(task)
    devices = engine.open_devices(run)
    settings = typing.cast(FinetuneSettings, run.settings)
    # the examples of the training file, where there is a training
    first = next(parts[0] for parts in examples.values())
    training_examples = first if trained is None else None
    start = (
        choose_start(run, task, task_type, first, devices)
        if trained is None
        else start_trained(settings.start, trained)
    )
    tokens = {
        name: first_set(
            name, settings.tokens, settings.start, notes, start.embedding, default=default
        )
        for name, default in task_type.defaults(first).items()
    }
    settings = dataclasses.replace(
        settings,
        tokens=dataclasses.replace(
            settings.tokens, **{name: tokens[name] for name in tokens if name != "pooling"}
        ),
        start=dataclasses.replace(
            settings.start, pooling=tokens.get("pooling", settings.start.pooling)
        ),
        run=dataclasses.replace(
            settings.run, positive_label=first_set("positive_label", settings.run, notes)
        ),
    )
    problem_type: Any = task_type.make_problem_type(settings, task, start.labels, training_examples)
    if notes is not None and notes.tag_scheme:
        problem_type = dataclasses.replace(problem_type, tag_scheme=notes.tag_scheme)
    length = choose_length(settings, task, start, notes)
    check_fits(start, list(itertools.chain(*examples.values())), length, devices.precision)
    encoded = {
        phase: [
            task_type.encode(part, problem_type, start, settings, length, run.folder.path)
            for part in parts
        ]
        for phase, parts in examples.items()
    }
    for phase in [*encoded][1:] if trained is None else ():  # the first is the training
        for part, rows in zip(examples[phase], encoded[phase], strict=True):
            part.warnings += describe_overlap(first, part, encoded["train"][0], rows)
    names = task_type.metric_names(task, problem_type, start.labels)
    settings = run.settings = with_best_metric(settings, names)
    fixed: dict[str, Any] = {}
    if trained is None:
        fixed = (
            fixed_settings(settings, task, devices, start, first, length)
            | tokens
            | dict(positive_label=problem_type.positive_label)
        )
        devices.workers.check_alike(fixed)
        run.check_resumable(fixed)
        check_best_metric(settings, names, examples.get("eval", ()))
    else:
        devices.workers.check_alike(
            dict(vocabulary=start.tokenizer.identity, labels=start.labels, max_seq_length=length)
        )
    return Prepared(
        run=run,
        task=task,
        task_type=task_type,
        devices=devices,
        start=start,
        problem_type=problem_type,
        length=length,
        tokens=tokens,
        examples=examples,
        encoded=encoded,
        metric_names=names,
        fixed=fixed,
    )


def with_best_metric(settings: FinetuneSettings, names: Sequence[str]) -> FinetuneSettings:
    """Return the settings; where --best_metric is "loss", its default, and the task has no loss, as
    squad, it becomes the first of `names`, the names of the task's metrics.
    """
    if settings.ending.best_metric != "loss" or "loss" in names:
        return settings
    ending = dataclasses.replace(settings.ending, best_metric=names[0])
    return dataclasses.replace(settings, ending=ending)


def check_best_metric(
    settings: FinetuneSettings, names: Sequence[str], examples: Sequence[Loaded]
) -> None:
    """Raise UserError when --best_metric is none of the metrics that the dev files have. names: of
    the task's metrics. examples: of each dev file.
    """
    if examples:
        reported = {part.source.stem: dict.fromkeys(names, 0.0) for part in examples}
        settings.ending.criterion(merge_dev_metrics(reported))


def print_start(prepared: Prepared, console: Console) -> None:
    """Print warnings of the examples, the labels and fresh weights; without a training, also print
    which model and data are evaluated.
    """
    settings = prepared.settings
    start = prepared.start
    warn_of_examples(prepared.examples, console)
    warn_of_labels(
        settings.run, prepared.task, start, prepared.examples.get("predict", ()), console
    )
    if prepared.trains:
        warn_of_fresh(start, settings.memory.freeze, console)
    else:
        console.block([*device_rows(prepared.devices), *describe(prepared)])


def first_state(prepared: Prepared) -> TrainState:
    """Return the state with the weights that the run starts from."""
    settings = prepared.settings
    start = prepared.start
    memory = settings.memory if prepared.trains else MemoryConfig()
    optimizer = settings.optimizer if prepared.trains else None
    return TrainState(
        prepared.devices.strategy,
        start.weights,
        optimizer,
        frozen_names(start.weights, memory.freeze),
        column_blocks(start.encoder.weights()),
    )


def train_task(prepared: Prepared, state: TrainState, predict: Predictor) -> engine.TrainingResult:
    """Train, or resume a training; return the engine's result. predict: computes the outputs for
    validations from the weights in `state`.
    """
    run = prepared.run
    start = prepared.start
    settings = prepared.settings
    encoded = prepared.encoded["train"][0]
    data = TrainingData(
        open_batches=functools.partial(training_batches, encoded, seed=settings.run.seed),
        num_records=len(encoded),
        max_seq_length=encoded.max_seq_length,
        length_axes=LENGTH_AXES,
        rows_per_example=encoded.rows_per_example,
    )
    encoder = training_encoder(start.encoder, settings.memory, prepared.devices)
    make_step = functools.partial(
        TrainStep,
        prepared.devices,
        state,
        task_objective(encoder, prepared.problem_type),
        settings.optimizer.keeping_rows(start.model.first_position),
        seed=settings.run.seed,
        length_axes=data.length_axes,
    )
    plan = engine.plan_run(run, data, prepared.devices, state, make_step)
    if not run.is_done(plan):
        step = make_step(num_micro_batches=plan.num_micro_batches, is_ramped=plan.is_ramped)
        engine.print_summary(run, step, plan, data, describe(prepared))
        hashes = dict(
            init_checkpoint=prepared.fixed["init_checkpoint"], vocabulary=start.tokenizer.identity
        )
        has_dev = "eval" in prepared.examples
        validate = functools.partial(validation, prepared, predict) if has_dev else None
        export = functools.partial(write_model, prepared)
        with run.begin(
            step, plan, fixed=prepared.fixed, hashes=hashes, find_results=results.find_results
        ) as log:
            loop = Loop(step, data, plan, run, log, validate=validate, export=export)
            loop.run()
            run.finish(loop, export)
    return run.result()


def validation(
    prepared: Prepared, predict: Predictor, until_stopped: Callable[[Iterable[Any]], Iterator[Any]]
) -> dict[str, float | None]:
    """Return {name of a metric: value} of the dev files, for a validation during the training:
    Loop's `validate`.
    """
    evaluated = evaluations(prepared, predict, "eval", until_stopped)
    return merge_dev_metrics({one.stem: judge(prepared, one) for one in evaluated})


def earlier_results(
    prepared: Prepared, outcome: engine.TrainingResult | None
) -> dict[str, dict[str, float | None]] | None:
    """Return the metrics that an earlier call has written for the same trained model and the same
    data, or None.
    """
    return prepared.run.workers.from_chief(
        results.read_results,
        prepared.run.folder.path,
        prepared.examples,
        prepared.path,
        step_of(prepared, outcome),
        prepared.problem_type.positive_label,
    )


def evaluations(
    prepared: Prepared,
    predict: Predictor,
    phase: str,
    until_stopped: Callable[[Iterable[Any]], Iterator[Any]] = iter,
) -> Iterator[Evaluated]:
    """Yield the model's outputs for each file of a phase, "eval" or "predict", as an Evaluated;
    until_stopped: as for Predictor.
    """
    settings = prepared.settings
    parts = prepared.examples.get(phase, ())
    batch_size = settings.run.eval_batch_size * prepared.devices.num_replicas
    for examples, rows in zip(parts, prepared.encoded.get(phase, ()), strict=True):
        yield Evaluated(
            settings=settings,
            examples=examples,
            rows=rows,
            problem_type=prepared.problem_type,
            labels=prepared.start.labels,
            outputs=predict(rows, batch_size, until_stopped),
        )


def judge(prepared: Prepared, evaluated: Evaluated) -> dict[str, float | None]:
    """Return the metrics of a file by name, None for one that is not defined; {} for a file without
    labels.
    """
    if not evaluated.examples.has_labels:
        return {}
    return prepared.task_type.judge(evaluated, prepared.metric_names)


def evaluate_and_predict(
    prepared: Prepared, predict: Predictor, outcome: engine.TrainingResult | None
) -> dict[str, dict[str, float | None]]:
    """Evaluate and predict all files, write the results and print a summary.

    Args:
      outcome: result of the training, None without a training.

    Returns:
      {stem of a file: {name of a metric: value}}, with {} for a test file without labels.
    """
    workers, console = prepared.run.workers, prepared.run.console
    task_type, path = prepared.task_type, prepared.run.folder.path
    metrics: dict[str, dict[str, float | None]] = {}
    predicted = []
    positive = prepared.problem_type.positive_label
    lines: list[tuple[str | float | None, ...]] = [("", "examples", *prepared.metric_names)]
    for phase in ("eval", "predict"):
        for one in evaluations(prepared, predict, phase):
            metrics[one.stem] = judge(prepared, one)
            lines.append((one.stem, len(one.examples), *metrics[one.stem].values()))
            if one.examples.has_labels:
                workers.on_chief(functools.partial(task_type.after_evaluation, path, one))
            if phase == "predict":
                predicted.append(workers.from_chief(task_type.write, path, one))
    if "eval" in prepared.examples:
        content = (metrics, prepared.examples, prepared.path, step_of(prepared, outcome))
        workers.from_chief(results.write_results, path, *content, positive)
    console.say(results.table(lines))
    if positive and "f1" in prepared.metric_names:
        console.say(f"f1 is that of {positive!r}; --positive_label names the other class")
    console.say(f"model: {prepared.path}" + "".join(f"; predictions: {one}" for one in predicted))
    return metrics


def step_of(prepared: Prepared, outcome: engine.TrainingResult | None) -> int | None:
    """Return the training step whose weights the evaluated model has; None where that step is not
    known.
    """
    stored = prepared.run.run_json or {}
    if outcome is None and prepared.path != prepared.run.folder.model:
        return None
    step = stored.get("exported_step") if outcome is None else outcome.progress.step
    free = stored.get("free", {}) if outcome is None else prepared.settings.ending.to_dict()
    if free.get("export_best"):
        return prepared.run.workers.from_chief(prepared.run.folder.best_step) or step
    return step


def data_facts(examples: Mapping[str, Sequence[Loaded]]) -> dict[str, str]:
    """Return {"the data to PHASE": the phase's files by name and content}, which workers compare to
    see that all of them read the same data. examples: {phase: list with the examples of each file}.
    """
    return {
        f"the data to {phase}": " ".join(part.describe() for part in examples.get(phase, ()))
        for phase in FILES
    }


def merge_dev_metrics(metrics: Mapping[str, Mapping[str, float | None]]) -> dict[str, float | None]:
    """Return the metrics of several dev files as one dict. Metrics of the first file keep their
    names; before a name of another file's metric stands the end of the file's name, as in
    mismatched_accuracy of dev_mismatched.
    """
    first, *others = metrics
    more = {
        f"{stem.removeprefix('dev_')}_{name}": value
        for stem in others
        for name, value in metrics[stem].items()
    }
    return {**metrics[first], **more}


# {name: field} of the settings that a run.json may have
RUN_FIELDS = fields_of(Resolved, *FinetuneSettings.kinds().values(), ModelConfig)


@contextlib.contextmanager
def open_results(
    settings: FinetuneSettings,
    fields: dict[str, Any],
    workers: Alone | Workers,
    console: Console,
    clock: Callable[[], float],
    start: str | None = None,
) -> Iterator[engine.Run]:
    """Yield the run of an evaluation without a training. Arguments as for the engine's
    `open_run`.
    """
    output_dir = settings.run.output_dir
    folder = shared_folder.open_folder(output_dir, workers)
    stored = workers.from_chief(results.open_results, RunFolder(output_dir), fields)
    if settings.overwrite:
        raise UserError(
            "starts a training anew, and there is none without --do_train",
            "drop the flag, results are replaced without it",
            setting="overwrite",
        )
    yield engine.Run(
        settings=settings,
        fields=fields,
        folder=folder,
        run_json=stored,
        workers=workers,
        console=console,
        clock=clock,
    )


def choose_start(
    run: engine.Run, task: table.TaskSpec, task_type: TaskType, examples: Loaded, devices: Devices
) -> Start:
    """Return the model that a training on the examples starts from, with the dropout that the
    settings name. Checks that its weights fit into memory before they are made.
    """
    settings = typing.cast(FinetuneSettings, run.settings)
    labels = task_type.find_labels(task, examples)
    check = functools.partial(
        check_size,
        settings,
        devices=devices,
        num_tokens=examples.rows_per_example,
    )
    is_own = "max_seq_length" not in settings.flexible
    length = settings.run.max_seq_length if is_own else None
    start = start_training(
        settings.start,
        labels,
        settings.run.seed,
        check,
        task_type.HEAD,
        length,
        functools.partial(is_same_task, task, labels),
    )
    dropout = {
        name: share for name in DROPOUT if (share := getattr(settings.run, name)) is not None
    }
    return dataclasses.replace(start, model=dataclasses.replace(start.model, **dropout))


def choose_length(
    settings: FinetuneSettings, task: table.TaskSpec, start: Start, notes: TaskNotes | None
) -> int:
    """Return the maximum tokens of a row: the user's value, else the length in the notes of a model
    to evaluate, else an encoder's fixed length, else a recipe's value, else the positions of a
    trained model of texts or, without such a model, the task's length. From the recipe's value on,
    the model's positions are the limit.

    notes: task.json of a model to evaluate, None for a training.
    """
    length = settings.run.max_seq_length
    if length is not None and "max_seq_length" not in settings.flexible:
        return length
    if notes is not None and notes.max_seq_length:
        return notes.max_seq_length
    longest = start.model.num_positions
    default = longest if notes and task.kind in table.TEXT_KINDS else task.max_seq_length
    return start.encoder.fixed_length or min(length or default, longest)


def describe(prepared: Prepared) -> tuple[tuple[str, str], ...]:
    """Return rows (title, text) that describe the model and the data in the log."""
    start = prepared.start
    has_labels = start.labels and prepared.task.kind != "regression"
    labels = f"; labels: {', '.join(start.labels)}" if has_labels else ""
    rows = [("model", f"{start.path}{labels}")]
    notes = prepared.problem_type.notes
    rows += [(name.replace("_", " "), str(value)) for name, value in notes.items()]
    source = None if start.path == NONE else start.path
    rows.append(("vocabulary", models.describe_tokenizer(start.tokenizer, source)))
    if prepared.task_type.HEAD is CLASSIFIER and start.model.pooling == "mean":
        rows.append(("pooling", "mean"))
    if weights := prepared.problem_type.class_weights:
        parts = [f"{label} {x:.4g}" for label, x in zip(start.labels, weights, strict=True)]
        rows.append(("class weights", ", ".join(parts)))
    rows += [("classifier", start.classifier)] * bool(start.classifier)
    if start.unused:
        rows.append(("left over", start.unused))
    rows += [("positions", text) for text in start.extensions]
    if start.fresh:
        names = ", ".join(start.fresh) if len(start.fresh) < 10 else "all"
        rows.append(("fresh weights", names))
    for phase, examples in prepared.examples.items():
        for part, encoded in zip(examples, prepared.encoded[phase], strict=True):
            rows.append(("data", f"{part.path}: {prepared.task_type.describe(part, encoded)}"))
    return tuple(rows)


def warn_of_fresh(start: Start, expressions: Sequence[str], console: Console) -> None:
    """Warn of randomly initialised weights that --freeze keeps from being trained. expressions: the
    values of --freeze.
    """
    fresh = sorted(set(start.fresh) & frozen_names(start.weights, expressions))
    if fresh:
        console.warn(
            f"--freeze={shortened(','.join(expressions))}: {len(fresh)} of these weights are "
            f"fresh, such as {fresh[0]}, and stay as they were initialised; freeze less, or lower "
            "--reinit_layers"
        )


def warn_of_examples(examples: Mapping[str, Sequence[Loaded]], console: Console) -> None:
    """Warn of rows of the files that are left out of the examples, and print the warnings from
    reading the files; a warning that several files share is printed once.
    """
    printed: set[str] = set()
    for part in [part for parts in examples.values() for part in parts]:
        if part.num_skipped:
            console.warn(f"{part.path}: {part.num_skipped:,} {part.why_skipped} are left out")
        for warning in part.warnings:
            if warning not in printed:
                console.warn(f"{part.path}: {warning}")
        printed.update(part.warnings)


def warn_of_labels(
    run: FinetuneConfig,
    task: table.TaskSpec,
    start: Start,
    parts: Sequence[Loaded],
    console: Console,
) -> None:
    """Warn when GLUE's server would not take the predictions, because the model has other labels.
    parts: examples of each file to predict.
    """
    if not results.has_labels_of(task, start.labels) and any(
        results.is_submitted(run, part) for part in parts
    ):
        console.warn(
            f"{start.path[:120]}: its labels ({shortened(', '.join(start.labels))}) are not those "
            f"of {task.name}, so submission/ is left out; predict with a model of this task"
        )


def fixed_settings(
    settings: FinetuneSettings,
    task: table.TaskSpec,
    devices: Devices,
    start: Start,
    examples: Loaded,
    max_seq_length: int,
) -> dict[str, Any]:
    """Return {name: value} of the settings that may not change in a resumed run. examples: the
    training examples.
    """
    return (
        start.model.to_dict()
        | engine.fixed_settings(settings, devices.precision)
        | dict(
            task_name=task.name,
            task_kind=task.kind,
            text_a=task.text_a,
            text_b=examples.text_b,
            label=task.label,
            labels=list(start.labels),
            label_smoothing=settings.run.label_smoothing,
            class_weights=settings.run.class_weights,
            padding=settings.run.padding,
            training_data=examples.describe(),
            init_checkpoint=weights_hash(start.weights),  # the content counts, not the path
            vocabulary=start.tokenizer.identity[:12],
            max_seq_length=max_seq_length,
            seed=settings.run.seed,
        )
    )


def write_model(prepared: Prepared, path: str, state: TrainState, step: int) -> None:
    """Write the model that a training has reached after `step` steps to the folder `path`."""
    start = prepared.start
    problem_type = prepared.problem_type
    has_pairs = prepared.examples["train"][0].text_b is not None
    values = prepared.tokens | problem_type.notes
    files = write_notes(prepared.task, has_pairs, prepared.length, values)
    card = facts_while_training(prepared.run.folder.path, step, prepared.run.console.warn)
    is_cut = prepared.task.kind in table.WHOLE_KINDS
    notes = models.Notes(
        [],
        [],
        problem_type.head.architecture,
        start.labels,
        problem_type.config_name,
        max_seq_length=prepared.length if is_cut else None,
        embedding=problem_type.embedding.trained_from(start.embedding),
    )
    model = models.Model(start.model, state.read_weights(), notes, start.tokenizer, card)
    models.write_own(model, path, files)
