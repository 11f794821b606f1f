"""Wikipedia is read as its tools write it, by the commands of docs/text.md: wikiextractor's JSON
lines, and the parquet files of Hugging Face's hub.
"""

import json

import pyarrow
import pytest
from pyarrow import parquet

from bert_gpu.__main__ import main as command
from tests.documents import DOCUMENTS
from tests.test_documents import commands

NUM_ARTICLES, NUM_EMPTY = 60, 5
FILES = {"AA/wiki_00": 0, "AA/wiki_01": 25, "AB/wiki_00": 50}  # with the first article of each
DOWNLOADED = "wikipedia/20231101.en"
COMMANDS = {
    name: arguments
    for path in DOCUMENTS
    if path.stem == "text"
    for _, arguments in commands(path)
    for name in ("extracted", "wikipedia")
    if any(f"--input_file={name}" in argument for argument in arguments)
}


def article(number):
    """An article as wikiextractor 3.1 writes it; one without text is left of some pages."""
    title = f"River {number}"
    text = f"{title} is a river in the north. It has {number + 2} mills.\nNobody counts boats."
    return dict(
        id=str(number + 12),
        revid=str(18910401 + number),
        url=f"https://en.wikipedia.org/wiki?curid={number + 12}",
        title=title,
        text=text if number < NUM_ARTICLES else "",
    )


def write_dumps(folder):
    articles = [article(number) for number in range(NUM_ARTICLES + NUM_EMPTY)]
    ends = [*FILES.values(), len(articles)][1:]
    (folder / DOWNLOADED).mkdir(parents=True)
    (folder / DOWNLOADED).parent.joinpath(".cache").mkdir()  # of the program that downloads
    for index, ((name, first), end) in enumerate(zip(FILES.items(), ends, strict=True)):
        path = folder / "extracted" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in articles[first:end]))
        rows = [
            {name: value for name, value in each.items() if name != "revid"}
            for each in articles[first:end]
        ]
        shard = folder / DOWNLOADED / f"train-{index:05d}-of-00041.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), shard)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wikipedia")
    write_dumps(folder)
    return folder


@pytest.mark.parametrize(
    "name, line",
    [
        (
            "extracted",
            "JSON Lines: every object is a document, its text in the field 'text' (every",
        ),
        ("wikipedia", "parquet: every row is a document, its text in the column 'text' (by its"),
    ],
)
def test_the_documented_command_reads_it(dumps, monkeypatch, capsys, name, line):
    monkeypatch.chdir(dumps)
    flags = [f"--output_dir={name}-data", "--vocab_size=200", "--dupe_factor=1", "--num_workers=1"]
    assert command(["bert-gpu", "data", *COMMANDS[name], *flags]) == 0
    output = capsys.readouterr().out
    assert "input: 3 files, " in output and line in output
    assert f"{NUM_EMPTY} rows have no text and are left out" in output
    manifest = json.loads((dumps / f"{name}-data" / "dataset.json").read_text())
    assert manifest["num_documents"] == NUM_ARTICLES
    vocabulary = (dumps / f"{name}-data" / "vocab.txt").read_text().split()
    assert {"river", "mills"} <= set(vocabulary) and "curid" not in vocabulary
