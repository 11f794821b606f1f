"""The tokenizer of a model: opened from the files beside it, and written beside another."""

import json

from bert_gpu.files import CHECKSUM, json_checksum
from bert_gpu.interop.sources import check_casing, find_vocabulary, tokenizer_notes
from bert_gpu.settings import UserError
from bert_gpu.text.tokenizers import open_tokenizer


def load_tokenizer(folder, vocab_file=None, do_lower_case=None):
    """The tokenizer of a model.

    Args:
      folder: the model's path, with vocab.txt or a SentencePiece model and, perhaps,
        tokenizer_config.json beside its files; None when there is no model.
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
