"""What a run's numbers depend on, for run.json: versions, the code's commit, hashes of files; and
in what two runs' settings differ.
"""

import hashlib
import json
import os
import platform
import subprocess

import numpy as np

import bert_gpu


def versions():
    """Versions of what a run's numbers depend on. Only this needs TensorFlow, so a run's folder can
    be read without it.
    """
    import tensorflow as tf

    return {
        "bert_gpu": bert_gpu.__version__,
        "tensorflow": tf.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def git_commit(folder=None):
    """The commit (40 hexadecimal digits, "-dirty" after it when tracked files have changed) of the
    checkout that a package is part of.

    folder: the package's, bert_gpu's own by default. None when it is no checkout (also when it
    is installed into an environment inside somebody's repository, which does not track it) or
    git is not there.
    """
    folder = folder or os.path.dirname(bert_gpu.__file__)
    try:
        run_git(folder, "ls-files", "--error-unmatch", "__init__.py")
        return run_git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
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
    """A short hash of the values of {name: array}, so that a run knows whether the model it started
    from has changed.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(weights[name]))
    return digest.hexdigest()[:12]


def differences(stored, settings, prefix="--"):
    """['--name.part: OLD -> NEW'] of the settings in which a run and a command differ, leaf by
    leaf; both are dicts (or lists in them).
    """
    if prefix == "--":
        settings = json.loads(json.dumps(settings))
    if isinstance(stored, list):
        pairs = [
            (f"{prefix}[{number}]", old, new)
            for number, (old, new) in enumerate(zip(stored, settings, strict=True))
        ]
    else:
        dot = "" if prefix == "--" else "."
        pairs = [
            (f"{prefix}{dot}{name}", stored.get(name), settings.get(name))
            for name in sorted(set(stored) | set(settings))
        ]
    changed = []
    for name, old, new in pairs:
        if isinstance(old, list) and isinstance(new, list) and len(old) != len(new):
            changed.append(f"{name}: {len(old)} entries -> {len(new)}")
        elif isinstance(old, dict | list) and type(old) is type(new):
            changed += differences(old, new, name)
        elif old != new:
            changed.append(f"{name}: {shorten(old)} -> {shorten(new)}")
    return changed


def shorten(value):
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
