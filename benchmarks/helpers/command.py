"""Benchmarks as commands: flags, a work folder, runs of the project's scripts, their logs."""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile

from . import ROOT


class Failed(Exception):
    """Raised with the reason when something could not be measured."""


# -- flags


def at_least_one(text):
    """Read a whole number from 1, for argparse."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1")
    return int(text)


def numbers(kind):
    """Return a reader of numbers separated by commas, for argparse. kind: int or float."""

    def read(text):
        try:
            return [kind(part) for part in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text}: must be numbers, separated by commas"
            ) from None

    return read


def names_among(known):
    """Return a reader of comma-separated names out of the known ones, for argparse."""

    def read(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name}: must be one of {', '.join(known)}")
        return names

    return read


SHARED_FLAGS = {
    "text": dict(
        default=str(ROOT / "sample_text.txt"),
        help="one sentence per line, a blank line between documents; default: the sample",
    ),
    "pairs": dict(
        default=str(ROOT / "examples" / "pairs"), help="folder of the pairs to fine-tune on"
    ),
    "json": dict(help="file that results are merged into"),
    "folder": dict(help="keeps the data and runs here"),
    "cores": dict(type=at_least_one, help="number of runs at a time; default: all cores"),
    "table": dict(action="store_true", help="only print what is in the JSON file"),
}
INPUTS = ("text", "pairs", "data", "public_tasks", "verses", "init_checkpoint")


class Parser(argparse.ArgumentParser):
    """Ends with 2 where the command line names an input that is not there; --table needs none."""

    def parse_args(self, args=None, namespace=None):
        options = super().parse_args(args, namespace)
        for name in () if args or getattr(options, "table", False) else INPUTS:
            path = getattr(options, name, None)
            if isinstance(path, str) and not os.path.exists(path):
                self.error(f"--{name}={path}: no such file or folder")
        return options


def benchmark_parser(doc, *shared):
    """Return a parser whose help is the benchmark's docstring. shared: names of SHARED_FLAGS."""
    parser = Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in shared:
        parser.add_argument(f"--{name}", **SHARED_FLAGS[name])
    return parser


def add_python(parser, name, packages):
    """Add a flag for another Python, which has the packages."""
    parser.add_argument(
        name, default=os.environ.get("BERT_GPU_ORACLE_PYTHON"), help=f"Python with {packages}"
    )


# -- runs of the project's scripts

PRETRAIN_BY_WORK = "benchmarks/helpers/pretrain_by_work.py"
running = set()  # processes of run_script


def script_command(name, *flags, **values):
    """Return the command of one of the project's scripts. values: flags by name."""
    named = (f"--{flag}={value}" for flag, value in values.items())
    return [sys.executable, str(ROOT / name), "--quiet", *flags, *named]


def run_script(name, *flags, limit_seconds=None, core=None, **values):
    """Run one of the project's scripts to its end, on one core if its number is given, and return
    what it prints. Raises Failed when it fails or takes too long.
    """
    affinity = [] if core is None else ["taskset", "--cpu-list", str(core)]
    process = subprocess.Popen(
        [*affinity, *script_command(name, *flags, **values)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    running.add(process)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} {' '.join(flags[:3])}: took over {limit_seconds:.0f} s") from None
    finally:
        # also on an interrupt, which does not reach a process in its own session
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        running.discard(process)
    if process.returncode:
        lines = [line for line in output.splitlines() if line.strip()] or ["nothing printed"]
        raise Failed(f"{name}: exit code {process.returncode}: {lines[-1][:300]}")
    return output


def run_on_cores(function, items, count=None):
    """Return [function(item, core)] in the order of the items, with one call at a time on each
    core. count: number of cores; None = all. Small models gain little from a second core.

    When a call fails, no other begins, and its error is raised after those that run. An interrupt
    kills the scripts of all.
    """
    cores = sorted(os.sched_getaffinity(0))[:count]
    free = queue.SimpleQueue()
    for core in cores:
        free.put(core)

    def call(item):
        core = free.get()
        try:
            return function(item, core)
        finally:
            free.put(core)

    with concurrent.futures.ThreadPoolExecutor(len(cores)) as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            return [each.result() for each in calls]
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, Exception):
                for process in list(running):
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
            raise


# -- files


@contextlib.contextmanager
def work_folder(path=None):
    """Yield the folder, made if it is missing; or a temporary one, which is removed at the end."""
    if path:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def load_json(path):
    return json.loads(pathlib.Path(path).read_text())


def read_metrics(folder):
    """Return the training lines of a run's metrics.jsonl, and its validation lines."""
    lines = map(json.loads, (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines())
    lines = list(lines)
    return (
        [line for line in lines if "loss" in line],
        [line for line in lines if "eval_loss" in line],
    )
