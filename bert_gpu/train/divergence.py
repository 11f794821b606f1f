"""Detects divergence (steps that are not finite, or whose loss jumps) and validation losses that
are still too high after --early_stop_time.

`DivergenceMonitor` receives the metrics of steps and validations and raises DivergenceFound.
`roll_back` then stops the run or returns to an earlier checkpoint, as --on_divergence says.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.monitor.metrics_log import Log
from bert_gpu.runs.progress import HealthState
from bert_gpu.train.config import EndingConfig
from bert_gpu.train.state import TrainState

if TYPE_CHECKING:
    from bert_gpu.train.run import Run

MAX_ROLLBACKS = 3  # a run stops at the next divergence
HORIZON = 100  # steps that the running mean covers
MAX_LOSS_JUMP = 3.0  # nats above the running mean


class DivergenceFound(Exception):
    """A run has diverged; the message says how. good_until: the last step that is good."""

    def __init__(self, message: str, good_until: int) -> None:
        super().__init__(message)
        self.good_until = good_until


class Diverged(TrainingStopped):
    """A run has diverged and is not rolled back."""


class Health(HealthState):
    """Counts the latest bad steps in a row: those that are not finite, and those whose loss has
    jumped.
    """

    def add(self, first_step: int, steps: Mapping[str, np.ndarray]) -> None:
        """Count the metrics {name: (n,)} of the n steps that follow `first_step` finished ones.

        A loss has jumped when it is more than MAX_LOSS_JUMP nats above the running mean, over about
        HORIZON steps, of the good steps before it.
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

    Args of the constructor: health_state: Progress.health of a checkpoint; None at the start of a
    run.
    """

    def __init__(self, ending: EndingConfig, health_state: Mapping[str, Any] | None = None) -> None:
        self.ending = ending
        self.health = Health(**health_state or {})

    def check_steps(self, step: int, is_end: bool) -> None:
        """Raise DivergenceFound when too many of the last steps were bad.

        Args:
          step: finished steps. is_end: whether the run ends here; then three bad steps, or no good
            step at all, count as divergence.
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
        """Raise DivergenceFound when a validation loss is not finite; None, no loss, passes."""
        if not math.isfinite(loss or 0.0):
            good_until = (self.health.bad_since or 0) if self.health.num_bad else step - 1
            raise DivergenceFound(f"the validation loss of step {step} is not finite", good_until)

    def early_stop(self, step: int, seconds: float, loss: float | None) -> TrainingStopped | None:
        """Return the error that stops the run when the validation loss is too high after
        --early_stop_time; else None.
        """
        minutes = self.ending.early_stop_time
        limit = self.ending.early_stop_eval_loss
        if minutes is None or loss is None or seconds < 60 * minutes or loss <= limit:
            return None
        return TrainingStopped(
            f"early stop at step {step}: the validation loss is "
            f"{loss:.3f} after {minutes:g} minutes, above {limit:g}"
        )


def roll_back(
    problem: DivergenceFound, run: "Run", state: TrainState, log: Log, seconds: float
) -> None:
    """Return to the last checkpoint before the bad steps, but not to its records: training
    continues with later data.

    Args:
      run: its checkpoints are all written; its progress is changed. state: receives the values of
        the checkpoint. seconds: spent in training so far.

    Raises Diverged when the settings or a missing checkpoint allow no rollback.
    """
    folder = run.folder
    progress = run.progress
    if run.settings.ending.on_divergence == "stop":
        raise Diverged(
            f"diverged: {problem}; lower --learning_rate, or use --on_divergence=rollback"
        )
    good = [step for step in folder.steps() if step <= problem.good_until]
    if not good or progress.num_rollbacks >= MAX_ROLLBACKS:
        limit = (
            "there is no checkpoint before that"
            if not good
            else f"it has been rolled back {MAX_ROLLBACKS} times already"
        )
        raise Diverged(f"diverged: {problem}; {limit}; lower --learning_rate")
    try:
        restored, values = folder.newest_whole(run.console.warn, good[-1])
    except UserError as error:
        raise Diverged(f"diverged: {problem}; {error}") from error
    state.assign(values)
    folder.remove_after(restored.step)
    log.cut(restored.step)
    for name in ("step", "best_step", "best_metric", "best_by", "num_worse"):
        setattr(progress, name, getattr(restored, name))
    progress.seconds = seconds
    progress.num_rollbacks += 1
    progress.health = None
    # if the run is killed now, it resumes with the next records
    folder.write_progress(progress)
