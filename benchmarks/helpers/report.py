"""Output of the benchmarks: tables, the machine and revision that they are from, and results in a
JSON file.
"""

import hashlib
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import threading

from . import ROOT
from .command import Failed
from .processor import processor


def output_of(*command):
    """Return what a command prints; None when it prints nothing or cannot run."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def hardware():
    """Return the machine and software: processor, its instruction sets as far as they are known,
    cores, GPU and driver if any, Python, and the revision of the code.
    """
    query = ("--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    cpu = processor()
    return dict(
        cpu=cpu["name"],
        features=cpu["features"] or [],
        cores=cpu["cores"],
        gpu=output_of("nvidia-smi", *query),
        python=platform.python_version(),
        revision=output_of("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
    )


def origin():
    """Return the origin of the results of this process: {"hardware", "command"}."""
    return dict(hardware=hardware(), command=shlex.join(sys.argv))


def print_origin(results):
    """Print the command, revision and machine of results with an `origin`."""
    machine = results["hardware"]
    features = f" with {', '.join(machine['features'])}" if machine.get("features") else ""
    print(
        f"{results['command']}\nrevision {machine['revision']}, "
        f"{machine['cores']} cores, {machine['cpu']}{features}\n",
        flush=True,
    )


def print_table(header, rows):
    """Print rows under a header, as a Markdown table."""
    rows = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * width for width in widths])
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"| {' | '.join(cells)} |", flush=True)


def spread(values, form="{:.3f}"):
    """Return the mean, lowest and highest of some values, for a table; "-" for none."""
    if not values:
        return "-"
    if len(values) == 1:
        return form.format(values[0])
    mean, low, high = map(form.format, (statistics.mean(values), min(values), max(values)))
    return f"{mean} ({low} to {high})"


def read_results(path):
    """Return the content of a JSON file; {} when there is none."""
    if not path or not pathlib.Path(path).exists():
        return {}
    return json.loads(pathlib.Path(path).read_text())


def write_results(path, results):
    """Write the file atomically; do nothing without a file name."""
    if not path:
        return
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    temporary.rename(path)


def save_plot(figure, folder, name):
    """Write a figure of matplotlib to FOLDER/NAME.png and print the path."""
    path = pathlib.Path(folder) / f"{name}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    print(f"\n{path}")


# -- rows that are measured over hours


class Missing(Failed):
    """Raised for a row that only a run can make, where rows are only read."""


class Rows:
    """{"settings": ..., part: {key: row}, ...} in a JSON file, with the origin of the last row.
    Each finished row is written, and a row in the file is not measured again.

    path: of the file, None keeps it in memory. settings: what all rows of the file have in common,
    None = the file's own, whose rows are then only read. parts: names of its tables. Raises Failed
    when the file was made with other settings.
    """

    def __init__(self, path, settings, parts):
        self.path = path
        self.lock = threading.Lock()
        self.values = dict(settings={}) | {part: {} for part in parts} | read_results(path)
        self.is_read_only = settings is None
        if not self.is_read_only:
            check_same(path, self.values["settings"], settings, "json")
            self.values["settings"] |= settings

    def row(self, part, key, make):
        """Return the row of a key, made and written if it is missing. May be called in several
        threads, each with keys of its own. Raises Missing for a missing row when rows are only
        read.
        """
        rows = self.values[part]
        if key not in rows:
            if self.is_read_only:
                raise Missing(f"{self.path}: {part}: {key}: no such row")
            print(f"{part}: {key}\n", end="", flush=True)  # in one write, for other threads print
            row = make()
            with self.lock:
                rows[key] = row
                self.values |= origin()
                write_results(self.path, self.values)
        return rows[key]

    def of(self, part, name):
        """Return the rows of the keys "name, seed N" of a part that are there, by seed."""
        return list(self.by_seed(part, name).values())

    def by_seed(self, part, name):
        """Return {N: row} of the keys "name, seed N" of a part, in order."""
        rows = {}
        for key, row in self.values[part].items():
            before, _, seed = key.rpartition(", seed ")
            if before == name:
                rows[int(seed)] = row
        return dict(sorted(rows.items()))


def opened_rows(options, settings_of, parts):
    """Return the Rows of a command's --json, after printing their origin: with --table those of the
    file, which are only printed; else this process's, with settings_of(options). Ends the process
    with exit code 2 when another benchmark wrote the file.
    """
    name = pathlib.Path(sys.argv[0]).name
    try:
        command = read_results(options.json).get("command")
    except (ValueError, AttributeError):
        command = "not JSON"
    if (command or options.table) and name not in (command or ""):
        where = f"--json={options.json}" if options.json else "--table without --json"
        print(f"error: {where}: no rows of {name}; name a file that it wrote", file=sys.stderr)
        sys.exit(2)
    rows = Rows(options.json, None if options.table else settings_of(options), parts)
    print_origin(rows.values if options.table else origin())
    return rows


def check_same(where, stored, settings, flag):
    """Raise Failed when stored settings differ."""
    other = [name for name in settings if stored.get(name, settings[name]) != settings[name]]
    if other:
        raise Failed(f"{where}: was made with another {', '.join(other)}; name another --{flag}")


def digest(*paths):
    """Return a hash of the names and contents of files."""
    state = hashlib.sha256()
    for path in map(pathlib.Path, paths):
        state.update(f"{path.name} {path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                state.update(block)
    return state.hexdigest()[:16]


def pairs_digest(folder):
    """Return a hash of the files of a folder of pairs."""
    return digest(*sorted(pathlib.Path(folder).glob("*.tsv")))
