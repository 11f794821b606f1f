"""Assembles the batches for one call into TensorFlow, which runs one or more steps."""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import numpy as np

from bert_gpu.data.mixture import Mixture
from bert_gpu.data.pipeline import LengthAxis


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The records that a run trains on.

    open_batches: function of (batch_size=, position=) that returns an endless iterator of batches;
    position counts the records consumed before. num_records: records of an epoch, each one example.
    max_seq_length: tokens of the longest row. length_axes: {feature: LengthAxis, the axis that is
    as long as the rows} where batches differ in row length; {} = all rows have one length.
    rows_per_example: rows of tokens in an example. dupe_factor: how many times the records contain
    the text; None in fine-tuning. mixture: the data sets that are mixed by weight, if any.
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
) -> list[dict[str, np.ndarray]]:
    """Return one batch for each of the next `num_steps` steps, joined from `units` of data; the
    rows of all batches are padded to one length.

    num_micro_batches: how many units each step takes, from `BatchPlan.num_micro_batches_at`; None =
    one. length_axes: as in TrainingData.
    """
    counts = num_micro_batches or [1] * num_steps
    return pad_to_longest(
        [join([next(units) for _ in range(count)], length_axes) for count in counts], length_axes
    )


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
