"""Sets documents aside for validation: which ones, and enough that their loss means something.

Unless the user gives a share, it is the one that makes about NUM_ROWS rows in one pass, but no more
than a tenth of a small text and no less than a hundredth of a large one.
"""

import numpy as np

from bert_gpu.data.random_bits import derive_key, row_keys

NUM_ROWS = 500  # of 128 tokens they have 10,000 predictions, whose mean loss is known within 2 %
MARGIN = 1.3  # the number of rows is estimated, and documents differ in length
LEAST_SHARE, LARGEST_SHARE = 0.01, 0.1


def default_share(num_rows):
    """The share of the documents of a text that makes about num_rows rows in all."""
    return min(LARGEST_SHARE, max(LEAST_SHARE, MARGIN * NUM_ROWS / max(1, num_rows)))


def choose_validation(num_documents, share, seed):
    """(D,) bool: the documents set aside for validation, chosen by a hash of seed and index; at
    least one when share > 0, and never all.
    """
    if not share or num_documents < 2:
        return np.zeros(num_documents, bool)
    keys = row_keys(derive_key(seed, "validation"), np.arange(num_documents))
    num_chosen = min(num_documents - 1, max(1, round(share * num_documents)))
    chosen = np.zeros(num_documents, bool)
    chosen[np.argpartition(keys, num_chosen - 1)[:num_chosen]] = True
    return chosen


def describe(chosen, num_rows, share):
    """One line on the documents set aside. chosen: (D,) bool. num_rows: estimated, of the whole
    text. share: that the user gave, or None.
    """
    if share == 0:
        return "validation: none, as --validation_share=0 says"
    if not chosen.any():
        return (
            "validation: none, because the text is one document; "
            "training will have no eval_loss unless you give it other data"
        )
    rows = round(num_rows * chosen.mean())
    text = (
        f"validation: {int(chosen.sum()):,} of {len(chosen):,} documents "
        f"({chosen.mean():.1%}), about {rows:,} rows"
    )
    if rows >= NUM_ROWS:
        return text
    remedy = "give a larger --validation_share" if share is not None else "more text makes more"
    return f"{text}: too few for a steady eval_loss; {remedy}"
