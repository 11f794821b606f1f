"""Recognises files written by earlier data jobs, so that --input_file may name the output folder.

A data job leaves dataset.json (or .NAME.building.json, unfinished) beside its other files. A
vocab.txt is no text in any folder.
"""

import fnmatch
import json
import os

from bert_gpu.data.manifest import FILE_NAME
from bert_gpu.text.config import FILE_NAMES

BUILDING = ".*.building.json"
WRITTEN = (
    *("*.tfrecord", "*.index", "*.order", "*.duplicates.tsv", FILE_NAME, ".*"),
    *FILE_NAMES.values(),
)
MANIFEST_KEYS = {"train_shards", "vocab_file", "schema"}


def is_own(path: str) -> bool:
    """Return whether a data job wrote the file at `path`; False for a URL."""
    folder, name = os.path.split(path)
    if "://" in path or not any(fnmatch.fnmatchcase(name, pattern) for pattern in WRITTEN):
        return False
    return name == FILE_NAMES["WordPiece"] or is_data_folder(folder or ".")


def is_data_folder(folder: str) -> bool:
    """Return whether a data job, finished or not, wrote to a folder."""
    try:
        with open(os.path.join(folder, FILE_NAME), encoding="utf-8") as file:
            is_finished = json.load(file).keys() >= MANIFEST_KEYS
    # no dataset.json, or another tool's
    except (OSError, ValueError, RecursionError, AttributeError):
        is_finished = False
    return is_finished or unfinished_job(folder) is not None


def unfinished_job(folder: str) -> str | None:
    """Return the name of the .NAME.building.json that an unfinished data job left in a folder, or
    None.
    """
    return next(iter(fnmatch.filter(sorted(os.listdir(folder)), BUILDING)), None)
