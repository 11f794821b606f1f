"""Decides when a run logs, saves, validates and exports, from the step and the progress alone.

Progress is the share of the run that is done: of its steps, or of its seconds when the schedule
follows time. An action is due when a call into TensorFlow, which runs one or more steps, passes the
step or share at which the action is set, so a resumed run need not remember which actions were
done.
"""

from collections.abc import Sequence

from bert_gpu.train.config import CadenceConfig, shares

# on a GPU, which waits for the host once a call: with 1 instead of 10, a step of base, 256 rows of
# 128 tokens, takes 1.10 times as long on an H200 (dev/gpu.md)
MICRO_BATCHES_PER_CALL = 10


def default_steps_per_loop(kind: str, num_micro_batches: int, rows_differ: bool) -> int:
    """Return the default of --steps_per_loop. kind: "GPU" or "CPU". num_micro_batches: of a step.
    rows_differ: whether rows differ in length; all of a call are padded to the longest.
    """
    is_one = kind == "CPU" or rows_differ
    return 1 if is_one else max(1, MICRO_BATCHES_PER_CALL // num_micro_batches)


class Cadence:
    """Decides which actions (logging, saving, validation, export) are due after a call into
    TensorFlow, which runs one or more steps.

    Args of the constructor: num_steps: the run's steps; None when only a time limit ends the run.
    steps_of_epoch: steps in an epoch, not always a whole number.
    """

    def __init__(self, config: CadenceConfig, num_steps: int | None, steps_of_epoch: float) -> None:
        self.config = config
        self.num_steps = num_steps
        self.validation_marks = shares("validation_marks", config.validation_marks)
        self.export_marks = shares("finetune_time_markers", config.finetune_time_markers)
        # steps between two validations; None = one at every checkpoint
        self.validation_interval = config.eval_steps
        if config.validation_epochs is not None:
            self.validation_interval = max(1, round(config.validation_epochs * steps_of_epoch))

    def call_ends(self, step: int) -> int:
        """Return the step at which a call that begins after `step` steps ends: the next multiple of
        steps_per_loop, or an earlier step that logs, saves, validates or ends the run.
        """
        config = self.config
        periods = [
            config.steps_per_loop,
            config.log_steps,
            config.save_checkpoints_steps,
            self.validation_interval,
        ]
        ends = [(step // period + 1) * period for period in periods if period is not None]
        return min(ends + ([self.num_steps] if self.num_steps is not None else []))

    def logs(self, step: int) -> bool:
        return step % self.config.log_steps == 0

    def saves(self, step: int) -> bool:
        return step % self.config.save_checkpoints_steps == 0

    def validates(self, before: Sequence, after: Sequence, saves: bool) -> bool:
        """Return whether a validation is due after a call of steps.

        before, after: sequences that begin with (finished steps, share of the run that is done),
        before and after the call. saves: whether a checkpoint is due after the call.
        """
        if crossed(self.validation_marks, before[1], after[1]):
            return True
        if self.validation_interval is None:
            return saves
        return after[0] // self.validation_interval > before[0] // self.validation_interval

    def exports(self, before: float, after: float) -> list[float]:
        """Return the shares of the run in --finetune_time_markers that a call of steps passes.
        before, after: the share of the run that is done before and after the call.
        """
        return crossed(self.export_marks, before, after)


def crossed(marks: Sequence[float], before: float, after: float) -> list[float]:
    return [mark for mark in marks if before < mark <= after]
