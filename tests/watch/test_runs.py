"""The table of runs: what each state is read from, that long runs answer from their end, and that a
damaged run is a row that says so.
"""

import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_gpu.__main__ import main
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import only_writer
from bert_gpu.watch import run_data, runs
from tests.watch.runs import line, make_run, validation

FIRST = dict(step=0, eval_loss=9.0, seconds=0.5)


def look(path, **more):
    found = runs.run_status(str(path), **more)
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
    with only_writer(str(tmp_path / "held"), "run", "output_dir"):
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
    read, parsed = [], []
    tail, parse_line = runs.tail, runs.parse_line
    monkeypatch.setattr(runs, "tail", lambda path, size: read.append(size) or tail(path, size))
    monkeypatch.setattr(
        runs, "parse_line", lambda *args: parsed.append(len(args[0])) or parse_line(*args)
    )
    assert look(run)["step"] == 2999 and look(run)["eval_step"] == 0
    assert read[:2] == [runs.TAIL_BYTES, runs.MAX_BYTES], "and more only for the validation"
    assert sum(parsed) <= 2 * runs.TAIL_BYTES, "of which only its line is parsed"
    monkeypatch.setattr(runs, "MAX_BYTES", 2 * runs.TAIL_BYTES)
    assert look(run)["step"] == 2999 and look(run)["eval_step"] is None
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
        (lambda run: (run / "metrics.jsonl").write_text("x\n{}\n"), "line 'x': not valid JSON"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line '{}': has no 'step'"),
        (
            lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe\n"),
            "\ufffd': not valid",
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


def test_a_finished_run_has_a_whole_log(tmp_path):
    """A log that is missing, cut anywhere or has other bytes is no log of a finished run; of a
    stopped one its end may be missing.
    """
    lines = [FIRST, line(10), validation(10), line(20)]
    content = "".join(json.dumps(values) + "\n" for values in lines).encode()
    make_run(tmp_path / "finished", [], exported_step=20)
    make_run(tmp_path / "stopped", [])

    def are_lines(texts):
        try:
            return all("step" in json.loads(text) for text in texts)
        except ValueError:
            return False

    @settings(max_examples=80)
    @given(st.integers(0, len(content)), st.sampled_from([b"", b"\0" * 50, b"\n", b"\xff\n", b"{"]))
    @example(len(content), b"")
    def check(size, end):
        log = content[:size] + end
        for name in ("finished", "stopped"):
            (tmp_path / name / "metrics.jsonl").write_bytes(log)
        finished, stopped = (look(tmp_path / name) for name in ("finished", "stopped"))
        *whole, rest = log.split(b"\n")
        is_whole = whole and not rest and are_lines(whole)
        assert finished["state"] == ("finished" if is_whole else "damaged")
        assert stopped["state"] == ("stopped" if are_lines(whole) else "damaged")
        assert finished["state"] == "finished" or "metrics.jsonl" in finished["problem"]

    check()
    (tmp_path / "finished" / "metrics.jsonl").unlink()
    problem = look(tmp_path / "finished")["problem"]
    assert "metrics.jsonl: is missing or does not end with a whole line" in problem
    with pytest.raises(UserError, match="is missing or does not end with a whole line"):
        run_data.read_run(str(tmp_path / "finished"), "finished")


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
    with pytest.raises(UserError, match="the folder's name is empty"):
        runs.find("")


def test_a_link_to_a_run_is_no_second_run(tmp_path):
    make_run(tmp_path / "run-3", [])
    (tmp_path / "latest").symlink_to("run-3")
    assert runs.find(str(tmp_path)) == [str(tmp_path / "run-3")]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "run-3")
    assert runs.find(str(tmp_path / "other")) == [str(tmp_path / "other" / "link")]


def test_a_line_without_an_end_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "MAX_BYTES", 1 << 20)
    run = make_run(tmp_path / "run", ["x" * (1 << 21)])
    assert "no whole line in its last 1 MiB" in look(run)["problem"]


def test_any_name_of_a_folder_is_one_line_of_the_table(tmp_path, capsys):
    for name in (b"two\nlines", b"not-utf-8-\xff"):
        folder = tmp_path / os.fsdecode(name)
        make_run(folder, ["damage\n"])
    assert main(["bert-gpu", "runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 + 1 + 2
    assert "two\\nlines" in shown[2] and "not-utf-8-\\udcff" in shown[1]
    assert main(["bert-gpu", "runs", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_the_table_and_its_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "first", [line(20), validation(20)], exported_step=20)
    make_run(tmp_path / "runs" / "second-with-a-long-name", [], num_steps=None)
    assert main(["bert-gpu", "runs"]) == 0
    first, *rows = capsys.readouterr().out.splitlines()
    assert first.split() == [*runs.HEADINGS[:-1], "last", "write"]
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


def test_ages_in_words():
    seconds = (0, 59, 60, 3599, 3600, 47 * 3600, 49 * 3600, 4 * 86400)
    assert [runs.format_age(one) for one in seconds] == [
        *("0 s", "59 s", "1 min", "60 min", "1:00 h", "47:00 h", "2 days", "4 days")
    ]
