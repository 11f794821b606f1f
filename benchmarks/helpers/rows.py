"""Results that a benchmark gathers over hours: a JSON file to which each finished row is written,
so that what is there is not measured again.
"""

import hashlib
import pathlib
import sys
import threading

from .command import Failed
from .report import origin, print_origin, read_results, write_results


class Missing(Failed):
    """A row that only a run can make, where rows are only read."""


class Rows:
    """{"settings": ..., part: {key: row}, ...} in a JSON file, with the origin of the last row.

    path: of the file, None keeps it in memory. settings: what all rows of the file have in common,
    None = what the file says, whose rows are then only read. parts: names of its tables. Failed
    when the file was made with other settings.
    """

    def __init__(self, path, settings, parts):
        self.path, self.lock = path, threading.Lock()
        self.values = dict(settings={}) | {part: {} for part in parts} | read_results(path)
        stored, self.is_read_only = self.values["settings"], settings is None
        if self.is_read_only:
            return
        check_same(path, stored, settings, "json")
        if not stored and any(self.values[part] for part in parts):
            print(f"{path}: has rows without settings; they are taken for rows of these")
        self.values["settings"] = stored | settings

    def row(self, part, key, make):
        """The row of a key, made and written if it is not there. May be called in several threads,
        each with keys of its own. Missing when it is not there and rows are only read.
        """
        rows = self.values[part]
        if key not in rows:
            if self.is_read_only:
                raise Missing(f"{self.path}: {part}: {key}: not there")
            print(f"{part}: {key}\n", end="", flush=True)  # whole, whatever other threads say
            made = make()
            with self.lock:
                rows[key] = made
                self.values |= origin()
                write_results(self.path, self.values)
        return rows[key]

    def of(self, part, name):
        """{seed: row} of the keys "name, seed N" of a part, those that are there."""
        found = {}
        for key, row in self.values[part].items():
            before, _, seed = key.rpartition(", seed ")
            if before == name:
                found[int(seed)] = row
        return dict(sorted(found.items()))


def opened_rows(arguments, settings_of, parts):
    """The Rows of a command's --json, after printing their origin: with --table that of the file,
    whose rows are only printed; else this process's, and their settings are settings_of(arguments).
    Ends the process with exit code 2 when the file is not one of this benchmark.
    """
    name = pathlib.Path(sys.argv[0]).name
    try:
        command = read_results(arguments.json).get("command")
    except (ValueError, AttributeError):
        command = "not JSON"
    if (command or arguments.table) and name not in (command or ""):
        where = f"--json={arguments.json}" if arguments.json else "--table without --json"
        print(f"error: {where}: no rows of {name}; name a file that it wrote", file=sys.stderr)
        sys.exit(2)
    if not arguments.table:
        print_origin(origin())
        return Rows(arguments.json, settings_of(arguments), parts)
    rows = Rows(arguments.json, None, parts)
    print_origin(rows.values)
    return rows


def check_same(where, stored, settings, flag):
    """Failed when stored settings are others."""
    other = [name for name in settings if stored.get(name, settings[name]) != settings[name]]
    if other:
        raise Failed(f"{where}: was made with another {', '.join(other)}; name another --{flag}")


def digest(*paths):
    """A hash of the names and contents of files."""
    found = hashlib.sha256()
    for path in map(pathlib.Path, paths):
        found.update(f"{path.name} {path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                found.update(block)
    return found.hexdigest()[:16]
