"""Draws charts with matplotlib: as SVG, which goes into the page of a report, and as PNG.

Both are written from the same figure. In the SVG, every colour of the palette becomes a CSS
variable, so that the page has a light and a dark form, and the elements of a run get a class named
after the run's index, so that the page can hide them.
"""

import contextlib
import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from bert_gpu.watch.charts import Chart
from bert_gpu.watch.curves import finite, smoothed, thinned
from bert_gpu.watch.run_data import Run, finite_values
from bert_gpu.watch.style import (
    ACTIVITIES,
    GRID,
    INK,
    MUTED,
    PAPER,
    VARIABLES,
    encodable,
    short_number,
    style_of,
)

SMOOTHING = 0.02  # width over which training curves are smoothed, as a share of a run
INCHES = (4.6, 2.75)  # width and height of a picture
DOTS_PER_INCH = 200  # resolution of a PNG
AXIS_TITLES = dict(step="steps", tokens="real tokens", hours="hours")
# edges of the axes, as shares of the width and height of a picture
MARGINS = dict(left=0.115, right=0.975, bottom=0.17, top=0.97)
HEADROOM = 1.05  # upper end of an axis that begins at 0, relative to the highest value
TITLED_TOP = 0.9  # top edge of the axes in a picture with a title, as in MARGINS
MINUTES_BELOW = 2.0  # hours; if all runs are shorter, the axis of time is in minutes
NAME_CHARACTERS = 28  # a run's name beside its bar or in a legend is cut to this length
NUM_NAMES = 12  # maximum number of names in a legend
# with more decades than this, a logarithmic axis has ticks at powers of ten, else at round numbers
MAX_DECADES_WITHOUT_POWERS = 1.5
STYLE: dict[Any, Any] = {  # Any: the type in matplotlib is a list of all its keys
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "lines.solid_capstyle": "round",
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a $ in a run's name begins no formula
    "path.simplify_threshold": 0.3,
}


def new_figure(height: float | None = None) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes. height: height, in inches, of a figure with names beside
    its axis, which makes room for them; None = a figure with numbers beside its axis, of fixed
    height and margins, so that charts are aligned.
    """
    size = (INCHES[0], height or INCHES[1])
    figure = Figure(figsize=size, layout="constrained" if height else None, facecolor="none")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if height is None:
        figure.subplots_adjust(**MARGINS)
    axes.set_facecolor("none")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return figure, axes


def draw(chart: Chart, runs: Sequence[tuple[int, Run]], axis: str, is_log: bool) -> Figure | None:
    """Return the figure of a chart; None when no run has a point to draw.

    Args:
      runs: pairs of (index of the run's style, run).
      axis: quantity on the horizontal axis: "step", "tokens" or "hours".
      is_log: whether the vertical axis is logarithmic.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure()
        title, factor = horizontal_axis(runs, axis)
        has_points = [
            draw_run(axes, chart, run, index, axis, factor, is_log) for index, run in runs
        ]
        if not any(has_points):
            return None
        axes.set_xlabel(title)
        axes.grid(axis="y")
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=axis == "step"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
        scale_axis(axes, chart, is_log)
        return figure


def horizontal_axis(runs: Sequence[tuple[int, Run]], axis: str) -> tuple[str, float]:
    """Return (title of the horizontal axis, number by which the metric `axis` is multiplied to give
    the unit in the title). runs, axis: as for `draw`.
    """
    tables = [table for _, run in runs for table in (run.train, run.valid)]
    longest = max((finite_values(table[axis]).max(initial=0.0) for table in tables), default=0.0)
    if axis == "hours" and longest < MINUTES_BELOW:
        return "minutes", 60.0
    return AXIS_TITLES[axis], 1.0


def draw_run(
    axes: Axes, chart: Chart, run: Run, index: int, axis: str, factor: float, is_log: bool
) -> bool:
    """Draw the curves of one run; return whether there are any. index: index of the run's style.
    factor: number by which the metric `axis` is multiplied to give the unit of the horizontal axis.
    """
    color, dashes = style_of(index)

    def points(table: dict[str, np.ndarray], name: str | None) -> tuple[np.ndarray, np.ndarray]:
        if name is None or name not in table:
            return np.empty(0), np.empty(0)
        x, y = finite(table[axis], table[name])
        is_drawable = y > 0 if is_log else np.isfinite(y)
        return x[is_drawable] * factor, y[is_drawable] * chart.factor

    def line(x: np.ndarray, y: np.ndarray, role: str, **style: Any) -> None:
        axes.plot(x, y, color=color, gid=f"run-{index}.{role}", **style)

    x, y = points(run.train, chart.train)
    if len(x):
        is_noisy = chart.smooths and len(x) >= 10
        if is_noisy:
            line(*thinned(x, y), "raw", linewidth=0.8, alpha=0.3)
        mean = smoothed(x, y, SMOOTHING, is_log) if is_noisy else thinned(x, y)
        line(*mean, "mean", linewidth=1.7, linestyle=dashes, marker="o" if len(x) == 1 else None)
        draw_range(axes, chart, run, index, run.train[axis] * factor, color)
    valid = points(run.valid, chart.valid)
    if len(valid[0]):
        marks: dict[str, Any] = dict(
            marker="o", markersize=4, markerfacecolor=PAPER, markeredgewidth=1.2
        )
        line(*thinned(*valid), "valid", linewidth=0.9, linestyle=(0, (3, 2)), **marks)
    return len(x) + len(valid[0]) > 0


def draw_range(axes: Axes, chart: Chart, run: Run, index: int, x: np.ndarray, color: str) -> None:
    """Shade the area between the lowest and the highest value of a run's GPUs. x: horizontal
    position of each value, (n,).
    """
    names = [name for name in run.train if chart.each and re.fullmatch(chart.each, name)]
    if len(names) > 1:
        values = np.stack([run.train[name] for name in names])
        is_finite = np.isfinite(values).all(axis=0) & np.isfinite(x)
        x = x[is_finite]
        values = values[:, is_finite] * chart.factor
        low, high = (thinned(x, edge(axis=0)) for edge in (values.min, values.max))
        x = np.union1d(low[0], high[0])
        area = axes.fill_between(
            x, np.interp(x, *low), np.interp(x, *high), color=color, alpha=0.15, linewidth=0
        )
        area.set_gid(f"run-{index}.range")


def scale_axis(axes: Axes, chart: Chart, is_log: bool) -> None:
    """Set scale, ticks and limits of the vertical axis."""
    if is_log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        is_long = np.log10(high / low) > MAX_DECADES_WITHOUT_POWERS
        axes.yaxis.set_major_locator(LogLocator(numticks=6) if is_long else MaxNLocator(5))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
        bottom, top = chart.bounds
        if bottom is not None:
            highest = HEADROOM * axes.get_ylim()[1]
            free_top = highest if highest > bottom else bottom + 1
            axes.set_ylim(bottom, free_top if top is None else top)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))


def draw_shares(runs: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return a figure with a bar for each run, divided by the activities that took the run's time.
    runs: {name: {activity: share of the time}}.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(height=0.75 + 0.33 * len(runs))
        left = np.zeros(len(runs))
        for activity, color in ACTIVITIES.items():
            widths = np.array([100 * shares.get(activity, 0.0) for shares in runs.values()])
            axes.barh(range(len(runs)), widths, left=left, color=color, height=0.62, linewidth=0)
            left += widths
        axes.set_yticks(range(len(runs)), map(short_name, runs))
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
        axes.tick_params(axis="y", labelcolor=INK)
        return figure


def draw_trials(groups: Mapping[str, tuple[int, Sequence[float]]]) -> Figure:
    """Return the figure of one metric: for each group of trials the values, their mean and standard
    deviation.

    groups: {name: (index of the style, value of each trial)}.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(height=0.75 + 0.42 * len(groups))
        for row, (index, results) in enumerate(groups.values()):
            values = np.array(results)
            color = style_of(index)[0]
            mean = values.mean()
            spread = values.std(ddof=1) if len(values) > 1 else 0.0
            axes.plot([mean - spread, mean + spread], [row, row], color=color, linewidth=5,
                      alpha=0.3)  # fmt: skip
            axes.plot([mean], [row], marker="|", markersize=15, markeredgewidth=2, color=color)
            rows = row + 0.14 * np.resize([1, -1], len(values)) * (len(values) > 1)
            axes.plot(values, rows, "o", markersize=4.5, markerfacecolor=PAPER, color=color)
        axes.set_yticks(range(len(groups)), map(short_name, groups))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.grid(axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
        axes.margins(x=0.06)
        return figure


@contextlib.contextmanager
def any_script() -> Iterator[None]:
    """Silence warnings about letters that matplotlib's font lacks: a PNG shows boxes in place of
    these letters, the page shows the letters.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")
        yield


def short_name(name: str) -> str:
    name = encodable(name)
    return name if len(name) <= NAME_CHARACTERS else f"{name[: NAME_CHARACTERS - 1]}…"


def as_svg(figure: Figure, key: str) -> str:
    """Return a figure as the text of an SVG element for the page. key: text that makes the
    element's ids unique on the page.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": key}), any_script():
        none = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=none)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\s(width|height)="[\d.]+pt"', "", svg, count=2)
    changes = {
        r"(?s)<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style.*?</style>\s*</defs>": "",
        r'id="(run-\d+)\.(\w+)"': r'class="\1 \2"',
        r'\sid="[a-zA-Z.]+_\d+"': "",
        r'(\sid="|href="#|url\(#)': rf"\1{key}-",
        r"((?:font|font-family): ?[^;\"]*?)'DejaVu Sans'[^;\"]*": r"\1inherit",
    }
    for pattern, new in changes.items():
        svg = re.sub(pattern, new, svg)
    for color, name in VARIABLES.items():
        svg = svg.replace(color, f"var(--{name})")
    svg = re.sub(r'\s(?:d|x|y|transform)="[^"]*"', lambda part: rounded(part[0]), svg)
    svg = svg.replace("<svg", f"<svg data-plot='{json.dumps(geometry(figure))}'", 1)
    return re.sub(r"\s*\n\s*", " ", svg).strip()


def rounded(attribute: str) -> str:
    """Return an attribute of an SVG with its coordinates cut to two decimals."""
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", attribute)


def geometry(figure: Figure) -> dict[str, object]:
    """Return, as a dict, the position and limits of the axes in the SVG of a figure, from which the
    page's script computes the values under the pointer.
    """
    axes = figure.axes[0]
    width, height = 72 * figure.get_size_inches()
    box = axes.get_position()
    left = width * box.x0
    top = height * (1 - box.y1)
    return dict(
        box=[round(float(v), 2) for v in (left, top, width * box.width, height * box.height)],
        unit=axes.get_xlabel(),
        x=[float(v) for v in axes.get_xlim()],
        y=[float(v) for v in axes.get_ylim()],
        log=axes.get_yscale() == "log",
    )


def write_png(figure: Figure, file: IO[bytes], title: str, names: Mapping[int, str]) -> None:
    """Write a figure as PNG to an open binary file, with a title and, for several runs, a legend
    beside it. names: {index of the style: name of the run}; at most NUM_NAMES of them are shown.
    """
    with matplotlib.rc_context(STYLE), any_script():
        axes = figure.axes[0]
        if figure.get_layout_engine() is None:
            figure.subplots_adjust(top=TITLED_TOP)
        axes.set_title(encodable(title), loc="left", fontsize=10.5, color=INK)
        if len(names) > 1:
            add_legend(axes, names)
        look: dict[str, Any] = dict(dpi=DOTS_PER_INCH, facecolor=PAPER, bbox_inches="tight")
        figure.savefig(file, format="png", metadata={"Software": "bert-gpu"}, **look)


def add_legend(axes: Axes, names: Mapping[int, str]) -> None:
    """Add a legend of runs beside the axes, where it covers no curve. names: {index of the style:
    name of the run}.
    """
    lines = []
    texts = []
    for index, name in list(names.items())[:NUM_NAMES]:
        color, dashes = style_of(index)
        lines += axes.plot([], [], color=color, linestyle=dashes, linewidth=1.7)
        texts.append(f" {short_name(name)}")  # a space, as matplotlib hides names that begin with _
    if len(names) > NUM_NAMES:
        lines += axes.plot([], [], alpha=0)
        texts.append(f" … and {len(names) - NUM_NAMES} more")
    axes.legend(
        lines, texts, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0)
    )
