"""Makes the page of a report: one HTML file that needs no other files.

All texts that come from runs are escaped.
"""

import html
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bert_gpu.watch.charts import Chart
from bert_gpu.watch.sections import (
    COLORS,
    Section,
    differences,
    is_provenance,
    last_values,
    summary_of_entry,
    trial_metrics,
)

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="bert-gpu report">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 82rem; padding: 0 1rem;
  overflow-wrap: anywhere; }}
.grid {{ display: grid; gap: 1rem; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }}
.wide {{ grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); }}
.grid > * {{ border: 1px solid #8884; border-radius: .5rem; padding: .7rem; min-width: 0; }}
.scroll {{ overflow-x: auto; }}
h4 {{ margin: 0 0 .5rem; }}
table {{ border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }}
th, td {{ border-bottom: 1px solid #8884; padding: .2rem .8rem .2rem 0; text-align: left;
  vertical-align: top; }}
th, .note {{ font-weight: normal; opacity: .75; }}
.plotly .main-svg, .plotly .modebar-group {{ background: transparent !important; }}
.plotly .gridlayer path, .plotly .zerolinelayer path {{ stroke: #8884 !important; }}
.plotly text {{ fill: CanvasText !important; }}
.plotly .bg, .plotly .updatemenu-item-rect {{ fill: Canvas !important; }}
</style>
<script>{script}</script>
</head>
<body>
<h1>{title}</h1>
<p class="note">{date}</p>
{content}
<script>
// a swipe over a chart scrolls the page; the chart's own buttons turn zooming on
if (window.Plotly && matchMedia("(pointer: coarse)").matches)
  for (const chart of document.querySelectorAll(".plotly-graph-div"))
    Plotly.relayout(chart, {{dragmode: false}});
</script>
</body>
</html>
"""


def text(value: object) -> str:
    """Return a value as HTML. Characters that UTF-8 cannot encode, such as half of a surrogate
    pair, are escaped.
    """
    return html.escape(str(value).encode("utf-8", "backslashreplace").decode("utf-8"))


def section_html(section: Section, figures: Mapping[str, str], charts: Sequence[Chart]) -> str:
    """Return the HTML of a section. figures: {heading: HTML of a figure}. charts: those whose last
    values become a table.
    """
    names = [entry.name for entry in section.entries]
    parts = [f"<h2>{text(section.title)}</h2>", cards(section)]
    if len(names) > 1:
        rows = differences(section)
        differing = table(names, sorted(rows.items(), key=lambda row: is_provenance(row[0])))
        parts += ["<h3>What differs</h3>", differing if rows else "<p>No setting.</p>"]
    results = [
        (f"{entry.name}, {metric}", spread_of(values))
        for metric, by_entry in trial_metrics(section).items()
        for entry, values in by_entry.items()
    ]
    if results:
        head = ("trials", "mean", "standard deviation", "median", "lowest", "highest")
        parts += ["<h3>Results</h3>", table(head, results)]
    if figures:
        note = "thin: as logged; thick: training, smoothed; circles: validation"
        drawn = [f"<div><h4>{text(name)}</h4>{figure}</div>" for name, figure in figures.items()]
        parts += [
            f'<h3>Curves</h3><p class="note">{note}</p>',
            f'<div class="grid wide">{"".join(drawn)}</div>',
        ]
    runs = [entry.runs[0] for entry in section.entries if len(entry.runs) == 1]
    if runs and charts:
        values = [(f"{c.title} {c.unit}", [last_values(run, c) for run in runs]) for c in charts]
        parts += ["<h3>Values</h3>", table([run.name for run in runs], values)]
    settings = dict.fromkeys(name for run in section.runs for name in run.settings)
    cells = [(name, [run.settings.get(name, "") for run in section.runs]) for name in settings]
    all_settings = table([run.name for run in section.runs], cells)
    parts.append(f"<details><summary>All settings</summary>{all_settings}</details>")
    return "\n".join(parts)


def cards(section: Section) -> str:
    """Return the HTML of a card with a summary of each entry of a section."""
    cards = []
    for entry in section.entries:
        color = COLORS[entry.index % len(COLORS)]
        facts = table([], [(term, [fact]) for term, fact in summary_of_entry(entry).items()])
        cards.append(f'<div><h4 style="color: {color}">{text(entry.name)}</h4>{facts}</div>')
    return f'<div class="grid">{"".join(cards)}</div>'


def table(head: Sequence[object], rows: Iterable[tuple[str, Sequence[object]]]) -> str:
    """Return an HTML table. head: heading of each column; [] = none. rows: (name of a row, its
    cells) of each.
    """
    cells = "".join(f"<th>{text(cell)}</th>" for cell in head)
    top = f"<tr><th></th>{cells}</tr>" if head else ""
    body = "".join(
        f"<tr><th>{text(name)}</th>{''.join(f'<td>{text(cell)}</td>' for cell in cells)}</tr>"
        for name, cells in rows
    )
    return f'<div class="scroll"><table>{top}{body}</table></div>'


def spread_of(values: Sequence[float]) -> list[object]:
    """Return the cells of a table's row for the values of several trials: number of trials, mean,
    standard deviation (of a sample), median, lowest and highest value.
    """
    spread = f"{np.std(values, ddof=1):.4f}" if len(values) > 1 else "–"
    median, lowest, highest = (f"{np.quantile(values, share):.4f}" for share in (0.5, 0, 1))
    return [len(values), f"{np.mean(values):.4f}", spread, median, lowest, highest]
