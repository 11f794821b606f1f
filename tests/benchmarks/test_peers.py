"""A benchmark goes on when one of its processes was killed."""

import sys

import pytest

from tests.cli.pretraining import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
from helpers import process
from helpers.command import Failed

READY = "import time\nprint('{}', flush=True)\ntime.sleep(600)\n"


def test_a_killed_process_is_a_failed_variant(tmp_path, monkeypatch):
    (tmp_path / "ready.py").write_text(READY)
    monkeypatch.setitem(process.SCRIPTS, "ours", tmp_path / "ready.py")
    peer = process.Peer("ours", {})
    peer.process.kill()
    peer.process.wait()
    with pytest.raises(Failed, match="exit code -9: nothing printed"):
        peer.ask("turn", seconds=1)
    peer.close()
    assert peer.process.stdin.closed
