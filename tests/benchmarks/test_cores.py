"""Runs of benchmarks have a core each, and a budget of its work."""

import os
import signal
import sys
import threading
import time

import pytest

from tests.test_architecture import ROOT


def test_runs_have_a_core_each():
    from helpers.cores import Cores

    cores = Cores()
    together = threading.Barrier(len(cores.numbers), timeout=30)

    def run(item, core):
        if item < len(cores.numbers):
            together.wait()  # as many at a time as there are cores
        return item, core

    found = cores.each(run, range(20))
    assert [item for item, _ in found] == list(range(20))
    assert {core for _, core in found} == set(cores.numbers) == os.sched_getaffinity(0)
    assert len(Cores(1).numbers) == 1


@pytest.mark.parametrize("cores", ["0", "-1", "two"])
def test_a_run_needs_a_core(cores, capsys):
    import recipes

    with pytest.raises(SystemExit) as ended:
        recipes.make_parser().parse_args([f"--cores={cores}"])
    assert ended.value.code == 2 and f"{cores}: must be a whole" in capsys.readouterr().err


def test_a_failed_run_lets_no_other_begin():
    from helpers.cores import Cores

    began = []

    def run(item, core):
        began.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match="0"):
        Cores(1).each(run, range(100))
    assert len(began) < 100


def test_an_interrupt_ends_the_runs_of_all_cores(monkeypatch):
    from helpers import command
    from helpers.cores import Cores

    sleeping = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(command, "script_command", lambda *flags, **values: sleeping)
    waiting = threading.Event()

    def run(item, core):
        waiting.set()
        command.run_script("x", core=core)

    def interrupt():
        waiting.wait(30)
        while not command.running:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        Cores(1).each(run, range(3))
    assert not command.running


def test_a_budget_of_work_does_not_count_the_time_that_passes(monkeypatch):
    from helpers import pretrain_by_work

    import bert_gpu.__main__ as commands
    from bert_gpu.pretrain import run

    monkeypatch.setattr(sys, "path", ["replaced", *sys.path])
    monkeypatch.setattr(sys, "argv", ["x", "--quiet"])
    monkeypatch.setattr(run, "pretrain", lambda *given, clock: clock)
    monkeypatch.setattr(commands, "main", lambda words: (words, run.pretrain("settings")))
    words, clock = pretrain_by_work.main()
    assert words == ["bert-gpu", "pretrain", "--quiet"] and sys.path[0] == str(ROOT)
    before = clock()
    time.sleep(0.5)
    assert clock() - before < 0.4
