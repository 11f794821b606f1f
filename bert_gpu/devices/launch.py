"""Starts the workers of one job as processes of this machine, and stops them together.

Each worker gets a TF_CONFIG with free ports of this machine, and its share of the GPUs. Worker 0
uses the standard streams of this process, the other workers write to logs. No worker outlives this
process: when this process dies, Linux sends the workers SIGTERM, after which they save and stop.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import collect_signals

LOST = 4  # exit code of a worker that has lost another one
SECONDS_TO_NOTICE = 20.0  # for the others to end after one has ended badly
SECONDS_TO_STOP = 30.0  # for workers to end after SIGTERM
SECONDS_BETWEEN_LOOKS = 0.1
PR_SET_PDEATHSIG = 1  # an option of prctl(2)


class Ended(typing.NamedTuple):
    """The end of all workers.

    codes: exit codes of the workers; -N for the end by signal N, as in subprocess. cause: index of
    the worker whose bad end made the others end (`cause_of`), None when all ended well.
    """

    codes: tuple[int, ...]
    cause: int | None


def free_addresses(number: int) -> list[str]:
    """Return `number` addresses "127.0.0.1:port" with different free ports."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)
        ]
        return [f"127.0.0.1:{server.getsockname()[1]}" for server in servers]


def divide_gpus(
    num_gpus: int, num_workers: int, environ: Mapping[str, str]
) -> Sequence[str | None]:
    """Return the value of CUDA_VISIBLE_DEVICES for each worker, None to leave the variable alone.
    Raises UserError when there are fewer GPUs than workers.

    num_gpus: the number of GPUs that CUDA finds.
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


def environments(
    num_workers: int, num_gpus: int, environ: Mapping[str, str] = os.environ
) -> list[dict[str, str]]:
    """Return the environment variables of each worker: `environ` with the worker's TF_CONFIG and
    CUDA_VISIBLE_DEVICES.
    """
    addresses = free_addresses(num_workers)
    environs = []
    for index, names in enumerate(divide_gpus(num_gpus, num_workers, environ)):
        task = dict(cluster=dict(worker=addresses), task=dict(type="worker", index=index))
        own = {} if names is None else dict(CUDA_VISIBLE_DEVICES=names)
        environs.append({**environ, **own, "TF_CONFIG": json.dumps(task)})
    return environs


def log_of(log_dir: str, index: int) -> str:
    return os.path.join(log_dir, f"worker-{index:05d}.log")


def start(
    command: Sequence[str], environs: Sequence[Mapping[str, str]], log_dir: str
) -> list[subprocess.Popen]:
    """Start a command once for each environment, and return the processes. Each process has a
    session of its own, so that Ctrl-C reaches it only once, through this process. Raises OSError,
    before any process has started, when a log cannot be written.
    """
    os.makedirs(log_dir, exist_ok=True)
    with contextlib.ExitStack() as stack:
        logs = [
            stack.enter_context(open(log_of(log_dir, index), "ab"))
            for index in range(1, len(environs))
        ]
        streams: list[dict[str, Any]] = [
            {},
            *(dict(stdin=subprocess.DEVNULL, stdout=log, stderr=log) for log in logs),
        ]
        prctl = getattr(ctypes.CDLL(None), "prctl", None)  # only Linux has it
        before_exec = prctl and functools.partial(stop_with_parent, prctl, os.getpid())
        return [
            subprocess.Popen(
                command, env=environ, start_new_session=True, preexec_fn=before_exec, **stream
            )
            for environ, stream in zip(environs, streams, strict=True)
        ]


def stop_with_parent(prctl: Callable[[int, int], int], parent: int) -> None:
    """Make the kernel send SIGTERM to this new process when its parent ends, even by SIGKILL. The
    function runs between fork and exec, so it makes system calls only.

    parent: the parent's process id.
    """
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the call
        os.kill(os.getpid(), signal.SIGTERM)


def wait(
    processes: Sequence[subprocess.Popen],
    signals: Sequence[int],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Ended:
    """Wait until all processes have ended, and return the Ended. When one ends badly, the others
    have SECONDS_TO_NOTICE to end by themselves; then they get SIGTERM, and SIGKILL after another
    SECONDS_TO_STOP.

    signals: the list to which this process adds each signal that it catches; each is passed on to
    all processes, SIGHUP as SIGTERM, because they can save without a terminal.
    """
    num_passed = 0
    cause: int | None = None
    cause_time = 0.0
    pending = [
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
            cause_time = clock()
        if cause is not None and pending and clock() - cause_time > pending[0][0]:
            send(processes, pending.pop(0)[1])
    codes = tuple(process.returncode for process in processes)
    if cause is None:
        cause = next((index for index, code in enumerate(codes) if code), None)
    return Ended(codes, cause_of(codes, cause))


def cause_of(codes: Sequence[int], first: int | None) -> int | None:
    """Return the index of the worker whose bad end made the others end: `first`, the first to end
    badly, unless it ended because it had lost another worker. codes: exit codes of all workers.
    """
    if first is None or codes[first] != LOST:
        return first
    return next((index for index, code in enumerate(codes) if code not in (0, LOST)), first)


def send(processes: Iterable[subprocess.Popen], number: int) -> None:
    """Send a signal to the processes that have not ended."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def run(
    command: Sequence[str], num_workers: int, num_gpus: int, log_dir: str, console: Console
) -> int:
    """Run a command in several workers, and return the exit code: 0, or that of the worker whose
    end made the others end. num_gpus: GPUs of this machine. log_dir: folder for the output of
    workers 1, 2, ...
    """
    if num_gpus > num_workers and (num_idle := num_gpus % num_workers):
        console.warn(
            f"--num_workers={num_workers}: all get the same number of the {num_gpus} GPUs, so "
            f"{num_idle} {'is' if num_idle == 1 else 'are'} not used"
        )
    if num_workers > 1:
        others = "worker 1" if num_workers == 2 else f"workers 1 to {num_workers - 1}"
        console.say(f"output of {others}: {os.path.join(log_dir, 'worker-*.log')}")
    with collect_signals() as signals:
        ended = wait(start(command, environments(num_workers, num_gpus), log_dir), signals)
    if ended.cause is None:
        return 0
    if signals:
        return 128 + signals[0]
    code = ended.codes[ended.cause]
    if ended.cause or code < 0:
        console.warn(describe(ended.cause, code, log_dir))
    return code if code >= 0 else 128 - code


def describe(index: int, code: int, log_dir: str) -> str:
    """Return a line of text about how a worker ended, with the last line of its log. code: its exit
    code, or -N for signal N.
    """
    end = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if index == 0:
        return f"worker 0 {end}"
    log = log_of(log_dir, index)
    last = last_line(log)
    return f"worker {index} {end}; its log {log}" + (f" ends with: {last}" if last else " is empty")


def last_line(path: str) -> str:
    """Return the last line with any text in a file; "" when there is none."""
    with open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file]
    return next((line for line in reversed(lines) if line), "")
