"""Several workers of one job as processes of this machine: started together, stopped together,
started again when one of them dies.

Each gets a TF_CONFIG with free ports of this machine and its share of the GPUs. Worker 0 has this
process's streams, the others write to logs. None outlives this process: Linux itself tells them to
save and stop when it has died.
"""

import contextlib
import ctypes
import functools
import json
import os
import signal
import socket
import subprocess
import time
import typing

from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import collect_signals

LOST = 4  # exit code of a worker that has lost another one
# Bad input, a training that gave up, and one that was told to stop: no reasons to start again.
FINAL = (2, 3, 128 + signal.SIGINT, 128 + signal.SIGTERM)
# How long the others may take to end by themselves after one has ended badly, or after SIGTERM.
SECONDS_TO_NOTICE, SECONDS_TO_STOP = 20.0, 30.0
SECONDS_BETWEEN_LOOKS = 0.1
PR_SET_PDEATHSIG = 1  # of prctl(2)


class Ended(typing.NamedTuple):
    """How an attempt ended. codes: of the workers, negative for a signal, as of subprocess.
    cause: index of the worker that ended badly first, None when none did.
    """

    codes: tuple[int, ...]
    cause: int | None


def free_addresses(number):
    """Addresses "127.0.0.1:port" of as many free ports."""
    sockets = [socket.socket() for _ in range(number)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    finally:
        for one in sockets:
            one.close()


def divide_gpus(num_gpus, num_workers, environ):
    """CUDA_VISIBLE_DEVICES of each worker, None to leave it. num_gpus: that CUDA finds. UserError
    when there are fewer GPUs than workers.
    """
    if num_gpus == 0:
        return [None] * num_workers
    if num_gpus < num_workers:
        raise UserError(
            f"there are {num_gpus} GPUs, and each worker needs one",
            "start fewer, or try it on the CPU with CUDA_VISIBLE_DEVICES=-1",
            setting="num_workers",
            value=num_workers,
        )
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(num_gpus)]
    each = num_gpus // num_workers
    return [",".join(names[index * each : (index + 1) * each]) for index in range(num_workers)]


def environments(num_workers, num_gpus, environ=os.environ):
    """The environment of each worker."""
    addresses, gpus = free_addresses(num_workers), divide_gpus(num_gpus, num_workers, environ)
    found = []
    for index, names in enumerate(gpus):
        task = dict(cluster=dict(worker=addresses), task=dict(type="worker", index=index))
        own = {} if names is None else dict(CUDA_VISIBLE_DEVICES=names)
        found.append({**environ, **own, "TF_CONFIG": json.dumps(task)})
    return found


def log_of(log_dir, index):
    return os.path.join(log_dir, f"worker-{index:05d}.log")


def start(command, environs, log_dir):
    """The processes (subprocess.Popen) of a command, one for each environment. They are in sessions
    of their own, so that Ctrl-C reaches them once, from here. OSError, before any has started, when
    a log cannot be written.
    """
    os.makedirs(log_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        logs = [
            stack.enter_context(open(log_of(log_dir, index), "ab"))
            for index in range(1, len(environs))
        ]
        streams = [{}, *(dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log) for log in logs)]
        prctl = getattr(ctypes.CDLL(None), "prctl", None)  # Linux has it
        stopped = prctl and functools.partial(stop_with_parent, prctl, os.getpid())
        return [
            subprocess.Popen(
                command, env=environ, start_new_session=True, preexec_fn=stopped, **stream
            )
            for environ, stream in zip(environs, streams, strict=True)
        ]


def stop_with_parent(prctl, parent):
    """Makes the kernel send SIGTERM to this new process when its parent, a process id, has ended,
    even by SIGKILL. It runs between fork and exec, so it only makes calls of the system.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before that
        os.kill(os.getpid(), signal.SIGTERM)


def wait(processes, signals, clock=time.monotonic, sleep=time.sleep):
    """Waits for all processes; returns Ended. Passes signals, a list that grows, on to all of them,
    SIGHUP as SIGTERM: they need no terminal to save. When one ends badly, the others may end by
    themselves, and are ended after some time.
    """
    num_passed, cause, since = 0, None, None
    to_come = [
        (SECONDS_TO_NOTICE, signal.SIGTERM),
        (SECONDS_TO_NOTICE + SECONDS_TO_STOP, signal.SIGKILL),
    ]
    while any(process.poll() is None for process in processes):
        sleep(SECONDS_BETWEEN_LOOKS)
        for number in signals[num_passed:]:
            num_passed += 1
            send(processes, signal.SIGTERM if number == signal.SIGHUP else number)
        if cause is None:
            cause = next((i for i, process in enumerate(processes) if process.poll()), None)
            since = clock()
        if cause is not None and to_come and clock() - since > to_come[0][0]:
            send(processes, to_come.pop(0)[1])
    codes = tuple(process.returncode for process in processes)
    if cause is None:
        cause = next((index for index, code in enumerate(codes) if code), None)
    return Ended(codes, cause_of(codes, cause))


def cause_of(codes, first):
    """Which worker's end explains the others': the first one's, unless it has only lost another."""
    if first is None or codes[first] != LOST:
        return first
    others = (index for index, code in enumerate(codes) if code not in (0, LOST))
    return next(others, first)


def send(processes, number):
    """Sends a signal to the processes that have not ended."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def run(command, again, config, num_gpus, log_dir, console):
    """Runs a command as LaunchConfig says; returns the exit code: 0, or that of the worker whose
    end explains the others'.

    Args:
      command: list of str. again: the same for attempts after the first, which resume. num_gpus: of
        this machine. log_dir: for the others' output. console: console.Console.
    """
    num_workers = config.num_workers
    if num_gpus > num_workers and (num_idle := num_gpus % num_workers):
        console.warn(
            f"--num_workers={num_workers}: all get the same number of the {num_gpus} GPUs, so "
            f"{num_idle} {'is' if num_idle == 1 else 'are'} not used"
        )
    if num_workers > 1:
        others = "worker 1" if num_workers == 2 else f"workers 1 to {num_workers - 1}"
        console.say(f"output of {others}: {os.path.join(log_dir, 'worker-*.log')}")
    with collect_signals() as signals:
        for attempt in range(config.restarts + 1):
            processes = start(command, environments(num_workers, num_gpus), log_dir)
            ended = wait(processes, signals)
            if ended.cause is None:
                return 0
            told = describe(ended, log_dir)
            if signals:
                return 128 + signals[0]
            code = ended.codes[ended.cause]
            if code in FINAL or attempt == config.restarts:
                if ended.cause or code < 0:
                    console.warn(told)
                return code if code >= 0 else 128 - code
            console.warn(f"{told}; all are started again ({attempt + 1} of {config.restarts})")
            command = again


def describe(ended, log_dir):
    """How the worker ended that explains the others' end, in a line."""
    code = ended.codes[ended.cause]
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if ended.cause == 0:
        return f"worker 0 {how}"
    last = last_line(log_of(log_dir, ended.cause))
    return f"worker {ended.cause} {how}; its log {log_of(log_dir, ended.cause)}" + (
        f" ends with: {last}" if last else " is empty"
    )


def last_line(path):
    """The last line of a file that is not empty, "" without one."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file]
    return next((line for line in reversed(lines) if line), "")
