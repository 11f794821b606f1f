"""Runs a command and measures its time and the peak memory of its processes."""

import dataclasses
import os
import subprocess
import threading
import time

import psutil


@dataclasses.dataclass
class Run:
    """One finished command. seconds: wall clock. cpu_seconds: user + system time of the command and
    its children. peak_bytes, peak_anonymous_bytes: see `run`.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    peak_anonymous_bytes: int


def memory(pid):
    """(proportional set size, its part of pages that belong to no file on a disk) of a process, in
    bytes (proc(5), smaps_rollup, Linux 5.3 or newer); OSError when it has ended.
    """
    with open(f"/proc/{pid}/smaps_rollup") as file:
        found = dict(line.split(":") for line in list(file)[1:])
    pages = {name: int(value.split()[0]) * 1024 for name, value in found.items()}
    return pages["Pss"], pages["Pss_Anon"] + pages["Pss_Shmem"]


def run(command, watch=True, **settings):
    """Runs a command to its end; RuntimeError when it fails.

    peak_bytes is the highest sum, over the command and all processes it started, of the
    proportional set size (pages that processes share are divided among them), sampled four times a
    second; 0 when `watch` is off. peak_anonymous_bytes is that of the pages that belong to no file:
    what the command allocates, whoever else has the same libraries mapped meanwhile.
    """
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings
    )
    peaks, stopped = (0, 0), threading.Event()

    def sample():
        nonlocal peaks
        while not stopped.wait(0.25):
            totals = (0, 0)
            try:
                parent = psutil.Process(process.pid)
                family = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
            for member in family:
                try:
                    totals = tuple(map(sum, zip(totals, memory(member.pid), strict=True)))
                except (OSError, KeyError):  # it has ended, or is about to: no pages left
                    continue
            peaks = tuple(map(max, zip(peaks, totals, strict=True)))

    thread = threading.Thread(target=sample, daemon=True)
    if watch:
        thread.start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    stopped.set()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{output[-2000:]}")
    after = os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return Run(seconds, cpu, *peaks)


def folder_bytes(folder):
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )
