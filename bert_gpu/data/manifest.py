"""Reads and writes dataset.json, which describes a folder of shards, so that training can check its
input.
"""

import dataclasses
import os
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json, write_json
from bert_gpu.base.settings import Settings, fields_of, like, setting
from bert_gpu.data.config import DataConfig
from bert_gpu.text.config import TextFormat

FILE_NAME = "dataset.json"

# entries of dataset.json on pairs of segments
SHARES = ("label_1_share", "one_sentence_share", "used_token_share")
# settings of masking, which are needed to read compact records
FOR_MASKING = ("masked_lm_prob", "do_whole_word_mask", "max_ngram_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decided(Settings):
    """Settings whose values a data job finds by reading the text."""

    input_format: str = setting("lines", "Format of the files; several are separated by commas.")


# rules of the entries in dataset.json's `settings`, except the vocabulary's identity
MADE_WITH = fields_of(Decided, DataConfig, TextFormat)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(Settings):
    """The content of dataset.json. File names are relative to its folder; counts of the text cover
    training and validation together.
    """

    name: str = setting("", "Name of the data set.")
    schema: str = setting("static", "Record schema.", choices=("static", "compact"))
    objective: str = like(DataConfig, "objective")
    masking: str = like(DataConfig, "masking")
    max_seq_length: int = like(DataConfig, "max_seq_length")
    max_predictions_per_seq: int = setting(1, "Masked tokens of a row, at most.", low=1)
    vocab_file: str = setting("", "File of the vocabulary.")
    vocab_size: int = setting(1, "Pieces in the vocabulary.", low=1)
    tokenizer: str = setting("", "Identity of the tokenizer.")
    do_lower_case: bool = setting(True, "Whether text is lower-cased.")
    order_file: str = setting(
        "",
        "int64 indices of the training rows in the order that --noshuffle reads them; empty = the "
        "order of the shards.",
    )
    seed: int = setting(0, "Random seed.", low=0)
    train_shards: tuple[str, ...] = setting((), "Shards to train on.")
    validation_shards: tuple[str, ...] = setting((), "Shards to validate on.")
    num_train_instances: int = setting(0, "Records to train on.", low=0)
    num_validation_instances: int = setting(0, "Records to validate on.", low=0)
    num_documents: int = setting(0, "Documents in the text.", low=0)
    num_sentences: int = setting(0, "Sentences in the text.", low=0)
    num_tokens: int = setting(0, "Tokens in the text.", low=0)
    label_1_share: float | None = setting(
        None,
        "Share of rows with label 1: a random B (nsp), or swapped segments (sop).",
    )
    one_sentence_share: float | None = setting(
        None, "Share of rows whose chunk of the text has one sentence."
    )
    used_token_share: float | None = setting(
        None, "Share of a document's tokens that its own rows hold in one pass."
    )
    unigram_loss: float | None = setting(
        None, "Loss of masked words, in nats, that word frequencies alone give.", low=0.0
    )
    tokens_per_record: float = setting(
        0.0, "Mean tokens of a record to train on, without padding.", low=0.0
    )
    text: str = setting(
        "",
        "Hash of the content of the files of text, a colon, and one of the documents held out; "
        "empty in data sets that were made before it was stored.",
    )
    settings: dict[str, Any] = setting(
        None, "Settings that the data set was made with.", inside=MADE_WITH
    )
    inputs: list[list[object]] = setting(None, "[name, bytes, checksum] of each file of text.")

    def __repr__(self) -> str:
        return (
            f"Manifest({self.name!r}: {self.num_train_instances:,} records in "
            f"{len(self.train_shards)} files and {self.num_validation_instances:,} for validation "
            f"in {len(self.validation_shards)}, rows of {self.max_seq_length} tokens, "
            f"{self.vocab_file} of {self.vocab_size:,} pieces)"
        )

    @property
    def masks_words(self) -> bool:
        """Whether masking chose whole words or spans of words; then a row has no prediction if none
        of its words is short enough.
        """
        return self.settings["max_ngram_size"] != 1 or self.settings["do_whole_word_mask"]

    @property
    def strip_accents(self) -> bool:
        """Whether lower-casing strips accents; dataset.json has this setting only where it is
        False.
        """
        return bool(self.settings.get("strip_accents", True))

    def paths(self, folder: str, split: str) -> list[str]:
        shards = self.train_shards if split == "train" else self.validation_shards
        return [os.path.join(folder, shard) for shard in shards]


def write_manifest(folder: str, manifest: Manifest) -> None:
    write_json(os.path.join(folder, FILE_NAME), dataclasses.asdict(manifest))


def read_manifest(folder: str) -> Manifest | None:
    """Return the Manifest of a folder; None without a dataset.json, when the records come from
    another tool. Raise UserError for a dataset.json with a wrong, unknown or missing entry.
    """
    path = os.path.join(folder, FILE_NAME)
    if not os.path.exists(path):
        return None
    fields = fields_of(Manifest)
    content = read_json(path, "the description of a data set", fields)
    odd = sorted(set(content).symmetric_difference(fields) - {"text"})
    if odd:
        raise UserError(
            f"{'unknown' if odd[0] in content else 'missing'} entry {odd[0][:60]!r}",
            "rebuild the data set with --overwrite",
            where=path,
        )
    settings = content["settings"]
    missing = [name for name in ("dupe_factor", "masking", *FOR_MASKING) if name not in settings]
    if missing:
        raise UserError(
            f"missing entry settings.{missing[0]}", "build the data set again", where=path
        )
    return Manifest(
        **content | {name: tuple(content[name]) for name in ("train_shards", "validation_shards")}
    )
