"""Which process holds a lock, as its file says, and whether that process is alive.

The number of a process is given again after it ends. With the ticks from the boot to its start,
and the boot's id, it names one process, whatever is done to the clock. A process of another host
cannot be asked for.
"""

import os
import socket
import typing

RUNNING, ENDED = "running", "ended"
CLOCK_SECONDS = 2.0  # by which the clock of a file system may be off


class Holder(typing.NamedTuple):
    """The process that took a lock: its number, the ticks from boot to its start, the boot's id
    and the host's name; None where they are not known.
    """

    process_id: int
    start_ticks: int | None = None
    boot_id: str | None = None
    host: str | None = None


def this_process():
    """The Holder that this process is."""
    number = os.getpid()
    return Holder(number, start_ticks(number), boot_id(), socket.gethostname() or None)


def write_holder(path, holder):
    """Writes a Holder to a lock's file: its four values, with - for what is not known."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(" ".join("-" if value is None else str(value) for value in holder) + "\n")


def read_holder(path):
    """The Holder in a lock's file, None when it says none. Older files have the number alone."""
    try:
        with open(path, encoding="utf-8") as file:
            words = [None if word == "-" else word for word in file.read(1000).split()]
        number, ticks, boot, host = (words + [None] * 4)[:4]
        return Holder(int(number), ticks if ticks is None else int(ticks), boot, host)
    except (OSError, ValueError, TypeError):
        return None


def state_of_holder(path):
    """RUNNING, ENDED, or "on HOST" for a process of another host, of the holder that a lock's file
    names. Taking the lock would tell as well, but refuse it to who wants it in that moment.
    """
    holder = read_holder(path)
    if holder is None:
        return ENDED
    if holder.host not in (None, socket.gethostname()):
        return f"on {holder.host}"
    if holder.start_ticks is None or holder.boot_id is None:
        return RUNNING if has_begun_before(holder.process_id, path) else ENDED
    is_same = holder.boot_id == boot_id() and holder.start_ticks == start_ticks(holder.process_id)
    return RUNNING if is_same else ENDED


def start_ticks(process_id):
    """Clock ticks from the boot to the start of a process; None when it is not there, or a zombie,
    or the system does not tell.
    """
    try:
        with open(f"/proc/{process_id}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # from the third on: see man 5 proc
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, ValueError, IndexError):
        return None


def boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip() or None
    except OSError:
        return None


def has_begun_before(process_id, path):
    """Whether a process is alive that was there before a file was written."""
    import psutil  # here: nearly no lock needs it

    try:
        process = psutil.Process(process_id)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return process.create_time() <= os.stat(path).st_mtime + CLOCK_SECONDS
    except (OSError, ValueError, OverflowError, psutil.Error):
        return False
