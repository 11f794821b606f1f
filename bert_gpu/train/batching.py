"""Divides a global batch among GPUs and micro-batches, scales the peak learning rate to it, and
assembles the batches for one call into TensorFlow, which runs one or more steps.
"""

import dataclasses
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data.mixture import Mixture
from bert_gpu.data.pipeline import LengthAxis
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import (
    learning_rate_factor,
    mean_batch_share,
    num_micro_batches_at,
    scale_learning_rate,
)
from bert_gpu.runs.pace import RunLength
from bert_gpu.train.config import BatchConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The records that a run trains on.

    open_batches: function of (batch_size=, position=) that returns an endless iterator of batches;
    position counts the records consumed before. num_records: records of an epoch, each one example.
    max_seq_length: tokens of the longest row. length_axes: {feature: LengthAxis, the axis that is
    as long as the rows} where batches differ in row length; {} = all rows have one length.
    rows_per_example: rows of tokens in an example. dupe_factor: how many times the records contain
    the text; None in fine-tuning. mixture: the data sets that are mixed by weight, if any.
    """

    open_batches: Callable[..., Generator[dict[str, np.ndarray], None, None]]
    num_records: int
    max_seq_length: int
    length_axes: Mapping[str, LengthAxis]
    rows_per_example: int = 1
    dupe_factor: int | None = None
    mixture: Mixture | None = None


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The division of a step's global batch, its peak learning rate, and the length of the run.

    num_micro_batches: those that one replica accumulates in a step; with is_ramped, a batch that
    grows over the run, steps may have fewer. learning_rate: the peak, scaled to the global batch.
    scaling: the value of --lr_scaling. num_steps: None = the run ends by time.
    """

    micro_batch_size: int
    num_micro_batches: int
    num_replicas: int
    learning_rate: float
    scaling: str
    is_ramped: bool = False
    num_steps: int | None = None
    schedule: ScheduleConfig = ScheduleConfig()

    @property
    def unit_size(self) -> int:
        """Number of records in a unit of data, the amount that is read at once: a global batch or,
        with a batch ramp, one micro-batch of every replica. A step with a batch ramp takes one or
        more units.
        """
        return (
            self.micro_batch_size * self.num_replicas if self.is_ramped else self.global_batch_size
        )

    @property
    def length(self) -> RunLength:
        """The length of the whole run, in steps and seconds."""
        hours = self.schedule.total_training_time
        return RunLength(self.num_steps, hours and 3600 * hours)

    @property
    def schedule_length(self) -> RunLength:
        """The RunLength, in steps or in seconds, over which the learning rate schedule is
        stretched.
        """
        schedule = self.schedule
        return RunLength.of_schedule(
            schedule.lr_schedule, self.num_steps, schedule.total_training_time
        )

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.num_micro_batches * self.num_replicas

    @property
    def records_of_step(self) -> float:
        """Mean number of records per step: the global batch, or fewer with a batch ramp."""
        if not self.is_ramped:
            return self.global_batch_size
        return self.global_batch_size * mean_batch_share(self.num_micro_batches, self.schedule)

    def learning_rate_at(self, step: int, share: float) -> float:
        """Return the learning rate of step number `step`. share: the share of the schedule, 0 to 1,
        that is done before the step.
        """
        by_time = self.schedule.lr_schedule == "time"
        factor = learning_rate_factor(
            step, self.num_steps or 1, self.schedule, share if by_time else None
        )
        return self.learning_rate * factor

    def num_micro_batches_at(self, shares: Sequence[float]) -> list[int] | None:
        """Return how many micro-batches each step of a batch ramp accumulates, one number for each
        of `shares`, the share of the schedule that is done before the step; None without a batch
        ramp.
        """
        if not self.is_ramped:
            return None
        return [
            num_micro_batches_at(share, self.num_micro_batches, self.schedule) for share in shares
        ]

    def run_record(self, device_kind: str) -> dict[str, object]:
        """Return {name: value} of the batch plan for run.json. device_kind: "GPU" or "CPU"."""
        return dict(
            global_batch_size=self.global_batch_size,
            unit_size=self.unit_size,
            micro_batch_size=self.micro_batch_size,
            num_replicas=self.num_replicas,
            device_kind=device_kind,
            learning_rate=self.learning_rate,
            num_steps=self.num_steps,
        )

    def open_rows(
        self, data: TrainingData, position: int
    ) -> Generator[dict[str, np.ndarray], None, None]:
        """Return an endless iterator over batches {feature: array} of `unit_size` records.
        position: number of records that the run has consumed before.
        """
        return data.open_batches(batch_size=self.unit_size, position=position)

    def describe(self, unit: str, rows_per_example: int = 1) -> str:
        """Return the division of the global batch in words. unit: the word for a replica, such as
        "GPU". rows_per_example: sequences in an example.
        """
        replicas = f"{self.num_replicas} {unit}{'s' if self.num_replicas > 1 else ''}"
        ramp = "1 to " if self.is_ramped else ""
        rows = f"examples of {rows_per_example} " if rows_per_example > 1 else ""
        return (
            f"micro-batch {self.micro_batch_size} x accumulation "
            f"{ramp}{self.num_micro_batches} x {replicas} = global batch "
            f"{self.global_batch_size} {rows}sequences"
        )


def plan_batch(
    config: BatchConfig,
    learning_rate: float,
    num_replicas: int,
    resumed: Mapping[str, Any] | None = None,
    is_ramped: bool = False,
) -> BatchPlan:
    """Return the BatchPlan of a run; its num_steps and schedule are not set yet.

    Args:
      config: its train_batch_size is a number, not "auto". learning_rate: the peak on one
        GPU.
      num_replicas: GPUs or virtual replicas. is_ramped: whether accumulation grows over the run.
      resumed: content of run.json of the run to resume, whose "global_batch_size" and
        "learning_rate" take precedence; None for a new run.
    """
    smallest = config.train_batch_size * num_replicas  # global batch, without accumulation
    global_batch_size = resumed["global_batch_size"] if resumed else config.global_batch_size
    if (
        resumed is None
        and global_batch_size is not None
        and config.gradient_accumulation_steps is not None
    ):
        raise UserError(
            "--global_batch_size and --gradient_accumulation_steps: each follows from the other",
            "give one of them",
        )
    if global_batch_size is None:
        accumulation = config.gradient_accumulation_steps or 1
    else:
        accumulation, rest = divmod(global_batch_size, smallest)
        if rest or not accumulation:
            nearest = max(1, round(global_batch_size / smallest)) * smallest
            name = (
                f"the run's global batch of {global_batch_size}"
                if resumed
                else f"--global_batch_size={global_batch_size}"
            )
            remedy = f"the nearest possible is {nearest}"
            if resumed:
                divisor = max(n for n in range(1, num_replicas + 1) if global_batch_size % n == 0)
                remedy = (
                    "change --train_batch_size"
                    if divisor == num_replicas
                    else f"train on a number of GPUs that divides it, such as {divisor}"
                )
            raise UserError(
                f"{name} is not a multiple of {smallest} "
                f"(--train_batch_size={config.train_batch_size} x {num_replicas})",
                remedy,
            )
    scaled = scale_learning_rate(learning_rate, num_replicas, config.lr_scaling)
    return BatchPlan(
        config.train_batch_size,
        accumulation,
        num_replicas,
        resumed["learning_rate"] if resumed else scaled,
        config.lr_scaling,
        is_ramped and accumulation > 1,
    )


def check_same_batch(
    plan: BatchPlan, config: BatchConfig, is_ramped: bool, run_json: Mapping[str, Any], path: str
) -> None:
    """Raise UserError when the run in the folder `path` would be resumed with another global batch
    than its run.json records or, with a batch ramp, with another number of records that are read at
    once (GPUs x micro-batch).
    """
    if config.global_batch_size not in (None, plan.global_batch_size):
        raise UserError(
            f"the run in {path} has {plan.global_batch_size}",
            setting="global_batch_size",
            value=config.global_batch_size,
        )
    if is_ramped and run_json["unit_size"] != plan.micro_batch_size * plan.num_replicas:
        raise UserError(
            f"a run with a batch ramp must keep GPUs x micro-batch = {run_json['unit_size']}",
            setting="train_batch_size",
            value=plan.micro_batch_size,
        )


def take_batches(
    units: Iterator[dict[str, np.ndarray]],
    num_steps: int,
    num_micro_batches: Sequence[int] | None,
    length_axes: Mapping[str, LengthAxis],
) -> list[dict[str, np.ndarray]]:
    """Return one batch for each of the next `num_steps` steps, joined from `units` of data; the
    rows of all batches are padded to one length.

    num_micro_batches: how many units each step takes, from `BatchPlan.num_micro_batches_at`; None =
    one. length_axes: as in TrainingData.
    """
    counts = num_micro_batches or [1] * num_steps
    return pad_to_longest(
        [join([next(units) for _ in range(count)], length_axes) for count in counts], length_axes
    )


def join(
    units: list[dict[str, np.ndarray]], length_axes: Mapping[str, LengthAxis]
) -> dict[str, np.ndarray]:
    """Return one batch with the records of several `units` of data (small batches), padded to one
    row length.
    """
    if len(units) == 1:
        return units[0]
    units = pad_to_longest(units, length_axes)
    return {name: np.concatenate([unit[name] for unit in units]) for name in units[0]}


def pad_to_longest(
    batches: list[dict[str, np.ndarray]], length_axes: Mapping[str, LengthAxis]
) -> list[dict[str, np.ndarray]]:
    """Return the batches with all rows padded to the longest row of any of them; with dynamic
    padding, batches differ in row length.
    """
    lengths = [
        value.shape[length_axes[name].axis]
        for batch in batches
        for name, value in batch.items()
        if name in length_axes
    ]
    return [pad_rows(batch, max(lengths, default=0), length_axes) for batch in batches]


def pad_rows(
    batch: Mapping[str, np.ndarray], length: int, length_axes: Mapping[str, LengthAxis]
) -> dict[str, np.ndarray]:
    """Return a batch with its rows padded to `length` tokens."""
    return {
        name: pad_axis(value, length, *length_axes[name]) if name in length_axes else value
        for name, value in batch.items()
    }


def pad_axis(values: np.ndarray, length: int, axis: int, fill: int) -> np.ndarray:
    """Return `values` with `fill` appended along `axis` until this axis has `length` entries."""
    missing = length - values.shape[axis]
    widths = np.zeros((values.ndim, 2), int)
    widths[axis, 1] = missing
    return np.pad(values, widths, constant_values=fill) if missing else values
