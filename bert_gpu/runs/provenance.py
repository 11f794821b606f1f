"""What a run's results depend on, for run.json: versions, the code's commit and hashes of files;
and the differences between two runs' settings.
"""

import hashlib
import json
import os
import platform
import subprocess

import numpy as np

import bert_gpu
from bert_gpu.base.errors import shortened

LIST_CHARACTERS = 40  # of a list that a message shows in full


def versions():
    """Versions of the packages that a run's results depend on. Only this function needs TensorFlow,
    so that reading a run's folder does not.
    """
    import tensorflow as tf

    return {
        "bert_gpu": bert_gpu.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def git_commit(folder=None):
    """The commit of the checkout that a package is part of: 40 hexadecimal digits, with "-dirty"
    when tracked files have changed.

    folder: the package's, by default that of bert_gpu. None when it is not part of a checkout (also
    when it is installed inside a repository that does not track it) or git is missing.
    """
    folder = folder or os.path.dirname(bert_gpu.__file__)
    try:
        run_git(folder, "ls-files", "--error-unmatch", "__init__.py")
        described = run_git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
        return described or None  # git may end well and lose what it says
    except (OSError, subprocess.SubprocessError):
        return None


def run_git(folder, *arguments):
    result = subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return result.stdout.strip()


def file_hash(path):
    """SHA-256 of a file's bytes, hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def weights_hash(weights):
    """A short hash of {name: array}, to tell whether the model a run started from has changed."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]))
    return digest.hexdigest()[:12]


def differences(stored, settings, prefix="") -> dict[str, str]:
    """{"name.part": "OLD -> NEW"} for each value in which the settings of a run and of a command
    differ; both are dicts (or lists inside them).
    """
    if not prefix:
        stored, settings = json.loads(json.dumps([stored, settings]))  # defaults may be tuples
    if isinstance(stored, list):
        pairs = [
            (f"{prefix}[{index}]", old, new)
            for index, (old, new) in enumerate(zip(stored, settings, strict=True))
        ]
    else:
        dot = "." if prefix else ""
        pairs = [
            (f"{prefix}{dot}{name}", stored.get(name), settings.get(name))
            for name in sorted(set(stored) | set(settings))
        ]
    changed = {}
    for name, old, new in pairs:
        if isinstance(old, list) and isinstance(new, list) and len(old) != len(new):
            changed[name] = told_list(old, new)
        elif isinstance(old, dict | list) and type(old) is type(new):
            changed |= differences(old, new, name)
        elif old != new:
            changed[name] = f"{shortened(old)} -> {shortened(new)}"
    return changed


def told_list(old, new):
    """How two lists differ: as flags have them where they are short and of texts, else by their
    lengths.
    """
    texts = [
        ",".join(each) or "none" if all(isinstance(entry, str) for entry in each) else None
        for each in (old, new)
    ]
    if all(text and len(text) <= LIST_CHARACTERS for text in texts):
        return " -> ".join(texts)
    return f"{len(old)} entries -> {len(new)}"
