"""Gives a model more positions than it has learnt: repeats the rows of its table of position
embeddings, or interpolates between them.

Random rows would have to be learnt anew. Rows that repeat the learned ones tell neighbours apart as
before, but not tokens that are n apart (Beltagy et al. 2020, Longformer, 3.2); rows between the
learned ones keep the order of all positions, and their distances shrink. The default is the method
with which a small model learns faster (dev/measurements.md). Imports no TensorFlow.

Legend: P learned rows, E embedding width.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_gpu.base.settings import setting

VERBS = dict(repeat="repeated", interpolate="interpolated")  # {value of the flag: word in the log}


def position_extension() -> Any:
    """Return the dataclass field of the flag --position_extension, for the settings of pretraining
    and of fine-tuning.
    """
    return setting(
        "interpolate",
        "How a model gets more positions than the n that it has learnt: repeat = position i begins "
        "with row i mod n; interpolate = the n rows are spread over all positions, with the others "
        "between them.",
        choices=tuple(VERBS),
    )


def extended(table: np.ndarray, num_rows: int, how: str) -> np.ndarray:
    """Return a table of position embeddings with more rows, or cut to its first rows: (P, E) ->
    (num_rows, E).

    Args:
      table: the learned rows only, without unused rows before them.
      how: a key of VERBS. Interpolation is linear, and keeps the first and the last row.
    """
    num_learned = len(table)
    if num_rows <= num_learned or how == "repeat":
        return table[np.arange(num_rows) % num_learned]
    places = np.arange(num_rows) * (num_learned - 1) / (num_rows - 1)
    below = np.floor(places).astype(int)
    above = np.minimum(below + 1, num_learned - 1)
    weight = (places - below)[:, None]
    return ((1 - weight) * table[below] + weight * table[above]).astype(table.dtype)


def fit_positions(
    weights: Mapping[str, np.ndarray],
    shapes: Mapping[str, tuple[int, ...]],
    how: str,
    first_position: int = 0,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return a model's weights, with each table of position embeddings changed to its number of
    rows in `shapes`, and a text for the log on each table that has become larger. shapes: {name of
    the weight: shape}. how: as for `extended`. first_position: row of the first token; the rows
    before it are kept.
    """
    fitted = dict(weights)
    notes = []
    for name, table in weights.items():
        shape = shapes.get(name, table.shape)
        if "position" in name and table.shape != shape and table.shape[1:] == shape[1:]:
            unused = table[:first_position]
            learned = extended(table[first_position:], shape[0] - first_position, how)
            fitted[name] = np.concatenate([unused, learned])
            if shape[0] > len(table):
                notes.append(f"{name}: {len(table)} rows {VERBS[how]} to {shape[0]}")
    return fitted, notes
