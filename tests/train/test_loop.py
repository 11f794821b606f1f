"""The loop on a made-up job: what is due when, on either clock; early stop, signals, the end."""

import dataclasses
import json
import os
import types

import numpy as np
import pytest

from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.data.mixture import Mixture
from bert_gpu.data.pipeline import LengthAxis
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import learning_rate_factor
from bert_gpu.runs.progress import Progress
from bert_gpu.train import batching, loop
from tests.train.world import SECONDS, World


def test_calls_end_where_something_is_due(tmp_path):
    world = World(
        tmp_path,
        num_train_steps=23,
        steps_per_loop=8,
        log_steps=10,
        save_checkpoints_steps=12,
        keep_checkpoint_max=9,
    )
    world.run()
    assert [(call.step, call.step + len(call.learning_rates)) for call in world.calls] == [
        (0, 8),
        (8, 10),
        (10, 12),
        (12, 16),
        (16, 20),
        (20, 23),
    ]
    assert [line["step"] for line in world.log.lines] == [10, 12, 20, 23]
    assert world.saved == [12, 23]
    assert world.weight == 23 and world.progress.records == 46
    assert [first for call in world.calls for first in call.first] == list(range(0, 46, 2))


def test_the_same_steps_whatever_the_length_of_a_call(tmp_path):
    worlds = [World(tmp_path / str(n), num_train_steps=20, steps_per_loop=n) for n in (1, 7)]
    for world in worlds:
        world.run()
    flat = [
        [
            (learning_rate, first)
            for call in world.calls
            for learning_rate, first in zip(call.learning_rates, call.first, strict=True)
        ]
        for world in worlds
    ]
    assert flat[0] == flat[1]
    assert [rate for rate, _ in flat[0]] == [
        learning_rate_factor(step, 20, ScheduleConfig()) for step in range(20)
    ]


@pytest.mark.parametrize("kind, num_steps", [("GPU", 10), ("CPU", 1)])
def test_a_call_on_a_gpu_has_ten_steps(tmp_path, monkeypatch, kind, num_steps):
    monkeypatch.setattr(loop, "peak_memory", lambda devices: "")
    world = World(tmp_path, num_train_steps=20)
    world.kind = kind
    world.run()
    assert {len(call.first) for call in world.calls} == {num_steps}


def test_a_line_of_a_gpu_is_read_when_the_next_call_has_begun(tmp_path, monkeypatch):
    """So the GPU has work while the host logs. What saves, validates or ends waits for its line."""
    monkeypatch.setattr(loop, "peak_memory", lambda devices: "")
    worlds = {}
    for kind in ("CPU", "GPU"):
        world = World(tmp_path / kind, num_train_steps=40, steps_per_loop=10)
        world.cadence = dataclasses.replace(world.cadence, save_checkpoints_steps=20)
        world.kind, world.events = kind, []

        def step(batches, learning_rates, first, world=world, run=world.step):
            world.events.append(f"call {first}")
            metrics = run(batches, learning_rates, first)

            def read():
                world.events.append(f"read {first}")
                return metrics.read()

            return types.SimpleNamespace(read=read)

        world.step = step
        world.run()
        worlds[kind] = world
    # the first call is read at once, because it compiles
    assert worlds["CPU"].events == (
        "call 0,read 0,read 0,call 10,read 10,call 20,read 20,call 30,read 30".split(",")
    )
    assert worlds["GPU"].events == (
        "call 0,read 0,call 10,read 0,read 10,call 20,call 30,read 20,read 30".split(",")
    )
    for name in ("step", "loss", "learning_rate", "progress", "epoch", "seconds"):
        cpu, gpu = ([line[name] for line in world.log.lines] for world in worlds.values())
        assert cpu == gpu, name


def test_the_clock_is_read_once_a_call_and_drives_the_rate(tmp_path):
    schedule = ScheduleConfig(
        lr_schedule="time", total_training_time=200 / 3600, curve="linear", warmup_proportion=0.25
    )
    world = World(
        tmp_path, schedule=schedule, steps_per_loop=2, log_steps=4, save_checkpoints_steps=8
    )
    assert world.plan.num_steps is None
    world.run()
    assert world.progress.step == 20 and world.progress.seconds >= 200
    for call in world.calls:
        assert (
            call.learning_rates
            == [learning_rate_factor(call.step, None, schedule, progress=call.step * SECONDS / 200)]
            * 2
        )


def test_time_before_a_resume_counts(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)
    world = World(tmp_path, schedule=schedule)
    world.progress = Progress(step=7, records=14, seconds=150.0)
    world.run()
    assert world.progress.step == 12
    assert world.calls[0].learning_rates == [pytest.approx(0.25)] and world.calls[0].first == [14]


def test_a_budget_ends_a_run_of_steps(tmp_path):
    world = World(
        tmp_path, schedule=ScheduleConfig(total_training_time=35 / 3600), num_train_steps=100
    )
    running = world.run()
    assert world.progress.step == 4 and running.is_finished() and world.saved == [4]


def test_a_ramp_takes_more_records_with_progress_and_misses_none(tmp_path):
    schedule = ScheduleConfig(batch_ramp_proportion=0.5)
    world = World(tmp_path, schedule=schedule, micro=(2, 4), num_train_steps=16, steps_per_loop=4)
    world.run()
    rows = [number for call in world.calls for number in call.rows]
    assert rows == [2, 2, 4, 4, 6, 6, 8, 8] + [8] * 8
    assert [first for call in world.calls for first in call.first] == np.cumsum(
        [0, *rows[:-1]]
    ).tolist()
    assert world.progress.records == sum(rows)


def test_validation_by_epochs_and_at_marks(tmp_path):
    """An epoch is 50 steps; one validation an epoch, and one at each mark of 500 steps."""
    world = World(
        tmp_path,
        eval_losses=lambda step: 1.0,
        num_train_steps=500,
        log_steps=500,
        save_checkpoints_steps=500,
        validation_epochs=1.0,
        validation_marks=("0.02", "0.1", "0.98"),
    )
    world.run()
    steps = [line["step"] for line in world.log.lines if "eval_loss" in line]
    assert steps == [0, 10, *range(50, 451, 50), 490, 500]


def test_marks_validate_and_export_once(tmp_path):
    world = World(
        tmp_path,
        eval_losses=lambda step: 1.0,
        num_train_steps=20,
        save_checkpoints_steps=100,
        validation_marks=("0.3",),
        finetune_time_markers=("0.25", "0.5", "1"),
    )
    world.run()
    assert [line["step"] for line in world.log.lines if "eval_loss" in line] == [0, 6, 20]
    assert world.exports == [(0.25, 5), (0.5, 10), (1.0, 20)]


def test_no_mark_is_lost_to_time_outside_of_steps(tmp_path):
    """Time clock, steps of 10 seconds and validations of 30: a mark may fall into either."""
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)
    settings = dict(
        save_checkpoints_steps=4,
        finetune_time_markers=("0.25", "0.5", "0.75"),
        validation_marks=("0.6",),
    )
    world = World(
        tmp_path,
        schedule=schedule,
        eval_losses=lambda step: setattr(world, "now", world.now + 30) or 1.0,
        **settings,
    )
    world.run()
    assert [mark for mark, _ in world.exports] == [0.25, 0.5, 0.75]


def test_a_mark_is_exported_before_the_checkpoint_behind_it(tmp_path):
    """So a run that is killed in an export goes on before the mark, and comes to it again."""
    world, events = (
        World(
            tmp_path,
            num_train_steps=20,
            save_checkpoints_steps=5,
            finetune_time_markers=("0.5", "1"),
        ),
        [],
    )
    read = world.read
    world.read = lambda: events.append(world.progress.step) or read()
    world.export = lambda path, state, step: events.append(float(os.path.basename(path)))
    world.run()
    assert events == [5, 0.5, 10, 15, 1.0, 20]


@pytest.mark.parametrize("by_time", [False, True])
def test_a_rollback_loses_no_mark(tmp_path, by_time):
    """Steps 40 to 59, one call, diverge the first time; the mark is at 50."""
    schedule = ScheduleConfig()
    if by_time:
        schedule = ScheduleConfig(lr_schedule="time", total_training_time=100 * SECONDS / 3600)
    world = World(
        tmp_path,
        losses=lambda step, record: np.nan if 80 <= record < 120 else 2.0,
        schedule=schedule,
        num_train_steps=100,
        steps_per_loop=20,
        log_steps=20,
        save_checkpoints_steps=20,
        max_bad_steps=20,
        on_divergence="rollback",
        finetune_time_markers=("0.5",),
    )
    world.run()
    assert world.progress.num_rollbacks == 1
    assert [mark for mark, _ in world.exports] == [0.5]


@pytest.mark.parametrize("kind, num_calls", [("CPU", 6), ("GPU", 7)])
def test_a_rollback_continues_with_the_next_records(tmp_path, monkeypatch, kind, num_calls):
    """Steps 40 to 59, one call, diverge. On a GPU one more call has begun before that is seen."""
    monkeypatch.setattr(loop, "peak_memory", lambda devices: "")
    world = World(
        tmp_path,
        losses=lambda step, record: np.nan if 80 <= record < 120 else 2.0,
        num_train_steps=100,
        steps_per_loop=20,
        log_steps=20,
        save_checkpoints_steps=40,
        max_bad_steps=20,
        on_divergence="rollback",
    )
    world.kind = kind
    world.run()
    assert len(world.calls) == num_calls and world.weight == 100
    last = [(call.step, call.first[0]) for call in world.calls[-3:]]
    assert last == [(40, 120), (60, 160), (80, 200)]


def test_the_best_checkpoint_is_one_that_is_there(tmp_path):
    """A bad step before the best validation delays its checkpoint, which then has other weights."""
    losses = {10: 1.0, 20: 2.0, 30: 3.0}
    world = World(
        tmp_path,
        losses=lambda step, record: np.nan if step == 9 else 2.0,
        eval_losses=lambda step: losses.get(step, 9.0),
        num_train_steps=30,
        save_checkpoints_steps=10,
    )
    world.run()
    assert world.saved == [11, 20, 30]
    assert world.progress.best_step == world.folder.best_step() == 20


def test_the_best_checkpoint_stays(tmp_path):
    losses = {4: 3.0, 8: 1.0, 12: 2.0, 16: 2.5, 20: 2.2}
    world = World(
        tmp_path,
        eval_losses=lambda step: losses.get(step, 9.0),
        num_train_steps=20,
        save_checkpoints_steps=4,
        keep_checkpoint_max=1,
    )
    world.run()
    assert world.saved == [8, 20]
    assert (world.progress.best_step, world.progress.best_metric) == (8, 1.0)


def test_the_best_by_another_metric_and_the_end_when_nothing_is_better(tmp_path):
    """Losses fall all the time; the accuracy is best at step 8, and two validations later it ends,
    also for whoever resumes it.
    """
    accuracies = {4: 0.5, 8: 0.9, 12: 0.9, 16: 0.7}
    settings = dict(num_train_steps=40, save_checkpoints_steps=4, keep_checkpoint_max=1)
    settings |= dict(best_metric="accuracy", early_stop_patience=2)
    world = World(tmp_path, eval_losses=lambda step: 10.0 - step / 10, **settings)
    validate = world.validate
    world.validate = lambda until_stopped: (
        validate(until_stopped) | dict(accuracy=accuracies.get(world.progress.step, 0.0))
    )
    running = world.run()
    assert world.progress.step == 16 and running.is_finished() and world.saved == [8, 16]
    assert (world.progress.best_step, world.progress.best_metric) == (8, -0.9)
    assert world.run().is_finished() and world.progress.step == 16


def test_another_best_metric_begins_anew(tmp_path):
    """A loss is not compared with minus an accuracy."""
    settings = dict(save_checkpoints_steps=4, early_stop_patience=2)
    world = World(tmp_path, eval_losses=lambda step: 10.0 - step / 10, best_metric="accuracy")
    world.progress.improve(-0.9, "accuracy")
    later = World(
        tmp_path, eval_losses=lambda step: 10.0 - step / 10, num_train_steps=20, **settings
    )
    later.progress = world.progress
    assert later.progress.best_by == "accuracy"
    later.run()
    assert later.progress.step == 20 and later.progress.best_by == "loss"
    assert (later.progress.best_step, later.progress.best_metric) == (20, 8.0)


@pytest.mark.parametrize("corrupt_step", [0, 7, 8, 20])
def test_a_corrupt_record_of_the_validation_loses_nothing(tmp_path, corrupt_step):
    """No step, no mark, and no validation: the resumed run makes up for it."""
    corrupt = [corrupt_step]

    def eval_losses(step):
        if corrupt and step >= corrupt[0]:
            raise UserError("x.tfrecord: record 3 is corrupt")
        return 2.0 - step / 100

    settings = dict(
        eval_losses=eval_losses, eval_steps=4, save_checkpoints_steps=100, num_train_steps=20,
        finetune_time_markers=("0.4", "1"),
    )  # fmt: skip
    first, second = World(tmp_path, **settings), World(tmp_path, **settings)
    with pytest.raises(UserError, match="record 3"):
        first.run()
    failed_at = -(-corrupt_step // 4) * 4
    assert first.saved[-1:] == ([failed_at] if failed_at else [])
    corrupt.clear()
    if failed_at:
        second.progress, _ = second.folder.newest_whole(print)
    second.run()
    assert first.exports + second.exports == [(0.4, 8), (1.0, 20)]
    lines = first.log.lines + second.log.lines
    validated = {line["step"] for line in lines if "eval_loss" in line}
    assert validated == {0, 4, 8, 12, 16, 20}
    assert second.progress.best_step == second.folder.best_step() == 20


@pytest.mark.parametrize("settings", [{}, dict(num_train_steps=1000)])
@pytest.mark.parametrize("lr_schedule", ["step", "time"])
def test_marks_are_shares_of_what_ends_the_run(tmp_path, settings, lr_schedule):
    """Of the time, whatever the learning rate follows, and of the steps where they end first."""
    schedule = ScheduleConfig(lr_schedule=lr_schedule, total_training_time=200 / 3600)
    marks = dict(finetune_time_markers=("0.25", "1"), validation_marks=("0.5",))
    world = World(
        tmp_path, eval_losses=lambda step: 2.0, schedule=schedule,
        save_checkpoints_steps=100, eval_steps=100, log_steps=1, **marks, **settings,
    )  # fmt: skip
    world.run()
    assert world.exports == [(0.25, 5), (1.0, 20)]
    assert [line["step"] for line in world.log.lines if "eval_loss" in line] == [0, 10, 20]
    trained = [line for line in world.log.lines if "progress" in line]
    assert [line["progress"] for line in trained] == pytest.approx([n / 20 for n in range(1, 21)])


def test_steps_that_end_a_run_before_its_time_have_their_marks(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=1)
    world = World(
        tmp_path, schedule=schedule, num_train_steps=8, finetune_time_markers=("0.5", "1")
    )
    world.run()
    assert world.exports == [(0.5, 4), (1.0, 8)]


def test_a_mark_that_passes_while_a_run_saves_is_due_after_a_resume(tmp_path):
    """A validation takes the clock past a mark; the checkpoint behind it has the later seconds."""
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)

    def world(number):
        def eval_losses(step):
            made.now += 30
            return 1.0

        made = World(
            tmp_path / str(number), eval_losses=eval_losses, schedule=schedule,
            save_checkpoints_steps=4, finetune_time_markers=("0.4", "0.6"),
        )  # fmt: skip
        return made

    whole, first, second = world(1), world(2), world(2)
    whole.run()
    step = first.step
    first.step = lambda *given: first.caught.extend([15] * (given[2] == 3)) or step(*given)
    first.run()
    assert first.saved == [4]
    second.progress, _ = second.folder.newest_whole(print)
    second.now = 0.0
    second.run()
    assert whole.exports == first.exports + second.exports == [(0.4, 5), (0.6, 6)]


def test_a_best_metric_that_is_not_reported(tmp_path):
    world = World(tmp_path, eval_losses=lambda step: 1.0, best_metric="f1")
    with pytest.raises(UserError, match="--best_metric=f1: the validation reports loss; name one"):
        world.run()
    assert world.progress.step == 0


@pytest.mark.parametrize("flags", [dict(export_best=True), dict(early_stop_patience=1), {}])
def test_a_best_metric_that_is_not_defined_is_refused_before_the_first_step(tmp_path, flags):
    world = World(tmp_path, eval_losses=lambda step: 1.0, best_metric="auc", **flags)
    world.validate = lambda is_stopped: dict(loss=1.0, auc=None)
    with pytest.raises(UserError, match=r"--best_metric=auc: is not defined .*\(loss\)"):
        world.run()
    assert world.progress.step == 0


def test_early_stop(tmp_path):
    settings = dict(
        num_train_steps=30, save_checkpoints_steps=5, early_stop_time=1.5, early_stop_eval_loss=6.0
    )
    world = World(tmp_path / "a", eval_losses=lambda step: 7.0, **settings)
    with pytest.raises(TrainingStopped, match="early stop at step 10"):
        world.run()
    assert world.saved == [5, 10]
    assert world.log.is_complete is False
    World(tmp_path / "b", eval_losses=lambda step: 7.0 if step < 10 else 5.0, **settings).run()


def test_a_signal_finishes_the_call_and_saves(tmp_path):
    world = World(tmp_path, num_train_steps=100, steps_per_loop=5)
    plain = world.step
    world.step = lambda *args: (world.caught.append(15) if args[2] == 10 else None, plain(*args))[1]
    running = world.run()
    assert world.progress.step == 15 and world.saved == [15] and not running.is_finished()
    assert world.log.is_complete is False
    world.caught.clear()
    world.run()
    assert world.log.is_complete is True


def test_a_signal_after_the_look_for_one_still_saves(tmp_path):
    world = World(tmp_path, num_train_steps=100, log_steps=1)
    write = world.log.write
    world.log.write = lambda step, values: (
        write(step, values),
        world.caught.append(2) if step == 7 else None,
    )
    world.run()
    assert world.progress.step == 8 and world.saved == [8]


def test_time_that_runs_out_while_a_line_is_logged_still_validates_and_saves(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=55 / 3600)
    world = World(tmp_path, eval_losses=lambda step: 1.0, schedule=schedule, log_steps=1)
    write = world.log.write

    def slow(step, values):
        write(step, values)
        # 50 seconds after five steps, and 58 when the line is written
        world.now += 8 if step == 5 else 0

    world.log.write = slow
    world.run()
    assert world.saved == [world.progress.step] == [6]
    assert [line["step"] for line in world.log.lines if "eval_loss" in line] == [0, 6]


def test_rows_of_unequal_length_are_filled_up():
    short, long = (
        dict(input_ids=np.full((2, n), 7), input_mask=np.ones((2, n), int), labels=np.arange(2))
        for n in (3, 5)
    )
    joined = batching.join([short, long], dict.fromkeys(("input_ids", "input_mask"), LengthAxis()))
    assert joined["input_mask"].tolist() == [[1, 1, 1, 0, 0]] * 2 + [[1] * 5] * 2
    assert joined["input_ids"][:2, 3:].tolist() == [[0, 0]] * 2 and joined["labels"].tolist() == [
        0,
        1,
        0,
        1,
    ]


@pytest.mark.parametrize(
    "options, records",
    [
        (dict(num_train_steps=20), 20),
        (dict(num_train_steps=20, steps_per_loop=8, log_steps=20), 32),
        (dict(schedule=ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)), 20),
        (dict(num_train_steps=20, schedule=ScheduleConfig(batch_ramp_proportion=0.4)), 20),
    ],
    ids=["steps", "several in a call", "the clock", "a ramp"],
)
def test_weights_change_at_a_share_of_the_run(tmp_path, options, records):
    """The record is in run.json, no record is lost or read twice, and a resumed run of another
    length keeps the record.
    """
    world = World(tmp_path, **options)
    world.mixture = Mixture([], change_share=0.5)
    world.run()
    assert world.mixture.changed == records
    assert json.loads((tmp_path / "run.json").read_text())["weights_changed"] == records
    assert [first for call in world.calls for first in call.first] == list(range(0, 40, 2))
    longer = World(tmp_path, num_train_steps=80)
    longer.progress = world.progress
    longer.mixture = world.mixture
    longer.run()
    assert longer.mixture.changed == records and longer.progress.step == 80


def test_weights_that_are_due_when_a_run_resumes_change_before_its_first_step(tmp_path):
    """A run that is killed between its checkpoint and the change."""
    world = World(tmp_path, num_train_steps=20)
    world.mixture = Mixture([], change_share=0.5)
    world.progress = Progress(step=10, records=20)
    world.run()
    assert world.mixture.changed == 20 and world.calls[0].first == [20]
