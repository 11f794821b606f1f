"""The oracle sees what it is there to see."""

import dataclasses
import os
import sys

import pytest

from tests.faults import oracle

GOOD = oracle.Outcome(("x",), 2, "", "warning: old\n--flag=1: wrong; give 2\n", {}, {})


def test_a_good_end():
    assert GOOD.problem() == "" == GOOD.refusal()
    assert dataclasses.replace(GOOD, code=0, stderr="").problem() == ""
    assert "with a message" in dataclasses.replace(GOOD, code=0).problem()


@pytest.mark.parametrize(
    "changes, problem",
    [
        (dict(code=1), "exit code 1"),
        (dict(code=-9), "exit code -9"),
        (dict(code=0), "exit code 0"),
        (dict(stderr=""), "without a message"),
        (dict(stderr="one\ntwo\n"), "2 lines"),
        (dict(stderr="x" * 301), "301 characters"),
        (dict(stderr="a\x1b[31mb"), "not printable"),
        (dict(stderr="warning: \x07\nwrong"), "not printable"),
        (dict(excess="not ended after 1 seconds"), "not ended"),
        (dict(after={"a": "1"}), "added: a"),
        (dict(before={"a": "1"}), "removed: a"),
        (dict(before={"a": "1"}, after={"a": "2"}), "changed: a"),
    ],
)
def test_each_bad_end_is_seen(changes, problem):
    assert problem in dataclasses.replace(GOOD, **changes).refusal()


def test_a_tree_shows_contents_and_kinds(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("1")
    os.mkfifo(tmp_path / "c")
    (tmp_path / ".x.lock").touch()
    first = oracle.tree(tmp_path)
    assert set(first) == {"a", "a/b", "c"} and oracle.tree(tmp_path / "none") == {}
    (tmp_path / "a" / "b").write_text("2")
    assert oracle.difference(first, oracle.tree(tmp_path)) == "changed: a/b"


def test_processes_are_judged(tmp_path):
    """A refusal, one with closed streams, and a process that hangs and leaves another behind."""
    bad = oracle.run("data", "--input_file=none.txt", watch=tmp_path)
    assert bad.refusal() == "" and "none.txt" in bad.stderr and bad.peak_bytes
    assert oracle.run("fly", watch=tmp_path).refusal() == ""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    slow = oracle.run(watch=tmp_path, prefix=sleep, seconds=0.5)
    assert "not ended after 0.5 seconds" in slow.problem() and slow.code == -9
    large = oracle.run(watch=tmp_path, prefix=sleep, max_bytes=1 << 20)
    assert "more memory" in large.problem()
    said = "import os, sys; os.write(1, b'x')"
    closed = oracle.run(
        watch=tmp_path, prefix=[sys.executable, "-c", said], streams={1: oracle.MISSING}
    )
    assert closed.code == 1 and "Bad file descriptor" in closed.stderr


def test_a_call_in_this_process_is_judged_the_same(tmp_path):
    assert oracle.call("data", "--output_file=x", watch=tmp_path).refusal() == ""
    assert oracle.call("data", "--help", watch=tmp_path).problem((0,)) == ""
