"""Where a model lies and what its folder says of itself: shape, vocabulary, casing.

Reads no weights and imports no TensorFlow, so that flags are checked against a model at once. The
model is a folder or, in formats that have none, a path in one; a run's folder stands for the model/
in it.
"""

import dataclasses
import os
import re
import typing

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, read_json
from bert_gpu.base.run_names import CHECKPOINTS, LOCK, MODEL, RUN
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.interop.folders import displaced
from bert_gpu.interop.formats import OURS, has_model, open_format, recognise, write_only_format
from bert_gpu.interop.relatives import read_shape

NONE = "none"  # --init_checkpoint=none: random weights
TASK = "task.json"  # beside a fine-tuned model's weights: finetune/start.py writes and reads it
# how words get into a table that cannot grow
OWN_WORDS = "for words of your own, replace lines such as [unused1] in its vocab.txt"
VOCABULARIES = ("vocab.txt", "sentencepiece.model", "spiece.model", "tokenizer.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizerNotes(Settings):
    """What we read in a tokenizer_config.json."""

    do_lower_case: bool = setting(True, "Lower-case the text.")
    vocabulary: str = setting("", "The identity of the vocabulary beside it.")
    strip_accents: bool | None = setting(None, "Remove accents; None = when lower-casing.")
    tokenize_chinese_chars: bool = setting(True, "Make each Chinese character a word.")


# {our field: its name in the normalizer of a tokenizer.json}
LETTERS = dict(
    do_lower_case="lowercase",
    strip_accents="strip_accents",
    tokenize_chinese_chars="handle_chinese_chars",
)


class Casing(typing.NamedTuple):
    """Whether a model's text is lower-cased, and what says so where no file does; "" else."""

    is_lower: bool
    guess: str = ""


def find_model(path, flag):
    """The path of a model in any format that is read: `path`, or its model/ when `path` is the
    folder of a run, also where other files of a model lie beside that. The UserError names `flag`.
    """
    check_local(path, flag)
    folders = (path, os.path.join(path, MODEL))
    for folder in reversed(folders) if is_run(path) else folders:
        if (name := write_only_format(folder)) is not None:
            raise UserError(
                f"is a model in the format {name}, which is only written here, not read",
                "name the model that it was made from",
                setting=flag,
                value=folder[:150],
            )
        if has_model(folder):
            return folder
    if recognise(path) is not None:
        return path
    if os.path.isdir(os.path.join(path, CHECKPOINTS)):
        raise UserError(
            "this run is not finished, so it has no model/ yet",
            f"run its command again to resume it{ending_hint(path)}",
            setting=flag,
            value=path,
        )
    for folder in folders:
        if (old := displaced(folder)) is not None:
            raise UserError(
                "a write of it was killed",
                f"its content is in {old}; rename that to {os.path.basename(folder)}",
                setting=flag,
                value=path,
            )
    problem = "has no config.json" if os.path.exists(path) else "no such folder"
    raise UserError(
        problem,
        "make one with run_pretraining_gpu.py, or name a model/, run or "
        f"Hugging Face BERT folder{download_hint(path)}",
        setting=flag,
        value=path,
    )


def download_hint(path):
    """How to get a model that is named as on a model hub, OWNER/NAME or a name of Google's; "" for
    other paths.
    """
    name = f"google-bert/{path}" if re.fullmatch(r"bert-(base|large)-[\w-]+", path) else path
    owner, _, model = name.partition("/")
    is_name = re.fullmatch(r"[\w.-]*bert[\w.-]*", model, re.IGNORECASE) and len(name) < 60
    if os.path.exists(path) or os.path.exists(owner) or not is_name:
        return ""
    return f"; or get it: hf download {name} --local-dir {path}"


def ending_hint(path):
    """How to make a model of the newest checkpoint of a run; "" without one."""
    names = os.listdir(os.path.join(path, CHECKPOINTS))
    steps = [int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d+)", name))]
    return f", or end it at its checkpoint: --num_train_steps={max(steps)}" if steps else ""


def is_run(folder):
    """Whether a folder is that of a run, finished or not."""
    return any(os.path.lexists(os.path.join(folder, name)) for name in (RUN, LOCK, CHECKPOINTS))


def read_config(path):
    """The ModelConfig of a model that `find_model` has found."""
    name = recognise(path)
    if name == OURS:
        return read_shape(os.path.join(path, "config.json")).config
    return open_format(name).read_config(path)


def folder_of(path):
    """The folder that a model lies in: the model itself, or that of its files."""
    return path if os.path.isdir(path) else os.path.dirname(path) or os.curdir


def find_vocabulary(path):
    """The vocabulary file beside a model's other files, or None."""
    paths = [os.path.join(folder_of(path), name) for name in VOCABULARIES]
    return next((path for path in paths if os.path.exists(path)), None)


def tokenizer_notes(path):
    """The tokenizer_config.json in the folder of a model, {} without one."""
    return read_beside(path, "tokenizer_config.json", fields_of(TokenizerNotes))


def read_beside(path, name, fields=None):
    """The content of a JSON file on the tokenizer in the folder of a model, {} without one."""
    file = os.path.join(folder_of(path), name)
    return read_json(file, "a tokenizer's settings", fields) if os.path.exists(file) else {}


def letter_rules(path):
    """{file: {field of LETTERS: value}}: what the folder of a model says of letters. The first file
    that states a casing decides it.
    """
    theirs = flat(read_beside(path, "tokenizer.json"))
    ours = {field: theirs.get(f"normalizer.{name}") for field, name in LETTERS.items()}
    stated = {"tokenizer_config.json": tokenizer_notes(path), "tokenizer.json": ours}
    return {
        file: {field: rules[field] for field in LETTERS if isinstance(rules.get(field), bool)}
        for file, rules in stated.items()
    }


def flat(content):
    """The content of a tokenizer.json with "normalizer.type" and the like, the keys of its parts. A
    part that is null has the type None, a sequence of normalizers is its last one behind the
    `first`: BERT's own rules, which ours come after that for a sigma.
    """
    for name in ("normalizer", "pre_tokenizer", "model"):
        part = content.get(name, {})
        steps = part.get("normalizers") if isinstance(part, dict) else None
        *first, part = steps if isinstance(steps, list) and steps else [part]
        part = part if isinstance(part, dict) else dict(type=part)
        content |= {f"{name}.{key}": value for key, value in (part | dict(first=first)).items()}
    return content


def find_casing(path):
    """The Casing of a model: as its folder says, else by the capital letters of its pieces."""
    for rules in letter_rules(path).values():
        if "do_lower_case" in rules:
            return Casing(rules["do_lower_case"])
    vocabulary = os.path.join(folder_of(path), "vocab.txt")
    if not os.path.isfile(vocabulary):
        return Casing(True, "no file says so")
    is_lower = not has_capitals(vocabulary)
    pieces = "no piece has" if is_lower else "pieces have"
    return Casing(is_lower, f"no file says so; {pieces} capitals")


def has_capitals(path):
    """Whether a vocabulary has pieces with capital letters: that of a cased model, where no file
    says so, as beside Google's checkpoints.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        return any(line[0] != "[" and re.search("[A-Z]", line) for line in file)
