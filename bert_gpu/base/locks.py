"""Writes into a lock's file which process holds the lock, reads it back, and checks whether that
process is alive.

The system reuses the numbers of ended processes, so a process is identified by its number and the
time of its start. Processes of other hosts cannot be checked.
"""

import os
import socket
import typing

RUNNING = "running"
ENDED = "ended"
CLOCK_SECONDS = 2.0  # two readings of the start of one process differ by less


class Holder(typing.NamedTuple):
    """The process that holds a lock: its number, its start (seconds since the epoch) and its host's
    name; None = not known.
    """

    process_id: int
    started: float | None
    host: str | None


def this_process() -> Holder:
    """Return the Holder of this process."""
    number = os.getpid()
    return Holder(number, start_time(number), socket.gethostname() or None)


def write_holder(path: str, holder: Holder) -> None:
    """Write a Holder to a lock's file: its three values, with - for None."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(" ".join("-" if value is None else str(value) for value in holder) + "\n")


def read_holder(path: str) -> Holder | None:
    """Return the Holder in a lock's file; None when the file holds none."""
    try:
        with open(path, encoding="utf-8") as file:
            number, started, host = file.read(1000).split()
        return Holder(
            int(number),
            None if started == "-" else float(started),
            None if host == "-" else host,
        )
    except (OSError, ValueError):
        return None


def state_of_holder(path: str) -> str:
    """Return the state of the process that a lock's file names: RUNNING, ENDED, or "on HOST" for a
    process of another host. Trying to acquire the lock would tell as much, but block others for a
    moment.
    """
    holder = read_holder(path)
    if holder is None:
        return ENDED
    if holder.host not in (None, socket.gethostname()):
        return f"on {holder.host}"
    started = start_time(holder.process_id)
    if started is None or holder.started is None:
        return ENDED
    return RUNNING if abs(started - holder.started) < CLOCK_SECONDS else ENDED


def start_time(process_id: int) -> float | None:
    """Return when a process began (seconds since the epoch); None when it is gone, or a zombie."""
    import psutil  # imported here, because few commands read a lock

    try:
        process = psutil.Process(process_id)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):
        return None
