"""The best trial is the one with the lowest loss or the highest metric, a best one at the edge of
the grid is warned of, and the picture shows what the table has.
"""

import json
import types

import pytest

from bert_gpu.base.console import Console
from bert_gpu.base.errors import TrainingStopped
from bert_gpu.cli import flags, pretrain
from bert_gpu.pretrain import sweep
from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings
from bert_gpu.runs.checkpoint_writer import SaveFailed
from bert_gpu.train.divergence import Diverged, Lost


def row(cell, score, metric="mlm_loss", **more):
    values = dict(cell=cell, seed=1, step=20, seconds=90.0, metrics={}, metric=metric, score=score)
    return values | more


LOST = row("learning_rate=1e-1 optimizer=adamw", None, error="diverged: " + "x" * 100)
ROWS = [
    row("learning_rate=1e-2 optimizer=adamw", 3.5),
    row("learning_rate=1e-3 optimizer=adamw", 3.0),
    row("learning_rate=1e-1 optimizer=muon", 3.0),
    row("learning_rate=1e-2 optimizer=muon", 2.0),
    row("learning_rate=1e-3 optimizer=muon", 2.5),
    LOST,
]


class Warnings(Console):
    """A console that keeps its warnings."""

    def __init__(self):
        super().__init__(True)
        self.texts = []

    def warn(self, text):
        self.texts.append(str(text))


def test_the_best_is_the_lowest_loss_or_the_highest_metric():
    assert sweep.best_of(ROWS) is ROWS[3] and sweep.best_of([LOST]) is None
    assert sweep.best_of([LOST, ROWS[1], ROWS[2]]) is ROWS[1]  # of equal ones the first
    shares = [row("seed=1", 0.3, "mlm_accuracy"), row("seed=2", 0.4, "mlm_accuracy")]
    assert sweep.best_of(shares) is shares[1]


def test_the_table_has_every_trial():
    heading, _, *lines = sweep.describe(ROWS).splitlines()
    assert heading.split("|")[1:5] == [
        " settings                            ",
        " steps ",
        " minutes ",
        " mlm_loss ",
    ]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert cells[3] == ["learning_rate=1e-2, optimizer=muon", "20", "1.5", "2.0000", "best"]
    assert cells[5][3] == "-" and cells[5][4].startswith("diverged: xx")
    assert [cell[4] for cell in cells[:3]] == [""] * 3


@pytest.mark.parametrize(
    "grid, part",
    [
        ("learning_rate=1e-3 optimiser=muon", "--optimiser=muon: no such flag"),
        ("output_dir=a,b", "--grid cannot vary output_dir; each trial has a folder of its own"),
        ("best_metric=loss,mlm_loss", "--grid cannot vary best_metric; all trials are compared"),
        ("do_eval=true,false", "--grid cannot vary do_eval"),
        ("learning_rate=1,x", "--learning_rate=x"),
        ("model=tiny hidden_size=64,63", "--hidden_size=63: must be a multiple of"),
        ("recipe=bert,nonsense", "--recipe=nonsense"),
        ("", "is empty"),
    ],
)
def test_bad_grids_are_refused(tmp_path, capsys, grid, part):
    asked = ["pretrain", f"--grid={grid}", f"--output_dir={tmp_path / 'out'}"]
    assert flags.exit_code(pretrain.main, asked) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_grid_trains(tmp_path, capsys):
    asked = ["pretrain", "--grid=seed=1,2", f"--output_dir={tmp_path / 'out'}", "--do_eval"]
    assert flags.exit_code(pretrain.main, asked) == 2
    assert capsys.readouterr().err == "--grid: compares trainings; drop --do_eval\n"


@pytest.fixture
def two_trials(tmp_path, monkeypatch):
    """((Common settings, the cells of a grid), errors by which their trials end)."""
    errors = []

    def pretrain(settings, console):
        raise errors.pop(0)

    dataset = types.SimpleNamespace(validation=["records"])
    monkeypatch.setattr(sweep, "Dataset", lambda inputs: dataset)
    monkeypatch.setattr(sweep, "pretrain", pretrain)
    common, *cells = (
        PretrainSettings(run=PretrainConfig(output_dir=str(tmp_path / name)))
        for name in ("out", "out/a=1", "out/a=2")
    )
    return (common, dict(zip(("a=1", "a=2"), cells, strict=True))), errors


def test_where_every_trial_is_lost_there_is_no_best(tmp_path, two_trials):
    cells, errors = two_trials
    errors[:] = [Diverged("diverged: 1"), Lost("early stop")]
    with pytest.raises(TrainingStopped, match="no trial of --grid has a result"):
        sweep.run_sweep(*cells)
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [row["error"] for row in content["trials"]] == ["diverged: 1", "early stop"]
    assert content["best"] is None
    stored = json.loads((tmp_path / "out" / "a=2" / "run.json").read_text())
    assert stored["lost"] == "early stop" and stored["dropped"]["step"] == 0


def test_a_full_disk_ends_the_sweep(tmp_path, two_trials):
    """No trial is lost by it: the same command resumes."""
    cells, errors = two_trials
    errors[:] = [SaveFailed("no space left"), Diverged("never raised")]
    with pytest.raises(SaveFailed):
        sweep.run_sweep(*cells)
    assert len(errors) == 1 and not (tmp_path / "out" / "a=1").exists()
