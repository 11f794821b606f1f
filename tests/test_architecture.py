"""Imports point down only, what settings need is imported in no time, and dev/architecture.md
names every package.
"""

import ast
import graphlib
import pathlib
import re
import subprocess
import sys

import pytest

from bert_gpu.finetune.tasks import table

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "bert_gpu"
MODULES = sorted(PACKAGE.rglob("*.py"))

# What each package may import of the others.
BELOW = {
    "base": set(),
    "text": {"base"},
    "model": {"base"},
    "optim": {"base"},
    "recipes": {"base", "model"},  # model/config.py says which flags are the model's
    "data": {"text", "base"},
    "devices": {"base"},
    "runs": {"devices", "data", "optim", "base"},
    "monitor": {"runs", "devices", "base"},
    "train": {"monitor", "runs", "devices", "optim", "model", "data", "base"},
    "interop": {"model", "text", "base"},
}
TRAINING = BELOW["train"] | {"train", "interop", "text", "recipes"}
BELOW |= {
    "pretrain": TRAINING,
    "finetune": TRAINING,
    "inference": {"interop", "runs", "devices", "data", "text", "model", "base"},
    "watch": {"runs", "monitor", "base"},
    "doctor": TRAINING - {"interop"} | {"pretrain"},
}
BELOW["cli"] = TRAINING | {"pretrain", "finetune", "inference", "watch", "doctor"}
USE_GARDEN = ("model/garden.py", "interop/garden.py")
HEAVY = ("tensorflow", "numba", "sklearn", "pyarrow")
LIGHT = [
    "base.settings",
    "base.environment",
    "recipes.rules",
    "cli.flags",
    "api",
    *(f"{package}.config" for package in BELOW if (PACKAGE / package / "config.py").exists()),
]


def imports(text):
    """Names of the modules that Python code imports, at once, in a function or by a LazyModule."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "LazyModule":
            yield ast.literal_eval(node.args[0])


def test_a_late_import_is_one():
    text = 'from a import b\nimport c\nd = LazyModule("bert_gpu.cli")\ndef e():\n    import f\n'
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
            allowed = BELOW.get(own, BELOW["cli"] | {"cli"})  # those on top
            assert match[1] in allowed, f"{own} may not import {name}"


def test_every_package_is_known():
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(BELOW)
    assert {path.stem for path in PACKAGE.glob("*.py")} == {"__init__", "__main__", "api"}


def modules_that_import(imports_of):
    """{module: the modules of bert_gpu that it imports}. imports_of: function of Python code that
    yields the names that it imports.
    """
    names = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in MODULES
    }
    return {
        module: {
            name if name in names else name.rpartition(".")[0]
            for name in imports_of(path.read_text())
            if name.startswith("bert_gpu.")
        }
        for module, path in names.items()
    }


def top_level_imports(text):
    """Names of the modules that Python code imports at once."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports(ast.unparse(node))


def test_no_modules_import_each_other():
    graph = modules_that_import(top_level_imports)
    assert graph["bert_gpu.cli.pretrain"]
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def circles(graph):
    """The groups of nodes, each of which can be reached from all others of its group, with more
    than one node. graph: {node: the nodes that it points to}.
    """

    def reached(node):
        found, new = set(), [node]
        while new:
            new = [other for each in new for other in graph.get(each, ()) if other not in found]
            found.update(new)
        return found

    beyond = {node: reached(node) for node in graph}
    groups = {frozenset(m for m in beyond[n] if n in beyond.get(m, ())) for n in graph}
    return {group for group in groups if len(group) > 1}


def test_circles_are_found_in_types_functions_and_lazy_modules():
    assert circles(dict(a="b", b="c", c="ad", d="e", e="e", f="gh", g="f", h="")) == {
        frozenset("abc"),
        frozenset("fg"),
    }
    texts = dict(
        a="if TYPE_CHECKING:\n    from b import x",
        b="def f():\n    import c",
        c='a = LazyModule("a")',
    )
    graph = {name: {n.removesuffix(".x") for n in imports(text)} for name, text in texts.items()}
    assert circles(graph) == {frozenset("abc")}


def test_types_and_late_imports_point_one_way():
    assert circles(modules_that_import(imports)) == set()


def bound_names(tree):
    """Pairs (name, the names in the type that it stands for) of Python code: by an assignment of
    what can be a type (a name, an attribute, an index, several of these with |), or by an import.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, {alias.name}) for alias in node.names)
        elif isinstance(node, ast.Assign) and isinstance(
            node.value, ast.Name | ast.Attribute | ast.Subscript | ast.BinOp
        ):
            parts = {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(node.value)}
            yield from ((name.id, parts) for name in node.targets if isinstance(name, ast.Name))


def lines_with_any(texts):
    """The lines of Python code, imports left out, that contain Any or a name that stands for it or
    for a type with it.
    """
    bound = [dict(bound_names(ast.parse(text))) for text in texts]
    names = {"Any"}
    while more := {n for each in bound for n, parts in each.items() if parts & names} - names:
        names |= more
    lines = []
    for text, own in zip(texts, bound, strict=True):
        pattern = re.compile(rf"\b({'|'.join({'Any', *names & own.keys()})})\b")
        lines += [
            line for line in text.splitlines() if pattern.search(line) and not IMPORT.match(line)
        ]
    return lines


IMPORT = re.compile(r"\s*(from|import)\b")


def test_names_for_any_count_as_any():
    texts = (
        "from typing import Any as X\nRow = dict[str, typing.Any]\nZ = list[Row] | X",
        "from a import Z\ndef f(z: Z) -> Company: ...\nx = f(1).w",
        "class Row: ...\ndef g(row: Row) -> None: ...",
    )
    assert lines_with_any(texts) == [
        "Row = dict[str, typing.Any]",
        "Z = list[Row] | X",
        "def f(z: Z) -> Company: ...",
    ]


def test_few_lines_have_any():
    count = len(lines_with_any([path.read_text() for path in MODULES]))
    assert count <= 280


TYPES = {f"bert_gpu.finetune.tasks.{kind.type.partition('.')[0]}" for kind in table.KINDS.values()}
WITHOUT_KINDS = [
    path for path in (PACKAGE / "finetune").rglob("*.py") if path.parent.name != "tasks"
]


def kinds_compared(text):
    """The comparisons in Python code with the name of a kind of task, several of them, or the
    table's collections of them.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.MatchValue) and getattr(node.value, "value", None) in table.KINDS:
            yield ast.unparse(node)
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            operands += [part for one in operands for part in getattr(one, "elts", ())]
            values = {getattr(one, "value", None) for one in operands}
            names = {ast.unparse(one).rpartition(".")[2] for one in operands}
            if values & set(table.KINDS) or names & {"KINDS", "TEXT_KINDS"}:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "text, number",
    [
        ('task.kind == "regression"', 1),
        ('spec.kind not in ("tagging", "answers")', 1),
        ("notes.task_kind in table.TEXT_KINDS", 1),
        ('match kind:\n    case "similarity":\n        pass', 1),
        ('table.kind == "parquet" or notes.task_kind not in (None, kind)', 0),
        ('entry.get("answers") is None', 0),
    ],
)
def test_a_comparison_with_a_kind_of_task_is_found(text, number):
    assert len([*kinds_compared(text)]) == number


@pytest.mark.parametrize("path", WITHOUT_KINDS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_types_of_task_depend_on_the_kind_of_a_task(path):
    """What differs between kinds is a method or an attribute of TaskType (tasks/interface.py)."""
    text = path.read_text()
    assert [*kinds_compared(text)] == []
    assert not [name for name in imports(text) if {name, name.rpartition(".")[0]} & TYPES]


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
    text = (ROOT / "dev" / "architecture.md").read_text()
    packages = [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    names = [f"{path.relative_to(PACKAGE)}/" for path in packages]
    assert [name for name in names if name not in text] == []
