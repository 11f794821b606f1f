"""Records -> batches of arrays, in an order that is a function of (seed, epoch) alone.

The position of a run in its data is the number of records it has consumed: epoch = position // N,
and position % N is an index into that epoch's order. A resume needs nothing else, and any number of
GPUs or micro-batches can share the same stream. Masks drawn at reading depend on (seed, epoch,
record). Records are read in a background thread, so that
the next batch is ready when a step ends.

Legend: N records, B rows of a batch, S row length, P predictions a row.
"""

import concurrent.futures
import dataclasses
import typing

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.data import checks, examples
from bert_gpu.data.masking import MaskingSpec, compile_masking
from bert_gpu.data.random_bits import derive_key, permutation, row_keys

LENGTH_MULTIPLE = 32  # of row lengths of dynamic and uniform padding
WINDOW_BATCHES = 64  # uniform padding sorts by length inside windows of this size
VALIDATION_EPOCH = -1  # validation is masked the same way every time


class LengthAxis(typing.NamedTuple):
    """A feature's axis of tokens, counted from the end, and what its padding is filled with."""

    axis: int = -1
    fill: int = 0


# of the features of (B, S)
LENGTH_AXES = dict.fromkeys(
    ("input_ids", "input_mask", "segment_ids", "sequence_ids"), LengthAxis()
)


@dataclasses.dataclass(frozen=True)
class Masking:
    """How rows are masked at reading. starts_word: (V,) bool, the pieces that begin a word."""

    spec: MaskingSpec
    starts_word: np.ndarray


class Reader:
    """Turns record indices into batches of NumPy arrays.

    Static records are returned as written; compact ones are padded and masked. A record is bad when
    its checksum is wrong, or a number in it is out of range (checks.py). With `skip_corrupt`, a
    function that gets a message for each, bad records become rows whose "row_weights" (B,) float32
    are 0; without it they raise UserError.

    limits: {feature: exclusive upper bound} beside those that every model has. needs_predictions:
    whether a static row without a prediction is bad.
    """

    def __init__(
        self,
        records,
        schema,
        max_seq_length,
        masking=None,
        seed=0,
        *,
        padding="fixed",
        skip_corrupt=None,
        limits=None,
        needs_predictions=True,
        order=None,
    ):
        self.records, self.schema, self.max_seq_length, self.masking, self.seed = (
            records,
            schema,
            max_seq_length,
            masking,
            seed,
        )
        self.padding, self.skip_corrupt = padding, skip_corrupt
        self.order = order  # (N,) of unshuffled epochs; None = the order of the files
        self.limits = dict(
            masked_lm_positions=max_seq_length,
            sequence_ids=max_seq_length + 1,
            input_mask=2,
            next_sentence_labels=2,
        ) | (limits or {})
        self.needs_predictions, self.skipped = needs_predictions, set()
        self._mask = masking and compile_masking(masking.spec)

    def __len__(self):
        return len(self.records)

    def read(self, indices, epochs):
        """The batch of the records with these indices (B,), masked for their epochs (B,)."""
        serialized = self.records.read(indices)
        problems = {row: "corrupt" for row, record in enumerate(serialized) if record is None}
        batch = self._checked(serialized, problems)
        if problems and self.skip_corrupt is None:
            row = min(problems)
            raise UserError(
                problems[row],
                "build the data again with its own vocabulary, or give --skip_corrupt_records",
                where=self.records.locate(indices[row]),
            )
        for row in sorted(problems):
            self._name_skipped(indices[row], problems[row])
        if self.masking is not None:
            batch |= self._masked(batch, indices, epochs)
        if self.skip_corrupt is not None:
            is_bad = np.isin(np.arange(len(indices)), list(problems))
            batch["row_weights"] = np.where(is_bad, 0.0, 1.0).astype(np.float32)
        return batch if self.padding == "fixed" else self._trim(batch)

    def _checked(self, serialized, problems):
        """The batch of serialized records, int32, with a blank row for each of `problems`, {row:
        text}, to which it adds those that it finds.
        """
        good = [row for row in range(len(serialized)) if row not in problems]
        whole = self._blank(len(serialized))
        if not good:
            return whole
        try:
            batch = self._parse([serialized[row] for row in good])
        except tf.errors.InvalidArgumentError:
            # one of them does not fit: which?
            misfits = [row for row in good if not self._fits(serialized[row])]
            problems |= dict.fromkeys(misfits, "does not fit the schema of the other records")
            assert misfits
            return self._checked(serialized, problems)
        found = checks.bad_rows(batch, self.limits, self.needs_predictions)
        problems |= {good[row]: text for row, text in found.items()}
        kept = rows = slice(None)
        if problems:
            kept = ~np.isin(np.arange(len(good)), list(found))
            rows = np.array(good)[kept]
        for name, values in whole.items():
            values[rows] = batch[name][kept]
        return whole

    def _blank(self, num_rows):
        """A batch of rows of one token, which stand for records that are skipped."""
        batch = {
            name: np.zeros((num_rows, *shape), np.float32 if "weights" in name else np.int32)
            for name, shape in self.schema.shapes(self.max_seq_length).items()
        }
        for name in {"input_mask", "sequence_ids"}.intersection(batch):
            batch[name][:, 0] = 1
        return batch

    def _name_skipped(self, index, problem):
        if index not in self.skipped:  # once, not in every epoch
            self.skipped.add(index)
            self.skip_corrupt(f"{self.records.locate(index)}: {problem}, skipped")

    def epoch_order(self, epoch, batch_size, shuffle):
        """The record indices (N,) of one epoch, in reading order."""
        order = np.arange(len(self)) if self.order is None else self.order
        if shuffle:
            order = epoch_order(len(self), self.seed, epoch)
        if self.padding == "uniform":
            order = bucketed(order, self.records.sizes(), self.seed, epoch, batch_size)
        return order

    def _parse(self, serialized):
        if self.schema.kind == examples.COMPACT:
            return examples.parse_compact(serialized, self.schema, self.max_seq_length)
        return examples.parse_static(serialized, self.schema)

    def _masked(self, batch, indices, epochs):
        keys = np.empty(len(indices), np.uint64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            keys[chosen] = row_keys(derive_key(self.seed, "masks", epoch), indices[chosen])
        starts = self.masking.starts_word[batch["input_ids"]]
        lengths = batch["input_mask"].sum(1, dtype=np.int32)
        return self._mask(batch["input_ids"], lengths, starts, keys)

    def _trim(self, batch):
        """Cuts the batch to its longest row, rounded up to a multiple of LENGTH_MULTIPLE."""
        longest = int(batch["input_mask"].sum(1).max())
        length = min(self.max_seq_length, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        return {
            name: value[:, :length] if name in LENGTH_AXES else value
            for name, value in batch.items()
        }

    def _fits(self, record):
        try:
            self._parse([record])
        except tf.errors.InvalidArgumentError:
            return False
        return True


def bucketed(order, sizes, seed, epoch, batch_size):
    """Sorts each window of an epoch's order (N,) by the records' sizes (N,), then shuffles the
    batches in the window.
    """
    generator = np.random.Generator(np.random.Philox(key=derive_key(seed, "buckets", epoch)))
    order = order.copy()
    # start of the first batch that lies entirely in this epoch
    first = -epoch * len(order) % batch_size
    for start in range(first, len(order), WINDOW_BATCHES * batch_size):
        window = order[start : start + WINDOW_BATCHES * batch_size]
        window = window[np.argsort(sizes[window], kind="stable")]
        whole = len(window) // batch_size * batch_size
        window[:whole] = generator.permutation(window[:whole].reshape(-1, batch_size)).reshape(-1)
        order[start : start + len(window)] = window
    return order


def epoch_order(num_records, seed, epoch):
    """The permutation (N,) of one epoch."""
    return permutation(derive_key(seed, "order", epoch), num_records)


def consume(num_records, batch_size, position, order_of):
    """Yields (indices, epochs), both (B,), without end, from `position` on. order_of(epoch) gives
    the order (N,) of an epoch.

    An epoch may end inside a batch.
    """
    epoch, order = None, None
    while True:
        positions = np.arange(position, position + batch_size)
        epochs, indices = positions // num_records, np.empty(batch_size, np.int64)
        for own in np.unique(epochs).tolist():
            if own != epoch:
                epoch, order = own, order_of(own)
            is_own = epochs == own
            indices[is_own] = order[positions[is_own] % num_records]
        yield indices, epochs
        position += batch_size


def training_batches(reader, *, batch_size, position, shuffle):
    """Yields batches of `batch_size` records without end, from `position` (records consumed) on."""
    for indices, epochs in consume(
        len(reader),
        batch_size,
        position,
        lambda epoch: reader.epoch_order(epoch, batch_size, shuffle),
    ):
        yield reader.read(indices, epochs)


def evaluation_batches(reader, *, batch_size, max_batches=None):
    """Yields all records once, in order. The last batch is filled up with rows whose "row_weights"
    (B,) float32 are 0.
    """
    num_batches = -(-len(reader) // batch_size)
    for batch in range(num_batches if max_batches is None else min(num_batches, max_batches)):
        indices = np.arange(batch * batch_size, (batch + 1) * batch_size)
        is_real = indices < len(reader)
        values = reader.read(np.where(is_real, indices, 0), np.full(batch_size, VALIDATION_EPOCH))
        yield values | {"row_weights": is_real.astype(np.float32) * values.get("row_weights", 1.0)}


def prefetch(batches, depth=2):
    """Runs an iterator in a background thread, `depth` items ahead. Errors reach the consumer;
    closing ends the thread.
    """
    batches, end = iter(batches), object()
    executor = concurrent.futures.ThreadPoolExecutor(1, "input pipeline")
    try:
        ahead = [executor.submit(next, batches, end) for _ in range(depth)]
        while (item := ahead.pop(0).result()) is not end:
            ahead.append(executor.submit(next, batches, end))
            yield item
    finally:
        executor.shutdown(cancel_futures=True)
