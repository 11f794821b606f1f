"""Models in any format: finds a model's folder, reads and writes it, and opens its tokenizer.

A model is a folder in Hugging Face's format (config.json, model.safetensors, vocab.txt), the only
one so far.
"""

import dataclasses
import json
import os

from bert_gpu.files import CHECKSUM, check_local, json_checksum, read_json
from bert_gpu.interop.folders import displaced
from bert_gpu.interop.huggingface import read_model, write_model  # noqa: F401  (the only format)
from bert_gpu.settings import Settings, UserError, fields_of, setting
from bert_gpu.text.tokenizers import open_tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerNotes(Settings):
    """What we read in a tokenizer_config.json."""

    do_lower_case: bool = setting(True, "Lower-case the text.")
    vocabulary: str = setting("", "The identity of the vocabulary beside it.")


def has_model(path):
    return os.path.exists(os.path.join(path, "config.json"))


def find_model(path, flag):
    """The folder of a model: `path`, or its model/ when `path` is the folder of a run. The
    UserError names `flag`.
    """
    check_local(path, f"--{flag}")
    for folder in (path, os.path.join(path, "model")):
        if has_model(folder):
            return folder
    if os.path.isdir(os.path.join(path, "checkpoints")):
        raise UserError(
            f"--{flag}={path}: this run is not finished, so it has "
            "no model/ yet; run its command again to resume it"
        )
    for folder in (path, os.path.join(path, "model")):
        if (old := displaced(folder)) is not None:
            raise UserError(
                f"--{flag}={path}: a write of {folder} was killed, "
                f"its content is in {old}; rename that to {folder}"
            )
    problem = "has no config.json" if os.path.exists(path) else "no such folder"
    raise UserError(
        f"--{flag}={path}: {problem}; make one with run_pretraining_gpu.py, "
        "or name a model/, run or Hugging Face BERT folder"
    )


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
        do_lower_case = (tokenizer_notes(folder) if folder else {}).get("do_lower_case", True)
    tokenizer = open_tokenizer(vocab_file, do_lower_case)
    if notes.get("vocabulary", tokenizer.identity) != tokenizer.identity:
        raise UserError(
            f"{vocab_file}: is not the vocabulary that the model was written with (by its "
            "tokenizer_config.json); put that one back, or name another with --vocab_file"
        )
    return tokenizer


def tokenizer_notes(folder):
    """The content of a model folder's tokenizer_config.json, {} without one."""
    path = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(path):
        return {}
    return read_json(path, "a tokenizer's settings", fields_of(TokenizerNotes))


def find_vocabulary(folder):
    """The vocabulary file in a model's folder, ours or Hugging Face's, or None."""
    paths = [
        os.path.join(folder, name) for name in ("vocab.txt", "sentencepiece.model", "spiece.model")
    ]
    return next((path for path in paths if os.path.exists(path)), None)


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
