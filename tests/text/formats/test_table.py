"""The table of formats is whole, and the documents name all of it."""

import re

import pytest

from bert_gpu.text.corpus import FOLDER_ENDINGS
from bert_gpu.text.formats.table import FORMATS
from tests.test_architecture import ROOT

TEXT = (ROOT / "docs" / "text.md").read_text()


def test_the_documents_name_every_format_and_its_endings():
    table = TEXT.partition("| --input_format |")[2].partition("\n\n")[0]
    rows = [line.split(" | ") for line in table.splitlines()[2:]]
    names = [name for row in rows for name in row[0].removeprefix("| ").split(", ")]
    assert names == [*FORMATS]
    endings = {ending for row in FORMATS.values() for ending in row.endings}
    assert set(re.findall(r"(?<!\w)\.[a-z]+", table)) == endings


def test_the_documents_name_the_files_of_a_folder():
    assert re.search(r"From a folder it takes ([^,]+),", TEXT)[1].split() == [
        f"*{ending}" for ending in FOLDER_ENDINGS
    ]


@pytest.mark.parametrize("row", FORMATS.values(), ids=FORMATS)
def test_the_reader_of_a_row_is_there(row):
    assert not row.reader or callable(row.load_reader())
    assert row.is_streamed or row.reader
    assert not (row.reads_path and row.is_streamed)


def test_first_bytes_belong_to_one_format():
    magic = [magic for row in FORMATS.values() for magic in row.magic]
    assert len(magic) == len(set(magic)) > 1
