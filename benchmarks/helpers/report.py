"""Output of the benchmarks: tables, their origin (the command, the revision, the machine), and
results in a JSON file.
"""

import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys

from bert_gpu.doctor.processor import processor

from . import ROOT


def hardware():
    """The machine and software: processor, its instruction sets as far as they are known, cores,
    GPU and driver if any, Python, and the revision of the code.
    """

    def said(*command):
        try:
            return (
                subprocess.run(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    timeout=20,
                ).stdout.strip()
                or None
            )
        except (OSError, subprocess.TimeoutExpired):
            return None

    found = processor()
    return dict(
        cpu=found["name"],
        features=found["features"] or [],
        cores=found["cores"],
        gpu=said(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"
        ),
        python=platform.python_version(),
        revision=said("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
    )


def origin():
    """Origin of the results of this process: {"hardware", "command"}."""
    return dict(hardware=hardware(), command=shlex.join(sys.argv))


def print_origin(found):
    has = found["hardware"]
    features = f" with {', '.join(has['features'])}" if has.get("features") else ""
    print(
        f"{found['command']}\nrevision {has['revision']}, "
        f"{has['cores']} cores, {has['cpu']}{features}\n",
        flush=True,
    )


def print_table(header, rows):
    """Prints rows of strings under a header, as a Markdown table."""
    rows = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        print(
            "| "
            + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            + " |",
            flush=True,
        )


def spread(values, form="{:.3f}"):
    """The mean, lowest and highest of some values, for a table; "-" for none."""
    if not values:
        return "-"
    if len(values) == 1:
        return form.format(values[0])
    mean, low, high = (
        form.format(value) for value in (statistics.mean(values), min(values), max(values))
    )
    return f"{mean} ({low} to {high})"


def read_results(path):
    return (
        json.loads(pathlib.Path(path).read_text()) if path and pathlib.Path(path).exists() else {}
    )


def write_results(path, results):
    """Writes the file atomically; does nothing without a file name."""
    if not path:
        return
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.rename(path)
