"""Two processes write to one folder: a data job or a training and one with another seed, paused
before the lock, behind it and at the end, in all orders.

Law: one of them succeeds, with the files that it writes alone; the other says in one line why not.
"""

import dataclasses
import itertools
import json
import subprocess
import sys

from tests.faults import oracle
from tests.faults.machines import Case
from tests.faults.world import DATA_FLAGS, RUN_FLAGS

POINTS = {
    "data": [
        ("bert_gpu.data.build", "only_writer"),
        ("bert_gpu.data.output_folder", "OutputFolder.begin"),
        ("bert_gpu.data.output_folder", "OutputFolder.finish"),
    ],
    # run.json is written when a training begins, and when it has ended
    "training": [
        ("bert_gpu.runs.folder", "only_writer"),
        ("bert_gpu.runs.folder", "RunFolder.create"),
    ],
}
PAUSES = 3  # of a command that succeeds


def cases(world, seed, part=None):
    """Parts: data and training."""
    return [
        Case(f"{name}: {''.join(schedule)}", runner(world, name, "".join(schedule)))
        for name in POINTS
        if part in (None, name)
        for schedule in schedules()
    ]


def schedules():
    """All orders of the stretches between the pauses of A and B in which A begins; those in which B
    does are the same with the names exchanged.
    """
    stretches = PAUSES + 1
    for places in itertools.combinations(range(2 * stretches), stretches):
        if places[0] == 0:
            yield ["A" if place in places else "B" for place in range(2 * stretches)]


def command(world, name, out, seed):
    if name == "data":
        flags = f"--input_file={world.text}", f"--output_file={out}/x.tfrecord", *DATA_FLAGS
        return ["data", *flags, f"--random_seed={seed}", "--num_workers=1", "--quiet"]
    flags = f"--input_file={world.data}/*.tfrecord", f"--output_dir={out}", *RUN_FLAGS
    return ["pretrain", *flags, f"--seed={seed}", "--nodo_eval", "--quiet"]


def alone(world, name, seed):
    """What a command writes when it is alone."""
    path = world.make(
        f"alone-{name}-{seed}",
        lambda path: world.command(*command(world, name, path, seed)),
    )
    return left_by(path)


def left_by(path):
    """The files that depend on the seed alone."""
    return {
        name: what
        for name, what in oracle.tree(path).items()
        if not name.startswith("tensorboard")
        and not name.endswith(("progress.json", "metrics.jsonl", "run.json"))
    }


def runner(world, name, schedule, locks=True):
    """locks: whether they are held; without them the law does not hold."""
    seeds = 1, 2
    expected = [alone(world, name, seed) for seed in seeds]

    def run(folder):
        out = folder / "out"
        commands = [command(world, name, out, seed) for seed in seeds]
        request = dict(commands=commands, points=POINTS[name], schedule=schedule, locks=locks)
        call = [sys.executable, "-m", "tests.faults.paused", json.dumps(request)]
        result = subprocess.run(
            call,
            env=oracle.environment(),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=oracle.SECONDS,
            check=True,
        )
        ends = [ended(code, error) for code, error in json.loads(result.stdout)]
        winners = [index for index, end in enumerate(ends) if end.code == 0]
        if len(winners) != 1:
            return f"exit codes {[end.code for end in ends]}: {[end.stderr for end in ends]}"
        problem = ends[winners[0]].problem((0,)) or ends[1 - winners[0]].problem((2,))
        return problem or oracle.difference(expected[winners[0]], left_by(out))

    return run


def ended(code, error):
    return dataclasses.replace(NOTHING, code=code, stderr=error)


NOTHING = oracle.Outcome((), 0, "", "", {}, {})
