"""What a pretraining starts from: the vocabulary of the data, the shape of the model, the first weights."""

import dataclasses
import os

from bert_gpu.data.dataset import Dataset
from bert_gpu.interop import huggingface
from bert_gpu.interop.pretrained import find_model, find_vocabulary
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig, preset, read_config
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.flops import FlopsCounter
from bert_gpu.model.weights import initialize
from bert_gpu.recipes import differences
from bert_gpu.settings import UserError
from bert_gpu.text.open_tokenizer import open_tokenizer

# Dropout and the spread of fresh weights may change, and so may what is only noted for fine-tuning; more positions are made of fresh ones.
MAY_DIFFER = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
    "max_position_embeddings",
    "pooling",
    "pooler_size",
)


def open_data(parsed, config, inputs, console):
    """The Dataset of an InputConfig, held against what the user asks for, and against what the recipe would have made."""
    with parsed.blaming_recipe():
        dataset = Dataset(inputs, console.warn)
        if dataset.num_predictions != (config.max_predictions_per_seq or dataset.num_predictions):
            flag = f"--max_predictions_per_seq={config.max_predictions_per_seq}"
            raise UserError(f"{flag}: the data has {dataset.num_predictions} a row; drop the flag or build the data anew")
    if parsed.recipe_name is not None and dataset.info is not None:
        odd = differences(parsed.recipe_name, dataset.info.settings)
        if odd:
            console.warn(f"--recipe={parsed.recipe_name}: the data is not what create_pretraining_data.py makes with it: {'; '.join(odd)}")
    return dataset


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


def resolve_model(parsed, config, max_seq_length, vocab, kind):
    """The ModelConfig: a preset or a file, what the data says, and what the user or the recipe sets beside them.

    Args:
      max_seq_length: of the data's rows. vocab: tokenizer of the data, or None. kind: "GPU" or "CPU", which decides about the size.
    """
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
        if max_seq_length > ModelConfig().max_position_embeddings:
            sizes["max_position_embeddings"] = max_seq_length
        model = preset(name, **sizes | overrides)
    if "vocab_size" in overrides:
        source = f"--vocab_size={model.vocab_size}"
    if data_size is not None and model.vocab_size != data_size:
        raise UserError(f"{source}: a vocabulary of {model.vocab_size}, but that of the data has {data_size} pieces; they must be equal")
    if max_seq_length > model.max_position_embeddings:
        raise UserError(
            f"max_position_embeddings={model.max_position_embeddings}: fewer than the {max_seq_length} tokens of the data's "
            "rows; raise it, or build the data with a smaller --max_seq_length"
        )
    return model


def checked_encoder(inputs, dataset, model, devices):
    """The Encoder of a ModelConfig; UserError when it cannot take the data's rows."""
    encoder = open_encoder(model)
    encoder.check(dataset.max_seq_length, devices.precision, is_packed=dataset.schema.is_packed)
    if encoder.fixed_length is not None and inputs.padding != "fixed":
        raise UserError(f"--encoder={model.encoder}: takes rows of one length only; use --padding=fixed, not --padding={inputs.padding}")
    return encoder


def flops_counter(encoder, dataset, frozen):
    """Function of a batch -> model.flops.Flops, None where the products are not known: in some encoders, and with frozen weights."""
    if frozen or encoder.token_products(0) is None:
        return None
    return FlopsCounter(encoder, dataset.schema.has_next_sentence_labels).per_batch


def initial_weights(config, encoder, dataset, vocab, goes_on, console):
    """Fresh weights, replaced by those of --init_checkpoint where it has them; a run that goes on has its own."""
    model = encoder.config
    weights = initialize(heads.pretraining_weights(encoder, dataset.schema.has_next_sentence_labels), config.seed)
    if config.init_checkpoint is None or goes_on:
        return weights
    flag = f"--init_checkpoint={config.init_checkpoint}"
    source = find_model(config.init_checkpoint, "init_checkpoint")
    stored_config, stored, _ = huggingface.read_model(source)
    for name, value in stored_config.to_dict().items():
        if name not in MAY_DIFFER and value != getattr(model, name):
            remedy = f"give --{name}={value}" if value is not None else f"drop --{name}"
            raise UserError(f"{flag}: its {name} is {value}, that of the model {getattr(model, name)}; {remedy}"[:300])
    if heads.pooling_of(stored_config, stored) != ("first", model.hidden_size):  # next sentences are told from the first token
        stored = {name: value for name, value in stored.items() if not name.startswith("pooler/")}
    vocab_file = find_vocabulary(source)
    if vocab is not None and vocab_file is not None and open_tokenizer(vocab_file, vocab.do_lower_case).vocab != vocab.vocab:
        raise UserError(f"{flag}: {vocab_file} is not the vocabulary of the data; build the data with it")
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
                f"{flag}: its {name} has shape {theirs.shape}, the model's {ours.shape}; give the flags that it was trained with"
            )
    console.say(f"starting from {source}" + (f"; fresh: {', '.join(fresh)}" if fresh else ""))
    return weights
