"""Exact search: the documents whose vectors have the largest products with the vectors of queries.

Legend: Q queries, N documents, H numbers of a vector, k documents of a query.
"""

import numpy as np

QUERY_ROWS = 1024
DOCUMENT_ROWS = 8192  # a block of scores has QUERY_ROWS x DOCUMENT_ROWS float32, 32 MiB


def nearest(
    queries: np.ndarray,
    documents: np.ndarray,
    k: int,
    query_rows: int = QUERY_ROWS,
    document_rows: int = DOCUMENT_ROWS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k documents with the largest product for each query, best first: their products,
    float32 (Q, k), and their indices, int64 (Q, k). Of equal products the lower index comes first.

    The products are computed by BLAS in float32, in blocks, so that documents may be a memory map
    that is larger than memory. All vectors must be finite.

    Args:
      queries: (Q, H). documents: (N, H). k: at least 1; with fewer documents, k is their number.
      query_rows, document_rows: size of a block of products.
    """
    scores = np.empty((len(queries), min(k, len(documents))), np.float32)
    indices = np.empty(scores.shape, np.int64)
    for start in range(0, len(queries), query_rows):
        rows = slice(start, start + query_rows)
        scores[rows], indices[rows] = _nearest(queries[rows], documents, k, document_rows)
    return scores, indices


def _nearest(
    queries: np.ndarray, documents: np.ndarray, k: int, document_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of `nearest` for one block of queries."""
    queries = np.asarray(queries, np.float32)
    scores = np.empty((len(queries), 0), np.float32)
    indices = np.empty(scores.shape, np.int64)
    for start in range(0, len(documents), document_rows):
        block = np.asarray(documents[start : start + document_rows], np.float32)
        # earlier documents, which have lower indices, come first
        scores = np.concatenate([scores, queries @ block.T], 1)
        own = np.broadcast_to(np.arange(start, start + len(block)), (len(queries), len(block)))
        indices = np.concatenate([indices, own], 1)
        columns = _largest(scores, k)
        scores = np.take_along_axis(scores, columns, 1)
        indices = np.take_along_axis(indices, columns, 1)
    order = np.argsort(-scores, 1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)


def _largest(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the columns of the k largest scores of each row, (Q, k), in ascending order. Of equal
    scores the lower column counts as larger.
    """
    width = scores.shape[1]
    if width <= k:
        return np.broadcast_to(np.arange(width), scores.shape)
    last = np.partition(scores, width - k, 1)[:, width - k, None]  # the k-th largest
    is_above = scores > last
    is_equal = scores == last
    room = k - is_above.sum(1, keepdims=True)
    is_one = is_above | (is_equal & (np.cumsum(is_equal, 1) <= room))
    return np.nonzero(is_one)[1].reshape(len(scores), k)
