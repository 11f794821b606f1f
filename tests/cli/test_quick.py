"""A call without settings, on a machine without GPUs, is one of the recipe quick; any setting, and
any GPU, gives the defaults.
"""

import importlib

import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.settings import fields_of
from bert_gpu.cli import quick
from bert_gpu.recipes.table import RECIPES
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import RUN_ENTRIES

CLASSES = {
    script: importlib.import_module(f"bert_gpu.cli.{script}").CLASSES for script in quick.OPEN
}


def shown(capsys, *call):
    assert command(["bert-gpu", *call, "--show_config"]) == 0
    return capsys.readouterr().out


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def finished(recipe):
    """runs/pretrain with the run.json of a training by a recipe."""
    content = dict(settings=dict(input_file="x"), free=dict(recipe=recipe))
    content |= dict(global_batch_size=1, learning_rate=0.1, device_kind="CPU")
    numbers = dict(unit_size=1, micro_batch_size=1, num_replicas=1, versions={}, hashes={})
    RunFolder("runs/pretrain").create(dict.fromkeys(RUN_ENTRIES) | content | numbers)


@pytest.mark.parametrize("script", ["data", "pretrain"])
def test_without_settings_it_is_quick(folder, capsys, script):
    said = shown(capsys, script)
    assert said.startswith("# ") and "# recipe quick: " in said
    for name, (value, _) in RECIPES["quick"].settings(script).items():
        assert f"--{name}={value}  # recipe quick: " in said


@pytest.mark.parametrize(
    "call",
    [
        ("data", "--dupe_factor=3"),
        ("data", "--max_seq_length=128"),
        ("pretrain", "--model=tiny"),
        ("pretrain", "--num_gpus=0"),
        ("pretrain", "--num_train_steps=10"),
    ],
)
def test_any_setting_gives_the_defaults(folder, capsys, call):
    assert "quick" not in shown(capsys, *call)


@pytest.mark.parametrize("script", ["data", "pretrain"])
def test_with_gpus_nothing_is_quick(folder, monkeypatch, capsys, script):
    monkeypatch.setattr(quick, "count_gpus", lambda: 1)
    assert quick.implied_recipe(script, ["input_file"]) is None


def test_names_of_files_leave_it_quick():
    """Each flag that leaves the settings open is one of its script."""
    for script, names in quick.OPEN.items():
        known = fields_of(*CLASSES[script])
        for name in f"{names} {quick.COMMON}".split():
            assert name in known, (script, name)
    assert quick.implied_recipe("data", ["input_file", "output_dir", "quiet"]) == "quick"


@pytest.mark.parametrize("recipe, expected", [("quick", "quick"), (None, None), ("bert", None)])
def test_fine_tuning_is_quick_where_the_pretraining_was(folder, recipe, expected):
    finished(recipe)
    assert quick.implied_recipe("classify", ["data_dir"]) == expected
    assert quick.implied_recipe("classify", ["init_checkpoint"]) is None


def test_fine_tuning_without_a_pretraining_is_not_quick(folder):
    assert quick.implied_recipe("classify", []) is None


def test_the_first_line_says_so(folder, capsys, sample_text):
    given = ["--output_dir=out", f"--input_file={sample_text}"]
    assert command(["bert-gpu", "data", *given]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == quick.NOTICE and "--recipe=bert" in first and second.startswith("input: ")
    assert command(["bert-gpu", "data", *given, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
