"""What a person sees of a run: every log step as one line with its time, the time left by whatever
ends the run first, and on a terminal a bar of the width that there is.
"""

import io
import re

import pytest

from bert_gpu.base import console
from bert_gpu.base.console import Console
from bert_gpu.monitor import metrics_log
from bert_gpu.monitor.sinks.console import ConsoleSink
from bert_gpu.optim.config import ScheduleConfig
from tests.train.world import SECONDS, World

VALUES = dict(
    mlm=7.5027,
    mlm_accuracy=0.0473,
    nsp=0.6885,
    loss=8.1912,
    learning_rate=6.8333e-5,
    tokens_per_second=20174.6,
    mfu=0.41234,
    input_wait=0.0123,
    gpu_utilization=97.3,
    remaining_seconds=83.4,
)


def shown(sink, values, step=20):
    sink.advance(step, step / 120, values.get("remaining_seconds"))
    sink.write(step, values)


def test_the_plain_line_has_everything_and_a_time_stamp():
    stream = io.StringIO()
    sink = ConsoleSink(Console(stream=stream), 120, ("mlm", "nsp"))
    shown(sink, VALUES)
    sink.write(20, dict(eval_loss=8.0, eval_mlm_accuracy=None, seconds=3.0))
    shown(sink, dict(loss=None, remaining_seconds=None), step=40)
    sink.close()
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  "
    lines = stream.getvalue().splitlines()
    assert all(re.match(stamp, line) for line in lines)
    assert [re.sub(stamp, "", line) for line in lines] == [
        "step 20/120  loss 8.1912  mlm 7.5027  nsp 0.6885  mlm_accuracy 0.0473  lr 6.83e-05  "
        "20,175 tokens/s  MFU 41.2%  input wait 1.2%  GPU 97 %  1:23 left",
        "validation at step 20: loss 8.0000  mlm_accuracy none",
        "step 40/120  loss none  ? left",
    ]


def test_quiet_shows_nothing():
    stream = io.StringIO()
    sink = ConsoleSink(Console(quiet=True, stream=stream), 120)
    shown(sink, VALUES)
    sink.close()
    assert stream.getvalue() == ""


class Screen(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_the_bar_keeps_to_its_terminal(monkeypatch, columns):
    screen = Screen()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(console.sys, name, screen)
    monkeypatch.setattr(console, "columns_of", lambda stream: columns)
    monkeypatch.setenv("COLUMNS", str(columns))
    sink = ConsoleSink(Console(), 1_000_000, ("mlm", "nsp"))
    shown(sink, VALUES, step=20)
    shown(sink, VALUES | dict(loss=8.0), step=40)
    sink.close()
    drawn = [part for part in re.split(r"[\r\n]+", screen.getvalue()) if "loss 8.0000" in part]
    assert drawn and all(len(part.rstrip()) <= columns for part in drawn)
    assert all("40/1000000 [00:00<1:23" in part and part.rstrip()[-1] == "]" for part in drawn)
    assert ("20,175 tokens/s" in drawn[0]) == (columns > 60)
    assert ("MFU 41.2%" in drawn[0]) == (columns > 120)


def test_a_terminal_that_is_closed_stops_nothing(monkeypatch):
    screen = Screen()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(console.sys, name, screen)
    shown_on = Console()
    sink = ConsoleSink(shown_on, 120)
    shown(sink, VALUES)
    screen.isatty = lambda: False
    monkeypatch.setattr(Screen, "write", lambda *_: (_ for _ in ()).throw(OSError(5, "gone")))
    shown(sink, VALUES, step=40)
    shown_on.say("validation")
    sink.write(40, dict(eval_loss=1.0))
    sink.close()


def test_a_bar_on_the_terminal_and_messages_in_a_file(monkeypatch):
    """As with `run_pretraining_gpu.py > log`."""
    screen, file = Screen(), io.StringIO()
    monkeypatch.setattr(console.sys, "stderr", screen)
    sink = ConsoleSink(Console(stream=file), 120)
    shown(sink, VALUES)
    sink.close()
    assert re.match(r"\d{4}-.*  step 20/120  loss 8.1912", file.getvalue())
    assert "20/120 [00:00<1:23, loss 8.1912" in screen.getvalue()


def test_every_log_step_is_a_line(tmp_path):
    world = World(tmp_path, num_train_steps=190, log_steps=20, save_checkpoints_steps=1000)
    stream = io.StringIO()
    sink = ConsoleSink(Console(stream=stream), 190)
    world.log.write = sink.write
    world.run()
    steps = re.findall(r"step (\d+)/190", stream.getvalue())
    assert [int(step) for step in steps] == [*range(20, 190, 20), 190]


def test_the_time_left_is_that_of_the_nearer_end(tmp_path):
    """A million steps and a budget of 20 steps' time, or the other way round."""
    for name, num_steps, hours in (("time", 1_000_000, 20), ("steps", 20, 10**6)):
        schedule = ScheduleConfig(total_training_time=hours * SECONDS / 3600)
        world = World(tmp_path / name, schedule=schedule, num_train_steps=num_steps, log_steps=5)
        world.run()
        assert [line["remaining_seconds"] for line in world.log.lines] == [
            pytest.approx(SECONDS * (20 - step)) for step in (5, 10, 15, 20)
        ]
        steps, shares, left = zip(*world.log.moments, strict=True)
        assert steps == tuple(range(1, 21)) and shares == pytest.approx([s / 20 for s in steps])
        assert left[0] is None, "nothing has been measured yet"
        assert left[1:] == pytest.approx([SECONDS * (20 - step) for step in steps[1:]])


def test_a_ramp_counts_records(tmp_path):
    schedule = ScheduleConfig(batch_ramp_proportion=0.5)
    world = World(tmp_path, schedule=schedule, micro=(2, 4), num_train_steps=16, log_steps=8)
    world.run()
    first, last = (line["remaining_seconds"] for line in world.log.lines)
    records = 2 + 2 + 4 + 4 + 6 + 6 + 8 + 8
    assert first == pytest.approx(8 * 8 * 7 * SECONDS / (records - 2), rel=0.1) and last == 0.0


def test_a_key_in_an_error_is_not_shown(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdef")
    error = RuntimeError("401: key 0123456789abcdef\nat https://me:secret@host/path refused")
    assert metrics_log.reason(error) == "401: key *** at https://***@host/path refused"
