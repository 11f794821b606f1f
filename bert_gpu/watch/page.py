"""Makes the page of a report: one HTML file that needs no other files.

All texts that come from runs are escaped. The page contains each chart once for every horizontal
axis, and style sheets show only the chosen one, so the page works without scripts. The only script
shows the values of the curves under the pointer.
"""

import html
import importlib.resources
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from bert_gpu.watch.charts import Chart
from bert_gpu.watch.config import AXES
from bert_gpu.watch.run_data import Run
from bert_gpu.watch.sections import (
    Section,
    differences,
    is_provenance,
    state_of_entry,
    summary_of_entry,
    trial_metrics,
)
from bert_gpu.watch.style import ACTIVITIES, SERIES, VARIABLES, encodable, short_number

GENERATOR = "bert-gpu report"
AXIS_NAMES = dict(step="steps", tokens="tokens", hours="time")
SCALES = ("linear", "log")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{generator}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
{axis_rules}
</style>
<style>
{rules}
</style>
</head>
<body>
<h1>{title}</h1>
<p class="meta">{date}</p>
{controls}
<main>
{content}
</main>
<script>
{script}
</script>
</body>
</html>
"""


def text(value: object) -> str:
    return html.escape(encodable(str(value)))


def file_text(name: str) -> str:
    return importlib.resources.files("bert_gpu.watch").joinpath(name).read_text(encoding="utf-8")


def page(title: str, date: str, content: str, *, axes: Sequence[str], rules: str) -> str:
    """Return the text of the page.

    Args:
      title: heading of the page.
      date: text below the title.
      content: HTML below the date.
      axes: those of AXES for which there are charts.
      rules: style sheet of the content.
    """
    return PAGE.format(
        generator=GENERATOR,
        title=text(title),
        date=text(date),
        style=file_text("report.css"),
        axis_rules=axis_rules(),
        rules=rules,
        script=file_text("report.js"),
        controls=controls(axes),
        content=content,
    )


def controls(axes: Sequence[str]) -> str:
    """Return the HTML of the choices of axis and scale; it is hidden when there is no axis to
    choose.
    """
    axis_choices = "".join(choice("x", name, AXIS_NAMES[name], name == axes[0]) for name in axes)
    scale_choices = "".join(choice("y", name, name, name == "linear") for name in SCALES)
    hidden = "" if axes else " hidden"
    return (
        f'<form id="controls" class="bar" autocomplete="off"{hidden}>'
        f"<fieldset><legend>by</legend>{axis_choices}</fieldset>"
        f"<fieldset><legend>losses</legend>{scale_choices}</fieldset></form>"
    )


def choice(group: str, value: str, label: str, is_chosen: bool) -> str:
    checked = " checked" if is_chosen else ""
    return (
        f'<label class="choice"><input type="radio" name="{group}" id="{group}-{value}"{checked}>'
        f"<span>{text(label)}</span></label>"
    )


def axis_rules() -> str:
    """Return the style sheet that hides the charts whose axis or scale is not chosen."""
    rules = [
        f'body:has(#x-{name}:checked) svg[data-axis]:not([data-axis="{name}"])' for name in AXES
    ]
    rules += [
        f'body:has(#y-{name}:checked) svg[data-scale]:not([data-scale="{name}"], '
        '[data-scale="any"])'
        for name in SCALES
    ]
    return ",\n".join(rules) + " { display: none; }"


def run_rules(sections: Iterable[Section]) -> str:
    """Return the style sheet that hides the curves of each run whose box in the legend is not
    ticked.
    """
    return "".join(
        f"#{id_of(section)}:has(#{id_of(section)}-{entry.index}:not(:checked)) "
        f".run-{entry.index} "
        "{ display: none; }\n"
        for section in sections
        for entry in section.entries
    )


def id_of(section: Section) -> str:
    """Return the id of a section's HTML element."""
    return f"runs-{section.key}" if section.key else "runs"


def section_html(section: Section, plots: Mapping[str, list[str]], trials: Sequence[str]) -> str:
    """Return the HTML of a section. plots: {heading: list with the HTML of each chart}. trials:
    list with the HTML of each figure of fine-tuning results.
    """
    parts = [f'<section id="{id_of(section)}"><h2>{text(section.title)}</h2>', cards(section)]
    if len(section.entries) > 1:
        parts.append(differences_html(section))
    parts.append(trials_html(section) + charts_html(trials))
    if plots:
        parts.append(f"<h3>Curves</h3>{legend(section)}")
    for heading, figures in plots.items():
        parts.append(f"<h3>{text(heading)}</h3>{charts_html(figures)}")
    parts.append(settings_html(section))
    return "\n".join([*filter(None, parts), "</section>"])


def charts_html(figures: Sequence[str]) -> str:
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def swatch(index: int) -> str:
    color = f"var(--series-{index % len(SERIES)})"
    return f'<span class="swatch" style="background:{color}"></span>'


def legend(section: Section) -> str:
    """Return the HTML of a legend: the names and colours of runs, each with a box that shows or
    hides the run's curves.
    """
    entries = "".join(
        f'<label><input type="checkbox" id="{id_of(section)}-{entry.index}" checked '
        'autocomplete="off" '
        f'data-run="{entry.index}" data-color="{entry.index % len(SERIES)}" '
        f'data-name="{text(entry.name)}">{swatch(entry.index)}{text(entry.name)}</label>'
        for entry in section.entries
    )
    note = "bold: training, smoothed; circles: validation"
    return f'<div class="legend">{entries}<span class="note">{note}</span></div>'


def cards(section: Section) -> str:
    cards = []
    for entry in section.entries:
        facts = "".join(
            f"<dt>{text(term)}</dt><dd>{text(value)}</dd>"
            for term, value in summary_of_entry(entry).items()
        )
        state = state_of_entry(entry)
        cards.append(
            f'<div class="card"><h4>{swatch(entry.index)}{text(entry.name)}'
            f'<span class="state {text(state)}">{text(state)}</span></h4><dl>{facts}</dl></div>'
        )
    return f'<div class="cards">{"".join(cards)}</div>'


def table(head: Iterable[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an HTML table. head: HTML of each cell of the first row. rows: HTML of each cell of
    the others, first the row's name.
    """
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    content = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{content}</table></div>'


def settings_table(names: Iterable[str], rows: Mapping[str, Sequence[str]]) -> str:
    """Return an HTML table of settings. names: heading of each column. rows: {setting: text in each
    column}.
    """
    return table(["", *map(text, names)], [[text(row), *map(text, rows[row])] for row in rows])


def differences_html(section: Section) -> str:
    rows = differences(section)
    settings = {name: texts for name, texts in rows.items() if not is_provenance(name)}
    others = [name for name in rows if name not in settings]
    note = f'<p class="meta">Also differ: {text(", ".join(others))}.</p>' if others else ""
    names = [entry.name for entry in section.entries]
    content = settings_table(names, settings) if settings else "<p>No setting.</p>"
    return f"<h3>What differs</h3>{content}{note}"


def settings_html(section: Section) -> str:
    names = dict.fromkeys(name for run in section.runs for name in run.settings)
    rows = {name: [run.settings.get(name, "") for run in section.runs] for name in names}
    return (
        "<details><summary>All settings</summary>"
        f"{settings_table([run.name for run in section.runs], rows)}</details>"
    )


def trials_html(section: Section) -> str:
    """Return an HTML table of the results of a section's fine-tunings; "" when there are none."""
    rows = []
    for metric, by_entry in trial_metrics(section).items():
        for entry, values in by_entry.items():
            rows.append(
                [f"{swatch(entry.index)} {text(entry.name)}", text(metric), *spread_of(values)]
            )
    if not rows:
        return ""
    head = ("", "metric", "trials", "mean", "standard deviation", "median", "lowest", "highest")
    return f"<h3>Results</h3>{table(head, rows)}"


def spread_of(values: Sequence[float]) -> list[object]:
    """Return the cells of a table's row for the values of several trials: number of trials, mean,
    standard deviation (of a sample), median, lowest and highest value.
    """
    spread = f"{np.std(values, ddof=1):.4f}" if len(values) > 1 else "–"
    numbers = (np.median(values), min(values), max(values))
    return [len(values), f"{np.mean(values):.4f}", spread, *(f"{v:.4f}" for v in numbers)]


def figure_html(title: str, unit: str, svgs: Iterable[str], values: str = "") -> str:
    """Return the HTML of a figure with its title. svgs: drawings of the same chart by each axis and
    scale, of which the page shows one. values: HTML below the drawing.
    """
    unit = f" <small>{text(unit)}</small>" if unit else ""
    below = f'<div class="values">{values}</div>' if values else ""
    caption = f'<figcaption class="title">{text(title)}{unit}</figcaption>'
    return f"<figure>{caption}{''.join(svgs)}{below}</figure>"


def values_html(section: Section, chart: Chart) -> str:
    """Return the HTML of the values below a chart: for each entry of one run, the last value in
    training, and the last and the best in validation.
    """
    spans = []
    for entry in section.entries:
        words = [words for run in entry.runs if (words := last_values(run, chart))]
        if len(words) == 1:
            spans.append(f"<span>{swatch(entry.index)} {words[0]}</span>")
    return "".join(spans)


def last_values(run: Run, chart: Chart) -> str:
    words = []
    if chart.train and (last := run.last(chart.train)) is not None:
        words.append(f"last {short_number(last * chart.factor)}")
    if chart.valid and (last := run.last(chart.valid, "valid")) is not None:
        values = run.valid[chart.valid]
        best = values[values == values].max() if chart.sign > 0 else values[values == values].min()
        words.append(f"validation {short_number(last * chart.factor)}")
        if chart.sign and best != last:
            words[-1] += f" (best {short_number(best * chart.factor)})"
    return ", ".join(words)


def shares_figure(svg: str, names: Collection[str]) -> str:
    """Return the HTML of the figure of the time that each activity took. svg: the drawing. names:
    names of the activities in it, for the legend.
    """
    colors = {name: VARIABLES[color] for name, color in ACTIVITIES.items() if name in names}
    keys = "".join(
        f'<span><span class="swatch" style="background:var(--{color})"></span> {name}</span>'
        for name, color in colors.items()
    )
    return figure_html("Where the time went", "share of the run", [svg], keys)
