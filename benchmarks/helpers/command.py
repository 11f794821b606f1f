"""Shared code of the benchmarks as commands: flags, a work folder, running the project's scripts
and reading their logs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from . import ROOT


def at_least_one(text):
    """A type for argparse: a whole number from 1."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1")
    return int(text)


SHARED_FLAGS = {
    "text": dict(
        default=str(ROOT / "sample_text.txt"),
        help="one sentence per line, a blank line between documents; default: the sample",
    ),
    "pairs": dict(
        default=str(ROOT / "examples" / "pairs"), help="folder of the pairs to fine-tune on"
    ),
    "json": dict(help="file that results are merged into"),
    "folder": dict(help="keeps records and runs here"),
    "cores": dict(type=at_least_one, help="so many runs at a time; default: all"),
    "table": dict(action="store_true", help="only prints what is in the JSON file"),
}


class Failed(Exception):
    """Raised with the reason when something could not be measured."""


def benchmark_parser(doc, *shared):
    """A parser whose help is the benchmark's docstring. shared: names of SHARED_FLAGS."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in shared:
        parser.add_argument(f"--{name}", **SHARED_FLAGS[name])
    return parser


def add_python(parser, name, what):
    """Adds a flag for another Python, which has `what`."""
    parser.add_argument(
        name, default=os.environ.get("BERT_GPU_ORACLE_PYTHON"), help=f"Python with {what}"
    )


def names_among(known):
    """A type for argparse: comma-separated names out of the known ones."""

    def read(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(known)}")
        return names

    return read


PRETRAIN_BY_WORK = "benchmarks/helpers/pretrain_by_work.py"
running = set()  # processes of run_script


def end_scripts():
    """Kills what run_script runs, in whatever thread."""
    for process in list(running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def script_command(name, *flags, **values):
    """The command of one of the project's scripts. values: flags by name."""
    return [
        sys.executable,
        str(ROOT / name),
        "--quiet",
        *flags,
        *(f"--{flag}={value}" for flag, value in values.items()),
    ]


def on_core(core, command):
    """A command that runs on one core, by its number; None = on all."""
    return command if core is None else ["taskset", "--cpu-list", str(core), *command]


def run_script(name, *flags, limit_seconds=None, core=None, **values):
    """Runs one of the project's scripts to its end, on one core if its number is given; Failed when
    it fails or takes too long.
    """
    process = subprocess.Popen(
        on_core(core, script_command(name, *flags, **values)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    running.add(process)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        raise Failed(
            f"{name} {' '.join(flags[:3])}: not over within {limit_seconds:.0f} s"
        ) from None
    finally:
        # also on an interrupt, which does not reach a process in its own session
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        running.discard(process)
    if process.returncode:
        lines = [line for line in output.splitlines() if line.strip()]
        raise Failed(
            f"{name}: exit code {process.returncode}: "
            f"{lines[-1][:300] if lines else 'nothing printed'}"
        )


@contextlib.contextmanager
def work_folder(kept=None):
    """The given folder, made if it is missing; or a temporary one, which is removed at the end."""
    if kept:
        pathlib.Path(kept).mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(kept)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def load_json(path):
    return json.loads(pathlib.Path(path).read_text())


def read_metrics(folder):
    """The training lines of a run's metrics.jsonl, and its validation lines."""
    lines = [
        json.loads(line)
        for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
    ]
    return [line for line in lines if "loss" in line], [
        line for line in lines if "eval_loss" in line
    ]
