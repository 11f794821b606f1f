"""A seeded sample of the cases of every machine; `make faults` runs a larger one."""

import shutil

import pytest

from tests.faults import writers
from tests.faults.machines import MACHINES, sample
from tests.faults.world import World

SEED = 1


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("world"))


def needs(machine):
    if machine.program and not shutil.which(machine.program):
        pytest.skip(f"needs {machine.program}")


def survive(machine, cases, number, tmp_path):
    for index, case in enumerate(sample(cases, number, SEED)):
        folder = tmp_path / str(index)
        folder.mkdir()
        problem = case.run(folder)
        assert not problem, f"{machine.kind}, {case.name}: {problem}"


@pytest.mark.parametrize(
    "machine", [each for each in MACHINES if each.sample], ids=lambda machine: machine.kind
)
def test_sample(machine, world, tmp_path):
    needs(machine)
    survive(machine, machine.cases(world, SEED, machine.quick), machine.sample, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.kind)
def test_larger_sample(machine, world, tmp_path):
    needs(machine)
    survive(machine, machine.cases(world, SEED), machine.long_sample, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", writers.POINTS)
def test_without_locks_two_writers_meet(name, world, tmp_path):
    """So the machine sees what the lock prevents: B begins when A is about to write."""
    problem = writers.runner(world, name, "AABBBBAA", locks=False)(tmp_path)
    assert "exit codes [0, 0]" in problem or "changed" in problem or "added" in problem, problem
