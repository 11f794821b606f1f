"""What a pretraining starts from: the data and its vocabulary, the model, the first weights."""

import os

from bert_gpu.base.errors import UserError
from bert_gpu.data.dataset import Dataset
from bert_gpu.interop import models
from bert_gpu.model import heads
from bert_gpu.model.config import NOT_IN_WEIGHTS
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.flops import FlopsCounter
from bert_gpu.model.weights import initialize
from bert_gpu.pretrain.config import check_continues, check_predictions, recipe_problem
from bert_gpu.text.tokenizers.open import open_tokenizer

# Settings that need validation records.
NEED_VALIDATION = (
    *(
        "eval_steps",
        "validation_epochs",
        "validation_epochs_begin",
        "validation_epochs_end",
        "validation_marks",
    ),
    *("export_best", "max_eval_steps", "early_stop_time", "early_stop_patience", "best_metric"),
)


def open_data(settings, console):
    """The Dataset of PretrainSettings, checked against the settings and against their recipe."""
    dataset = Dataset(settings.inputs, console.warn)
    check_predictions(settings.run, dataset.num_predictions)
    if problem := recipe_problem(settings.recipe, dataset.info):
        console.warn(problem)
    return dataset


def check_validation(settings, dataset, console):
    """UserError when the data has no validation records but settings need them; settings of a
    recipe are ignored instead.
    """
    if dataset.validation is not None:
        return
    values = settings.values()
    defaults = type(settings)().values()
    needed = [name for name in NEED_VALIDATION if values[name] != defaults[name]]
    for name in needed:
        problem = f"--{name}: the data has no validation records; name some with --eval_input_file"
        if name not in settings.flexible:
            raise UserError(f"{problem}, or drop the flag")
    if "early_stop_time" in needed:
        console.warn(
            "--early_stop_time: the data has no validation records; "
            "name some with --eval_input_file. Without them there is no early stop"
        )


def open_vocabulary(settings, dataset):
    """The tokenizer of the data. That of records without dataset.json is --vocab_file or that of
    --init_checkpoint; None without either.
    """
    info, vocab_file = dataset.info, settings.run.vocab_file
    if info is None and settings.run.start is not None:
        return start_vocabulary(settings.run)
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


def start_vocabulary(run):
    """The tokenizer of the model to continue from (PretrainConfig.start), or of --vocab_file with
    its casing; None without either.
    """
    folder = models.find_model(run.start, "init_checkpoint")
    if run.vocab_file is None and models.find_vocabulary(folder) is None:
        return None
    return models.load_tokenizer(folder, run.vocab_file)


def open_readers(settings, dataset, vocab, model):
    """{split: Reader} of "train" and, where there are validation records, "validation"."""
    limits = dict(input_ids=model.vocab_size, masked_lm_ids=model.vocab_size)
    limits |= dict(segment_ids=model.type_vocab_size) if model.type_vocab_size else {}
    splits = ["train"] if dataset.validation is None else ["train", "validation"]
    return {split: dataset.reader(split, vocab, settings.run.seed, limits) for split in splits}


def checked_encoder(inputs, dataset, model, devices):
    """The Encoder of a ModelConfig; UserError when it cannot take the data's rows."""
    encoder = open_encoder(model)
    encoder.check(dataset.max_seq_length, devices.precision, is_packed=dataset.schema.is_packed)
    if encoder.fixed_length is not None and inputs.padding != "fixed":
        raise UserError(
            "takes rows of one length only",
            f"use --padding=fixed, not --padding={inputs.padding}",
            setting="encoder",
            value=model.encoder,
        )
    return encoder


def flops_counter(encoder, dataset, frozen):
    """Function of a batch -> model.flops.Flops, None when it cannot count them: for some encoders,
    and with frozen weights.
    """
    if frozen or encoder.token_products(0) is None:
        return None
    return FlopsCounter(encoder, dataset.schema.has_next_sentence_labels).per_batch


def weight_specs(model, dataset):
    """{name: WeightSpec} of the model of a ModelConfig with the heads that the data needs."""
    return heads.pretraining_weights(open_encoder(model), dataset.schema.has_next_sentence_labels)


def initial_weights(settings, encoder, dataset, vocab, goes_on, console):
    """Fresh weights, replaced by those of --init_checkpoint where it has them; a resumed run skips
    that. Says what it takes from there.
    """
    model, start = encoder.config, settings.run.start
    specs = heads.pretraining_weights(encoder, dataset.schema.has_next_sentence_labels)
    if start is None or goes_on:
        return initialize(specs, settings.run.seed)
    source, (stored_config, stored, notes, *_) = models.read_start(start)
    values = model.to_dict()
    check_continues(
        {name: (value, f"--{name}={value}") for name, value in values.items()},
        stored_config,
        source,
    )
    vocabulary = check_same_vocabulary(source, model, vocab, start, console)
    weights = initialize(specs, settings.run.seed)
    # next sentence prediction reads the first token
    if heads.pooling_of(stored_config, stored) != ("first", model.hidden_size):
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
