"""Writes a report on runs: one HTML file, and a picture of each chart beside it."""

import datetime
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import numpy as np

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import (
    atomic_file,
    check_regular,
    check_writable,
    exists,
    readable,
    write_text,
)
from bert_gpu.watch import charts, page, sections
from bert_gpu.watch.config import AXES
from bert_gpu.watch.run_data import Run
from bert_gpu.watch.style import slugs

if typing.TYPE_CHECKING:
    from matplotlib.figure import Figure

MARK_BYTES = 2000  # each file of a report contains the name bert-gpu before this byte


class Report(typing.NamedTuple):
    """A report in memory: `html`, the text of the page, and `pictures`, {name: function that writes
    the picture, as PNG, to an open binary file}.
    """

    html: str
    pictures: dict[str, Callable[[IO[bytes]], None]]


def import_drawing() -> types.ModuleType:
    """Import and return the module `drawing`. Raise UserError when matplotlib, which it needs, is
    missing.
    """
    import_extra("matplotlib", "report", "pip install 'bert-gpu[report]'")
    from bert_gpu.watch import drawing

    return drawing


def make_report(runs: Sequence[Run]) -> Report:
    """Return the Report on `runs`, which must not be empty."""
    all_sections = sections.sections_of(runs)
    tables = [table for run in runs for table in (run.train, run.valid)]
    axes = [axis for axis in AXES if any(np.isfinite(table[axis]).any() for table in tables)]
    pictures: dict[str, Callable[[IO[bytes]], None]] = {}
    parts = []
    for section in all_sections:
        trials = draw_results(section, pictures)
        plots = draw_section(section, axes, pictures) if axes else {}
        parts.append(page.section_html(section, plots, trials))
    title = ", ".join(run.name for run in runs) if len(runs) <= 3 else f"{len(runs)} runs"
    html = page.page(
        title,
        f"{datetime.datetime.now():%Y-%m-%d %H:%M}",
        "\n".join(parts),
        axes=axes,
        rules=page.run_rules(all_sections),
    )
    return Report(html, pictures)


def draw_results(
    section: sections.Section, pictures: dict[str, Callable[[IO[bytes]], None]]
) -> list[str]:
    """Return a list with the HTML of each figure that compares the results of a section's
    fine-tunings; [] for fewer than two runs. Add the figures to `pictures`, which has the form of
    Report.pictures.
    """
    drawing = import_drawing()
    figures = []
    metrics = sections.trial_metrics(section) if len(section.runs) > 1 else {}
    keys = slugs(metrics)
    for metric, by_entry in metrics.items():
        groups = {entry.name: (entry.index, values) for entry, values in by_entry.items()}
        figure = drawing.draw_trials(groups)
        svg = drawing.as_svg(figure, f"{page.id_of(section)}-trials-{keys[metric]}")
        title = metric.replace("_", " ")
        figures.append(page.figure_html(title, "each trial, mean, deviation", [svg]))
        add_picture(pictures, section, f"trials-{keys[metric]}", figure, title, {})
    return figures


def draw_section(
    section: sections.Section, axes: Sequence[str], pictures: dict[str, Callable[[IO[bytes]], None]]
) -> dict[str, list[str]]:
    """Return {heading: list with the HTML of each chart} of a section. Add the charts to
    `pictures`, which has the form of Report.pictures.
    """
    drawing = import_drawing()
    plots: dict[str, list[str]] = {}
    names = {entry.index: entry.name for entry in section.entries}
    for heading, group in charts.charts_of(section.runs).items():
        for chart in group:
            svgs, figures = draw_forms(chart, section, axes, drawing)
            if "step" in figures:
                title = f"{chart.title} ({chart.unit})" if chart.unit else chart.title
                add_picture(pictures, section, chart.key, figures["step"], title, names)
            plots.setdefault(heading, []).append(
                page.figure_html(chart.title, chart.unit, svgs, page.values_html(section, chart))
            )
    shares = {run.name: shares for run in section.runs if (shares := sections.time_shares(run))}
    if shares:
        figure = drawing.draw_shares(shares)
        svg = drawing.as_svg(figure, f"{page.id_of(section)}-time")
        activities = {name for parts in shares.values() for name in parts}
        plots.setdefault("Speed", []).append(page.shares_figure(svg, activities))
        add_picture(pictures, section, "time", figure, "Where the time went", {})
    return plots


def add_picture(
    pictures: dict[str, Callable[[IO[bytes]], None]],
    section: sections.Section,
    key: str,
    figure: "Figure",
    title: str,
    names: Mapping[int, str],
) -> None:
    """Add to `pictures`, a dict as Report.pictures, a function that writes a figure.
    names: {index of the style: name of the run}, for the figure's legend.
    """
    name = f"{section.key}-{key}" if section.key else key
    pictures[name] = lambda file: import_drawing().write_png(figure, file, title, names)


def draw_forms(
    chart: charts.Chart, section: sections.Section, axes: Sequence[str], drawing: types.ModuleType
) -> tuple[list[str], dict[str, "Figure"]]:
    """Return (list with the SVG of a chart for each axis and scale, {axis: first figure that was
    drawn for the axis}).
    """
    opens_with_log = chart.opens_with_log(section.runs)
    values = np.concatenate([chart.values(run) for run in section.runs])
    scales = {"any": opens_with_log}
    if chart.scale == "either" and values.min() > 0:
        scales = dict(linear=False, log=True)
    svgs = []
    figures: dict[str, Figure] = {}
    for axis in axes:
        for scale, is_log in scales.items():
            figure = drawing.draw(chart, section.styled_runs, axis, is_log)
            if figure is None:
                continue
            svg = drawing.as_svg(figure, f"{page.id_of(section)}-{chart.key}-{axis}-{scale}")
            label = f'role="img" aria-label="{page.text(chart.title)} by {axis}"'
            start = f'<svg data-axis="{axis}" data-scale="{scale}" {label}'
            svgs.append(svg.replace("<svg", start, 1))
            figures.setdefault(axis, figure)
    return svgs, figures


def write_report(runs: Sequence[Run], output: str) -> int:
    """Write the report on runs to the file `output`, and the pictures beside it. Return the number
    of pictures.

    Raises:
      UserError: the output cannot be written, or it or a picture would replace a file that `report`
        has not written.
    """
    check_output(output)
    report = make_report(runs)
    folder, name = os.path.split(os.path.abspath(output))
    stem = os.path.splitext(name)[0]
    targets = {
        os.path.join(folder, f"{stem}-{key}.png"): write for key, write in report.pictures.items()
    }
    for path in targets:
        check_ours(path)
    os.makedirs(folder, exist_ok=True)
    for path, write in targets.items():
        with atomic_file(path, "wb") as file:
            write(file)
    write_text(output, report.html)
    return len(targets)


def check_output(path: str) -> None:
    """Raise UserError for an output that cannot be written, or would replace a file that `report`
    has not written.
    """
    if not path.endswith((".html", ".htm")):
        raise UserError(
            "must end in .html", "pictures are written beside it", setting="output", value=path
        )
    if os.path.isdir(path):
        raise UserError(
            "is a folder", "name a file in it, such as report.html", setting="output", value=path
        )
    check_writable(os.path.dirname(os.path.abspath(path)), "output", path)
    check_ours(path)


def check_ours(path: str) -> None:
    """Raise UserError when a path is an existing file that `report` has not written."""
    if exists(path):
        check_regular(path)
        with readable(path), open(path, "rb") as file:
            start = file.read(MARK_BYTES)
        if b"bert-gpu" not in start:
            raise UserError(
                "exists and was not written by `report`", "name another --output", where=path
            )
