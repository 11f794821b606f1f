"""Opens the tokenizer of a model from the files in its folder, and makes a tokenizer's files for a
model's folder.
"""

import json
import os
from collections.abc import Mapping

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import CHECKSUM, json_checksum
from bert_gpu.interop.sources import (
    NOT_COPIED,
    OWN_WORDS,
    read_beside,
    tokenizer_notes,
)
from bert_gpu.interop.tokenizer_json import special_tokens, tokenizer_json
from bert_gpu.interop.tokenizer_rules import (
    check_tokenizer,
    find_casing,
    find_vocabulary,
    folder_strips_accents,
)
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.open import open_tokenizer, read_stored
from bert_gpu.text.tokenizers.rules import OTHER_NAMES, flat, letters_of, needs_library
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary.file import num_pieces, warn_of_blanks


def load_tokenizer(
    folder: str | None,
    vocab_file: str | None = None,
    do_lower_case: bool | None = None,
    strip_accents: bool | None = None,
) -> Tokenizer:
    """Return the tokenizer of a model.

    Args:
      folder: the model's path; beside its files lie a vocabulary and perhaps tokenizer_config.json.
        None when there is no model, and then vocab_file is given.
      vocab_file, do_lower_case, strip_accents: replace the folder's. Without a model, text is
        lower-cased, unless a tokenizer.json says otherwise. With do_lower_case given,
        strip_accents=None removes accents where text is lower-cased.

    Raises:
      UserError: the model's tokenizer cuts text in a way that bert-gpu cannot, there is no
        vocabulary, or it is not the model's.
    """
    notes = {} if folder is None or vocab_file is not None else tokenizer_notes(folder)
    if folder is not None:
        check_tokenizer(folder, do_lower_case)
    if vocab_file is None:
        vocab_file = None if folder is None else find_vocabulary(folder, do_lower_case)
        if vocab_file is None:
            raise UserError(
                f"{folder}/vocab.txt: no such file", "name the model's vocabulary with --vocab_file"
            )
    if do_lower_case is None and not needs_library(stored := read_stored(vocab_file)):
        stated = letters_of(flat(stored)).get("do_lower_case", True)
        do_lower_case = stated if folder is None else find_casing(folder).is_lower
        if strip_accents is None and folder is not None:
            strip_accents = folder_strips_accents(folder)
    tokenizer = open_tokenizer(vocab_file, do_lower_case, strip_accents)
    warn_of_blanks(vocab_file, tokenizer.vocab)
    warn_of_other_ids(vocab_file, tokenizer)
    if notes.get("vocabulary", tokenizer.identity) != tokenizer.identity:
        raise UserError(
            "is not the vocabulary that the model was written with (by its tokenizer_config.json)",
            "put that one back, or name another with --vocab_file",
            where=vocab_file,
        )
    tokenizer.settings = {name: notes[name] for name in notes if name not in NOT_COPIED}
    if notes.get("truncation_side") == "left":
        console.warn_once(
            f"{folder}: its tokenizer cuts a long text at its beginning (truncation_side=left); "
            "bert-gpu cuts it at its end, and a copy of the model says left"
        )
    return tokenizer


def for_training(tokenizer: Tokenizer, notes: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer of a training that starts from a model whose tokenizer_config.json has
    the entries `notes`: it keeps those that a copy keeps, except for the length and the side at
    which texts are cut, which the training changes.
    """
    changed = {*NOT_COPIED, "model_max_length", "truncation_side"}
    tokenizer.settings = {name: value for name, value in notes.items() if name not in changed}
    return tokenizer


def warn_of_other_ids(vocab_file: str, tokenizer: Tokenizer) -> None:
    """Warn, once, when the tokenizer.json beside a vocab.txt gives pieces other ids than the
    vocab.txt.
    """
    folder, name = os.path.split(vocab_file)
    model = read_beside(folder, "tokenizer.json").get("model")
    theirs = model.get("vocab") if isinstance(model, dict) else None
    if name != "vocab.txt" or not isinstance(theirs, dict):
        return
    ours = {piece: index for index, piece in enumerate(tokenizer.vocab) if piece}
    pieces = [piece for piece in ours | theirs if piece and ours.get(piece) != theirs.get(piece)]
    if pieces:
        console.warn_once(
            f"{folder}/tokenizer.json: gives other ids than vocab.txt to {len(pieces):,} pieces, "
            f"such as {pieces[0]!r:.40}; those of vocab.txt are used"
        )


def describe_tokenizer(tokenizer: Tokenizer, path: str | None = None) -> str:
    """Return a text for the log with the size and casing of a tokenizer. path: path of its model,
    or None; where the model's casing is a guess, the text gives the evidence.
    """
    casing = "lower case" if tokenizer.do_lower_case else "cased"
    is_lower, guess = (None, "") if path is None else find_casing(path)
    reason = f" ({guess})" if guess and is_lower == tokenizer.do_lower_case else ""
    return f"{num_pieces(tokenizer.vocab):,} pieces, {casing}{reason}"


def tokenizer_files(
    tokenizer: Tokenizer | None,
    config: ModelConfig | None = None,
    must_open: bool = False,
    max_seq_length: int | None = None,
) -> dict[str, bytes]:
    """Return {name: bytes} of the tokenizer's files in a model's folder: the vocabulary,
    tokenizer_config.json and, if `config` is given, the further files that `transformers` reads.

    Where `transformers` cannot give the same ids, tokenizer.json is left out, and `transformers`
    refuses to open the tokenizer; with must_open, UserError is raised instead. max_seq_length:
    number of tokens at which `transformers` cuts texts; by default as the tokenizer's settings say,
    at most the model's number of positions. The other settings stay as they are.
    """
    if tokenizer is None:
        return {}
    own: dict[str, object] = dict(do_lower_case=tokenizer.do_lower_case)
    own |= {} if tokenizer.strip_accents else dict(strip_accents=False)
    own["vocabulary"] = tokenizer.identity
    if config is None:
        return tokenizer.files() | {
            "tokenizer_config.json": with_checksum({**own, **tokenizer.settings, **own})
        }
    try:
        theirs = {"tokenizer.json": tokenizer_json(tokenizer, config.type_vocab_size)}
    except UserError as error:
        if must_open:
            raise UserError(
                str(error),
                "the folder can be used by bert-gpu only",
                setting="format",
                value="huggingface",
            ) from None
        theirs = {}
    names = {
        f"{piece[1:-1].lower()}_token": name
        for piece, (name, _) in special_tokens(tokenizer).items()
    }
    # for a model whose [CLS] is called <s>, transformers also reads bos_token and eos_token
    if names["cls_token"] == OTHER_NAMES["[CLS]"]:
        names |= dict(bos_token=names["cls_token"], eos_token=names["sep_token"])
    limit = tokenizer.settings.get("model_max_length")
    settings = dict(
        # PreTrainedTokenizerFast reads tokenizer.json as it is. transformers has no class called
        # SentencePieceTokenizer, so that it refuses the tokenizer.
        tokenizer_class="PreTrainedTokenizerFast" if theirs else "SentencePieceTokenizer",
        **own,
        model_max_length=max_seq_length
        or (limit if limit in range(1, config.num_positions) else config.num_positions),
        model_input_names=[
            "input_ids",
            *(["token_type_ids"] if config.takes_segments else []),
            "attention_mask",
        ],
        clean_up_tokenization_spaces=tokenizer.settings.get("clean_up_tokenization_spaces", True),
        **names,
    )
    return (
        tokenizer.files()
        | theirs
        | {
            "tokenizer_config.json": with_checksum({**settings, **tokenizer.settings, **settings}),
            "special_tokens_map.json": as_json(names),
        }
    )


def with_checksum(content: dict[str, object]) -> bytes:
    return as_json(content | {CHECKSUM: json_checksum(content)})


def as_json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def check_vocabulary(
    tokenizer: Tokenizer, model: ModelConfig, source: str, folder: str | None = None
) -> None:
    """Raise UserError when a tokenizer's vocabulary is larger than the model's table of word
    embeddings, or smaller than the vocabulary in `folder`, the model's; warn, once, of rows of the
    table without a piece. source: name of the vocabulary in messages.
    """
    pieces = tokenizer.vocab_size
    rows = model.vocab_size
    own = folder and pieces < rows and find_vocabulary(folder)
    if not (open_tokenizer(own, None).vocab_size if own else 0) <= pieces <= rows:
        raise UserError(
            f"has {pieces} pieces, the model {rows}",
            f"name the model's own with --vocab_file; {OWN_WORDS}",
            where=source,
        )
    if pieces < rows:
        console.warn_once(
            f"{source}: has ids for {pieces:,} of the {rows:,} rows of the model's table; the "
            "others are kept, and are never predicted"
        )
