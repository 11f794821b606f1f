"""Assembles the batches for one call into TensorFlow, which runs one or more steps."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import numpy as np

from bert_gpu.data.mixture import Mixture
from bert_gpu.data.pipeline import LengthAxis

ROWS = ("input_ids", "input_mask", "segment_ids")  # the features of rows of tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The records that a run trains on.

    open_batches: function of (batch_size=, position=) that returns an endless iterator of batches;
    position counts the records consumed before. num_records: records of an epoch, each one example.
    max_seq_length: tokens of the longest row. length_axes: {feature: LengthAxis, the axis that is
    as long as the rows} where batches differ in row length; {} = all rows have one length.
    rows_per_example: rows of tokens in an example, at most. dupe_factor: how many times the records
    contain the text; None in fine-tuning. mixture: the data sets that are mixed by weight, if any.
    """

    open_batches: Callable[..., Generator[dict[str, np.ndarray], None, None]]
    num_records: int
    max_seq_length: int
    length_axes: Mapping[str, LengthAxis]
    rows_per_example: int = 1
    dupe_factor: int | None = None
    mixture: Mixture | None = None


def take_batches(
    units: Iterator[dict[str, np.ndarray]],
    num_steps: int,
    num_micro_batches: Sequence[int] | None,
    length_axes: Mapping[str, LengthAxis],
    micro_batch_size: int,
) -> list[dict[str, np.ndarray]]:
    """Return one batch for each of the next `num_steps` steps, joined from `units` of data; the
    rows of all batches are padded to one length, and `gather_windows` has gathered them.

    num_micro_batches: how many units each step takes, from `BatchPlan.num_micro_batches_at`; None =
    one. length_axes: as in TrainingData. micro_batch_size: examples that a replica takes at once.
    """
    counts = num_micro_batches or [1] * num_steps
    batches = [join([next(units) for _ in range(count)], length_axes) for count in counts]
    return gather_windows(pad_to_longest(batches, length_axes), micro_batch_size)


def gather_windows(
    batches: list[dict[str, np.ndarray]], micro_batch_size: int
) -> list[dict[str, np.ndarray]]:
    """Return the batches with the rows that texts have, and few empty ones: where texts have
    windows, (G, W, S), of which the first num_windows (G,) are rows, becomes (P M, S), M rows for
    each of the P micro-batches of all replicas. window_texts, int32 (P M,), is the index of each
    row's text in its micro-batch, -1 of a row that is none.

    M is the same for all batches, and one of few numbers, because each is compiled.
    """
    if "num_windows" not in batches[0]:
        return batches
    parts = [batch["num_windows"].reshape(-1, micro_batch_size) for batch in batches]
    most = max(int(part.sum(1).max()) for part in parts)
    num_rows = min(
        micro_batch_size * batches[0]["input_ids"].shape[1],
        next(
            size
            for doubled in (micro_batch_size << doublings for doublings in range(most))
            for size in (doubled, (3 * doubled + 1) // 2)
            if size >= most
        ),
    )
    gathered = []
    for batch, counts in zip(batches, parts, strict=True):
        _, num_windows, length = batch["input_ids"].shape
        is_row = np.arange(num_rows) < counts.sum(1)[:, None]
        places = np.zeros(is_row.shape, np.int64)
        places[is_row] = np.flatnonzero(np.arange(num_windows) < counts.reshape(-1, 1))
        texts = np.where(is_row, places // num_windows % micro_batch_size, -1).ravel()
        rows = {name: batch[name].reshape(-1, length)[places.ravel()] for name in ROWS}
        rows["input_mask"][texts < 0, 1:] = 0  # a row that is none has one token of some text
        gathered.append(batch | rows | dict(window_texts=texts.astype(np.int32)))
    return gathered


def join(
    units: list[dict[str, np.ndarray]], length_axes: Mapping[str, LengthAxis]
) -> dict[str, np.ndarray]:
    """Return one batch with the records of several `units` of data (small batches), padded to one
    row length.
    """
    if len(units) == 1:
        return units[0]
    units = pad_to_longest(units, length_axes)
    return {name: np.concatenate([unit[name] for unit in units]) for name in units[0]}


def pad_to_longest(
    batches: list[dict[str, np.ndarray]], length_axes: Mapping[str, LengthAxis]
) -> list[dict[str, np.ndarray]]:
    """Return the batches with all rows padded to the longest row of any of them; with dynamic
    padding, batches differ in row length.
    """
    lengths = [
        value.shape[length_axes[name].axis]
        for batch in batches
        for name, value in batch.items()
        if name in length_axes
    ]
    return [pad_rows(batch, max(lengths, default=0), length_axes) for batch in batches]


def pad_rows(
    batch: Mapping[str, np.ndarray], length: int, length_axes: Mapping[str, LengthAxis]
) -> dict[str, np.ndarray]:
    """Return a batch with its rows padded to `length` tokens."""
    return {
        name: pad_axis(value, length, *length_axes[name]) if name in length_axes else value
        for name, value in batch.items()
    }


def pad_axis(values: np.ndarray, length: int, axis: int, fill: int) -> np.ndarray:
    """Return `values` with `fill` appended along `axis` until this axis has `length` entries."""
    missing = length - values.shape[axis]
    widths = np.zeros((values.ndim, 2), int)
    widths[axis, 1] = missing
    return np.pad(values, widths, constant_values=fill) if missing else values
