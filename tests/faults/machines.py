"""The machines that make up faults, a row each. `make faults` runs as many of their cases as fit
into half an hour, and the tests a smaller seeded sample.

The module of a row has cases(world, seed) -> list of Case. Names are unique within a machine, and
the same world and seed give the same cases. With a third argument, the name of a part, it gives the
cases of that part alone, and makes only what they need.
"""

import functools
import importlib
import pathlib
import random
import tempfile
import traceback
import typing
from collections.abc import Callable

from tests.faults.world import World


class Case(typing.NamedTuple):
    """One fault. run: function of an empty folder -> what is wrong, "" when the law holds."""

    name: str
    run: Callable[[pathlib.Path], str]


class Machine(typing.NamedTuple):
    """A kind of fault. module: in tests/faults. sample, long_sample, run_sample: how many cases
    `make test`, `make test-long` and `make faults` run. quick: the part that `make test` takes them
    from, None = all. program: that it needs, beside Python.
    """

    kind: str
    module: str
    sample: int
    long_sample: int
    run_sample: int
    quick: str | None = None
    program: str | None = None

    def cases(self, world, seed, part=None):
        module = importlib.import_module(f"tests.faults.{self.module}")
        return module.cases(world, seed, *([] if part is None else [part]))


MACHINES = (
    Machine("lost streams", "streams", sample=1, long_sample=3, run_sample=60, quick="data"),
    Machine("wrong numbers", "numbers", sample=3, long_sample=10, run_sample=200, quick="static"),
    Machine("two writers", "writers", sample=0, long_sample=2, run_sample=30),
    Machine("system calls", "syscalls", sample=0, long_sample=2, run_sample=60, program="strace"),
    Machine("flipped bits", "flips", sample=40, long_sample=200, run_sample=1000, quick="data"),
    Machine("JSON leaves", "leaves", sample=40, long_sample=300, run_sample=1000, quick="data"),
    Machine("environment", "environments", sample=1, long_sample=4, run_sample=40, quick="data"),
)


def sample(cases, number, seed):
    """`number` of the cases, all when there are fewer."""
    return random.Random(seed).sample(cases, min(number, len(cases)))


def run_case(machine, name, folder, seed):
    """What is wrong with the outcome of a case in the world in `folder`, "" when nothing is."""
    case = find_cases(machine, folder, seed)[name]
    with tempfile.TemporaryDirectory(prefix="fault-") as scratch:
        try:
            return case.run(pathlib.Path(scratch))
        except Exception:
            return traceback.format_exc()


@functools.cache
def find_cases(machine, folder, seed):
    return {case.name: case for case in machine.cases(World(folder), seed)}
