"""What a pretraining starts from: the data and its vocabulary, the model, the first weights."""

import functools
import os
import typing

from bert_gpu.base.errors import UserError
from bert_gpu.data import pipeline
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.old_labels import label_warnings
from bert_gpu.devices.workers import ALONE
from bert_gpu.interop import models
from bert_gpu.model import heads
from bert_gpu.model.config import NOT_IN_WEIGHTS
from bert_gpu.model.encoders import Encoder, open_encoder
from bert_gpu.model.weights import initialize
from bert_gpu.pretrain.config import check_continues, check_data, resolve_model
from bert_gpu.pretrain.objectives.joint import chosen_objectives, open_objective
from bert_gpu.runs import provenance
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.memory import training_encoder
from bert_gpu.train.memory_check import check_size

# Settings that need validation records.
NEED_VALIDATION = (
    *("eval_steps", "validation_epochs", "validation_marks"),
    *("export_best", "max_eval_steps", "early_stop_time", "early_stop_patience", "best_metric"),
)


class Model(typing.NamedTuple):
    """The model of a pretraining. encoder: Encoder. vocab: the data's tokenizer, None = unknown.
    objectives: names of what it is trained for.
    """

    encoder: Encoder
    vocab: typing.Any
    objectives: tuple[str, ...]

    @property
    def config(self):
        return self.encoder.config

    def objective(self, encoder=None):
        """The JointObjective on its Encoder or on another one."""
        return open_objective(self.objectives, encoder or self.encoder, self.vocab)


def open_data(settings, console, workers=ALONE):
    """The Dataset of PretrainSettings, checked against the settings and against their recipe, and
    the same on all workers.
    """
    dataset = Dataset(settings.inputs, console.warn)
    check_data(settings, dataset.num_predictions, dataset.info, console.warn)
    if workers.count > 1:
        workers.check_alike(dataset.describe())
    return dataset


def open_model(run, dataset, devices):
    """The Model of a Run, without weights; UserError when it cannot take the data's rows."""
    settings = run.settings
    vocab = open_vocabulary(settings, dataset)
    run.workers.check_alike(dict(vocabulary=vocab and vocab.identity))
    config = resolve_model(
        settings, dataset.max_seq_length, vocab and vocab.vocab_size, devices.kind, run.run_json
    )
    encoder, padding = open_encoder(config), settings.inputs.padding
    encoder.check(dataset.max_seq_length, devices.precision, is_packed=dataset.schema.is_packed)
    if encoder.fixed_length is not None and padding != "fixed":
        raise UserError(
            "takes rows of one length only",
            f"use --padding=fixed, not --padding={padding}",
            setting="encoder",
            value=config.encoder,
        )
    named = settings.run.train_objective
    if not settings.run.trains and run.run_json is not None:
        named = named or run.run_json["settings"].get("train_objective", ())
    return Model(encoder, vocab, chosen_objectives(named, dataset.schema))


def training_objective(run, dataset, devices, model):
    """The JointObjective of a Model that a Run trains; warns of what labels the data lacks."""
    for warning in label_warnings(dataset, model.vocab):
        run.console.warn(warning)
    rows = (dataset.max_seq_length, dataset.schema.is_packed)
    return model.objective(training_encoder(model.encoder, run.settings.memory, devices, *rows))


def check_resume(run, dataset, model, fixed):
    """UserError when workers, or the run to resume, differ in the fixed settings {name: value}, or
    when the data lacks the validation records that settings need.
    """
    # not the path of the first weights, which are worker 0's on all workers
    run.workers.check_alike(fixed | dict(init_checkpoint=None))
    run.check_resumable(fixed)
    check_validation(run.settings, dataset, model.objective(), run.console)


def check_memory(run, dataset, devices, model):
    """Bytes that the training needs on a device at least, None = unknown; UserError when it is
    certain not to fit.
    """
    settings = run.settings
    return check_size(
        settings,
        model.config,
        lambda config: model.objective(open_encoder(config)).weights(),
        devices,
        dataset.max_seq_length if settings.inputs.padding == "fixed" else 1,
        0 if dataset.validation is None else settings.run.eval_batch_size,
        run.run_json,
    )


def open_records(run, dataset, model):
    """(The TrainingData of a Run, the Reader of its validation records or None)."""
    settings, config = run.settings, model.config
    limits = dict(input_ids=config.vocab_size, masked_lm_ids=config.vocab_size)
    limits |= dict(segment_ids=config.type_vocab_size) if config.type_vocab_size else {}
    open_reader = functools.partial(
        dataset.reader, tokenizer=model.vocab, seed=settings.run.seed, limits=limits
    )
    data = TrainingData(
        open_batches=functools.partial(
            pipeline.training_batches, open_reader("train"), shuffle=settings.inputs.shuffle
        ),
        num_records=len(dataset.train),
        dupe_factor=dataset.dupe_factor,
        max_seq_length=dataset.max_seq_length,
        length_axes={} if settings.inputs.padding == "fixed" else pipeline.LENGTH_AXES,
    )
    return data, None if dataset.validation is None else open_reader("validation")


def hashes(dataset, vocab):
    """{name: hash} of the data and its vocabulary, for run.json."""
    path = os.path.join(dataset.folder, "dataset.json")
    return dict(
        dataset=None if dataset.info is None else provenance.file_hash(path),
        vocabulary=None if vocab is None else vocab.identity,
    )


def check_validation(settings, dataset, objective, console):
    """UserError when the data has no validation records but settings need them (settings of a
    recipe are ignored instead), or when --best_metric is none of the JointObjective's.
    """
    if dataset.validation is not None:
        settings.ending.criterion(dict.fromkeys(objective.validation_metrics, 0.0))
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


def open_vocabulary(settings, dataset):
    """The tokenizer of the data. That of records without dataset.json is --vocab_file (with the
    casing of --init_checkpoint, if any) or that of --init_checkpoint; None without either.
    """
    info, vocab_file = dataset.info, settings.run.vocab_file
    if info is None and settings.run.start is not None:
        folder = models.find_model(settings.run.start, "init_checkpoint")
        if vocab_file is None and models.find_vocabulary(folder) is None:
            return None
        return models.load_tokenizer(folder, vocab_file)
    if info is None:
        return open_tokenizer(vocab_file, True) if vocab_file else None
    path = vocab_file or os.path.join(dataset.folder, info.vocab_file)
    if vocab_file is None and not os.path.exists(path):
        raise UserError(
            f"{dataset.folder}/dataset.json: names the vocabulary "
            f"{info.vocab_file[:60]}, which is missing",
            "put it back, or build the data again",
        )
    tokenizer = open_tokenizer(path, info.do_lower_case)
    if tokenizer.identity != info.tokenizer:
        raise UserError(
            f"not the vocabulary that {dataset.folder} was built with (by its dataset.json)",
            "rebuild the data, or name the right one",
            where=path,
        )
    return tokenizer


def flops_counter(objective, frozen):
    """Function of a batch -> model.flops.Flops of a JointObjective, None when it cannot count them:
    for some encoders, and with frozen weights.
    """
    countable = not frozen and objective.encoder.token_products(0) is not None
    return objective.flops if countable else None


def initial_weights(run, model):
    """Fresh weights of a Model, replaced by those of --init_checkpoint where it has them; a Run
    that is resumed skips that. Says what it takes from there.
    """
    config, vocab, console = model.config, model.vocab, run.console
    start, seed = run.settings.run.start, run.settings.run.seed
    specs = model.objective().weights()
    # asked of the folder on all workers, each of which has an --init_checkpoint of its own
    goes_on = run.run_json is not None and bool(run.folder.steps())
    if start is None or goes_on:
        return initialize(specs, seed)
    source, (stored_config, stored, notes, *_) = models.read_start(start)
    values = config.to_dict()
    check_continues(
        {name: (value, f"--{name}={value}") for name, value in values.items()},
        stored_config,
        source,
    )
    vocabulary = check_same_vocabulary(source, config, vocab, start, console)
    weights = initialize(specs, seed)
    # next sentence prediction reads the first token
    if heads.pooling_of(stored_config, stored) != ("first", config.hidden_size):
        stored = {name: value for name, value in stored.items() if not name.startswith("pooler/")}
    fresh = sorted(set(weights) - set(stored))
    for name in sorted(set(weights) & set(stored)):
        ours, theirs = weights[name], stored[name]
        if ours.shape == theirs.shape:
            weights[name] = theirs
        elif "position" in name and ours.shape[1:] == theirs.shape[1:]:
            shared = min(len(ours), len(theirs))
            ours[:shared] = theirs[:shared]
            fresh += [f"{name} from {shared} on"] if shared < len(ours) else []
        else:
            raise UserError(
                f"its {name} has shape {theirs.shape}, the model's {ours.shape}",
                "give the flags that it was trained with",
                setting="init_checkpoint",
                value=start,
            )
    changed = [
        f"{name}={values[name]} instead of {value}"
        for name, value in stored_config.to_dict().items()
        if name in NOT_IN_WEIGHTS and values[name] != value
    ]
    taken = f"the model of its config.json{''.join(f', {text}' for text in changed)}"
    console.say(
        f"starting from {source}: {taken}; {vocabulary}"
        + (f"; fresh: {', '.join(fresh)}" if fresh else "")
        + (f"; {unused}" if (unused := models.describe_unused(notes)) else "")
    )
    return weights


def check_same_vocabulary(folder, model, vocab, start, console):
    """UserError unless the vocabulary and casing of a model's folder, where it has them, are those
    of the data's tokenizer `vocab`; a casing that no file states gets a warning. Returns what was
    found, for the log.
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
    if models.load_tokenizer(folder, None, vocab.do_lower_case).identity != vocab.identity:
        raise UserError(
            f"its {os.path.basename(path)} is not the vocabulary of the data",
            build,
            setting="init_checkpoint",
            value=start,
        )
    models.check_vocabulary(vocab, model, path)
    return f"vocabulary {os.path.basename(path)} ({models.describe_tokenizer(vocab, folder)})"
