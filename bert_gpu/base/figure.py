"""Makes figures for pictures that a training draws, by matplotlib, which is an optional package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    """Return a figure and its axes with a title. The figure is not made by pyplot, which would keep
    every figure in memory.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    return figure, axes
