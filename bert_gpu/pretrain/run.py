"""Pretraining: hands data, model, weights and losses to the engine; or evaluates a checkpoint."""

import dataclasses
import os
import time
import typing

from bert_gpu.base.console import LogConsole, format_metric
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import write_json
from bert_gpu.base.run_names import EVAL_RESULTS
from bert_gpu.data import pipeline
from bert_gpu.data.old_labels import label_warnings
from bert_gpu.devices.devices import Devices, join_workers, set_up
from bert_gpu.interop import models
from bert_gpu.model.encoders import Encoder
from bert_gpu.model.weights import column_blocks
from bert_gpu.monitor.metrics_log import check_monitoring
from bert_gpu.monitor.throughput import total_peak_flops
from bert_gpu.pretrain import start
from bert_gpu.pretrain.config import RUN_FIELDS, PretrainSettings, model_name, resolve_model
from bert_gpu.pretrain.objective import LOSSES, pretraining_objective, pretraining_validation
from bert_gpu.runs import provenance
from bert_gpu.runs.card_facts import facts_while_training
from bert_gpu.train import run as engine
from bert_gpu.train.config import fit_sizes
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size
from bert_gpu.train.state import TrainState, frozen_names


def pretrain(settings, console=None, clock=time.monotonic):
    """Pretrains as PretrainSettings say, or resumes a run; see the package's `pretrain`."""
    run = settings.run
    check_monitoring(settings.monitor)
    if run.do_train is False and not run.do_eval:
        raise UserError(
            "leaves nothing to do",
            "add --do_eval to evaluate the newest checkpoint",
            setting="nodo_train",
        )
    trains = bool(run.do_train or not run.do_eval)
    workers = join_workers(settings.devices)
    console = workers.console(console or LogConsole())
    with workers.together():
        engine.check_same_command(workers, settings)
        workers.check_alike(dict(architecture=settings.architecture))
        dataset = start.open_data(settings, console)
        if workers.count > 1:
            workers.check_alike(dataset.describe())
        with engine.open_run(
            run.output_dir, settings.overwrite, trains, RUN_FIELDS, run.start, workers
        ) as (folder, stored):
            act = train if trains else evaluate
            return act(settings, dataset, folder, stored, console, clock)


class Opened(typing.NamedTuple):
    """What the data and the devices decide.

    settings: PretrainSettings with resolved sizes. devices: Devices. vocab: tokenizer, or None.
    encoder: Encoder.
    """

    settings: PretrainSettings
    devices: Devices
    vocab: typing.Any
    encoder: Encoder


def open_model(settings, dataset, stored):
    """The Opened of PretrainSettings. stored: of the engine's `open_run`."""
    devices = set_up(settings.devices)
    settings = dataclasses.replace(
        settings, batch=fit_sizes(settings.batch, settings.flexible, devices.num_replicas, stored)
    )
    vocab = start.open_vocabulary(settings, dataset)
    devices.workers.check_alike(dict(vocabulary=vocab and vocab.identity))
    model = resolve_model(
        settings, dataset.max_seq_length, vocab and vocab.vocab_size, devices.kind, stored
    )
    encoder = start.checked_encoder(settings.inputs, dataset, model, devices)
    return Opened(settings, devices, vocab, encoder)


def train(settings, dataset, folder, stored, console, clock):
    """Trains in a run's folder; returns a TrainingResult. folder, stored: of the engine's
    `open_run`.
    """
    settings, devices, vocab, encoder = open_model(settings, dataset, stored)
    for warning in label_warnings(dataset, vocab):
        console.warn(warning)
    model = encoder.config
    trained = training_encoder(
        encoder, settings.memory, devices, dataset.max_seq_length, dataset.schema.is_packed
    )
    fixed = fixed_settings(settings, model, devices, dataset)
    # not the path of the first weights, which are worker 0's on all workers
    devices.workers.check_alike(fixed | dict(init_checkpoint=None))
    if stored is not None:
        engine.check_settings(
            folder,
            stored,
            fixed | dict(training_data=dataset.identity()),
            RUN_FIELDS,
            settings.recipe,
        )
    start.check_validation(settings, dataset, console)
    least_bytes = check_size(
        settings,
        model,
        None if model.encoder else lambda few: start.weight_specs(few, dataset),
        devices,
        dataset.max_seq_length if settings.inputs.padding == "fixed" else 1,
        0 if dataset.validation is None else settings.run.eval_batch_size,
        stored,
    )
    goes_on = stored is not None and bool(folder.steps())
    weights = start.initial_weights(settings, encoder, dataset, vocab, goes_on, console)
    frozen = frozen_names(weights, settings.memory.freeze)
    readers = start.open_readers(settings, dataset, vocab, model)
    state = TrainState(
        devices.strategy, weights, settings.optimizer, frozen, column_blocks(encoder.weights())
    )

    def batches_at(position, batch_size):
        return pipeline.training_batches(
            readers["train"],
            batch_size=batch_size,
            position=position,
            shuffle=settings.inputs.shuffle,
        )

    def export(path, values, step):
        kind = (
            "BertForPreTraining" if dataset.schema.has_next_sentence_labels else "BertForMaskedLM"
        )
        card = facts_while_training(folder.path, step, console.warn)
        notes = models.Notes([], [], kind, ())
        models.write_own(models.Model(model, values, notes, vocab, card), path)

    validate = None
    if dataset.validation is not None:
        parts = ("mlm", "nsp") if dataset.schema.has_next_sentence_labels else ("mlm",)
        reported = [f"{part}_{name}" for part in parts for name in ("loss", "accuracy")]
        settings.ending.criterion(dict.fromkeys(["loss", *reported], 0.0))  # refuses others
        validate = pretraining_validation(
            settings.run, readers["validation"], devices, state, encoder
        )
    training = engine.Training(
        objective=pretraining_objective(trained),
        seed=settings.run.seed,
        batches_at=batches_at,
        num_records=len(dataset.train),
        dupe_factor=dataset.dupe_factor,
        max_seq_length=dataset.max_seq_length,
        has_lengths=settings.inputs.padding != "fixed",
        validate=validate,
        export=export,
        fixed=fixed,
        hashes=dict(
            dataset=None
            if dataset.info is None
            else provenance.file_hash(os.path.join(dataset.folder, "dataset.json")),
            vocabulary=None if vocab is None else vocab.identity,
        ),
        find_results=lambda folder: [os.path.join(folder, EVAL_RESULTS)],
        about=describe(settings, model, devices.kind, weights, frozen, dataset),
        least_bytes=least_bytes,
        losses=LOSSES,
        flops=start.flops_counter(trained, dataset, frozen),
        peak_flops=total_peak_flops(devices.gpu_names, devices.precision),
    )
    result = engine.train(
        engine.Session(training, settings, folder, stored, devices, state, console, clock)
    )
    if result.signal is None:
        skipped = result.progress.num_skipped_records
        more = f"; {skipped:,} bad records were skipped" if skipped else ""
        console.say(f"model: {folder.model}{more}")
    return result


def fixed_settings(settings, model, devices, dataset):
    """{name: value} of the settings that may not change in a resumed run."""
    start = settings.run.start
    return (
        model.to_dict()
        | engine.fixed_settings(settings, devices.precision)
        | dict(
            seed=settings.run.seed,
            shuffle=settings.inputs.shuffle,
            init_checkpoint=start and os.path.realpath(start),
            padding=settings.inputs.padding,
            training_data=dataset.identity(),
        )
    )


def describe(settings, model, kind, weights, frozen, dataset):
    """Rows on the model and the data, for the log; kind as for `resolve_model`."""
    num_frozen = sum(weights[name].size for name in frozen)
    num_validation = 0 if dataset.validation is None else len(dataset.validation)
    name = f"{named}: " if (named := model_name(settings.run, kind)) else ""
    return (
        (
            "model",
            f"{name}{model.num_hidden_layers} layers x {model.hidden_size}, "
            f"{sum(w.size for w in weights.values()) / 1e6:.1f} M parameters"
            + (f" ({num_frozen / 1e6:.1f} M frozen)" if frozen else ""),
        ),
        (
            "data",
            f"{len(dataset.train):,} training and {num_validation:,} validation records "
            f"of {dataset.max_seq_length} tokens",
        ),
    )


def evaluate(settings, dataset, folder, stored, console, clock):
    """Evaluates the newest checkpoint of the run on the validation records and writes
    eval_results.json; arguments and result are those of `train`. A training may go on meanwhile.
    """
    settings, devices, vocab, encoder = open_model(settings, dataset, stored)
    model = encoder.config
    if stored is not None:
        of_model = {k: v for k, v in stored["settings"].items() if k in model.to_dict()}
        engine.check_settings(
            folder,
            stored | dict(settings=of_model),
            model.to_dict(),
            RUN_FIELDS,
            settings.recipe,
        )
    found = folder.newest_whole(console.warn) if stored else None
    if found is None:
        raise UserError(
            "holds no checkpoint to evaluate",
            "train first",
            setting="output_dir",
            value=settings.run.output_dir,
        )
    if dataset.validation is None:
        raise UserError(
            "the data has no validation records",
            "name some with --eval_input_file",
            setting="do_eval",
        )
    progress, values = found
    state = TrainState(
        devices.strategy,
        {n.removeprefix("weights/"): v for n, v in values.items() if n.startswith("weights/")},
    )
    state.assign(values)
    reader = start.open_readers(settings, dataset, vocab, model)["validation"]
    results = pretraining_validation(settings.run, reader, devices, state, encoder)() | dict(
        step=progress.step
    )
    devices.workers.on_chief(lambda: write_json(os.path.join(folder.path, EVAL_RESULTS), results))
    console.say(
        "\n".join(
            f"  {name:<14}{format_metric(value)}"
            for name, value in results.items()
            if name != "step"
        )
    )
    return engine.TrainingResult(folder, progress)
