"""Plans a run: divides its global batch among GPUs and micro-batches, scales the peak learning rate
to it, and says how many steps the run has.
"""

import dataclasses
import math
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.optim.schedules import (
    learning_rate_factor,
    mean_batch_share,
    num_micro_batches_at,
    scale_learning_rate,
)
from bert_gpu.runs.pace import RunLength
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.config import BatchConfig, CadenceConfig, RunSettings

# passes over the text, as in BERT's pretraining (Devlin et al. 2018, appendix A.2)
DEFAULT_PASSES = 40
BY_STEPS = ScheduleConfig()


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
    schedule: ScheduleConfig = BY_STEPS

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
        "GPU". rows_per_example: sequences in an example, at
        most.
        """
        replicas = f"{self.num_replicas} {unit}{'s' if self.num_replicas > 1 else ''}"
        ramp = "1 to " if self.is_ramped else ""
        rows = f"examples of up to {rows_per_example} " if rows_per_example > 1 else ""
        return (
            f"micro-batch {self.micro_batch_size} x accumulation "
            f"{ramp}{self.num_micro_batches} x {replicas} = global batch "
            f"{self.global_batch_size} {rows}sequences"
        )


def plan_training(
    settings: RunSettings,
    data: TrainingData,
    num_replicas: int,
    run_json: Mapping[str, Any] | None = None,
) -> BatchPlan:
    """Return the BatchPlan of a run, with its number of steps; arguments as for `plan_batch`."""
    learning_rate = settings.optimizer.learning_rate
    plan = plan_batch(settings.batch, learning_rate, num_replicas, run_json, settings.schedule)
    num_steps = num_steps_of(
        settings.cadence,
        data.num_records,
        plan.records_of_step,
        runs_by_time=settings.schedule.lr_schedule == "time",
        dupe_factor=data.dupe_factor or 1,
    )
    return dataclasses.replace(plan, num_steps=num_steps)


def plan_batch(
    config: BatchConfig,
    learning_rate: float,
    num_replicas: int,
    resumed: Mapping[str, Any] | None = None,
    schedule: ScheduleConfig = BY_STEPS,
) -> BatchPlan:
    """Return the BatchPlan of a run without its num_steps.

    Args:
      config: its train_batch_size is a number, not "auto". learning_rate: the peak on one
        GPU.
      num_replicas: GPUs or virtual replicas.
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
        schedule.batch_ramp_proportion > 0 and accumulation > 1,
        schedule=schedule,
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


def num_steps_of(
    config: CadenceConfig,
    num_records: int,
    records_of_step: float,
    runs_by_time: bool = False,
    dupe_factor: int = 1,
) -> int | None:
    """Return the number of steps of a run: --num_train_steps, or the steps that its epochs take,
    rounded up; None when only a time limit ends the run.

    records_of_step: mean number of records per step. dupe_factor: how many times the records
    contain the text.
    """
    if config.num_train_steps is not None:
        return config.num_train_steps
    if config.num_train_epochs is None and runs_by_time:
        return None
    num_epochs = config.num_train_epochs or DEFAULT_PASSES / dupe_factor
    return max(1, math.ceil(num_epochs * num_records / records_of_step))
