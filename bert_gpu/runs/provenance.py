"""Collects what the results of a run depend on, for run.json: versions, the code's commit and
hashes of files. Lists the differences between two runs' settings.
"""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from typing import Any

import numpy as np

import bert_gpu
from bert_gpu.base.errors import shortened

LIST_CHARACTERS = 40  # the longest list that a message contains in full


def versions() -> dict[str, str]:
    """Return {name: version} of Python and the packages that a run's results depend on. Only this
    function imports TensorFlow, so that reading a run's folder does not need it.
    """
    import tensorflow as tf

    return {
        "bert_gpu": bert_gpu.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def git_commit(folder: str | None = None) -> str | None:
    """Return the commit of the git checkout that a package is part of: 40 hexadecimal digits, with
    "-dirty" when tracked files have changed.

    folder: the package's folder, by default that of bert_gpu. None is returned when the package is
    not part of a checkout (also when it is installed inside a repository that does not track it) or
    git is missing.
    """
    folder = folder or os.path.dirname(bert_gpu.__file__)
    try:
        run_git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = run_git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        return commit or None  # the output may be lost although git succeeds
    except (OSError, subprocess.SubprocessError):
        return None


def run_git(folder: str, *arguments: str) -> str:
    result = subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return result.stdout.strip()


def file_hash(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's bytes, hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def weights_hash(weights: Mapping[str, np.ndarray]) -> str:
    """Return a short hash of {name: array}, which shows whether the model that a run started from
    has changed.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]).view(np.uint8).data)
    return digest.hexdigest()[:12]


def differences(old: Any, new: Any, prefix: str = "") -> dict[str, str]:
    """Return {"name.part": "OLD -> NEW"} for each value in which the settings of a run, `old`, and
    of a command, `new`, differ. Both are dicts; lists and dicts inside them are compared by
    recursion, with their name as `prefix`.
    """
    if not prefix:
        # turns tuples into lists, because defaults may be tuples and JSON has none
        old, new = json.loads(json.dumps([old, new]))
    if isinstance(old, list):
        pairs = [
            (f"{prefix}[{index}]", *values)
            for index, values in enumerate(zip(old, new, strict=True))
        ]
    else:
        dot = "." if prefix else ""
        pairs = [
            (f"{prefix}{dot}{name}", old.get(name), new.get(name))
            for name in sorted(set(old) | set(new))
        ]
    changed = {}
    for name, before, after in pairs:
        if isinstance(before, list) and isinstance(after, list) and len(before) != len(after):
            changed[name] = list_change(before, after)
        elif isinstance(before, dict | list) and type(before) is type(after):
            changed |= differences(before, after, name)
        elif before != after:
            changed[name] = f"{shortened(before)} -> {shortened(after)}"
    return changed


def list_change(old: list[Any], new: list[Any]) -> str:
    """Return the change of a list as "OLD -> NEW": with the entries, joined by commas as in a flag,
    if both lists are short and of strings, otherwise with the lengths.
    """
    texts = [
        ",".join(each) or "none"
        for each in (old, new)
        if all(isinstance(entry, str) for entry in each)
    ]
    if len(texts) == 2 and all(len(text) <= LIST_CHARACTERS for text in texts):
        return " -> ".join(texts)
    return f"{len(old)} entries -> {len(new)}"
