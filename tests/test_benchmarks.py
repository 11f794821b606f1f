"""Benchmarks start, say what they are for, refuse unknown flags and run in their smallest form;
commands in the documents are theirs.

benchmarks/killing.py runs in tests/cli/test_pretrain_engine.py, where it shows more than
that it runs.
"""

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from tests.test_architecture import ROOT

FOLDER = ROOT / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TENSORFLOW_VARIABLES = ("TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch):
    """As `python benchmarks/X.py` has it."""
    monkeypatch.syspath_prepend(str(FOLDER))


def run(*command):
    """What a command prints in an environment in which nothing of TensorFlow is set, from a folder
    that is not the checkout.
    """
    environment = {
        name: value for name, value in os.environ.items() if name not in TENSORFLOW_VARIABLES
    }
    environment |= dict(CUDA_VISIBLE_DEVICES="-1", COLUMNS="200")
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def table(text):
    """The rows of a printed table by their first cell."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows[2:]}


def documented_commands(text):
    """[(name, flags)] of the commands in a Markdown text: in `code`, which may go on over lines,
    and in indented lines.
    """
    blocks = re.split(r"\n\s*\n", text)
    spans = [span for block in blocks for span in re.findall(r"`([^`]+)`", block)] + re.findall(
        r"^    (.+)$", text, re.MULTILINE
    )
    found = [re.search(r"benchmarks/(\w+)\.py(.*)", span.replace("\n", " ")) for span in spans]
    return [(match[1], match[2]) for match in found if match]


def usages():
    """[(where, name, flags)] of all commands that documents and benchmarks' own docstrings name;
    [...] is what may be left out.
    """
    for path in DOCUMENTS:
        yield from ((path.name, *command) for command in documented_commands(path.read_text()))
    for name in NAMES:
        text = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text()))
        yield from (
            (f"{name}.py", other, re.sub(r"[][]", "", flags))
            for other, flags in documented_commands(text)
        )


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_a_benchmark_is_for(name):
    idea = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text())).split("\n\n")[0]
    assert idea in run(FOLDER / f"{name}.py", "--help")


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_flag_is_refused(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--no_such_flag=1"])
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(name).main()
    assert stopped.value.code == 2 and "--no_such_flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, flag",
    [("ahead", "--part"), ("data", "--part"), ("gpu", "--part"), ("training", "--part")],
)
def test_an_unknown_part_is_refused(name, flag, capsys):
    with pytest.raises(SystemExit):
        importlib.import_module(name).make_parser().parse_args([f"{flag}=none"])
    assert "none: must be one of" in capsys.readouterr().err


def test_documents_name_commands():
    text = (
        "`A=1 python benchmarks/data.py --text=a\n"
        "--part=speed`, `x`\n\n    python benchmarks/gpu.py --list\n"
    )
    assert documented_commands(text) == [("data", " --text=a --part=speed"), ("gpu", " --list")]
    assert {name for _, name, _ in usages()} >= set(NAMES) - {"data"}


@pytest.mark.parametrize(
    "where, name, flags", [pytest.param(*usage, id=" ".join(usage)) for usage in usages()]
)
def test_documented_commands_parse(where, name, flags):
    importlib.import_module(name).make_parser().parse_args(shlex.split(flags, comments=True))


@pytest.mark.parametrize(
    "command, expected",
    [
        ("gpu.py --list --small", "attention: padding, 2 x 32 x 2 x 16"),
        ("gpu.py --list --part=precision,bert", "precision: float16"),
        (
            "ahead.py --list --part=memory --model=base --length=128",
            "memory: base 128: bfloat16, recompute",
        ),
        ("training.py --list --only=^Model", "Model Garden bfloat16, XLA"),
    ],
)
def test_a_list_names_what_would_be_measured(command, expected):
    name, *flags = command.split()
    assert expected in run(FOLDER / name, *flags).splitlines()


@pytest.mark.long
def test_eight_bits_run():
    found = run(FOLDER / "adamw8bit.py", "--steps=25")
    assert float(table(found)["1-25"][2].removesuffix(" %")) < 1
    assert found.startswith(f"{FOLDER / 'adamw8bit.py'} --steps=25\nrevision ")


@pytest.mark.long
def test_the_input_pipeline_is_measured():
    found = table(run(FOLDER / "data.py", "--part=reading", "--megabytes=0.02"))
    assert len(found) == 2 and all(float(row[0]) > 0 for row in found.values())


@pytest.mark.long
def test_a_race_of_two(tmp_path):
    sizes = "--models=tiny --lengths=16 --tokens=32 --turns=1 --seconds=0.01 --part=race".split()
    run(
        FOLDER / "training.py",
        *sizes,
        "--only=^(ours|Model Garden) float32$",
        f"--json={tmp_path}/found.json",
    )
    found = json.loads((tmp_path / "found.json").read_text())
    (row,) = found["race"]
    assert {name: result.get("error") for name, result in row["variants"].items()} == {
        "ours float32": None,
        "Model Garden float32": None,
    }
    assert found["hardware"]["cores"] and "--models=tiny" in found["command"]


def test_every_process_with_tensorflow_gets_what_bert_gpu_sets_for_itself():
    from helpers.process import SCRIPTS, WITHOUT_TENSORFLOW, environment_of

    assert set(SCRIPTS) - set(WITHOUT_TENSORFLOW) == {"ours", "garden", "ahead_lowering"}
    for system in SCRIPTS:
        found = environment_of(system, dict(PYTHONPATH="/mine", TF_CPP_MIN_LOG_LEVEL="0"))
        if system in WITHOUT_TENSORFLOW:
            assert not [name for name in found if name.startswith(("TF_", "XLA_", "PYTHONPATH"))]
        else:
            assert found["TF_ENABLE_ONEDNN_OPTS"] == "1" and found["TF_CPP_MIN_LOG_LEVEL"] == "0"
            assert found["PYTHONPATH"] == f"{ROOT}:/mine"
        assert environment_of(system, dict(TF_ENABLE_ONEDNN_OPTS="0")).get(
            "TF_ENABLE_ONEDNN_OPTS"
        ) in ("0", None), "the user's wins"


def test_what_a_benchmark_starts_inherits_the_environment_of_bert_gpu():
    """Also Model Garden's job in benchmarks/data.py; and it is this checkout's bert_gpu
    that decides.
    """
    code = f"""
import os, sys
sys.path.insert(0, {str(FOLDER)!r})
import data, bert_gpu
print(os.environ["TF_ENABLE_ONEDNN_OPTS"], bert_gpu.__file__)
"""
    assert run("-c", code).split() == ["1", str(ROOT / "bert_gpu" / "__init__.py")]
