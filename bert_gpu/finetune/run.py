"""Fine-tuning: hands task, model and classifier to the engine, then evaluates and predicts."""

import contextlib
import dataclasses
import os
import time
import typing

import numpy as np

from bert_gpu.console import LogConsole
from bert_gpu.finetune import classifier, results, tasks
from bert_gpu.finetune.config import (
    DEFAULT_LENGTH,
    DEFAULT_START,
    FILES,
    FinetuneConfig,
    FinetuneSettings,
    resolve_phases,
    resolve_task,
)
from bert_gpu.finetune.metrics import compute_metrics
from bert_gpu.finetune.start import check_fits, start_trained, start_training
from bert_gpu.interop import models
from bert_gpu.interop.sources import NONE
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.weights import column_blocks
from bert_gpu.settings import Settings, UserError, fields_of, like
from bert_gpu.train import run as engine
from bert_gpu.train.checkpoint import RunFolder
from bert_gpu.train.config import MemoryConfig, fit_sizes
from bert_gpu.train.devices import set_up
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.monitor import check_monitoring
from bert_gpu.train.provenance import weights_hash
from bert_gpu.train.sizes import check_size
from bert_gpu.train.state import TrainState, frozen_names

# settings of the model that fine-tuning may change
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings that have a value in run.json even where the user gave none."""

    max_seq_length: int = like(FinetuneConfig, "max_seq_length")


class Result(typing.NamedTuple):
    """How a fine-tuning ended.

    path: of the model that was evaluated. metrics: {split: {name: value}} of the dev file, and of a
    test file with labels.
    outcome: train.run.Outcome of the training, None without one.
    """

    path: str
    metrics: dict
    outcome: engine.Outcome | None

    @property
    def signal(self):
        """The signal that stopped the training early, or None."""
        return self.outcome and self.outcome.signal


def finetune(settings, console=None, clock=time.monotonic):
    """Fine-tunes, evaluates and predicts as FinetuneSettings say; see the package's `finetune`."""
    console = console or LogConsole()
    check_monitoring(settings.monitor)
    phases, task = resolve_phases(settings.run), resolve_task(settings.run)
    splits = tasks.read_splits(task, settings.run.data_dir, [FILES[phase] for phase in phases])
    init_checkpoint, trains = settings.start.init_checkpoint or DEFAULT_START, "train" in phases
    start = None if init_checkpoint == NONE else init_checkpoint
    with open_folder(settings.run.output_dir, settings.overwrite, trains, start) as opened:
        return run_phases(settings, phases, task, splits, *opened, console, clock)


def run_phases(settings, phases, task, splits, folder, stored, console, clock):
    """Runs `phases` on the Examples of each split; returns a Result. folder, stored: of
    `open_folder`.
    """
    trains = "train" in phases
    devices = set_up(settings.devices)
    settings = dataclasses.replace(
        settings, batch=fit_sizes(settings.batch, settings.flexible, devices.num_replicas, stored)
    )
    start = choose_start(settings, task, splits, folder, stored, devices, trains)
    length = choose_length(settings, start, folder, stored, trains)
    check_fits(start, splits.values(), length, devices.precision)
    encoded = {split: encode_split(start, examples, length) for split, examples in splits.items()}
    fixed = (
        fixed_settings(settings, task, devices, start, splits["train"], length) if trains else None
    )
    if trains:
        engine.check_settings(folder, stored, fixed, RUN_FIELDS)
    announce(console, devices, start, encoded, splits)

    memory, optimizer = (settings.memory, settings.optimizer) if trains else (MemoryConfig(), None)
    state = TrainState(
        devices.strategy,
        start.weights,
        optimizer,
        frozen_names(start.weights, memory.freeze),
        column_blocks(start.encoder.weights()),
    )
    predict = classifier.Predictor(devices, state, start.encoder)

    def evaluate():
        return compute_metrics(
            predict(encoded["dev"], settings.run.eval_batch_size * devices.num_replicas),
            encoded["dev"].labels,
            task.metrics,
        )

    path, outcome = start.path, None
    if trains:
        training = make_training(
            settings,
            fixed,
            devices,
            start,
            encoded["train"],
            evaluate if "eval" in phases else None,
        )
        outcome = engine.train(training, settings, folder, stored, devices, state, console, clock)
        if outcome.signal is not None:
            return Result(folder.model, {}, outcome)
        # Evaluates the exported model, not the one in memory: a finished run is not trained again.
        path = folder.model
        state.assign_weights(models.read_model(path).weights)
    metrics = {}
    if "eval" in phases:
        metrics["dev"] = evaluate()
        results.write_results(
            folder.path, metrics["dev"] | dict(num_examples=len(encoded["dev"]), checkpoint=path)
        )
    if "predict" in phases:
        probabilities = predict(
            encoded["test"], settings.run.predict_batch_size * devices.num_replicas
        )
        has_labels = encoded["test"].labels is not None
        metrics["test"] = (
            compute_metrics(probabilities, encoded["test"].labels, task.metrics)
            if has_labels
            else {}
        )
        results.write_predictions(folder.path, splits["test"].ids, start.labels, probabilities)
    lines = [(split, len(encoded[split]), *values.values()) for split, values in metrics.items()]
    console.say(results.table([("", "examples", *task.metrics), *lines]))
    predictions = (
        f"; predictions: {os.path.join(folder.path, results.PREDICTIONS)}"
        if "predict" in phases
        else ""
    )
    console.say(f"model: {path}{predictions}")
    return Result(path, metrics, outcome)


# of the settings in a run.json
RUN_FIELDS = fields_of(Resolved, *FinetuneSettings.kinds().values(), ModelConfig)


@contextlib.contextmanager
def open_folder(output_dir, overwrite, trains, start):
    """As the engine's `open_run`, for a training or for results alone."""
    if trains:
        with engine.open_run(output_dir, overwrite, fields=RUN_FIELDS, start=start) as (
            folder,
            stored,
        ):
            yield folder, stored
        return
    folder = RunFolder(output_dir)
    stored = results.open_results(folder, RUN_FIELDS)
    if overwrite:
        raise UserError(
            "--overwrite: starts a training anew, and there is none without --do_train; drop the "
            "flag, results are replaced without it"
        )
    yield folder, stored


def choose_start(settings, task, splits, folder, stored, devices, trains):
    """The Start of a training, or of an evaluation of a trained model."""
    if not trains:
        return start_trained(settings.start, folder.path)

    def check(model, specs_of):
        check_size(settings, model, specs_of, devices, 1, settings.run.eval_batch_size, stored)

    labels = task.labels or tasks.find_labels(splits["train"])
    start = start_training(settings.start, labels, settings.run.seed, check)
    dropout = {
        name: share for name in DROPOUT if (share := getattr(settings.run, name)) is not None
    }
    return dataclasses.replace(start, model=dataclasses.replace(start.model, **dropout))


def choose_length(settings, start, folder, stored, trains):
    """Maximum tokens per example: as set, else the length that this folder's model was trained
    with, else DEFAULT_LENGTH.

    Without training, the model's own length wins over a recipe's.
    """
    told = settings.run.max_seq_length
    yields = told is None or "max_seq_length" in settings.flexible
    if trains or not yields or not stored or start.path != folder.model:
        return told or DEFAULT_LENGTH
    return stored["settings"].get("max_seq_length", told or DEFAULT_LENGTH)


def encode_split(start, examples, max_seq_length):
    """The classifier.EncodedExamples of Examples, with labels as indices."""
    labels = None if examples.labels is None else tasks.index_labels(examples, start.labels)
    multiple = max_seq_length if start.encoder.fixed_length else classifier.LENGTH_MULTIPLE
    return classifier.encode_examples(
        start.tokenizer, examples.texts_a, examples.texts_b, labels, max_seq_length, multiple
    )


def announce(console, devices, start, encoded, splits):
    """Logs the devices, the model and the data."""
    console.say(devices.describe())
    console.say(f"model: {start.path}; labels: {', '.join(start.labels)}"[:300])
    if start.fresh:
        console.say(f"fresh weights: {', '.join(start.fresh) if len(start.fresh) < 10 else 'all'}")
    for split, part in encoded.items():
        kind = "texts" if splits[split].texts_b is None else "pairs"
        cut = (
            f"; {part.num_truncated:,} cut to {part.max_seq_length} tokens"
            if part.num_truncated
            else ""
        )
        tokens = np.mean(np.diff(part.splits))
        console.say(
            f"data: {splits[split].path}: {len(part):,} {kind}, {tokens:.1f} tokens each{cut}"
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
            text_a=task.text_a,
            text_b=None if examples.texts_b is None else task.text_b,
            label=task.label,
            labels=list(start.labels),
            training_data=f"{os.path.basename(examples.path)} {examples.digest[:12]}",
            init_checkpoint=weights_hash(start.weights),  # its content, wherever it is
            vocabulary=start.tokenizer.identity[:12],
            max_seq_length=max_seq_length,
            seed=settings.run.seed,
        )
    )


def make_training(settings, fixed, devices, start, encoded, validate):
    """The engine's Training of a classifier on the classifier.EncodedExamples of the train file."""

    def batches_at(position, batch_size):
        return classifier.training_batches(
            encoded, batch_size=batch_size, position=position, seed=settings.run.seed
        )

    def export(path, weights):
        files = models.tokenizer_files(start.tokenizer)
        models.write_model(
            path, start.model, weights, "BertForSequenceClassification", start.labels, files
        )

    return engine.Training(
        objective=classifier.classification_objective(
            training_encoder(start.encoder, settings.memory, devices)
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
        results=(results.RESULTS, results.PREDICTIONS),
    )
