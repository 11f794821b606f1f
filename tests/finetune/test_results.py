"""Of the files in a folder those are results that its eval_results.json lists; a run that starts
over removes them all, and nothing else. A kill at any moment changes neither.
"""

import builtins
import itertools
import json
import os
import types

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.runs.card_facts import evaluation_facts
from bert_gpu.runs.folder import RunFolder
from bert_gpu.watch import run_data
from tests.finetune.evaluations import evaluated, read, task_of

LABELS = ("B-X", "O")
FOREIGN = {
    "notes.txt": "mine",
    "submission/notes.txt": "mine",
    "submission/RTE.tsv": "id\tlabel\n",
    "pictures/holiday.jpg": "mine",
    "pictures/dev-roc.png": "mine",
    "predictions.conll": "a B-PER\n",
    "predictions.tsv": "id\tlabel\n",
    "test_results_mismatched.tsv": "id\tlabel\n",
}
# contents of eval_results.json that list nothing
NO_LISTS = [
    "",
    "{",
    "null",
    "[]",
    '["predictions.tsv"]',
    '{"eval_loss": 1}',
    '{"files": null}',
    '{"files": "predictions.tsv"}',
    '{"files": {"predictions.tsv": 1}}',
    '{"files": ["predictions.tsv", 1]}',
    '{"files": [["predictions.tsv"]]}',
    '{"files": ["predictions.tsv"]',
    "[" * 100_000,
]


@pytest.fixture(scope="module")
def part(tmp_path_factory):
    """A file of tagged words; a sentence stands behind a document's line."""
    data = tmp_path_factory.mktemp("data")
    (data / "test.txt").write_text("-DOCSTART- -X-\n\n10\u00a0000 X\nb X\n")
    config = FinetuneConfig(data_dir=str(data), task_name="ner", columns=("words", "pos"))
    [part] = read(config, "predict", LABELS)
    return part


def write_ner(folder, part):
    """Leaves what a prediction and an evaluation of ner leave in a folder."""
    task = task_of(FinetuneConfig(task_name="ner"), LABELS)
    task.write(str(folder), evaluated(examples=part, outputs=np.eye(2)))
    metrics = {"test": dict(f1=0.5)}
    results.write_results(str(folder), metrics, {"eval": [part]}, "model", 1)


def write_old(folder, name):
    """Leaves a result in a subfolder, as earlier revisions did."""
    os.makedirs(folder / "submission", exist_ok=True)
    results.write(str(folder), f"submission/{name}", ["index\tprediction\n"])


def write_others(folder):
    """Leaves files of other tasks, and one that earlier revisions wrote."""
    write_old(folder, "MNLI-mm.tsv")
    results.write_table(str(folder), "predictions_mismatched.tsv", ["id", "prediction"], [])
    for name in ("predictions_dev.json", "nbest_predictions.json", "null_odds.json"):
        results.write(str(folder), name, ['{\n "a": 1\n}\n'])


def write_foreign(folder, names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FOREIGN[name])


def files_in(folder):
    return {
        os.path.relpath(os.path.join(path, name), folder)
        for path, _, names in os.walk(folder)
        for name in names
    }


def is_accepted(folder):
    try:
        return results.open_results(RunFolder(str(folder)), {}) is None
    except UserError:
        return False


def start_over(folder):
    """Removes what --overwrite removes of a run."""
    RunFolder(str(folder)).clear(results.find_results)


def test_what_is_written_is_a_result(tmp_path, part):
    folder = tmp_path / "out"
    write_ner(folder, part)
    write_others(folder)
    for name in (".predictions.conll", "submission/.MNLI-mm.tsv", ".eval_results.json"):
        path, name = os.path.split(name)
        (folder / path / f"{name}.7.partial").write_text("")
    assert is_accepted(folder)
    assert set(results.find_results(str(folder))) == {
        str(folder / name) for name in files_in(folder) | {"submission"}
    }


@pytest.mark.parametrize("has_results", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_results_do_not_go_beside_foreign_files(tmp_path, part, name, has_results):
    """Nor beside earlier results among which a file is that they do not list."""
    folder = tmp_path / "out"
    if has_results:
        results.write_results(str(folder), {"test": dict(f1=0.5)}, {"eval": [part]}, "model", 1)
    write_foreign(folder, [name])
    with pytest.raises(UserError, match=f"holds no run, but {name.partition('/')[0]}"):
        results.open_results(RunFolder(str(folder)), {})


def test_a_folder_of_links_to_files_elsewhere_is_foreign(tmp_path, part):
    write_ner(tmp_path / "out", part)
    write_foreign(tmp_path / "mine", ["predictions.tsv"])
    os.symlink(tmp_path / "mine", tmp_path / "out" / "submission")
    results.write(str(tmp_path / "out"), "submission/RTE.tsv", [])
    assert not is_accepted(tmp_path / "out")
    start_over(tmp_path / "out")
    assert files_in(tmp_path / "mine") == {"predictions.tsv", "RTE.tsv"}


@pytest.mark.parametrize("text", NO_LISTS)
def test_what_is_no_list_lists_nothing(tmp_path, text):
    """In a run's folder eval_results.json is the run's own, whatever it holds."""
    (tmp_path / "eval_results.json").write_text(text)
    with pytest.raises(UserError, match=r"holds no run, but eval_results\.json"):
        results.open_results(RunFolder(str(tmp_path)), {})
    write_foreign(tmp_path, FOREIGN)
    (tmp_path / "run.json").write_text("{}")
    start_over(tmp_path)
    assert files_in(tmp_path) == set(FOREIGN)


def test_a_list_removes_nothing_outside_of_its_folder(tmp_path):
    names = ["mine/x", "mine/empty/x", "x"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "mine" / "empty" / "x").unlink()
    out = tmp_path / "out"
    out.mkdir()
    os.symlink(tmp_path / "mine", out / "link")
    absolute = [str(tmp_path / name) for name in (*names, "mine", "mine/empty")]
    relative = [f"../{name}" for name in names] + ["../mine/empty/x", "link/x", "link/empty/x"]
    odd = ["", ".", "..", "/", "a\0b", "\ud800", "x/../../x", ".run.lock", "none.tsv", "link/"]
    for files in (absolute, relative, odd, [*absolute, *relative, *odd]):
        for name in (".run.lock", "own.tsv", "run.json", "notes.txt"):
            (out / name).write_text("")
        content = dict(files=[*files, "own.tsv"], f1=0.5)
        (out / "eval_results.json").write_text(json.dumps(content))
        start_over(out)
        assert files_in(out) == {".run.lock", "notes.txt"} and (out / "link" / "x").exists()
        assert files_in(tmp_path / "mine") == {"x"} and (tmp_path / "mine" / "empty").is_dir()
        assert (tmp_path / "x").exists()


def test_a_run_that_starts_over_removes_the_results_of_any_task_and_nothing_else(tmp_path, part):
    folder = tmp_path / "run"
    write_ner(folder, part)
    write_others(folder)
    foreign = set(FOREIGN) - {"predictions.conll"}
    write_foreign(folder, foreign)
    (folder / "run.json").write_text("{}")
    start_over(folder)
    assert files_in(folder) == foreign


def test_a_run_that_starts_over_leaves_no_empty_folder_of_results(tmp_path):
    write_others(tmp_path)
    (tmp_path / "submission" / "MNLI-mm.tsv").unlink()
    start_over(tmp_path)
    assert os.listdir(tmp_path) == []


def test_names_decide_where_an_earlier_revision_wrote_no_list(tmp_path, part):
    folder = tmp_path / "out"
    write_ner(folder, part)
    write_others(folder)
    path = folder / "eval_results.json"
    content = json.loads(path.read_text())
    files = content.pop("files")
    path.write_text(json.dumps(content))
    (folder / ".predictions.tsv.7.partial").write_text("")
    assert is_accepted(folder)
    results.write(str(folder), "predictions_extra.tsv", [])  # adds the list
    listed = set(json.loads(path.read_text())["files"])
    assert listed == {*files, "predictions.tsv", "predictions_extra.tsv"} and is_accepted(folder)
    write_foreign(folder, ["notes.txt"])
    assert not is_accepted(folder)
    start_over(folder)
    assert files_in(folder) == {"notes.txt"}


def test_predictions_leave_the_metrics_and_their_time(tmp_path, part):
    path = tmp_path / "eval_results.json"
    results.write_results(str(tmp_path), {"test": dict(f1=0.5)}, {"eval": [part]}, "model", 1)
    before = json.loads(path.read_text())
    os.utime(path, (1e9, 1e9))
    for _ in range(2):
        results.write(str(tmp_path), "predictions.tsv", [])
        files = dict(files=["eval_results.txt", "predictions.tsv"])
        assert json.loads(path.read_text()) == before | files and os.path.getmtime(path) == 1e9
    found = results.read_results(str(tmp_path), {"eval": [part]}, "model", 1)
    assert found == {"test": dict(f1=0.5)}


def test_predictions_alone_are_no_evaluation(tmp_path, part):
    """For all that read eval_results.json."""
    results.write(str(tmp_path), "predictions.tsv", [])
    (tmp_path / "config.json").write_text("{}")
    assert results.read_results(str(tmp_path), {"eval": [part]}, "model", None) is None
    assert run_data.read_results(str(tmp_path / "eval_results.json")) == {}
    assert evaluation_facts(str(tmp_path), 1, str(tmp_path)) == {}


class Named:
    """A file with one example."""

    def __init__(self, stem):
        self.source = types.SimpleNamespace(stem=stem)

    def __len__(self):
        return 1

    def describe(self):
        return "one row"


@pytest.mark.parametrize("stem", ["files", "data", "step", "checkpoint"])
def test_a_file_that_is_named_as_an_entry_is_evaluated_again(tmp_path, part, stem):
    """Its metrics could not be told from the entry."""
    named = Named(stem)
    examples = {"eval": [part], "predict": [named]}
    metrics = {"test": dict(f1=0.5), stem: dict(f1=0.25)}
    results.write_results(str(tmp_path), metrics, examples, "model", 1)
    assert is_accepted(tmp_path)
    assert results.read_results(str(tmp_path), examples, "model", 1) is None


class Killed(BaseException):
    pass


def kill_at(monkeypatch, number):
    """Raises Killed before the change of the disk with this number, and at each one after it, as
    if the process had ended there.
    """
    left = [number]

    def counted(real, counts):
        def change(*arguments, **more):
            if counts(*arguments):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return real(*arguments, **more)

        return change

    for name in ("mkdir", "replace", "remove", "rmdir", "utime"):
        monkeypatch.setattr(os, name, counted(getattr(os, name), lambda *_: True))
    opens = counted(open, lambda path, mode="r", *_: "w" in mode)
    monkeypatch.setattr(builtins, "open", opens)


def test_a_kill_at_any_moment_leaves_what_a_later_call_accepts_and_removes(
    tmp_path, part, monkeypatch
):
    """Of an evaluation in a new folder, and of a run that starts over."""

    def write(folder):
        write_ner(folder, part)
        write_old(folder, "RTE.tsv")

    write(tmp_path / "whole")
    for number in itertools.count():
        folder = tmp_path / str(number)
        with monkeypatch.context() as patches, pytest.raises(Killed) as killed:
            kill_at(patches, number)
            write(folder)
            raise Killed("the end")
        assert is_accepted(folder), number
        write(folder)
        whole = {name for name in files_in(folder) if not name.endswith(".partial")}
        assert whole == files_in(tmp_path / "whole") and is_accepted(folder)
        (folder / "run.json").write_text("{}")
        with monkeypatch.context() as patches, pytest.raises(Killed):
            kill_at(patches, number)
            start_over(folder)
            raise Killed
        start_over(folder)
        assert os.listdir(folder) == []
        if killed.value.args:
            break
    assert number > 20
