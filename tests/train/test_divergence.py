"""The loop on a made-up job whose losses go bad: what stops a run, what goes back, what is
lost (nothing).
"""

import numpy as np
import pytest

from bert_gpu.base.errors import TrainingStopped, UserError
from tests.train.world import World


@pytest.mark.parametrize("bad", [np.nan, 9.0])
def test_bad_steps_stop_a_run(tmp_path, bad):
    world = World(
        tmp_path,
        losses=lambda step, _: bad if step >= 7 else 2.0,
        num_train_steps=100,
        log_steps=1,
        max_bad_steps=5,
    )
    with pytest.raises(TrainingStopped, match="last 5 steps up to 12"):
        world.run()


def test_going_back_to_a_checkpoint_that_was_compared_by_another_metric(tmp_path):
    settings = dict(num_train_steps=20, log_steps=1, save_checkpoints_steps=4, max_bad_steps=2)
    settings |= dict(on_divergence="rollback", early_stop_patience=2)
    first = World(tmp_path, eval_losses=lambda step: 3.0, **settings)
    first.progress.step, first.weight = 4, 4.0
    first.progress.improve(-0.9, "accuracy")
    first.folder.save(first.progress, first.read(), 5)
    losses = lambda step, record: np.nan if record in (0, 2) else 2.0  # noqa: E731
    world = World(tmp_path, losses=losses, eval_losses=lambda step: 3.0 - step / 10, **settings)
    world.progress, _ = world.folder.newest_whole(print)
    world.progress.compare_by("loss")
    world.run()
    assert world.log.cuts == [4] and world.progress.step == 20
    assert (world.progress.best_by, world.progress.best_step) == ("loss", 20)


def test_the_time_that_is_left_after_going_back(tmp_path):
    """The session began behind the step that it went back to; no extra save is due there."""
    settings = dict(num_train_steps=20, log_steps=1, save_checkpoints_steps=4, max_bad_steps=4)
    losses = lambda step, record: np.nan if record in (24, 26, 28, 30) else 2.0  # noqa: E731
    world = World(tmp_path, losses=losses, on_divergence="rollback", **settings)
    world.run()
    assert world.log.cuts == [12] and world.saved == [4, 8, 12, 16, 20]
    after = [left for step, _, left in world.log.moments[16:]]
    assert after == [(20 - step) * 10.0 for step in range(13, 21)]


def test_a_validation_that_is_not_finite_goes_back_too(tmp_path):
    calls = []

    def eval_losses(step):
        calls.append(step)
        return np.nan if step == 12 and calls.count(12) == 1 else 2.0

    settings = dict(num_train_steps=20, save_checkpoints_steps=4)
    world = World(tmp_path / "a", eval_losses=eval_losses, on_divergence="rollback", **settings)
    world.run()
    assert calls == [0, 4, 8, 12, 12, 16, 20] and world.log.cuts == [8] and world.weight == 20
    with pytest.raises(TrainingStopped, match="validation loss of step 4 is not finite"):
        World(tmp_path / "b", eval_losses=lambda step: np.inf, **settings).run()


def test_a_few_bad_steps_do_not(tmp_path):
    world = World(
        tmp_path,
        losses=lambda step, _: np.nan if step % 5 else 2.0,
        num_train_steps=51,
        max_bad_steps=5,
    )
    world.run()
    assert world.weight == 11


def test_rollback_goes_back_in_steps_and_on_in_data(tmp_path):
    """Records 30 to 50 are poison: the run meets them at step 15, returns to step 12, twice, and
    each time goes on with later records.
    """
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
    assert (
        first == list(range(0, 2 * len(first), 2))
        and world.progress.records == 2 * len(first) == 86
    )


@pytest.mark.parametrize("bad", [range(20, 26), range(17, 20), range(18, 24), range(30, 31)])
@pytest.mark.parametrize("eval_steps", [None, 7])
def test_a_checkpoint_that_waits_for_a_good_step_is_validated_once(tmp_path, bad, eval_steps):
    """bad: numbers of the steps with a loss that jumped; saves are due at 10, 20, 30 and 40."""
    world = World(
        tmp_path,
        losses=lambda step, _: 9.0 if step + 1 in bad else 2.0,
        eval_losses=lambda step: 2.0,
        num_train_steps=40,
        log_steps=1,
        save_checkpoints_steps=10,
        eval_steps=eval_steps,
        keep_checkpoint_max=9,
    )
    world.run()
    validated = [line["step"] for line in world.log.lines if "eval_loss" in line]
    if eval_steps is None:  # where a save is due, and where it is made
        assert set(validated) == {0, 10, 20, 30, 40, *world.saved}
    else:
        assert validated == [0, 7, 14, 21, 28, 35, 40]
    # the best, the first validation, is saved too
    assert set(world.saved) - {eval_steps} == {
        next(step for step in range(due, 41) if step not in bad) for due in (10, 20, 30, 40)
    }


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
    """The running mean of the loss is in the checkpoint, so a jumped loss stays a jump."""
    settings = dict(
        losses=lambda step, _: 9.0 if step >= 21 else 2.0,
        num_train_steps=100,
        save_checkpoints_steps=5,
        log_steps=5,
    )
    world = World(tmp_path, **settings)
    with pytest.raises(TrainingStopped):
        world.run()
    assert world.saved[-1] == 20
    again = World(tmp_path, **settings)
    again.progress = again.folder.newest_progress()
    with pytest.raises(TrainingStopped):
        again.run()


def test_an_export_that_fails_costs_no_checkpoint(tmp_path, capsys):
    def export(path, state, step):
        raise OSError(28, "No space left on device", "marks/0.5")

    world = World(
        tmp_path, num_train_steps=10, save_checkpoints_steps=5, finetune_time_markers=("0.5",)
    )
    world.export = export
    world.run()
    assert world.saved == [5, 10]
    assert "could not be exported" in capsys.readouterr().err


def test_corrupt_data_costs_no_steps_that_were_done(tmp_path):
    world = World(tmp_path, num_train_steps=50, log_steps=50)
    good = world.open_batches

    def open_batches(**given):
        for number, batch in enumerate(good(**given)):
            if number == 13:
                raise UserError("x.tfrecord: broken")
            yield batch

    world.open_batches = open_batches
    with pytest.raises(UserError, match="broken"):
        world.run()
    assert world.saved == [13] and world.log.lines[-1]["step"] == 13


def test_lines_do_not_depend_on_where_a_run_was_taken_up(tmp_path):
    """Log, save and validation steps that do not align, and a checkpoint between log lines because
    its validation was the best.
    """
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
    after = [
        (line["step"], line["loss"])
        for line in whole.log.lines
        if line["step"] > 14 and "loss" in line
    ]
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
    # a signal while it rolls back: it stops before the next save
    world.log.cut = lambda step: world.caught.append(15)
    world.run()
    stored = world.folder.newest_progress()
    assert (stored.step, stored.records, stored.num_rollbacks) == (12, 40, 1)


def test_rollback_gives_up(tmp_path):
    settings = dict(
        num_train_steps=300,
        log_steps=1,
        save_checkpoints_steps=4,
        max_bad_steps=5,
        on_divergence="rollback",
    )
    world = World(
        tmp_path / "a", losses=lambda step, record: np.nan if record >= 30 else 2.0, **settings
    )
    with pytest.raises(TrainingStopped, match="rolled back 3 times"):
        world.run()
    world = World(tmp_path / "b", losses=lambda step, record: np.nan, **settings)
    with pytest.raises(TrainingStopped, match="no checkpoint before"):
        world.run()
