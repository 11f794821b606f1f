"""Runs jobs with the tree that PYTHONPATH names, in the current folder, and writes what they made.

Input is JSON on standard input: stages, which are lists of jobs (tests/golden/jobs.py). The jobs of
a stage run two at a time, each in a process forked after the import of TensorFlow, which saves
seconds for each. A job calls the command by the name of its script or of the package, so that the
place of any other module does not matter. Output is JSON: {item: text}, an item being the exit
code, the streams or a file of a job.
"""

import glob
import json
import os
import runpy
import signal
import sys
import time
import traceback

PROCESSES = 2
SECONDS = 300  # after which a job is ended


def run(job, tree):
    """Runs a job in this process, which ends with it."""
    signal.alarm(job.get("seconds", SECONDS))
    os.makedirs(job["folder"], exist_ok=True)
    os.chdir(job["folder"])
    os.environ.update(job.get("environment", {}))
    read = os.open("/dev/null" if "stdin" not in job else job["stdin"], os.O_RDONLY)
    create = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    streams = [os.open(f"{job['log']}.{name}", create) for name in ("stdout", "stderr")]
    for number, stream in enumerate((read, *streams)):
        os.dup2(stream, number)
    code = 1
    try:
        for path, fields in job.get("edits", {}).items():
            edit(path, fields)
        for path, source in job.get("cuts", {}).items():
            with open(source, "rb") as whole, open(path, "wb") as cut:
                cut.write(whole.read()[:-20])
        command, *arguments = job["command"]
        sys.argv = [command, *arguments]
        if command.endswith(".py"):
            runpy.run_path(os.path.join(tree, command), run_name="__main__")
        else:
            sys.argv = ["bert_gpu", *job["command"]]
            runpy.run_module("bert_gpu", run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def edit(path, fields):
    """Changes fields of a JSON file that has a checksum in itself, as a user would."""
    with open(path) as file:
        content = json.load(file) | fields
    content.pop("crc32c", None)
    with open(path, "w") as file:
        json.dump(content, file)


def run_all(jobs, tree):
    """Runs the jobs of a stage; returns {name: exit code}, negative for signals."""
    waiting, running, codes = list(jobs), {}, {}
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            job = waiting.pop(0)
            pid = os.fork()
            if pid == 0:
                os.setsid()
                run(job, tree)
            running[pid] = job
        for pid, job in list(running.items()):
            if job.get("kill_at") and glob.glob(job["kill_at"]):
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[running.pop(pid)["name"]] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return codes


def variant_jobs(job):
    """A job for each row of the tree's tests/model/variants.py, with its switches as flags."""
    from tests.model import variants

    jobs = []
    for name, switches in variants.SWITCHES.items():
        values = {**variants.SMALL, "num_hidden_layers": 2, **switches}
        if values.get("num_hidden_groups"):
            values["num_hidden_layers"] = 4
        flags = [
            f"--{'' if value else 'no'}{field}" if isinstance(value, bool) else f"--{field}={value}"
            for field, value in values.items()
            if field not in ("vocab_size", "max_position_embeddings") and value is not None
        ]
        name = f"{job['name']} {name}"
        folder = f"{job['folder']}/{name.replace(' ', '-')}"
        command = [*job["command"], *flags]
        jobs.append(job | dict(name=name, folder=folder, command=command, variants=False))
    return jobs


def main():
    stages = json.load(sys.stdin)
    import bert_gpu
    from bert_gpu.base import environment

    environment.prepare()  # before TensorFlow: it sets variables of the environment
    import numba  # noqa: F401, what the commands import
    from results import read_items  # beside this file

    tree = os.path.dirname(os.path.dirname(os.path.abspath(bert_gpu.__file__)))
    root, items = os.getcwd(), {}
    for stage in stages:
        jobs = []
        for job in stage:
            jobs += variant_jobs(job) if job.get("variants") else [job]
        for number, job in enumerate(jobs):
            job["log"] = os.path.join(root, "logs", f"{len(items)}-{number}")
        codes = run_all(jobs, tree)
        for job in jobs:
            if not job.get("kill_at"):
                items |= read_items(job, codes[job["name"]], {root: "WORK", tree: "TREE"})
    with open("items.json", "w") as file:
        json.dump(items, file)


if __name__ == "__main__":
    main()
