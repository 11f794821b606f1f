"""Exact search: the documents whose vectors have the largest products with the vectors of queries.

Legend: Q queries, N documents, H numbers of a vector, k documents of a query.
"""

import numpy as np

QUERY_ROWS = 1024
DOCUMENT_ROWS = 8192  # a block of scores has QUERY_ROWS x DOCUMENT_ROWS float32, 32 MiB


def units(vectors: np.ndarray) -> np.ndarray:
    """Return vectors (..., H) scaled to length 1, float32; a vector of zeros stays one."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


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
    if len(queries) > query_rows:
        parts = [
            nearest(queries[start : start + query_rows], documents, k, query_rows, document_rows)
            for start in range(0, len(queries), query_rows)
        ]
        scores, indices = map(np.concatenate, zip(*parts, strict=True))
        return scores, indices
    queries = np.asarray(queries, np.float32)
    scores = np.empty((len(queries), 0), np.float32)
    indices = np.empty(scores.shape, np.int64)
    for start in range(0, len(documents), document_rows):
        block = queries @ np.asarray(documents[start : start + document_rows], np.float32).T
        columns = _largest(block, k)
        # earlier documents, which have the lower indices, come first
        scores = np.concatenate([scores, np.take_along_axis(block, columns, 1)], 1)
        indices = np.concatenate([indices, start + columns], 1)
        order = np.argsort(-scores, 1, kind="stable")[:, :k]
        scores = np.take_along_axis(scores, order, 1)
        indices = np.take_along_axis(indices, order, 1)
    return scores, indices


def _largest(scores: np.ndarray, k: int) -> np.ndarray:
    """Return the columns of the k largest scores of each row, (Q, k), in ascending order. Of equal
    scores the lower column counts as larger.
    """
    width = scores.shape[1]
    if width <= k:
        return np.broadcast_to(np.arange(width), scores.shape)
    last = np.partition(scores, width - k, 1)[:, width - k, None]  # the k-th largest
    is_one = scores >= last
    for row in np.flatnonzero(np.count_nonzero(is_one, 1) > k):  # several scores equal the k-th
        surplus = np.count_nonzero(is_one[row]) - k
        is_one[row, np.flatnonzero(scores[row] == last[row])[-surplus:]] = False
    return np.nonzero(is_one)[1].reshape(len(scores), k)
