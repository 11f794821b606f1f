"""Gives a model more positions than it has learnt: interpolates its table of position embeddings.

Rows between the learned ones keep the order of all positions, and their distances shrink. Rows that
repeat the learned ones (Beltagy et al. 2020, Longformer, 3.2) make tokens that are n apart alike,
and a small model learns more slowly from them (dev/measurements.md). Imports no TensorFlow.

Legend: P learned rows, E embedding width.
"""

from collections.abc import Mapping

import numpy as np

from bert_gpu.model.weights import WeightSpec


def interpolated(table: np.ndarray, num_rows: int) -> np.ndarray:
    """Return a table of position embeddings with more rows, or cut to its first rows: (P, E) ->
    (num_rows, E). The first and the last row are kept, and the others lie evenly between them.
    table: the learned rows only, without unused rows before them.
    """
    num_learned = len(table)
    if num_rows <= num_learned:
        return table[:num_rows]
    places = np.linspace(0, num_learned - 1, num_rows)
    columns = [np.interp(places, np.arange(num_learned), column) for column in table.T]
    return np.stack(columns, 1).astype(table.dtype)


def fit_positions(
    weights: Mapping[str, np.ndarray], specs: Mapping[str, WeightSpec], first_position: int = 0
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return a model's weights, with each table of position embeddings changed to its number of
    rows in `specs`, and a text for the log on each table that has become larger. specs: {name of
    the weight: WeightSpec}. first_position: row of the first token; the rows before it are kept.
    """
    fitted = dict(weights)
    for name in (name for name in weights.keys() & specs.keys() if "position" in name):
        table = weights[name]
        num_rows, *width = specs[name].shape
        if len(table) != num_rows and [*table.shape[1:]] == width:
            learned = interpolated(table[first_position:], num_rows - first_position)
            fitted[name] = np.concatenate([table[:first_position], learned])
    return fitted, tuple(
        f"{name}: {len(weights[name])} rows interpolated to {len(table)}"
        for name, table in fitted.items()
        if len(table) > len(weights[name])
    )
