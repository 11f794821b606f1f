"""The table of runs: what each state is read from, that long runs answer from their end, and that a
damaged run is a row that says so.
"""

import json
import os

import pytest

from bert_gpu.__main__ import main
from bert_gpu.files import only_writer
from bert_gpu.settings import UserError
from bert_gpu.watch import runs
from tests.watch.runs import line, make_run, validation

FIRST = dict(step=0, eval_loss=9.0, seconds=0.5)


def look(path, **more):
    found = runs.look(str(path), **more)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_each_state(tmp_path):
    lines = [FIRST, line(10, remaining_seconds=90.0), validation(10), line(20)]
    fine = dict(task_name="pairs")
    make_run(tmp_path / "done", lines, exported_step=20)
    make_run(tmp_path / "held", lines[:2])
    make_run(tmp_path / "left", lines, settings=fine, num_steps=None)
    make_run(tmp_path / "lost", lines, ended="diverged")
    make_run(tmp_path / "new", [])
    with only_writer(str(tmp_path / "held"), "run", "--output_dir"):
        found = {name: look(tmp_path / name) for name in os.listdir(tmp_path)}
    assert {name: run["state"] for name, run in found.items()} == dict(
        done="finished", held="running", left="stopped", lost="diverged", new="stopped"
    )
    assert look(tmp_path / "held")["state"] == "running", "this process is still alive"
    assert found["left"]["kind"] == "finetune" and found["done"]["kind"] == "pretrain"
    assert found["held"]["step"] == 10 and found["held"]["remaining_seconds"] == 90.0
    assert found["held"]["loss"] == 0.8 and found["held"]["eval_step"] == 0
    done = found["done"]
    assert (done["step"], done["num_steps"], done["loss"]) == (20, 100, 0.4)
    assert (done["eval_loss"], done["eval_step"], done["tokens_per_second"]) == (0.9, 10, 40.0)
    assert done["hours"] == pytest.approx(20 / 3600) and done["remaining_seconds"] is None
    assert (found["new"]["step"], found["new"]["loss"], found["new"]["hours"]) == (0, None, None)


def test_a_long_run_is_read_from_its_end(tmp_path, monkeypatch):
    lines = [FIRST, *(line(step) for step in range(1, 3000))]
    run = make_run(tmp_path / "long", lines)
    read = []
    tail = runs.tail
    monkeypatch.setattr(runs, "tail", lambda path, size: read.append(size) or tail(path, size))
    assert look(run)["step"] == 2999 and look(run)["eval_step"] == 0
    assert read[0] == runs.TAIL_BYTES, "and more only for the validation"
    with open(run / "metrics.jsonl", "a") as file:
        file.write(json.dumps(validation(2999)) + '\n{"step": 3000, "lo')
    read.clear()
    assert look(run)["eval_step"] == 2999 and look(run)["step"] == 2999
    assert set(read) == {runs.TAIL_BYTES}


@pytest.mark.parametrize(
    "spoil, problem",
    [
        (lambda run: (run / "run.json").write_text("{"), "run.json: not valid JSON"),
        (lambda run: (run / "run.json").write_text("{}"), "has no 'settings'"),
        (lambda run: (run / "metrics.jsonl").write_text("x\n{}\n"), "1 lines before the last: not"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "the last line: has no 'step'"),
        (
            lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n"),
            "the last line: not valid",
        ),
        (
            lambda run: (run / "metrics.jsonl").write_text(f'{{"step": 1, "loss": {10**500}}}\n'),
            "is too large a number",
        ),
        (lambda run: os.mkfifo(run / "metrics.jsonl"), "is a pipe"),
        (lambda run: (run / "metrics.jsonl").mkdir(), "metrics.jsonl: is a folder, not a file"),
    ],
)
def test_a_damaged_run_is_a_row_that_says_so(tmp_path, capsys, spoil, problem):
    make_run(tmp_path / "a", [line(1)])
    run = make_run(tmp_path / "b", [line(1)])
    (run / "metrics.jsonl").unlink()
    spoil(run)
    assert main(["bert-gpu", "runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[1] == "stopped" and shown[2].split()[1] == "damaged"
    assert shown[4].startswith(str(run)) and problem in shown[4]


def test_huge_values_keep_the_table_narrow(tmp_path):
    huge = dict(loss=1e308, seconds=1e308, tokens_per_second=1e308)
    make_run(tmp_path / "run", [line(1, **huge), validation(1, eval_loss=1e308)])
    assert all(len(text) < 200 for text in runs.table([look(tmp_path / "run")]))


def test_runs_are_found_below_but_not_inside_runs(tmp_path):
    for name in ("x/two", "x/deep/three", "one"):
        make_run(tmp_path / name, [])
    make_run(tmp_path / "one" / "trial", [])
    make_run(tmp_path / ".hidden", [])
    (tmp_path / "file").write_text("")
    found = [os.path.relpath(path, tmp_path) for path in runs.find(str(tmp_path))]
    assert sorted(found) == ["one", "x/deep/three", "x/two"]
    assert runs.find(str(tmp_path / "one")) == [str(tmp_path / "one")]
    for path in ("file", "missing"):
        with pytest.raises(UserError, match=path):
            runs.find(str(tmp_path / path))


def test_the_table_and_its_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "first", [line(20), validation(20)], exported_step=20)
    make_run(tmp_path / "runs" / "second-with-a-long-name", [], num_steps=None)
    assert main(["bert-gpu", "runs"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == [*runs.HEADINGS[:-1], "last", "sign"]
    assert rows[0].split() == (
        ["runs/first", "finished", "20", "of", "100", "0.4000", "0.4500", "40", "0.0"]
        + rows[0].split()[-3:]
    )
    assert all(row.endswith(" s ago") for row in rows)
    assert len({len(row) for row in [first, *rows]}) == 1, "aligned to the right end"
    assert main(["bert-gpu", "runs", "--json"]) == 0
    states = [run["state"] for run in json.loads(capsys.readouterr().out)]
    assert states == ["finished", "stopped"]
    (tmp_path / "empty").mkdir()
    assert main(["bert-gpu", "runs", "empty"]) == 0
    assert capsys.readouterr().out == "empty: no runs in it\n"
    assert main(["bert-gpu", "runs", "nowhere"]) == 2
    assert main(["bert-gpu", "runs", "a", "b"]) == 2


def test_times_in_words():
    seconds = (0, 59, 60, 3599, 3600, 47 * 3600, 49 * 3600, 4 * 86400)
    assert [runs.in_words(one) for one in seconds] == [
        *("0 s", "59 s", "1 min", "60 min", "1:00 h", "47:00 h", "2 days", "4 days")
    ]
