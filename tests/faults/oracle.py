"""The oracle of all fault tests: runs a command as a process and judges how it ended.

Whatever is thrown at it, a command ends with a code that the documentation names, on stderr says at
most one line after its log (the lines that begin with "warning: "), leaves no process behind, and
keeps within limits of time and memory. What has to become of the files is the case's own law; the
oracle gives it the tree before and after.
"""

import contextlib
import dataclasses
import hashlib
import io
import os
import pathlib
import signal
import stat
import subprocess
import sys
import tempfile
import time

import psutil

ROOT = pathlib.Path(__file__).parent.parent.parent
EXIT_CODES = (0, 2, 3, 130, 143)
LINE_CHARACTERS = 300  # of a message
SECONDS, BYTES = 180, 3 << 30  # limits of one process; TensorFlow alone takes half a gigabyte
# beginnings of lines of the log; the last two are of the line that XLA adds where XLA_FLAGS are set
LOG = ("warning: ", "WARNING: All log messages before absl", "I0000 ")
MISSING = "closed"  # a standard stream that the process does not have


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
      argv: what ran. code: exit code, -N when signal N ended the process. stdout, stderr: text.
      before, after: `tree` of the watched folder. seconds. peak_bytes: of resident memory.
      excess: the limit that the process was killed for ("time" or "memory"), or a process that it
        left behind; "" = none.
    """

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    before: dict
    after: dict
    seconds: float = 0.0
    peak_bytes: int = 0
    excess: str = ""

    def messages(self):
        """The lines of stderr after the log."""
        return [x for x in self.stderr.split("\n") if x and not x.startswith(LOG)]

    def problem(self, codes=EXIT_CODES):
        """What is wrong with the outcome, "" when nothing is. codes: the exit codes allowed."""
        messages, said = self.messages(), f"; stderr: {self.stderr[-2000:]!r}"
        if self.excess:
            return f"{self.excess}{said}"
        if self.code not in EXIT_CODES or self.code not in codes:
            return f"exit code {self.code}, not one of {codes}{said}"
        if len(messages) > 1:
            return f"{len(messages)} lines on stderr{said}"
        if self.code == 2 and not messages:
            return "exit code 2 without a message"
        if self.code == 0 and messages:
            return f"exit code 0 with a message{said}"
        for line in self.stderr.split("\n"):
            if len(line) > LINE_CHARACTERS or not line.isprintable():
                return f"a line of {len(line)} characters, or not printable: {line!r}"
        return ""

    def refusal(self):
        """As `problem` where the input is bad: exit code 2, and no file has changed."""
        return self.problem((2,)) or self.changes()

    def changes(self):
        """What differs between the trees before and after, "" when they are the same."""
        return difference(self.before, self.after)


def tree(folder):
    """{path in the folder: hash of a file, or the kind of what is no file}; {} without a folder.

    Lock files are left out: they stay, and hold nothing.
    """
    found, folder = {}, pathlib.Path(folder)
    for parent, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = pathlib.Path(parent, name)
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                mode = path.lstat().st_mode
                if stat.S_ISREG(mode) and not name.endswith(".lock"):
                    found[str(path.relative_to(folder))] = file_hash(path)
                elif not stat.S_ISREG(mode):
                    found[str(path.relative_to(folder))] = f"kind {stat.S_IFMT(mode):o}"
    return found


def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def difference(before, after):
    """How two trees differ, in words; "" when they do not."""
    parts = dict(
        removed=before.keys() - after.keys(),
        added=after.keys() - before.keys(),
        changed={path for path in before.keys() & after.keys() if before[path] != after[path]},
    )
    return "; ".join(
        f"{what}: {', '.join(sorted(paths))}" for what, paths in parts.items() if paths
    )


def environment(**changes):
    """That of a command under test: the repository's code, on the CPU. None removes a variable."""
    values = os.environ | dict(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="-1") | changes
    return {name: value for name, value in values.items() if value is not None}


def run(
    *arguments, watch, prefix=(), cwd=None, seconds=SECONDS, max_bytes=BYTES, streams=None, **env
):
    """Runs `python -m bert_gpu ARGUMENTS` as a process of its own; returns an Outcome.

    Args:
      arguments: the command and its flags. watch: the folder whose tree is compared.
      prefix: a program and its arguments that run the command, such as strace's.
      cwd: of the process; `watch` by default. seconds, max_bytes: beyond these it is killed.
      streams: {descriptor (0, 1 or 2): an open file or descriptor, or MISSING}; by default no
        input, and stdout and stderr are captured.
      env: changes to the environment; None removes a variable.
    """
    argv = [*prefix, sys.executable, "-m", "bert_gpu", *map(str, arguments)]
    streams, before = streams or {}, tree(watch)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = {0: subprocess.DEVNULL, 1: out, 2: err} | streams
        missing = [number for number, file in files.items() if file == MISSING]
        files = {n: None if file == MISSING else file for n, file in files.items()}
        if missing:  # closed by a shell, which then becomes the command
            closing = " ".join(f"{number}>&-" for number in missing)
            argv = ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", *argv]
        started = time.monotonic()
        process = subprocess.Popen(
            argv,
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            cwd=cwd or watch,
            env=environment(**env),
            start_new_session=True,  # so that all its processes can be found
        )
        try:
            excess, peak_bytes = _wait(process, seconds, max_bytes)
        finally:
            left = _end_session(process.pid)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="backslashreplace"))
    return Outcome(
        argv=tuple(argv),
        code=process.returncode,
        stdout=texts[0],
        stderr=texts[1],
        before=before,
        after=tree(watch),
        seconds=time.monotonic() - started,
        peak_bytes=peak_bytes,
        excess=excess or left,
    )


def call(*arguments, watch):
    """As `run`, in this process, which has imported everything: for many quick cases. Limits of
    time and memory, and other processes, are not looked at.
    """
    from bert_gpu.__main__ import main

    before, out, err = tree(watch), io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(argv := ["bert-gpu", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
    return Outcome(
        tuple(argv), code or 0, out.getvalue(), err.getvalue(), before, after=tree(watch)
    )


def _wait(process, seconds, max_bytes):
    """Waits for the end of a process; returns (the limit that it was killed for or "", peak bytes
    of its whole session).
    """
    end, peak_bytes, excess = time.monotonic() + seconds, 0, ""
    while process.poll() is None:
        peak_bytes = max(peak_bytes, sum(map(_resident_bytes, _session(process.pid))))
        if time.monotonic() > end or peak_bytes > max_bytes:
            excess = f"more memory than {max_bytes:,} bytes" if peak_bytes > max_bytes else ""
            excess = excess or f"not ended after {seconds} seconds"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    return excess, peak_bytes


def _end_session(leader):
    """Ends what a command has left running; returns its name, "" when there is none."""
    end = time.monotonic() + 10  # workers notice that their parent has gone, and end by themselves
    while (left := _session(leader)) and time.monotonic() < end:
        time.sleep(0.05)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return f"left behind: {' '.join(map(str, left))}" if left else ""


def _session(leader):
    """The living processes of a session."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _resident_bytes(process):
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
