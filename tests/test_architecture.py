"""Imports point down only, what settings need is imported in no time, and docs/architecture.md
names every room.
"""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "bert_gpu"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each room may import of the others.
BELOW = {
    "text": set(),
    "model": set(),
    "optim": set(),
    "data": {"text"},
    "train": {"optim", "model", "data"},
    "interop": {"model", "text"},
    "pretrain": {"interop", "train", "data", "text", "model", "optim"},
    "finetune": {"interop", "train", "data", "text", "model", "optim"},
    "inference": {"interop", "text", "model"},
    "watch": {"interop", "train", "data", "text", "model", "optim"},
    "doctor": {"train", "data", "text", "model", "optim"},
    "launch": set(),
    "cli": {
        "pretrain",
        "finetune",
        "inference",
        "watch",
        "doctor",
        "launch",
        "interop",
        "train",
        "data",
        "text",
        "model",
        "optim",
    },
}
# Modules on top of the package, which every room may import.
GROUND = {
    "environment",
    "settings",
    "recipes",
    "recipe_table",
    "console",
    "files",
    "lock_holder",
    "tensor_files",
    "malloc",
}
GROUND |= {"fused", "cluster"}
# whose config says which flags are the model's; model imports no recipes
ABOVE_GROUND = {"recipes": {"model"}}
USE_GARDEN = ("model/garden.py", "interop/garden.py")
HEAVY = ("tensorflow", "numba", "sklearn", "pyarrow")
LIGHT = [
    "settings",
    "recipes",
    "recipe_table",
    "environment",
    "cli.flags",
    *(f"{room}.config" for room in BELOW if (PACKAGE / room / "config.py").exists()),
]


def imports(text):
    """Names of the modules that Python code imports, at once, in a function or by Later("name")."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Later":
            yield ast.literal_eval(node.args[0])


def test_a_late_import_is_one():
    text = 'from a import b\nimport c\nd = Later("bert_gpu.cli")\ndef e():\n    import f\n'
    assert sorted(imports(text)) == ["a.b", "bert_gpu.cli", "c", "f"]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    parts = path.relative_to(PACKAGE).parts
    own = parts[0] if len(parts) > 1 else path.stem
    for name in imports(path.read_text()):
        if name.startswith("absl"):
            assert own == "cli", f"{name}: only cli/ knows absl"
        if re.match(r"(tf_keras|official)\b", name):
            assert "/".join(parts) in USE_GARDEN, f"{name}: only {USE_GARDEN} use Model Garden"
        match = re.match(r"bert_gpu\.(\w+)", name)
        if match and match[1] in BELOW and match[1] != own:
            if own in ("__main__", "__init__"):
                assert match[1] == "cli", f"{own} may not import {name}"
            else:
                assert match[1] in BELOW.get(own, ABOVE_GROUND.get(own, set())), (
                    f"{own} may not import {name}"
                )


def test_every_module_on_the_ground_is_known():
    assert {path.stem for path in PACKAGE.glob("*.py")} == GROUND | {"__init__", "__main__"}


@pytest.mark.parametrize("module", LIGHT)
def test_settings_need_nothing_heavy(module):
    code = (
        f"import sys, bert_gpu.{module}; print(*[name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_begin_with_their_idea(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_documents_name_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    assert [name for name in [*rooms, *(f"{name}.py" for name in GROUND)] if name not in text] == []
