"""The tokenizer of a model: opened from the files beside it, and written beside another."""

import json

from bert_gpu import console
from bert_gpu.files import CHECKSUM, json_checksum
from bert_gpu.interop.sources import OWN_WORDS, check_casing, find_vocabulary, tokenizer_notes
from bert_gpu.interop.tokenizer_json import special_tokens, tokenizer_json
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


def tokenizer_files(tokenizer, config=None, must_open=False):
    """{name: bytes} of the tokenizer's files in a model's folder: the vocabulary, our settings, and
    in a folder of a ModelConfig that `transformers` opens, what it reads.

    Where `transformers` cannot give the same ids, its file is missing and it refuses the folder's
    tokenizer; with must_open, UserError.
    """
    if tokenizer is None:
        return {}
    own = dict(do_lower_case=tokenizer.do_lower_case, vocabulary=tokenizer.identity)
    if config is None:
        return tokenizer.files() | {"tokenizer_config.json": with_checksum(own)}
    try:
        theirs = {"tokenizer.json": tokenizer_json(tokenizer, config.type_vocab_size)}
    except UserError as error:
        if must_open:
            raise UserError(
                f"--format=huggingface: {error}; the folder can be used by bert-gpu only"
            ) from None
        theirs = {}
    names = {
        f"{piece[1:-1].lower()}_token": name
        for piece, (name, _) in special_tokens(tokenizer).items()
    }
    settings = dict(
        # takes tokenizer.json as it is; the other does not exist there
        tokenizer_class="PreTrainedTokenizerFast" if theirs else "SentencePieceTokenizer",
        **own,
        model_max_length=config.max_position_embeddings,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        clean_up_tokenization_spaces=True,
        **names,
    )
    return (
        tokenizer.files()
        | theirs
        | {
            "tokenizer_config.json": with_checksum(settings),
            "special_tokens_map.json": as_json(names),
        }
    )


def with_checksum(content):
    return as_json(content | {CHECKSUM: json_checksum(content)})


def as_json(content):
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def check_vocabulary(tokenizer, model, source):
    """UserError when the tokenizer's vocabulary is larger than the model's; warns, once, when it is
    smaller. `source` names the vocabulary in the message.
    """
    pieces, rows = tokenizer.vocab_size, model.vocab_size
    if pieces > rows:
        raise UserError(
            f"{source}: has {pieces} pieces, the model {rows}; name the model's own with "
            f"--vocab_file; {OWN_WORDS}"
        )
    if pieces < rows:
        console.warn_once(
            f"{source}: has {pieces} pieces, the model's table {rows} rows; the rows without a "
            "piece are kept, and are never predicted"
        )
