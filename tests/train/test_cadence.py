"""How long a run is."""

import pytest

from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import CadenceConfig


@pytest.mark.parametrize(
    "settings, more, num_steps",
    [
        (dict(), dict(), 4_000),  # 40 passes over 1,000 records, 10 a step
        (dict(), dict(dupe_factor=10), 400),
        (dict(), dict(dupe_factor=10, runs_by_time=True), None),
        (dict(num_train_epochs=2.0), dict(dupe_factor=10), 200),
        (dict(num_train_epochs=2.0), dict(runs_by_time=True), 200),
        (dict(num_train_epochs=1e-9), dict(), 1),
        (dict(num_train_epochs=2.0, num_train_steps=7), dict(dupe_factor=10), 7),
    ],
)
def test_the_default_length_is_40_passes_over_the_text(settings, more, num_steps):
    """However often the records hold it; epochs that are given are passes over the records."""
    found = num_steps_of(CadenceConfig(**settings), 1000, 10, **more)
    assert found == num_steps
