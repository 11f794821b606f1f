"""A made-up training with a clock of its own, for tests of the loop."""

import os
import types

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.devices.workers import ALONE
from bert_gpu.optim.config import ScheduleConfig
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress
from bert_gpu.train import loop
from bert_gpu.train.batching import TrainingData
from bert_gpu.train.config import CadenceConfig, EndingConfig, RunSettings
from bert_gpu.train.plan import BatchPlan, num_steps_of
from bert_gpu.train.run import Run

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

    def energy(self):
        return {}

    def cut(self, step):
        self.cuts.append(step)

    def close(self, is_complete=True):
        self.is_complete = is_complete


class World:
    """A training whose weight counts updates, whose losses are given, and whose steps take SECONDS.

    `step`, `read`, `validate` and `export` can be replaced until it runs.
    """

    workers, console, mixture, kind = ALONE, Console(True), None, "CPU"

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
        is_ramped = self.schedule.batch_ramp_proportion > 0
        self.plan = BatchPlan(
            *micro,
            1,
            1.0,
            "none",
            is_ramped,
            num_steps=num_steps_of(
                self.cadence, 100, micro[0] * micro[1], self.schedule.lr_schedule == "time"
            ),
            schedule=self.schedule,
        )
        self.validate = None
        if eval_losses is not None:
            self.validate = lambda until_stopped: dict(loss=eval_losses(self.progress.step))
        self.folder.create({})

    def read(self):
        return dict(weight=np.float32(self.weight))

    def assign(self, values):
        self.weight = float(values["weight"])

    def export(self, path, state, step):
        self.exports.append((float(os.path.basename(path)), step))

    def open_batches(self, *, batch_size, position):
        while True:
            rows = np.arange(position, position + batch_size)
            yield dict(input_mask=np.ones((batch_size, 4), np.int32), number=rows)
            position += batch_size

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
        run = Run(
            settings=RunSettings(cadence=self.cadence, ending=self.ending),
            fields={},
            folder=self.folder,
            run_json=None,
            workers=self.workers,
            console=self.console,
            clock=lambda: self.now,
            progress=self.progress,
            caught=self.caught,
        )
        data = TrainingData(
            open_batches=self.open_batches,
            num_records=100,
            max_seq_length=4,
            length_axes={},
            mixture=self.mixture,
        )
        running = loop.Loop(
            Step(self), data, self.plan, run, self.log, validate=self.validate, export=self.export
        )
        running.run()
        return running

    @property
    def saved(self):
        return self.folder.steps()


class Step:
    """The step of a World, as TrainStep."""

    def __init__(self, world):
        self.world, self.state = world, world
        self.devices = types.SimpleNamespace(kind=world.kind)

    def __call__(self, batches, learning_rates, step):
        return self.world.step(batches, learning_rates, step)

    def put_on_devices(self, batches, step, num_micro_batches, learning_rates):
        return batches
