"""Turns records into batches of arrays, in an order that depends on (seed, epoch) alone.

The position of a run in its data is the number of records it has consumed: epoch = position // N,
and position % N is an index into that epoch's order. A resume needs nothing else, and any number of
GPUs or micro-batches can share the same stream of records. Masks drawn at reading depend on (seed,
epoch, record). Records are read in a background thread, so that the next batch is ready when a step
ends.

Legend: N records, B rows of a batch, S row length, P predictions a row.
"""

import concurrent.futures
import dataclasses
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.data import checks, examples
from bert_gpu.data.masking import MaskingSpec, mask_rows
from bert_gpu.data.mixture import Mixture
from bert_gpu.data.random_bits import derive_key, permutation, row_keys
from bert_gpu.data.records import RecordSet

LENGTH_MULTIPLE = 32  # dynamic and uniform padding round row lengths up to a multiple of 32
WINDOW_BATCHES = 64  # uniform padding sorts by length within windows of this many batches
VALIDATION_EPOCH = -1  # a fixed epoch, so that validation is masked the same way every time
T = typing.TypeVar("T")


class LengthAxis(typing.NamedTuple):
    """The axis of a feature along which rows are padded or cut. axis: counted from the end (-1 =
    the last). fill: the value of padding.
    """

    axis: int = -1
    fill: int = 0


# the features of shape (B, S)
LENGTH_AXES = dict.fromkeys(
    ("input_ids", "input_mask", "segment_ids", "sequence_ids"), LengthAxis()
)


@dataclasses.dataclass(frozen=True)
class Masking:
    """The masking of rows when they are read. word_starts: as Tokenizer.word_starts."""

    spec: MaskingSpec
    word_starts: Callable[[np.ndarray], np.ndarray]


class Reader:
    """Turns record indices into batches of NumPy arrays.

    Static records are returned as written; compact ones are padded and masked. A record is bad when
    its checksum is wrong, or a number in it is out of range (checks.py); it raises UserError.

    limits: {feature: exclusive upper bound} in addition to the limits that hold for every model.
    needs_predictions: whether a static row without a prediction is bad.
    order: (N,) record indices in the order of unshuffled epochs; None = the order of the files.
    mixture: the data sets that the records are of, if they are mixed by weight; else None.
    """

    def __init__(
        self,
        records: RecordSet,
        schema: examples.Schema,
        max_seq_length: int,
        masking: Masking | None = None,
        seed: int = 0,
        *,
        padding: str = "fixed",
        limits: Mapping[str, int] | None = None,
        needs_predictions: bool = True,
        order: np.ndarray | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        self.mixture = mixture
        self.records = records
        self.schema = schema
        self.max_seq_length = max_seq_length
        self.masking = masking
        self.seed = seed
        self.padding = padding
        self.order = order
        self.limits = dict(
            masked_lm_positions=max_seq_length,
            sequence_ids=max_seq_length + 1,
            input_mask=2,
            next_sentence_labels=2,
        ) | dict(limits or {})
        self.needs_predictions = needs_predictions

    def __len__(self) -> int:
        return len(self.records)

    def read(self, indices: np.ndarray, epochs: np.ndarray) -> dict[str, np.ndarray]:
        """Return the batch, {feature: array}, of the records with these indices (B,). Masks that
        are drawn at reading depend on `epochs` (B,), the epoch of each record.
        """
        batch = self._checked(self.records.read(indices), indices)
        if self.masking is not None:
            batch |= self._masked(self.masking, batch, indices, epochs)
        return batch if self.padding == "fixed" else self._trim(batch)

    def _checked(self, serialized: Sequence[bytes], indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return the batch, {feature: array}, of the bytes of the records with these indices (B,).
        Raise UserError about a bad record.
        """
        try:
            batch = self._parse(serialized)
            problems = checks.bad_rows(batch, self.limits, self.needs_predictions)
        except tf.errors.InvalidArgumentError:
            # the error does not name the record, so each record is tried alone
            rows = [row for row, record in enumerate(serialized) if not self._fits(record)]
            problems = dict.fromkeys(rows, "does not fit the schema of the other records")
        if problems:
            row = min(problems)
            raise UserError(
                problems[row],
                "build the data again with its own vocabulary",
                where=self.records.locate(indices[row]),
            )
        names = [*self.schema.shapes(self.max_seq_length), *["word_starts"] * bool(self.masking)]
        return {
            name: batch[name].astype(np.float32 if "weights" in name else np.int32)
            for name in names
        }

    def epoch_order(self, epoch: int, batch_size: int, shuffle: bool) -> np.ndarray:
        """Return the record indices (N,) of one epoch, in reading order."""
        order = np.arange(len(self)) if self.order is None else self.order
        if shuffle:
            order = epoch_order(len(self), self.seed, epoch)
        if self.padding == "uniform":
            order = bucketed(order, self.records.sizes(), self.seed, epoch, batch_size)
        return order

    def _parse(self, serialized: Sequence[bytes]) -> dict[str, np.ndarray]:
        with tf.device("CPU:0"):  # the GPU has the training step to do
            if self.schema.kind == examples.COMPACT:
                return examples.parse_compact(serialized, self.schema, self.max_seq_length)
            return examples.parse_static(serialized, self.schema)

    def _masked(
        self,
        masking: Masking,
        batch: dict[str, np.ndarray],
        indices: np.ndarray,
        epochs: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Return the features of masked words; take word_starts from the batch."""
        keys = np.empty(len(indices), np.uint64)
        for epoch in np.unique(epochs):
            is_own = epochs == epoch
            keys[is_own] = row_keys(derive_key(self.seed, "masks", epoch), indices[is_own])
        starts = masking.word_starts(batch["input_ids"])
        marked = batch.pop("word_starts") > 0
        starts = np.where(marked.any(1, keepdims=True), marked, starts)
        lengths = batch["input_mask"].sum(1, dtype=np.int32)
        return mask_rows(batch["input_ids"], lengths, starts, keys, masking.spec)

    def _trim(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch cut to the length of its longest row, rounded up to a multiple of
        LENGTH_MULTIPLE.
        """
        longest = int(batch["input_mask"].sum(1).max())
        length = min(self.max_seq_length, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        return {
            name: value[:, :length] if name in LENGTH_AXES else value
            for name, value in batch.items()
        }

    def _fits(self, record: bytes) -> bool:
        try:
            self._parse([record])
        except tf.errors.InvalidArgumentError:
            return False
        return True


def bucketed(
    order: np.ndarray, sizes: np.ndarray, seed: int, epoch: int, batch_size: int
) -> np.ndarray:
    """Return an epoch's order (N,) for uniform padding: within each window of WINDOW_BATCHES
    batches, records are sorted by size, so that a batch has records of similar length, and then the
    batches are shuffled.

    order: (N,) record indices, modulo the number of sizes. sizes: size of each record.
    """
    generator = np.random.Generator(np.random.Philox(key=derive_key(seed, "buckets", epoch)))
    order = order.copy()
    # start of the first batch that lies entirely in this epoch
    first = -epoch * len(order) % batch_size
    for start in range(first, len(order), WINDOW_BATCHES * batch_size):
        window = order[start : start + WINDOW_BATCHES * batch_size]
        window = window[np.argsort(sizes[window % len(sizes)], kind="stable")]
        end = len(window) // batch_size * batch_size
        window[:end] = generator.permutation(window[:end].reshape(-1, batch_size)).reshape(-1)
        order[start : start + len(window)] = window
    return order


def epoch_order(num_records: int, seed: int, epoch: int) -> np.ndarray:
    """Return the record indices (N,) in the shuffled order of one epoch."""
    return permutation(derive_key(seed, "order", epoch), num_records)


def consume(
    num_records: int, batch_size: int, position: int, order_of: Callable[[int], np.ndarray]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (record indices, their epochs), both (B,), of one batch after another, without end. The
    first batch begins after `position` consumed records. order_of(epoch) returns the record indices
    (N,) in that epoch's order.

    An epoch may end inside a batch.
    """
    epoch = None
    order = np.empty(0, np.int64)
    while True:
        positions = np.arange(position, position + batch_size)
        epochs = positions // num_records
        indices = np.empty(batch_size, np.int64)
        for own in np.unique(epochs).tolist():
            if own != epoch:
                epoch = own
                order = order_of(own)
            is_own = epochs == own
            indices[is_own] = order[positions[is_own] % num_records]
        yield indices, epochs
        position += batch_size


def training_batches(
    reader: Reader, *, batch_size: int, position: int, shuffle: bool
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yield batches of `batch_size` records without end; the first begins after `position` consumed
    records.
    """
    if reader.mixture is not None:
        yield from mixed_batches(reader, reader.mixture, batch_size, position, shuffle)
    for indices, epochs in consume(
        len(reader),
        batch_size,
        position,
        lambda epoch: reader.epoch_order(epoch, batch_size, shuffle),
    ):
        yield reader.read(indices, epochs)


def mixed_batches(
    reader: Reader, mixture: Mixture, batch_size: int, position: int, shuffle: bool
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches as `training_batches` does, of data sets mixed by weight. With uniform padding
    their shares hold where a window ends, and change only there.
    """
    size = WINDOW_BATCHES * batch_size
    first = position // size
    is_uniform = reader.padding == "uniform"
    unit = size if is_uniform else 1
    orders = mixture.orders(first, size, reader.seed if shuffle else None, unit)
    if is_uniform:
        lengths = reader.records.sizes()
        orders = (
            bucketed(order, lengths, reader.seed, window, batch_size)
            for window, order in enumerate(orders, first)
        )
    for order, _ in consume(size, batch_size, position, lambda _: next(orders)):
        epochs, indices = np.divmod(order, len(reader))
        yield reader.read(indices, epochs)


def evaluation_batches(
    reader: Reader,
    *,
    batch_size: int,
    max_batches: int | None = None,
    part: range | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of all records, or of those in `part`, each once, in the order of the files,
    but at most max_batches. The last batch is filled up with rows whose "row_weights" (B,) float32
    are 0.
    """
    part = range(len(reader)) if part is None else part
    num_batches = -(-len(part) // batch_size)
    for batch in range(num_batches if max_batches is None else min(num_batches, max_batches)):
        indices = part.start + np.arange(batch * batch_size, (batch + 1) * batch_size)
        is_real = indices < part.stop
        indices = np.where(is_real, indices, part.start)
        values = reader.read(indices, np.full(batch_size, VALIDATION_EPOCH))
        yield values | {"row_weights": is_real.astype(np.float32)}


def prefetch(batches: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Yield the items of an iterable, which a background thread reads `depth` items ahead. Errors
    in the thread are raised to the consumer; closing the generator ends the thread.
    """
    items = iter(batches)
    end: typing.Any = object()
    executor = concurrent.futures.ThreadPoolExecutor(1, "input pipeline")
    try:
        ahead = [executor.submit(next, items, end) for _ in range(depth)]
        while (item := ahead.pop(0).result()) is not end:
            ahead.append(executor.submit(next, items, end))
            yield item
    finally:
        executor.shutdown(cancel_futures=True)
