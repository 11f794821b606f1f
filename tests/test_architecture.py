"""Imports point down only, absl's flags stay in cli/, modules stay readable, and the README's file tree is true."""

import ast
import itertools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "bert_gpu"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST = 320  # lines; a longer module has a second idea in it

# What each package may import of the others.
BELOW = {
    "text": set(),
    "model": set(),
    "optim": set(),
    "data": {"text"},
    "train": {"optim", "model", "data"},
    "finetune": {"data", "text", "model", "optim", "train"},
    "interop": {"model", "text", "finetune"},
    "cli": {"text", "model", "optim", "data", "train", "finetune", "interop"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    parts = path.relative_to(PACKAGE).parts
    own = parts[0] if len(parts) > 1 else ""
    for name in imports(path):
        if name.startswith("absl"):
            assert own == "cli", f"{name}: only cli/ knows absl"
        if "tf_keras" in name or name.startswith("official"):
            assert path.name == "garden.py", f"{name}: only model/garden.py and interop/garden.py may use Model Garden"
        match = re.match(r"bert_gpu\.(\w+)", name)
        if own in BELOW and match and match[1] in BELOW and match[1] != own:
            assert match[1] in BELOW[own], f"{own}/ may not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short_and_begin_with_their_idea(path):
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST
    assert ast.get_docstring(ast.parse(text)), "a module begins with its idea"


def tree_of_readme():
    """The paths of the README's file tree, from its indentation of four spaces a level."""
    block = re.search(r"```\n(setup\.cfg.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    folders, paths = [], []
    for line in filter(str.strip, block.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 4
        columns = re.split(r"\s{2,}", line.strip())
        names = list(itertools.takewhile(lambda column: re.fullmatch(r"Makefile|\S+/|\S+\.\w+", column), columns))
        folders = folders[:depth]
        paths += ["/".join([*folders, name]) for name in names]
        if names[0].endswith("/"):
            folders.append(names[0].rstrip("/"))
    return paths


def test_the_readmes_tree_is_true():
    paths = [path.rstrip("/") for path in tree_of_readme()]
    missing = [path for path in paths if not (ROOT / path).exists()]
    assert not missing
    modules = {str(path.relative_to(ROOT)) for path in MODULES if path.name not in ("__init__.py", "__main__.py")}
    assert modules <= set(paths), sorted(modules - set(paths))
