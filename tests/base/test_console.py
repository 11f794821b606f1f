"""A console that is lost stops nothing and shows nothing raw.

A message beside a bar has a line of its own.
"""

import errno
import io
import os
import subprocess
import sys
import warnings

import pytest

from bert_gpu.base import console, errors
from bert_gpu.base.errors import UserError


class Failing(io.StringIO):
    """A stream that fails `number` times with an errno, then takes what is written."""

    def __init__(self, number, code):
        super().__init__()
        self.number, self.code = number, code

    def write(self, text):
        if self.number:
            self.number -= 1
            raise OSError(self.code, os.strerror(self.code))
        return super().write(text)


def test_words_that_nobody_can_read_are_dropped():
    shown = console.Console(stream=Failing(1, errno.ENOSPC))
    shown.say("one")
    shown.say("two")
    assert shown.stream.getvalue() == "two\n", "a full disk may have room again"
    closed = io.StringIO()
    closed.close()
    console.Console(stream=closed).say("three")


def test_a_warning_is_one_printable_line(capsys):
    console.warn("a\x1b[31m\u202e\udcff\nb " + "x" * 400)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(r"warning: a\x1b[31m\u202e\udcff b xx") and line.endswith("x...")
    assert len(line) == errors.LINE_CHARACTERS and line.isprintable()


def test_a_library_warns_in_one_line(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with console.warnings_of_libraries():
            warnings.warn("old\nTraceback", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: old\n"


def test_printable_text_stays_as_it_is():
    text = "Zürich\t木\nnaïve"
    assert errors.printable(text) == text


def test_an_answer_that_cannot_be_given(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Failing(1, errno.EPIPE))
    with pytest.raises(SystemExit) as end:
        console.answer("x")
    assert end.value.code == 0
    monkeypatch.setattr(sys, "stdout", Failing(1, errno.ENOSPC))
    with pytest.raises(UserError, match="standard output: No space left"):
        console.answer("x")


def test_closed_streams_are_opened_before_any_file_takes_their_numbers(tmp_path):
    code = (
        "from bert_gpu.base import console, errors; console.open_streams(); "
        f"file = open({str(tmp_path / 'file')!r}, 'w'); "
        "import os, sys; print('lost'); os.write(2, b'lost'); sys.stderr.write('lost'); "
        "file.write(str(file.fileno())); file.close()"
    )
    shell = ["/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", code]
    root = os.path.dirname(os.path.dirname(os.path.dirname(console.__file__)))
    subprocess.run(shell, check=True, env=os.environ | dict(PYTHONPATH=root))
    assert int((tmp_path / "file").read_text()) > 2


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_message_gets_a_line_of_its_own_and_the_bar_is_drawn_again(monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", screen)
    shown = console.Console()
    bar = shown.progress(10, 0, "training")
    shown.say("validation at step 0")
    shown.warn("stopped")
    bar.close()
    parts = [part for part in screen.getvalue().replace("\n", "\r").split("\r") if part.strip()]
    assert [part.split(":")[0] for part in parts] == [
        "training",
        "validation at step 0",
        "training",
        "warning",
        "training",
        "training",
    ]


def test_a_block_is_aligned_and_broken_at_the_width_of_a_terminal():
    rows = [("batch", "one two three four five"), ("learning rate", "1e-4"), ("x", "")]
    assert console.aligned(rows) == [
        "batch:          one two three four five",
        "learning rate:  1e-4",
        "x:",
    ]
    assert console.aligned(rows[:2], 36) == [
        "batch:          one two three four",
        "                five",
        "learning rate:  1e-4",
    ]


def test_what_matters_least_gives_way():
    fields = [(9, "loss 1.0"), (1, "rate 2"), (5, "fast")]
    assert console.fitting(fields, 100) == ["loss 1.0", "rate 2", "fast"]
    assert console.fitting(fields, 16) == ["loss 1.0", "fast"]
    assert console.fitting(fields, 9) == []


def test_a_long_line_is_broken_at_its_words():
    assert console.broken("validation at step 0: loss 8.2558  mlm 7.5", 28) == (
        "validation at step 0: loss\n  8.2558  mlm 7.5"
    )
    assert console.broken("as  it is", None) == "as  it is"
