"""Standard streams that are closed, whose reader has gone, or whose disk is full.

A job ends with the same files as ever, whatever becomes of its console. A command that prints its
answer ends quietly when nobody takes it; on a full disk it may say so instead.
"""

import itertools
import os
import subprocess
import sys

from tests.faults import oracle
from tests.faults.machines import Case
from tests.faults.world import CLASSIFY_FLAGS, DATA_FLAGS, RUN_FLAGS

STATES = ("closed", "broken", "full")
STREAMS = {"stdin": (0,), "stdout": (1,), "stderr": (2,), "stdout and stderr": (1, 2)}
PLACES = [
    (name, state)
    for name, state in itertools.product(STREAMS, STATES)
    if name != "stdin" or state == "closed"
]
# reads one line of stdout, then goes
HEAD = "import sys; sys.stdin.readline()"


def cases(world, seed, part=None):
    """Parts: the three jobs, and answers."""
    jobs = {
        "data": (lambda folder: data(world, folder), lambda: oracle.tree(world.data)),
        "pretrain": (lambda folder: pretraining(world, folder), lambda: model(world.run)),
        "classify": (lambda folder: fine_tuning(world, folder), lambda: model(world.classified)),
    }
    jobs = {name: job for name, job in jobs.items() if part in (None, name)}
    found = []
    for (job, (arguments, expected)), (stream, state) in itertools.product(jobs.items(), PLACES):
        run = job_case(arguments, expected(), STREAMS[stream], state)
        found.append(Case(f"{job}: {stream} {state}", run))
    for job, (arguments, expected) in jobs.items():
        run = head_case(arguments, expected())
        found.append(Case(f"{job}: stdout broken after a line", run))
    if part not in (None, "answers"):
        return found
    answers = {
        "help": ["data", "--help"],
        "commands": ["--help"],
        "settings": ["pretrain", f"--input_file={world.data}/*.tfrecord", "--show_config"],
        "instances": [
            "data",
            f"--input_file={world.text}",
            f"--output_file={world.data}/x.tfrecord",
            *DATA_FLAGS,
            "--show=20",
            "--quiet",
        ],
        "words": ["fill-mask", f"--model={world.run}/model", "the [MASK] ."],
        "no command": ["fly"],
        "no file": ["data", "--input_file=none.txt"],
    }
    for (what, arguments), (stream, state) in itertools.product(answers.items(), PLACES):
        found.append(
            Case(f"{what}: {stream} {state}", answer_case(arguments, STREAMS[stream], state))
        )
    return found


def job_case(arguments, expected, numbers, state):
    def run(folder):
        given, result = arguments(folder)
        with lost_streams(numbers, state) as streams:
            outcome = oracle.run(*given, watch=folder, streams=streams)
        return outcome.problem((0,)) or oracle.difference(expected, result())

    return run


def head_case(arguments, expected):
    """stdout is a pipe whose reader goes after the first line."""

    def run(folder):
        given, result = arguments(folder)
        head = subprocess.Popen([sys.executable, "-c", HEAD], stdin=subprocess.PIPE)
        try:
            # this process keeps no end of the pipe, or it would not break
            with head.stdin as pipe:
                streams = {1: os.dup(pipe.fileno())}
            outcome = oracle.run(*given, watch=folder, streams=streams)
            os.close(streams[1])
        finally:
            head.wait()
        return outcome.problem((0,)) or oracle.difference(expected, result())

    return run


def answer_case(arguments, numbers, state):
    def run(folder):
        with lost_streams(numbers, state) as streams:
            outcome = oracle.run(*arguments, watch=folder, streams=streams)
        # where stderr is lost, a message is lost with it
        silent = oracle.Outcome.problem if 2 not in numbers else exit_problem
        return silent(outcome, (0, 2)) or outcome.changes()

    return run


def exit_problem(outcome, codes):
    return outcome.excess or ("" if outcome.code in codes else f"exit code {outcome.code}")


class lost_streams:
    """{descriptor: what `oracle.run` takes for it} of streams in a state, closed at the end."""

    def __init__(self, numbers, state):
        self.numbers, self.state, self.opened = numbers, state, []

    def __enter__(self):
        return {number: self._lost() for number in self.numbers}

    def _lost(self):
        if self.state == "closed":
            return oracle.MISSING
        if self.state == "full":
            descriptor = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, descriptor = os.pipe()
            os.close(reader)
        self.opened.append(descriptor)
        return descriptor

    def __exit__(self, *_):
        for descriptor in self.opened:
            os.close(descriptor)


def data(world, folder):
    """(arguments of a data job in a folder, function that gives the tree it has written)."""
    arguments = ["data", f"--input_file={world.text}", f"--output_file={folder}/out/x.tfrecord"]
    # a flag without effect, so that there is a warning
    return [*arguments, *DATA_FLAGS, "--pack_separator=cls_sep"], lambda: oracle.tree(
        folder / "out"
    )


def pretraining(world, folder):
    arguments = ["pretrain", f"--input_file={world.data}/*.tfrecord", f"--output_dir={folder}/out"]
    flags = ["--save_checkpoints_steps=2", "--polynomial_power=3"]
    return [*arguments, *RUN_FLAGS, *flags], lambda: model(folder / "out")


def fine_tuning(world, folder):
    arguments = ["classify", f"--init_checkpoint={world.run}/model", f"--data_dir={world.pairs}"]
    return [*arguments, f"--output_dir={folder}/out", *CLASSIFY_FLAGS], lambda: model(
        folder / "out"
    )


def model(folder):
    return oracle.tree(folder / "model")
