"""Runs a command and measures its time and the peak memory of its processes."""

import os
import subprocess
import threading
import time
import typing

import psutil


class Run(typing.NamedTuple):
    """One finished command. seconds: wall clock. peak_bytes, peak_anonymous_bytes: see `run`."""

    seconds: float
    peak_bytes: int
    peak_anonymous_bytes: int


def memory(pid):
    """Return the proportional set size of a process and its part of pages that belong to no file on
    a disk, in bytes (proc(5), smaps_rollup, Linux 5.3 or newer). Raises OSError when it has ended.
    """
    with open(f"/proc/{pid}/smaps_rollup") as file:
        lines = dict(line.split(":") for line in list(file)[1:])
    pages = {name: int(value.split()[0]) * 1024 for name, value in lines.items()}
    return pages["Pss"], pages["Pss_Anon"] + pages["Pss_Shmem"]


def run(command, watch=True, **settings):
    """Run a command to its end. Raises RuntimeError when it fails.

    peak_bytes is the highest sum, over the command and all processes it started, of the
    proportional set size (pages that processes share are divided among them), sampled four times a
    second; 0 when `watch` is off. peak_anonymous_bytes counts only the pages that belong to no
    file, which do not depend on other processes that map the same libraries.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings
    )
    peaks = (0, 0)
    stopped = threading.Event()

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

    if watch:
        threading.Thread(target=sample, daemon=True).start()
    output, _ = process.communicate()
    seconds = time.perf_counter() - started
    stopped.set()
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{output[-2000:]}")
    return Run(seconds, *peaks)


def folder_bytes(folder):
    paths = (os.path.join(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(map(os.path.getsize, paths))
