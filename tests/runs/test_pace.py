"""How far a run is, by its steps or by its time."""

import pytest

from bert_gpu.runs.pace import RunLength


@pytest.mark.parametrize(
    "num_steps, budget_seconds, step, seconds, fraction, is_finished",
    [
        (100, None, 25, 1e9, 0.25, False),
        (100, None, 100, 0.0, 1.0, True),
        (None, 50.0, 10**6, 25.0, 0.5, False),
        (None, 50.0, 0, 60.0, 1.0, False),  # a run has one step at least
        (100, 50.0, 25, 25.0, 0.5, False),
        (100, 50.0, 75, 25.0, 0.75, False),
        (100, 50.0, 75, 50.0, 1.0, True),
        (100, 50.0, 120, 60.0, 1.0, True),
    ],
)
def test_what_ends_a_run_first_says_how_far_it_is(
    num_steps, budget_seconds, step, seconds, fraction, is_finished
):
    length = RunLength(num_steps, budget_seconds)
    assert length.share(step, seconds) == fraction
    assert length.is_finished(step, seconds) == is_finished


def test_a_schedule_follows_one_clock():
    assert RunLength.of_schedule("step", 100, 2.0) == RunLength(100, None)
    assert RunLength.of_schedule("time", 100, 2.0) == RunLength(None, 7200.0)
    assert RunLength.of_schedule("time", 100, None).is_unknown
