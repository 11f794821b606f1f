"""A cell means the same to every reader, whichever library wrote the table: its own string in csv
and tsv, and in typed formats the str of its value. What has no text is refused, with its place.
"""

import csv
import datetime
import decimal
import json
import math
import re

import numpy as np
import pandas
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv
from pyarrow import feather, parquet

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.files.splits import read_splits
from bert_gpu.inference import lines
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats import archives
from tests.finetune.evaluations import column, read, task_of

DAY = datetime.date(2026, 11, 27)
NOON = datetime.datetime(2026, 11, 27, 12, 0, 1)
COLUMNS = {  # name: (values of a column, its type in Arrow)
    "strings": (["01", "NA", "None", "1.0", "x y", "True", "1e5"], pyarrow.string()),
    "quotes": (['say "no"', '"', 'a "b", c', "'d'", '""'], pyarrow.string()),
    "breaks": (["a\tb", "c,d", "two\nlines", "e;f", "g"], pyarrow.string()),
    "spaces": ([" x", "y ", "  ", "z", "q"], pyarrow.string()),
    "letters": (["é中", "e\u0301", "b\u2028c", "\U0001f600", "\ufeffx"], pyarrow.large_string()),
    "views": (["a", "a long text of more than twelve bytes"], pyarrow.string_view()),
    "empty": (["", "a"], pyarrow.string()),
    "null": (["a", None, "b"], pyarrow.string()),
    "ints": ([1, 0, -7, 2**53 + 1, 2**63 - 1], pyarrow.int64()),
    "large ints": ([2**64 - 1, 2**53 + 1, 2**53], pyarrow.uint64()),
    "int or null": ([1, None, 3], pyarrow.int64()),
    "floats": ([1.0, 0.5, 1e16, 1e-7, -2.0], pyarrow.float64()),
    "short floats": ([0.1, 1.0, 2.5], pyarrow.float32()),
    "float or NaN": ([1.0, math.nan, 0.0], pyarrow.float64()),
    "booleans": ([True, False, True], pyarrow.bool_()),
    "dates": ([DAY, DAY.replace(day=1)], pyarrow.date32()),
    "times": ([NOON, NOON.replace(hour=1)], pyarrow.timestamp("us")),
    "far times": ([10**18 + 1, 5], pyarrow.timestamp("ns")),
    "decimals": ([decimal.Decimal("1.50"), decimal.Decimal("2.00")], pyarrow.decimal128(9, 2)),
    "bytes": ([b"sea", "\u00e9".encode(), b"01"], pyarrow.binary()),
    "large bytes": ([b"sea", b"a, b"], pyarrow.large_binary()),
    "view bytes": ([b"sea", b"a, b"], pyarrow.binary_view()),
    "fixed bytes": ([b"sea", b"bay"], pyarrow.binary(3)),
    "bad bytes": ([b"sea", b"\xff", b"bay"], pyarrow.binary()),
    "categories": (["sea", "land", "sea"], pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    "numbers": ([7, 2**53 + 1, 7], pyarrow.dictionary(pyarrow.int8(), pyarrow.int64())),
    "byte names": ([b"sea", b"land"], pyarrow.dictionary(pyarrow.int32(), pyarrow.binary())),
    "lists": ([["a"], ["b", "c"]], pyarrow.list_(pyarrow.string())),
    "objects": ([{"k": "a"}, {"k": "b"}], pyarrow.struct([("k", pyarrow.string())])),
    "maps": ([[("k", 1)], [("j", 2)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
}


def table(values, kind, other):
    """An Arrow table with these values in the column `value` and texts of its own in `other`."""
    own = [f"{other} {place}" for place in range(len(values))]
    return pyarrow.table({"value": pyarrow.array(values, kind), other: own})


def by_csv_module(content, path, quoting=csv.QUOTE_MINIMAL):
    rows = zip(*(column.to_pylist() for column in content.columns), strict=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(
            file, delimiter=dict(csv=",", tsv="\t")[path.suffix[1:]], quoting=quoting
        )
        writer.writerows([content.column_names, *rows])


def by_arrow(content, path):
    if path.suffix == ".parquet":
        parquet.write_table(content, path)
    elif path.suffix == ".feather":
        feather.write_feather(content, str(path))
    else:
        delimiter = dict(csv=",", tsv="\t")[path.suffix[1:]]
        arrow_csv.write_csv(content, path, arrow_csv.WriteOptions(delimiter=delimiter))


def by_pandas(content, path):
    frame = content.to_pandas()
    if path.suffix in (".csv", ".tsv"):
        frame.to_csv(path, index=False, sep=dict(csv=",", tsv="\t")[path.suffix[1:]])
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=path.suffix == ".jsonl", force_ascii=False)


def by_json_module(content, path):
    rows = content.to_pylist()
    parts = [json.dumps(row, allow_nan=False) for row in rows]
    path.write_text(f"[{', '.join(parts)}]" if path.suffix == ".json" else "\n".join(parts))


WRITERS = {
    "csv module": (by_csv_module, ("csv", "tsv")),
    "all quoted": (lambda *args: by_csv_module(*args, csv.QUOTE_ALL), ("csv", "tsv")),
    "json module": (by_json_module, ("json", "jsonl")),
    "pandas": (by_pandas, ("csv", "tsv", "json", "jsonl", "parquet")),
    "pyarrow": (by_arrow, ("csv", "tsv", "parquet", "feather")),
}
PLACES = [(writer, kind) for writer, (_, kinds) in WRITERS.items() for kind in kinds]


def values_in(path):
    """The values in a table's column, by a reader that is not ours."""
    if path.suffix in (".csv", ".tsv"):
        separator = dict(csv=",", tsv="\t")[path.suffix[1:]]
        found = pandas.read_csv(path, sep=separator, dtype=str, keep_default_na=False)
        return found["value"].tolist()
    if path.suffix == ".json":
        return [row["value"] for row in json.loads(path.read_text("utf-8"))]
    if path.suffix == ".jsonl":
        texts = path.read_text("utf-8").split("\n")
        return [json.loads(text)["value"] for text in texts if text]
    content = (parquet.read_table if path.suffix == ".parquet" else feather.read_table)(path)
    column = content["value"].combine_chunks()
    if column.type == pyarrow.float32():
        return [np.float32(value) for value in column.to_pylist()]
    return column.to_pylist()


def text_in(value):
    """The text of a value by the words of the law; None for a value that has none."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    if value is None or isinstance(value, list | dict | tuple) or value != value:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts_of_classifier(path):
    return column(read(config_of(path, text_a="value", label="label"), "train")[0], "texts_a")


def labels_of_classifier(path):
    [found] = read(config_of(path, text_a="text", label="value"), "train")
    cells = [chunk.cells for chunk in found.chunks()]
    return [found.label_sets[found.label_names.index(row[0].strip())][0] for row in sum(cells, [])]


def config_of(path, **columns):
    return FinetuneConfig(task_name="single", train_file=str(path), test_file=str(path), **columns)


def texts_of_corpus(path):
    """The documents of the data script, which leaves rows without text out."""
    kind = dict(feather="arrow").get(path.suffix[1:], path.suffix[1:])
    text_format = TextFormat(input_format=kind, text_field="value")
    plain, formats = archives.unpack([str(path)], [text_format], str(path.parent / "spool"))
    blocks = corpus.plan_blocks(plain, 1 << 20, formats)
    return [b"\n".join(each).decode() for block in blocks for each in corpus.read_block(block)]


def tables(folder, column, other):
    """[path] of a table from each writer, except from those that do not write such values."""
    values, type_ = COLUMNS[column]
    for writer, kind in PLACES:
        path = folder / f"{writer}.{kind}"
        try:
            WRITERS[writer][0](table(values, type_, other), path)
        except (TypeError, ValueError, OverflowError, NotImplementedError):
            continue
        yield path


def check_refused(read, path, wanted):
    with pytest.raises(UserError) as caught:
        read(path)
    message = str(caught.value)
    row = wanted.index(None) + 1
    unit = dict(json="object", jsonl="line").get(path.suffix[1:], "row")
    assert "\n" not in message and len(message) <= 300
    assert message.startswith(f"{path}: {unit} {row} has ") and "'value'" in message, message


@pytest.mark.parametrize("column", COLUMNS)
def test_a_text_of_a_task_is_the_cell(tmp_path, column):
    for path in tables(tmp_path, column, "label"):
        if path.suffix != ".feather":
            wanted = [text_in(value) for value in values_in(path)]
            if None in wanted:
                check_refused(texts_of_classifier, path, wanted)
            else:
                assert texts_of_classifier(path) == wanted, path


@pytest.mark.parametrize("column", COLUMNS)
def test_a_label_of_a_task_is_the_cell(tmp_path, column):
    for path in tables(tmp_path, column, "text"):
        values = [value for value in values_in(path) if value is not None and value == value]
        wanted = [text_in(value) for value in values]
        if path.suffix != ".feather" and None in wanted:
            check_refused(labels_of_classifier, path, wanted)
        elif path.suffix != ".feather":
            # blanks around a label, and the decimals of a whole number, are no part of it
            labels = [re.sub(r"^(-?[0-9]+)\.0*$", r"\1", text.strip()) for text in wanted]
            labels = [label for label in labels if label not in ("", "-", "nan")]
            assert labels_of_classifier(path) == labels, path


@pytest.mark.parametrize("column", COLUMNS)
def test_a_document_of_the_data_script_is_the_cell(tmp_path, column):
    for path in tables(tmp_path, column, "label"):
        values = values_in(path)
        wanted = [text_in(value) for value in values if value is not None]
        if not all(isinstance(value, str | bytes | None) for value in values):
            with pytest.raises(UserError, match="'value'.* (holds no strings|is not a string)"):
                texts_of_corpus(path)
        elif None in wanted:
            check_refused(texts_of_corpus, path, wanted)
        else:
            texts = [text.replace("\u2028", "\n").strip() for text in wanted]  # it ends a sentence
            assert texts_of_corpus(path) == [text for text in texts if text], path


CELL = st.text(st.sampled_from("ab \"',;é\t\n"), max_size=4)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.tuples(CELL, st.sampled_from("xy")), min_size=1, max_size=4),
    blanks=st.lists(st.integers(0, 2), min_size=5, max_size=5),
    blank=st.sampled_from(["", " ", "\t"]),
    kind=st.sampled_from(["csv", "tsv"]),
    end=st.sampled_from(["\n", "\r\n"]),
    width=st.sampled_from([1, 2]),
)
def test_blank_lines_are_no_rows_and_count_as_lines(
    tmp_path_factory, rows, blanks, blank, kind, end, width
):
    """Blank lines before, between and after the rows that Python's csv module writes."""
    path = tmp_path_factory.getbasetemp() / f"blank.{kind}"
    blank = "" if width == 1 or kind == "tsv" else blank
    lines, begins = [blank] * blanks[0], []
    for row, number in zip([("value", "label"), *rows], blanks[1:] + [0] * len(rows), strict=False):
        begins.append(1 + "".join(line + end for line in lines).count("\n"))
        quoted = ['"{}"'.format(cell.replace('"', '""')) for cell in row[:width]]
        lines += [dict(csv=",", tsv="\t")[kind].join(quoted), *[blank] * number]
    path.write_bytes("".join(line + end for line in lines).encode())
    config = config_of(path, text_a="value", label="label")
    [found] = read(config, "predict" if width == 1 else "train")
    assert column(found, "texts_a") == [text for text, _ in rows]
    assert column(found, "lines") == begins[1:]
    assert found.table.num_skipped == 0
    texts = ["\n".join(filter(None, map(str.strip, text.split("\n")))) for text, _ in rows]
    if any(texts):
        assert texts_of_corpus(path) == list(filter(None, texts))


@pytest.mark.parametrize(
    "text, line",
    [
        ('value,label\na, "b"\n', 2),
        ('value,label\n "a",b\n', 2),
        ('value, "label"\na,b\n', 1),
        ('value,label\n"a\nb",c\n\n"d", "e, f"\n', 5),
        ('value,label\nx,y\na,\t"b\nc"\n', 3),
        ('value,label\n" ""a""",b\na, "b ""c"""\n', 3),
    ],
)
def test_a_blank_before_a_quote_is_named(tmp_path, text, line):
    path = tmp_path / "t.csv"
    path.write_text(text)
    for texts_of in (texts_of_classifier, texts_of_corpus):
        with pytest.raises(UserError, match=f"t.csv: line {line} has a blank before a quote"):
            texts_of(path)


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_half_a_surrogate_pair_is_the_same_unknown_character_to_all(tmp_path, kind):
    path = tmp_path / f"t.{kind}"
    row = '{"value": "a \\ud83d b", "label": "x"}'
    path.write_text(row if kind == "jsonl" else f"[{row}]")
    assert texts_of_classifier(path) == texts_of_corpus(path) == ["a \ufffd b"]


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_numbers_of_json_are_what_python_reads(tmp_path, kind):
    numbers = ["1e5", "12345678901234567890", "-0.0", "1E-7", "0.1", "9007199254740993"]
    rows = [f'{{"value": {number}, "label": "x"}}' for number in numbers]
    path = tmp_path / f"t.{kind}"
    path.write_text("\n".join(rows) if kind == "jsonl" else f"[{','.join(rows)}]")
    assert texts_of_classifier(path) == [str(json.loads(number)) for number in numbers]


@pytest.mark.parametrize("name", ["t.csv", "t.TSV", "t.json", "t.jsonl.gz", "t.parquet", "t.arrow"])
def test_readers_of_lines_refuse_a_table(tmp_path, name):
    (tmp_path / name).write_text("text\na\n")
    with pytest.raises(UserError, match=f"{name}: is a table, and its lines are not texts"):
        next(lines.windows(str(tmp_path / name)))


BOOLEANS = st.sampled_from([("True", "False"), ("TRUE", "FALSE"), ("true", "false")])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    train=st.lists(st.tuples(BOOLEANS, st.integers(0, 1)), min_size=1, max_size=5),
    dev=st.lists(st.tuples(BOOLEANS, st.integers(0, 1)), min_size=1, max_size=3),
    kinds=st.tuples(*2 * [st.sampled_from(["csv", "jsonl", "parquet"])]),
)
def test_spellings_of_true_are_one_class(tmp_path_factory, train, dev, kinds):
    folder = tmp_path_factory.mktemp("true")
    train = [*train, (("True", "False"), 0), (("true", "false"), 1)]
    for split, rows, kind in zip(("train", "dev"), (train, dev), kinds, strict=True):
        labels = [names[which] for names, which in rows]
        content = pyarrow.table(dict(text=[f"t{n}" for n in range(len(rows))], label=labels))
        if kind != "csv":  # as a typed format has them
            content = content.set_column(1, "label", pyarrow.array([not x for _, x in rows]))
        (by_json_module if kind == "jsonl" else by_arrow)(content, folder / f"{split}.{kind}")
    config = FinetuneConfig(task_name="single", data_dir=str(folder))
    task, files = read_splits(task_of(config), config, ["train", "eval"])
    labels = task.labels
    assert sorted(label.lower() for label in labels) == ["false", "true"]
    [own] = files["eval"]
    assert [own.label_sets[code][0].lower() for code in own.label_codes] == [
        ("true", "false")[which] for _, which in dev
    ]
    assert set(own.labels) <= set(labels)
