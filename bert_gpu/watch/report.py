"""Writes a report on runs: one HTML file."""

import datetime
import os
from collections.abc import Sequence

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_regular, check_writable, exists, readable, write_text
from bert_gpu.watch import charts, page, sections
from bert_gpu.watch.run_data import Run

MARK_BYTES = 2000  # the page contains the name bert-gpu before this byte
BUTTONS = dict(
    displaylogo=False,
    modeBarButtons=[["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    responsive=True,
    toImageButtonOptions=dict(scale=2),
)


def make_report(runs: Sequence[Run]) -> str:
    """Return the text of the page on `runs`, which must not be empty."""
    plotly = import_extra("plotly.offline", "report", "pip install 'bert-gpu[report]'")
    title = ", ".join(run.name for run in runs) if len(runs) <= 3 else f"{len(runs)} runs"
    return page.PAGE.format(
        title=page.text(title),
        date=f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
        script=plotly.get_plotlyjs(),
        content="\n".join(map(section_html, sections.sections_of(runs))),
    )


def section_html(section: sections.Section) -> str:
    """Return the HTML of a section with its figures."""
    from bert_gpu.watch import figures

    groups = charts.charts_of(section.runs)
    drawn = {name: figures.draw_curves(group, section) for name, group in groups.items()}
    shares = {run.name: shares for run in section.runs if (shares := sections.time_shares(run))}
    if shares:
        drawn["Where the time went"] = figures.draw_shares(shares)
    return page.section_html(
        section,
        {
            name: figure.to_html(BUTTONS, include_plotlyjs=False, full_html=False)
            for name, figure in drawn.items()
        },
        [chart for group in groups.values() for chart in group],
    )


def write_report(runs: Sequence[Run], path: str) -> None:
    """Write the report on runs to a file. Raise UserError when it cannot be written, or would
    replace a file that `report` has not written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not path.endswith((".html", ".htm")):
        raise UserError("must end in .html", "the report is a page", setting="output", value=path)
    check_writable(folder, "output", path)
    if exists(path):
        check_regular(path)
        with readable(path), open(path, "rb") as file:
            start = file.read(MARK_BYTES)
        if b"bert-gpu" not in start:
            raise UserError(
                "exists and was not written by `report`", "name another --output", where=path
            )
    html = make_report(runs)
    os.makedirs(folder, exist_ok=True)
    write_text(path, html)
