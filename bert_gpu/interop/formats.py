"""Table of the formats of models that are read and written, and the functions that a format
provides.

The module of a format lies in this package and has the functions of `FormatModule`. It is imported
when it is needed, so that the packages that only it needs are not loaded for other formats. A new
format takes its module and its row in FORMATS.
"""

import importlib
import os
import typing
from collections.abc import Mapping

from bert_gpu.model.config import ModelConfig

if typing.TYPE_CHECKING:
    import numpy as np

    from bert_gpu.interop.config import ExportConfig
    from bert_gpu.text.tokenizers.wordpiece import Tokenizer


class Embedding(typing.NamedTuple):
    """The rules by which a folder of sentence-transformers makes a vector of a text; the defaults
    are those of any other folder.

    Attributes:
      pooling: as --pooling.
      is_normalized: whether vectors have the length 1.
      prefix: stands before each text.
      lowers: whether texts are lower-cased before they are tokenized.
      lacking: the parts of it that bert-gpu does not compute, as text; "" for none.
    """

    pooling: str | None = None
    is_normalized: bool = False
    prefix: str = ""
    lowers: bool = False
    lacking: str = ""


class Notes(typing.NamedTuple):
    """Facts about a model's files, beside its config and weights.

    Attributes:
      missing: names of our weights that the files lack.
      unused: names of their tensors that are not used here.
      architecture: a class of `transformers` such as BertForMaskedLM, which determines the heads.
      labels: names of a classifier's classes.
      problem_type: meaning of its scores, in the words of `transformers`; None = one of the
        classes.
      foreign: the class that config.json names, where its head is none of ours.
      max_seq_length: tokens at which texts were cut in training.
      embedding: settings of sentence-transformers.
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
    """A model in memory.

    Attributes:
      weights: {our name: float32 array}.
      tokenizer: None without a vocabulary.
      card: facts of its model card on its training, {title: {name: text}}; None where they are not
        known.
      task: {name: bytes} of the files that describe its use (usage.usage_files).
    """

    config: ModelConfig
    weights: dict[str, "np.ndarray"]
    notes: Notes
    tokenizer: "Tokenizer | None" = None
    card: Mapping[str, Mapping[str, str]] | None = None
    task: Mapping[str, bytes] | None = None


class FormatModule(typing.Protocol):
    """The functions that the module of a format provides; the first three only where the format is
    read. Importing such a module must import neither TensorFlow nor anything else that is slow,
    because a path is tried with each of them; only our own format is recognised without its module.
    """

    def recognises(self, path: str) -> bool:
        """Return whether a path (a folder, a file, or the prefix of a checkpoint's files) is a
        model in this format, from the names of files and at most their first bytes.
        """

    def read_config(self, path: str) -> ModelConfig:
        """Return the shape of a model in this format. Raise UserError when it cannot be read."""

    def read(self, path: str) -> Model:
        """Return the model without its tokenizer, whose files are the same in every format
        (models.open_model reads them). Raise UserError for files that are damaged or contradict
        each other.
        """

    def write(self, model: Model, folder: str, options: "ExportConfig") -> str:
        """Write a model's folder, as a whole or not at all. Return the line that the command prints
        last. Raise UserError, before anything is written, when the format cannot hold the model.
        """


class Format(typing.NamedTuple):
    """A row of the table.

    Attributes:
      reads: whether the format can be read; all can be written.
      holds_task: whether it writes Model.task.
      file: of a format that is not read, the file by which its folders are recognised.
    """

    reads: bool = True
    holds_task: bool = False
    file: str | None = None


OURS = "huggingface"  # the format that trainings write; has_model recognises it
FORMATS = {  # {name: Format}; the names are also those of the modules
    OURS: Format(holds_task=True),
    "google": Format(),
    "garden": Format(),
    "savedmodel": Format(reads=False, holds_task=True, file="saved_model.pb"),
    "onnx": Format(reads=False, holds_task=True, file="onnx/model.onnx"),
}


def format_names(*, writes: bool) -> tuple[str, ...]:
    """Return the names of the formats that can be written, or of those that can be read."""
    return tuple(name for name, row in FORMATS.items() if writes or row.reads)


def formats_holding(config: ModelConfig) -> str:
    """Return the flags, for messages, that select a format that can hold a model which another
    format cannot. Any model with our own encoder can be written as OURS, an encoder of Model Garden
    only as a graph.
    """
    if config.has_own_encoder:
        return f"--format={OURS}"
    from bert_gpu.model.encoders import open_encoder

    has_free_length = open_encoder(config).fixed_length is None
    return "--format=savedmodel" + (" or --format=onnx" if has_free_length else "")


def open_format(name: str) -> FormatModule:
    """Import and return the module of a format."""
    return importlib.import_module(f"{__package__}.{name}")


def has_model(path: str) -> bool:
    """Return whether a folder holds a model in our own format, which is that of Hugging Face."""
    return os.path.exists(os.path.join(path, "config.json"))


def recognise(path: str) -> str | None:
    """Return the name of the format of the model at a path; None where there is no model."""
    if has_model(path):
        return OURS
    others = (name for name in format_names(writes=False) if name != OURS)
    return next((name for name in others if open_format(name).recognises(path)), None)


WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin")


def write_only_format(folder: str) -> str | None:
    """Return the name of the format of a folder whose model cannot be read, because bert-gpu only
    writes that format; None for other folders.
    """
    files = {name: row.file for name, row in FORMATS.items() if row.file}
    formats = [name for name, file in files.items() if os.path.exists(f"{folder}/{file}")]
    if not formats or any(os.path.exists(f"{folder}/{name}") for name in WEIGHTS):
        return None
    return formats[0] if recognise(folder) in (None, OURS) else None
