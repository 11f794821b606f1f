"""What tests of benchmarks share."""

import os

import pytest

from tests.benchmarks.commands import FOLDER
from tests.test_architecture import ROOT


@pytest.fixture(autouse=True)
def path_of_benchmarks(monkeypatch):
    """As `python benchmarks/X.py` has it."""
    monkeypatch.syspath_prepend(str(FOLDER))


@pytest.fixture(scope="module")
def small(tmp_path_factory, sample_text):
    """Folder of a text and pairs that are small: small.txt, pairs/."""
    folder = tmp_path_factory.mktemp("small")
    with open(sample_text) as file:
        documents = file.read().split("\n\n")
    (folder / "small.txt").write_text("\n\n".join(documents[:24]) + "\n")
    (folder / "pairs").mkdir()
    for split in ("train", "dev"):
        rows = (ROOT / "examples" / "pairs" / f"{split}.tsv").read_text().splitlines()[:11]
        (folder / "pairs" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def oracle():
    """The Python with torch, transformers and datasets."""
    python = os.environ.get("BERT_GPU_ORACLE_PYTHON")
    if not python:
        pytest.skip("BERT_GPU_ORACLE_PYTHON is not set")
    return python
