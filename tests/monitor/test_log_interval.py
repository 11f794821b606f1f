"""Where the time of a run goes: shares of all of it, that add up to one."""

import types

import numpy as np
import pytest

from bert_gpu.monitor.log_interval import ACTIVITIES, LogInterval, Stopwatch, describe_activities


class Clock:
    now = 100.0

    def __call__(self):
        return self.now

    def passes(self, seconds):
        self.now += seconds


def call(clock, interval, seconds, waited):
    clock.passes(seconds + waited)
    metrics = types.SimpleNamespace(read=lambda: dict(loss=np.ones(1), skipped=np.zeros(1)))
    interval.add(metrics, [dict(input_mask=np.ones((2, 4)))], waited)


def test_every_second_is_spent_on_one_activity():
    clock = Clock()
    watch = Stopwatch(50.0, clock)
    interval = LogInterval(watch)
    with watch.paused("validation"):
        clock.passes(10)
    call(clock, interval, seconds=20, waited=5)
    call(clock, interval, seconds=3, waited=2)
    _, values = interval.close()
    shares = {name: values[f"time_{name}"] for name in ACTIVITIES}
    assert shares == {
        name: pytest.approx(seconds / 40)
        for name, seconds in dict(
            training=3, input=7, compiling=20, validation=10, saving=0
        ).items()
    }
    assert values["seconds"] == 90.0 and values["input_wait"] == pytest.approx(2 / 5)
    assert values["steps_per_second"] == pytest.approx(1 / 5)
    with watch.paused("saving"):
        clock.passes(6)
    call(clock, interval, seconds=4, waited=0)
    values = interval.close()[1]
    assert values["time_saving"] == pytest.approx(0.6) and values["time_training"] == 0.4
    assert values["time_compiling"] == 0.0, "a session compiles once"
    assert describe_activities(watch.activities) == (
        "0:50; 14% steps, 14% waiting for data, 40% compiling, 20% validation, 12% saving"
    )
    assert describe_activities(dict(training=120.0, saving=0.1)) == "2:00; 100% steps"
    assert sum(watch.activities.values()) == pytest.approx(clock.now - 100)


def test_a_line_that_is_written_late_has_the_time_of_its_own_steps():
    """The next call may wait for data and run before the metrics of the last one are read."""
    lines = []
    for is_late in (False, True):
        clock = Clock()
        interval = LogInterval(Stopwatch(0.0, clock))
        call(clock, interval, seconds=20, waited=5)
        call(clock, interval, seconds=3, waited=2)
        if is_late:
            interval.end()
            clock.passes(7)
            lines.append(interval.close()[1])
            call(clock, interval, seconds=0, waited=0)
        else:
            lines.append(interval.close()[1])
            call(clock, interval, seconds=7, waited=0)
        lines.append(interval.close()[1])
    assert lines[:2] == lines[2:]
