"""Models in any format: reads and writes a model's folder, and opens its tokenizer.

A model is a folder in Hugging Face's format (config.json, model.safetensors, vocab.txt), the only
one so far. sources.py finds it.
"""

import json

from bert_gpu.files import CHECKSUM, json_checksum
from bert_gpu.interop.huggingface import read_model, write_model  # noqa: F401  (the only format)
from bert_gpu.interop.sources import (  # noqa: F401  (of the models here)
    check_casing,
    find_model,
    find_vocabulary,
    has_model,
    tokenizer_notes,
)
from bert_gpu.model.encoders import open_encoder
from bert_gpu.settings import UserError
from bert_gpu.text.tokenizers import open_tokenizer


def read_start(init_checkpoint):
    """The model that --init_checkpoint names: (its folder, ModelConfig, {name: float32 array},
    Notes). UserError when it lacks weights of the encoder.
    """
    folder = find_model(init_checkpoint, "init_checkpoint")
    config, weights, notes = read_model(folder)
    lacking = [name for name in open_encoder(config).weights() if name not in weights]
    if lacking:
        raise UserError(
            f"--init_checkpoint={init_checkpoint}: has no weights "
            f"{lacking[0]}; name a model with the whole encoder"
        )
    return folder, config, weights, notes


def load_tokenizer(folder, vocab_file=None, do_lower_case=None):
    """The tokenizer of a model's folder.

    Args:
      folder: with vocab.txt or a SentencePiece model and, perhaps, tokenizer_config.json; None when
        there is no folder.
      vocab_file, do_lower_case: override the folder's. By default text is lower-cased.
    """
    notes = {}
    if vocab_file is None:
        vocab_file = find_vocabulary(folder)
        if vocab_file is None:
            raise UserError(
                f"{folder}/vocab.txt: no such file; name the model's vocabulary with --vocab_file"
            )
        notes = tokenizer_notes(folder)
        if do_lower_case is None:
            check_casing(folder)
    if do_lower_case is None:
        do_lower_case = (tokenizer_notes(folder) if folder else {}).get("do_lower_case", True)
    tokenizer = open_tokenizer(vocab_file, do_lower_case)
    if notes.get("vocabulary", tokenizer.identity) != tokenizer.identity:
        raise UserError(
            f"{vocab_file}: is not the vocabulary that the model was written with (by its "
            "tokenizer_config.json); put that one back, or name another with --vocab_file"
        )
    return tokenizer


def describe_tokenizer(tokenizer):
    """Size and casing of a tokenizer, for the log."""
    casing = "lower case" if tokenizer.do_lower_case else "cased"
    return f"{tokenizer.vocab_size:,} pieces, {casing}"


def tokenizer_files(tokenizer):
    """{name: bytes} of the tokenizer's files in a model's folder: the vocabulary, and its settings
    for `transformers` and us.
    """
    if tokenizer is None:
        return {}
    settings = dict(
        tokenizer_class="BertTokenizer",
        do_lower_case=tokenizer.do_lower_case,
        vocabulary=tokenizer.identity,
    )
    settings[CHECKSUM] = json_checksum(settings)
    return tokenizer.files() | {
        "tokenizer_config.json": (json.dumps(settings, indent=1) + "\n").encode()
    }


def check_vocabulary(tokenizer, model, source):
    """UserError unless the tokenizer's vocabulary is as large as the model's. `source` names the
    vocabulary in the message.
    """
    if tokenizer.vocab_size != model.vocab_size:
        raise UserError(
            f"{source}: has {tokenizer.vocab_size} pieces, the model "
            f"{model.vocab_size}; name the model's own with --vocab_file"
        )
