"""The page of a report: one HTML file that needs nothing else.

All texts of runs are escaped. Each chart stands in it once for every axis; style sheets show the
one that is chosen, so the page works without scripts, which only read values out.
"""

import html
import importlib.resources

import numpy as np

from bert_gpu.watch.config import AXES
from bert_gpu.watch.sections import (
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
<p class="meta">{made}</p>
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


def text(value):
    return html.escape(encodable(str(value)))


def file_text(name):
    return importlib.resources.files("bert_gpu.watch").joinpath(name).read_text(encoding="utf-8")


def page(title, made, content, *, axes, rules):
    """The text of the page.

    Args:
      title, made: texts below which `content`, HTML, stands. axes: those that have charts. rules:
        style sheet of the content.
    """
    return PAGE.format(
        generator=GENERATOR,
        title=text(title),
        made=text(made),
        style=file_text("report.css"),
        axis_rules=axis_rules(),
        rules=rules,
        script=file_text("report.js"),
        controls=controls(axes),
        content=content,
    )


def controls(axes):
    """The choices of axis and scale, hidden while there is nothing to choose between."""
    axis_choices = "".join(choice("x", name, AXIS_NAMES[name], name == axes[0]) for name in axes)
    scale_choices = "".join(choice("y", name, name, name == "linear") for name in SCALES)
    hidden = "" if axes else " hidden"
    return (
        f'<form id="controls" class="bar" autocomplete="off"{hidden}>'
        f"<fieldset><legend>by</legend>{axis_choices}</fieldset>"
        f"<fieldset><legend>losses</legend>{scale_choices}</fieldset></form>"
    )


def choice(group, value, label, is_chosen):
    checked = " checked" if is_chosen else ""
    return (
        f'<label class="choice"><input type="radio" name="{group}" id="{group}-{value}"{checked}>'
        f"<span>{text(label)}</span></label>"
    )


def axis_rules():
    """Style sheet that hides the charts of what is not chosen."""
    rules = [
        f'body:has(#x-{name}:checked) svg[data-axis]:not([data-axis="{name}"])' for name in AXES
    ]
    rules += [
        f'body:has(#y-{name}:checked) svg[data-scale]:not([data-scale="{name}"], '
        '[data-scale="any"])'
        for name in SCALES
    ]
    return ",\n".join(rules) + " { display: none; }"


def run_rules(sections):
    """Style sheet that hides the curves whose name is not ticked."""
    return "".join(
        f"#{id_of(section)}:has(#{id_of(section)}-{entry.index}:not(:checked)) "
        f".run-{entry.index} "
        "{ display: none; }\n"
        for section in sections
        for entry in section.entries
    )


def id_of(section):
    """Of its element."""
    return f"runs-{section.key}" if section.key else "runs"


def section_html(section, plots, trials):
    """A section. plots: {heading: [HTML of a figure]}. trials: [HTML of a figure] of results."""
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


def charts_html(figures):
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def swatch(index):
    color = f"var(--series-{index % len(SERIES)})"
    return f'<span class="swatch" style="background:{color}"></span>'


def legend(section):
    """Names with their colours, each of which can be switched off."""
    entries = "".join(
        f'<label><input type="checkbox" id="{id_of(section)}-{entry.index}" checked '
        'autocomplete="off" '
        f'data-run="{entry.index}" data-color="{entry.index % len(SERIES)}" '
        f'data-name="{text(entry.name)}">{swatch(entry.index)}{text(entry.name)}</label>'
        for entry in section.entries
    )
    note = "bold: training, smoothed; circles: validation"
    return f'<div class="legend">{entries}<span class="note">{note}</span></div>'


def cards(section):
    found = []
    for entry in section.entries:
        facts = "".join(
            f"<dt>{text(term)}</dt><dd>{text(value)}</dd>"
            for term, value in summary_of_entry(entry).items()
        )
        state = state_of_entry(entry)
        found.append(
            f'<div class="card"><h4>{swatch(entry.index)}{text(entry.name)}'
            f'<span class="state {text(state)}">{text(state)}</span></h4><dl>{facts}</dl></div>'
        )
    return f'<div class="cards">{"".join(found)}</div>'


def table(head, rows):
    """HTML of a table; cells are HTML, the first of a row names it."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(
        f"<tr><th>{first}</th>{''.join(f'<td>{cell}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    top, body = f"<thead><tr>{top}</tr></thead>", f"<tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{top}{body}</table></div>'


def settings_table(names, rows):
    """A table of settings. names: of the columns. rows: {setting: [text]}."""
    return table(["", *map(text, names)], [[text(row), *map(text, rows[row])] for row in rows])


def differences_html(section):
    rows = differences(section)
    shown = {name: texts for name, texts in rows.items() if not is_provenance(name)}
    others = [name for name in rows if name not in shown]
    note = f'<p class="meta">Also differ: {text(", ".join(others))}.</p>' if others else ""
    names = [entry.name for entry in section.entries]
    told = settings_table(names, shown) if shown else "<p>No setting.</p>"
    return f"<h3>What differs</h3>{told}{note}"


def settings_html(section):
    names = dict.fromkeys(name for run in section.runs for name in run.settings)
    rows = {name: [run.settings.get(name, "") for run in section.runs] for name in names}
    return (
        "<details><summary>All settings</summary>"
        f"{settings_table([run.name for run in section.runs], rows)}</details>"
    )


def trials_html(section):
    """A table of the results of fine-tunings; "" when there are none."""
    rows = []
    for metric, found in trial_metrics(section).items():
        for entry, values in found.items():
            rows.append(
                [f"{swatch(entry.index)} {text(entry.name)}", text(metric), *spread_of(values)]
            )
    if not rows:
        return ""
    head = ("", "metric", "trials", "mean", "standard deviation", "median", "lowest", "highest")
    return f"<h3>Results</h3>{table(head, rows)}"


def spread_of(values):
    """Cells: trials, mean, standard deviation (of a sample), median, lowest and highest."""
    spread = f"{np.std(values, ddof=1):.4f}" if len(values) > 1 else "–"
    numbers = (np.median(values), min(values), max(values))
    return [len(values), f"{np.mean(values):.4f}", spread, *(f"{v:.4f}" for v in numbers)]


def figure_html(title, unit, svgs, values=""):
    """A figure. svgs: HTML of its forms. values: HTML of what stands below."""
    unit = f" <small>{text(unit)}</small>" if unit else ""
    below = f'<div class="values">{values}</div>' if values else ""
    caption = f'<figcaption class="title">{text(title)}{unit}</figcaption>'
    return f"<figure>{caption}{''.join(svgs)}{below}</figure>"


def values_html(section, chart):
    """The last values of a chart, and the best of validation."""
    spans = []
    for entry in section.entries:
        words = [words for run in entry.runs if (words := last_values(run, chart))]
        if len(words) == 1:
            spans.append(f"<span>{swatch(entry.index)} {words[0]}</span>")
    return "".join(spans)


def last_values(run, chart):
    words, shown = [], short_number
    if chart.train and (last := run.last(chart.train)) is not None:
        words.append(f"last {shown(last * chart.factor)}")
    if chart.valid and (last := run.last(chart.valid, "valid")) is not None:
        values = run.valid[chart.valid]
        best = values[values == values].max() if chart.sign > 0 else values[values == values].min()
        words.append(f"validation {shown(last * chart.factor)}")
        if chart.sign and best != last:
            words[-1] += f" (best {shown(best * chart.factor)})"
    return ", ".join(words)


def shares_figure(svg, names):
    """The figure of where the time went."""
    colors = {name: VARIABLES[color] for name, color in ACTIVITIES.items() if name in names}
    keys = "".join(
        f'<span><span class="swatch" style="background:var(--{color})"></span> {name}</span>'
        for name, color in colors.items()
    )
    return figure_html("Where the time went", "share of the run", [svg], keys)
