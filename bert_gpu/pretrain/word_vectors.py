"""First values of the word embeddings from how often words stand near one another in the training
data, so that words used alike begin with similar vectors.

The positive pointwise mutual information of words and their neighbours, with smoothed context
counts, is factorised (Levy, Goldberg & Dagan 2015, "Improving distributional similarity with
lessons learned from word embeddings", sections 2 and 3) by a randomised singular value
decomposition (Halko et al. 2011, arXiv 0909.4061, algorithm 4.4).

Legend: V words of the vocabulary, H width of the embeddings, R records, S tokens of a record, P
predictions of a record.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from scipy import sparse

from bert_gpu.data.pipeline import Reader, epoch_order
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

MAX_TOKENS = 1 << 22  # that are counted, padding included
BLOCK = 4096  # records that are read at a time
WINDOW = 5  # words on each side; a neighbour at distance d counts 1 / d, as in GloVe
SMOOTHING = 0.75  # exponent of the counts of neighbours
OVERSAMPLING = 12  # further columns of the decomposition
NUM_ITERATIONS = 6  # of its subspace; with one, 650 steps end .10 higher
DEVIATION = 0.1  # standard deviation of the elements


def original_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the tokens (R, S) of a batch with the masked words put back."""
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"])
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return ids


def read_rows(reader: Reader, seed: int, outside: int) -> Iterator[np.ndarray]:
    """Yield the tokens of records in the order of the first epoch, (R, S) each, until MAX_TOKENS.
    outside: the id that takes the place of padding.
    """
    order = epoch_order(len(reader), seed, 0)[: -(-MAX_TOKENS // reader.max_seq_length)]
    for start in range(0, len(order), BLOCK):
        indices = order[start : start + BLOCK]
        batch = reader.read(indices, np.zeros_like(indices))
        yield np.where(batch["input_mask"] > 0, original_ids(batch), outside)


def count_neighbours(rows: Iterator[np.ndarray], is_word: np.ndarray) -> sparse.csr_matrix:
    """Return how often words stand near one another, (V, V), a symmetric matrix.

    Args:
      rows: ids (R, S) of some records at a time. is_word: bool (V,), False for pieces that are no
        words, such as [CLS].
    """
    size = len(is_word)
    total = sparse.csr_matrix((size, size), dtype=np.float32)
    for ids in rows:
        for distance in range(1, WINDOW + 1):
            left = ids[:, :-distance]
            right = ids[:, distance:]
            pairs = is_word[left] & is_word[right]
            counts = np.full(np.count_nonzero(pairs), 1 / distance, np.float32)
            total += sparse.csr_matrix((counts, (left[pairs], right[pairs])), (size, size))
    return total + total.T


def information(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Return the positive pointwise mutual information, (V, V), of counts (V, V), in place:
    max(0, log(count x total / (sum of the word x sum of the neighbour))), where a neighbour's sum
    is smoothed and the total is of the smoothed sums.
    """
    sums = np.asarray(counts.sum(1), np.float64).ravel()
    smoothed = sums**SMOOTHING
    word = np.repeat(sums, np.diff(counts.indptr))
    expected = word * smoothed[counts.indices] / smoothed.sum()
    counts.data = np.maximum(np.log(counts.data / expected), 0).astype(np.float32)
    return counts


def factorise(matrix: sparse.csr_matrix, width: int, seed: int) -> np.ndarray:
    """Return vectors (V, width), float32, whose products approximate a matrix (V, V): the left
    singular vectors times the square roots of their values, turned at random so that no element
    stands for more than another, and scaled to the standard deviation DEVIATION.
    """
    generator = np.random.default_rng(seed)
    basis = generator.standard_normal((matrix.shape[0], width + OVERSAMPLING), np.float32)
    for _ in range(NUM_ITERATIONS):
        basis = np.linalg.qr(matrix @ (matrix.T @ basis))[0]
    rotation, values, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    turn = np.linalg.qr(generator.standard_normal((width, width)))[0].astype(np.float32)
    vectors = (basis @ rotation[:, :width]) * np.sqrt(values[:width])
    vectors = vectors @ turn[: vectors.shape[1]]
    return vectors * np.float32(DEVIATION / max(vectors.std(), 1e-12))


def word_vectors(reader: Reader, tokenizer: Tokenizer, first: np.ndarray, seed: int) -> np.ndarray:
    """Return the first values of the word embeddings, float32 (V, H): vectors from the counts of
    neighbours, and the rows of `first` (V, H) for pieces that the counted records lack and for the
    special ones.
    """
    is_word = np.full(len(first), True)
    is_word[[tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]] = False
    rows = read_rows(reader, seed, tokenizer.pad_id)
    counts = count_neighbours(rows, is_word)
    is_seen = np.diff(counts.indptr) > 0
    vectors = factorise(information(counts), first.shape[1], seed)
    return np.where(is_seen[:, None], vectors, first)
