"""Pretraining, from the settings to the exported model; or the evaluation of a checkpoint."""

import functools
import json
import os
import time
from collections.abc import Callable, Collection, Mapping

import numpy as np

from bert_gpu.base.console import Console, format_metric
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import write_json
from bert_gpu.base.run_names import EVAL_RESULTS
from bert_gpu.data.dataset import Dataset
from bert_gpu.devices.devices import Devices
from bert_gpu.interop import models
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.weights import column_blocks
from bert_gpu.monitor.metrics_log import check_monitoring
from bert_gpu.monitor.throughput import total_peak_flops
from bert_gpu.pretrain import start
from bert_gpu.pretrain.config import RUN_FIELDS, PretrainSettings, model_name
from bert_gpu.pretrain.objectives.joint import named_objectives
from bert_gpu.pretrain.validation import open_validation
from bert_gpu.runs.card_facts import facts_while_training
from bert_gpu.runs.cost import describe_cost
from bert_gpu.train import run as engine
from bert_gpu.train.loop import Loop
from bert_gpu.train.plan import BatchPlan
from bert_gpu.train.state import TrainState, frozen_names
from bert_gpu.train.step import TrainStep


def pretrain(
    settings: PretrainSettings,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> engine.TrainingResult:
    """Pretrain a model, resume a run, or evaluate a checkpoint, as the settings say. A process may
    call this several times.

    Args:
      console: prints messages; None = messages go to Python's logger "bert_gpu". clock: function
        that returns seconds.

    Raises:
      UserError: a setting or a file is wrong. TrainingStopped: the run diverged, stopped early or
        could not save.
    """
    check_monitoring(settings.monitor)
    trains = settings.run.trains
    workers, console = engine.join(settings, console, architecture=settings.architecture)
    opening = engine.open_run(
        settings, RUN_FIELDS, workers, console, clock, settings.run.start, trains
    )
    with workers.barrier_at_exit(), opening as run:
        dataset = start.open_data(settings, console, workers)
        devices = engine.open_devices(run)
        model = start.open_model(run, dataset, devices)
        if not trains:
            return evaluate(run, dataset, devices, model)
        objective = start.training_objective(run, dataset, devices, model)
        fixed = fixed_settings(run.settings, model, devices, dataset)
        start.check_resume(run, dataset, model, fixed)
        start.check_memory(run.settings, dataset, devices, model)
        weights = start.initial_weights(run, model)
        frozen = frozen_names(weights, settings.memory.freeze)
        data, validation_reader = start.open_records(run, dataset, model)
        blocks = column_blocks(model.encoder.weights())
        state = TrainState(devices.strategy, weights, settings.optimizer, frozen, blocks)
        validate = open_validation(
            settings.run,
            validation_reader,
            devices,
            state,
            model.objective(),
            dataset.validation_parts,
            console,
        )
        make_step = functools.partial(
            TrainStep,
            devices,
            state,
            objective,
            settings.optimizer.keeping_rows(model.config.first_position),
            seed=settings.run.seed,
            length_axes=data.length_axes,
        )
        plan = engine.plan_run(run, data, devices, make_step)
        if not run.is_done(plan):
            step = make_step(num_micro_batches=plan.num_micro_batches, is_ramped=plan.is_ramped)
            rows = describe(settings, model.config, devices.kind, weights, frozen, dataset, plan)
            engine.print_summary(run, step, plan, data, rows)
            export = functools.partial(write_model, run, model)
            hashes = start.hashes(run, dataset, model.vocab)
            with run.begin(
                step,
                plan,
                fixed=fixed,
                hashes=hashes,
                losses=model.objectives,
                find_results=find_results,
            ) as log:
                loop = Loop(
                    step,
                    data,
                    plan,
                    run,
                    log,
                    validate=validate,
                    export=export,
                    flops=engine.with_update(start.flops_counter(objective, frozen), step),
                    peak_flops=total_peak_flops(devices.gpu_names, devices.precision),
                )
                loop.run()
                console.say(f"cost: {describe_cost(run.progress.cost())}")
                run.finish(state, export)
        result = run.result()
    if result.signal is None and not (run.run_json or {}).get("dropped"):
        console.say(f"model: {result.folder.model}")
    return result


def find_results(folder: str) -> list[str]:
    """Return the paths of the result files in a run's folder that --overwrite removes as well."""
    return [os.path.join(folder, EVAL_RESULTS)]


def write_model(
    run: engine.Run[PretrainSettings],
    model: start.Model,
    path: str,
    state: TrainState,
    step: int,
) -> None:
    """Write the model, with the weights of `state` after `step` steps, to the folder `path`."""
    notes = models.Notes([], [], model.objective().architecture, ())
    card = facts_while_training(run.folder.path, step, run.console.warn)
    weights = state.read_weights()
    texts = run.content["hashes"]["texts"]
    files = {models.SEEN: json.dumps(dict(texts=texts)).encode()} if texts else {}
    models.write_own(models.Model(model.config, weights, notes, model.vocab, card, files), path)


def fixed_settings(
    settings: PretrainSettings, model: start.Model, devices: Devices, dataset: Dataset
) -> dict[str, object]:
    """Return {setting: value} of the settings that may not change in a resumed run."""
    init_checkpoint = settings.run.start
    return (
        model.config.to_dict()
        | engine.fixed_settings(settings, devices.precision)
        | dict(
            seed=settings.run.seed,
            shuffle=settings.inputs.shuffle,
            init_checkpoint=init_checkpoint and os.path.realpath(init_checkpoint),
            padding=settings.inputs.padding,
            input_weights=settings.inputs.input_weights,
            input_weights_from=settings.inputs.input_weights_from,
            training_data=dataset.identity(),
            train_objective=named_objectives(model.objectives, dataset.schema),
        )
    )


def describe(
    settings: PretrainSettings,
    model: ModelConfig,
    kind: str,
    weights: Mapping[str, np.ndarray],
    frozen: Collection[str],
    dataset: Dataset,
    plan: BatchPlan,
) -> tuple[tuple[str, str], ...]:
    """Return rows (label, text) on the model and the data, printed before the first step. kind: of
    the devices, "GPU" or "CPU".
    """
    num_frozen = sum(weights[name].size for name in frozen)
    num_validation = 0 if dataset.validation is None else len(dataset.validation)
    num_read = (plan.num_steps or 0) * plan.records_of_step
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
        *(dataset.mixture.rows(num_read) if dataset.mixture else ()),
    )


def evaluate(
    run: engine.Run[PretrainSettings], dataset: Dataset, devices: Devices, model: start.Model
) -> engine.TrainingResult:
    """Evaluate the newest checkpoint of a run on the validation records, and write
    eval_results.json. Another process may train the same run meanwhile.
    """
    folder = run.folder
    console = run.console
    config = model.config.to_dict()
    config["train_objective"] = named_objectives(model.objectives, dataset.schema)
    if run.run_json is not None:
        run.check_resumable(run.run_json["settings"] | config)
    checkpoint = folder.newest_whole(console.warn) if run.run_json else None
    if checkpoint is None:
        raise UserError(
            "holds no checkpoint to evaluate",
            "train first",
            setting="output_dir",
            value=run.settings.run.output_dir,
        )
    if dataset.validation is None:
        raise UserError(
            "the data has no validation records",
            "name some with --eval_input_file",
            setting="do_eval",
        )
    progress, values = checkpoint
    state = TrainState(
        devices.strategy,
        {n.removeprefix("weights/"): v for n, v in values.items() if n.startswith("weights/")},
    )
    state.assign(values)
    _, reader = start.open_records(run, dataset, model)
    validate = open_validation(
        run.settings.run,
        reader,
        devices,
        state,
        model.objective(),
        dataset.validation_parts,
        console,
    )
    results = validate() | dict(step=progress.step)  # type: ignore[misc]  # there is a reader
    path = os.path.join(folder.path, EVAL_RESULTS)
    run.workers.on_chief(functools.partial(write_json, path, results))
    console.say(
        "\n".join(
            f"  {name:<13} {format_metric(value)}"
            for name, value in results.items()
            if name != "step"
        )
    )
    return engine.TrainingResult(folder, progress)
