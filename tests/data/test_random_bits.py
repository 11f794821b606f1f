"""The three versions of the hash agree, and its bits look random."""

import numpy as np

from bert_gpu.data import random_bits


def test_numpy_numba_and_python_agree():
    key = random_bits.derive_key(12345, "masks", 7)
    expected = [random_bits.mix_int(key + (row + 1) * random_bits.GOLDEN) for row in range(50)]
    state = np.array([key], np.uint64)
    assert [int(random_bits.draw(state)) for _ in range(50)] == expected
    assert random_bits.row_keys(key, np.arange(50)).tolist() == expected


def test_the_bits_of_columns_agree():
    for key in random_bits.row_keys(3, np.arange(4)):
        for column in range(6):
            hashed = random_bits.mix_int(int(key) + (column + 1 + (2 << 32)) * random_bits.GOLDEN)
            assert random_bits.column_bits(key, column, stream=2) == hashed >> 33


def test_uniform_and_independent():
    keys = random_bits.row_keys(9, np.arange(4000))
    bits = [[random_bits.column_bits(key, column, 0) for column in range(64)] for key in keys]
    bits = np.array(bits) / 2**31
    assert abs(bits.mean() - 0.5) < 0.003
    assert np.abs(np.corrcoef(bits[:, :8].T) - np.eye(8)).max() < 0.08
    histogram = np.histogram(bits, 16, (0, 1))[0] / bits.size
    assert np.abs(histogram - 1 / 16).max() < 0.002


def test_keys_differ():
    keys = {
        random_bits.derive_key(seed, name, index)
        for seed in range(10)
        for name in ("a", "b")
        for index in range(100)
    }
    assert len(keys) == 2000


def test_integers_cover_their_range():
    state = np.array([5], np.uint64)
    drawn = [random_bits.draw_integer(state, 2, 6) for _ in range(1000)]
    assert set(drawn) == {2, 3, 4, 5, 6}
    assert 0 <= min(random_bits.draw_uniform(state) for _ in range(1000)) < 0.01
