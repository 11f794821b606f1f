"""Benchmarks say what they are for and refuse unknown flags; commands in the documents are theirs;
what they start has the environment that bert_gpu sets.
"""

import ast
import importlib
import re
import shlex
import sys

import pytest

from tests.benchmarks.commands import FOLDER, run
from tests.documents import DOCUMENTS, code
from tests.test_architecture import ROOT

NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def documented_commands(text):
    """[(name, flags)] of the commands in a Markdown text."""
    found = [re.search(r"benchmarks/(\w+)\.py(.*)", span) for span in code(text)]
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
    [(name, "--part") for name in ("ahead", "data", "gpu", "scaling", "training")],
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


def test_every_process_with_tensorflow_gets_what_bert_gpu_sets_for_itself():
    from helpers.process import SCRIPTS, WITHOUT_TENSORFLOW, environment_of

    with_it = {"ours", "garden", "ahead_lowering", "inference_ours", "scaling_ours"}
    with_it |= {"finetuning_ours"}
    assert set(SCRIPTS) - set(WITHOUT_TENSORFLOW) == with_it
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
