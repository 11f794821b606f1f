"""Checks the numbers of parsed records, before they are cast to int32 and reach a model.

A checksum tells only that a record is as it was written. Google's programs write rows without a
prediction when they mask whole words, and so do ours, so the caller says whether these are bad.

Legend: B rows of a batch, S row length, P predictions a row.
"""

import numpy as np

END = 1 << 31  # of what int32 holds


def bad_rows(batch, limits, needs_predictions=True):
    """{row: what is wrong with it}, the first problem of each bad row.

    Args:
      batch: {feature: (B,), (B, S) or (B, P) int64; masked_lm_weights float32}; "starts" is that of
        examples.parse_compact.
      limits: {feature: exclusive upper bound}; the others must fit int32. All are at least 0.
      needs_predictions: whether a row all of whose masked_lm_weights are 0 is bad.
    """
    problems = {}

    def note(is_bad, text):
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
            limit, rows = limits.get(name, END), values.reshape(len(values), -1)
            is_outside = (rows < 0) | (rows >= limit)
            note(
                is_outside.any(1),
                lambda row, name=name, rows=rows, is_outside=is_outside, limit=limit: (
                    f"{name} has {rows[row][is_outside[row]][0]}, not 0 to {limit - 1}"
                ),
            )
    note(~(batch["input_mask"] > 0).any(1), "input_mask is all 0")
    return problems
