"""`python -m tests.faults` runs cases of all machines and prints a table: faults tried and
survived, by kind. Exit code 1 when one was not survived.

Of each kind it takes as many as fit into half an hour on two cores, drawn by the seed: another seed
tries others, and --all takes every one. --kind=KIND runs one machine alone, --case=NAME one of its
cases, --list names them.
"""

import argparse
import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time

from bert_gpu.base import environment
from tests.faults.machines import MACHINES, run_case, sample
from tests.faults.world import World

CASES_OF_A_POOL = 150


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=[machine.kind for machine in MACHINES])
    parser.add_argument("--case")
    parser.add_argument("--all", action="store_true", help="every case, for hours if need be")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="also name what is survived")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--world", help="a folder, kept for the next call")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # of cases that call a command in their process
    environment.prepare()
    with contextlib.ExitStack() as stack:
        folder = options.world or stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        pathlib.Path(folder).mkdir(exist_ok=True)
        chosen = [m for m in MACHINES if options.kind in (None, m.kind)]
        for machine in chosen:
            if machine.program and not shutil.which(machine.program):
                parser.error(f"{machine.kind}: install {machine.program} first")
        # also makes the parts of the world, which the processes then share
        names = {m: [case.name for case in m.cases(World(folder), options.seed)] for m in chosen}
        if options.case:
            names = {m: [name for name in names[m] if name == options.case] for m in chosen}
        if options.list:
            print("\n".join(f"{m.kind}: {name}" for m in chosen for name in names[m]))
            return 0
        rows = []
        for machine in chosen:
            started, problems = time.monotonic(), 0
            run = functools.partial(run_case, machine, folder=folder, seed=options.seed)
            # in an order of its own, so that what has been tried when it is stopped is a sample
            number = len(names[machine]) if options.all else machine.run_sample
            order = sample(names[machine], number, options.seed)
            for name, problem in outcomes(run, order, options.processes):
                if problem:
                    problems += 1
                    print(f"{machine.kind}: {name}: {problem}\n", file=sys.stderr)
                elif options.verbose:
                    print(f"{machine.kind}: {name}: survived", file=sys.stderr)
            seconds = time.monotonic() - started
            rows.append((machine, len(names[machine]), len(order), problems, seconds))
            print(table(rows[-1:], options.seed).splitlines()[2], file=sys.stderr)
    print(table(rows, options.seed))
    return 1 if any(row[3] for row in rows) else 0


def outcomes(run, names, num_processes):
    """Yields (name, result of run(name)), in the order in which they end."""
    context = multiprocessing.get_context("spawn")
    # new processes now and then: each training that a case does in its process leaves it larger
    for first in range(0, len(names), CASES_OF_A_POOL):
        with concurrent.futures.ProcessPoolExecutor(num_processes, context) as pool:
            tried = {pool.submit(run, name): name for name in names[first:][:CASES_OF_A_POOL]}
            for future in concurrent.futures.as_completed(tried):
                yield tried[future], future.result()


def table(rows, seed):
    lines = [
        "| kind | faults | tried | survived | seconds | command |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {machine.kind} | {known} | {tried} | {tried - failed} | {seconds:.0f} | "
        f"`python -m tests.faults --seed={seed} --kind='{machine.kind}'` |"
        for machine, known, tried, failed, seconds in rows
    ]
    known, tried, failed, seconds = (sum(row[column] for row in rows) for column in range(1, 5))
    lines.append(
        f"| all | {known} | {tried} | {tried - failed} | {seconds:.0f} | "
        f"`python -m tests.faults --seed={seed}` |"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
