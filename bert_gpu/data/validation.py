"""Sets documents aside for validation, enough that their loss means something.

Unless the user sets a share, it is the one that makes about NUM_ROWS rows in one pass, but no more
than a tenth of a small text, and of a large one a hundredth, up to MOST_ROWS. The share is one of
documents, not of bytes; but a document that alone has far more of the text than the share is left
to training.
"""

import math
from collections.abc import Sequence

import numpy as np

from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.text import corpus

NUM_ROWS = 500  # 10,000 predictions in rows of 128 tokens; their mean loss is known within 2 %
MARGIN = 1.3  # the number of rows is estimated, and documents differ in length
LEAST_SHARE, LARGEST_SHARE = 0.01, 0.1
MOST_ROWS = 10_000  # a run validates at every checkpoint
FAR_MORE = 2.0  # times the share is far more than the share


def default_share(num_rows: int) -> float:
    """Return the share of the documents for validation, when the text makes about num_rows rows."""
    num_rows = max(1, num_rows)
    least = min(LEAST_SHARE, MOST_ROWS / num_rows)
    return min(LARGEST_SHARE, max(least, MARGIN * NUM_ROWS / num_rows))


def most_bytes(blocks: Sequence[corpus.Block], share: float) -> float:
    """Return the bytes of text above which a document has far more than the share of the text, or
    than an equal part of it.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents
    num_bytes = sum(block.num_bytes for block in blocks)
    return FAR_MORE * max(share, 1 / num_documents) * num_bytes


def document_sizes(block: corpus.Block, most: float = math.inf) -> np.ndarray:
    """Return (D,) bytes of text of the documents of a block. A block of no more than `most` bytes
    is not read; then each document has the mean size.
    """
    if block.num_documents == 1 or block.num_bytes <= most:
        return np.full(block.num_documents, block.num_bytes / block.num_documents)
    return corpus.document_bytes(block)


def find_large(blocks: Sequence[corpus.Block], most: float) -> np.ndarray:
    """Return (D,) bool: the documents of more than `most` bytes of text."""
    return np.concatenate([document_sizes(block, most) > most for block in blocks])


def bytes_of(
    blocks: Sequence[corpus.Block], is_counted: np.ndarray, most: float = math.inf
) -> float:
    """Return the bytes of text of some documents, (D,) bool. most: as for `document_sizes`."""
    parts = [is_counted[corpus.Window((block,)).documents] for block in blocks]
    return sum(
        document_sizes(block, most)[part].sum()
        for block, part in zip(blocks, parts, strict=True)
        if part.any()
    )


def least_documents(objective: str) -> int:
    """Return how many documents a split needs: two for nsp, which draws second segments from other
    documents of the split.
    """
    return 2 if objective == "nsp" else 1


def choose_validation(
    num_documents: int,
    share: float,
    seed: int,
    is_large: np.ndarray | None = None,
    is_dropped: np.ndarray | None = None,
    least: int = 1,
) -> np.ndarray:
    """Choose documents for validation by a hash of seed and index. Return (D,) bool.

    Args:
      num_documents: D.
      share: the share of the documents to choose; if it is above 0, at least `least` are chosen.
      is_large: (D,) bool, documents that are passed over, unless there are too few others.
      is_dropped: (D,) bool, documents that do not count.
      least: documents that each split needs; where there are fewer than twice as many, none is
        chosen.
    """
    is_validation = np.zeros(num_documents, bool)
    candidates = np.arange(num_documents)
    if is_dropped is not None:
        candidates = candidates[~is_dropped]
    num_used = len(candidates)
    if not share or num_used < 2 * least:
        return is_validation
    if is_large is not None and (~is_large[candidates]).sum() >= least:
        candidates = candidates[~is_large[candidates]]
    keys = row_keys(derive_key(seed, "validation"), candidates)
    num_chosen = min(num_used - least, max(least, round(share * num_used)), len(candidates))
    is_validation[candidates[np.argpartition(keys, num_chosen - 1)[:num_chosen]]] = True
    return is_validation


def describe(
    is_validation: np.ndarray, text_share: float, num_rows: float, share: float | None
) -> str:
    """Return one line on the documents set aside.

    Args:
      is_validation: (D,) bool. text_share: their share of the bytes of the text.
      num_rows: estimated number of rows of the whole text. share: --validation_share.
    """
    num_documents = len(is_validation)
    if share == 0:
        return "validation: none, because of --validation_share=0"
    if not is_validation.any():
        few = "is one document"
        if num_documents > 1:
            few = (
                f"has {num_documents} documents, and nsp needs two each for training and validation"
            )
        return (
            f"validation: none, because the text {few}; "
            "training will have no eval_loss unless you give it other data"
        )
    rows = round(num_rows * text_share)
    text = (
        f"validation: {int(is_validation.sum()):,} of {num_documents:,} documents "
        f"({text_share:.1%} of the text), about {rows:,} row{'s' * (rows != 1)}"
    )
    if rows >= NUM_ROWS:
        return text
    remedy = "give a larger --validation_share" if share is not None else "more text makes more"
    return f"{text}: too few for a steady eval_loss; {remedy}"


def validation_warnings(is_validation: np.ndarray, text_share: float, share: float) -> list[str]:
    """Warn of a validation that takes far more of the text than its share of the documents.

    Args:
      is_validation: (D,) bool. text_share: its share of the bytes.
      share: its intended share of the documents.
    """
    if text_share <= FAR_MORE * max(share, 1 / len(is_validation), is_validation.mean()):
        return []
    return [
        f"validation takes {text_share:.0%} of the text, as {int(is_validation.sum()):,} of "
        f"{len(is_validation):,} documents, because some are long; cut those into several, or give "
        "another --random_seed"
    ]
