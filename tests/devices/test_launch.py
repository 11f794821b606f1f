"""launch starts workers together, stops them together, and gathers their exit codes. The workers
here are a few lines of Python without TensorFlow.
"""

import io
import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import collect_signals
from bert_gpu.cli import launch
from bert_gpu.devices import launch as processes
from tests.test_architecture import ROOT

START = """
import json, os, pathlib, signal, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
folder = pathlib.Path(sys.argv[1])
"""


class Recorder(Console):
    def __init__(self):
        super().__init__(stream=io.StringIO())
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def command(tmp_path, code, *arguments):
    script = tmp_path / "worker.py"
    script.write_text(START + textwrap.dedent(code))
    return [sys.executable, str(script), str(tmp_path), *arguments]


def run(tmp_path, code, num_gpus=0):
    console = Recorder()
    logs = str(tmp_path / "logs")
    return processes.run(command(tmp_path, code), 2, num_gpus, logs, console), console


def test_each_worker_gets_its_place_and_its_log(tmp_path, capfd):
    code = """
    print("output of", index, os.environ["TF_CONFIG"], flush=True)
    """
    code, console = run(tmp_path, code)
    assert code == 0
    out = capfd.readouterr().out
    log = (tmp_path / "logs" / "worker-00001.log").read_text()
    assert out.startswith("output of 0") and "output of 1" not in out
    assert console.stream.getvalue() == f"output of worker 1: {tmp_path}/logs/worker-*.log\n"
    clusters = [json.loads(text.split(maxsplit=3)[3])["cluster"] for text in (out, log)]
    assert clusters[0] == clusters[1] and len(set(clusters[0]["worker"])) == 2


def test_the_cause_is_told_and_its_code_returned(tmp_path):
    code = """
    if index == 1:
        print("--flag: is wrong", file=sys.stderr)
        sys.exit(2)
    sys.exit(4)  # has lost the other
    """
    code, console = run(tmp_path, code)
    assert code == 2
    (told,) = console.warnings
    assert "worker 1 ended with code 2" in told and told.endswith("ends with: --flag: is wrong")


def test_the_signal_that_ends_a_worker_is_named(tmp_path):
    code, console = run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert code == 128 + signal.SIGKILL
    assert ["was ended by SIGKILL" in text for text in console.warnings] == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_all_after_they_have_saved(tmp_path, number):
    """Worker 1 sends it to the launcher when both can take it."""
    code = f"""
    caught = []
    signal.signal({number:d}, lambda number, frame: caught.append(number))
    (folder / f"ready-{{index}}").touch()
    while index == 1 and not (folder / "ready-0").exists():
        time.sleep(0.01)
    if index == 1:
        os.kill(os.getppid(), {number:d})
    while not caught:
        time.sleep(0.01)
    (folder / f"saved-{{index}}").write_text(str(caught))
    sys.exit(128 + caught[0])
    """
    code, console = run(tmp_path, code)
    assert (code, console.warnings) == (128 + number, [])
    for index in range(2):
        assert (tmp_path / f"saved-{index}").read_text() == f"[{number:d}]"


class Process:
    """One that ends with a code when it gets its last signal."""

    def __init__(self, returncode=None, obeys=()):
        self.returncode, self.obeys, self.got = returncode, obeys, []

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        self.got.append(number)
        if number in self.obeys:
            self.returncode = -number


def test_who_does_not_end_by_itself_is_ended(tmp_path):
    now, stopped = [0.0], Process(obeys=(signal.SIGKILL,))
    started = [Process(4), stopped]

    def sleep(seconds):
        now[0] += seconds

    ended = processes.wait(started, [], lambda: now[0], sleep)
    assert stopped.got == [signal.SIGTERM, signal.SIGKILL]
    limit = processes.SECONDS_TO_NOTICE + processes.SECONDS_TO_STOP
    assert limit < now[0] < limit + 1
    assert ended == processes.Ended((4, -signal.SIGKILL), 1)  # 0 has only lost 1


def test_gpus_are_divided():
    assert processes.divide_gpus(0, 2, {}) == [None, None]
    assert processes.divide_gpus(4, 2, {}) == ["0,1", "2,3"]
    assert processes.divide_gpus(3, 2, dict(CUDA_VISIBLE_DEVICES="5,7,9")) == ["5", "7"]
    with pytest.raises(UserError, match="there are 1 GPUs, and each worker needs one"):
        processes.divide_gpus(1, 2, {})


@pytest.mark.parametrize("num_gpus, num_idle", [(0, 0), (2, 0), (4, 0), (5, 1)])
def test_gpus_that_stay_idle_are_told_of_once(tmp_path, num_gpus, num_idle):
    code, console = run(tmp_path, "", num_gpus=num_gpus)
    told = [text for text in console.warnings if "--num_workers=2" in text]
    assert code == 0 and len(told) == (num_idle > 0)
    assert all(text.endswith(f"the {num_gpus} GPUs, so {num_idle} is not used") for text in told)


def test_what_is_launched(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = [sys.executable, "-m", "bert_gpu"]
    assert launch.command_of(["run_classifier.py", "--x"]) == [*start, "classify", "--x"]
    assert launch.command_of(["pretrain"]) == [*start, "pretrain"]
    (tmp_path / "own.py").touch()
    assert launch.command_of(["own.py", "1"]) == [sys.executable, "own.py", "1"]
    for words in ([], ["doctor"], ["embed"]):
        with pytest.raises(UserError, match="launch: needs a command after --"):
            launch.command_of(words)
    with pytest.raises(UserError, match="launch: other.py: no such script"):
        launch.command_of(["other.py"])


def test_the_command_keeps_logs_of_what_went_wrong(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(launch.tempfile, "tempdir", None)
    script = tmp_path / "own.py"
    script.write_text("import os, sys; print(os.getpid()); sys.exit(int(sys.argv[1]))")
    given = ["bert-gpu launch", "--num_workers=2"]
    assert launch.main([*given, "--", str(script), "0"]) == 0
    assert not list(tmp_path.glob("bert-gpu-launch-*"))
    assert launch.main([*given, "--", str(script), "7"]) == 7
    (logs,) = tmp_path.glob("bert-gpu-launch-*")
    assert [path.name for path in logs.iterdir()] == ["worker-00001.log"]


LAUNCH = """
import sys
from bert_gpu.base.console import Console
from bert_gpu.devices import launch
sys.exit(launch.run(sys.argv[2:], 2, 0, sys.argv[1] + "/logs", Console(quiet=True)))
"""
SAVING = """
caught = []
signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
(folder / f"ready-{index}").touch()
for _ in range(6000):  # so that a test that fails leaves no process for long
    if not caught:
        time.sleep(0.01)
(folder / f"saved-{index}").touch()
sys.exit(128 + caught[0])
"""


def eventually(condition):
    """Waits for a condition that must come."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_launcher_that_dies_leaves_no_worker(tmp_path, number):
    """By the end of its terminal, which it hears of, or by SIGKILL, which it does not."""
    words = [sys.executable, "-c", LAUNCH, str(tmp_path), *command(tmp_path, SAVING)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL) as launcher:
        eventually(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
        launcher.send_signal(number)
    eventually(lambda: len(list(tmp_path.glob("saved-*"))) == 2)
    assert launcher.returncode == (128 + number if number == signal.SIGHUP else -number)


def test_a_terminals_end_told_twice_counts_once():
    with collect_signals() as taken:
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGTERM):
            signal.raise_signal(number)
    assert taken == [signal.SIGHUP, signal.SIGTERM, signal.SIGTERM]


def test_nohup_keeps_workers():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with collect_signals() as taken:
            signal.raise_signal(signal.SIGHUP)
        assert taken == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_no_worker_starts_without_all_logs(tmp_path):
    (tmp_path / "logs" / "worker-00001.log").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        run(tmp_path, '(folder / "started").touch()')
    assert not (tmp_path / "started").exists()
