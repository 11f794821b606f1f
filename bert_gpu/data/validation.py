"""Chooses the documents that are held out for validation, enough for a steady validation loss.

By default, their share of all documents is the one that makes about NUM_ROWS validation rows of
ROW_LENGTH tokens, but at least LEAST_SHARE (in a large text less, for MOST_ROWS rows) and at most
LARGEST_SHARE. The length of the data's own rows does not count, so that a run on short rows never
trains on documents that are held out for its second part, on long rows. It is a share of the number
of documents, not of bytes; but a document that alone has far more of the text than this share is
left to training.
"""

import numpy as np

from bert_gpu.data.random_bits import derive_key, row_keys

NUM_ROWS = 500  # 5,000 predictions; their mean loss is known within 3 %
ROW_LENGTH = 64
MARGIN = 1.3  # factor for safety: the number of rows is estimated, and documents differ in length
LEAST_SHARE, LARGEST_SHARE = 0.01, 0.1
MOST_ROWS = 10_000  # a limit of the time to validate, which a run does at every checkpoint
# a document has far more than its share if it has more than this many times the share
FAR_MORE = 2.0


def default_share(num_rows: int) -> float:
    """Return the share of the documents for validation, when the text makes about num_rows rows of
    ROW_LENGTH tokens.
    """
    num_rows = max(1, num_rows)
    least = min(LEAST_SHARE, MOST_ROWS / num_rows)
    return min(LARGEST_SHARE, max(least, MARGIN * NUM_ROWS / num_rows))


def find_large(sizes: np.ndarray, share: float) -> np.ndarray:
    """Return (D,) bool: whether each document is large. It then has more than FAR_MORE times the
    share of the text and, if that is more, FAR_MORE times the mean size of a document.

    sizes: (D,), bytes of text of each document.
    """
    return sizes > FAR_MORE * max(share, 1 / len(sizes)) * sizes.sum()


def least_documents(objective: str) -> int:
    """Return how many documents training and validation each need: two for nsp, which draws random
    second segments from other documents, otherwise one.
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
      is_large: (D,) bool, documents that are not chosen, unless there are too few others.
      is_dropped: (D,) bool, documents that are in neither training nor validation.
      least: documents that training and validation each need; with fewer than 2 x least documents,
        none is chosen.
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
