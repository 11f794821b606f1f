"""Results that a benchmark gathers over hours: a JSON file to which each finished row is written,
so that what is there is not measured again.
"""

import hashlib
import pathlib

from .command import Failed
from .report import origin, read_results, write_results


class Rows:
    """{"settings": ..., part: {key: row}, ...} in a JSON file, with the origin of the last row.

    path: of the file, None keeps it in memory. settings: what all rows of the file have in common.
    parts: names of its tables. Failed when the file was made with other settings.
    """

    def __init__(self, path, settings, parts):
        self.path = path
        self.values = dict(settings={}) | {part: {} for part in parts} | read_results(path)
        stored = self.values["settings"]
        check_same(path, stored, settings, "json")
        if not stored and any(self.values[part] for part in parts):
            print(f"{path}: has rows without settings; they are taken for rows of these")
        self.values["settings"] = stored | settings

    def row(self, part, key, make):
        """The row of a key, made and written if it is not there."""
        rows = self.values[part]
        if key not in rows:
            print(f"{part}: {key}", flush=True)
            rows[key] = make()
            self.values |= origin()
            write_results(self.path, self.values)
        return rows[key]


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
