"""run_pretraining_gpu.py: TFRecords -> BERT."""

import os

from bert_gpu.cli import flags, pretrain_start, runs
from bert_gpu.data import pipeline
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import glob_in_folder
from bert_gpu.files import write_json
from bert_gpu.interop import huggingface
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.pretrain.config import PretrainConfig
from bert_gpu.recipes import RecipeConfig
from bert_gpu.settings import UserError
from bert_gpu.train import loop, provenance
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import BatchConfig, CadenceConfig, DeviceConfig, EndingConfig, MemoryConfig, MonitorConfig
from bert_gpu.train.devices import set_up
from bert_gpu.train.evaluation import MeanMetrics
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.monitor import Console, check_monitoring
from bert_gpu.train.state import TrainState, frozen_names
from bert_gpu.train.step import Objective, TrainStep
from bert_gpu.train.throughput import total_peak_flops

SUMMARY = (
    "Pretrains a BERT on TFRecords, on all GPUs of this machine (on the CPU where there is none). The batch size is that of one GPU; "
    "gradients of all GPUs are averaged. A run that was stopped goes on when the same command is given again."
)
EXAMPLE = (
    "python run_pretraining_gpu.py --num_gpus=4",
    "python run_pretraining_gpu.py --input_file='data/*.tfrecord' --model=base --train_batch_size=64 --global_batch_size=1024",
    "python run_pretraining_gpu.py --recipe=crammed --total_training_time=12",
    "python run_pretraining_gpu.py --virtual_replicas=2 --train_batch_size=8 --num_train_steps=100   # rehearse two GPUs on the CPU",
)


NEED_VALIDATION = (
    *("eval_steps", "validation_epochs", "validation_epochs_begin", "validation_epochs_end", "validation_marks"),
    *("export_best", "max_eval_steps"),
)
CLASSES = [
    PretrainConfig,
    RecipeConfig,
    InputConfig,
    BatchConfig,
    MemoryConfig,
    OptimizerConfig,
    ScheduleConfig,
    CadenceConfig,
    EndingConfig,
    MonitorConfig,
    DeviceConfig,
    ModelConfig,
    flags.CommonConfig,
]


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES, script="pretrain")
    configs = {kind: parsed.make(kind) for kind in CLASSES if kind is not ModelConfig}
    config, common, inputs = configs[PretrainConfig], configs[flags.CommonConfig], configs[InputConfig]
    optimizer, schedule = configs[OptimizerConfig], configs[ScheduleConfig]
    console = Console(common.quiet)
    check_monitoring(configs[MonitorConfig])

    if common.show_config and not parsed.given("input_file") and not glob_in_folder(inputs.input_file):
        configs[ModelConfig] = pretrain_start.resolve_model(parsed, config, 0, None, set_up(configs[DeviceConfig]).kind)
        print(f"# {inputs.input_file}: no data there yet; it will decide about vocab_size")
        print(flags.describe(parsed, [configs[kind] for kind in CLASSES]))
        return 0
    dataset = pretrain_start.open_data(parsed, config, inputs, console)
    folder, stored = runs.open_run(config.output_dir, common.overwrite)
    devices = set_up(configs[DeviceConfig])
    configs[BatchConfig] = runs.fit_recipe(parsed, configs[BatchConfig], devices.num_replicas, stored)
    vocab = pretrain_start.vocabulary(config, dataset)
    model = pretrain_start.resolve_model(parsed, config, dataset.max_seq_length, vocab, devices.kind)
    configs[ModelConfig] = model
    encoder = pretrain_start.checked_encoder(inputs, dataset, model, devices)
    if common.show_config:
        print(flags.describe(parsed, [configs[kind] for kind in CLASSES]))
        return 0
    fixed = fixed_settings(configs, devices, dataset)
    if config.do_train is False and not config.do_eval:
        raise UserError("--nodo_train: leaves nothing to do; add --do_eval to evaluate the newest checkpoint")
    if config.do_eval and not config.do_train:
        if stored is not None:
            runs.check_settings(folder, {"settings": {name: stored["settings"].get(name) for name in model.to_dict()}}, model.to_dict())
        return evaluate_only(config, dataset, vocab, devices, encoder, folder, stored, console)
    trained = training_encoder(encoder, configs[MemoryConfig], devices, dataset.max_seq_length, dataset.schema.is_packed)
    runs.check_settings(folder, stored, fixed)
    idle = [name for name in NEED_VALIDATION if parsed.given(name)] if dataset.validation is None else []
    if idle:
        raise UserError(f"--{idle[0]}: the data has no validation records; name some with --eval_input_file, or drop the flag")
    if configs[EndingConfig].early_stop_time is not None and dataset.validation is None:
        problem = "--early_stop_time: the data has no validation records; name some with --eval_input_file"
        if parsed.given("early_stop_time"):
            raise UserError(problem)
        console.warn(f"{problem}. There is no early stop")
    goes_on = stored is not None and folder.newest_progress() is not None
    weights = pretrain_start.initial_weights(config, encoder, dataset, vocab, goes_on, console)
    frozen = frozen_names(weights, configs[MemoryConfig].freeze)
    limits = dict(input_ids=model.vocab_size, masked_lm_ids=model.vocab_size)
    limits |= dict(segment_ids=model.type_vocab_size) if model.type_vocab_size else {}
    readers = {split: dataset.reader(split, vocab, config.seed, limits) for split in ("train", "validation")}
    state = TrainState(devices.strategy, weights, optimizer, frozen)
    goal = objective(trained)

    def make_step(plan):
        sizes = dict(num_micro_batches=plan.num_micro_batches, is_ramped=plan.is_ramped, has_lengths=inputs.padding != "fixed")
        return TrainStep(devices, state, goal, optimizer, seed=config.seed, **sizes)

    def batches_at(position, batch_size):
        return pipeline.training_batches(readers["train"], batch_size=batch_size, position=position, shuffle=inputs.shuffle)

    rows = next(batches_at(0, 8))  # complains early
    plan = runs.plan(configs, devices, state, stored, folder, make_step, rows, dataset.max_seq_length, console)
    num_steps = num_steps_of(
        configs[CadenceConfig], len(dataset.train), runs.records_of_step(plan, schedule), has_budget=schedule.lr_schedule == "time"
    )
    num_validation = 0 if dataset.validation is None else len(dataset.validation)
    console.say(f"devices: {devices.summary}; precision {devices.precision}; XLA {'on' if devices.xla else 'off'}")
    console.say(plan.describe("GPU" if devices.kind == "GPU" else "replica"))
    num_frozen = sum(weights[name].size for name in frozen)
    console.say(
        f"model: {model.num_hidden_layers} layers x {model.hidden_size}, {sum(w.size for w in weights.values()) / 1e6:.1f} M parameters"
        f"{f' ({num_frozen / 1e6:.1f} M frozen)' if frozen else ''}; "
        f"data: {len(dataset.train):,} training and {num_validation:,} validation records of {dataset.max_seq_length} tokens; "
        + runs.describe_length(num_steps, plan, len(dataset.train), schedule)
    )

    def export(path, values):
        kind = "BertForPreTraining" if dataset.schema.has_next_sentence_labels else "BertForMaskedLM"
        huggingface.write_model(path, model, values, kind, files=runs.tokenizer_files(vocab))

    step = make_step(plan)
    job = loop.Job(
        step=step,
        place=step.place,
        batches_at=lambda position: batches_at(position, plan.unit_size),
        validate=None if dataset.validation is None else validation(config, readers["validation"], devices, state, encoder),
        read=state.read,
        assign=state.assign,
        num_steps=num_steps,
        num_records=len(dataset.train),
        plan=plan,
        schedule=schedule,
        export=lambda mark: runs.export_mark(folder, mark, export, state),
        flops=pretrain_start.flops_counter(trained, dataset, frozen),
        peak_flops=total_peak_flops(devices.gpu_names, devices.precision),
    )
    hashes = dict(
        dataset=None if dataset.info is None else provenance.file_hash(os.path.join(dataset.folder, "dataset.json")),
        vocabulary=None if vocab is None else vocab.identity,
    )
    content = runs.content(configs, fixed, plan, num_steps, hashes)
    code = runs.run_training(
        job, configs, folder, stored, content, state, overwrite=common.overwrite, devices=devices, export=export, console=console
    )
    if code == 0:
        console.say(f"model: {folder.model}")
    return code


def fixed_settings(configs, devices, dataset):
    """{name: value} of what a run in progress may not change."""
    config, inputs, batch = configs[PretrainConfig], configs[InputConfig], configs[BatchConfig]
    return (
        configs[ModelConfig].to_dict()
        | configs[OptimizerConfig].to_dict()
        | runs.fixed_schedule(configs[ScheduleConfig])
        | dict(
            seed=config.seed,
            precision=devices.precision,
            shuffle=inputs.shuffle,
            init_checkpoint=config.init_checkpoint and os.path.realpath(config.init_checkpoint),
            padding=inputs.padding,
            freeze=list(configs[MemoryConfig].freeze),
            lr_scaling=batch.lr_scaling,
            lr_reference_batch_size=batch.lr_reference_batch_size,
            training_data=dataset.identity(),
        )
    )


def objective(encoder):
    """The pretraining Objective of an Encoder."""
    return Objective(
        counts=heads.pretraining_counts,
        losses=lambda weights, batch, dtype, seed: heads.pretraining_losses(weights, batch, encoder, dtype=dtype, seed=seed),
    )


def validation(config, reader, devices, state, encoder):
    """() -> {name: mean over the validation records}, with "loss" the sum of the objectives' losses."""
    means = MeanMetrics(devices, state, lambda weights, batch, dtype: heads.pretraining_metrics(weights, batch, encoder, dtype))

    def validate():
        batch_size = config.eval_batch_size * devices.num_replicas
        values = means(pipeline.evaluation_batches(reader, batch_size=batch_size, max_batches=config.max_eval_steps))
        losses = [value for name, value in values.items() if name.endswith("_loss") and value is not None]
        return dict(loss=sum(losses) if losses else None) | values

    return validate


def evaluate_only(config, dataset, vocab, devices, encoder, folder, stored, console):
    """Evaluates the newest checkpoint of the run on the validation records and writes eval_results.json."""
    progress = folder.newest_progress() if stored else None
    if progress is None:
        raise UserError(f"--output_dir={config.output_dir}: holds no checkpoint to evaluate; train first")
    if dataset.validation is None:
        raise UserError("--do_eval: the data has no validation records; name some with --eval_input_file")
    values = folder.restore(progress.step)
    state = TrainState(devices.strategy, {n.removeprefix("weights/"): v for n, v in values.items() if n.startswith("weights/")})
    runs.restore(state, folder, progress)
    reader = dataset.reader("validation", vocab, config.seed)
    results = validation(config, reader, devices, state, encoder)() | dict(step=progress.step)
    write_json(os.path.join(folder.path, "eval_results.json"), results)
    console.say("\n".join(f"  {name:<14}{loop.format_metric(value)}" for name, value in results.items() if name != "step"))
    return 0
