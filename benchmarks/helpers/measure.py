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
    its children. peak_bytes: see `run`.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int


def run(command, watch=True, **settings):
    """Runs a command to its end; RuntimeError when it fails.

    peak_bytes is the highest sum, over the command and all processes it started, of the
    proportional set size (pages that processes share are divided among them), sampled four times a
    second; 0 when `watch` is off.
    """
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **settings
    )
    peak, stopped = [0], threading.Event()

    def sample():
        while not stopped.wait(0.25):
            total = 0
            try:
                parent = psutil.Process(process.pid)
                family = [parent, *parent.children(recursive=True)]
            except psutil.Error:
                continue
            for member in family:
                try:
                    total += member.memory_full_info().pss
                except psutil.Error:  # it has ended in the meantime
                    continue
            peak[0] = max(peak[0], total)

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
    return Run(seconds, cpu, peak[0])


def folder_bytes(folder):
    return sum(
        os.path.getsize(os.path.join(path, name))
        for path, _, names in os.walk(folder)
        for name in names
    )
