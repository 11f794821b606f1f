"""The documents, without the page that `make docs` writes, and what in them is code."""

import re

from tests.test_architecture import ROOT

DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *(path for folder in ("docs", "dev") for path in sorted((ROOT / folder).rglob("*.md"))),
]
DOCUMENTS = [path for path in DOCUMENTS if path.name != "reference.md"]


def code(text):
    """The pieces of code of a Markdown text: in `code`, which may go on over lines, and indented
    lines.
    """
    blocks = re.split(r"\n\s*\n", text)
    found = [span for block in blocks for span in re.findall(r"`([^`]+)`", block)]
    found += re.findall(r"^    (.+)$", text, re.MULTILINE)
    return [span.replace("\n", " ") for span in found]
