"""Faults at system calls: a write, fsync, rename, unlink or mkdir fails (the disk is full or
broken), or the process is killed there.

An undisturbed run under strace lists the calls. For each distinct pair of call and kind of file,
the first, a middle and the last one is made to fail, and to be the last that happens. Law: the
command says in one line what is wrong, or goes on; and the same command then ends with the same
files.
"""

import json
import random
import re
import typing
from collections.abc import Callable

from tests.faults import oracle
from tests.faults.machines import Case
from tests.faults.world import CLASSIFY_FLAGS, DATA_FLAGS, RUN_FLAGS

# {error: calls that fail with it}
FAILING = {
    "ENOSPC": ("write", "writev", "pwrite64", "mkdir", "mkdirat"),
    "EIO": ("fsync", "fdatasync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir"),
}
ERRORS = {call: error for error, calls in FAILING.items() for call in calls}
KILL = "KILL"
# of a line of strace's log: thread, call, and the file, by descriptor or by name
LINE = re.compile(r'(\d+) +(\w+)\((?:(\d+)<([^>]*)>|(?:AT_FDCWD\S*, |\d+<([^>]*)>, )?"([^"]*)")')


class Job(typing.NamedTuple):
    """A command that writes OUT. arguments: function of OUT's path -> list. result: function of OUT
    -> what must not depend on the fault. code: of the undisturbed command.
    """

    name: str
    arguments: Callable
    result: Callable
    code: int = 0


def cases(world, seed, part=None):
    """Parts: the jobs."""
    return [
        Case(
            f"{job.name}: {call} {index} ({kind}), {fault}",
            runner(world, job, call, index, fault),
        )
        for job in jobs(world)
        if part in (None, job.name)
        for kind, call, index, fault in faults(world, job, seed)
    ]


def jobs(world):
    """What they need is made when they run."""
    training = ["--save_checkpoints_steps=2", "--keep_checkpoint_max=1", "--tensorboard"]
    # rolls back three times, and gives up the fourth time
    diverging = ["--learning_rate=10000", "--max_bad_steps=1"]
    diverging += ["--on_divergence=rollback", "--save_checkpoints_steps=1", "--num_train_steps=9"]
    phases = *CLASSIFY_FLAGS, "--do_train", "--do_eval", "--do_predict"
    return [
        Job(
            "data",
            lambda out: (
                ["data", f"--input_file={world.text}", f"--output_file={out}/x.tfrecord"]
                + [*DATA_FLAGS, "--num_workers=1", "--order=length"]
            ),
            oracle.tree,
        ),
        Job(
            "training",
            lambda out: ["pretrain", *pretraining(world, out), *training],
            trained,
        ),
        Job(
            "rollback",
            lambda out: ["pretrain", *pretraining(world, out), *diverging],
            lambda out: {},  # a checkpoint that was not saved is not there to return to
            code=3,
        ),
        Job(
            "fine-tuning",
            lambda out: ["classify", *fine_tuning(world, out), *phases],
            trained,
        ),
    ]


def pretraining(world, out):
    return [f"--input_file={world.data}/*.tfrecord", f"--output_dir={out}", *RUN_FLAGS]


def fine_tuning(world, out):
    start = f"--init_checkpoint={world.run}/model", f"--data_dir={world.pairs}"
    return [*start, f"--output_dir={out}"]


def trained(out):
    """What a run leaves: the model, the newest checkpoint's variables, results, and metrics."""
    found = {
        name: what
        for name, what in oracle.tree(out).items()
        if name.startswith("model/") or name.endswith((".safetensors", "results.tsv"))
    }
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return found | {"losses": [(line["step"], line.get("loss")) for line in lines]}


def faults(world, job, seed):
    """[(kind of file, call, index, fault)] of a job: for each pair of kind and call both faults at
    the first call, and one of them, drawn, at a middle and the last one.
    """
    places, chosen, draw = {}, [], random.Random(seed)
    for kind, call, index in counted(world, job):
        places.setdefault((kind, call), []).append(index)
    for (kind, call), indices in sorted(places.items()):
        both = [ERRORS[call], KILL]
        chosen += [(kind, call, indices[0], fault) for fault in both]
        later = sorted({indices[len(indices) // 2], indices[-1]} - {indices[0]})
        chosen += [(kind, call, index, draw.choice(both)) for index in later]
    return chosen


def undisturbed(world, job):
    """The folder that an undisturbed run of a job has written, and calls.json beside it: [[kind of
    file, call, index among its thread's calls of that name, from 1]].
    """

    def write(path):
        path.mkdir()
        log = path / "strace.txt"
        prefix = tracing(log, ERRORS)
        outcome = oracle.run(*job.arguments(path / "out"), "--quiet", watch=path, prefix=prefix)
        assert outcome.code == job.code, outcome.stderr
        found, counts = [], {}
        for thread, call, file in calls_of(log):
            counts[thread, call] = counts.get((thread, call), 0) + 1
            if file.startswith(f"{path / 'out'}/"):
                kind = re.sub(r"\d+", "N", file.removeprefix(f"{path / 'out'}/"))
                kind = re.sub(r"\.tmp\w+", ".tmp", kind)
                found.append([kind, call, counts[thread, call]])
        (path / "calls.json").write_text(json.dumps(found))
        log.unlink()

    return world.make(f"calls-{job.name}", write) / "out"


def counted(world, job):
    return json.loads((undisturbed(world, job).parent / "calls.json").read_text())


def calls_of(log):
    """Yields (thread, call, path) of the lines of strace's log; "" = not a path."""
    for line in log.read_text(errors="replace").splitlines():
        if match := LINE.match(line):
            thread, call, _, file, folder, name = match.groups()
            yield thread, call, file or "/".join(filter(None, [folder, name])) or ""


def tracing(log, calls, *more):
    """The call of strace that lists calls in a file."""
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-s", "0", "-o", str(log), "-e", "signal=none"]
    return ["strace", *options, "-e", f"trace={','.join(calls)}", *more]


def runner(world, job, call, index, fault):
    def run(folder):
        out, log = folder / "out", folder / "strace.txt"
        command = *job.arguments(out), "--quiet"
        what = "signal=KILL" if fault == KILL else f"error={fault}"
        inject = "-e", f"inject={call}:{what}:when={index}"
        first = oracle.run(*command, watch=folder, prefix=tracing(log, [call], *inject))
        log.unlink()
        if fault == KILL:
            problem = "" if first.code in (-9, job.code) else f"exit code {first.code}"
        else:
            problem = first.problem()
        if problem:
            return f"with the fault: {problem}; stderr: {first.stderr!r}"
        again = oracle.call(*command, watch=folder)  # spares it a process's start
        expected = job.result(undisturbed(world, job))
        problem = again.problem((job.code,)) or differ(expected, job.result(out))
        return problem and f"the same command after it (code {first.code}): {problem}"

    return run


def differ(expected, found):
    if expected == found:
        return ""
    names = sorted(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
    return f"other results: {names}"
