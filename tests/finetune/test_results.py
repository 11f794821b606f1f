"""Of the files in a folder those are results that a fine-tuning has written, whatever their names
say; a run that starts over removes them all, and nothing else.
"""

import os

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune import results
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.tasks import pictures
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.runs.folder import RunFolder
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


def write_ner(folder, data):
    """Leaves what a run of ner leaves, in a folder; a sentence stands behind a document's line."""
    data.mkdir()
    (data / "test.txt").write_text("-DOCSTART- -X-\n\n10\u00a0000 X\nb X\n")
    config = FinetuneConfig(data_dir=str(data), task_name="ner", columns=("words", "pos"))
    [part] = read(config, "predict", LABELS)
    known = dict(config=FinetuneConfig(), examples=part, outputs=np.eye(2))
    task_of(config, LABELS).write(str(folder), evaluated(**known))
    (folder / ".predictions.conll.7.partial").write_text("")
    metrics = {"test": dict(f1=0.5)}
    results.write_results(str(folder), metrics, {"eval": [part]}, "model", 1)


def write_others(folder):
    """Leaves files of other tasks."""
    heading = ["index", "prediction"]
    results.write_table(str(folder / results.SUBMISSION), "MNLI-mm.tsv", heading, [["0", "a"]])
    results.write_table(str(folder), "predictions_mismatched.tsv", ["id", "prediction"], [])
    for name in ("predictions_dev.json", "nbest_predictions.json", "null_odds.json"):
        results.write(str(folder), name, ['{\n "a": 1\n}\n'])
    pictures.draw(str(folder), "dev", TASKS["sts-b"], (), np.eye(2), np.arange(2))


def write_foreign(folder, names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(FOREIGN[name])


def files_in(folder):
    return {
        os.path.relpath(os.path.join(path, name), folder)
        for path, _, names in os.walk(folder)
        for name in names
    }


def test_what_is_written_is_a_result(tmp_path):
    folder = tmp_path / "out"
    write_ner(folder, tmp_path / "data")
    write_others(folder)
    assert results.open_results(RunFolder(str(folder)), {}) is None
    assert set(results.find_results(str(folder))) == {
        str(folder / name) for name in files_in(folder) | {results.SUBMISSION, pictures.FOLDER}
    }


@pytest.mark.parametrize("name", FOREIGN)
def test_results_do_not_go_beside_foreign_files(tmp_path, name):
    write_foreign(tmp_path, [name])
    with pytest.raises(UserError, match=f"holds no run, but {name.partition('/')[0]}"):
        results.open_results(RunFolder(str(tmp_path)), {})


@pytest.mark.parametrize("tags", ["a B-X\n", "10\u00a0000 X B-PER\n", "", "\n", "O\n"])
def test_tagged_words_of_others_are_foreign_beside_results_too(tmp_path, tags):
    write_ner(tmp_path / "out", tmp_path / "data")
    (tmp_path / "out" / "predictions.conll").write_text(tags)
    with pytest.raises(UserError, match="holds no run, but predictions.conll"):
        results.open_results(RunFolder(str(tmp_path / "out")), {})


def test_a_run_that_starts_over_removes_the_results_of_any_task_and_nothing_else(tmp_path):
    folder = tmp_path / "run"
    write_ner(folder, tmp_path / "data")
    write_others(folder)
    foreign = set(FOREIGN) - {"predictions.conll"}
    write_foreign(folder, foreign)
    (folder / "run.json").write_text("{}")
    RunFolder(str(folder)).clear(results.find_results)
    assert files_in(folder) == foreign


def test_a_run_that_starts_over_leaves_no_empty_folder_of_results(tmp_path):
    write_others(tmp_path)
    RunFolder(str(tmp_path)).clear(results.find_results)
    assert os.listdir(tmp_path) == []
