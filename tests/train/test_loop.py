"""The loop on a made-up job with a clock of its own: what is due when, on either clock; rollback, early stop, signals, the end."""

import dataclasses
import types

import numpy as np
import pytest

from bert_gpu.optim.schedules import ScheduleConfig, rate_factor
from bert_gpu.settings import UserError
from bert_gpu.train import batching, loop
from bert_gpu.train.batching import BatchPlan
from bert_gpu.train.cadence import CadenceConfig, num_steps_of
from bert_gpu.train.checkpoint import Progress, RunFolder, SaveFailed
from bert_gpu.train.monitor import Console

SECONDS = 10.0  # that a step takes


class Log:
    def __init__(self):
        self.lines, self.cuts = [], []

    def write(self, step, values):
        self.lines.append(dict(values, step=step))

    def hardware(self):
        return {}

    def cut(self, step):
        self.cuts.append(step)


class World:
    """A job whose weight counts updates, whose losses are told, and whose steps take SECONDS."""

    def __init__(self, folder, losses=lambda step, first_record: 2.0, eval_losses=None, micro=(2, 1), schedule=None, **settings):
        self.now, self.calls, self.exports, self.caught, self.log = 0.0, [], [], [], Log()
        self.weight, self.losses, self.folder = 0.0, losses, RunFolder(str(folder))
        self.progress = Progress()
        names = {field for field in CadenceConfig.__dataclass_fields__}
        self.cadence = CadenceConfig(**{name: value for name, value in settings.items() if name in names})
        self.ending = loop.EndingConfig(**{name: value for name, value in settings.items() if name not in names})
        self.schedule = schedule or ScheduleConfig()
        plan = BatchPlan(micro[0], micro[1], 1, 1.0, "none", self.schedule.batch_ramp_proportion > 0)
        self.job = loop.Job(
            step=self.step,
            batches_at=self.batches_at,
            validate=None if eval_losses is None else lambda: dict(loss=eval_losses(self.progress.step)),
            read=lambda: dict(weight=np.float32(self.weight)),
            assign=lambda values: setattr(self, "weight", float(values["weight"])),
            num_steps=num_steps_of(self.cadence, 100, plan.global_batch_size, self.schedule.lr_schedule == "time"),
            num_records=100,
            plan=plan,
            schedule=self.schedule,
            export=lambda mark: self.exports.append((mark, self.progress.step)),
        )
        self.folder.create({})

    def batches_at(self, position):
        while True:
            size = self.job.plan.unit_size
            yield dict(input_mask=np.ones((size, 4), np.int32), number=np.arange(position, position + size))
            position += size

    def step(self, batches, rates, step):
        first = [int(batch["number"][0]) for batch in batches]
        losses = [self.losses(step + i, first[i]) for i in range(len(batches))]
        skipped = ~np.isfinite(losses)
        self.calls.append(types.SimpleNamespace(step=step, rates=list(rates), first=first, rows=[len(b["number"]) for b in batches]))
        self.now += SECONDS * len(batches)
        self.weight += float(np.sum(~skipped))
        return types.SimpleNamespace(read=lambda: dict(loss=np.array(losses), skipped=skipped.astype(np.float32)))

    def run(self):
        running = loop.Loop(
            self.job, self.cadence, self.ending, self.progress, self.folder, self.log, Console(True), self.caught, lambda: self.now
        )
        running.run()
        return running

    @property
    def saved(self):
        return self.folder.steps()


def test_calls_end_where_something_is_due(tmp_path):
    world = World(tmp_path, num_train_steps=23, steps_per_loop=8, log_steps=10, save_checkpoints_steps=12, keep_checkpoint_max=9)
    world.run()
    assert [(call.step, call.step + len(call.rates)) for call in world.calls] == [(0, 8), (8, 10), (10, 12), (12, 16), (16, 20), (20, 23)]
    assert [line["step"] for line in world.log.lines] == [10, 12, 20, 23]
    assert world.saved == [12, 23]
    assert world.weight == 23 and world.progress.records == 46
    assert [first for call in world.calls for first in call.first] == list(range(0, 46, 2))


def test_the_same_steps_whatever_the_length_of_a_call(tmp_path):
    worlds = [World(tmp_path / str(n), num_train_steps=20, steps_per_loop=n) for n in (1, 7)]
    for world in worlds:
        world.run()
    flat = [[(rate, first) for call in world.calls for rate, first in zip(call.rates, call.first, strict=True)] for world in worlds]
    assert flat[0] == flat[1]
    assert [rate for rate, _ in flat[0]] == [rate_factor(step, 20, ScheduleConfig()) for step in range(20)]


def test_the_clock_is_read_once_a_call_and_drives_the_rate(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600, curve="linear", warmup_proportion=0.25)
    world = World(tmp_path, schedule=schedule, steps_per_loop=2, log_steps=4, save_checkpoints_steps=8)
    assert world.job.num_steps is None
    world.run()
    assert world.progress.step == 20 and world.progress.seconds >= 200
    for call in world.calls:
        assert call.rates == [rate_factor(call.step, None, schedule, progress=call.step * SECONDS / 200)] * 2


def test_time_before_a_resume_counts(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)
    world = World(tmp_path, schedule=schedule)
    world.progress = Progress(step=7, records=14, seconds=150.0)
    world.run()
    assert world.progress.step == 12
    assert world.calls[0].rates == [pytest.approx(0.25)] and world.calls[0].first == [14]


def test_a_budget_ends_a_run_of_steps(tmp_path):
    world = World(tmp_path, schedule=ScheduleConfig(total_training_time=35 / 3600), num_train_steps=100)
    running = world.run()
    assert world.progress.step == 4 and running.is_finished() and world.saved == [4]


def test_a_ramp_takes_more_records_with_progress_and_misses_none(tmp_path):
    schedule = ScheduleConfig(batch_ramp_proportion=0.5)
    world = World(tmp_path, schedule=schedule, micro=(2, 4), num_train_steps=16, steps_per_loop=4)
    world.run()
    rows = [number for call in world.calls for number in call.rows]
    assert rows == [2, 2, 4, 4, 6, 6, 8, 8] + [8] * 8
    assert [first for call in world.calls for first in call.first] == np.cumsum([0, *rows[:-1]]).tolist()
    assert world.progress.records == sum(rows)


def test_minutes_save_too(tmp_path):
    world = World(tmp_path, num_train_steps=12, save_checkpoints_minutes=0.5, keep_checkpoint_max=99)
    world.run()
    assert world.saved == [3, 6, 9, 12]


def test_validation_by_epochs_denser_at_both_ends(tmp_path):
    """An epoch is 50 steps; one validation an epoch, 5 in each of the first and last tenth of 500 steps."""
    world = World(
        tmp_path,
        eval_losses=lambda step: 1.0,
        num_train_steps=500,
        log_steps=500,
        save_checkpoints_steps=500,
        validation_epochs=1.0,
        validation_epochs_begin=0.2,
        validation_epochs_end=0.2,
        validation_begin_proportion=0.1,
        validation_end_proportion=0.1,
    )
    world.run()
    steps = [line["step"] for line in world.log.lines if "eval_loss" in line]
    assert steps == [0, *range(10, 51, 10), *range(100, 450, 50), *range(450, 501, 10)]


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
    """By the clock, with steps of 10 seconds and validations of 30: a mark may fall into either."""
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=200 / 3600)
    settings = dict(save_checkpoints_steps=4, finetune_time_markers=("0.25", "0.5", "0.75"), validation_marks=("0.6",))
    world = World(tmp_path, schedule=schedule, eval_losses=lambda step: setattr(world, "now", world.now + 30) or 1.0, **settings)
    world.run()
    assert [mark for mark, _ in world.exports] == [0.25, 0.5, 0.75]


def test_the_best_checkpoint_stays(tmp_path):
    losses = {4: 3.0, 8: 1.0, 12: 2.0, 16: 2.5, 20: 2.2}
    world = World(
        tmp_path, eval_losses=lambda step: losses.get(step, 9.0), num_train_steps=20, save_checkpoints_steps=4, keep_checkpoint_max=1
    )
    world.run()
    assert world.saved == [8, 20]
    assert (world.progress.best_step, world.progress.best_metric) == (8, 1.0)


@pytest.mark.parametrize("bad", [np.nan, 9.0])
def test_bad_steps_stop_a_run(tmp_path, bad):
    world = World(tmp_path, losses=lambda step, _: bad if step >= 7 else 2.0, num_train_steps=100, log_steps=1, max_bad_steps=5)
    with pytest.raises(loop.GaveUp, match="last 5 steps up to 12"):
        world.run()


def test_a_validation_that_is_not_finite_goes_back_too(tmp_path):
    calls = []

    def eval_losses(step):
        calls.append(step)
        return np.nan if step == 12 and calls.count(12) == 1 else 2.0

    settings = dict(num_train_steps=20, save_checkpoints_steps=4)
    world = World(tmp_path / "a", eval_losses=eval_losses, on_divergence="rollback", **settings)
    world.run()
    assert calls == [0, 4, 8, 12, 12, 16, 20] and world.log.cuts == [8] and world.weight == 20
    with pytest.raises(loop.GaveUp, match="validation loss of step 4 is not finite"):
        World(tmp_path / "b", eval_losses=lambda step: np.inf, **settings).run()


def test_a_few_bad_steps_do_not(tmp_path):
    world = World(tmp_path, losses=lambda step, _: np.nan if step % 5 else 2.0, num_train_steps=51, max_bad_steps=5)
    world.run()
    assert world.weight == 11


def test_rollback_goes_back_in_steps_and_on_in_data(tmp_path):
    """Records 30 to 50 are poison: the run meets them at step 15, returns to step 12, twice, and each time goes on with later records."""
    world = World(
        tmp_path,
        losses=lambda step, record: np.nan if 30 <= record < 50 else 2.0,
        num_train_steps=30,
        log_steps=1,
        save_checkpoints_steps=4,
        max_bad_steps=5,
        on_divergence="rollback",
    )
    world.run()
    assert world.log.cuts == [12, 12]
    assert world.weight == 30 and world.progress.step == 30 and world.progress.num_rollbacks == 2
    first = [call.first[0] for call in world.calls]
    assert first == list(range(0, 2 * len(first), 2)) and world.progress.records == 2 * len(first) == 86


@pytest.mark.parametrize("keep, every", [(5, 4), (1, 10), (2, 1)])
def test_bad_steps_do_not_push_out_what_to_go_back_to(tmp_path, keep, every):
    world = World(
        tmp_path,
        losses=lambda step, record: 9.0 if 60 <= record < 110 else 2.0,
        num_train_steps=60,
        log_steps=10,
        save_checkpoints_steps=every,
        keep_checkpoint_max=keep,
        on_divergence="rollback",
    )
    world.run()
    assert world.progress.num_rollbacks == 1 and world.progress.step == 60 and world.weight == 60


def test_a_diverged_run_given_again_diverges_again(tmp_path):
    """What it was compared with before is in the checkpoint, so a jumped loss does not become the norm."""
    settings = dict(losses=lambda step, _: 9.0 if step >= 21 else 2.0, num_train_steps=100, save_checkpoints_steps=5, log_steps=5)
    world = World(tmp_path, **settings)
    with pytest.raises(loop.GaveUp):
        world.run()
    assert world.saved[-1] == 20
    again = World(tmp_path, **settings)
    again.progress = again.folder.newest_progress()
    with pytest.raises(loop.GaveUp):
        again.run()


def test_an_export_that_fails_costs_no_checkpoint(tmp_path, capsys):
    def export(mark):
        raise OSError(28, "No space left on device", "marks/0.5")

    for policy in ("continue", "stop"):
        world = World(tmp_path / policy, num_train_steps=10, save_checkpoints_steps=5, finetune_time_markers=("0.5",), on_save_error=policy)
        world.job = dataclasses.replace(world.job, export=export)
        if policy == "continue":
            world.run()
            assert world.saved == [5, 10]
        else:
            with pytest.raises(SaveFailed):
                world.run()
            assert world.saved == [5]
        assert "could not be exported" in capsys.readouterr().err


def test_corrupt_data_costs_no_steps_that_were_done(tmp_path):
    world = World(tmp_path, num_train_steps=50, log_steps=50)
    good = world.batches_at

    def batches_at(position):
        for number, batch in enumerate(good(position)):
            if number == 13:
                raise UserError("x.tfrecord: broken")
            yield batch

    world.job = dataclasses.replace(world.job, batches_at=batches_at)
    with pytest.raises(UserError, match="broken"):
        world.run()
    assert world.saved == [13] and world.log.lines[-1]["step"] == 13


def test_lines_do_not_depend_on_where_a_run_was_taken_up(tmp_path):
    """Log, save and validation steps that do not align, and a checkpoint between log lines because its validation was the best."""
    settings = dict(
        losses=lambda step, _: 5.0 - 0.1 * step,
        eval_losses=lambda step: 9.0 - step,
        num_train_steps=30,
        log_steps=10,
        eval_steps=7,
        save_checkpoints_steps=100,
    )
    whole = World(tmp_path, **settings)
    whole.run()
    part = World(tmp_path, **settings)
    part.folder.remove_after(14)
    part.progress = part.folder.newest_progress()
    assert part.progress.step == 14
    part.run()
    after = [(line["step"], line["loss"]) for line in whole.log.lines if line["step"] > 14 and "loss" in line]
    assert after == [(line["step"], line["loss"]) for line in part.log.lines if "loss" in line]


def test_a_run_killed_after_a_rollback_does_not_meet_the_same_data(tmp_path):
    world = World(
        tmp_path,
        losses=lambda step, record: np.nan if 30 <= record < 40 else 2.0,
        num_train_steps=30,
        log_steps=1,
        save_checkpoints_steps=4,
        max_bad_steps=5,
        on_divergence="rollback",
    )
    world.log.cut = lambda step: world.caught.append(15)  # a signal while it rolls back: it stops before the next save
    world.run()
    stored = world.folder.newest_progress()
    assert (stored.step, stored.records, stored.num_rollbacks) == (12, 40, 1)


def test_rollback_gives_up(tmp_path):
    settings = dict(num_train_steps=300, log_steps=1, save_checkpoints_steps=4, max_bad_steps=5, on_divergence="rollback", max_rollbacks=2)
    world = World(tmp_path / "a", losses=lambda step, record: np.nan if record >= 30 else 2.0, **settings)
    with pytest.raises(loop.GaveUp, match="max_rollbacks=2"):
        world.run()
    world = World(tmp_path / "b", losses=lambda step, record: np.nan, **settings)
    with pytest.raises(loop.GaveUp, match="no checkpoint before"):
        world.run()


def test_early_stop(tmp_path):
    settings = dict(num_train_steps=30, save_checkpoints_steps=5, early_stop_time=1.5, early_stop_eval_loss=6.0)
    world = World(tmp_path / "a", eval_losses=lambda step: 7.0, **settings)
    with pytest.raises(loop.GaveUp, match="early stop at step 10"):
        world.run()
    assert world.saved == [5, 10]
    World(tmp_path / "b", eval_losses=lambda step: 7.0 if step < 10 else 5.0, **settings).run()


def test_a_signal_finishes_the_call_and_saves(tmp_path):
    world = World(tmp_path, num_train_steps=100, steps_per_loop=5)
    plain = world.step
    world.job = dataclasses.replace(world.job, step=lambda *args: (world.caught.append(15) if args[2] == 10 else None, plain(*args))[1])
    running = world.run()
    assert world.progress.step == 15 and world.saved == [15] and not running.is_finished()


def test_a_signal_after_the_look_for_one_still_saves(tmp_path):
    world = World(tmp_path, num_train_steps=100, log_steps=1)
    write = world.log.write
    world.log.write = lambda step, values: (write(step, values), world.caught.append(2) if step == 7 else None)
    world.run()
    assert world.progress.step == 8 and world.saved == [8]


def test_time_that_runs_out_while_a_line_is_logged_still_validates_and_saves(tmp_path):
    schedule = ScheduleConfig(lr_schedule="time", total_training_time=55 / 3600)
    world = World(tmp_path, eval_losses=lambda step: 1.0, schedule=schedule, log_steps=1)
    write = world.log.write

    def slow(step, values):
        write(step, values)
        world.now += 8 if step == 5 else 0  # 50 seconds after five steps, and 58 when the line is written

    world.log.write = slow
    world.run()
    assert world.saved == [world.progress.step] == [6]
    assert [line["step"] for line in world.log.lines if "eval_loss" in line] == [0, 6]


def test_rows_of_unequal_length_are_filled_up():
    short, long = (dict(input_ids=np.full((2, n), 7), input_mask=np.ones((2, n), int), labels=np.arange(2)) for n in (3, 5))
    joined = batching.join([short, long])
    assert joined["input_mask"].tolist() == [[1, 1, 1, 0, 0]] * 2 + [[1] * 5] * 2
    assert joined["input_ids"][:2, 3:].tolist() == [[0, 0]] * 2 and joined["labels"].tolist() == [0, 1, 0, 1]
