"""Settings of the commands `report` and `runs`."""

import dataclasses

from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig(Settings):
    """A report on runs."""

    output: str = setting("report/report.html", "HTML file to write.", path="one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunsConfig(Settings):
    """A table of runs."""

    json: bool = setting(False, "Print JSON: a list of objects, one for each run.")
