"""More positions than a model has learnt: the learned rows stay, and no row is random."""

import numpy as np
import pytest

from bert_gpu.model.positions import fit_positions, interpolated
from bert_gpu.model.weights import WeightSpec

TABLE = np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32)


@pytest.mark.parametrize("num_rows", [8, 13, 14, 40])
def test_interpolated_rows_lie_between_learned_ones(num_rows):
    rows = interpolated(TABLE, num_rows)
    places = np.linspace(0, 6, num_rows)
    expected = [np.interp(places, np.arange(7), column) for column in TABLE.T.astype(float)]
    np.testing.assert_allclose(rows, np.transpose(expected), rtol=0, atol=1e-6)
    assert (rows[[0, -1]] == TABLE[[0, -1]]).all() and rows.dtype == np.float32


def test_no_more_rows_are_the_same_bits():
    for num_rows in (3, 7):
        assert interpolated(TABLE, num_rows).tobytes() == TABLE[:num_rows].tobytes()
    assert (interpolated(TABLE[:1], 4) == TABLE[:1]).all()


def test_only_tables_of_positions_become_larger():
    weights = {"embeddings/position": TABLE, "embeddings/word": TABLE, "pooler/kernel": TABLE}
    specs = {
        "embeddings/position": WeightSpec((9, 5), "zeros"),
        "embeddings/word": WeightSpec((9, 5), "zeros"),
    }
    fitted, notes = fit_positions(weights, specs)
    assert notes == ("embeddings/position: 7 rows interpolated to 9",)
    assert fitted.keys() == weights.keys() and len(fitted["embeddings/position"]) == 9
    assert all(fitted[name] is TABLE for name in ("embeddings/word", "pooler/kernel"))
    kept, _ = fit_positions(weights, specs, first_position=2)
    table = kept["embeddings/position"]
    assert (table[:2] == TABLE[:2]).all() and (table[2:] == interpolated(TABLE[2:], 7)).all()
    fitted, notes = fit_positions(weights, {"embeddings/position": WeightSpec((4, 5), "zeros")})
    assert notes == () and (fitted["embeddings/position"] == TABLE[:4]).all()
    fitted, notes = fit_positions(weights, {"embeddings/position": WeightSpec((9, 6), "zeros")})
    assert notes == () and fitted["embeddings/position"] is TABLE
