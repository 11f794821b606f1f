"""Tables and JSON give the texts that were written to them, whatever the size of pieces and
batches; broken files are refused in one line.
"""

import csv
import itertools
import json

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, ipc, parquet

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats import archives, cells, rows
from bert_gpu.text.sentences import split_sentences

TEXTS = [
    "Mr. A met B.\nThey left.",
    'a "quoted", text',
    " ",
    "一。二！\r\n三",
    "tab\there",
    "",
    "last",
]


def write_csv(path, texts, delimiter=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))


def table(texts, kind=None):
    return pyarrow.table({"id": range(len(texts)), "text": pyarrow.array(texts, kind)})


def write_arrow(path, texts, opens=ipc.new_stream, kind=None):
    content = table(texts, kind)
    with pyarrow.OSFile(str(path), "wb") as sink, opens(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=2)


WRITERS = {
    "csv": write_csv,
    "json": lambda path, texts: path.write_text(
        json.dumps([{"text": text, "id": 1} for text in texts], indent=1), encoding="utf-8"
    ),
    "parquet": lambda path, texts: parquet.write_table(table(texts), path, row_group_size=3),
    "arrow": write_arrow,
}


def read(path, kind, field="text", piece_bytes=1 << 20):
    content = path.read_bytes()
    pieces = (content[i : i + piece_bytes] for i in range(0, len(content), piece_bytes))
    text_format = TextFormat(input_format=kind, text_field=field)
    source = str(path) if text_format.row.reads_path else pieces
    return [*text_format.row.load_reader()(source, text_format, "shown")]


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize("kind", WRITERS)
def test_the_texts_are_those_that_were_written(tmp_path, monkeypatch, kind, piece_bytes):
    monkeypatch.setattr(rows, "ROWS_PER_BATCH", 2)
    WRITERS[kind](tmp_path / "file", TEXTS)
    assert read(tmp_path / "file", kind, piece_bytes=piece_bytes) == TEXTS


def test_a_file_without_rows_has_no_texts(tmp_path):
    for kind in ("csv", "tsv", "json"):
        (tmp_path / "file").write_text("")
        assert read(tmp_path / "file", kind) == []
    for kind in WRITERS:
        WRITERS[kind](tmp_path / "file", [])
        assert read(tmp_path / "file", kind) == []


def test_tsv_has_no_quotes(tmp_path):
    (tmp_path / "file").write_text('n\ttext\r\n1\tsay "no\r\n2\t"so"\n')
    assert read(tmp_path / "file", "tsv") == ['say "no', '"so"']


def test_kinds_of_columns(tmp_path):
    texts = ["one", None, "three"]
    for number, kind in enumerate((pyarrow.string(), pyarrow.large_string())):
        write_arrow(tmp_path / f"{number}.arrow", texts, ipc.new_file, kind)
        assert read(tmp_path / f"{number}.arrow", "arrow") == ["one", "", "three"]
    words = table(["one", "one", "three"]).set_column(
        1, "text", pyarrow.array(["one", "one", "three"]).dictionary_encode()
    )
    parquet.write_table(words, tmp_path / "words")
    assert read(tmp_path / "words", "parquet") == ["one", "one", "three"]
    feather.write_feather(words, tmp_path / "words.feather", compression="zstd")
    assert read(tmp_path / "words.feather", "arrow") == ["one", "one", "three"]


@pytest.mark.parametrize("separator", ["\n", ",\n", " "])
def test_json_objects_in_an_array_or_in_a_row(tmp_path, separator):
    objects = separator.join(json.dumps({"text": text, "n": [{}]}, indent=2) for text in "ab")
    content = f"[{objects}]" if "," in separator else f"\ufeff{objects}\n"
    (tmp_path / "file").write_text(content, encoding="utf-8")
    assert read(tmp_path / "file", "json", piece_bytes=3) == ["a", "b"]


@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
def test_json_arrays_in_a_row(tmp_path, piece_bytes):
    (tmp_path / "file").write_text('[{"text": "a"}]\n[ ][{"text": "b"}, {"text": "c"}]\n \n')
    assert read(tmp_path / "file", "json", piece_bytes=piece_bytes) == ["a", "b", "c"]


def test_texts_become_lines_with_the_same_sentences(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")

    @given(st.lists(st.text(max_size=30) | st.sampled_from(TEXTS), min_size=1, max_size=6))
    def check(texts):
        texts = ["one", *texts]
        (folder / "x.json").write_text(json.dumps([{"text": text} for text in texts]))
        text_format = TextFormat(input_format="json")
        spool = folder / "spool"
        plain, formats = archives.unpack([str(folder / "x.json")], [text_format], str(spool))
        blocks = corpus.plan_blocks(plain, 20, formats)
        documents = [*itertools.chain(*map(corpus.read_block, blocks))]
        assert documents == [
            [sentence.encode() for sentence in split_sentences(text)]
            for text in texts
            if text.strip()
        ]
        assert sum(block.num_bytes for block in blocks) == sum(
            len(text.strip().encode()) + 1 for text in texts if text.strip()
        )

    check()


@pytest.mark.parametrize("begin", ["PK\x03\x04", "BZh91AY&SY", "\ufeff"])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_text_may_begin_as_an_archive_or_a_file_does(tmp_path, kind, begin):
    path, text_format = tmp_path / f"x.{kind}", TextFormat(input_format=kind)
    WRITERS[kind](path, [f"{begin} one", "two"])
    plain, formats = archives.unpack([str(path)], [text_format], str(tmp_path / "spool"))
    blocks = corpus.plan_blocks(plain, 100, formats)
    assert corpus.read_block(blocks[0]) == [[f"{begin} one".encode()], [b"two"]]


def test_a_spool_file_belongs_to_its_field(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\none,two\n")
    spool = str(tmp_path / "spool")
    contents = []
    for field in "ab":
        text_format = TextFormat(input_format="csv", text_field=field)
        (path,), _ = archives.unpack([str(tmp_path / "x.csv")], [text_format], spool)
        with open(path, encoding="utf-8-sig") as file:
            contents.append(file.read())
    assert contents == ["one\n", "two\n"]


@pytest.mark.parametrize(
    "kind, content, parts",
    [
        ("csv", "id,body\n1,x\n", ["no column 'text'", "--text_column", "id, body"]),
        ("csv", "1,The wind came through the old door.\n2,x\n", ["line 1 seems to be text"]),
        ("csv", "1,short title of a text\n", ["no column 'text'", "the columns are: 1, short"]),
        ("csv", "id,text\n1,x\n2,y,z\n", ["line 3 has 3 columns", "names 2", "needs quotes"]),
        ("csv", 'id,text\n1,"a\nb"\n2,"open\n', ["line 4 is not valid CSV"]),
        ("csv", b"id,text\n1,good\n2,b\xe9d\n", ["line 3 is not UTF-8"]),
        ("tsv", "id\ttext\n1\tx\ty\n", ["line 2 has 3 columns", "needs csv"]),
        ("json", '[{"text": "a"}, {"text": ', ["object 2 is not valid JSON"]),
        ("json", '[{"text": "a"}, {"body": "b"}]', ["object 2 has no field 'text'", "body"]),
        ("json", '["a"]', ["object 1 is JSON but not an object"]),
        ("json", b'[{"text": "\xff"}]', ["not UTF-8"]),
        ("json", '[{"text": "a"}] rubbish', ["something follows the array after object 1"]),
        ("json", '[{"text": "a"}]\n{"text": "b"}', ["something follows the array after object 1"]),
        ("json", '[{"text": "a"}, {"text": "b"}\n', ["not closed after object 2", "truncated"]),
        ("json", "[", ["not closed", "truncated"]),
        ("parquet", "PAR1 no parquet", ["cannot be read"]),
        ("arrow", "ARROW1 no arrow", ["cannot be read"]),
        ("arrow", "no arrow at all", ["cannot be read"]),
    ],
)
def test_what_is_broken_is_refused(tmp_path, kind, content, parts):
    (tmp_path / "file").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as error:
        read(tmp_path / "file", kind, piece_bytes=5)
    message = str(error.value)
    assert message.startswith("shown: ") and all(part in message for part in parts)
    assert "\n" not in message and len(message) <= 300


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columns_that_are_missing_or_hold_no_text(tmp_path, kind):
    WRITERS[kind](tmp_path / "file", ["x"])
    with pytest.raises(UserError, match=r"no column 'body'.*id, text"):
        read(tmp_path / "file", kind, "body")
    with pytest.raises(UserError, match=r"'id' holds no strings \(int64\)"):
        read(tmp_path / "file", kind, "id")


def test_several_columns_of_one_name_are_refused_for_the_text(tmp_path):
    (tmp_path / "csv").write_text("text,n, text ,n\na,1,b,2\n")
    columns = [pyarrow.array([value]) for value in "a1b2"]
    doubled = pyarrow.Table.from_arrays(columns, ["text", "n", "text", "n"])
    parquet.write_table(doubled, tmp_path / "parquet")
    with pyarrow.OSFile(str(tmp_path / "arrow"), "wb") as sink:
        with ipc.new_stream(sink, doubled.schema) as writer:
            writer.write_table(doubled)
    for kind in ("csv", "parquet", "arrow"):
        with pytest.raises(UserError, match="shown: has 2 columns 'text'; rename"):
            read(tmp_path / kind, kind)


def test_a_truncated_table_is_refused(tmp_path):
    for kind in ("parquet", "arrow"):
        WRITERS[kind](tmp_path / "file", ["some text"] * 50)
        content = (tmp_path / "file").read_bytes()
        (tmp_path / "file").write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match="shown: cannot be read"):
            read(tmp_path / "file", kind)


def test_a_cell_that_nothing_closes_is_not_read_to_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "LONGEST_CELL", 1000)
    monkeypatch.setattr(rows, "LONGEST_OBJECT", 1000)
    lines = itertools.count()

    def endless():
        while True:
            yield b"x" * 99 + b"\n"
            assert next(lines) < 100

    for kind, begin in (("csv", b'text\n"'), ("json", b'[{"text": "')):
        text_format = TextFormat(input_format=kind)
        pieces = itertools.chain([begin], endless())
        with pytest.raises(UserError, match="line 2 is not valid CSV|object 1 is not valid JSON"):
            [*text_format.row.load_reader()(pieces, text_format, "shown")]


BAD = [  # a format, a text with a word, and the remedy or its end
    ("csv", "{w};{w}\n", "to_csv(new, index=False)"),
    ("csv", "x{w},y{w}\n", "give --text_column=NAME"),
    ("csv", "text,b\n{w}\n", "a text with a comma or line break needs quotes"),
    ("tsv", "text\tb\n{w}\n", "a text with a tab needs csv"),
    ("json", '[{{"{w}": 1, "a{w}": 1}}]', "give --text_field=NAME"),
    ("json", '[{{"text": ["{w}"]}}]', "name the field with the text by --text_field"),
    ("json", "[{w}]", "the file is an array of objects, or objects in a row"),
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    case=st.sampled_from(BAD),
    length=st.integers(1, 24),
    folders=st.lists(st.integers(1, 200), max_size=3),
)
def test_messages_keep_their_remedy_whole(case, length, folders):
    kind, text, remedy = case
    name = "/".join(["d" * size for size in folders] + [f"file.{kind}"])
    content = text.format(w="\u00e9a" * length).encode()
    text_format = TextFormat(input_format=kind)
    with pytest.raises(UserError) as caught:
        list(text_format.row.load_reader()(iter([content]), text_format, name))
    assert remedy in str(caught.value) and len(str(caught.value)) <= 300, caught.value
