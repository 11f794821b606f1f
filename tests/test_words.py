"""Docstrings and documents use one word for one thing: six words of the glossary in CONTRIBUTING.md.

`python -m tests.test_words SEED` draws ten docstrings, comments, messages and sentences of
documents, to be judged by somebody who does not see the code.
"""

import ast
import random
import re
import sys
import tokenize
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


def comments() -> Iterator[tuple[str, str]]:
    """(where, text) of each comment of the package; lines that follow each other are one."""
    for path in sorted((ROOT / "bert_gpu").rglob("*.py")):
        place, lines, end = "", [], 0
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    if token.start[0] != end + 1 and lines:
                        yield place, " ".join(lines)
                        lines = []
                    end = token.start[0]
                    place = place if lines else f"{path.relative_to(ROOT)}:{end}"
                    lines.append(token.string.strip("# "))
        if lines:
            yield place, " ".join(lines)


def messages() -> Iterator[tuple[str, str]]:
    """(where, text) of each error, warning, printed line and help text of the package."""
    names = {"UserError", "warn", "say", "setting", "answer"}
    for path in sorted((ROOT / "bert_gpu").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                texts = [ast.unparse(text) for text in node.args if is_text(text)]
                if name in names and texts:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", " | ".join(texts)


def is_text(node: ast.AST) -> bool:
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_constant or isinstance(node, ast.JoinedStr)


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


def main(seed: str) -> None:
    for kind in (docstrings, comments, messages, documents):
        texts = [(where, text) for where, text in kind() if len(text.split()) > 3]
        print(f"\n{kind.__name__}: 10 of {len(texts):,}")
        for where, text in random.Random(seed).sample(texts, 10):
            print(f"- {where}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
