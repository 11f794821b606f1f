"""Opens the training and validation records of a run, and checks them against each other and
against dataset.json before the run writes anything.
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.base.files import json_checksum
from bert_gpu.data import examples
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.examples import Schema
from bert_gpu.data.inputs import (
    check_equal,
    check_length,
    check_pair,
    expand_globs,
    read_manifests,
    split_patterns,
)
from bert_gpu.data.masking import MaskingSpec
from bert_gpu.data.mixture import MixedSet, Mixture
from bert_gpu.data.pipeline import Masking, Reader
from bert_gpu.data.records import RecordFile, RecordSet

# records of a data set whose mean length stands for that of all
MEAN_RECORDS = 4096


class Dataset:
    """Training and validation records of one run.

    Attributes:
      train, validation: the records; validation is None without validation records.
      schema: the format of all records.
      max_seq_length: tokens per row. num_predictions: the most predicted tokens per row.
      folder: the folder of the first training shard.
      info: the Manifest (dataset.json) of `folder`; None for records from other tools.
      infos: {folder: its Manifest or None} of all folders of training shards.
      mixture: the data sets of the training records if they are mixed by weight, else None.
    """

    def __init__(
        self,
        config: InputConfig,
        paths: list[str] | None = None,
    ) -> None:
        """Open the record files and check them. paths: the training files, in place of those that
        config.input_file names; unlike there, file names may contain commas.
        """
        self.config = config
        parts = split_patterns(config.input_file) if config.input_weights else [config.input_file]
        sets = [paths] if paths else [expand_globs(part, "input_file") for part in parts]
        paths = list(itertools.chain(*sets))
        self.infos = infos = read_manifests(paths)
        self.folder = os.path.dirname(paths[0])
        self.info = infos[self.folder]
        check_equal(infos)
        held_out = [
            path
            for folder, info in infos.items()
            if info
            for path in info.paths(folder, "validation")
        ]
        shards = [
            path for folder, info in infos.items() if info for path in info.paths(folder, "train")
        ] + held_out
        missing = [path for path in shards if not os.path.exists(path)]
        if missing:
            raise UserError(
                "dataset.json names this file, but it is missing",
                "run create_pretraining_data.py again",
                where=missing[0],
            )
        validation = held_out
        if config.eval_input_file is not None:
            validation = expand_globs(config.eval_input_file, "eval_input_file")
            for folder_info in read_manifests(validation).items():
                check_pair(folder_info, (self.folder, self.info), "eval_input_file", "name others")
        excluded = {os.path.realpath(path) for path in held_out + validation}
        paths = [path for path in paths if os.path.realpath(path) not in excluded]
        if not paths:
            raise UserError(
                "matches validation shards only", setting="input_file", value=config.input_file
            )
        self.train = RecordSet(paths)
        self.validation = RecordSet(validation) if validation else None
        self.schema = schema_of(self.train.files)
        if self.validation is not None and schema_of(self.validation.files) != self.schema:
            raise other_schema(
                validation[0], schema_of(self.validation.files), paths[0], self.schema
            )
        if self.schema.kind == examples.COMPACT and self.info is None:
            raise UserError(
                "compact records need the dataset.json that was written with them, "
                "in the same folder",
                where=paths[0],
            )
        # Compact records have no sizes in their schema; their dataset.json has them, and exists.
        self.max_seq_length = (
            self.schema.max_seq_length or self.info.max_seq_length  # type: ignore[union-attr]
        )
        self.num_predictions = (
            self.schema.max_predictions_per_seq or self.info.max_predictions_per_seq  # type: ignore[union-attr]
        )
        check_length(config, self.max_seq_length, paths[0])
        self.mixture = self._mixture(sets) if config.input_weights else None

    def _mixture(self, sets: Sequence[Sequence[str]]) -> Mixture:
        """Return the data sets with their weights. sets: paths of the files of each of them."""
        real_paths = sorted(os.path.realpath(path) for paths in sets for path in paths)
        if repeated := [one for one, other in itertools.pairwise(real_paths) if one == other]:
            raise UserError(
                f"names {os.path.dirname(repeated[0])} twice, which is one data set",
                "name it once, with the sum of its weights",
                setting="input_file",
                value=self.config.input_file,
            )
        shares, weights = zip(*self.config.phases, strict=True)
        sizes = {file.path: len(file) for file in self.train.files}
        mixed = []
        end = 0
        for paths, *own in zip(sets, *weights, strict=True):
            rows = range(end, end + sum(sizes.get(path, 0) for path in paths))
            end = rows.stop
            if not rows:
                raise UserError("holds no training record", where=paths[0])
            folder = os.path.dirname(paths[0])
            info = self.infos[folder]
            mixed.append(
                MixedSet(
                    name=self._name(folder),
                    num_records=len(rows),
                    dupe_factor=self.dupe_factor(folder),
                    tokens_per_record=info.tokens_per_record if info else self._mean_tokens(rows),
                    weights=own,
                )
            )
        if exponent := self.config.temperature:
            sizes_of_text = [x.num_records * x.tokens_per_record / x.dupe_factor for x in mixed]
            powers = np.power(sizes_of_text, exponent)
            mixed = [
                one._replace(weights=[float(power), *one.weights[1:]])
                for one, power in zip(mixed, powers / powers.sum(), strict=True)
            ]
        return Mixture(mixed, *shares[1:])

    def _mean_tokens(self, rows: range) -> float:
        """Return the mean number of tokens, without padding, of MEAN_RECORDS records that are
        evenly spread over `rows`, or of all of them if they are fewer: for records of other tools,
        without a dataset.json.
        """
        reader = Reader(self.train, self.schema, self.max_seq_length, needs_predictions=False)
        indices = np.unique(np.linspace(rows.start, rows.stop - 1, MEAN_RECORDS).astype(np.int64))
        parts = np.array_split(indices, -(-len(indices) // 64))
        return sum(int(reader.read(one, one)["input_mask"].sum()) for one in parts) / len(indices)

    @property
    def validation_parts(self) -> dict[str, range]:
        """{name of its loss: its validation records} of each folder of them, if data sets are mixed
        by weight; else {}.
        """
        parts: dict[str, range] = {}
        records = self.validation if self.mixture else None
        files = [file for file in records.files if len(file)] if records else []
        end = 0
        for folder, own in itertools.groupby(files, lambda file: os.path.dirname(file.path)):
            rows = range(end, end + sum(map(len, own)))
            end = rows.stop
            parts[f"data_{self._name(folder)}_loss"] = rows
        return parts

    def _name(self, folder: str) -> str:
        """Return the name of the data set in a folder, for a metric: the folder's path below the
        one that holds all data sets, such as web, or web_128 beside books_128.
        """
        parents = [os.path.dirname(os.path.abspath(one)) for one in self.infos]
        path = os.path.relpath(os.path.abspath(folder), os.path.commonpath(parents))
        return re.sub(r"\W+", "_", path).strip("_")

    def dupe_factor(self, folder: str) -> int:
        """Return the number of passes over the text that the records of a folder hold; 1 for
        records from other tools.
        """
        info = self.infos[folder]
        if info is None:
            return 1
        return DataConfig(
            dupe_factor=info.settings["dupe_factor"], masking=info.settings["masking"]
        ).num_passes

    def identity(self) -> dict[str, object]:
        """Return, for run.json, the dict of everything that decides the batches of a run: "files"
        (name, number of records and checksum of each), "made" (the settings in dataset.json, or
        None), "max_seq_length" and, with --input_weights, "sets" (entries of MixedSets).
        """
        settings = (
            None if self.info is None else dict(tokenizer=self.info.tokenizer, **self.info.settings)
        )
        return dict(
            files=files_identity(self.train), made=settings, max_seq_length=self.max_seq_length
        ) | (dict(sets=[one._asdict() for one in self.mixture.sets]) if self.mixture else {})

    def describe(self) -> dict[str, str]:
        """Return {"the training data" or "the validation data": text with its number of records and
        a checksum of its files and settings}, so that workers can check that they read the same
        data.
        """
        parts: dict[str, tuple[RecordSet, object]] = {
            "the training data": (self.train, self.identity())
        }
        if self.validation is not None:
            parts["the validation data"] = self.validation, files_identity(self.validation)
        return {"the validation data": "none"} | {
            name: f"{len(records):,} records with checksum {json_checksum(dict(of=identity))}"
            for name, (records, identity) in parts.items()
        }

    def reader(
        self, split: str, tokenizer: Any, seed: int, limits: Mapping[str, int] | None = None
    ) -> Reader:
        """Return the Reader of "train" or "validation".

        Args:
          tokenizer: Tokenizer for records that are masked at reading; None for others.
          seed: the seed of the order and the masks.
          limits: {feature: exclusive upper bound} that a model sets, such as its vocabulary's size
            for input_ids.
        """
        masking = None
        records: Any = self.train if split == "train" else self.validation
        if self.info is not None and self.schema.kind == examples.COMPACT:
            settings = self.info.settings
            spec = MaskingSpec.from_settings(settings, self.info.max_predictions_per_seq, tokenizer)
            masking = Masking(spec, tokenizer.word_starts)
        return Reader(
            records,
            self.schema,
            self.max_seq_length,
            masking,
            seed,
            padding=self.config.padding,
            limits=limits,
            needs_predictions=self.info is not None and not self.info.masks_words,
            order=self._order() if split == "train" else None,
            mixture=self.mixture if split == "train" else None,
        )

    def _order(self) -> np.ndarray | None:
        """Return the record indices (N,) in reading order for --noshuffle, from the order file that
        dataset.json names. Return None when there is no order file, or the records are shuffled.
        """
        if self.info is None or not self.info.order_file or self.config.shuffle:
            return None
        path = os.path.join(self.folder, self.info.order_file)
        order = np.fromfile(path, "<i8") if os.path.exists(path) else np.zeros(0, np.int64)
        if not np.array_equal(np.sort(order), np.arange(len(self.train))):
            raise UserError(
                f"is not the order of the {len(self.train)} rows of --input_file",
                "train on the whole data set, or build it again",
                where=path,
            )
        return order


def files_identity(records: RecordSet) -> list[list[object]]:
    """Return [file name, number of records, checksum of all its records] for each file."""
    return [
        [os.path.basename(file.path), len(file), f"{file.fingerprint():08x}"]
        for file in records.files
    ]


def schema_of(files: Sequence[RecordFile]) -> Schema:
    """Return the Schema of the first readable record of each file, which must be the same in all
    files. Raise UserError when the Schemas differ.
    """
    schemas = {file.path: schema for file in files if (schema := first_schema(file)) is not None}
    if not schemas:
        raise UserError("holds no record", "build the data again", where=files[0].path)
    first, expected = next(iter(schemas.items()))
    for path, schema in schemas.items():
        if schema != expected:
            raise other_schema(path, schema, first, expected)
    return expected


def other_schema(path: str, schema: Schema, first: str, expected: Schema) -> UserError:
    """Return the error for two files, path and first, whose Schemas differ."""
    return UserError(
        f"holds {schema.describe()}, and {shortened_path(first)} {expected.describe()}",
        "build both with the same settings, or train on one",
        where=path,
    )


def first_schema(file: RecordFile) -> Schema | None:
    """Return the Schema of a file's first readable record; None when no record can be read."""
    record = next(
        (record for index in range(len(file)) if (record := file.read(index)) is not None), None
    )
    if record is None:
        return None
    try:
        return examples.sniff_schema(record)
    except Exception as error:  # protobuf raises several kinds of exceptions
        problem = (
            str(error) if isinstance(error, ValueError) else "its records are not tf.train.Examples"
        )
        raise UserError(problem, "this is not BERT pretraining data", where=file.path) from error
