"""Chooses the charts of a report: those in a table of known metrics, and one for each other metric.

A chart shows a quantity in training, the same quantity in validation, or both, with a curve for
each run. Charts without data are left out, as are some whose values do not change.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from bert_gpu.watch.run_data import Run, finite_values
from bert_gpu.watch.style import slugs

GIB = 1 << 30
LOG_SPREAD = 50.0  # highest / lowest value above which an "auto" axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report, before it is drawn.

    Attributes:
      key: part of the name of the chart's picture file.
      title: name of the quantity.
      train, valid: names of the metric in the tables `train` and `valid` of a Run; None = not
        drawn.
      unit: unit of the values in the chart.
      factor: number by which values of the metric are multiplied to give the unit.
      sign: +1 where higher is better, -1 where lower is; 0 = neither.
      scale: "linear"; "log"; "auto", logarithmic where values spread far; or "either", a choice on
        the page.
      smooths: whether the curve of training is smoothed.
      if_any: the chart is left out if all values equal this number; None = no such number.
      if_varies: whether the chart is left out if all values are equal.
      each: regular expression of the metric's names for single GPUs, whose range is shaded; None =
        no shading.
      bounds: (lower, upper) limit of the vertical axis; None = a limit that follows the values.
    """

    key: str
    title: str
    train: str | None = None
    valid: str | None = None
    unit: str = ""
    factor: float = 1.0
    sign: int = 0
    scale: str = "linear"
    smooths: bool = True
    if_any: float | None = None
    if_varies: bool = False
    each: str | None = None
    bounds: tuple[float | None, float | None] = (None, None)

    def has_data(self, runs: Sequence[Run]) -> bool:
        values = np.concatenate([self.values(run) for run in runs])
        if not len(values):
            return False
        if self.if_any is not None and np.all(values == self.if_any):
            return False
        return not self.if_varies or np.ptp(values) > 0

    def values(self, run: Run) -> np.ndarray:
        """Return all finite values in a run of the chart's metric, in training and validation,
        before `factor` is applied.
        """
        tables = ((run.train, self.train), (run.valid, self.valid))
        return np.concatenate([finite_values(table.get(name or "", ())) for table, name in tables])

    def opens_with_log(self, runs: Sequence[Run]) -> bool:
        """Return whether the vertical axis is logarithmic when the page opens: all values are
        positive, and `scale` is "log", or it is "auto" and the values spread far.
        """
        values = np.concatenate([self.values(run) for run in runs])
        positive = values[values > 0]
        return len(positive) == len(values) and (
            self.scale == "log"
            or (self.scale == "auto" and positive.max() > LOG_SPREAD * positive.min())
        )


def share(key: str, title: str, train: str, **more: Any) -> Chart:
    """Return a chart, in percent, of the metric `train`, which lies between 0 and 1."""
    return Chart(key, title, train, unit="%", factor=100.0, **more)


def accuracy(name: str, title: str) -> Chart:
    return share(
        f"{name}-accuracy",
        title,
        f"{name}_accuracy",
        valid=f"{name}_accuracy",
        sign=1,
    )


FROM_ZERO = (0.0, None)
LOSSES = [
    Chart("loss", "Loss", "loss", "loss", sign=-1, scale="either"),
    Chart("mlm-loss", "Masked words: loss", "mlm", "mlm_loss", sign=-1, scale="either"),
    accuracy("mlm", "Masked words: accuracy"),
    Chart("nsp-loss", "Sentence pairs: loss", "nsp", "nsp_loss", sign=-1, scale="either"),
    accuracy("nsp", "Sentence pairs: accuracy"),
]
STEPS = [
    Chart("learning-rate", "Learning rate", "learning_rate", smooths=False, bounds=FROM_ZERO),
    Chart("gradient-norm", "Gradient norm", "gradient_norm", scale="auto"),
    Chart("loss-scale", "Loss scale", "loss_scale", scale="log", smooths=False, if_any=1.0),
    Chart("skipped-steps", "Skipped steps", "skipped_steps", smooths=False, if_any=0.0),
    Chart("skipped-records", "Skipped records", "skipped_records", smooths=False, if_any=0.0),
    Chart("batch", "Global batch", "global_batch_size", smooths=False, if_varies=True),
]
SPEED = [
    Chart("tokens-per-second", "Real tokens a second", "tokens_per_second", bounds=FROM_ZERO),
    share("mfu", "MFU", "mfu", bounds=FROM_ZERO),
    share("hfu", "HFU", "hfu", bounds=FROM_ZERO),
    share("input-wait", "Time waiting for data", "input_wait", bounds=FROM_ZERO),
]
GPUS = [
    Chart("gpu-utilization", "GPU utilisation", "gpu_utilization", unit="%", bounds=(0.0, 100.0)),
    Chart(
        "gpu-memory", "GPU memory", "gpu_memory_bytes", unit="GiB", factor=1 / GIB, bounds=FROM_ZERO
    ),
    Chart(
        "gpu-temperature",
        "GPU temperature",
        "gpu_temperature_celsius",
        unit="°C",
        each=r"gpu_\d+_temperature_celsius",
    ),
    Chart("gpu-power", "GPU power", "gpu_power_watts", unit="W", bounds=FROM_ZERO),
    Chart("gpu-clock", "GPU clock", "gpu_clock_mhz", unit="MHz", each=r"gpu_\d+_clock_mhz"),
    *(
        share(f"throttled-{cause}", f"Clocks held down: {words}", f"gpu_throttled_{cause}",
              if_any=0.0, smooths=False)
        for cause, words in dict(power="power cap", heat="heat", hardware="hardware").items()
    ),
]  # fmt: skip
GROUPS = {"Learning": LOSSES, "Steps": STEPS, "Speed": SPEED, "GPUs": GPUS}
# metrics without a chart: axes, parts of other charts, and multiples of metrics in charts
NOT_CHARTED = re.compile(
    r"step|seconds|remaining_seconds|hours|tokens|padded_tokens|model_flops|progress|epoch|loss"
    r"|time_\w+|gpu_\d+_\w+|gpu_clock_share"
    r"|(steps|sequences|padded_tokens|model_flops|hardware_flops)_per_second|mfu_real_tokens"
)


def charts_of(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Return {heading: its charts}, without charts and headings for which the runs have no data."""
    groups = GROUPS | {"Learning": LOSSES + other_metrics(runs, "valid")}
    groups |= {"More": other_metrics(runs, "train")}
    groups_with_data = {
        heading: [chart for chart in charts if chart.has_data(runs)]
        for heading, charts in groups.items()
    }
    return {heading: charts for heading, charts in groups_with_data.items() if charts}


def other_metrics(runs: Sequence[Run], table: str) -> list[Chart]:
    """Return a chart for each metric in a table of the runs that no chart in GROUPS shows. table:
    "train" or "valid".
    """
    covered = {getattr(chart, table) for charts in GROUPS.values() for chart in charts}
    names = dict.fromkeys(name for run in runs for name in getattr(run, table))
    others = slugs(
        name for name in names if name not in covered and not NOT_CHARTED.fullmatch(name)
    )
    return [
        Chart(
            f"{table}-{key}",
            name.replace("_", " "),
            train=name if table == "train" else None,
            valid=name if table == "valid" else None,
            if_varies=table == "train",
        )
        for name, key in others.items()
    ]
