"""When a run cannot go on as it is: steps that were not finite or whose loss jumped, and a
validation loss too high for its time.

`Judge` is told the metrics of steps and of validations and raises what is wrong. `roll_back`
answers a divergence as the settings say.
"""

import math

from bert_gpu.settings import GaveUp


class Diverged(Exception):
    """The numbers of a run are no longer good. The message says which; good_until: checkpoints up
    to this step are from before that.
    """

    def __init__(self, message, good_until):
        super().__init__(message)
        self.good_until = good_until


class Health:
    """Counts the bad steps in a row, up to now: those that were not finite, and those whose
    loss has jumped.

    A loss has jumped when it is more than `max_jump` nats above the mean of the good steps before
    it, which forgets with a horizon of 100 steps; with max_jump 0 none has.
    """

    HORIZON, NAMES = 100, ("mean", "num_good", "num_bad", "bad_since")

    def __init__(self, max_jump, state=None):
        self.max_jump = max_jump
        self.mean, self.num_good, self.num_bad, self.bad_since = (
            state or dict(zip(self.NAMES, (0.0, 0, 0, None), strict=True))
        ).values()

    def state(self):
        """What a checkpoint holds, for the constructor of a run that goes on."""
        return {name: getattr(self, name) for name in self.NAMES}

    def add(self, first_step, steps):
        """Metrics of the steps from `first_step` (number of finished steps before them) on,
        {name: (n,)}.
        """
        for index, (loss, skipped) in enumerate(zip(steps["loss"], steps["skipped"], strict=True)):
            if (
                skipped
                or not math.isfinite(loss)
                or (self.max_jump and self.num_good and loss > self.mean + self.max_jump)
            ):
                self.bad_since = first_step + index if self.num_bad == 0 else self.bad_since
                self.num_bad += 1
                continue
            self.num_bad, self.num_good = 0, self.num_good + 1
            self.mean += (loss - self.mean) / min(self.num_good, self.HORIZON)


class Judge:
    """Says when a run diverges, and when it is given up.

    Args of the constructor: ending: EndingConfig. health_state: of a checkpoint's Progress, None at
    the start of a run.
    """

    def __init__(self, ending, health_state=None):
        self.ending, self.health = ending, Health(ending.max_loss_jump, health_state)

    def check_steps(self, step, is_end):
        """Raises Diverged when too many of the last steps were bad.

        Args:
          step: finished steps. is_end: whether the run ends here; it does not end well on three bad
            steps, or without any good one.
        """
        health, limit = self.health, self.ending.max_bad_steps
        if health.num_bad >= (min(3, limit) if is_end else limit) or (
            is_end and health.num_bad and not health.num_good
        ):
            reason = (
                f"the last {health.num_bad} steps up to "
                f"{step} were not finite, or their loss jumped"
            )
            raise Diverged(reason, health.bad_since)

    def check_validation(self, step, loss):
        """Raises Diverged when a validation loss, None where there is none, is not finite."""
        if not math.isfinite(loss or 0.0):
            good_until = self.health.bad_since if self.health.num_bad else step - 1
            raise Diverged(f"the validation loss of step {step} is not finite", good_until)

    def gives_up(self, step, seconds, loss):
        """The GaveUp of an early stop: the validation loss is too high after the time that it was
        given. None while it is not.
        """
        minutes, wanted = self.ending.early_stop_time, self.ending.early_stop_eval_loss
        if minutes is None or loss is None or seconds < 60 * minutes or loss <= wanted:
            return None
        return GaveUp(
            f"early stop at step {step}: the validation loss is "
            f"{loss:.3f} after {minutes:g} minutes, not {wanted:g}"
        )


def roll_back(problem, ending, progress, folder, log, assign, seconds):
    """Goes back to the last checkpoint before the bad steps; the records consumed stay, so that
    later data follow.

    Args:
      problem: Diverged. ending: EndingConfig. progress: Progress, which is changed. folder:
        RunFolder, with all saves written.
      log: monitor.Log. assign: puts the values of a checkpoint into the variables. seconds:
        spent so far.

    Raises GaveUp where the settings, or the checkpoints that there are, allow no rollback.
    """
    if ending.on_divergence == "stop":
        raise GaveUp(f"diverged: {problem}; lower --learning_rate, or use --on_divergence=rollback")
    good = [step for step in folder.steps() if step <= problem.good_until]
    if not good or progress.num_rollbacks >= ending.max_rollbacks:
        limit = (
            "there is no checkpoint before that"
            if not good
            else f"--max_rollbacks={ending.max_rollbacks} are done"
        )
        raise GaveUp(f"diverged: {problem}; {limit}; lower --learning_rate")
    restored = folder.progress_of(good[-1])
    assign(folder.restore(restored.step))
    folder.remove_after(restored.step)
    log.cut(restored.step)
    progress.step, progress.seconds, progress.num_rollbacks = (
        restored.step,
        seconds,
        progress.num_rollbacks + 1,
    )
    progress.best_step, progress.best_metric = restored.best_step, restored.best_metric
    progress.health = None
    # the data moved on: a run killed now goes on with what comes next
    folder.write_progress(progress)
