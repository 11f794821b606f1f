"""The records of a run: opened, checked against each other and against dataset.json, before anything is written."""

import dataclasses
import os

import numpy as np
import tensorflow as tf

from bert_gpu.data import examples, manifest
from bert_gpu.data.masking import MaskingSpec
from bert_gpu.data.pipeline import PADDINGS, Masking, Reader
from bert_gpu.data.records import RecordSet
from bert_gpu.settings import Settings, UserError, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputConfig(Settings):
    """What to train on."""

    input_file: str = setting(
        "data/*.tfrecord",
        "TFRecords to train on: a glob, or several with commas between. Validation shards named in dataset.json are left out even "
        "when a glob matches them.",
    )
    eval_input_file: str | None = setting(
        None, "TFRecords to validate on, as globs. Default: the validation shards that dataset.json beside the training shards names."
    )
    max_seq_length: int | None = setting(None, "Row length that the data must have. Default: what the data says.", low=8)
    shuffle: bool = setting(True, "Read the records in a new random order each epoch. --noshuffle keeps the order of the files.")
    padding: str = setting(
        "fixed",
        "Length of a batch. fixed: max_seq_length. dynamic: its longest row. uniform: the same, and batches are made of rows of like "
        "length. The last two compile once for each length under XLA.",
        choices=PADDINGS,
    )
    length_multiple: int = setting(32, "With dynamic and uniform padding, lengths are rounded up to multiples of this.", low=1)
    skip_corrupt_records: bool = setting(False, "Leave out records that are corrupt, with a warning that names them, instead of stopping.")


class Dataset:
    """Training and validation records of one run.

    Attributes: train and validation (RecordSet, the latter or None), schema (examples.Schema), max_seq_length (S),
    info (manifest.Manifest, or None for records of others), folder (of the first training shard).
    """

    def __init__(self, config, warn=print):
        self.config, self.warn = config, warn
        paths = expand_globs(config.input_file, "--input_file")
        self.folder = os.path.dirname(paths[0])
        self.info = manifest.read_manifest(self.folder)
        validation = []
        if self.info is not None:
            validation = [os.path.normpath(path) for path in self.info.paths(self.folder, "validation")]
            paths = [path for path in paths if os.path.normpath(path) not in validation]
            missing = [path for path in self.info.paths(self.folder, "train") + validation if not tf.io.gfile.exists(path)]
            if missing:
                raise UserError(f"{missing[0]}: named in dataset.json but not there; run create_pretraining_data.py again")
        if config.eval_input_file is not None:
            validation = expand_globs(config.eval_input_file, "--eval_input_file")
        if not paths:
            raise UserError(f"--input_file={config.input_file}: matches validation shards only")
        self.train = RecordSet(paths, warn if config.skip_corrupt_records else None)
        self.validation = RecordSet(validation, warn if config.skip_corrupt_records else None) if validation else None
        if not len(self.train):
            raise UserError(f"--input_file={config.input_file}: holds no records")
        self.schema = schema_of(self.train)
        if self.validation is not None and schema_of(self.validation) != self.schema:
            raise UserError(f"{validation[0]}: its records have another schema or length than those of {paths[0]}")
        if self.schema.kind == examples.COMPACT and self.info is None:
            raise UserError(f"{paths[0]}: compact records need the dataset.json they were written with, in the same folder")
        self.max_seq_length = self.schema.max_seq_length or self.info.max_seq_length
        if config.max_seq_length not in (None, self.max_seq_length):
            raise UserError(
                f"--max_seq_length={config.max_seq_length}: the records of {paths[0]} have {self.max_seq_length} tokens; "
                "drop the flag or build the data anew"
            )

    def reader(self, split, tokenizer, seed):
        """The Reader of "train" or "validation". `tokenizer` is needed for records that are masked when read."""
        masking = None
        if self.schema.kind == examples.COMPACT:
            settings = self.info.settings
            spec = MaskingSpec(
                max_predictions=self.info.max_predictions_per_seq,
                share=settings["masked_lm_prob"],
                vocab_size=tokenizer.vocab_size,
                cls_id=tokenizer.cls_id,
                sep_id=tokenizer.sep_id,
                mask_id=tokenizer.mask_id,
                whole_word=settings["do_whole_word_mask"],
                max_ngram_size=settings["max_ngram_size"],
                ngram_weights=settings["ngram_weights"],
            )
            masking = Masking(spec, tokenizer.word_starts(np.arange(tokenizer.vocab_size)))
        return Reader(
            self.train if split == "train" else self.validation,
            self.schema,
            self.max_seq_length,
            masking,
            seed,
            padding=self.config.padding,
            length_multiple=self.config.length_multiple,
            skip_corrupt=self.warn if self.config.skip_corrupt_records else None,
        )


def expand_globs(patterns, flag):
    """Files that match comma-separated globs, sorted, each once; UserError when a pattern matches nothing."""
    paths = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        found = [path for path in tf.io.gfile.glob(pattern) if not tf.io.gfile.isdir(path)]
        if not found:
            raise UserError(f"{flag}={pattern}: no file matches; write one with create_pretraining_data.py, or name another")
        paths.update(found)
    if not paths:
        raise UserError(f"{flag}: names no file")
    return sorted(paths)


def schema_of(records):
    """The Schema of a set's first readable record."""
    if not len(records):
        raise UserError(f"{records.files[0].path}: holds no records")
    first = records.read(np.arange(1))[0]
    if first is None:  # corrupt, and corrupt records are skipped
        first = next((record for number in range(1, len(records)) if (record := records.read(np.array([number]))[0]) is not None), b"")
    try:
        return examples.sniff_schema(first)
    except Exception as error:  # protobuf raises several kinds
        what = str(error) if isinstance(error, ValueError) else "its records are no tf.train.Example"
        raise UserError(f"{records.files[0].path}: {what}; this is no BERT pretraining data") from error
