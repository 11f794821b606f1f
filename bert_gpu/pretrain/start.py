"""Opens all that a pretraining starts from: data and vocabulary, model, first weights."""

import functools
import os
import typing
from collections.abc import Callable, Collection

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import fields_of
from bert_gpu.data import pipeline
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.inputs import read_manifests
from bert_gpu.data.mixture import NEVER
from bert_gpu.devices.devices import Devices
from bert_gpu.devices.workers import ALONE, Alone, Workers
from bert_gpu.interop import models, sources
from bert_gpu.model import heads
from bert_gpu.model.config import NOT_IN_WEIGHTS, ModelConfig
from bert_gpu.model.encoders import Encoder, open_encoder
from bert_gpu.model.flops import Flops
from bert_gpu.model.positions import fit_positions
from bert_gpu.model.weights import initialize
from bert_gpu.pretrain.config import (
    PretrainSettings,
    check_continues,
    check_data,
    resolve_model,
)
from bert_gpu.pretrain.objectives.joint import (
    JointObjective,
    open_objective,
    select_objectives,
)
from bert_gpu.runs import provenance
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size
from bert_gpu.train.run import Run

# Settings that need validation records.
NEED_VALIDATION = (
    *("eval_steps", "validation_epochs", "validation_marks"),
    *("export_best", "max_eval_steps", "early_stop_time", "early_stop_patience", "best_metric"),
)


class Model(typing.NamedTuple):
    """The model of a pretraining. vocab: the tokenizer of the data; None = not known. objectives:
    names of the objectives that the model is trained on.
    """

    encoder: Encoder
    vocab: Tokenizer | None
    objectives: tuple[str, ...]

    @property
    def config(self) -> ModelConfig:
        return self.encoder.config

    def objective(self, encoder: Encoder | None = None) -> JointObjective:
        """Return the model's objectives as one JointObjective on `encoder`, or on the model's own
        encoder for None.
        """
        return open_objective(self.objectives, encoder or self.encoder, self.vocab)


def open_data(
    settings: PretrainSettings, console: Console, workers: Workers | Alone = ALONE
) -> Dataset:
    """Return the data set that the settings name. Raises UserError when it contradicts the settings
    or differs between workers; warns when it was not built with the recipe's settings.
    """
    dataset = Dataset(settings.inputs)
    check_data(settings, dataset.num_predictions, dataset.info, console.warn)
    if workers.count > 1:
        workers.check_alike(dataset.describe())
    return dataset


def open_model(run: Run[PretrainSettings], dataset: Dataset, devices: Devices) -> Model:
    """Return the Model of a run, without weights. Raises UserError when the model cannot take the
    rows of the data.
    """
    settings = run.settings
    vocab = open_vocabulary(settings, dataset)
    if vocab is not None and settings.run.start is not None:
        try:
            vocab = models.for_training(
                vocab,
                sources.tokenizer_notes(models.find_model(settings.run.start, "init_checkpoint")),
            )
        except UserError as error:  # --init_checkpoint of a run to resume was removed
            if run.run_json is None:
                raise
            run.console.warn(f"the model gets no settings of that tokenizer: {error}")
    run.workers.check_alike(dict(vocabulary=vocab and vocab.identity))
    config = resolve_model(
        settings,
        dataset.max_seq_length,
        None if vocab is None else vocab.vocab_size,
        devices.kind,
        run.run_json,
    )
    encoder = open_encoder(config)
    padding = settings.inputs.padding
    encoder.check(dataset.max_seq_length, devices.precision, is_packed=dataset.schema.is_packed)
    if encoder.fixed_length is not None and padding != "fixed":
        raise UserError(
            "takes rows of one length only",
            f"use --padding=fixed, not --padding={padding}",
            setting="encoder",
            value=config.encoder,
        )
    names = settings.run.train_objective
    if not settings.run.trains and run.run_json is not None:
        names = names or run.run_json["settings"].get("train_objective", ())
    objectives = select_objectives(names, dataset.schema)
    if "nsp" in objectives and config.model_family != "bert":
        article = "an" if config.model_family == "electra" else "a"
        raise UserError(
            f"{article} {config.model_family} has no head of next sentences",
            "give --train_objective=mlm",
            setting="train_objective",
            value=",".join(objectives),
        )
    return Model(encoder, vocab, objectives)


def training_objective(
    run: Run[PretrainSettings], dataset: Dataset, devices: Devices, model: Model
) -> JointObjective:
    """Return the JointObjective to train, on the encoder with recomputation and attention as
    set.
    """
    rows = (dataset.max_seq_length, dataset.schema.is_packed)
    return model.objective(training_encoder(model.encoder, run.settings.memory, devices, *rows))


def check_resume(
    run: Run[PretrainSettings],
    dataset: Dataset,
    model: Model,
    fixed: dict[str, object],
) -> None:
    """Raise UserError when workers differ in `fixed`, {setting: value} that a resume may not
    change, when the run to resume has other values, or when the data lacks validation records that
    settings need.
    """
    # --init_checkpoint may differ between workers: all take the initial weights of worker 0
    run.workers.check_alike(fixed | dict(init_checkpoint=None))
    run.check_resumable(fixed)
    check_validation(run.settings, dataset, model.objective(), run.console)


def check_memory(
    settings: PretrainSettings, dataset: Dataset, devices: Devices, model: Model
) -> None:
    """Raise UserError when the training is certain not to fit in memory."""
    check_size(
        settings,
        model.config,
        lambda config: model.objective(open_encoder(config)).weights(),
        devices,
        dataset.max_seq_length if settings.inputs.padding == "fixed" else 1,
    )


def open_records(
    run: Run[PretrainSettings], dataset: Dataset, model: Model
) -> tuple[TrainingData, pipeline.Reader | None]:
    """Return (the TrainingData, a Reader of the validation records, None without any)."""
    settings = run.settings
    config = model.config
    limits = dict(input_ids=config.vocab_size, masked_lm_ids=config.vocab_size)
    limits |= dict(segment_ids=config.type_vocab_size) if config.type_vocab_size else {}
    open_reader = functools.partial(
        dataset.reader, tokenizer=model.vocab, seed=settings.run.seed, limits=limits
    )
    if dataset.mixture is not None:
        dataset.mixture.changed = (run.run_json or {}).get("weights_changed", NEVER)
    data = TrainingData(
        open_batches=functools.partial(
            pipeline.training_batches, open_reader("train"), shuffle=settings.inputs.shuffle
        ),
        num_records=len(dataset.train),
        dupe_factor=dataset.dupe_factor(dataset.folder),
        mixture=dataset.mixture,
        max_seq_length=dataset.max_seq_length,
        length_axes={} if settings.inputs.padding == "fixed" else pipeline.LENGTH_AXES,
    )
    return data, None if dataset.validation is None else open_reader("validation")


def hashes(
    run: Run[PretrainSettings], dataset: Dataset, vocab: Tokenizer | None
) -> dict[str, object]:
    """Return {name: hash} of the data and its vocabulary, and of the texts that the model has seen,
    for run.json.
    """
    path = os.path.join(dataset.folder, "dataset.json")
    return dict(
        dataset=None if dataset.info is None else provenance.file_hash(path),
        vocabulary=None if vocab is None else vocab.identity,
        texts=seen_texts(run, dataset),
    )


def seen_texts(run: Run[PretrainSettings], dataset: Dataset) -> list[str]:
    """Return Manifest.text of each text that the run's model sees or, before --init_checkpoint, has
    seen; warn where the validation records are of such a text with other documents held out.
    """
    # a resumed run does not read --init_checkpoint, which may be gone
    before = (
        models.seen_texts(run.settings.run.start)
        if run.run_json is None
        else run.run_json["hashes"].get("texts", [])
    )
    texts = {*before, *(info.text for info in dataset.infos.values() if info and info.text)}
    files = dataset.validation.files if dataset.validation else ()
    for folder, info in read_manifests(file.path for file in files).items():
        if info and any(info.text[:9] == seen[:9] and info.text != seen for seen in texts):
            run.console.warn(
                f"{folder}: the model sees or has seen this text with other documents held out, so "
                "eval_loss is too good; build the data with the --validation_share and "
                "--random_seed of the earlier data"
            )
    return sorted(texts)


def check_validation(
    settings: PretrainSettings, dataset: Dataset, objective: JointObjective, console: Console
) -> None:
    """Raise UserError when the data has no validation records but settings need them (settings of a
    recipe are ignored instead), or when the objective does not report the metric that --best_metric
    names.
    """
    if dataset.validation is not None:
        names = [*objective.validation_metrics, *dataset.validation_parts]
        settings.ending.criterion(dict.fromkeys(names, 0.0))
        return
    values = settings.values()
    defaults = type(settings)().values()
    needed = [name for name in NEED_VALIDATION if values[name] != defaults[name]]
    for name in needed:
        remedy = "name some with --eval_input_file"
        error = UserError(
            "the data has no validation records", f"{remedy}, or drop the flag", setting=name
        )
        if name not in settings.flexible:
            raise error
        if name == "early_stop_time":
            error.remedy = f"{remedy}. Without them there is no early stop"
            console.warn(error)


def open_vocabulary(settings: PretrainSettings, dataset: Dataset) -> Tokenizer | None:
    """Return the tokenizer of the data. For records without dataset.json, return that of
    --vocab_file (with the casing of --init_checkpoint, if that is given) or of --init_checkpoint;
    None without either flag.
    """
    info = dataset.info
    vocab_file = settings.run.vocab_file
    if info is None and settings.run.start is not None:
        folder = models.find_model(settings.run.start, "init_checkpoint")
        if vocab_file is None and models.find_vocabulary(folder) is None:
            return None
        return models.load_tokenizer(folder, vocab_file)
    if info is None:
        return models.load_tokenizer(None, vocab_file) if vocab_file else None
    path = vocab_file or os.path.join(dataset.folder, info.vocab_file)
    if vocab_file is None and not os.path.exists(path):
        raise UserError(
            f"{dataset.folder}/dataset.json: names the vocabulary "
            f"{info.vocab_file[:60]}, which is missing",
            "put it back, or build the data again",
        )
    tokenizer = open_tokenizer(path, info.do_lower_case, info.strip_accents)
    if tokenizer.identity != info.tokenizer:
        raise UserError(
            f"not the vocabulary that {dataset.folder} was built with (by its dataset.json)",
            "rebuild the data, or name the right one",
            where=path,
        )
    return tokenizer


def flops_counter(
    objective: JointObjective, frozen: Collection[str]
) -> Callable[[dict[str, np.ndarray]], Flops] | None:
    """Return a function of a batch that returns the Flops of its step; None where they cannot be
    counted: for some encoders, and with frozen weights.
    """
    countable = not frozen and objective.encoder.token_products(0) is not None
    return objective.flops if countable else None


def initial_weights(run: Run[PretrainSettings], model: Model) -> dict[str, np.ndarray]:
    """Return {name: array} of random weights, replaced by the weights of --init_checkpoint where it
    has them; print the names of those that it lacks. A run that resumes from a checkpoint does not
    read --init_checkpoint.
    """
    config = model.config
    vocab = model.vocab
    console = run.console
    start = run.settings.run.start
    seed = run.settings.run.seed
    specs = model.objective().weights()
    # all workers must call steps() together, even if only some of them have an --init_checkpoint
    is_resumed = run.run_json is not None and bool(run.folder.steps())
    if start is None or is_resumed:
        return initialize(specs, seed)
    source, (source_config, source_weights, notes, *_) = models.read_start(start)
    check_continues(
        {name: (value, f"--{name}={value}") for name, value in config.to_dict().items()},
        source_config,
        source,
    )
    vocabulary = check_same_vocabulary(source, config, vocab, start, console)
    weights = initialize(specs, seed)
    # a pooler that does not read the first token is not taken: next sentence prediction needs that
    if heads.pooling_of(source_config, source_weights) != ("first", config.hidden_size):
        source_weights = {
            name: value for name, value in source_weights.items() if not name.startswith("pooler/")
        }
    fresh = sorted(set(weights) - set(source_weights))
    source_weights, extensions = fit_positions(source_weights, specs, config.first_position)
    for name in sorted(set(weights) & set(source_weights)):
        ours = weights[name]
        theirs = source_weights[name]
        if ours.shape == theirs.shape:
            weights[name] = theirs
        else:
            raise UserError(
                f"its {name} has shape {theirs.shape}, the model's {ours.shape}",
                "give the flags that it was trained with",
                setting="init_checkpoint",
                value=start,
            )
    changed = [
        f"{name}={getattr(config, name)} instead of {getattr(source_config, name)}"
        for name in fields_of(ModelConfig)
        if name in NOT_IN_WEIGHTS and getattr(config, name) != getattr(source_config, name)
    ]
    shape = f"the model of its config.json{''.join(f', {text}' for text in changed)}"
    console.say(
        f"starting from {source}: {shape}; {vocabulary}"
        + "".join(f"; {text}" for text in extensions)
        + (f"; fresh: {', '.join(fresh)}" if fresh else "")
        + (f"; {unused}" if (unused := models.describe_unused(notes)) else "")
        + "; its pooling and prefixes for sentence vectors are left out"
        * bool(notes.embedding.pooling)
    )
    return weights


def check_same_vocabulary(
    folder: str, model: ModelConfig, vocab: Tokenizer | None, start: str, console: Console
) -> str:
    """Raise UserError unless the vocabulary and casing of a model's folder, where it has them, are
    those of the data's tokenizer `vocab`; warn where the casing is only a guess. Return a
    description of the vocabulary, for the log.

    start: the value of --init_checkpoint, for messages.
    """
    path = models.find_vocabulary(folder)
    if vocab is None or path is None:
        return "without a vocabulary to compare with the data's"
    casing = models.find_casing(folder)
    build = "build the data with create_pretraining_data.py and this flag"
    if casing.is_lower != vocab.do_lower_case:
        lowered = "lower-cased" if casing.is_lower else "not lower-cased"
        guess = f" ({casing.guess})" if casing.guess else ""
        error = UserError(
            f"its text was {lowered}, unlike that of the data{guess}",
            build,
            setting="init_checkpoint",
            value=start,
        )
        if not casing.guess:
            raise error
        console.warn(str(error))
    theirs = models.load_tokenizer(folder, None, vocab.do_lower_case, vocab.strip_accents)
    if vocab.identity != theirs.identity:
        raise UserError(
            f"its {os.path.basename(path)} is not the vocabulary of the data",
            build,
            setting="init_checkpoint",
            value=start,
        )
    models.check_vocabulary(vocab, model, path)
    return f"vocabulary {os.path.basename(path)} ({models.describe_tokenizer(vocab, folder)})"
