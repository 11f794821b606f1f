"""Which runs may go on, what the refusal says, and what run.json says about where a run's
numbers come from.
"""

import hashlib
import os
import pathlib
import subprocess

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import REMOVED, fields_of
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.runs import folder as run_folder
from bert_gpu.runs import provenance
from bert_gpu.runs.folder import RunFolder

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_the_difference_is_shown_leaf_by_leaf():
    stored = dict(
        rate=1e-3,
        gone=1,
        layers=[1, 2],
        files=[["a.tfrecord", 10, "x"], ["b.tfrecord", 20, "y"]],
        data=dict(made=dict(seed=1, tokenizer="abc"), length=128, other=None),
    )
    assert provenance.differences(stored, stored) == {}
    settings = dict(
        rate=2e-3,
        layers=(1, 2),  # a tuple is a list in JSON
        files=(("a.tfrecord", 10, "x"), ("b.tfrecord", 20, "z")),
        data=dict(made=dict(seed=2, tokenizer="abc"), length=128, other=dict(a=1)),
        new="x" * 100,
    )
    assert provenance.differences(stored, settings) == {
        "data.made.seed": "1 -> 2",
        "data.other": "None -> {'a': 1}",
        "files[1][2]": "y -> z",
        "gone": "1 -> None",
        "new": f"None -> {'x' * 57}...",
        "rate": "0.001 -> 0.002",
    }
    assert provenance.differences(dict(files=[1]), dict(files=[1, 2])) == {
        "files": "1 entries -> 2"
    }
    for old, new, told in (
        (["embeddings", "layers:2"], ("embeddings",), "embeddings,layers:2 -> embeddings"),
        ([], ("a",), "none -> a"),
        (["a" * 20, "b" * 20], ("c",), "2 entries -> 1"),
        ([], (1,), "0 entries -> 1"),
    ):
        assert provenance.differences(dict(freeze=old), dict(freeze=new)) == dict(freeze=told)
    assert provenance.differences(dict(x=True), dict(x=dict(a=1))) == dict(x="True -> {'a': 1}")


def test_a_run_with_other_fixed_settings_is_refused_and_others_are_free():
    folder, stored = (
        RunFolder("somewhere"),
        dict(settings={f"name_{n}": n for n in range(50)}, free=dict(recipe=None)),
    )
    run_folder.check_resumable(folder.path, stored, {f"name_{n}": n for n in range(50)})
    with pytest.raises(UserError, match=r"somewhere.*\(--name_3: 3 -> 4\); name another folder"):
        changed = {f"name_{n}": n + (n == 3) for n in range(50)}
        run_folder.check_resumable(folder.path, stored, changed)
    with pytest.raises(
        UserError, match=r"\(--name_0: 0 -> x; .*; and \d+ more\); name another folder"
    ) as caught:
        run_folder.check_resumable(folder.path, stored, {f"name_{n}": "x" for n in range(50)})
    assert len(str(caught.value)) <= 300
    with pytest.raises(UserError) as caught:
        run_folder.check_resumable("f" * 400, stored, {})
    assert len(str(caught.value)) <= 300


def test_a_run_of_a_recipe_is_continued_with_it():
    folder, ours = RunFolder("run"), dict(learning_rate=0.1)
    stored = dict(settings=dict(learning_rate=0.2), free=dict(recipe="quick"))
    with pytest.raises(UserError, match=r"\); add --recipe=quick, .* or name another folder"):
        run_folder.check_resumable(folder.path, stored, ours)
    for settings, recipe in ((stored, "bert"), (stored | dict(free=dict(recipe=None)), None)):
        with pytest.raises(UserError, match=r"\); name another folder"):
            run_folder.check_resumable(folder.path, settings, ours, recipe=recipe)
    many = dict(settings={f"name_{n}": n for n in range(50)}, free=dict(recipe="q" * 100))
    with pytest.raises(UserError, match="--overwrite starts over$") as caught:
        run_folder.check_resumable("f" * 400, many, {})
    assert len(str(caught.value)) <= 300


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    result = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()


def test_a_setting_that_run_json_lacks_had_its_default():
    fields = fields_of(OptimizerConfig)
    stored = dict(settings=dict(optimizer="adamw"), free=dict(recipe=None))
    ours = dict(optimizer="adamw", muon_lr_ratio=1.0)
    run_folder.check_resumable("run", stored, ours, fields)
    with pytest.raises(UserError, match="--muon_lr_ratio: 1.0 -> 0.9;? ?"):
        run_folder.check_resumable("run", stored, ours | dict(muon_lr_ratio=0.9), fields)
    with pytest.raises(UserError, match="--no_field: None -> 1"):
        run_folder.check_resumable("run", stored, ours | dict(no_field=1), fields)


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_flag_of_a_run_may_have_its_default_only(name):
    stored = dict(optimizer="adamw", **{name: REMOVED[name]})
    run_folder.check_resumable("run", dict(settings=stored), dict(optimizer="adamw"))
    with pytest.raises(UserError, match=f"^run: was made with --{name}=7, a flag that was removed"):
        run_folder.check_resumable("run", dict(settings={name: 7}), {})


def test_the_commit_of_the_code(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("a = 1\n")
    git(tmp_path, "init", "--quiet")
    (tmp_path / "other").write_text("x")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "--quiet", "-m", "x")
    # somebody's repository that does not track it
    assert provenance.git_commit(str(package)) is None
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "y")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert provenance.git_commit(str(package)) == commit and len(commit) == 40
    (package / "__init__.py").write_text("a = 2\n")
    assert provenance.git_commit(str(package)) == commit + "-dirty"


def test_no_git_no_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance.git_commit(str(ROOT / "bert_gpu")) is None
    # one whose answer is lost, as on a full disk
    (tmp_path / "git").write_text("#!/bin/sh\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert provenance.git_commit(str(ROOT / "bert_gpu")) is None


def test_hash_and_versions(tmp_path):
    content = os.urandom(3 << 20) + b"end"
    (tmp_path / "x").write_bytes(content)
    assert provenance.file_hash(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    assert {"bert_gpu", "tensorflow", "numpy", "python"} <= provenance.versions().keys()
