"""What trials come to equals values worked out by hand; the trials of a sweep are those that were
asked for, and one that fails does not stop the others.
"""

import json
import os
import types

import pytest

from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.cli import classify, flags
from bert_gpu.finetune import sweep
from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig, SweepConfig
from bert_gpu.finetune.run import Result
from bert_gpu.runs import marks
from bert_gpu.watch.run_data import find_runs


def row(task, value, cell="", trial=1, **more):
    return dict(task=task, cell=cell, trial=trial, seed=trial, score=value, metrics={}) | more


ROWS = [
    row("rte", 0.5, "a=1"),
    row("rte", 0.9, "a=1", 2),
    row("rte", 0.7, "a=1", 3),
    row("rte", 0.8, "a=2"),
    row("rte", 0.6, "a=2", 2),
    dict(task="rte", cell="a=2", trial=3, seed=3, error="diverged"),
    row("cola", 0.3, "a=1"),
    row("cola", 0.4, "a=2"),
]


def test_scores_are_what_glue_counts():
    def score(task, **dev):
        return sweep.score(task, dict(dev=dev, test=dict(accuracy=0.0)))

    assert score("mrpc", f1=0.8, accuracy=0.6, loss=3.0) == pytest.approx(0.7)
    assert score("cola", matthews=0.2, accuracy=0.9) == 0.2
    assert score("sts-b", pearson=0.5, spearman=0.7, loss=1.0) == pytest.approx(0.6)
    assert score("qqp", f1=0.5, accuracy=0.7, auc=0.99) == pytest.approx(0.6)
    assert score("sts-b", pearson=None, spearman=None) is None
    assert score("pairs", pearson=0.4, loss=2.0) == 0.4  # of another kind: its first metric
    two = dict(dev_matched=dict(accuracy=0.8), dev_mismatched=dict(accuracy=0.6))
    assert sweep.score("mnli", two) == pytest.approx(0.7)


def test_cells_and_the_best_of_each_task():
    found = sweep.content(ROWS)
    first, second, *_ = found["cells"]
    assert first["median"] == 0.7 and first["mean"] == pytest.approx(0.7)
    assert first["deviation"] == pytest.approx(0.2) and (first["lowest"], first["highest"]) == (
        0.5,
        0.9,
    )
    assert (second["trials"], second["diverged"]) == (3, 1) and second["median"] == 0.7
    best = {one["task"]: (one["cell"], one["median"]) for one in found["best"]}
    assert best == dict(rte=("a=1", 0.7), cola=("a=2", 0.4))
    assert found["glue"] == dict(RTE=0.7, CoLA=0.4, mean=pytest.approx(0.55))
    text = sweep.describe(ROWS)
    assert "| rte  | a=2      | 3      | 70.00  | 70.00 | 14.14     | 80.00 60.00 -     |" in text
    assert "mean of 2 of 9 tasks" in text and "55.00" in text


def test_a_curve_over_marks():
    rows = [
        row("pairs", value, mark=mark, hours=hours)
        for mark, hours, value in ((0.1, 0.5, 0.6), (0.5, None, 0.7))
    ]
    lines = sweep.describe(rows).splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["|", "0.1", "|", "0.5", "|", "60.00", "|"],
        ["|", "0.5", "|", "-", "|", "70.00", "|"],
    ]


@pytest.fixture
def glue(tmp_path):
    """A folder with three tasks of GLUE."""
    for name in ("RTE", "CoLA", "MNLI"):
        (tmp_path / "glue" / name).mkdir(parents=True)
        stem = "dev_matched" if name == "MNLI" else "dev"
        (tmp_path / "glue" / name / f"{stem}.tsv").write_text("")
    return tmp_path / "glue"


def settings_for(folder, **run):
    return FinetuneSettings(run=FinetuneConfig(output_dir=str(folder), **run))


def test_the_order_of_all_tasks(glue, tmp_path):
    settings = settings_for(tmp_path / "out", task_name="all", data_dir=str(glue), seed=7)
    variants = {"learning_rate=1": settings, "learning_rate=2 a=3": settings}
    trials = sweep.plan_trials(variants, SweepConfig(num_trials=2))
    names = list(trials)
    assert names[:4] == [
        "cola/learning_rate=1/trial-1",
        "cola/learning_rate=1/trial-2",
        "cola/learning_rate=2,a=3/trial-1",
        "cola/learning_rate=2,a=3/trial-2",
    ]
    assert [name.split("/")[0] for name in names[4:]] == ["mnli"] * 4 + ["rte"] * 4
    assert [trial.settings.run.output_dir for trial in trials.values()] == [
        str(tmp_path / "out" / name) for name in names
    ]
    rte = trials["rte/learning_rate=2,a=3/trial-2"]
    assert rte.settings.run.seed == 8 and rte.settings.run.task_name == "rte"
    assert rte.row == dict(task="rte", cell="learning_rate=2 a=3", trial=2, seed=8)


def test_each_cell_has_a_folder_that_report_finds(tmp_path):
    long = "x" * 300
    cells = ["a=1", "vocab_file=/v/1", "vocab_file=/v-1", f"a=/{long}1", f"a=/{long}2", f"b={long}"]
    settings = settings_for(tmp_path / "out")
    trials = sweep.plan_trials(dict.fromkeys(cells, settings), SweepConfig())
    folders = [trial.settings.run.output_dir for trial in trials.values()]
    assert [trial.row["cell"] for trial in trials.values()] == cells
    assert all(folder.count("/") == folders[0].count("/") for folder in folders)
    assert folders[0] == str(tmp_path / "out" / "a=1" / "trial-1")
    for folder in folders:
        os.makedirs(folder)
        open(os.path.join(folder, "run.json"), "w").close()
    assert sorted(find_runs([str(tmp_path / "out")])) == sorted(folders)


def test_marks_of_a_pretraining(tmp_path):
    for share in ("0.1", "1", "0.05"):
        (tmp_path / "marks" / share).mkdir(parents=True)
    lines = [dict(step=step, progress=step / 100, seconds=36.0 * step) for step in (5, 50, 100)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    path = str(tmp_path / "marks")
    assert list(marks.find_marks(path)) == [0.05, 0.1, 1.0]
    assert marks.hours_at(path) == {0.05: 0.05, 0.1: 0.5, 1.0: 1.0}
    settings = settings_for(tmp_path / "out")
    assert not sweep.is_sweep(settings, SweepConfig())
    start = StartConfig(init_checkpoint=path)
    trials = sweep.plan_trials({"": FinetuneSettings(start=start)}, SweepConfig())
    assert sweep.is_sweep(FinetuneSettings(start=start), SweepConfig())
    assert list(trials) == ["mark-0.05/trial-1", "mark-0.1/trial-1", "mark-1/trial-1"]
    assert [(trial.row["mark"], trial.row["hours"]) for trial in trials.values()] == [
        (0.05, 0.05),
        (0.1, 0.5),
        (1.0, 1.0),
    ]
    first = trials["mark-0.05/trial-1"]
    assert first.settings.start.init_checkpoint == os.path.join(path, "0.05")


def test_no_task_of_glue(tmp_path):
    with pytest.raises(UserError, match="has no folder of a task of GLUE"):
        sweep.find_tasks(FinetuneConfig(data_dir=str(tmp_path)))


def result_of(signal=None, metrics=types.MappingProxyType(dict(dev=dict(accuracy=0.5)))):
    """Return the Result of a fine-tuning that a signal stopped, or none."""
    outcome = types.SimpleNamespace(signal=signal, late_signal=None)
    return Result("model", dict(metrics), outcome)


def test_a_sweep_stops_with_its_trial_and_a_trial_that_diverges_does_not_stop_it(
    tmp_path, monkeypatch
):
    called = []

    def finetune(settings, console, reuses_results):
        called.append(settings.run.seed)
        if settings.run.seed == 12:
            raise TrainingStopped("diverged at step 3")
        return result_of(15 if settings.run.seed == 14 else None)

    monkeypatch.setattr(sweep, "finetune", finetune)
    settings = settings_for(tmp_path / "out", seed=11)
    outcome = sweep.run_sweep({"": settings}, SweepConfig(num_trials=5))
    assert called == [11, 12, 13, 14] and outcome.signal == 15
    content = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert [trial.get("error") for trial in content["trials"]] == [None, "diverged at step 3", None]
    assert (tmp_path / "out" / "scores.md").read_text().startswith("| task ")


def test_a_trial_that_is_refused_leaves_the_scores_of_those_before_it(tmp_path, monkeypatch):
    refused = []

    def finetune(settings, console, reuses_results):
        if settings.run.seed in refused:
            raise UserError("--max_seq_length=4: too short")
        return result_of()

    monkeypatch.setattr(sweep, "finetune", finetune)
    settings, path = settings_for(tmp_path / "out", seed=11), tmp_path / "out" / "scores.json"
    for seed in (13, 11):  # where the first one is refused, earlier scores stay
        refused.append(seed)
        with pytest.raises(UserError, match="--max_seq_length=4"):
            sweep.run_sweep({"": settings}, SweepConfig(num_trials=3))
        assert [one["seed"] for one in json.loads(path.read_text())["trials"]] == [11, 12]
    refused[:] = [12]
    with pytest.raises(UserError, match="--max_seq_length=4"):
        sweep.run_sweep({"": settings}, SweepConfig(num_trials=3))
    assert [one["seed"] for one in json.loads(path.read_text())["trials"]] == [11, 12]


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no trials, but notes.txt"):
        sweep.run_sweep({"": settings_for(tmp_path)}, SweepConfig(num_trials=2))


@pytest.mark.parametrize(
    "grid, part",
    [
        ("learning_rate", "learning_rate is not of the form name=value,value; write"),
        ("=1,2", "=1,2 is not of the form name=value,value; write"),
        ("learning_rate=", "learning_rate= has an empty value; write"),
        ("learning_rate=1e-3,, 2e-3", "learning_rate=1e-3,, has an empty value; write"),
        ("seed=1,2", "--grid cannot vary seed; use --num_trials for several seeds\n"),
        ("--output_dir=a,b", "--grid cannot vary output_dir; each trial has a folder of its own"),
        ("task_name=cola,rte", "--grid cannot vary task_name; use --task_name=all for all"),
        ("", "is empty"),
        ("nonsense=1", "--nonsense"),
        ("learning_rate=1 --learning_rate=2", "has learning_rate more than once"),
        ("learning_rate=1,x", "--learning_rate=x"),
    ],
)
def test_bad_grids_are_refused(tmp_path, capsys, grid, part):
    asked = ["classify", f"--grid={grid}", f"--output_dir={tmp_path / 'out'}"]
    assert flags.exit_code(classify.main, asked) == 2
    err = capsys.readouterr().err
    assert part in err and err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_sweep_that_only_predicts_leaves_the_scores_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "finetune", lambda *_, **__: result_of())
    settings, two = settings_for(tmp_path / "out"), SweepConfig(num_trials=2)
    sweep.run_sweep({"": settings}, two)
    names = ("scores.json", "scores.md")
    before = [(tmp_path / "out" / name).read_bytes() for name in names]
    monkeypatch.setattr(sweep, "finetune", lambda *_, **__: result_of(metrics=dict(test={})))
    settings = settings_for(tmp_path / "out", do_predict=True)
    sweep.run_sweep({"": settings}, two)
    assert [(tmp_path / "out" / name).read_bytes() for name in names] == before
