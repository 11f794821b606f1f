"""Recognises files written by earlier data jobs, so that --input_file may name the output folder.

A data job leaves dataset.json (or .NAME.building.json, unfinished) beside its other files. A
vocabulary is recognised in any folder, by its name and its special pieces.
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
HEAD_BYTES = 1 << 14
SPECIAL_LINES = {b"[UNK]", b"[CLS]", b"[SEP]", b"[MASK]"}


def is_own(path: str) -> bool:
    """Return whether a data job wrote the file at `path`; False for a URL."""
    folder, name = os.path.split(path)
    if "://" in path or not any(fnmatch.fnmatchcase(name, pattern) for pattern in WRITTEN):
        return False
    return is_data_folder(folder or ".") or (
        name == FILE_NAMES["WordPiece"] and is_vocabulary(path)
    )


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


def is_vocabulary(path: str) -> bool:
    """Return whether the first HEAD_BYTES of a file contain BERT's special pieces, as a vocabulary
    does.
    """
    try:
        with open(path, "rb") as file:
            return set(file.read(HEAD_BYTES).split()) >= SPECIAL_LINES
    except OSError:
        return False  # the error is raised later, when the file is read as text
