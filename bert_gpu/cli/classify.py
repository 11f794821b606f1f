"""run_classifier.py: BERT -> a classifier of texts or pairs of texts."""

import dataclasses
import hashlib
import os

import numpy as np

from bert_gpu.cli import flags, runs
from bert_gpu.finetune import classifier, results, tasks
from bert_gpu.finetune.config import ClassifyConfig, StartConfig
from bert_gpu.finetune.metrics import compute_metrics
from bert_gpu.finetune.start import check_fits, start_trained, start_training
from bert_gpu.interop import huggingface
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.recipes import RecipeConfig
from bert_gpu.settings import UserError
from bert_gpu.train import loop
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.checkpoint import RunFolder
from bert_gpu.train.config import BatchConfig, CadenceConfig, DeviceConfig, EndingConfig, MemoryConfig, MonitorConfig
from bert_gpu.train.devices import set_up
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.monitor import Console, check_monitoring
from bert_gpu.train.state import TrainState, copies, frozen_names
from bert_gpu.train.step import TrainStep

SUMMARY = (
    "Fine-tunes a BERT to classify texts or pairs of texts, evaluates it (accuracy, F1, ROC-AUC, loss) and predicts. Files are "
    "DATA_DIR/{train,dev,test}.tsv or .csv with a header line. A run that was stopped goes on when the same command is given again."
)
EXAMPLE = (
    "python run_classifier.py",
    "python run_classifier.py --data_dir=quora --text_a=question1 --text_b=question2 --label=is_duplicate --num_gpus=4",
    "python run_classifier.py --init_checkpoint=bert-base-uncased --learning_rate=3e-5 --num_train_epochs=4",
    "python run_classifier.py --do_predict --output_dir=runs/classify",
)


DEFAULTS = dict(learning_rate=5e-5, num_train_epochs=3.0)  # Google's for classification
DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")  # of the model's settings, which may be others in fine-tuning
FILES = dict(train="train", eval="dev", predict="test")  # which file each phase reads


CLASSES = [
    ClassifyConfig,
    RecipeConfig,
    StartConfig,
    BatchConfig,
    MemoryConfig,
    OptimizerConfig,
    ScheduleConfig,
    CadenceConfig,
    EndingConfig,
    MonitorConfig,
    DeviceConfig,
    flags.CommonConfig,
]


def main(argv):
    defaults = DEFAULTS | dict(data_dir=flags.bundled("examples/pairs"))
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, defaults=defaults, script="classify")
    configs = {kind: parsed.make(kind) for kind in CLASSES}
    config, common, starting = configs[ClassifyConfig], configs[flags.CommonConfig], configs[StartConfig]
    console = Console(common.quiet)
    check_monitoring(configs[MonitorConfig])
    phases = resolve_phases(config)
    if common.show_config:
        chosen = dataclasses.replace(config, **{f"do_{phase}": phase in phases for phase in FILES})
        print(flags.describe(parsed, list((configs | {ClassifyConfig: chosen}).values())))
        return 0

    task = resolve_task(config)
    splits = tasks.read_splits(task, config.data_dir, [FILES[phase] for phase in phases])
    folder, stored = open_folder(config.output_dir, common.overwrite, "train" in phases)
    devices = set_up(configs[DeviceConfig])
    if "train" in phases:
        if os.path.realpath(starting.init_checkpoint) in (os.path.realpath(folder.path), os.path.realpath(folder.model)):
            raise UserError(f"--init_checkpoint={starting.init_checkpoint}: training writes there; name another --output_dir")
        labels = task.labels or tasks.find_labels(splits["train"])
        start = start_training(starting, labels, config.seed)
        rates = {name: rate for name in DROPOUT if (rate := getattr(config, name)) is not None}
        start = dataclasses.replace(start, model=dataclasses.replace(start.model, **rates))
        configs[BatchConfig] = runs.fit_recipe(parsed, configs[BatchConfig], devices.num_replicas, stored)
    else:
        start = start_trained(starting, config.output_dir, parsed.given("init_checkpoint"))
        if not parsed.given("max_seq_length") and start.path == folder.model:
            config = dataclasses.replace(config, max_seq_length=trained_length(folder, stored, config.max_seq_length))
    check_fits(start, splits.values(), config.max_seq_length, devices.precision)
    rows = {split: encode_split(start, examples, config.max_seq_length) for split, examples in splits.items()}
    if "train" in phases:
        fixed = fixed_settings(configs, task, devices, start, splits["train"])
        runs.check_settings(folder, stored, fixed)

    console.say(f"devices: {devices.summary}; precision {devices.precision}; XLA {'on' if devices.xla else 'off'}")
    console.say(f"model: {start.path}; labels: {', '.join(start.labels)}"[:300])
    if start.fresh:
        console.say(f"fresh weights: {', '.join(start.fresh) if len(start.fresh) < 10 else 'all'}")
    for split in rows:
        console.say(describe_rows(rows[split], splits[split]))

    memory, optimizer = (configs[MemoryConfig], configs[OptimizerConfig]) if "train" in phases else (MemoryConfig(), None)
    state = TrainState(devices.strategy, start.weights, optimizer, frozen_names(start.weights, memory.freeze))
    predict = classifier.Predictor(devices, state, start.encoder)
    num_rows = config.eval_batch_size * devices.num_replicas

    def evaluate():
        return compute_metrics(predict(rows["dev"], num_rows), rows["dev"].labels, task.metrics)

    source = start.path
    if "train" in phases:
        validate = evaluate if "eval" in phases else None
        code = train(configs, fixed, folder, stored, devices, start, rows["train"], state, validate, console)
        if code:
            return code
        # A finished run is not trained again, so what is evaluated is what lies in the folder, not what is in memory.
        source = folder.model
        assign_weights(state, huggingface.read_model(source)[1])
    lines = [("", "examples", *task.metrics)]
    if "eval" in phases:
        metrics = evaluate()
        lines.append(("dev", len(rows["dev"]), *metrics.values()))
        results.write_results(config.output_dir, metrics | dict(num_examples=len(rows["dev"]), checkpoint=source))
    if "predict" in phases:
        probabilities = predict(rows["test"], config.predict_batch_size * devices.num_replicas)
        has_labels = rows["test"].labels is not None
        metrics = compute_metrics(probabilities, rows["test"].labels, task.metrics) if has_labels else {}
        lines.append(("test", len(rows["test"]), *metrics.values()))
        results.write_predictions(config.output_dir, splits["test"].ids, start.labels, probabilities)
    console.say(results.table(lines))
    predictions = f"; predictions: {os.path.join(config.output_dir, results.PREDICTIONS)}" if "predict" in phases else ""
    console.say(f"model: {source}{predictions}")
    return 0


def open_folder(output_dir, overwrite, is_training):
    """(RunFolder, content of its run.json or None) for a training or for results alone. Writes nothing."""
    if not is_training:
        folder = RunFolder(output_dir)
        return folder, results.open_results(folder)
    folder, stored = runs.open_run(output_dir, overwrite)
    results.check_run(folder, stored)
    return folder, stored


def resolve_phases(config):
    """The phases to run, in order: those asked for; when none is, all that are not refused and have a file."""
    asked = {phase: getattr(config, f"do_{phase}") for phase in FILES}
    phases = [phase for phase in FILES if asked[phase]]
    if not phases:
        phases = [phase for phase in FILES if asked[phase] is None]
        if "predict" in phases and tasks.find_split(config.data_dir, FILES["predict"]) is None:
            phases.remove("predict")
    if not phases:
        raise UserError("--nodo_train --nodo_eval --nodo_predict: leave nothing to do; drop one of them")
    return phases


def resolve_task(config):
    """The TaskSpec with the columns that the user named."""
    named = {name: getattr(config, name) for name in ("text_a", "text_b", "label") if getattr(config, name) is not None}
    if "text_b" in named:
        named |= dict(text_b=named["text_b"] or None, requires_text_b=bool(named["text_b"]))
    return dataclasses.replace(tasks.TASKS[config.task_name], **named)


def trained_length(folder, stored, default):
    """The --max_seq_length that the run in the folder was trained with, `default` when it does not say."""
    length = stored["settings"].get("max_seq_length", default) if stored else default
    if type(length) is not int or length < 8:
        raise UserError(f"{folder.path}/run.json: max_seq_length={str(length)[:40]} is no length of rows; say it with --max_seq_length")
    return length


def encode_split(start, examples, max_seq_length):
    """The classifier.Rows of Examples, labels as numbers."""
    labels = None if examples.labels is None else tasks.number_labels(examples, start.labels)
    multiple = max_seq_length if start.encoder.fixed_length else classifier.LENGTH_MULTIPLE
    return classifier.encode_rows(start.tokenizer, examples.texts_a, examples.texts_b, labels, max_seq_length, multiple)


def describe_rows(rows, examples):
    kind = "texts" if examples.texts_b is None else "pairs"
    cut = f"; {rows.num_truncated:,} cut to {rows.max_seq_length} tokens" if rows.num_truncated else ""
    return f"data: {examples.path}: {len(rows):,} {kind}, {np.mean(np.diff(rows.splits)):.1f} tokens each{cut}"


def fixed_settings(configs, task, devices, start, examples):
    """{name: value} of what a run in progress may not change; examples are those of training."""
    settings = dict(
        task_name=task.name,
        text_a=task.text_a,
        text_b=None if examples.texts_b is None else task.text_b,
        label=task.label,
        labels=list(start.labels),
        training_data=f"{os.path.basename(examples.path)} {examples.digest[:12]}",
        init_checkpoint=digest_of(start.weights),  # what it held, wherever it lay
        vocabulary=start.tokenizer.identity[:12],
        max_seq_length=configs[ClassifyConfig].max_seq_length,
        freeze=list(configs[MemoryConfig].freeze),
        lr_scaling=configs[BatchConfig].lr_scaling,
        lr_reference_batch_size=configs[BatchConfig].lr_reference_batch_size,
        seed=configs[ClassifyConfig].seed,
        precision=devices.precision,
    )
    return start.model.to_dict() | configs[OptimizerConfig].to_dict() | runs.fixed_schedule(configs[ScheduleConfig]) | settings


def train(configs, fixed, folder, stored, devices, start, rows, state, validate, console):
    """Trains, or goes on, as pretraining does, and leaves model/ in the run's folder. Returns the exit code.

    Args:
      fixed: `fixed_settings`. folder, stored: of `runs.open_run`. rows: classifier.Rows of training.
      state: TrainState that holds the weights of `start`. validate: () -> {name: value}, or None.
    """
    config, schedule, optimizer = configs[ClassifyConfig], configs[ScheduleConfig], configs[OptimizerConfig]
    goal = classifier.classification_objective(training_encoder(start.encoder, configs[MemoryConfig], devices))

    def make_step(plan):
        sizes = dict(num_micro_batches=plan.num_micro_batches, is_ramped=plan.is_ramped, has_lengths=True)
        return TrainStep(devices, state, goal, optimizer, seed=config.seed, **sizes)

    def batches_at(position, batch_size):
        return classifier.training_batches(rows, batch_size=batch_size, position=position, seed=config.seed)

    plan = runs.plan(configs, devices, state, stored, folder, make_step, next(batches_at(0, 8)), config.max_seq_length, console)
    num_steps = num_steps_of(
        configs[CadenceConfig], len(rows), runs.records_of_step(plan, schedule), has_budget=schedule.lr_schedule == "time"
    )
    console.say(plan.describe("GPU" if devices.kind == "GPU" else "replica"))
    console.say(runs.describe_length(num_steps, plan, len(rows), schedule))

    def export(path, weights):
        huggingface.write_model(
            path, start.model, weights, "BertForSequenceClassification", start.labels, runs.tokenizer_files(start.tokenizer)
        )

    step = make_step(plan)
    job = loop.Job(
        step=step,
        place=step.place,
        batches_at=lambda position: batches_at(position, plan.unit_size),
        validate=validate,
        read=state.read,
        assign=state.assign,
        num_steps=num_steps,
        num_records=len(rows),
        plan=plan,
        schedule=schedule,
        export=lambda mark: runs.export_mark(folder, mark, export, state),
    )
    hashes = dict(init_checkpoint=fixed["init_checkpoint"], vocabulary=start.tokenizer.identity)
    content = runs.content(configs, fixed, plan, num_steps, hashes)
    overwrite = configs[flags.CommonConfig].overwrite
    return runs.run_training(
        job, configs, folder, stored, content, state, overwrite=overwrite, devices=devices, export=export, console=console
    )


def digest_of(weights):
    """A short hash of all values, so that a run knows whether the model it started from has changed."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]))
    return digest.hexdigest()[:12]


def assign_weights(state, weights):
    """Puts weights {name: array} on all replicas; optimizer slots stay."""
    for name, variable in state.weights.items():
        for copy in copies(variable):
            copy.assign(weights[name])
