"""Metrics of sentence vectors: correlations with scores, accuracy of labelled pairs, and how
well the second text of a pair is found among those of all pairs.

Legend: N examples, R texts of an example (query, its document, hard negatives), H width of a
vector, D distinct documents, Q distinct queries, P pairs.
"""

import numpy as np

from bert_gpu.base.nearest import nearest, units

# the kinds of files, by their content
TEXTS = "texts without labels"
PAIRS = "positive pairs"
LABELLED = "labelled pairs"
SCORED = "pairs with scores"
RANKS = 10  # number of documents that count as found
# {kind of a file: names of its metrics, the most important first}
METRICS = {
    **dict.fromkeys((TEXTS, PAIRS), ("mrr@10", "recall@1", "recall@10", "ndcg@10")),
    LABELLED: ("accuracy", "threshold"),
    SCORED: ("spearman", "pearson", "loss"),
}


def cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of the first two texts of each example: (N, R, H) -> float32 (N,)."""
    first, second = units(vectors[:, 0]), units(vectors[:, 1])
    return np.einsum("nh,nh->n", first, second)


def decision_metrics(similarities: np.ndarray, is_positive: np.ndarray) -> dict[str, float | None]:
    """Return the accuracy of cosines, float (N,), of pairs with labels, bool (N,), at the threshold
    where it is highest, and this threshold.

    A pair is positive if its cosine is at least the threshold, so pairs with equal cosines are
    decided alike. Of several best thresholds the highest counts. It lies in the middle between two
    cosines, or directly above all of them, as in BinaryClassificationEvaluator of
    sentence-transformers.
    """
    levels, places = np.unique(similarities, return_inverse=True)
    gains = np.bincount(places, np.where(is_positive, 1, -1))[::-1]
    # of the thresholds above all levels, below the highest one and so on
    correct = np.count_nonzero(~is_positive) + np.cumsum(np.append(0, gains))
    best = int(np.argmax(correct))
    middles = (levels[1:] + levels[:-1]) / 2
    middles = np.where(middles == levels[:-1], levels[1:], middles)
    above = np.nextafter(levels[-1:], np.inf, dtype=levels.dtype)
    thresholds = np.concatenate([levels[:1], middles, above])[::-1]
    return dict(accuracy=float(correct[best] / len(places)), threshold=float(thresholds[best]))


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
    of_pair = document_of.reshape(len(text_ids), -1)[:, 0]
    flat = vectors[:, 1:].reshape(-1, vectors.shape[-1])
    is_text = documents >= 0
    pairs = np.unique(query_of * len(documents) + of_pair)
    _, ranked = nearest(
        units(vectors[first_queries, 0]), units(flat[first_documents[is_text]]), RANKS
    )
    ranked += len(documents) - np.count_nonzero(is_text)  # -1, a missing text, is the first
    is_right = np.isin(np.arange(len(queries))[:, None] * len(documents) + ranked, pairs)
    num_right = np.bincount(pairs // len(documents))
    gains = 1 / np.log2(np.arange(RANKS) + 2)
    best = np.cumsum(gains)[np.minimum(num_right, RANKS) - 1]
    return {
        "mrr@10": float(np.mean(is_right.any(1) / (np.argmax(is_right, 1) + 1))),
        "recall@1": float(np.mean(is_right[:, 0] / num_right)),
        "recall@10": float(np.mean(is_right.sum(1) / num_right)),
        "ndcg@10": float(np.mean(is_right @ gains[: is_right.shape[1]] / best)),
    }
