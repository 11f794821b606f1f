"""The search in blocks finds what a sort of all products finds."""

import numpy as np
import pytest

from bert_gpu.base.nearest import nearest


@pytest.mark.parametrize(
    "k, query_rows, document_rows", [(3, 2, 4), (1, 5, 1), (7, 4, 30), (50, 5, 9)]
)
def test_blocks_find_what_a_sort_finds(k, query_rows, document_rows):
    """Numbers of few values, so that many products are exactly equal."""
    generator = np.random.default_rng(k)
    queries = generator.integers(-2, 3, (5, 4)).astype(np.float32)
    documents = generator.integers(-2, 3, (23, 4)).astype(np.float32)
    products = queries @ documents.T
    expected = [sorted(range(23), key=lambda one: (-row[one], one))[:k] for row in products]
    assert any(len(set(row)) < len(row) for row in products.tolist())
    scores, indices = nearest(queries, documents, k, query_rows, document_rows)
    assert indices.tolist() == expected
    assert scores.dtype == np.float32 and indices.dtype == np.int64
    np.testing.assert_array_equal(scores, np.take_along_axis(products, indices, 1))


def test_documents_may_be_a_memory_map(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    scores, indices = nearest(vectors, mapped, 1, document_rows=16)
    assert indices[:, 0].tolist() == np.argmax(vectors @ vectors.T, 1).tolist()
    np.testing.assert_allclose(scores[:, 0], np.max(vectors @ vectors.T, 1), rtol=1e-6)
