"""What a run's folder says is read once, also of runs that were killed, and never changed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import only_writer
from bert_gpu.base.locks import read_holder, this_process, write_holder
from bert_gpu.watch import run_data
from bert_gpu.watch.curves import smoothed, thinned
from tests.watch.runs import line, make_run, read_runs, validation


def read(folder):
    (run,) = read_runs([str(folder)])
    return run


def test_a_run_that_was_resumed_has_no_step_twice(tmp_path):
    """It wrote until step 5, was killed, and went on from a checkpoint of step 3."""
    first = [line(1), line(2), line(3), validation(3), line(4), line(5), validation(5)]
    again = [line(4, loss=0.4), line(5, loss=0.5), validation(5, eval_loss=0.25), line(6)]
    run = read(make_run(tmp_path / "run", [*first, *again]))
    assert run.train["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.train["loss"].tolist() == [8, 4, 8 / 3, 0.4, 0.5, 8 / 6]
    assert run.valid["step"].tolist() == [3, 5] and run.valid["loss"].tolist() == [3, 0.25]


def test_a_rollback_drops_what_came_after(tmp_path):
    lines = [line(10), line(20), validation(20), line(30), validation(30), line(15), line(25)]
    run = read(make_run(tmp_path / "run", lines))
    assert run.train["step"].tolist() == [10, 15, 25] and run.valid["step"].tolist() == []


def test_a_validation_that_is_repeated_keeps_the_line_of_its_step(tmp_path):
    run = read(make_run(tmp_path / "run", [line(10), validation(10), validation(10), line(20)]))
    assert run.train["step"].tolist() == [10, 20] and run.valid["step"].tolist() == [10]


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    run = read(make_run(tmp_path / "run", [line(1), line(2), '{"step": 3, "lo']))
    assert run.train["step"].tolist() == [1, 2]
    folder = make_run(tmp_path / "empty", [])
    (folder / "metrics.jsonl").unlink()
    assert len(read(folder).train["step"]) == 0 and read(folder).last_step == 0


@pytest.mark.parametrize(
    "text, problem",
    [
        ('{"step": 2, "loss": \n', "line 2: not valid JSON"),
        ('{"loss": 1}\n', "line 2: has no 'step'"),
        ('{"step": 2, "loss": "low"}\n', "line 2: loss=low: must be a number or null"),
        ('{"step": -1}\n', "line 2: step=-1: must be at least 0"),
        ("[]\n", "line 2: not a JSON object"),
        ("\x00\x00\x00\n", "line 2: not valid JSON"),
        (f'{{"step": {10**200}}}\n', "line 2: step=1000"),
        (f'{{"step": 2, "loss": {"9" * 5000}}}\n', "line 2: not valid JSON (9999"),
        ('{"step": 2, "loss": -1e999}\n', "line 2: not valid JSON (-1e999"),
    ],
)
def test_a_damaged_line_is_named(tmp_path, text, problem):
    folder = make_run(tmp_path / "run", [line(1), text, line(3)])
    with pytest.raises(UserError) as error:
        read(folder)
    assert f"metrics.jsonl, {problem}" in str(error.value) and len(str(error.value)) <= 300


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json"])
def test_a_folder_in_the_place_of_a_file_is_named(tmp_path, name):
    folder = make_run(tmp_path / "run", [line(1)])
    (folder / name).unlink()
    (folder / name).mkdir()
    with pytest.raises(UserError, match=f"{name}: is a folder"):
        read(folder)


def test_validation_has_the_tokens_of_its_step(tmp_path):
    run = read(make_run(tmp_path / "run", [line(2), line(4), line(6, tokens=320), validation(5)]))
    assert run.train["tokens"].tolist() == [80, 160, 320]
    assert run.valid["tokens"].tolist() == [240]
    assert run.valid["hours"].tolist() == [5.5 / 3600]
    folder = make_run(tmp_path / "other", [dict(step=1, loss=1.0), dict(step=2, eval_loss=1.0)])
    assert np.isnan(read(folder).train["tokens"]).all()
    assert np.isnan(read(folder).valid["tokens"]).all()


def test_missing_values_are_not_numbers(tmp_path):
    run = read(make_run(tmp_path / "run", [line(1, loss=None), line(2), line(3, loss=None)]))
    assert np.isnan(run.train["loss"]).tolist() == [True, False, True]
    assert run.last("loss") == 4.0 and run.last("nothing") is None


def test_the_state_of_a_run(tmp_path):
    stopped = make_run(tmp_path / "stopped", [line(1)])
    (stopped / ".run.lock").write_text("1234567890\n")
    assert read(stopped).state == "stopped"
    assert read(make_run(tmp_path / "done", [line(1)], exported_step=1)).state == "finished"
    running = make_run(tmp_path / "running", [line(1)])
    write_holder(running / ".run.lock", this_process())
    assert read(running).state == "running"


def test_a_lock_names_one_process(tmp_path):
    folder = make_run(tmp_path / "run", [line(1)])
    lock = folder / ".run.lock"
    with only_writer(str(folder), "run", "output_dir"):
        assert read(folder).state == "running"
    os.utime(lock, (1e9, 1e9))
    assert read(folder).state == "running", "its clock was wrong"
    own = this_process()
    assert read_holder(lock) == own
    for changed, state in (
        (dict(started=own.started + 60), "stopped"),
        (dict(started=None), "stopped"),
        (dict(process_id=1234567890), "stopped"),
        (dict(host="elsewhere"), "on elsewhere"),
    ):
        write_holder(lock, own._replace(**changed))
        assert read(folder).state == state
    record = make_run(tmp_path / "lost", [line(1)], ended="diverged")
    write_holder(record / ".run.lock", own._replace(host="elsewhere"))
    assert read(record).state == "diverged"
    for text in ("", "x\n", "- - -\n", "1 x y\n", "1 2 3 4\n", "9" * 400):
        lock.write_text(text)
        assert read(folder).state == "stopped"


def test_parameters_are_those_of_the_newest_checkpoint(tmp_path):
    folder = make_run(tmp_path / "run", [line(1)])
    assert read(folder).num_parameters is None
    (folder / "model").mkdir()
    save_file({"a": np.zeros((2, 3), np.float32)}, folder / "model" / "model.safetensors")
    assert read(folder).num_parameters == 6
    newest = folder / "checkpoints" / "step-00000005"
    newest.mkdir(parents=True)
    values = {"weights/a": np.zeros((4, 5)), "slots/mean/a": np.zeros((4, 5))}
    save_file(values, newest / "variables.safetensors")
    assert read(folder).num_parameters == 20
    (newest / "variables.safetensors").write_bytes(b"\xff" * 20)
    assert read(folder).num_parameters == 6


def test_runs_are_found_and_named(tmp_path):
    for name in ("a/run", "b/run", "b/other"):
        make_run(tmp_path / name, [line(1)])
    found = run_data.find_runs([f"{tmp_path}/a/run", f"{tmp_path}/b", f"{tmp_path}/a/run/"])
    assert run_data.names_of(found) == ["a/run", "b/other", "b/run"]
    assert run_data.names_of([f"{tmp_path}/a/run"]) == ["run"]
    for name in ("sweep/mnli/rate=1/trial-1", "sweep/mnli/rate=1/trial-2", "sweep/rte/trial-1"):
        make_run(tmp_path / name, [line(1)])
    found = run_data.find_runs([f"{tmp_path}/sweep"])
    assert run_data.names_of(found) == ["rate=1/trial-1", "rate=1/trial-2", "rte/trial-1"]
    (tmp_path / "c" / "d").mkdir(parents=True)
    for path, problem in (("c", "holds no run"), ("d", "no such folder")):
        with pytest.raises(UserError, match=f"{path}: {problem}"):
            run_data.find_runs([f"{tmp_path}/{path}"])
    with pytest.raises(UserError, match="is not a folder; name the --output_dir"):
        run_data.find_runs([f"{tmp_path}/a/run/run.json"])


def test_garbage_is_refused_by_name(tmp_path):
    folder = make_run(tmp_path / "run", [line(1)], results=dict(accuracy=0.5))
    for name, content in (
        ("run.json", "{}"),
        ("run.json", "\x00"),
        ("run.json", json.dumps(dict(settings=[], global_batch_size=1, learning_rate=1))),
        ("eval_results.json", "[1]"),
        ("eval_results.json", f'{{"accuracy": {10**400}}}'),
    ):
        old = (folder / name).read_text()
        (folder / name).write_text(content)
        with pytest.raises(UserError, match=name):
            read(folder)
        (folder / name).write_text(old)
    assert read(folder).results == dict(accuracy=0.5)


def test_reading_needs_nothing_heavy():
    code = "import sys, bert_gpu.watch.run_data, bert_gpu.watch.sections; print('tensorflow' in "
    call = [sys.executable, "-c", f"{code} sys.modules, 'plotly' in sys.modules)"]
    assert subprocess.run(call, capture_output=True, text=True).stdout == "False False\n"


def test_thin_curves_keep_every_spike():
    x, y = np.arange(10000.0), np.zeros(10000)
    y[[1234, 8000]] = 5.0, -5.0
    thin_x, thin_y = thinned(x, y, 240)
    assert len(thin_x) <= 480 and (np.diff(thin_x) > 0).all()
    assert thin_y[thin_x == 1234] == 5 and thin_y[thin_x == 8000] == -5
    assert all(len(part) == 10 for part in thinned(x[:10], y[:10], 240))


def test_smoothing_neither_lags_nor_bends_a_line_and_takes_noise_away():
    x = np.linspace(0, 1, 5000)
    fit_x, fit_y = smoothed(x, 3 * x + 1, 240)
    assert len(fit_x) == 240
    np.testing.assert_allclose(fit_y, 3 * fit_x + 1, atol=1e-9)
    noise = np.random.default_rng(0).normal(size=200)
    assert smoothed(x[::25], noise, 240)[1].std() < 0.5 * noise.std()
    np.testing.assert_allclose(smoothed(x, np.exp(3 * x), 240, True)[1], np.exp(3 * fit_x))
