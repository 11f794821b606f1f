"""More positions than a model has learnt: the learned rows stay, and no row is random."""

import numpy as np
import pytest

from bert_gpu.model.positions import extended, fit_positions

TABLE = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


def test_repeated_rows_are_the_learned_ones():
    for num_rows in (8, 14, 20):
        rows = extended(TABLE, num_rows, "repeat")
        assert rows.dtype == np.float32 and len(rows) == num_rows
        assert all((rows[i] == TABLE[i % 7]).all() for i in range(num_rows))


@pytest.mark.parametrize("num_rows", [8, 13, 14, 40])
def test_interpolated_rows_lie_between_learned_ones(num_rows):
    rows = extended(TABLE, num_rows, "interpolate")
    places = np.linspace(0, 6, num_rows)
    expected = [np.interp(places, np.arange(7), column) for column in TABLE.T.astype(float)]
    np.testing.assert_allclose(rows, np.transpose(expected), rtol=0, atol=1e-6)
    assert (rows[[0, -1]] == TABLE[[0, -1]]).all() and rows.dtype == np.float32


@pytest.mark.parametrize("how", ["repeat", "interpolate"])
def test_no_more_rows_are_the_same_bits(how):
    for num_rows in (3, 7):
        assert extended(TABLE, num_rows, how).tobytes() == TABLE[:num_rows].tobytes()
    assert len(extended(TABLE[:1], 4, how)) == 4


def test_only_tables_of_positions_become_larger():
    weights = {"embeddings/position": TABLE, "embeddings/word": TABLE, "pooler/kernel": TABLE}
    shapes = {"embeddings/position": (9, 5), "embeddings/word": (9, 5), "other": (1,)}
    fitted, notes = fit_positions(weights, shapes, "interpolate")
    assert notes == ["embeddings/position: 7 rows interpolated to 9"]
    assert fitted.keys() == weights.keys() and len(fitted["embeddings/position"]) == 9
    assert all(fitted[name] is TABLE for name in ("embeddings/word", "pooler/kernel"))
    fitted, notes = fit_positions(weights, {"embeddings/position": (4, 5)}, "repeat")
    assert notes == [] and (fitted["embeddings/position"] == TABLE[:4]).all()
    fitted, notes = fit_positions(weights, {"embeddings/position": (9, 6)}, "repeat")
    assert notes == [] and fitted["embeddings/position"] is TABLE
