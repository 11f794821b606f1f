"""A replaced folder is the old one or the new one: killed at any of its renames, refused, or
behind a link.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.interop.folders import displaced, replace_folder
from bert_gpu.interop.models import find_model

ROOT = pathlib.Path(__file__).parent.parent.parent
OLD, NEW = {"config.json": b"old", "weights": b"old"}, {"config.json": b"new", "weights": b"new"}

# Ends as kill -9 would, before or after the n-th rename; n is the first argument.
KILLED = """
import os, sys
from bert_gpu.interop.folders import replace_folder
number, when, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
rename, calls = os.rename, []
def rename_and_die(*paths):
    calls.append(paths)
    if len(calls) == number and when == "before": os._exit(9)
    rename(*paths)
    if len(calls) == number: os._exit(9)
os.rename = rename_and_die
replace_folder(folder, {"config.json": b"new", "weights": b"new"})
"""


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(tmp_path):
    replace_folder(str(tmp_path / "model"), OLD)
    return tmp_path / "model"


@pytest.mark.parametrize("number, when", [(1, "before"), (1, "after"), (2, "before"), (2, "after")])
def test_a_kill_leaves_the_old_or_the_new_and_the_next_write_tidies_up(
    folder, tmp_path, number, when
):
    (folder / "notes.txt").write_bytes(b"mine")
    script = [sys.executable, "-c", KILLED, str(number), when, str(folder)]
    done = subprocess.run(
        script,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert done.returncode == 9, done.stderr[-2000:]
    is_between = (number, when) in [(1, "after"), (2, "before")]
    assert folder.exists() != is_between
    if is_between:
        assert content(pathlib.Path(displaced(str(folder)))) == OLD | {"notes.txt": b"mine"}
    else:
        assert displaced(str(folder)) is None
        assert content(folder) == (OLD if number == 1 else NEW) | {"notes.txt": b"mine"}
    replace_folder(str(folder), {"config.json": b"newest"})
    weights = b"new" if (number, when) == (2, "after") else b"old"
    assert content(folder) == {"config.json": b"newest", "weights": weights, "notes.txt": b"mine"}
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_not_written_stays_and_so_does_what_lies_beside(folder, tmp_path):
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial" / "mine").write_text("mine")
    (folder / "sub").mkdir()
    (folder / "sub" / "deep").write_text("mine")
    (folder / "link").symlink_to(tmp_path / "model.partial")
    replace_folder(f"{folder}/", {"config.json": b"new", "added": b"new"})
    assert sorted(os.listdir(folder)) == ["added", "config.json", "link", "sub", "weights"]
    assert (folder / "config.json").read_bytes() == b"new" and (
        folder / "weights"
    ).read_bytes() == b"old"
    assert (folder / "sub" / "deep").read_text() == "mine" and (folder / "link").is_symlink()
    assert (tmp_path / "model.partial" / "mine").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["model", "model.partial"]


def test_a_link_to_a_folder_stays_a_link(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    replace_folder(str(tmp_path / "link"), NEW)
    assert (
        (tmp_path / "link").is_symlink()
        and content(folder) == NEW
        and sorted(os.listdir(tmp_path)) == ["link", "model"]
    )


def test_what_cannot_be_written_changes_nothing(folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for target, files in [
        (folder, {"a": b"", "x" * 300: b""}),  # the name is too long
        (tmp_path / "file", NEW),
        (tmp_path / "file" / "model", NEW),
    ]:
        with pytest.raises(UserError, match=str(target)):
            replace_folder(str(target), files)
    monkeypatch.chdir(folder)
    with pytest.raises(UserError, match="where this command runs"):
        replace_folder(".", NEW)
    assert (
        content(folder) == OLD
        and (tmp_path / "file").read_text() == "mine"
        and sorted(os.listdir(tmp_path)) == ["file", "model"]
    )


def test_paths_with_a_scheme_are_refused():
    with pytest.raises(
        UserError, match="gs://models/one: records, runs and models must be on a local"
    ):
        replace_folder("gs://models/one", NEW)
    with pytest.raises(UserError, match="--init_checkpoint=gs://models/one"):
        find_model("gs://models/one", "init_checkpoint")


def test_a_folder_inside_is_replaced_as_a_whole(folder):
    replace_folder(str(folder), {"parts/old": b"1", "parts/deep/x": b"2"})
    replace_folder(str(folder), {"parts/new": b"3"})
    assert os.listdir(folder / "parts") == ["new"] and (folder / "parts/new").read_bytes() == b"3"


def test_an_unfinished_run_says_how_to_get_its_model(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000100").mkdir(parents=True)
    with pytest.raises(UserError, match="with --num_train_steps=N, the step of its newest check"):
        find_model(str(tmp_path / "run"), "init_checkpoint")


@pytest.mark.parametrize("name", ["bert-base-uncased", "answerdotai/ModernBERT-base", "runs/bert"])
def test_a_missing_folder_is_told_how_to_get_a_model_of_the_hub(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such folder; make one .* hf download ") as error:
        find_model(name, "init_checkpoint")
    assert len(str(error.value)) <= 300
