"""A grid of pretrainings: its trials are runs, only the best keeps its checkpoints, and the
same command resumes it wherever it was stopped.
"""

import json
import os
import shutil
import signal

import pytest

from bert_gpu.train import run as engine
from bert_gpu.train.step import TrainStep
from tests.cli.pretraining import lines, pretrain, same, start_and_hold, wait_until, weights

RATES = ("learning_rate=1e-3", "learning_rate=1e-2")
GRID = "--grid=learning_rate=1e-3,1e-2"


def read(folder):
    return json.loads((folder / "scores.json").read_text())


def without_seconds(content):
    return [
        {name: value for name, value in row.items() if name != "seconds"}
        for row in content["trials"]
    ]


def check_kept(folder, best, others):
    """Only the best trial has checkpoints and a model, all have metrics and run.json."""
    for name in (best, *others):
        present = set(os.listdir(folder / name))
        assert {"metrics.jsonl", "run.json"} <= present
        assert (present >= {"checkpoints", "model"}) == (name == best)
        assert bool(present & {"checkpoints", "model"}) == (name == best)


def test_a_grid_resumes_trial_by_trial_and_keeps_the_best(data, tmp_path, monkeypatch, capfd):
    """A signal that comes when a trial has nothing left to train still stops the sweep."""
    out = tmp_path / "out"
    trained = []
    real = engine.Run.result

    def result(self):
        trained.append(os.path.basename(self.folder.path))
        stops = len(trained) == 1
        return real(self)._replace(late_signal=signal.SIGTERM if stops else None)

    monkeypatch.setattr(engine.Run, "result", result)
    assert pretrain(data, out, GRID, steps=3) == 128 + signal.SIGTERM
    assert trained == [RATES[0]] and [row["cell"] for row in read(out)["trials"]] == [RATES[0]]
    assert (out / RATES[0] / "checkpoints").exists()
    assert pretrain(data, out, GRID, steps=3) == 0
    assert trained[1:] == list(RATES)
    content = read(out)
    losses = [lines(out / rate)[-1]["eval_mlm_loss"] for rate in RATES]
    assert [row["score"] for row in content["trials"]] == losses and losses[1] < losses[0]
    assert content["best"] == content["trials"][1]
    check_kept(out, RATES[1], RATES[:1])
    assert "| best" in (out / "scores.md").read_text()

    # the third time nothing is trained, and the scores are the same
    files = {name: (out / name).read_bytes() for name in ("scores.json", "scores.md")}
    moments = {rate: os.path.getmtime(out / rate / "metrics.jsonl") for rate in RATES}
    assert pretrain(data, out, GRID, steps=3) == 0
    assert files == {name: (out / name).read_bytes() for name in files}
    assert moments == {rate: os.path.getmtime(out / rate / "metrics.jsonl") for rate in RATES}

    # a trial without checkpoints cannot be extended
    capfd.readouterr()
    assert pretrain(data, out, GRID, steps=4) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "cannot be extended: it was not the best trial" in err


@pytest.mark.long
def test_a_killed_grid_ends_as_one_that_was_not(data, tmp_path, capfd):
    """Killed inside the second trial, after one that diverged: the same results."""
    flags = ["--grid=learning_rate=1e3,1e-2", "--max_bad_steps=3", "--save_checkpoints_steps=4"]
    diverged, best = "learning_rate=1e3", RATES[1]
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    assert pretrain(data, whole, *flags) == 0
    with start_and_hold(data, out, *flags, before_step=9) as process:
        wait_until(process, (out / best / "checkpoints" / "step-00000008").exists)
        process.kill()
    capfd.readouterr()
    assert pretrain(data, out, *flags) == 0
    assert "diverged: the last 3 steps" in capfd.readouterr().err
    assert without_seconds(read(out)) == without_seconds(read(whole))
    assert [row["score"] is None for row in read(out)["trials"]] == [True, False]
    check_kept(out, best, [diverged])
    assert same(weights(out / best), weights(whole / best))
    stored = json.loads((out / diverged / "run.json").read_text())
    assert stored["ended"] == "diverged" and stored["lost"] == read(out)["trials"][0]["error"]
    assert lines(out / diverged) == lines(whole / diverged)


@pytest.mark.long
def test_a_signal_inside_a_trial_stops_the_grid(data, tmp_path, monkeypatch):
    real = TrainStep.__call__

    def interrupted(self, batches, learning_rates, step, *rest):
        if step == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self, batches, learning_rates, step, *rest)

    monkeypatch.setattr(TrainStep, "__call__", interrupted)
    out = tmp_path / "out"
    assert pretrain(data, out, GRID) == 128 + signal.SIGINT
    assert lines(out / RATES[0])[-1]["step"] == 3
    assert read(out)["trials"] == [] and not (out / RATES[1]).exists()


def test_a_grid_needs_validation_records(data, tmp_path, capsys):
    for path in data.glob("x-0*.tfrecord"):
        shutil.copy(path, tmp_path)
    assert pretrain(tmp_path, tmp_path / "out", GRID) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "the data has no validation records" in err
    assert not (tmp_path / "out").exists()
