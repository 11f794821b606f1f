"""The benchmarks as commands, and the tables that they print."""

import os
import subprocess
import sys

from tests.test_architecture import ROOT

FOLDER = ROOT / "benchmarks"
TENSORFLOW_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


def run(*command):
    """What a command prints in an environment in which nothing of TensorFlow is set, from a folder
    that is not the checkout.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in TENSORFLOW_VARIABLES
    }
    environment |= dict(CUDA_VISIBLE_DEVICES="-1", COLUMNS="200")
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tables(text):
    """[{first cell of a row: the other cells}] of the printed tables."""
    found, previous = [], ""
    for line in text.splitlines():
        if line.startswith("|"):
            found += [] if previous.startswith("|") else [[]]
            found[-1].append([cell.strip() for cell in line[1:-1].split("|")])
        previous = line
    return [{row[0]: row[1:] for row in rows[2:]} for rows in found]


def table(text):
    """The only printed table."""
    (found,) = tables(text)
    return found


def number(cell):
    """A printed number, without its thousands' commas and what follows it."""
    return float(cell.split()[0].replace(",", ""))
