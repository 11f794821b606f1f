"""Evaluates a fine-tuned model and predicts with it, in a run or without a training."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping

from bert_gpu.base.console import Console, format_metric
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, fields_of, like
from bert_gpu.devices.devices import Devices
from bert_gpu.devices.workers import Alone, Workers
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FILES, FinetuneConfig, FinetuneSettings, resolve_phases
from bert_gpu.finetune.describe import check_use, describe, warn_of_data
from bert_gpu.finetune.files.examples import Loaded
from bert_gpu.finetune.files.splits import (
    Data,
    EncodedFile,
    read_splits,
    with_data_of_run,
)
from bert_gpu.finetune.notes import TaskNotes
from bert_gpu.finetune.prediction import Predictor, Stop
from bert_gpu.finetune.start import Start, check_fits, find_trained
from bert_gpu.finetune.tasks.interface import Evaluated, RowFormat, TaskType
from bert_gpu.finetune.tasks.opening import open_task
from bert_gpu.model.config import ModelConfig
from bert_gpu.monitor.metrics_log import check_monitoring
from bert_gpu.runs import shared_folder
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.trials import markdown
from bert_gpu.train import run as engine
from bert_gpu.train.start_block import device_rows
from bert_gpu.train.state import ModelState

Run = engine.Run[FinetuneSettings]
Files = dict[str, list[Loaded]]  # {phase: the examples of each file}
Metrics = dict[str, float | None]  # {name: value}, None where it is not defined


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Settings):
    """Settings that have a value in run.json even where the user gave none."""

    max_seq_length: int = like(FinetuneConfig, "max_seq_length")


# {name: field} of the settings that a run.json may have
RUN_FIELDS = fields_of(Resolved, *FinetuneSettings.kinds().values(), ModelConfig)


def evaluate_only(
    settings: FinetuneSettings,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[str, dict[str, Metrics]]:
    """Evaluate and predict with a model that is trained already; return its folder, and {stem of a
    file: metrics}.
    """
    check_monitoring(settings.monitor)
    workers, console = engine.join(settings, console)
    trained = find_trained(settings.start, settings.run.output_dir)
    start = trained.start
    config = with_data_of_run(settings.run, resolve_phases(settings.run), start.path)
    settings = dataclasses.replace(settings, run=config)
    task = open_task(settings, trained.notes)
    check_use(trained, task, console)
    task = dataclasses.replace(task, labels=trained.labels)
    with workers.barrier_at_exit():
        task, files = read_files(task, config, workers)
        with open_results(settings, workers, console, clock) as run:
            devices = engine.open_devices(run)
            task, data = encode(run, task, files, start, devices, trained.notes)
            rows = next(parts[0].rows for parts in data.values())
            workers.check_alike(
                dict(
                    vocabulary=start.tokenizer.identity,
                    labels=task.labels,
                    max_seq_length=rows.max_seq_length,
                )
            )
            warn_of_data(data, console)
            console.block([*device_rows(devices), *describe(task, start, data)])
            state = ModelState(devices.strategy, start.weights)
            predict = Predictor(devices, state, start.encoder, task)
            is_own = start.path == run.folder.model
            record = run.run_json or {}
            is_best = record.get("free", {}).get("export_best")
            step = step_of(run, record.get("exported_step"), is_best) if is_own else None
            return start.path, evaluate(run, task, data, predict, start.path, step)


def read_files(
    task: TaskType, config: FinetuneConfig, workers: Workers | Alone
) -> tuple[TaskType, Files]:
    """Return what files.splits.read_splits returns for all phases of a run, checked to be the same
    for all workers.
    """
    task, files = read_splits(task, config, resolve_phases(config))
    workers.check_alike(
        {
            f"the data to {phase}": " ".join(part.describe() for part in files.get(phase, ()))
            for phase in FILES
        }
    )
    return task, files


def encode(
    run: Run, task: TaskType, files: Files, start: Start, devices: Devices, notes: TaskNotes | None
) -> tuple[TaskType, Data]:
    """Return the task with what settings, its files and its model decide, and its files as encoded
    rows. notes: task.json of a model to evaluate, None for a training.
    """
    settings = run.settings
    holders = settings.run, settings.tokens, settings.start, notes, start.embedding
    first = next(parts[0] for parts in files.values())
    task = task.configured(settings, holders, first, notes is None)
    length = choose_length(settings, task, start, notes)
    check_fits(start, files, length, devices.precision)
    padding = "fixed" if start.encoder.fixed_length else settings.run.padding
    form = RowFormat(start.tokenizer, length, padding, run.folder.path, settings.run.seed)
    return task, {
        phase: [EncodedFile(part, task.encode(part, form)) for part in parts]
        for phase, parts in files.items()
    }


def choose_length(
    settings: FinetuneSettings, task: TaskType, start: Start, notes: TaskNotes | None
) -> int:
    """Return the maximum tokens of a row: the user's value, else the length in the notes of a model
    to evaluate, else an encoder's fixed length, else a recipe's value, else the positions of a
    trained model of texts or, without such a model, the task's length. From the recipe's value on,
    the model's positions are the limit.
    """
    length = settings.run.max_seq_length
    if length is not None and "max_seq_length" not in settings.flexible:
        return length
    if notes is not None and notes.max_seq_length:
        return notes.max_seq_length
    longest = start.model.num_positions
    default = longest if notes and task.takes_whole_texts else task.spec.max_seq_length
    return start.encoder.fixed_length or min(length or default, longest)


def evaluations(
    run: Run,
    data: Data,
    predict: Predictor,
    phase: str,
    until_stopped: Stop = iter,
) -> Iterator[Evaluated]:
    """Yield the model's outputs for each file of a phase, "eval" or "predict"; until_stopped: as
    for Predictor.
    """
    batch_size = run.settings.run.eval_batch_size * predict.num_replicas
    for examples, rows in data.get(phase, ()):
        yield Evaluated(examples, rows, predict(rows, batch_size, until_stopped))


def judge(task: TaskType, evaluated: Evaluated) -> Metrics:
    """Return the metrics of a file by name; {} for a file without labels."""
    return task.judge(evaluated) if evaluated.examples.has_labels else {}


def evaluate(
    run: Run,
    task: TaskType,
    data: Data,
    predict: Predictor,
    path: str,
    step: int | None,
) -> dict[str, Metrics]:
    """Evaluate and predict all files, write the results and print a summary.

    Args:
      path: folder of the model. step: training step of its weights, None where it is not known.

    Returns:
      {stem of a file: metrics}, with {} for a test file without labels.
    """
    workers, console, folder = run.workers, run.console, run.folder.path
    metrics: dict[str, Metrics] = {}
    predicted = []
    lines = [["file", "examples", *task.metric_names]]
    for phase in ("eval", "predict"):
        for one in evaluations(run, data, predict, phase):
            metrics[one.stem] = judge(task, one)
            values = [metrics[one.stem].get(name) for name in task.metric_names]
            lines.append([one.stem, f"{len(one.examples):,}", *map(format_metric, values)])
            if one.examples.has_labels:
                workers.on_chief(functools.partial(task.after_evaluation, folder, one))
            if phase == "predict":
                predicted.append(workers.from_chief(task.write, folder, one))
    if "eval" in data:
        key = result_key(task, data, path, step)
        workers.from_chief(results.write_results, folder, metrics, *key)
    console.say(markdown(lines))
    positive = task.positive_label
    if positive and "f1" in task.metric_names:
        console.say(f"f1 is that of {positive!r}; --positive_label names the other class")
    console.say(f"model: {path}" + "".join(f"; predictions: {one}" for one in predicted))
    return metrics


def result_key(
    task: TaskType, data: Data, path: str, step: int | None
) -> tuple[Files, str, int | None, str | None]:
    """Return what results are of, for results.write_results and read_results."""
    files = {phase: [file.examples for file in parts] for phase, parts in data.items()}
    return files, path, step, task.positive_label


def merge_dev_metrics(metrics: Mapping[str, Metrics]) -> Metrics:
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


def step_of(run: Run, step: int | None, is_best: bool) -> int | None:
    """Return the training step whose weights the model of a run has. step: at which it was
    exported. is_best: whether that was the best checkpoint.
    """
    return (run.workers.from_chief(run.folder.best_step) or step) if is_best else step


@contextlib.contextmanager
def open_results(
    settings: FinetuneSettings,
    workers: Workers | Alone,
    console: Console,
    clock: Callable[[], float],
) -> Iterator[Run]:
    """Yield the run of an evaluation without a training; arguments as for the engine's
    `open_run`.
    """
    output_dir = settings.run.output_dir
    folder = shared_folder.open_folder(output_dir, workers)
    stored = workers.from_chief(results.open_results, RunFolder(output_dir), RUN_FIELDS)
    if settings.overwrite:
        raise UserError(
            "starts a training anew, and there is none without --do_train",
            "drop the flag, results are replaced without it",
            setting="overwrite",
        )
    yield engine.Run(
        settings=settings,
        fields=RUN_FIELDS,
        folder=folder,
        run_json=stored,
        workers=workers,
        console=console,
        clock=clock,
    )
