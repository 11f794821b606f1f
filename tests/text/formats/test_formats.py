"""One document a line, as text or JSON: blocks of every size give what a naive reader gives; other
text is refused.
"""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.corpus import plan_blocks, read_block
from bert_gpu.text.sentences import split_sentences

DOCUMENTS, JSONL = TextFormat(input_format="documents"), TextFormat(input_format="jsonl")
TEXTS = st.lists(
    st.text(max_size=40)
    | st.sampled_from(["", " \u3000", "Mr. A met B. They left.", "一。二！", "a\nb"]),
    min_size=1,
    max_size=12,
)


def as_sentences(texts):
    return [
        [sentence.encode() for sentence in split_sentences(text)] for text in texts if text.strip()
    ]


def write(tmp_path, content, name="text"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read_all(path, text_format, block_bytes):
    blocks = plan_blocks([path], block_bytes, text_format)
    documents = [read_block(block) for block in blocks]
    assert [len(part) for part in documents] == [block.num_documents for block in blocks]
    assert [block.first_document for block in blocks] == [
        0,
        *itertools.accumulate(map(len, documents)),
    ][:-1]
    assert all(block.num_sentences is None for block in blocks)
    return [*itertools.chain(*documents)], blocks


@pytest.mark.parametrize("chunk_bytes", [1, 50, 1 << 22])
def test_blocks_of_every_size_hold_the_same_documents(tmp_path_factory, monkeypatch, chunk_bytes):
    monkeypatch.setattr(corpus, "CHUNK_BYTES", chunk_bytes)
    folder = tmp_path_factory.mktemp("formats")

    @given(
        TEXTS,
        st.sampled_from(["", "\ufeff"]),
        st.sampled_from(["\n", "\r\n"]),
        st.sampled_from([1, 30, 10**6]),
        st.booleans(),
    )
    def check(texts, mark, line_end, block_bytes, ascii_only):
        lines = [
            json.dumps({"id": 1, "text": text}, ensure_ascii=ascii_only)
            for text in ["first", *texts]
        ]
        documents, blocks = read_all(write(folder, mark + line_end.join(lines)), JSONL, block_bytes)
        assert documents == as_sentences(["first", *texts])
        flat = [" ".join(text.split("\n")) for text in ["first", *texts]]
        content = mark + line_end.join(flat)
        documents, blocks = read_all(write(folder, content), DOCUMENTS, block_bytes)
        assert documents == as_sentences(content.removeprefix("\ufeff").split("\n"))

    check()


def test_blocks_begin_and_end_at_line_ends(tmp_path):
    content = b"".join(
        json.dumps({"text": f"Document {number}. " * (number % 5)}).encode() + b"\n"
        for number in range(200)
    )
    _, blocks = read_all(write(tmp_path, content), JSONL, 500)
    assert len(blocks) > 5 and all(content[: block.end].endswith(b"\n") for block in blocks)
    assert [0, *(block.end for block in blocks)] == [
        *(block.start for block in blocks),
        len(content),
    ]


def test_another_field_and_another_language(tmp_path):
    path = write(tmp_path, '{"body": "Am 3. Oktober war es. Gut."}\n')
    text_format = TextFormat(input_format="jsonl", text_field="body", language="de")
    assert read_all(path, text_format, 100)[0] == [[b"Am 3. Oktober war es.", b"Gut."]]


def test_half_of_a_surrogate_pair_is_no_character(tmp_path):
    path = write(tmp_path, r'{"text": "a \ud83d b \ud83d\ude00"}')
    assert read_all(path, JSONL, 100)[0] == [["a \ufffd b \U0001f600".encode()]]


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 22])
@pytest.mark.parametrize(
    "line, parts",
    [
        ('{"text": "x"', ["line 3 is not valid JSON"]),
        ("plain text", ["line 3 is not valid JSON"]),
        ("[" * 100_000, ["line 3 is not valid JSON"]),
        ("9" * 5000, ["line 3"]),
        ('["text"]', ["line 3 is JSON but not an object"]),
        (
            '{"body": "x", "title": "y"}',
            ["line 3 has no field 'text'", "--text_field", "body, title"],
        ),
        ("{}", ["line 3 has no field 'text'", "none"]),
        ('{"text": 3}', ["line 3 the field 'text' is not a string (int)"]),
        (b'{"text": "\xff"}', ["line 3 is not UTF-8"]),
        ('{"' + "x" * 500 + '": 1}', ["line 3 has no field"]),
    ],
)
def test_what_is_no_jsonl_is_refused(tmp_path, monkeypatch, chunk_bytes, line, parts):
    monkeypatch.setattr(corpus, "CHUNK_BYTES", chunk_bytes)
    line = line if isinstance(line, bytes) else line.encode()
    path = write(tmp_path, b'{"text": "good"}\n\n' + line + b'\n{"text": "good"}\n')
    with pytest.raises(UserError) as error:
        plan_blocks([path], 100, JSONL, names=["shown.jsonl.gz"])
    message = str(error.value)
    assert (
        message.startswith("shown.jsonl.gz: ")
        and all(part in message for part in parts)
        and "\n" not in message
        and len(message) <= 300
    )


@pytest.mark.parametrize(
    "text_format, content", [(JSONL, '{"text": " "}\n'), (DOCUMENTS, "\n \n"), (JSONL, "")]
)
def test_a_file_without_text_is_refused(tmp_path, text_format, content):
    with pytest.raises(UserError, match="has no document; lines with text are needed"):
        plan_blocks([write(tmp_path, content)], 100, text_format)


@pytest.mark.parametrize("later", ['{"text": "x"}\n{"te', '{"text": ""}\n', "x"])
def test_a_file_that_changes_under_the_plan_is_refused(tmp_path, later):
    path = write(tmp_path, '{"text": "one. two."}\n')
    (block,) = plan_blocks([path], 100, JSONL)
    write(tmp_path, later)
    with pytest.raises(UserError, match="changed"):
        read_block(block)


@pytest.mark.parametrize(
    "values", [dict(input_format="xml"), dict(language="English"), dict(language="")]
)
def test_bad_settings_are_refused(values):
    with pytest.raises(UserError, match=f"--{next(iter(values))}="):
        TextFormat(**values)
