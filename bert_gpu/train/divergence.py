"""Detects divergence (steps that are not finite, or whose loss jumps) and validation losses that
are still too high after --early_stop_time.

`DivergenceMonitor` receives the metrics of steps and validations and raises DivergenceFound. The
loop then stops the run or returns to an earlier checkpoint, as --on_divergence says.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_gpu.base.errors import TrainingStopped
from bert_gpu.runs.progress import HealthState
from bert_gpu.train.config import EndingConfig

HORIZON = 100  # steps that the running mean of the loss covers
MAX_LOSS_JUMP = 3.0  # nats above the running mean of the loss


class DivergenceFound(Exception):
    """The exception that a run has diverged; its message says how. good_until: the number of steps
    finished before the first bad one.
    """

    def __init__(self, message: str, good_until: int) -> None:
        super().__init__(message)
        self.good_until = good_until


class Lost(TrainingStopped):
    """The error that ends a run whose losses give no reason to continue it: it has diverged, or
    --early_stop_time stops it.
    """


class Diverged(Lost):
    """The error that ends a run that has diverged and is not rolled back to a checkpoint."""


class Health(HealthState):
    """Counts how many steps in a row, up to the latest one, are bad: not finite, or with a loss
    that has jumped.
    """

    def add(self, first_step: int, steps: Mapping[str, np.ndarray]) -> None:
        """Update the counts with n more steps. first_step: number of steps finished before them.
        steps: {metric: array (n,)}.

        A loss has jumped when it is more than MAX_LOSS_JUMP nats above the running mean, over about
        HORIZON steps, of the losses of the good steps before it.
        """
        for index, (loss, skipped) in enumerate(zip(steps["loss"], steps["skipped"], strict=True)):
            if (
                skipped
                or not math.isfinite(loss)
                or (self.num_good and loss > self.mean + MAX_LOSS_JUMP)
            ):
                self.bad_since = first_step + index if self.num_bad == 0 else self.bad_since
                self.num_bad += 1
                continue
            self.num_bad = 0
            self.num_good += 1
            self.mean += (loss - self.mean) / min(self.num_good, HORIZON)


class DivergenceMonitor:
    """Decides when a run has diverged, and when to stop it early.

    Args of the constructor: health_state: the counts of bad steps in the checkpoint to resume from
    (Progress.health); None at the start of a run.
    """

    def __init__(self, ending: EndingConfig, health_state: Mapping[str, Any] | None = None) -> None:
        self.ending = ending
        self.health = Health(**health_state or {})

    def check_steps(self, step: int, is_end: bool) -> None:
        """Raise DivergenceFound when too many of the last steps were bad.

        Args:
          step: number of finished steps. is_end: whether the run ends here; then three bad steps at
            its end, or a run without a good step, count as divergence.
        """
        health = self.health
        limit = self.ending.max_bad_steps
        if health.num_bad >= (min(3, limit) if is_end else limit) or (
            is_end and health.num_bad and not health.num_good
        ):
            raise DivergenceFound(
                f"the last {health.num_bad} steps up to {step} were not finite, or their loss "
                "jumped",
                health.bad_since or 0,
            )

    def check_validation(self, step: int, loss: float | None) -> None:
        """Raise DivergenceFound when the validation loss of a step is not finite. loss: None = the
        validation reports no loss, which is no error.
        """
        if not math.isfinite(loss or 0.0):
            good_until = (self.health.bad_since or 0) if self.health.num_bad else step - 1
            raise DivergenceFound(f"the validation loss of step {step} is not finite", good_until)

    def early_stop(self, step: int, seconds: float, loss: float | None) -> Lost | None:
        """Return a Lost, to be raised, when the validation loss is too high after
        --early_stop_time; else None. seconds: training time so far.
        """
        minutes = self.ending.early_stop_time
        limit = self.ending.early_stop_eval_loss
        if minutes is None or loss is None or seconds < 60 * minutes or loss <= limit:
            return None
        return Lost(
            f"early stop at step {step}: the validation loss is "
            f"{loss:.3f} after {minutes:g} minutes, above {limit:g}"
        )
