"""A made-up job with a clock of its own, for tests of the loop."""

import types

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress
from bert_gpu.train import loop
from bert_gpu.train.batching import BatchPlan
from bert_gpu.train.cadence import num_steps_of
from bert_gpu.train.config import CadenceConfig, EndingConfig

SECONDS = 10.0  # that a step takes


class Log:
    def __init__(self):
        self.lines, self.cuts, self.moments = [], [], []

    def write(self, step, values):
        self.lines.append(dict(values, step=step))

    def advance(self, step, share, left):
        self.moments.append((step, share, left))

    def hardware(self):
        return {}

    def cut(self, step):
        self.cuts.append(step)


class World:
    """A job whose weight counts updates, whose losses are given, and whose steps take SECONDS."""

    def __init__(
        self,
        folder,
        losses=lambda step, first_record: 2.0,
        eval_losses=None,
        micro=(2, 1),
        schedule=None,
        **settings,
    ):
        self.now, self.calls, self.exports, self.caught, self.log = 0.0, [], [], [], Log()
        self.weight, self.losses, self.folder = 0.0, losses, RunFolder(str(folder))
        self.progress = Progress()
        names = {field for field in CadenceConfig.__dataclass_fields__}
        self.cadence = CadenceConfig(
            **{name: value for name, value in settings.items() if name in names}
        )
        self.ending = EndingConfig(
            **{name: value for name, value in settings.items() if name not in names}
        )
        self.schedule = schedule or ScheduleConfig()
        plan = BatchPlan(
            micro[0], micro[1], 1, 1.0, "none", self.schedule.batch_ramp_proportion > 0
        )
        self.job = loop.Job(
            step=self.step,
            batches_at=self.batches_at,
            validate=None
            if eval_losses is None
            else lambda until_stopped: dict(loss=eval_losses(self.progress.step)),
            read=lambda: dict(weight=np.float32(self.weight)),
            assign=lambda values: setattr(self, "weight", float(values["weight"])),
            num_steps=num_steps_of(
                self.cadence, 100, plan.global_batch_size, self.schedule.lr_schedule == "time"
            ),
            num_records=100,
            plan=plan,
            schedule=self.schedule,
            export=lambda mark, step: self.exports.append((mark, self.progress.step)),
        )
        self.folder.create({})

    def batches_at(self, position):
        while True:
            size = self.job.plan.unit_size
            yield dict(
                input_mask=np.ones((size, 4), np.int32), number=np.arange(position, position + size)
            )
            position += size

    def step(self, batches, learning_rates, step):
        first = [int(batch["number"][0]) for batch in batches]
        losses = [self.losses(step + i, first[i]) for i in range(len(batches))]
        skipped = ~np.isfinite(losses)
        self.calls.append(
            types.SimpleNamespace(
                step=step,
                learning_rates=list(learning_rates),
                first=first,
                rows=[len(b["number"]) for b in batches],
            )
        )
        self.now += SECONDS * len(batches)
        self.weight += float(np.sum(~skipped))
        return types.SimpleNamespace(
            read=lambda: dict(loss=np.array(losses), skipped=skipped.astype(np.float32))
        )

    def run(self):
        running = loop.Loop(
            self.job,
            self.cadence,
            self.ending,
            self.progress,
            self.folder,
            self.log,
            Console(True),
            self.caught,
            lambda: self.now,
        )
        running.run()
        return running

    @property
    def saved(self):
        return self.folder.steps()
