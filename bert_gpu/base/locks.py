"""Which process holds a lock, as its file says, and whether that process is alive.

The number of a process is given again after it ends; with the time of its start it names one
process. A process of another host cannot be looked up.
"""

import os
import socket
import typing

RUNNING, ENDED = "running", "ended"
CLOCK_SECONDS = 2.0  # by which the computed start of a process may be off


class Holder(typing.NamedTuple):
    """The process that took a lock: its number, its start (seconds since the epoch) and its host's
    name; None where they are not known.
    """

    process_id: int
    started: float | None = None
    host: str | None = None


def this_process() -> Holder:
    """Return the Holder of this process."""
    number = os.getpid()
    return Holder(number, start_time(number), socket.gethostname() or None)


def write_holder(path: str, holder: Holder) -> None:
    """Write a Holder to a lock's file: its three values, with - for what is not known."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(" ".join("-" if value is None else str(value) for value in holder) + "\n")


def read_holder(path: str) -> Holder | None:
    """Return the Holder in a lock's file, None when it names none. In files of other revisions
    only the first word counts, the number.
    """
    try:
        with open(path, encoding="utf-8") as file:
            words = file.read(1000).split()
        if len(words) != 3:
            return Holder(int(words[0]))
        started, host = (None if word == "-" else word for word in words[1:])
        return Holder(int(words[0]), started and float(started), host)
    except (OSError, ValueError, IndexError):
        return None


def state_of_holder(path: str) -> str:
    """Return RUNNING, ENDED, or "on HOST" for a process of another host, of the holder that a
    lock's file names. Taking the lock would tell as well, but block others in that moment.
    """
    holder = read_holder(path)
    if holder is None:
        return ENDED
    if holder.host not in (None, socket.gethostname()):
        return f"on {holder.host}"
    started = start_time(holder.process_id)
    is_known = None not in (started, holder.started)
    is_same = is_known and abs(started - holder.started) < CLOCK_SECONDS
    return RUNNING if is_same else ENDED


def start_time(process_id: int) -> float | None:
    """Return when a process began (seconds since the epoch); None when it is gone, or a zombie."""
    import psutil  # here: nearly no command looks at a lock

    try:
        process = psutil.Process(process_id)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):
        return None
