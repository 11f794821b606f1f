"""The state of a run, in progress.json of a checkpoint, and the plan of a run, in run.json: their
entries, and the ranges of values that are checked when the files are read back.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.runs.cost import COSTS


@dataclasses.dataclass(kw_only=True)
class HealthState:
    """The state of divergence.Health: the bad steps in a row up to now, and the mean loss that a
    step is compared with.
    """

    mean: float = setting(0.0, "Running mean of the good steps' losses.")
    num_good: int = setting(0, "Good steps so far.", low=0)
    num_bad: int = setting(0, "Bad steps in a row up to now.", low=0)
    bad_since: int | None = setting(None, "The first bad step in that row.", low=0)


@dataclasses.dataclass(kw_only=True)
class Progress:
    """The state of a run. A rollback to an earlier checkpoint sets `step` back, but not `records`.

    best_step and best_metric are None before the first validation. health: the entries of
    HealthState, None at the start of a run.
    """

    step: int = setting(0, "Optimizer steps taken, skipped ones included.", low=0)
    records: int = setting(0, "Training records consumed.", low=0)
    seconds: float = setting(0.0, "Seconds spent in training, all sessions.", low=0.0)
    call_seconds: float | None = setting(
        None, "Training seconds when the last step ended, before what followed it.", low=0.0
    )
    best_step: int | None = setting(None, "Step of the best validation so far.", low=0)
    best_metric: float | None = setting(
        None, "Loss of the best validation, or minus a metric whose highest value is best."
    )
    best_by: str | None = setting(None, "Name of that loss or metric, as in --best_metric.")
    num_worse: int = setting(0, "Validations since the best.", low=0)
    validation_failed: bool = setting(
        False,
        "Whether the validation after these steps was stopped, or could not read its records.",
    )
    num_rollbacks: int = setting(0, "Times that the run returned to a checkpoint.", low=0)
    health: dict[str, Any] | None = setting(
        None, "The latest bad steps in a row.", inside=fields_of(HealthState)
    )
    # a run that began before these three were counted has null
    tokens: int | None = setting(0, "Tokens trained on, without padding.", low=0)
    padded_tokens: int | None = setting(0, "Tokens and padding.", low=0)
    model_flops: float | None = setting(0.0, "Model FLOPs of the steps; 0 = not counted.", low=0.0)

    def cost(self) -> dict[str, float]:
        """Return {name in COSTS: number} of the run until now; {} if they are not known."""
        return {} if self.tokens is None else {name: getattr(self, name) for name in COSTS}

    def improve(self, metric: float | None, name: str = "loss") -> bool:
        """Record `metric`, from a validation at the current step, as the best if it is finite and
        the lowest so far; return whether it is. name: the metric's name, as in --best_metric.
        """
        self.compare_by(name)
        is_best = (
            metric is not None
            and math.isfinite(metric)
            and (self.best_metric is None or metric < self.best_metric)
        )
        if metric is not None and is_best:
            self.best_step = self.step
            self.best_metric = float(metric)
        self.num_worse = 0 if is_best else self.num_worse + 1
        return is_best

    def compare_by(self, name: str) -> bool:
        """Set `name` as the metric that decides which validation is the best. If another metric
        decided so far, forget the best validation and return True; else return False.
        """
        is_other = self.best_by not in (None, name)
        if is_other:
            self.best_step = self.best_metric = None
            self.num_worse = 0
        self.best_by = name
        return is_other

    @property
    def last_good_step(self) -> int | None:
        """The last step before the bad steps in a row up to now; None when the last step was
        good.
        """
        health = HealthState(**self.health or {})
        return health.bad_since if health.num_bad else None


PROGRESS_FIELDS = fields_of(Progress)
# entries of every run.json; some have those of RunRecord besides
RUN_ENTRIES = (
    *("settings", "free", "versions", "git_commit", "hashes", "global_batch_size", "unit_size"),
    *("micro_batch_size", "num_replicas", "device_kind", "learning_rate", "num_steps"),
)


def read_progress(content: Mapping[str, Any]) -> Progress:
    """Return the Progress in a JSON object; its other entries are ignored, and it may lack the
    COSTS.
    """
    values = {**dict.fromkeys(COSTS), **content}
    return Progress(**{name: value for name, value in values.items() if name in PROGRESS_FIELDS})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord(Settings):
    """The entries of run.json, besides the settings, that a resume reads."""

    global_batch_size: int = setting(1, "Records of a step.", low=1)
    unit_size: int = setting(1, "Records of one micro-batch of every replica.", low=1)
    micro_batch_size: int = setting(1, "Records that a replica processes at once.", low=1)
    num_replicas: int = setting(1, "GPUs, or virtual replicas.", low=1)
    device_kind: str = setting("GPU", "Kind of the devices.", choices=("GPU", "CPU"))
    learning_rate: float = setting(1e-4, "Peak learning rate, for the global batch.", low=0.0)
    num_steps: int | None = setting(None, "Steps of the whole run; None = by time.", low=1)
    exported_step: int | None = setting(None, "The step whose model is in model/.", low=0)
    git_commit: str | None = setting(None, "Git commit of bert_gpu.")
    weights_changed: int | None = setting(
        None, "Number of the first record that --input_weights_from chooses.", low=0
    )
    ended: str | None = setting(
        None, "How the run ended, when not by itself or a signal.", choices=("diverged",)
    )
    dropped: dict[str, object] | None = setting(
        None,
        "The progress of a trial whose checkpoints its sweep has removed.",
        inside=PROGRESS_FIELDS,
    )
    lost: str | None = setting(None, "Why such a trial ended without a result, if it did.")
