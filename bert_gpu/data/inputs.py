"""The files of records that --input_file names, and what dataset.json beside them says; found
without reading a record.
"""

import fnmatch
import glob
import os

from bert_gpu.data.manifest import read_manifest
from bert_gpu.settings import UserError


def expand_globs(patterns, flag):
    """Files that match comma-separated names and globs, sorted, each once; UserError when one
    matches nothing.
    """
    paths = set()
    for pattern in filter(None, (part.strip() for part in patterns.split(","))):
        if os.path.isdir(pattern):
            raise UserError(
                f"{flag}={pattern}: is a folder; name the files in it, "
                f"for example {pattern.rstrip('/')}/*.tfrecord"
            )
        found = [pattern] if os.path.exists(pattern) else glob_in_folder(pattern)
        if not found:
            raise UserError(
                f"{flag}={pattern}: no file matches; "
                "write one with create_pretraining_data.py, or name another"
            )
        paths.update(found)
    if not paths:
        raise UserError(f"{flag}: names no file")
    return sorted(paths)


def glob_in_folder(pattern):
    """Files that match a glob. A folder that exists under its literal name is taken as that, also
    with glob characters in it.
    """
    folder, name = os.path.split(pattern)
    if folder and os.path.isdir(folder):
        return [
            os.path.join(folder, found)
            for found in os.listdir(folder)
            if fnmatch.fnmatchcase(found, name)
        ]
    return [path for path in glob.glob(pattern) if not os.path.isdir(path)]


def read_manifests(paths):
    """{folder: Manifest, None where it has no dataset.json} of the folders of some files, in
    their order.
    """
    return {folder: read_manifest(folder) for folder in dict.fromkeys(map(os.path.dirname, paths))}
