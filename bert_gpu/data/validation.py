"""Sets documents aside for validation: which ones, and enough that their loss means something.

Unless the user gives a share, it is the one that makes about NUM_ROWS rows in one pass, but no more
than a tenth of a small text, and of a large one a hundredth, up to MOST_ROWS. Documents are
counted, not their bytes; but one that alone has far more of the text than the share is left to
training.
"""

import math

import numpy as np

from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.text import corpus

NUM_ROWS = 500  # of 128 tokens they have 10,000 predictions, whose mean loss is known within 2 %
MARGIN = 1.3  # the number of rows is estimated, and documents differ in length
LEAST_SHARE, LARGEST_SHARE = 0.01, 0.1
MOST_ROWS = 10_000  # a run validates at every checkpoint
FAR_MORE = 2.0  # times the share, of the bytes of the text


def default_share(num_rows):
    """The share of the documents of a text that makes about num_rows rows in all."""
    num_rows = max(1, num_rows)
    least = min(LEAST_SHARE, MOST_ROWS / num_rows)
    return min(LARGEST_SHARE, max(least, MARGIN * NUM_ROWS / num_rows))


def most_bytes(blocks, share):
    """Bytes of text above which a document has far more than the share of all blocks (list of
    corpus.Block), or than an equal part of them.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents
    num_bytes = sum(block.num_bytes for block in blocks)
    return FAR_MORE * max(share, 1 / num_documents) * num_bytes


def document_sizes(block, most=math.inf):
    """(D,) bytes of text of the documents of a block. One of no more than `most` bytes is not read
    for that: their mean.
    """
    if block.num_documents == 1 or block.num_bytes <= most:
        return np.full(block.num_documents, block.num_bytes / block.num_documents)
    return corpus.document_bytes(block)


def find_large(blocks, most):
    """(D,) bool: the documents of more than `most` bytes of text."""
    return np.concatenate([document_sizes(block, most) > most for block in blocks])


def bytes_of(blocks, chosen, most=math.inf):
    """Bytes of text of the chosen documents, (D,) bool; see `document_sizes`."""
    parts = [chosen[corpus.Window((block,)).documents] for block in blocks]
    return sum(
        document_sizes(block, most)[part].sum()
        for block, part in zip(blocks, parts, strict=True)
        if part.any()
    )


def least_documents(objective: str) -> int:
    """Return how many documents a split needs: two for nsp, which draws second segments from
    another document of the split.
    """
    return 2 if objective == "nsp" else 1


def choose_validation(num_documents, share, seed, is_large=None, is_dropped=None, least=1):
    """(D,) bool: the documents set aside for validation, chosen by a hash of seed and index.

    Args:
      num_documents: D. share: of the documents; at least `least` are chosen when it is above 0.
      is_large: (D,) bool, those that are passed over, unless there are too few others.
      is_dropped: (D,) bool, those that do not count.
      least: documents that each split needs; where there are fewer than twice as many, none is
        chosen.
    """
    chosen = np.zeros(num_documents, bool)
    candidates = np.arange(num_documents)
    if is_dropped is not None:
        candidates = candidates[~is_dropped]
    num_kept = len(candidates)
    if not share or num_kept < 2 * least:
        return chosen
    if is_large is not None and (~is_large[candidates]).sum() >= least:
        candidates = candidates[~is_large[candidates]]
    keys = row_keys(derive_key(seed, "validation"), candidates)
    num_chosen = min(num_kept - least, max(least, round(share * num_kept)), len(candidates))
    chosen[candidates[np.argpartition(keys, num_chosen - 1)[:num_chosen]]] = True
    return chosen


def describe(chosen, text_share, num_rows, share):
    """One line on the documents set aside. chosen: (D,) bool. text_share: the share of the bytes of
    the text that they have. num_rows: estimated, of the whole text. share: that the user gave, or
    None.
    """
    if share == 0:
        return "validation: none, as --validation_share=0 says"
    if not chosen.any():
        few = "is one document"
        if len(chosen) > 1:
            few = f"has {len(chosen)} documents, and nsp needs two each for training and validation"
        return (
            f"validation: none, because the text {few}; "
            "training will have no eval_loss unless you give it other data"
        )
    rows = round(num_rows * text_share)
    text = (
        f"validation: {int(chosen.sum()):,} of {len(chosen):,} documents "
        f"({text_share:.1%} of the text), about {rows:,} row{'s' * (rows != 1)}"
    )
    if rows >= NUM_ROWS:
        return text
    remedy = "give a larger --validation_share" if share is not None else "more text makes more"
    return f"{text}: too few for a steady eval_loss; {remedy}"


def validation_warnings(chosen, text_share, share):
    """Warns of a validation that takes far more of the text than the share wanted: list of str.

    Args:
      chosen: (D,) bool. text_share: of the bytes. share: of the documents, as wanted.
    """
    if text_share <= FAR_MORE * max(share, 1 / len(chosen), chosen.mean()):
        return []
    return [
        f"validation takes {text_share:.0%} of the text, as {int(chosen.sum()):,} of "
        f"{len(chosen):,} documents, because some are long; cut those into several, or give "
        "another --random_seed"
    ]
