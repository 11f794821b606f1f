"""Fine-tuning: hands task, model and head to the engine, then evaluates and predicts."""

import contextlib
import dataclasses
import time
import typing

from bert_gpu.console import LogConsole
from bert_gpu.finetune import results
from bert_gpu.finetune.config import (
    DEFAULT_START,
    STANDARD_INPUT,
    FinetuneConfig,
    FinetuneSettings,
    resolve_phases,
    resolve_task,
)
from bert_gpu.finetune.encoded import training_batches
from bert_gpu.finetune.objective import task_objective
from bert_gpu.finetune.prediction import Predictor
from bert_gpu.finetune.splits import read_splits, standard_input_spooled, with_data_of_run
from bert_gpu.finetune.start import (
    DROPOUT,
    check_fits,
    find_trained,
    read_notes,
    start_trained,
    start_training,
    write_notes,
)
from bert_gpu.finetune.task_types import open_task_type
from bert_gpu.interop import models
from bert_gpu.interop.sources import NONE
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.weights import column_blocks
from bert_gpu.settings import Settings, UserError, fields_of, like, shortened
from bert_gpu.train import run as engine
from bert_gpu.train import shared_folder
from bert_gpu.train.checkpoint import RunFolder
from bert_gpu.train.config import MemoryConfig, fit_sizes
from bert_gpu.train.devices import join_workers, set_up
from bert_gpu.train.facts import facts_while_training
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size
from bert_gpu.train.monitor import check_monitoring
from bert_gpu.train.provenance import weights_hash
from bert_gpu.train.start_block import device_rows
from bert_gpu.train.state import TrainState, frozen_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings that have a value in run.json even where the user gave none."""

    max_seq_length: int = like(FinetuneConfig, "max_seq_length")


class Result(typing.NamedTuple):
    """How a fine-tuning ended.

    path: of the model that was evaluated. metrics: {stem of a file, such as "dev": {name: value}},
    of a test file without labels {}.
    outcome: train.run.Outcome of the training, None without one.
    """

    path: str
    metrics: dict
    outcome: engine.Outcome | None

    @property
    def signal(self):
        """The signal that stopped the training early, or None."""
        return self.outcome and self.outcome.signal


def finetune(settings, console=None, clock=time.monotonic, reuses_results=False):
    """Fine-tunes, evaluates and predicts as FinetuneSettings say; see the package's `finetune`.

    reuses_results: of a finished training takes the results that it has left for the same data,
      instead of evaluating and predicting again.
    """
    check_monitoring(settings.monitor)
    phases = resolve_phases(settings.run)
    trains = "train" in phases
    workers = join_workers(settings.devices)
    if workers.count > 1 and STANDARD_INPUT == settings.run.predict_file:
        raise UserError(
            "--predict_file=-: standard input is that of one worker; write it to a file that all "
            "of them see, and name that"
        )
    console = workers.console(console or LogConsole())
    trained = None if trains else find_trained(settings.start, settings.run.output_dir)
    notes = None if trains else read_notes(trained.path, trained.head)
    if not trains:
        run = with_data_of_run(settings.run, phases, trained.path)
        settings, phases = dataclasses.replace(settings, run=run), resolve_phases(run)
    task = resolve_task(settings.run, notes)
    task_type = open_task_type(task)
    task_type.check(settings)
    if not trains and trained.head is not task_type.HEAD:
        raise UserError(
            f"--task_name={task.name}: needs a {task_type.HEAD.architecture}, and "
            f"{trained.path} is a {trained.head.architecture}; name another model, or drop the flag"
        )
    init_checkpoint = settings.start.init_checkpoint or DEFAULT_START
    start = None if init_checkpoint == NONE else init_checkpoint
    with workers.together(), standard_input_spooled(settings.run) as run:
        settings = dataclasses.replace(settings, run=run)
        examples = read_splits(task, run, phases)
        results.check_predictions_file(run, examples.get("predict", ()), task_type.PREDICTED)
        with open_folder(run.output_dir, settings.overwrite, trains, start, workers) as opened:
            return run_phases(
                settings, task, examples, trained, notes, *opened, console, clock, reuses_results
            )


def run_phases(
    settings, task, examples, trained, notes, folder, stored, console, clock, reuses_results
):
    """Runs the phases of `examples`, {phase: list of Examples}; returns a Result.

    trained, notes: of the model to evaluate (start.py), None for a training.
    folder, stored: of `open_folder`.
    """
    trains, task_type = trained is None, open_task_type(task)
    devices = set_up(settings.devices)
    workers = devices.workers
    settings = dataclasses.replace(
        settings, batch=fit_sizes(settings.batch, settings.flexible, devices.num_replicas, stored)
    )
    start = (
        choose_start(settings, task, task_type, examples["train"][0], stored, devices)
        if trains
        else start_trained(settings.start, trained)
    )
    first = next(parts[0] for parts in examples.values())  # to train on, where there is a training
    tokens = {
        name: told(name, settings.tokens, notes, default)
        for name, default in task_type.defaults(first).items()
    }
    settings = dataclasses.replace(settings, tokens=dataclasses.replace(settings.tokens, **tokens))
    problem_type = task_type.make_problem_type(
        settings, task, start.labels, first if trains else None
    )
    length = choose_length(settings, task, start, notes)
    every = [part for parts in examples.values() for part in parts]
    check_fits(start, every, length, devices.precision)
    encoded = {
        phase: [
            task_type.encode(part, problem_type, start, settings, length, folder.path)
            for part in parts
        ]
        for phase, parts in examples.items()
    }
    fixed = (
        fixed_settings(settings, task, devices, start, examples["train"][0], length) | tokens
        if trains
        else None
    )
    names = task_type.metric_names(task, problem_type, start.labels)
    if settings.ending.best_metric == "loss" not in names:  # the default, which answers do not have
        ending = dataclasses.replace(settings.ending, best_metric=names[0])
        settings = dataclasses.replace(settings, ending=ending)
    if trains:
        engine.check_settings(folder, stored, fixed, RUN_FIELDS, settings.recipe)
        if "eval" in examples:
            reported = {part.source.stem: dict.fromkeys(names, 0.0) for part in examples["eval"]}
            settings.ending.criterion(joined(reported))  # refuses a --best_metric that there is not
    warn_of_examples(examples, console)
    warn_of_labels(settings.run, task, start, examples.get("predict", ()), console)
    about = describe(start, task_type, examples, encoded)
    if not trains:
        console.block([*device_rows(devices), *about])

    memory, optimizer = (settings.memory, settings.optimizer) if trains else (MemoryConfig(), None)
    frozen = frozen_names(start.weights, memory.freeze)
    warn_of_fresh(start, frozen, memory.freeze, console)
    state = TrainState(
        devices.strategy,
        start.weights,
        optimizer,
        frozen,
        column_blocks(start.encoder.weights()),
    )
    predict = Predictor(devices, state, start.encoder, problem_type)

    def judge(part, rows, outputs):
        return task_type.judge(settings, part, rows, problem_type, start.labels, outputs, names)

    def leave(part, rows, outputs):
        found = (folder.path, settings, part, rows, problem_type, start.labels, outputs)
        workers.on_chief(lambda: task_type.after_evaluation(*found))

    def evaluate(after=lambda *outputs: None):
        """{stem of a dev file: {name: value}}. after: of (examples, rows, outputs) of each."""
        size, found = settings.run.eval_batch_size * devices.num_replicas, {}
        for part, rows in zip(examples["eval"], encoded["eval"], strict=True):
            outputs = predict(rows, size)
            found[part.source.stem] = judge(part, rows, outputs)
            after(part, rows, outputs)
        return found

    path, outcome = start.path, None
    if trains:
        training = make_training(
            settings,
            fixed,
            devices,
            start,
            problem_type,
            encoded["train"][0],
            (lambda: joined(evaluate())) if "eval" in examples else None,
            exporter(
                start,
                problem_type,
                write_notes(task, examples["train"][0].has_pairs, length, tokens),
                lambda step: facts_while_training(folder.path, step, console.warn),
            ),
            about,
        )
        outcome = engine.train(training, settings, folder, stored, devices, state, console, clock)
        if outcome.signal is not None:
            return Result(folder.model, {}, outcome)
        # Evaluates the exported model, not the one in memory: a finished run is not trained again.
        path = folder.model
        step = outcome.progress.step
        if reuses_results:
            where = (folder.path, examples, path, step)
            if found := workers.from_chief(results.read_results, *where):
                return Result(path, found, outcome)
        state.assign_weights(workers.arrays_from_chief(lambda: models.read_model(path).weights))
    metrics, predicted = {}, []
    if "eval" in examples:
        metrics = evaluate(leave)
    for part, rows in zip(examples.get("predict", ()), encoded.get("predict", ()), strict=True):
        outputs = predict(rows, settings.run.predict_batch_size * devices.num_replicas)
        metrics[part.source.stem] = judge(part, rows, outputs) if part.has_labels else {}
        if part.has_labels:
            leave(part, rows, outputs)
        written = (folder.path, settings, part, rows, problem_type, start.labels, outputs)
        predicted.append(workers.from_chief(task_type.write, *written))
    if "eval" in examples:
        if outcome is not None:
            step = outcome.progress.step
        else:  # of the run in this folder, if it is that one's model
            step = (stored or {}).get("exported_step") if path == folder.model else None
        workers.from_chief(results.write_results, folder.path, metrics, examples, path, step)
    sizes = {part.source.stem: len(part) for part in every}
    lines = [(stem, sizes[stem], *values.values()) for stem, values in metrics.items()]
    console.say(results.table([("", "examples", *names), *lines]))
    console.say(f"model: {path}" + "".join(f"; predictions: {where}" for where in predicted))
    return Result(path, metrics, outcome)


def joined(metrics):
    """The metrics of several dev files as one: those of the first, and those of the others under
    the ending of their name (dev_mismatched: mismatched_accuracy).
    """
    first, *others = metrics
    more = {
        f"{stem.removeprefix('dev_')}_{name}": value
        for stem in others
        for name, value in metrics[stem].items()
    }
    return metrics[first] | more


def told(name, config, notes, default):
    """The setting of a config; where it is None, that of a model's TaskNotes, if any, else the
    default.
    """
    values = (getattr(config, name), getattr(notes, name, None), default)
    return next((value for value in values if value is not None), None)


# of the settings in a run.json
RUN_FIELDS = fields_of(Resolved, *FinetuneSettings.kinds().values(), ModelConfig)


@contextlib.contextmanager
def open_folder(output_dir, overwrite, trains, start, workers):
    """As the engine's `open_run`, for a training or for results alone."""
    if trains:
        opened = engine.open_run(
            output_dir, overwrite, fields=RUN_FIELDS, start=start, workers=workers
        )
        with opened as (folder, stored):
            yield folder, stored
        return
    folder = shared_folder.open_folder(output_dir, workers)
    stored = workers.from_chief(results.open_results, RunFolder(output_dir), RUN_FIELDS)
    if overwrite:
        raise UserError(
            "--overwrite: starts a training anew, and there is none without --do_train; drop the "
            "flag, results are replaced without it"
        )
    yield folder, stored


def choose_start(settings, task, task_type, examples, stored, devices):
    """The Start of a training on examples."""

    def check(model, specs_of):
        check_size(settings, model, specs_of, devices, 1, settings.run.eval_batch_size, stored)

    labels = task_type.find_labels(task, examples)
    start = start_training(settings.start, labels, settings.run.seed, check, task_type.HEAD)
    dropout = {
        name: share for name in DROPOUT if (share := getattr(settings.run, name)) is not None
    }
    return dataclasses.replace(start, model=dataclasses.replace(start.model, **dropout))


def choose_length(settings, task, start, notes):
    """Maximum tokens of a row: as set by the user, else the length that a model to evaluate was
    trained with, else a recipe's or the task's, or the model's positions where it has fewer.

    notes: TaskNotes of the model to evaluate, None for a training. The model's own length wins over
    a recipe's.
    """
    told = settings.run.max_seq_length
    if told is not None and "max_seq_length" not in settings.flexible:
        return told
    if notes is not None and notes.max_seq_length:
        return notes.max_seq_length
    longest = start.model.max_position_embeddings
    return start.encoder.fixed_length or min(told or task.max_seq_length, longest)


def describe(start, task_type, examples, encoded):
    """Rows on the model and the data, for the log."""
    labels = f"; labels: {', '.join(start.labels)}" if len(start.labels) > 1 else ""
    rows = [("model", f"{start.path}{labels}"[:300])]
    if start.unused:
        rows.append(("left over", start.unused))
    if start.fresh:
        names = ", ".join(start.fresh) if len(start.fresh) < 10 else "all"
        rows.append(("fresh weights", names))
    for phase, parts in examples.items():
        for part, found in zip(parts, encoded[phase], strict=True):
            rows.append(("data", f"{part.path}: {task_type.describe(part, found)}"))
    return tuple(rows)


def warn_of_fresh(start, frozen, expressions, console):
    """Warns of weights of a Start that --freeze keeps as they were initialised. frozen: names;
    expressions: of --freeze.
    """
    fresh = sorted(set(start.fresh) & frozen)
    if fresh:
        console.warn(
            f"--freeze={shortened(','.join(expressions))}: {len(fresh)} of these weights are "
            f"fresh, such as {fresh[0]}, and stay as they were initialised; freeze less, or lower "
            "--reinit_layers"
        )


def warn_of_examples(examples, console):
    """Warns of what is in the files and no example, and of what the examples warn of: once of
    several files.
    """
    said = set()
    for part in [part for parts in examples.values() for part in parts]:
        if part.num_skipped:
            console.warn(f"{part.path}: {part.num_skipped:,} {part.why_skipped} are left out")
        for warning in part.warnings:
            if warning not in said:
                console.warn(f"{part.path}: {warning}")
        said.update(part.warnings)


def warn_of_labels(run, task, start, parts, console):
    """Warns of predictions that GLUE's server would not take. parts: Examples to predict."""
    if not results.has_labels_of(task, start.labels) and any(
        results.is_submitted(run, part) for part in parts
    ):
        console.warn(
            f"{start.path[:120]}: its labels ({shortened(', '.join(start.labels))}) are not those "
            f"of {task.name}, so submission/ is left out; predict with a model of this task"
        )


def fixed_settings(settings, task, devices, start, examples, max_seq_length):
    """{name: value} of the settings that may not change in a resumed run; examples: the training
    examples.
    """
    return (
        start.model.to_dict()
        | engine.fixed_settings(settings, devices.precision)
        | dict(
            task_name=task.name,
            task_kind=task.kind,
            text_a=task.text_a,
            text_b=task.text_b if examples.has_pairs else None,
            label=task.label,
            labels=list(start.labels),
            label_smoothing=settings.run.label_smoothing,
            class_weights=settings.run.class_weights,
            padding=settings.run.padding,
            training_data=examples.describe(),
            init_checkpoint=weights_hash(start.weights),  # its content, wherever it is
            vocabulary=start.tokenizer.identity[:12],
            max_seq_length=max_seq_length,
            seed=settings.run.seed,
        )
    )


def exporter(start, problem_type, notes, describe):
    """The function of (folder, weights, step) that writes a Start's model.

    problem_type: a ProblemType. notes: {name: bytes} of further files. describe: function of the
    step -> facts for its card.
    """

    def export(path, weights, step):
        task = (problem_type.head.architecture, start.labels, problem_type.config_name)
        said = models.Notes([], [], *task)
        model = models.Model(start.model, weights, said, start.tokenizer, describe(step))
        models.write_own(model, path, notes)

    return export


def make_training(settings, fixed, devices, start, problem_type, encoded, validate, export, about):
    """The engine's Training of a head on the encoded.EncodedExamples of the train file.

    validate, export, about: of the engine's Training.
    """

    def batches_at(position, batch_size):
        return training_batches(
            encoded, batch_size=batch_size, position=position, seed=settings.run.seed
        )

    return engine.Training(
        objective=task_objective(
            training_encoder(start.encoder, settings.memory, devices), problem_type
        ),
        seed=settings.run.seed,
        batches_at=batches_at,
        num_records=len(encoded),
        max_seq_length=encoded.max_seq_length,
        has_lengths=True,
        validate=validate,
        export=export,
        fixed=fixed,
        hashes=dict(init_checkpoint=fixed["init_checkpoint"], vocabulary=start.tokenizer.identity),
        find_results=results.find_results,
        about=about,
    )
