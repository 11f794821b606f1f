"""Chooses the charts of a report: those in a table of known metrics, and one for each other metric.

A chart shows a quantity in training, the same quantity in validation, or both, with a curve for
each run. Charts without data are left out, as are some whose values do not change.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence

import numpy as np

from bert_gpu.watch.run_data import Run, finite_values

LOG_SPREAD = 50.0  # highest / lowest value above which an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart of a report, before it is drawn.

    Attributes:
      title: name of the quantity.
      train, valid: names of the metric in the tables `train` and `valid` of a Run; None = not
        drawn.
      unit: unit of the values in the chart.
      factor: number by which values of the metric are multiplied to give the unit.
      sign: +1 where higher is better, -1 where lower is; 0 = neither.
      spreads: whether the axis opens as a logarithmic one where the values spread far.
      smooths: whether the curve of training is smoothed.
      from_zero: whether the axis, unless it is logarithmic, begins at 0.
      if_any: the chart is left out if all values equal this number; None = no such number.
      if_varies: whether the chart is left out if all values are equal.
      each: regular expression of the metric's names for single GPUs, whose range is shaded; None =
        no shading.
    """

    title: str
    train: str | None = None
    valid: str | None = None
    unit: str = ""
    factor: float = 1.0
    sign: int = 0
    spreads: bool = False
    smooths: bool = True
    from_zero: bool = False
    if_any: float | None = None
    if_varies: bool = False
    each: str | None = None

    def has_data(self, runs: Sequence[Run]) -> bool:
        values = self.values(runs)
        if not len(values) or np.all(values == self.if_any):
            return False
        return not self.if_varies or np.ptp(values) > 0

    def values(self, runs: Sequence[Run]) -> np.ndarray:
        """Return all finite values in runs of the chart's metric, in training and validation,
        before `factor` is applied.
        """
        return np.concatenate(
            [
                finite_values(table.get(name or "", ()))
                for run in runs
                for table, name in ((run.train, self.train), (run.valid, self.valid))
            ]
        )

    def opens_with_log(self, runs: Sequence[Run]) -> bool:
        """Return whether the vertical axis is logarithmic when the page opens."""
        values = self.values(runs)
        return self.spreads and values.max() > LOG_SPREAD * values.min() > 0


# makes a chart, in percent, of a metric between 0 and 1
share = functools.partial(Chart, unit="%", factor=100.0)
GROUPS = {
    "Learning": [
        Chart("Loss", "loss", "loss", sign=-1),
        Chart("Masked words: loss", "mlm", "mlm_loss", sign=-1),
        share("Masked words: accuracy", "mlm_accuracy", valid="mlm_accuracy", sign=1),
        Chart("Sentence pairs: loss", "nsp", "nsp_loss", sign=-1),
        share("Sentence pairs: accuracy", "nsp_accuracy", valid="nsp_accuracy", sign=1),
    ],
    "Steps": [
        Chart("Learning rate", "learning_rate", smooths=False, from_zero=True),
        Chart("Gradient norm", "gradient_norm", spreads=True),
        Chart("Loss scale", "loss_scale", spreads=True, smooths=False, if_any=1.0),
        Chart("Skipped steps", "skipped_steps", smooths=False, if_any=0.0),
        Chart("Global batch", "global_batch_size", smooths=False, if_varies=True),
    ],
    "Speed": [
        Chart("Real tokens a second", "tokens_per_second", from_zero=True),
        share("MFU", "mfu", from_zero=True),
        share("HFU", "hfu", from_zero=True),
        share("Time waiting for data", "input_wait", from_zero=True),
    ],
    "GPUs": [
        Chart("GPU utilisation", "gpu_utilization", unit="%", from_zero=True),
        Chart("GPU memory", "gpu_memory_bytes", unit="GiB", factor=2.0**-30, from_zero=True),
        Chart("GPU temperature", "gpu_temperature_celsius", unit="°C",
              each=r"gpu_\d+_temperature_celsius"),
        Chart("GPU power", "gpu_power_watts", unit="W", from_zero=True),
        Chart("GPU clock", "gpu_clock_mhz", unit="MHz", each=r"gpu_\d+_clock_mhz"),
        share("Clocks held down: power cap", "gpu_throttled_power", if_any=0.0, smooths=False),
        share("Clocks held down: heat", "gpu_throttled_heat", if_any=0.0, smooths=False),
        share("Clocks held down: hardware", "gpu_throttled_hardware", if_any=0.0, smooths=False),
    ],
}  # fmt: skip
# metrics without a chart: axes, parts of other charts, and multiples of metrics in charts
NOT_CHARTED = re.compile(
    r"step|seconds|remaining_seconds|hours|tokens|padded_tokens|model_flops|progress|epoch|loss"
    r"|time_\w+|gpu_\d+_\w+|gpu_clock_share"
    r"|(steps|sequences|padded_tokens|model_flops|hardware_flops)_per_second|mfu_real_tokens"
)


def charts_of(runs: Sequence[Run]) -> dict[str, list[Chart]]:
    """Return {heading: its charts}, without charts and headings for which the runs have no data."""
    groups = GROUPS | {
        "Learning": GROUPS["Learning"] + other_metrics(runs, "valid"),
        "More": other_metrics(runs, "train"),
    }
    groups = {
        heading: [chart for chart in charts if chart.has_data(runs)]
        for heading, charts in groups.items()
    }
    return {heading: charts for heading, charts in groups.items() if charts}


def other_metrics(runs: Sequence[Run], table: str) -> list[Chart]:
    """Return a chart for each metric in a table of the runs that no chart in GROUPS shows. table:
    "train" or "valid".
    """
    covered = {getattr(chart, table) for charts in GROUPS.values() for chart in charts}
    names = dict.fromkeys(name for run in runs for name in getattr(run, table))
    return [
        Chart(name.replace("_", " "), if_varies=table == "train", **{table: name})
        for name in names
        if name not in covered and not NOT_CHARTED.fullmatch(name)
    ]
