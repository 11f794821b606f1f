"""Draws the curves of the GPU benchmark's results as PNG: loss over steps by precision, loss over
time and tokens by recipe.

Needs matplotlib; draws nothing without it.
"""

import pathlib


def curves(path, series, title, xlabel, ylabel):
    """Draws {name: (x, y)} as lines; False when matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for name, (x, y) in series.items():
        axes.plot(x, y, label=name, linewidth=1.2)
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return True


def draw(results, folder):
    """Draws every curve of the results into the folder; returns the paths."""
    folder, written = pathlib.Path(folder), []
    items = {part: found["items"] for part, found in results.get("parts", {}).items()}
    precision = {
        name: (item["steps"], item["losses"])
        for name, item in items.get("precision", {}).items()
        if "losses" in item
    }
    records = {
        name: item
        for part in ("crammed", "bert")
        for name, item in items.get(part, {}).items()
        if "losses" in item
    }
    wanted = [
        ("gpu-precision.png", precision, "Training loss by precision", "step", "loss"),
        (
            "gpu-record-time.png",
            {name: (item["minutes"], item["losses"]) for name, item in records.items()},
            "Loss of masked words by recipe",
            "minutes",
            "loss",
        ),
        (
            "gpu-record-tokens.png",
            {name: (item["tokens"], item["losses"]) for name, item in records.items()},
            "Loss of masked words by recipe",
            "million tokens",
            "loss",
        ),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, series, *texts in wanted:
        if series and curves(folder / name, series, *texts):
            written.append(folder / name)
    return written
