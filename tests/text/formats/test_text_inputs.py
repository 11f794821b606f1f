"""The format that real shapes of files are taken for."""

import gzip
import json

import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats import inputs

SENTENCES = [
    f"The {kind} of the house had {number} doors, and the wind came through every one of them."
    for number in range(10)
    for kind in ("front", "back", "side")
]
GUTENBERG = """\
It was the best of the long winter evenings, when the people of the
village came together in the room behind the shop. Nobody remembered who
had begun it, and nobody asked. There was a stove, and there were chairs
enough for those who came early.

The miller told the same story as ever, of the year in which the river
stood still and the wheel with it. His wife had heard it before. She knew
when to laugh, and the others laughed when she did.
"""


def paragraphs(num_sentences, count=40):
    return [
        " ".join(SENTENCES[(i + j) % len(SENTENCES)] for j in range(num_sentences))
        for i in range(count)
    ]


def decide(tmp_path, files, **settings):
    """[(kind, reason)] of {name: content}."""
    paths = []
    for name, content in files.items():
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(str(path))
    return inputs.decide(paths, [*files], TextFormat(**settings))


JSON_LINES = "".join(json.dumps({"text": text}) + "\n" for text in paragraphs(3, 5))


@pytest.mark.parametrize(
    "name, content, kind",
    [
        ("google.txt", "\n\n".join("\n".join(SENTENCES[:9]) for _ in range(5)), "lines"),
        ("one_document.txt", "\n".join(SENTENCES), "lines"),
        ("wiki.txt", "\n".join(paragraphs(4)), "documents"),
        ("spaced.txt", "\n\n".join(paragraphs(4)), "documents"),
        (
            "chinese.txt",
            "今天天气很好。我们去公园散步吧！你来吗？\n他不在家。他去哪里了？\n",
            "documents",
        ),
        ("articles.txt", "\n\n".join("\n".join(paragraphs(3, 4)) for _ in range(5)), "lines"),
        ("novel.txt", GUTENBERG, "lines"),
        ("no_ending", "\n".join(paragraphs(4)), "documents"),
        ("dump.txt", JSON_LINES, "jsonl"),
        ("dump", "\ufeff" + JSON_LINES, "jsonl"),
        ("one_line.txt", json.dumps([{"text": text} for text in paragraphs(3, 900)]), "json"),
        ("pretty.txt", json.dumps([{"text": text} for text in paragraphs(3, 5)], indent=1), "json"),
        ("objects", "\n".join([json.dumps({"text": "one"}, indent=2)] * 2), "json"),
        ("prose.txt", '[{"They came," he said. It was late.', "documents"),
        ("a.jsonl", "", "jsonl"),
        ("a.ndjson", "", "jsonl"),
        ("a.json", JSON_LINES, "jsonl"),
        ("array.json", f"[{JSON_LINES.replace(chr(10), ',')[:-1]}]", "json"),
        ("pretty.json", json.dumps({"text": "one"}, indent=2), "json"),
        ("a.CSV", "", "csv"),
        ("a.tsv", "", "tsv"),
        ("a.parquet", "", "parquet"),
        ("a.feather", "", "arrow"),
        ("a.csv.gz", gzip.compress(b"", mtime=0), "csv"),
        ("a.txt.gz", gzip.compress("\n".join(paragraphs(4)).encode()), "documents"),
        ("broken.gz", b"no archive", "lines"),
        ("empty.txt", "", "lines"),
        ("tiny.txt", "One man came.\nAnother man went.\n\nThe sea was calm.", "lines"),
    ],
)
def test_the_format_of_a_file(tmp_path, name, content, kind):
    assert decide(tmp_path, {name: content})[0][0] == kind


def test_a_given_format_wins(tmp_path):
    assert decide(tmp_path, {"a.jsonl": "x"}, input_format="lines") == [
        ("lines", "--input_format=lines")
    ]


def test_each_name_says_its_own_and_the_others_have_one_format(tmp_path):
    files = {f"{number}.txt": "\n".join(paragraphs(4)) for number in range(5)}
    decided = decide(tmp_path, {"a.csv": "", "b.json": "[]", **files, "9.txt": "One.\n"})
    assert decided[:2] == [("csv", "by its name"), ("json", "by its name")]
    assert {kind for kind, _ in decided[2:]} == {"documents"}
    assert "several sentences" in decided[2][1]


@pytest.mark.parametrize("name", ["x.parquet.gz", "x.arrow.zst"])
def test_a_table_within_an_archive_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="unpack it first"):
        decide(tmp_path, {name: ""})


@pytest.mark.parametrize("ending", ["txt", "json", "jsonl", "csv", "parquet"])
def test_a_broken_link_is_named(tmp_path, ending):
    (tmp_path / "good.txt").write_text("One.\n")
    (tmp_path / f"link.{ending}").symlink_to("nowhere")
    with pytest.raises(UserError, match=rf"link\.{ending}: no such file; check the path$"):
        inputs.find_inputs(str(tmp_path), TextFormat())
