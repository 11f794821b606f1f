"""Docstrings and documents use one word for one thing: the six pairs that CONTRIBUTING.md lists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "dev").glob("*.md")]
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|(?m:^    .*$)", re.DOTALL)
AVOIDED = {
    "share": r"(?<!trust )\b(ratio|proportion|fraction)s?\b",
    "record": r"\binstances?\b",
    "micro-batch": r"\b(mini-?batch|microbatch)(es)?\b",
    "resume": r"\b(go|goes|going|went|gone) on\b",
    "global batch": r"\b(total|effective) batch(es)?\b",
    "data set": r"(?<!stdlib/)\bdatasets?\b(?!\.json| 4)",
}


def docstrings() -> Iterator[tuple[str, str]]:
    """(where, text) of each docstring of the package."""
    for path in sorted((ROOT / "bert_gpu").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                line = getattr(node, "lineno", 1)
                yield f"{path.relative_to(ROOT)}:{line}", ast.get_docstring(node) or ""


def documents() -> Iterator[tuple[str, str]]:
    """(where, text) of each line of the documents, which may quote code as they like."""
    for path in DOCUMENTS:
        text = CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def is_a_use(word: str, text: str) -> bool:
    return re.search(AVOIDED[word], re.sub(r"`[^`]*`", "", text), re.IGNORECASE) is not None


@pytest.mark.parametrize("word", AVOIDED)
def test_one_word_for_one_thing(word: str) -> None:
    texts = [*docstrings(), *documents()]
    assert len(texts) > 3000
    assert not [f"{where}: {text}" for where, text in texts if is_a_use(word, text)]


def test_the_pairs_are_in_the_glossary() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [word for word in AVOIDED if f"| {word} |" not in glossary] == []
