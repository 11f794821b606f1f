"""run_pretraining_gpu.py: TFRecords -> BERT."""

import dataclasses
import os

from bert_gpu.cli import flags, runs
from bert_gpu.data import pipeline
from bert_gpu.data.dataset import Dataset, InputConfig
from bert_gpu.files import write_json
from bert_gpu.finetune.pretrained import find_model, find_vocabulary
from bert_gpu.interop import huggingface
from bert_gpu.model import heads
from bert_gpu.model.config import PRESETS, ModelConfig, preset, read_config
from bert_gpu.model.encoder import initialize
from bert_gpu.optim.optimizers import OptimizerConfig
from bert_gpu.optim.schedules import ScheduleConfig
from bert_gpu.settings import Settings, UserError, setting
from bert_gpu.text.open_tokenizer import open_tokenizer
from bert_gpu.train import loop
from bert_gpu.train.batching import BatchConfig, plan_batch
from bert_gpu.train.devices import DeviceConfig, set_up
from bert_gpu.train.evaluation import MeanMetrics
from bert_gpu.train.monitor import Console
from bert_gpu.train.step import Objective, TrainState, TrainStep

SUMMARY = (
    "Pretrains a BERT on TFRecords, on all GPUs of this machine (on the CPU where there is none). The batch size is that of one GPU; "
    "gradients of all GPUs are averaged. A run that was stopped goes on when the same command is given again."
)
EXAMPLE = (
    "python run_pretraining_gpu.py --num_gpus=4",
    "python run_pretraining_gpu.py --input_file='data/*.tfrecord' --model=base --train_batch_size=64 --global_batch_size=1024",
    "python run_pretraining_gpu.py --virtual_replicas=2 --train_batch_size=8 --num_train_steps=100   # rehearse two GPUs on the CPU",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainConfig(Settings):
    """The run."""

    output_dir: str = setting("runs/pretrain", "Folder of the run: checkpoints, metrics.jsonl, TensorBoard, and model/ at the end.")
    model: str | None = setting(None, "Size of the model. Default: base on GPUs, tiny without one.", choices=tuple(PRESETS))
    bert_config_file: str | None = setting(None, "The model's shape as Google's or Hugging Face's config.json, instead of --model.")
    init_checkpoint: str | None = setting(None, "Start from these weights: a model/ folder of ours or a Hugging Face BERT folder.")
    vocab_file: str | None = setting(None, "Vocabulary of records without dataset.json, copied to model/ and checked against the model.")
    max_predictions_per_seq: int | None = setting(None, "Masked tokens a row that the data must have. Default: what it says.", low=1)
    seed: int = setting(12345, "Seed of weights, order and dropout.", low=0, high=2**62)
    do_train: bool | None = setting(None, "Train. Default: yes, unless only --do_eval is given.")
    do_eval: bool | None = setting(None, "Alone, or with --nodo_train: only evaluate the newest checkpoint on the validation records.")
    eval_batch_size: int = setting(32, "Sequences that one GPU validates at once.", low=1)
    max_eval_steps: int | None = setting(None, "Most batches of one validation. Default: all validation records.", low=1)


CLASSES = [
    PretrainConfig,
    InputConfig,
    BatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    loop.LoopConfig,
    DeviceConfig,
    ModelConfig,
    flags.CommonConfig,
]


def main(argv):
    parsed = flags.parse(argv, SUMMARY, EXAMPLE, CLASSES)
    config, common, inputs = parsed.make(PretrainConfig), parsed.make(flags.CommonConfig), parsed.make(InputConfig)
    optimizer, schedule, loop_config = parsed.make(OptimizerConfig), parsed.make(ScheduleConfig), parsed.make(loop.LoopConfig)
    console = Console(common.quiet)

    dataset = Dataset(inputs, console.warn)
    if dataset.num_predictions != (config.max_predictions_per_seq or dataset.num_predictions):
        flag = f"--max_predictions_per_seq={config.max_predictions_per_seq}"
        raise UserError(f"{flag}: the data has {dataset.num_predictions} a row; drop the flag or build the data anew")
    folder, stored = runs.open_run(config.output_dir, common.overwrite)
    device_config, batch_config = parsed.make(DeviceConfig), parsed.make(BatchConfig)
    devices = set_up(device_config)
    vocab = vocabulary(config, dataset)
    model = resolve_model(parsed, config, dataset, vocab, devices.kind)
    if common.show_config:
        print(flags.describe(parsed, [config, inputs, batch_config, optimizer, schedule, loop_config, device_config, model, common]))
        return 0
    fixed = (
        model.to_dict()
        | optimizer.to_dict()
        | schedule.to_dict()
        | dict(
            seed=config.seed,
            precision=devices.precision,
            shuffle=inputs.shuffle,
            init_checkpoint=config.init_checkpoint,
            padding=inputs.padding,
            lr_scaling=batch_config.lr_scaling,
            lr_reference_batch_size=batch_config.lr_reference_batch_size,
            training_data=dataset.identity(),
        )
    )
    if config.do_train is False and not config.do_eval:
        raise UserError("--nodo_train: leaves nothing to do; add --do_eval to evaluate the newest checkpoint")
    if config.do_eval and not config.do_train:
        if stored is not None:
            runs.check_settings(folder, {"settings": {name: stored["settings"].get(name) for name in model.to_dict()}}, model.to_dict())
        return evaluate_only(config, dataset, vocab, devices, model, folder, stored, console)
    runs.check_settings(folder, stored, fixed)
    plan = plan_batch(batch_config, optimizer.learning_rate, devices.num_replicas, stored)
    if stored and batch_config.global_batch_size not in (None, plan.global_batch_size):
        raise UserError(f"--global_batch_size={batch_config.global_batch_size}: the run in {folder.path} has {plan.global_batch_size}")
    goes_on = stored is not None and folder.newest_progress() is not None
    weights = initial_weights(config, model, dataset, vocab, goes_on, console)
    limits = dict(input_ids=model.vocab_size, masked_lm_ids=model.vocab_size, segment_ids=model.type_vocab_size)
    readers = {split: dataset.reader(split, vocab, config.seed, limits) for split in ("train", "validation")}
    next(pipeline.training_batches(readers["train"], batch_size=plan.global_batch_size, position=0, shuffle=False))  # complains early

    num_steps = loop.num_steps_of(loop_config, len(dataset.train), plan.global_batch_size)
    num_validation = 0 if dataset.validation is None else len(dataset.validation)
    console.say(f"devices: {devices.summary}; precision {devices.precision}; XLA {'on' if devices.xla else 'off'}")
    console.say(plan.describe("GPU" if devices.kind == "GPU" else "replica"))
    console.say(
        f"model: {model.num_hidden_layers} layers x {model.hidden_size}, {sum(w.size for w in weights.values()) / 1e6:.1f} M parameters; "
        f"data: {len(dataset.train):,} training and {num_validation:,} validation records of {dataset.max_seq_length} tokens; "
        f"{num_steps:,} steps = {num_steps * plan.global_batch_size / len(dataset.train):.1f} epochs"
    )
    state = TrainState(devices.strategy, weights)
    job = loop.Job(
        step=TrainStep(devices, state, objective(model), optimizer, num_micro_batches=plan.num_micro_batches, seed=config.seed),
        batches_at=lambda position: pipeline.training_batches(
            readers["train"], batch_size=plan.global_batch_size, position=position, shuffle=inputs.shuffle
        ),
        validate=None if dataset.validation is None else validation(config, readers["validation"], devices, state, model),
        read=state.read,
        num_steps=num_steps,
        global_batch_size=plan.global_batch_size,
        peak_rate=plan.learning_rate,
        schedule=schedule,
    )
    content = dict(
        settings=fixed,
        global_batch_size=plan.global_batch_size,
        learning_rate=plan.learning_rate,
        num_steps=num_steps,
        free=config.to_dict() | inputs.to_dict() | batch_config.to_dict() | loop_config.to_dict() | device_config.to_dict(),
        versions=runs.versions(),
    )
    code = runs.run_training(
        job,
        loop_config,
        folder,
        stored,
        content,
        state,
        overwrite=common.overwrite,
        export=lambda path, trained: huggingface.write_model(
            path,
            model,
            trained,
            "BertForPreTraining" if dataset.schema.has_next_sentence_labels else "BertForMaskedLM",
            files=runs.tokenizer_files(vocab),
        ),
        console=console,
    )
    if code == 0:
        console.say(f"model: {folder.model}")
    return code


def objective(model):
    """The pretraining Objective of a ModelConfig."""
    return Objective(
        counts=heads.pretraining_counts,
        losses=lambda weights, batch, dtype, seed: heads.pretraining_losses(weights, batch, model, dtype=dtype, seed=seed),
    )


def validation(config, reader, devices, state, model):
    """() -> {name: mean over the validation records}, with "loss" the sum of the objectives' losses."""
    means = MeanMetrics(devices, state, lambda weights, batch, dtype: heads.pretraining_metrics(weights, batch, model, dtype))

    def validate():
        batch_size = config.eval_batch_size * devices.num_replicas
        values = means(pipeline.evaluation_batches(reader, batch_size=batch_size, max_batches=config.max_eval_steps))
        return dict(loss=sum(value for name, value in values.items() if name.endswith("_loss"))) | values

    return validate


def vocabulary(config, dataset):
    """The tokenizer of the data, None for foreign records without --vocab_file."""
    info = dataset.info
    if info is None:
        return open_tokenizer(config.vocab_file, True) if config.vocab_file else None
    tokenizer = open_tokenizer(config.vocab_file or os.path.join(dataset.folder, info.vocab_file), info.do_lower_case)
    if tokenizer.identity != info.tokenizer:
        path = config.vocab_file or os.path.join(dataset.folder, info.vocab_file)
        raise UserError(f"{path}: not the vocabulary that {dataset.folder} was built with; rebuild the data, or name the right one")
    return tokenizer


def resolve_model(parsed, config, dataset, vocab, kind):
    """The ModelConfig: a preset or a file, what the data says, and the flags given beside them."""
    overrides = parsed.overrides(ModelConfig)
    if config.model is not None and config.bert_config_file is not None:
        raise UserError(f"--model={config.model} and --bert_config_file={config.bert_config_file}: give one of them")
    data_size = vocab.vocab_size if vocab else None
    if config.bert_config_file is not None:
        base = read_config(config.bert_config_file)
        source = config.bert_config_file
        model = dataclasses.replace(base, **overrides)
    else:
        name = config.model or ("base" if kind == "GPU" else "tiny")
        source = f"--model={name}"
        sizes = {} if data_size is None else dict(vocab_size=data_size)
        if dataset.max_seq_length > ModelConfig().max_position_embeddings:
            sizes["max_position_embeddings"] = dataset.max_seq_length
        model = preset(name, **sizes | overrides)
    if "vocab_size" in overrides:
        source = f"--vocab_size={model.vocab_size}"
    if data_size is not None and model.vocab_size != data_size:
        raise UserError(f"{source}: a vocabulary of {model.vocab_size}, but that of the data has {data_size} pieces; they must be equal")
    if dataset.max_seq_length > model.max_position_embeddings:
        raise UserError(
            f"max_position_embeddings={model.max_position_embeddings}: fewer than the {dataset.max_seq_length} tokens of the data's "
            "rows; raise it, or build the data with a smaller --max_seq_length"
        )
    return model


def initial_weights(config, model, dataset, vocab, goes_on, console):
    """Fresh weights, replaced by those of --init_checkpoint where it has them; a run that goes on has its own."""
    weights = initialize(heads.pretraining_weights(model, dataset.schema.has_next_sentence_labels), config.seed)
    if config.init_checkpoint is None or goes_on:
        return weights
    flag = f"--init_checkpoint={config.init_checkpoint}"
    source = find_model(config.init_checkpoint, "init_checkpoint")
    stored_config, stored, _ = huggingface.read_model(source)
    for name, value in stored_config.to_dict().items():
        # Dropout and the spread of fresh weights may change; more positions are made of fresh ones further down.
        if name not in ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "max_position_embeddings"):
            if value != getattr(model, name):
                raise UserError(f"{flag}: its {name} is {value}, that of the model {getattr(model, name)}; give --{name}={value}")
    vocab_file = find_vocabulary(source)
    if vocab is not None and vocab_file is not None and open_tokenizer(vocab_file, vocab.do_lower_case).vocab != vocab.vocab:
        raise UserError(f"{flag}: {vocab_file} is not the vocabulary of the data; build the data with it")
    positions = stored.pop("embeddings/position", None)
    fresh = sorted(set(weights) - set(stored) - {"embeddings/position"})
    weights |= {name: value for name, value in stored.items() if name in weights}
    if positions is not None:
        shared = min(len(positions), len(weights["embeddings/position"]))
        weights["embeddings/position"][:shared] = positions[:shared]
        fresh += [f"embeddings/position from {shared} on"] if shared < len(weights["embeddings/position"]) else []
    console.say(f"starting from {source}" + (f"; fresh: {', '.join(fresh)}" if fresh else ""))
    return weights


def evaluate_only(config, dataset, vocab, devices, model, folder, stored, console):
    """Evaluates the newest checkpoint of the run on the validation records and writes eval_results.json."""
    progress = folder.newest_progress() if stored else None
    if progress is None:
        raise UserError(f"--output_dir={config.output_dir}: holds no checkpoint to evaluate; train first")
    if dataset.validation is None:
        raise UserError("--do_eval: the data has no validation records; name some with --eval_input_file")
    values = folder.restore(progress.step)
    state = TrainState(devices.strategy, {n.removeprefix("weights/"): v for n, v in values.items() if n.startswith("weights/")})
    runs.restore(state, folder, progress)
    results = validation(config, dataset.reader("validation", vocab, config.seed), devices, state, model)() | dict(step=progress.step)
    write_json(os.path.join(folder.path, "eval_results.json"), results)
    console.say("\n".join(f"  {name:<14}{loop.format_metric(value)}" for name, value in results.items() if name != "step"))
    return 0
