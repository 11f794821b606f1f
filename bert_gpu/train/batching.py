"""How GPUs, accumulation and micro-batches make up a global batch, its peak learning rate, and the
batches of the steps of a call.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data.pipeline import LengthAxis
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import (
    learning_rate_factor,
    mean_batch_share,
    num_micro_batches_at,
    scale_learning_rate,
)
from bert_gpu.runs.pace import RunLength


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingData:
    """The records that a run trains on.

    open_batches: function of (batch_size=, position=), the position in consumed records -> endless
    iterator of batches. num_records: of an epoch; each is an example. max_seq_length: of the
    longest row. length_axes: {feature: its pipeline.LengthAxis}, where batches may differ in it; {}
    = all rows have one length. rows_per_example: of tokens. dupe_factor: copies of the text in the
    records, None = no pretraining.
    """

    open_batches: Callable
    num_records: int
    max_seq_length: int
    length_axes: Mapping[str, LengthAxis]
    rows_per_example: int = 1
    dupe_factor: int | None = None


@dataclasses.dataclass(frozen=True)
class BatchPlan:
    """The resolved batch of one step, and the steps of the run.

    num_steps: None = by time.
    """

    micro_batch_size: int
    num_micro_batches: int  # of one replica
    num_replicas: int
    learning_rate: float  # peak, of the global batch
    scaling: str
    is_ramped: bool = False  # whether steps may have fewer micro-batches than that
    num_steps: int | None = None
    schedule: ScheduleConfig = ScheduleConfig()

    @property
    def unit_size(self):
        """Records of one unit of data: a global batch or, with a ramp, one micro-batch of every
        replica. A step takes one unit, with a ramp several.
        """
        return (
            self.micro_batch_size * self.num_replicas if self.is_ramped else self.global_batch_size
        )

    @property
    def length(self):
        """The RunLength of the whole run."""
        hours = self.schedule.total_training_time
        return RunLength(self.num_steps, hours and 3600 * hours)

    @property
    def schedule_length(self):
        """The RunLength that the schedule is stretched over."""
        schedule = self.schedule
        return RunLength.of_schedule(
            schedule.lr_schedule, self.num_steps, schedule.total_training_time
        )

    @property
    def global_batch_size(self):
        return self.micro_batch_size * self.num_micro_batches * self.num_replicas

    @property
    def records_of_step(self):
        """Mean records per step of a run: the global batch, or fewer with a batch ramp."""
        if not self.is_ramped:
            return self.global_batch_size
        return self.global_batch_size * mean_batch_share(self.num_micro_batches, self.schedule)

    def learning_rate_at(self, step, share):
        """The learning rate of a step. share: the fraction of the schedule that is done then."""
        by_time = self.schedule.lr_schedule == "time"
        factor = learning_rate_factor(
            step, self.num_steps, self.schedule, share if by_time else None
        )
        return self.learning_rate * factor

    def num_micro_batches_at(self, shares):
        """The micro-batches of steps at fractions of the schedule; None without a ramp."""
        if not self.is_ramped:
            return None
        return [
            num_micro_batches_at(share, self.num_micro_batches, self.schedule) for share in shares
        ]

    def run_record(self, device_kind):
        """What run.json says of the plan."""
        return dict(
            global_batch_size=self.global_batch_size,
            unit_size=self.unit_size,
            micro_batch_size=self.micro_batch_size,
            num_replicas=self.num_replicas,
            device_kind=device_kind,
            learning_rate=self.learning_rate,
            num_steps=self.num_steps,
        )

    def open_rows(self, data, position):
        """The rows of TrainingData from a position in consumed records on."""
        return data.open_batches(batch_size=self.unit_size, position=position)

    def describe(self, kind, rows_per_example=1):
        replicas = f"{self.num_replicas} {kind}{'s' if self.num_replicas > 1 else ''}"
        ramp = "1 to " if self.is_ramped else ""
        rows = f"examples of {rows_per_example} " if rows_per_example > 1 else ""
        return (
            f"micro-batch {self.micro_batch_size} x accumulation "
            f"{ramp}{self.num_micro_batches} x {replicas} = global batch "
            f"{self.global_batch_size} {rows}sequences"
        )


def plan_batch(config, learning_rate, num_replicas, resumed=None, is_ramped=False):
    """The BatchPlan of a run.

    Args:
      config: BatchConfig, whose train_batch_size is an int. learning_rate: that of the reference
        batch.
      num_replicas: GPUs or virtual replicas. is_ramped: whether accumulation grows over the run.
      resumed: dict with "global_batch_size" and "learning_rate" of the run to resume, which win.
    """
    held = config.train_batch_size * num_replicas
    wanted = resumed["global_batch_size"] if resumed else config.global_batch_size
    if resumed is None and wanted is not None and config.gradient_accumulation_steps is not None:
        raise UserError(
            "--global_batch_size and --gradient_accumulation_steps: each derives the other",
            "give one of them",
        )
    if wanted is None:
        accumulation = config.gradient_accumulation_steps or 1
    else:
        accumulation, rest = divmod(wanted, held)
        if rest or not accumulation:
            nearest = max(1, round(wanted / held)) * held
            name = (
                f"the run's global batch of {wanted}"
                if resumed
                else f"--global_batch_size={wanted}"
            )
            remedy = f"the nearest possible is {nearest}"
            if resumed:
                fits = max(n for n in range(1, num_replicas + 1) if wanted % n == 0)
                remedy = (
                    "change --train_batch_size"
                    if fits == num_replicas
                    else f"train on a number that divides it, such as {fits}"
                )
            raise UserError(
                f"{name} is not a multiple of {held} (--train_batch_size={config.train_batch_size} "
                f"x {num_replicas})",
                remedy,
            )
    reference = config.lr_reference_batch_size or config.train_batch_size * accumulation
    scaled = scale_learning_rate(learning_rate, held * accumulation, reference, config.lr_scaling)
    return BatchPlan(
        config.train_batch_size,
        accumulation,
        num_replicas,
        resumed["learning_rate"] if resumed else scaled,
        config.lr_scaling,
        is_ramped and accumulation > 1,
    )


def check_same_batch(plan, config, is_ramped, stored, path):
    """UserError when the run in the folder `path` would be resumed with another global batch than
    its run.json has (`stored`), or with a batch ramp with other units.
    """
    if config.global_batch_size not in (None, plan.global_batch_size):
        raise UserError(
            f"the run in {path} has {plan.global_batch_size}",
            setting="global_batch_size",
            value=config.global_batch_size,
        )
    unit = plan.micro_batch_size * plan.num_replicas
    if is_ramped and stored.get("unit_size", unit) != unit:
        raise UserError(
            f"a run with a batch ramp must keep GPUs x micro-batch = {stored['unit_size']}",
            setting="train_batch_size",
            value=plan.micro_batch_size,
        )


def take_batches(units, num_steps, num_micro_batches, length_axes):
    """The batches of the steps of a call, all of one row length.

    num_micro_batches: as of `BatchPlan.num_micro_batches_at`. length_axes: of TrainingData.
    """
    counts = num_micro_batches or [1] * num_steps
    return same_length(
        [join([next(units) for _ in range(count)], length_axes) for count in counts], length_axes
    )


def join(units, length_axes):
    """Concatenates the examples of several units to one batch."""
    if len(units) == 1:
        return units[0]
    units = same_length(units, length_axes)
    return {name: np.concatenate([unit[name] for unit in units]) for name in units[0]}


def same_length(batches, length_axes):
    """Pads all batches to the longest row among them; dynamic padding may leave them unequal."""
    lengths = [
        value.shape[length_axes[name].axis]
        for batch in batches
        for name, value in batch.items()
        if name in length_axes
    ]
    return [pad_rows(batch, max(lengths, default=0), length_axes) for batch in batches]


def pad_rows(batch, length, length_axes):
    """Pads the rows of a batch to `length` tokens."""
    return {
        name: pad_axis(value, length, *length_axes[name]) if name in length_axes else value
        for name, value in batch.items()
    }


def pad_axis(values: np.ndarray, length: int, axis: int, fill: int) -> np.ndarray:
    """Adds `fill` to the end of an axis, up to `length` entries."""
    missing = length - values.shape[axis]
    widths = np.zeros((values.ndim, 2), int)
    widths[axis, 1] = missing
    return np.pad(values, widths, constant_values=fill) if missing else values
