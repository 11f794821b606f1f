"""The formats that models come in and leave in: a row each, and what a format's module provides.

A format is a module of this room with the functions of `FormatModule`. It is imported when it is
needed, so what only it needs (another framework, an optional package) costs nobody else anything.
Adding one takes its module and its row in FORMATS.
"""

import importlib
import os
import typing

from bert_gpu.model.config import ModelConfig


class Embedding(typing.NamedTuple):
    """How a folder of sentence-transformers makes a vector of a text; the defaults are those of
    another folder.

    pooling: as --pooling. is_normalized: whether vectors have the length 1. prefix: stands before
    each text. lowers: whether texts are lower-cased before they are tokenized. lacking: what of it
    we do not have, "" for nothing.
    """

    pooling: str | None = None
    is_normalized: bool = False
    prefix: str = ""
    lowers: bool = False
    lacking: str = ""


class Notes(typing.NamedTuple):
    """Facts about a model's files, beside its config and weights.

    missing: our weights that they lack. unused: their tensors that we do not use. architecture: a
    class of `transformers` such as BertForMaskedLM, which says what heads there are. labels: the
    names of a classifier's classes. problem_type: what its scores mean, in the words of
    `transformers` (None = one of the classes). foreign: the class that config.json names, where its
    head is none of ours. max_seq_length: tokens at which texts were cut in training. embedding: of
    sentence-transformers.
    """

    missing: list[str]
    unused: list[str]
    architecture: str
    labels: tuple[str, ...]
    problem_type: str | None = None
    foreign: str | None = None
    max_seq_length: int | None = None
    embedding: Embedding = Embedding()


class Model(typing.NamedTuple):
    """A model in memory: config, weights, notes, tokenizer, card and task.

    weights: {our name: float32 array}. tokenizer: text.tokenizers.wordpiece.Tokenizer, None
    without a vocabulary. card: what its model card says of its training, {title: {name: text}},
    None where that is not known. task: {name: bytes} of the files that say how it is used
    (usage.usage_files).
    """

    config: ModelConfig
    weights: dict
    notes: Notes
    tokenizer: typing.Any = None
    card: dict | None = None
    task: dict | None = None


class FormatModule(typing.Protocol):
    """What the module of a format provides; the first three functions only where it reads. Then
    importing it must not import TensorFlow or what else is slow, because paths are looked at first;
    only our own format is recognised without its module.
    """

    def recognises(self, path: str) -> bool:
        """Whether a path (a folder, a file, or the prefix of a checkpoint's files) is a model in
        this format; looks at names of files, and at most at their first bytes.
        """

    def read_config(self, path: str) -> ModelConfig:
        """The shape of a model in this format. Raises UserError."""

    def read(self, path: str) -> Model:
        """The whole model but its tokenizer, which lies beside it in the same files everywhere
        (models.open_model). Raises UserError for files that are damaged or contradict each other.
        """

    def write(self, model: Model, folder: str, options) -> str:
        """Writes a model's folder, whole or not at all; `options` is an ExportConfig. Returns the
        line that the command prints last. Raises UserError, before anything is written, when the
        format cannot hold the model.
        """


class Format(typing.NamedTuple):
    """A row of the table. reads: whether it can be read; all can be written. holds_task: whether it
    writes Model.task. file: of a format that is not read, the file that its folders are known by.
    """

    reads: bool = True
    holds_task: bool = False
    file: str | None = None


OURS = "huggingface"  # what trainings write; has_model recognises it
FORMATS = {  # {name: Format}; the names are those of the modules, too
    OURS: Format(holds_task=True),
    "google": Format(),
    "garden": Format(),
    "savedmodel": Format(reads=False, holds_task=True, file="saved_model.pb"),
    "onnx": Format(reads=False, holds_task=True, file="onnx/model.onnx"),
}


def format_names(*, writes):
    """Names of the formats that can be written, or read."""
    return tuple(name for name, row in FORMATS.items() if writes or row.reads)


def formats_holding(config):
    """What to give for a model that one of the formats cannot hold: a format or two, for messages.
    All of our own encoder's leave as OURS, those of Model Garden as graphs alone.
    """
    if config.has_own_encoder:
        return f"--format={OURS}"
    from bert_gpu.model.encoders import open_encoder

    has_free_length = open_encoder(config).fixed_length is None
    return "--format=savedmodel" + (" or --format=onnx" if has_free_length else "")


def open_format(name) -> FormatModule:
    """The module of a format."""
    return importlib.import_module(f"{__package__}.{name}")


def has_model(path):
    """Whether a folder holds a model in our own format, which is that of Hugging Face."""
    return os.path.exists(os.path.join(path, "config.json"))


def recognise(path):
    """The name of the format of a model, None for what is no model."""
    if has_model(path):
        return OURS
    others = (name for name in format_names(writes=False) if name != OURS)
    return next((name for name in others if open_format(name).recognises(path)), None)


WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def write_only_format(folder):
    """The name of the format of a folder whose model cannot be read, because that format is only
    written here; None for others.
    """
    files = {name: row.file for name, row in FORMATS.items() if row.file}
    found = [name for name, file in files.items() if os.path.exists(f"{folder}/{file}")]
    if not found or any(os.path.exists(f"{folder}/{name}") for name in WEIGHTS):
        return None
    return found[0] if recognise(folder) in (None, OURS) else None
