#!/usr/bin/env python3
"""Prints how large a checkout is: statements, flags, circles of imports, lines with Any, words of
documents, lines of benchmarks.

    python dev/sizes.py [FOLDER]

FOLDER is a checkout, by default this one. tests/test_architecture.py of that checkout counts
circles and lines with Any.
"""

import ast
import importlib
import pathlib
import sys


def statements(folder):
    """Return the number of statements in the Python files below a folder; a docstring is one."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    return sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree))


def flags(root):
    """Return the number of names in FLAGS of tests/cli/test_list_of_flags.py."""
    path = root / "tests" / "cli" / "test_list_of_flags.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLAGS":
            return len(ast.literal_eval(node.value.func.value).split())
    raise ValueError(f"{path}: has no FLAGS")


def words(paths):
    """Return the words of documents as `wc -w` counts them. Left out are reference.md, which
    `make docs` writes, and the tables of migration.md.
    """
    count = 0
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            is_table = path.name == "migration.md" and line.startswith("|")
            count += 0 if is_table or path.name == "reference.md" else len(line.split())
    return count


def lines(paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def structure(root):
    """Return (number of circles, lines with Any) of a checkout, None where it has no function that
    counts them.
    """
    sys.path.insert(0, str(root))
    tests = importlib.import_module("tests.test_architecture")
    if not hasattr(tests, "circles") or not hasattr(tests, "lines_with_any"):
        return None, None
    graph = tests.modules_that_import(tests.imports)
    return len(tests.circles(graph)), len(
        tests.lines_with_any([path.read_text() for path in tests.MODULES])
    )


def documents(root):
    """Return {name: number} of what counts lines and words alone."""
    return {
        "words of dev": words((root / "dev").glob("*.md")),
        "words of docs and README": words([root / "README.md", *(root / "docs").glob("*.md")]),
        "lines of benchmarks": lines((root / "benchmarks").rglob("*.py")),
    }


def sizes(root):
    """Return {name: number} of a checkout."""
    circles, any_lines = structure(root)
    return {
        "statements of bert_gpu": statements(root / "bert_gpu"),
        "statements of finetune": statements(root / "bert_gpu" / "finetune"),
        "flags": flags(root),
        "circles": circles,
        "lines with Any": any_lines,
        **documents(root),
    }


if __name__ == "__main__":
    checkout = pathlib.Path(sys.argv[1] if sys.argv[1:] else pathlib.Path(__file__).parents[1])
    for name, number in sizes(checkout.resolve()).items():
        print(f"{name:26}{'-' if number is None else format(number, ','):>7}")
