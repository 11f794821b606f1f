"""Draws the figures of a report with plotly: curves, results of trials, and shares of time.

A figure of curves has its charts below each other, on one horizontal axis: who zooms into one chart
zooms into all. Its buttons exchange the horizontal axis, and linear for logarithmic axes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from plotly.graph_objects import Figure
from plotly.subplots import make_subplots

from bert_gpu.watch.charts import Chart
from bert_gpu.watch.curves import smoothed, thinned
from bert_gpu.watch.page import text
from bert_gpu.watch.run_data import Run, finite_values
from bert_gpu.watch.sections import ACTIVITIES, COLORS, Entry, Section

DASHES = ("solid", "dash", "dot", "dashdot")
AXES = dict(step="steps", tokens="real tokens", hours="hours")  # {column: title of the axis}
MINUTES_BELOW = 2.0  # hours; if all runs are shorter, the axis of time is in minutes
ROW_PIXELS = 240  # height of a chart
FRAME_PIXELS = 160  # height of what stands above and below the charts of a figure
MIN_BINS = 40  # bins of a curve, as in curves.py, in a figure of many runs
TOTAL_BINS = 300  # bins of a chart's curves in a figure of few runs
LAYOUT = dict(
    template="plotly_white",
    margin=dict(l=50, r=10, t=50, b=110),
    hovermode="x unified",
    legend=dict(orientation="h", yref="container", y=0, yanchor="bottom", maxheight=0.2),
)


def draw_curves(charts: Sequence[Chart], section: Section) -> Figure:
    """Return the figure of charts, with the curves of all runs of a section in each."""
    titles = [f"{text(chart.title)} {chart.unit and f'({chart.unit})'}" for chart in charts]
    figure = rows_figure(titles, shared_xaxes="all")
    figure.update_xaxes(showticklabels=True, hoverformat=",.7~r")
    figure.update_yaxes(hoverformat=",.4~r", automargin=False)
    axes = axes_of(section.runs)
    first = next(iter(axes))
    columns: dict[str, list[np.ndarray]] = {axis: [] for axis in axes}
    num_bins = max(MIN_BINS, TOTAL_BINS // len(section.runs))
    names: set[Entry] = set()
    for row, chart in enumerate(charts, 1):
        is_log = chart.opens_with_log(section.runs)
        figure.update_yaxes(
            row=row,
            type="log" if is_log else "linear",
            rangemode="tozero" if chart.from_zero else "normal",
        )
        for entry, run in ((one, run) for one in section.entries for run in one.runs):
            for table, steps, values, style in curves_of(chart, run, num_bins, is_log):
                for axis, (_, factor) in axes.items():
                    columns[axis].append(np.interp(steps, table["step"], table[axis] * factor))
                is_named = "hoverinfo" in style or entry in names
                names |= set() if is_named else {entry}
                figure.add_scatter(
                    x=columns[first][-1].astype(np.float32),
                    y=(values * chart.factor).astype(np.float32),
                    name=text(entry.name),
                    legendgroup=entry.index,
                    showlegend=not is_named,
                    line_color=COLORS[entry.index % len(COLORS)],
                    row=row,
                    col=1,
                    **dict(line_dash=DASHES[entry.index // len(COLORS) % len(DASHES)]) | style,
                )
    figure.update_xaxes(row=len(charts), title_text=axes[first][0])
    figure.update_layout(updatemenus=menus(axes, columns, len(charts)))
    return figure


def rows_figure(titles: Sequence[str], **more: Any) -> Figure:
    """Return a figure with a row for each title and, so far, nothing in it."""
    height = ROW_PIXELS * len(titles) + FRAME_PIXELS
    gap = 60 / (ROW_PIXELS * len(titles))
    figure = make_subplots(len(titles), 1, subplot_titles=titles, vertical_spacing=gap, **more)
    figure.update_annotations(x=0, xanchor="left", font_size=14)
    return figure.update_layout(LAYOUT, height=height)


def axes_of(runs: Sequence[Run]) -> dict[str, tuple[str, float]]:
    """Return {column: (title, number by which the column is multiplied)} of the horizontal axes for
    which the runs have values.
    """
    columns = {
        axis: finite_values(
            np.concatenate([t[axis] for run in runs for t in (run.train, run.valid)])
        )
        for axis in AXES
    }
    axes = {axis: (AXES[axis], 1.0) for axis, values in columns.items() if len(values)}
    if "hours" in axes and columns["hours"].max() < MINUTES_BELOW:
        axes["hours"] = ("minutes", 60.0)
    return axes


def curves_of(
    chart: Chart, run: Run, num_bins: int, is_log: bool
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, dict[str, Any]]]:
    """Yield (table of the run, steps, values, plotly's style) of each curve of a run in a chart.
    is_log: whether the chart opens with a logarithmic axis.
    """
    steps, values = points(run.train, chart.train)
    faint = dict(mode="lines", opacity=0.3, hoverinfo="skip", line_dash="solid", line_width=1)
    gpus = [run.train[name] for name in run.train if chart.each and re.fullmatch(chart.each, name)]
    if len(gpus) > 1:
        for edge, fill in ((np.min, None), (np.max, "tonexty")):
            edge_points = points(run.train | dict(edge=edge(gpus, axis=0)), "edge")
            yield run.train, *thinned(*edge_points, num_bins), faint | dict(fill=fill, line_width=0)
    if chart.smooths and len(steps) >= 10:
        yield run.train, *thinned(steps, values, num_bins), faint
        yield run.train, *smoothed(steps, values, num_bins, is_log), dict(mode="lines")
    elif len(steps):
        yield (
            run.train,
            *thinned(steps, values, num_bins),
            {"mode": "markers" if len(steps) == 1 else "lines"},
        )
    steps, values = points(run.valid, chart.valid)
    if len(steps):
        style = dict(mode="lines+markers", marker_symbol="circle-open", line_dash="dot")
        yield run.valid, *thinned(steps, values, num_bins), style | dict(line_width=1)


def points(table: dict[str, np.ndarray], name: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return (steps, finite values) of a metric in a table that may lack the metric."""
    values = table.get(name or "", np.full(len(table["step"]), np.nan))
    return table["step"][np.isfinite(values)], values[np.isfinite(values)]


def menus(
    axes: Mapping[str, tuple[str, float]], columns: Mapping[str, list[np.ndarray]], num_rows: int
) -> list[dict[str, Any]]:
    """Return plotly's buttons for the horizontal axis and for linear or logarithmic axes. columns:
    {axis: horizontal positions of each curve}.
    """
    numbers = ["", *range(2, num_rows + 1)]  # as plotly names the axes
    by_axis = [
        dict(
            label=title.removeprefix("real "),
            method="update",
            args=[
                {"x": [[float(f"{v:.7g}") for v in x] for x in columns[axis]]},
                {f"xaxis{numbers[-1]}.title.text": title, "xaxis.autorange": True},
            ],
        )
        for axis, (title, _) in axes.items()
    ]
    by_scale = [
        dict(
            label=scale,
            method="relayout",
            args=[{f"yaxis{number}.type": scale for number in numbers}],
        )
        for scale in ("linear", "log")
    ]
    place = dict(
        type="buttons",
        direction="right",
        showactive=False,
        yanchor="top",
        y=0,
        pad_t=48,
        font_size=11,
    )
    return [
        place | dict(buttons=by_axis, x=0, xanchor="left"),
        place | dict(buttons=by_scale, x=1, xanchor="right"),
    ]


def draw_shares(shares: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return a figure with a bar for each run, divided by the activities that took the run's time.
    shares: {name of the run: {activity: share of the time}}.
    """
    figure = Figure(layout=LAYOUT | dict(barmode="stack", height=150 + 30 * len(shares)))
    for activity, color in zip(ACTIVITIES, COLORS, strict=False):
        figure.add_bar(
            x=[100 * parts.get(activity, 0.0) for parts in shares.values()],
            y=[text(name) for name in shares],
            name=activity,
            orientation="h",
            marker_color=color,
        )
    return figure.update_layout(hovermode="y unified", xaxis_ticksuffix=" %")
