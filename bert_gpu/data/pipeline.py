"""TFRecords -> batches of arrays, in an order that is a function of (seed, epoch) alone.

The position of a run in its data is one number, how many records it has consumed: epoch = position // N, and the record is the
(position % N)-th of that epoch's permutation. Nothing else has to be saved for a resume, and any number of GPUs or micro-batches can
share the same stream. Records are read in a background thread, so that the next batch is ready when a step ends.
"""

import dataclasses
import os
import queue
import threading

import numpy as np
import tensorflow as tf

from bert_gpu.data import examples, manifest
from bert_gpu.data.chance import derive_key
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
    max_seq_length: int | None = setting(None, "Row length that the data must have. Default: what the records say.", low=8)
    shuffle: bool = setting(True, "Read the records in a new random order each epoch. --noshuffle keeps the order of the files.")


class Dataset:
    """Training and validation records of one run, checked against each other.

    Attributes: schema (examples.Schema), train and validation (RecordSet or None), info (manifest.Manifest or None for foreign
    records), folder of the first training shard.
    """

    def __init__(self, config):
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
        self.train = RecordSet(paths)
        self.validation = RecordSet(validation) if validation else None
        self.schema = schema_of(self.train)
        if self.validation is not None and schema_of(self.validation) != self.schema:
            raise UserError(f"{validation[0]}: its records have another schema or length than those of {paths[0]}")
        if config.max_seq_length not in (None, self.schema.max_seq_length):
            raise UserError(
                f"--max_seq_length={config.max_seq_length}: the records of {paths[0]} have {self.schema.max_seq_length} tokens; "
                "drop the flag or build the data anew"
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
    try:
        return examples.sniff_schema(records.read(np.array([0]))[0])
    except Exception as error:  # protobuf raises several kinds
        what = str(error) if isinstance(error, ValueError) else "its records are no tf.train.Example"
        raise UserError(f"{records.files[0].path}: {what}; this is no BERT pretraining data") from error


def epoch_order(num_records, seed, epoch, shuffle):
    """The record numbers (N,) of one epoch in their order."""
    if not shuffle:
        return np.arange(num_records)
    generator = np.random.Generator(np.random.Philox(key=derive_key(seed, "order", epoch)))
    return generator.permutation(num_records)


def training_batches(records, schema, *, batch_size, position, seed, shuffle):
    """Endless batches of `batch_size` records from `position` on; an epoch's end falls anywhere inside a batch."""
    num_records, epoch, order = len(records), None, None
    while True:
        numbers = []
        wanted = batch_size
        while wanted:
            if position // num_records != epoch:
                epoch = position // num_records
                order = epoch_order(num_records, seed, epoch, shuffle)
            start = position % num_records
            part = order[start : start + wanted]
            numbers.append(part)
            position += len(part)
            wanted -= len(part)
        yield parse(records, np.concatenate(numbers), schema)


def evaluation_batches(records, schema, *, batch_size, max_batches=None):
    """All records once, in order. The last batch is filled up with rows whose "row_weights" (B,) float32 are 0."""
    num_batches = -(-len(records) // batch_size)
    for batch in range(num_batches if max_batches is None else min(num_batches, max_batches)):
        numbers = np.arange(batch * batch_size, (batch + 1) * batch_size)
        is_real = numbers < len(records)
        parsed = parse(records, np.where(is_real, numbers, 0), schema)
        yield parsed | {"row_weights": is_real.astype(np.float32)}


def parse(records, numbers, schema):
    """The records `numbers` as a dict of NumPy arrays."""
    serialized = records.read(numbers)
    try:
        parsed = examples.parse_static(serialized, schema)
    except tf.errors.InvalidArgumentError as error:
        where = next((n for n, record in zip(numbers, serialized, strict=True) if not fits(record, schema)), numbers[0])
        raise UserError(f"{records.locate(where)}: does not fit the schema of the other records") from error
    return {name: value.numpy() for name, value in parsed.items()}


def fits(record, schema):
    try:
        return examples.sniff_schema(record) == schema
    except Exception:  # whatever it is, it does not fit
        return False


def prefetch(batches, depth=2):
    """Runs an iterator in a background thread, `depth` items ahead. Errors reach the consumer; closing ends the thread."""
    ready, stopped = queue.Queue(depth), threading.Event()
    end = object()

    def offer(item):
        while not stopped.is_set():
            try:
                return ready.put(item, timeout=0.1)
            except queue.Full:
                continue

    def produce():
        try:
            for item in batches:
                offer((item, None))
                if stopped.is_set():
                    return
            offer((end, None))
        except BaseException as error:  # handed to the consumer, which raises it
            offer((end, error))

    thread = threading.Thread(target=produce, name="input pipeline", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        stopped.set()
        thread.join()
