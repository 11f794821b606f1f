"""How long a run is."""

import pytest

from bert_gpu.train.cadence import default_steps_per_loop
from bert_gpu.train.config import CadenceConfig
from bert_gpu.train.plan import num_steps_of


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


@pytest.mark.parametrize(
    "kind, num_micro_batches, rows_differ, num_steps",
    [("CPU", 1, False, 1), ("GPU", 1, True, 1), ("GPU", 1, False, 10), ("GPU", 4, False, 2)]
    + [("GPU", 64, False, 1)],
)
def test_a_call_on_a_gpu_has_about_ten_micro_batches(
    kind, num_micro_batches, rows_differ, num_steps
):
    """One step where rows differ in length: all of a call are padded to the longest."""
    assert default_steps_per_loop(kind, num_micro_batches, rows_differ) == num_steps
