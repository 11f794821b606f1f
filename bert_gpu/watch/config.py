"""Settings of the commands that read runs."""

import dataclasses

from bert_gpu.base.settings import Settings, setting

AXES = ("step", "tokens", "hours")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """A report on runs."""

    output: str = setting(
        "report/report.html",
        "HTML file to write. Each chart is also written beside it as a picture, "
        "such as report-loss.png.",
    )
    x: str = setting(
        "step",
        "Horizontal axis of the pictures, and of the page when it opens. tokens = real tokens, "
        "padding not counted; hours = time spent in all sessions of the run.",
        choices=AXES,
    )
    smoothing: float = setting(
        0.02,
        "Width over which training curves are smoothed, as a share of a run; "
        "0 = as they were logged.",
        low=0.0,
        high=0.5,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsConfig(Settings):
    """A table of runs."""

    json: bool = setting(False, "Print JSON: a list of objects, one for each run.")
