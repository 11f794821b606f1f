"""Docstrings and documents use one word for one thing: six words of CONTRIBUTING.md's glossary.

`python -m tests.test_words SEED` draws ten docstrings, comments, messages and sentences of
documents, to be judged by somebody who does not see the code.
"""

import ast
import itertools
import random
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "dev").glob("*.md")]
DOCUMENTS = [path for path in DOCUMENTS if path.name != "reference.md"]  # made by `make docs`
CODE = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|(?m:^    .*$)", re.DOTALL)
AVOIDED = {
    "share": r"(?<!trust )\b(ratio|proportion|fraction)s?\b",
    "record": r"(?<!for )\binstances?\b",
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


def documents(code: re.Pattern[str] = CODE) -> Iterator[tuple[str, str]]:
    """(where, text) of each line of the documents, without what matches code."""
    for path in DOCUMENTS:
        text = code.sub(lambda found: "\n" * found[0].count("\n"), path.read_text("utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def comments() -> Iterator[tuple[str, str]]:
    """(where, text) of each comment of the package; lines of a block are one."""
    for path in sorted((ROOT / "bert_gpu").rglob("*.py")):
        with path.open("rb") as file:
            tokens = [one for one in tokenize.tokenize(file.readline) if one.type != tokenize.NL]
        blocks = itertools.groupby(tokens, lambda one: one.type == tokenize.COMMENT)
        for block in (list(block) for is_comment, block in blocks if is_comment):
            line, column = block[0].start
            # a comment behind code completes it, and cannot be read alone
            code = block[0].line[:column].strip()
            text = " ".join(token.string.strip("# ") for token in block)
            yield f"{path.relative_to(ROOT)}:{line}", f"{code}  # {text}" if code else text


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


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """(where, text) of docstrings and of lines of documents."""
    return [*docstrings(), *documents()]


@pytest.mark.parametrize("word", AVOIDED)
def test_one_word_for_one_thing(word: str, texts: list[tuple[str, str]]) -> None:
    assert len(texts) > 3000
    assert not [f"{where}: {text}" for where, text in texts if is_a_use(word, text)]


def test_the_pairs_are_in_the_glossary() -> None:
    glossary = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [word for word in AVOIDED if f"| {word} |" not in glossary] == []


def main(seed: str) -> None:
    code_and_tables = re.compile(r"```.*?```|(?m:^(    |\|).*$)", re.DOTALL)
    kinds = dict(
        docstrings=docstrings(),
        comments=comments(),
        messages=messages(),
        documents=documents(code_and_tables),
    )
    for kind, pairs in kinds.items():
        texts = [(where, text) for where, text in pairs if len(text.split()) > 3]
        print(f"\n{kind}: 10 of {len(texts):,}")
        for where, text in random.Random(seed).sample(texts, 10):
            print(f"- {where}: {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
