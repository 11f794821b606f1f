"""Finds a model, and reads its ModelConfig and the files of its tokenizer from its folder.

Reads no weights and imports no TensorFlow, so that flags are checked against a model at once. A
model is a folder or, in formats without folders, the prefix of its files; the folder of a run
stands for the model/ in it.
"""

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, read_json
from bert_gpu.base.run_names import CHECKPOINTS, LOCK, MODEL, RUN
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.interop.folders import displaced
from bert_gpu.interop.formats import OURS, has_model, open_format, recognise
from bert_gpu.interop.relatives import read_shape
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.rules import LETTERS, as_text, casing_of, flat, letters_of

NONE = "none"  # value of --init_checkpoint that means random weights
TASK = "task.json"  # beside a fine-tuned model's weights: finetune/start.py writes and reads it
SEEN = "texts.json"  # {"texts": Manifest.text of each text that the model was pretrained on}
OWN_WORDS = "to add words of your own, use `python -m bert_gpu extend`"  # a remedy in messages
# entries of tokenizer_config.json that name other files, or that the files of a copy state anew
NOT_COPIED = {
    *("tokenizer_class", "vocabulary", "added_tokens_decoder", "max_len", "name_or_path"),
    *("do_lower_case", "strip_accents"),
    *("auto_map", "init_inputs", "tokenizer_file", "vocab_file", "special_tokens_map_file"),
}
VOCABULARIES = ("vocab.txt", "sentencepiece.model", "spiece.model", "spm.model", "tokenizer.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerNotes(Settings):
    """The keys of a tokenizer_config.json that are read here."""

    do_lower_case: bool = setting(True, "Lower-case the text.")
    vocabulary: str = setting("", "The identity of the vocabulary beside it.")
    strip_accents: bool | None = setting(None, "Remove accents; None = when lower-casing.")
    tokenize_chinese_chars: bool = setting(True, "Make each Chinese character a word.")


class Casing(typing.NamedTuple):
    """Whether a model's text is lower-cased, and how that is known.

    Attributes:
      is_lower: whether the text is lower-cased.
      guess: the evidence for is_lower, where no file states it; "" otherwise.
    """

    is_lower: bool
    guess: str = ""


def find_model(path: str, flag: str) -> str:
    """Return the path of the model, in any format that bert-gpu reads, that `path` names: `path`
    itself, or the model/ in it. In the folder of a run, model/ comes first, even where other files
    of a model lie beside it. Raise UserError, which names `flag`, when there is no model.
    """
    check_local(path, flag)
    folders = (path, os.path.join(path, MODEL))
    for folder in reversed(folders) if is_run(path) else folders:
        if has_model(folder):
            return folder
    if recognise(path) is not None:
        return path
    if os.path.isdir(os.path.join(path, CHECKPOINTS)):
        raise UserError(
            "this run is not finished, so it has no model/ yet",
            "run its command again to resume it; with --num_train_steps=N, the step of its newest "
            "checkpoint, it ends there",
            setting=flag,
            value=path,
        )
    for folder in folders:
        if (old := displaced(folder)) is not None:
            raise UserError(
                "the process that wrote it was killed",
                f"its content is in {old}; rename that to {os.path.basename(folder)}",
                setting=flag,
                value=path,
            )
    problem = "has no config.json" if os.path.exists(path) else "no such folder"
    raise UserError(
        problem,
        "make one with run_pretraining_gpu.py, or name a model/, run or Hugging Face BERT folder; "
        "one of the hub's: hf download OWNER/NAME --local-dir FOLDER",
        setting=flag,
        value=path,
    )


def is_run(folder: str) -> bool:
    """Return whether a folder is that of a run, finished or not."""
    return any(os.path.lexists(os.path.join(folder, name)) for name in (RUN, LOCK, CHECKPOINTS))


def read_config(path: str) -> ModelConfig:
    """Return the ModelConfig of a model at a path that `find_model` returned."""
    name = recognise(path) or OURS
    if name == OURS:
        return read_shape(os.path.join(path, "config.json")).config
    return open_format(name).read_config(path)


def folder_of(path: str) -> str:
    """Return the folder of the model at `path`: `path` itself if it is a folder, else the folder of
    its files.
    """
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def vocabularies(path: str) -> list[str]:
    """Return the paths of all vocabularies in the folder of a model, in the order of
    VOCABULARIES.
    """
    paths = [os.path.join(folder_of(path), name) for name in VOCABULARIES]
    return [path for path in paths if os.path.exists(path)]


def library_casing(file: str) -> dict[str, bool]:
    """Return the casing of a tokenizer.json, as `casing_of` does; {} where `tokenizers` cannot read
    the file, an error that is reported when the tokenizer is opened.
    """
    import tokenizers

    try:
        stored = read_beside(file, os.path.basename(file))
        return casing_of(tokenizers.Tokenizer.from_str(as_text(stored)))
    except Exception:  # `tokenizers` raises Exception, no subclass
        return {}


def tokenizer_notes(path: str) -> dict[str, Any]:
    """Return the content of tokenizer_config.json in the folder of a model; {} without the file."""
    return read_beside(path, "tokenizer_config.json", fields_of(TokenizerNotes))


def read_beside(path: str, name: str, fields: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of the JSON file `name`, which is about the tokenizer, in the folder of a
    model; {} without the file. fields: as for `read_json`.
    """
    file = os.path.join(folder_of(path), name)
    if not os.path.exists(file):
        return {}
    if name != "tokenizer.json":
        return read_json(file, "a tokenizer's settings", fields)
    status = os.stat(file)
    return read_large(file, (status.st_mtime_ns, status.st_size, status.st_ino))


@functools.lru_cache(2)
def read_large(file: str, version: tuple[int, ...]) -> dict[str, object]:
    """Return the content of a tokenizer.json, from a cache, because reading takes long and is
    needed several times. version: values that change when the file does, so that it is read again.
    """
    return read_json(file, "a tokenizer's settings")


def letter_rules(path: str) -> dict[str, dict[str, bool]]:
    """Return {file: {field of LETTERS: value}}: the rules for letters that each tokenizer file in
    the folder of a model states. Where both files state the casing, the first one counts.
    """
    theirs = letters_of(flat(read_beside(path, "tokenizer.json")))
    if theirs.get("do_lower_case"):
        theirs.setdefault("strip_accents", True)  # null means true where text is lower-cased
    stated = {"tokenizer_config.json": tokenizer_notes(path), "tokenizer.json": theirs}
    return {
        file: {field: rules[field] for field in LETTERS if isinstance(rules.get(field), bool)}
        for file, rules in stated.items()
    }


def own_casing(path: str) -> Casing:
    """Return the Casing of a model: as files in its folder state it, else as the capital letters in
    its pieces suggest.
    """
    for rules in letter_rules(path).values():
        if "do_lower_case" in rules:
            return Casing(rules["do_lower_case"])
    vocabulary = next(iter(vocabularies(path)), "tokenizer.json")
    if vocabulary.endswith("tokenizer.json"):
        return Casing(True, "no file states it")
    is_lower = not has_capitals(vocabulary)
    return Casing(
        is_lower, f"no file states it; {'no piece has' if is_lower else 'pieces have'} capitals"
    )


class PieceFacts(typing.NamedTuple):
    """Facts about a SentencePiece model: the number of its pieces, whether it keeps capitals and
    has pieces with them, and whether it has pieces for bytes.
    """

    num_pieces: int = 0
    has_capitals: bool = False
    has_bytes: bool = False


def piece_facts(path: str) -> PieceFacts:
    """Return the PieceFacts of a SentencePiece model; the default for a broken file, whose error is
    reported when the tokenizer is opened.
    """
    import sentencepiece

    try:
        model = sentencepiece.SentencePieceProcessor(model_file=path)
        folds = "A" not in model.normalize("A")
    except (RuntimeError, OSError):
        return PieceFacts()
    ids = range(model.get_piece_size())
    pieces = (model.id_to_piece(index) for index in ids)
    has_capitals = any(piece[0] not in "[<" and re.search("[A-Z]", piece) for piece in pieces)
    return PieceFacts(len(ids), has_capitals and not folds, any(map(model.is_byte, ids)))


def has_capitals(path: str) -> bool:
    """Return whether pieces in a vocab.txt or a SentencePiece model have capital letters, as in a
    cased model. This decides where no file states the casing, as beside Google's checkpoints.
    """
    if path.endswith(".model"):
        return piece_facts(path).has_capitals
    with open(path, encoding="utf-8", errors="replace") as file:
        return any(line[0] != "[" and re.search("[A-Z]", line) for line in file)
