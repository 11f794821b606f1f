"""Blocks of every size give what a naive reader gives, line by line; unreadable text is refused in
one line.
"""

import gzip
import itertools
import random

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.corpus import endings_of, find_files, plan_blocks, read_block
from bert_gpu.text.formats import archives


def expand_inputs(patterns):
    return find_files(patterns)[0]


def naive_documents(content):
    """Google's loop over lines."""
    documents = [[]]
    for line in content.decode("utf-8-sig").split("\n"):
        if line.strip():
            documents[-1].append(line.strip().encode())
        else:
            documents.append([])
    return [document for document in documents if document]


def write(tmp_path, content, name="text.txt"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


LINES = [
    "a",
    "a b",
    " x ",
    "long " * 9,
    "é",
    "中国",
    "\u3000中",
    "a\u2028b",
    "a\x00b",
    "\x00",
    "\x85",
    "a\rb",
    "\u200b",
    "a\x0bb\x0c",
    "“q”",
    "\ufeff",
]
BLANKS = [
    "",
    "",
    "",
    " ",
    "\t",
    "\r",
    "\u3000",
    "\xa0 ",
    "\u2028",
    "\x1c",
    " \u2003\t",
    "\x85",
    "\u1680\u205f\u202f",
]


def random_text(draw):
    lines = draw.choices(LINES, k=draw.randint(1, 30)) + draw.choices(BLANKS, k=draw.randint(0, 30))
    draw.shuffle(lines)
    text = draw.choice(["", "", "\ufeff"]) + draw.choice(["\n", "\r\n"]).join(["one", *lines])
    return (text + draw.choice(["", "\n", "\n\n", " "])).encode()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 1 << 22])
def test_blocks_of_every_size_hold_what_the_naive_reader_sees(tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr(corpus, "CHUNK_BYTES", chunk_bytes)
    draw = random.Random(chunk_bytes)
    for _ in range(60):
        contents = [random_text(draw) for _ in range(draw.randint(1, 2))]
        paths = [write(tmp_path, content, f"{index}.txt") for index, content in enumerate(contents)]
        expected = [naive_documents(content) for content in contents]
        for block_bytes in (1, 3, 20, 100, 10**6):
            sizes = []
            blocks = plan_blocks(paths, block_bytes, sizes=sizes)
            assert np.add.reduceat(
                np.concatenate(sizes), [block.first_document for block in blocks]
            ).tolist() == [block.num_bytes for block in blocks]
            read = [read_block(block) for block in blocks]
            for path, documents in zip(paths, expected, strict=True):
                of_file = [
                    documents
                    for block, documents in zip(blocks, read, strict=True)
                    if block.path == path
                ]
                assert [*itertools.chain(*of_file)] == documents
            assert [len(documents) for documents in read] == [
                block.num_documents for block in blocks
            ]
            assert [sum(map(len, documents)) for documents in read] == [
                block.num_sentences for block in blocks
            ]
            assert [block.first_document for block in blocks] == [
                0,
                *itertools.accumulate(map(len, read)),
            ][:-1]


def test_blocks_follow_one_another_and_have_the_size_asked_for(tmp_path):
    content = (
        b"\n\n" + b"".join(b"some words in a line\n" * 3 + b"\n" for _ in range(500)) + b"\n \n"
    )
    blocks = plan_blocks([write(tmp_path, content)], 1000)
    assert [blocks[0].start, *(block.end for block in blocks)] == [
        *(block.start for block in blocks),
        len(content),
    ]
    assert all(1000 <= block.end - block.start < 1000 + 64 + 2 for block in blocks[:-1])
    assert sum(block.num_sentences for block in blocks) == 1500


def test_a_plan_does_not_depend_on_how_the_file_is_read(tmp_path, monkeypatch):
    path = write(
        tmp_path, "\n\n".join(f"document {number}\n" * (number % 7 + 1) for number in range(300))
    )
    plans = []
    for chunk_bytes in (1, 100, 1 << 22):
        monkeypatch.setattr(corpus, "CHUNK_BYTES", chunk_bytes)
        plans.append(plan_blocks([path], 500))
    assert plans[0] == plans[1] == plans[2]


def test_a_document_longer_than_a_block_stays_whole(tmp_path):
    path = write(tmp_path, "short\n\n" + "line\n" * 1000 + "\nshort\n")
    assert [block.num_documents for block in plan_blocks([path], 100)] == [2, 1]
    assert [block.num_sentences for block in plan_blocks([path], 1)] == [1, 1000, 1]


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "has no document"),
        (b"\xef\xbb\xbf", "has no document"),
        (b"\n \n\r\n\xe3\x80\x80\n", "has no document"),
        (b"one\n\ntwo\nb\xe9d\n", "line 4 is not UTF-8"),
        (b"\xef\xbb\xbfone\nend \xe4\xb8", "line 2 is not UTF-8"),
        (b"a\xed\xa0\x80\n", "line 1 is not UTF-8"),
    ],
)
@pytest.mark.parametrize("chunk_bytes", [4, 1 << 22])
def test_bad_text_is_refused(tmp_path, monkeypatch, content, problem, chunk_bytes):
    monkeypatch.setattr(corpus, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path, content)
    with pytest.raises(UserError) as error:
        plan_blocks([path], 100)
    message = str(error.value)
    assert (
        message.startswith(path)
        and problem in message
        and "\n" not in message
        and len(message) <= 300
    )


def test_files_without_a_document_are_left_out(tmp_path):
    contents = ["", "one\n\ntwo\n", "\n \n", "three\n", ""]
    paths = [write(tmp_path, content, f"{i}.txt") for i, content in enumerate(contents)]
    blocks = plan_blocks(paths, 1)
    assert [read_block(block) for block in blocks] == [[[b"one"]], [[b"two"]], [[b"three"]]]
    assert [block.first_document for block in blocks] == [0, 1, 2]
    (window,) = corpus.plan_windows(paths, 100, TextFormat(input_format="lines"))
    assert [block.path for block in window.blocks] == paths[1::2]
    with pytest.raises(UserError, match=r"0\.txt: has no document, nor have the other 2 files; "):
        plan_blocks(paths[::2], 1)


@pytest.mark.parametrize("position", [0, 1, 3])
def test_there_are_as_many_windows_as_asked_for_or_documents(tmp_path, position):
    """Wherever a document much longer than a window stands."""
    documents = ["the cat sat on it\n"] * 3
    documents.insert(position, "a b c d e f g h i\n" * 160)
    path, text_format = write(tmp_path, "\n".join(documents)), TextFormat(input_format="lines")
    for least in range(1, 7):
        windows = corpus.plan_windows([path], 1000, text_format, min_windows=least)
        assert len(windows) >= min(least, 4)
        assert [document for window in windows for document in window.read()] == [
            [line.encode() for line in document.splitlines()] for document in documents
        ]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_missing_file_is_refused(tmp_path, scheme):
    with pytest.raises(UserError, match="no such file"):
        plan_blocks([f"{scheme}{tmp_path}/absent.txt"], 100)
    with pytest.raises(UserError, match="cannot be read"):
        plan_blocks([f"{scheme}{tmp_path}"], 100)


def test_paths_with_a_scheme_are_read_alike(tmp_path):
    path = write(tmp_path, "one\ntwo\n\nthree\n")
    (block,) = plan_blocks([f"file://{path}"], 100)
    assert read_block(block) == [[b"one", b"two"], [b"three"]]


@pytest.mark.parametrize("later", [b"other\n", b"\xff" * 30, None])
def test_a_file_that_changes_under_the_plan_is_refused(tmp_path, later):
    path = write(tmp_path, "one\n\ntwo\n")
    (block,) = plan_blocks([path], 100)
    (tmp_path / "text.txt").unlink()
    if later:
        write(tmp_path, later)
    with pytest.raises(UserError, match="changed"):
        read_block(block)


def test_inputs_are_sorted_and_unique(tmp_path):
    for name in ("b.txt", "a.txt", "c[1].txt"):
        write(tmp_path, "x", name)
    (tmp_path / "folder.txt").mkdir()
    names = ["a.txt", "b.txt", "c[1].txt"]
    assert expand_inputs(f"{tmp_path}/*.txt, {tmp_path}/b.txt,") == [
        f"{tmp_path}/{name}" for name in names
    ]
    assert expand_inputs([f"{tmp_path}/c[1].txt"]) == [f"{tmp_path}/c[1].txt"]


def test_a_folder_stands_for_the_text_files_below_it(tmp_path):
    for name in (
        "b.txt",
        "a/c.jsonl",
        "a/d.gz",
        "a/e/f.zst",
        "a/no.pdf",
        "a/g.md",
        "a/h.text",
        "a/.hidden.txt",
        ".git/x.txt",
        "a/e/.cache/y.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    names = ("a/c.jsonl", "a/d.gz", "a/e/f.zst", "a/g.md", "a/h.text", "b.txt")
    expected = [f"{tmp_path}/{name}" for name in names]
    assert (
        expand_inputs(str(tmp_path))
        == expand_inputs(f"{tmp_path}/")
        == expand_inputs(f"{tmp_path}/a,{tmp_path}/b.txt")
        == expected
    )
    assert expand_inputs(f"{tmp_path}/*") == expected
    assert expand_inputs(f"{tmp_path}/a/no.pdf") == [f"{tmp_path}/a/no.pdf"]
    assert expand_inputs(f"file://{tmp_path}/a/e") == [f"file://{tmp_path}/a/e/f.zst"]


def test_files_of_a_folder_with_other_endings_are_told(tmp_path):
    for name in ("a.txt", "b.pdf", "c.HTML", "d.pdf", "e"):
        write(tmp_path, "x", name)
    others = [f"{tmp_path}/{name}" for name in ("b.pdf", "c.HTML", "d.pdf", "e")]
    assert find_files(str(tmp_path)) == ([f"{tmp_path}/a.txt"], others)
    named = f"{tmp_path}/b.pdf"  # as it is
    assert find_files(f"{named},{tmp_path}") == ([f"{tmp_path}/a.txt", named], others[1:])
    assert find_files(f"{tmp_path}/*") == ([f"{tmp_path}/a.txt", *others], [])
    assert endings_of(others) == ".html, .pdf, no ending"
    (tmp_path / "a.txt").unlink()
    with pytest.raises(UserError, match=r"other kinds only \(.html, .pdf, no ending\); extract"):
        find_files(str(tmp_path))


def test_a_file_is_read_once_whatever_leads_to_it(tmp_path, monkeypatch):
    write(tmp_path, "x", "b.txt")
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.txt").symlink_to("b.txt")
    monkeypatch.chdir(tmp_path)
    assert expand_inputs("b.txt,folder/../b.txt,a.txt") == ["b.txt"]
    assert expand_inputs(f"./b.txt,{tmp_path}") == ["./b.txt"]
    assert expand_inputs(f"{tmp_path}/*.txt") == [f"{tmp_path}/a.txt"]


def test_endings_may_be_in_capitals(tmp_path):
    (tmp_path / "B.TXT.GZ").write_bytes(gzip.compress(b"two\n"))
    write(tmp_path, "one\n", "A.Txt")
    paths = expand_inputs(str(tmp_path))
    assert paths == [f"{tmp_path}/A.Txt", f"{tmp_path}/B.TXT.GZ"]
    lines = [TextFormat(input_format="lines")] * 2
    plain, formats = archives.unpack(paths, lines, str(tmp_path / "spool"))
    assert [read_block(block) for block in plan_blocks(plain, 9, formats)] == [
        [[b"one"]],
        [[b"two"]],
    ]


@pytest.mark.parametrize(
    "pattern, problem",
    [("absent*.txt", "absent*.txt: no such file"), ("", "is a folder"), ("a.txt", "no such file")],
)
def test_inputs_that_match_nothing_are_refused(tmp_path, pattern, problem):
    with pytest.raises(UserError) as error:
        expand_inputs(f"{tmp_path}/{pattern}")
    assert problem in str(error.value) and len(str(error.value)) <= 300


def test_a_comma_in_a_name_is_told_from_one_between_names(tmp_path):
    (tmp_path / "a, b.txt").write_text("a\n")
    with pytest.raises(UserError, match="/a: no such file; .*; commas separate names: write ?"):
        expand_inputs(f"{tmp_path}/a, b.txt")
    assert expand_inputs(f"{tmp_path}/a? b.txt") == [f"{tmp_path}/a, b.txt"]
    for one in (f"{tmp_path}/c", [f"{tmp_path}/c", f"{tmp_path}/a? b.txt"]):
        with pytest.raises(UserError, match="matches nothing\\)$"):
            expand_inputs(one)


def test_no_inputs_are_refused():
    with pytest.raises(UserError, match="no input file"):
        expand_inputs(" , ")
