"""A terminal that tests watch: a command runs on it, in the foreground, and its lines are what a
user sees.
"""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

from tests.cli.pretraining import HANG_SECONDS, ROOT

ROWS = 1000  # as if nothing scrolled away


class Terminal:
    """Runs a command on a terminal of its own, with that many columns. A context manager, which
    ends the command.
    """

    def __init__(self, command, columns, folder):
        self.columns, self.raw = columns, b""
        self.master, slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, columns, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1", PYTHONPATH=str(ROOT))
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def read(self, until=None):
        """Reads until the text is there, or to the end of the command."""
        while until is None or until not in self.text:
            assert select.select([self.master], [], [], HANG_SECONDS)[0], "it hangs"
            try:
                block = os.read(self.master, 1 << 16)
            except OSError:  # no process has the terminal any more
                block = b""
            if not block:
                assert until is None, f"it ended without {until!r}:\n{self.text}"
                return self.process.wait(timeout=HANG_SECONDS)
            self.raw += block

    def type(self, characters):
        os.write(self.master, characters)

    @property
    def text(self):
        return self.raw.decode("utf-8", "replace")

    def lines(self):
        """What is on the screen in the end: a carriage return goes back to the start of the line,
        and what is written there replaces what was; long lines go on in the next one. Of escape
        sequences only those that change colours, which take no room, are known.
        """
        lines, column = [[]], 0
        text = re.sub(r"\x1b\[\d*m", "", self.text)
        assert "\x1b" not in text, text
        for character in text:
            if character == "\r":
                column = 0
            elif character == "\n":
                lines, column = [*lines, []], 0
            else:
                if column == self.columns:
                    lines, column = [*lines, []], 0
                line = lines[-1]
                line += " " * (column + 1 - len(line))
                line[column] = character
                column += 1
        return ["".join(line).rstrip() for line in lines]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
