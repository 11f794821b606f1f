#!/usr/bin/env python3
"""Draws the curves of a benchmark's JSON file as PNG: loss over steps by precision, loss over time and tokens by recipe.

    python benchmarks/plots.py docs/data/gpu.json docs/

Needs matplotlib; without it gpu.py draws nothing and says so.
"""

import argparse
import json
import pathlib


def curves(path, series, title, xlabel, ylabel):
    """Draws {name: (x, y)} as lines; False where matplotlib is not installed."""
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
    """Every curve that the results have, into the folder: the paths that were written."""
    folder, written = pathlib.Path(folder), []
    items = {part: found["items"] for part, found in results.get("parts", {}).items()}
    precision = {name: (item["steps"], item["losses"]) for name, item in items.get("precision", {}).items() if "losses" in item}
    records = {name: item for part in ("crammed", "bert") for name, item in items.get(part, {}).items() if "losses" in item}
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json")
    parser.add_argument("folder")
    options = parser.parse_args()
    for path in draw(json.loads(pathlib.Path(options.json).read_text()), options.folder):
        print(path)


if __name__ == "__main__":
    main()
