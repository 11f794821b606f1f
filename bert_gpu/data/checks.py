"""Checks the numbers of parsed records, before they are cast to int32 and reach a model.

A checksum shows only that a record is as it was written. Google's programs and this one write rows
without a prediction when they mask whole words, so the caller decides whether rows without a
prediction are bad.

Legend: B rows of a batch, S row length, P predictions a row.
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

END = 1 << 31  # the first integer that int32 cannot hold


def bad_rows(
    batch: Mapping[str, np.ndarray], limits: Mapping[str, int], needs_predictions: bool = True
) -> dict[int, str]:
    """Return {row: problem}, the first problem of each bad row.

    Args:
      batch: {feature: (B,), (B, S) or (B, P) int64; masked_lm_weights float32}; "starts", (B,), is
        0 for rows whose segment starts are wrong (examples.parse_compact).
      limits: {feature: exclusive upper bound}; features without a limit must fit int32. No value
        may be below 0.
      needs_predictions: whether a row is bad if all its masked_lm_weights are 0.
    """
    problems: dict[int, str] = {}

    def note(is_bad: npt.ArrayLike, text: str | Callable[..., str]) -> None:
        for row in np.flatnonzero(is_bad).tolist():
            problems.setdefault(row, text(row) if callable(text) else text)

    for name, values in batch.items():
        if name == "starts":
            note(values == 0, "starts do not rise from 0 to below its length")
        elif name == "masked_lm_weights":
            is_weight = np.isfinite(values) & (values >= 0)
            note(~is_weight.all(1), f"{name} are not all finite and at least 0")
            if needs_predictions:
                note(~(values > 0).any(1), f"{name} are all 0, which leaves nothing to predict")
        elif values.size and not 0 <= values.min() <= values.max() < limits.get(name, END):
            limit = limits.get(name, END)
            rows = values.reshape(len(values), -1)
            is_outside = (rows < 0) | (rows >= limit)
            note(
                is_outside.any(1),
                lambda row, name=name, rows=rows, is_outside=is_outside, limit=limit: (
                    f"{name} has {rows[row][is_outside[row]][0]}, not 0 to {limit - 1}"
                ),
            )
    note(~(batch["input_mask"] > 0).any(1), "input_mask is all 0")
    return problems
