"""Metrics of sentence vectors: correlations with scores, accuracy and F1 of labelled pairs, and how
well the second text of a pair is found among those of all pairs.

Legend: N examples, R texts of an example (query, its document, hard negatives), H width of a
vector, D distinct documents, Q distinct queries, P pairs.
"""

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.nearest import nearest, units

scores = LazyModule("sklearn.metrics")

# the kinds of files, by their content
TEXTS = "texts without labels"
PAIRS = "positive pairs"
LABELLED = "labelled pairs"
SCORED = "pairs with scores"
RANKS = 10  # number of documents that count as found
# {kind of a file: names of its metrics, the most important first}
METRICS = {
    **dict.fromkeys((TEXTS, PAIRS), ("mrr@10", "recall@1", "recall@10", "ndcg@10")),
    LABELLED: ("accuracy", "f1", "average_precision", "threshold"),
    SCORED: ("spearman", "pearson", "loss"),
}


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of the first two texts of each example: (N, R, H) -> float32 (N,)."""
    first, second = units(vectors[:, 0]), units(vectors[:, 1])
    return np.einsum("nh,nh->n", first, second)


def decision_metrics(similarities: np.ndarray, is_positive: np.ndarray) -> dict[str, float | None]:
    """Return the metrics of cosines, float (N,), of pairs with labels, bool (N,): the accuracy and
    the F1, each at the threshold where it is highest, the threshold of the accuracy, and the
    average precision; None for F1 and average precision without a positive.

    A pair is positive if its cosine is at least the threshold, so pairs with equal cosines are
    decided alike. Of several best thresholds the highest counts. It lies in the middle between two
    cosines, or directly above all of them, as in BinaryClassificationEvaluator of
    sentence-transformers.
    """
    order = np.argsort(-similarities, kind="stable")
    ranked = similarities[order]
    num_right = np.cumsum(is_positive[order])
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # of runs of equal cosines
    num_right = np.append(0, num_right[ends])
    num_above = np.append(0, ends + 1)
    total = int(num_right[-1])
    correct = num_right + len(ranked) - total - (num_above - num_right)
    f1 = 2 * num_right / np.maximum(num_above + total, 1)
    best = int(np.argmax(correct))
    below = ranked[np.append(ends[:-1] + 1, ends[-1])]  # the next cosine, or the last one
    middles = (ranked[ends] + below) / 2
    middles = np.where(middles == below, ranked[ends], middles)
    thresholds = np.append(np.nextafter(ranked[0], ranked.dtype.type(np.inf)), middles)
    values: dict[str, float | None] = dict(
        accuracy=float(correct[best] / len(ranked)), threshold=float(thresholds[best])
    )
    if not total:
        return values | dict(f1=None, average_precision=None)
    precision = scores.average_precision_score(is_positive, similarities)
    return values | dict(f1=float(f1.max()), average_precision=float(precision))


def retrieval_metrics(vectors: np.ndarray, text_ids: np.ndarray) -> dict[str, float | None]:
    """Return how well each distinct query finds its documents among all distinct documents, which
    are the second texts and the hard negatives: the means over the queries of MRR@10, recall@1 and
    @10, and nDCG@10, in which all right documents of a query have relevance 1.

    Of documents with equal cosines the one that the file has first comes first; the definitions are
    those of InformationRetrievalEvaluator of sentence-transformers, which ranks these by their ids.

    Args:
      vectors: (N, R, H). text_ids: int32 (N, R), equal for equal texts, in the order of their first
        occurrence; -1 for a missing hard negative.
    """
    queries, first_queries, query_of = np.unique(
        text_ids[:, 0], return_index=True, return_inverse=True
    )
    documents, first_documents, document_of = np.unique(
        text_ids[:, 1:], return_index=True, return_inverse=True
    )
    document_of = document_of.reshape(len(text_ids), -1)[:, 0]
    flat = vectors[:, 1:].reshape(-1, vectors.shape[-1])
    is_text = documents >= 0
    pairs = np.unique(query_of * len(documents) + document_of)
    _, ranked = nearest(
        units(vectors[first_queries, 0]), units(flat[first_documents[is_text]]), RANKS
    )
    ranked += len(documents) - np.count_nonzero(is_text)  # -1, a missing text, is the first
    is_right = np.isin(np.arange(len(queries))[:, None] * len(documents) + ranked, pairs)
    num_right = np.bincount(pairs // len(documents))
    gains = 1 / np.log2(np.arange(RANKS) + 2)
    best = np.cumsum(gains)[np.minimum(num_right, RANKS) - 1]
    ranks = np.argmax(is_right, 1) + 1
    return {
        "mrr@10": float(np.mean(is_right.any(1) / ranks)),
        "recall@1": float(np.mean(is_right[:, 0] / num_right)),
        "recall@10": float(np.mean(is_right.sum(1) / num_right)),
        "ndcg@10": float(np.mean(is_right @ gains[: is_right.shape[1]] / best)),
    }
