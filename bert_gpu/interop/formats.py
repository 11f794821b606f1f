"""Table of the formats in which models are read and written, and the interface of a format's
module.

The module of a format lies in this package and has the functions of `FormatModule`. It is imported
when it is needed, so that the packages that only it needs are not loaded for other formats. A new
format needs a module and a row in FORMATS.
"""

import importlib
import os
import typing
from collections.abc import Mapping

from bert_gpu.model.config import ModelConfig
from bert_gpu.text.long_texts import LongTexts

if typing.TYPE_CHECKING:
    import numpy as np

    from bert_gpu.text.tokenizers.wordpiece import Tokenizer


class Embedding(typing.NamedTuple):
    """Rules by which a sentence model, the content of a folder of sentence-transformers, makes a
    vector from a text; the defaults are for a model of any other kind.

    Attributes:
      pooling: how the vectors of tokens become one, as --pooling.
      is_normalized: whether vectors are scaled to the length 1.
      prefix: text that is put before each text of which nobody says what it is.
      query_prefix: text that is put before each query of a search.
      passage_prefix: text that is put before each text that a search finds.
      lowers: whether texts are lower-cased before they are tokenized.
      lacking: names of the folder's rules that bert-gpu does not compute, as text; "" for none.
    """

    pooling: str | None = None
    is_normalized: bool = False
    prefix: str = ""
    query_prefix: str = ""
    passage_prefix: str = ""
    lowers: bool = False
    lacking: str = ""

    def of_pairs(self) -> "Embedding":
        """Return these rules with the default prefix as that of queries and passages where they
        have none.
        """
        if self.query_prefix or self.passage_prefix:
            return self
        return self._replace(query_prefix=self.prefix, passage_prefix=self.prefix)

    def trained_from(self, start: "Embedding") -> "Embedding":
        """Return these rules, those of a training, with what it takes over from the model that it
        started from: lower-casing, and which prefix is the default, where that model has one.
        """
        own = {start.query_prefix: self.query_prefix, start.passage_prefix: self.passage_prefix}
        prefix = own.get(start.prefix, start.prefix) if start.prefix else self.prefix
        return self._replace(prefix=prefix, lowers=start.lowers)

    @property
    def is_known(self) -> bool:
        """Return whether the rules are there and bert-gpu computes what they say."""
        return bool(self.pooling) and not self.lacking


class Notes(typing.NamedTuple):
    """Facts about a model's files, beside its config and weights.

    Attributes:
      missing: bert-gpu's names of the weights that the files lack.
      unused: names of the tensors in the files that bert-gpu does not use.
      architecture: a class of `transformers` such as BertForMaskedLM, which determines the heads.
      labels: names of a classifier's classes.
      problem_type: meaning of a classifier's scores, as in a config.json of `transformers`; None =
        scores of classes of which one is right.
      foreign: the class that config.json names, where bert-gpu has no such head; None otherwise.
      max_seq_length: number of tokens at which texts were cut in training; None = not known.
      long_texts: what a classifier reads of longer texts.
      task_name: name of the task that transformers' scripts trained the model for, if known.
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
    long_texts: LongTexts = LongTexts()
    task_name: str | None = None


class Model(typing.NamedTuple):
    """A model in memory.

    Attributes:
      weights: {bert-gpu's name: float32 array}.
      tokenizer: None for a model without a vocabulary.
      card: facts on the training for the model card, {heading: {name: text}}; None where they are
        not known.
      task: {name: bytes} of the files that say how the model is used (usage.usage_files), as they
        were read. usage.written_usage returns those to write.
    """

    config: ModelConfig
    weights: dict[str, "np.ndarray"]
    notes: Notes
    tokenizer: "Tokenizer | None" = None
    card: Mapping[str, Mapping[str, str]] | None = None
    task: Mapping[str, bytes] | None = None

    @property
    def longer_texts(self) -> str:
        """What a classifier reads of texts that are longer than a row; "" where they are cut."""
        return self.notes.long_texts.describe(
            self.notes.max_seq_length or self.config.num_positions
        )


class FormatModule(typing.Protocol):
    """The functions that the module of a format provides; the first three only where the format is
    read. Importing the module must load neither TensorFlow nor anything else that is slow, because
    `recognise` tries the module of every format on a path. Only bert-gpu's own format is recognised
    without its module.
    """

    def recognises(self, path: str) -> bool:
        """Return whether a path (a folder, a file, or the prefix of a checkpoint's files) is a
        model in this format. Look only at names of files and at their first bytes.
        """

    def read_config(self, path: str) -> ModelConfig:
        """Return the ModelConfig of a model in this format. Raise UserError when it cannot be
        read.
        """

    def read(self, path: str) -> Model:
        """Return the model without its tokenizer: models.open_model reads that, because the
        tokenizer's files are the same in every format. Raise UserError for files that are damaged
        or contradict each other.
        """

    def write(self, model: Model, folder: str, precision: str = "float32") -> str:
        """Write a model's folder, as a whole or not at all, and return the line that the command
        prints last. Raise UserError, before anything is written, when the format cannot hold the
        model. precision: number format of matrices and products in a SavedModel.
        """


OURS = "huggingface"  # the format in which a training writes its model
# {name of the format and of its module: whether bert-gpu reads it; it writes all formats}
FORMATS = {OURS: True, "google": True, "garden": True, "savedmodel": False, "onnx": False}


def format_names(*, writes: bool) -> tuple[str, ...]:
    """Return the names of all formats if `writes`, because all can be written, else of those that
    can be read.
    """
    return tuple(name for name, is_read in FORMATS.items() if writes or is_read)


def open_format(name: str) -> FormatModule:
    """Import and return the module of a format."""
    return importlib.import_module(f"{__package__}.{name}")


def has_model(path: str) -> bool:
    """Return whether a folder holds a model in bert-gpu's own format, which is Hugging Face's."""
    return os.path.exists(os.path.join(path, "config.json"))


def recognise(path: str) -> str | None:
    """Return the name of the format of the model at a path; None where there is no model."""
    if has_model(path):
        return OURS
    others = (name for name in format_names(writes=False) if name != OURS)
    return next((name for name in others if open_format(name).recognises(path)), None)
