"""Files of a task read back as they were written, whatever their line ends and quotes; each bad
file is refused in one line.
"""

import csv
import dataclasses
import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig, has_test_file, resolve_phases
from bert_gpu.finetune.files import examples
from bert_gpu.finetune.files.parts import Part, share_of
from bert_gpu.finetune.files.splits import read_splits
from bert_gpu.finetune.tasks import table as tasks
from bert_gpu.text.formats.rows import QUOTES
from tests.finetune import evaluations
from tests.finetune.evaluations import column, task_of

PAIRS = tasks.TASKS["pairs"]
ROWS = [
    ("x-1", 'She said "no".', "naïve, 中国", "1"),
    ("x-2", "a 'quoted", "", "0"),
    ("x-3", "  spaces kept ", "b\u2028c", "10"),
]


def write(folder, text, split="train", kind="tsv", encoding="utf-8"):
    path = folder / f"{split}.{kind}"
    path.write_bytes(text.encode(encoding))
    return path


def read(folder, phase="train", task=PAIRS, **settings):
    """The Examples of a phase's only file."""
    config = FinetuneConfig(data_dir=str(folder), **settings)
    [found] = evaluations.read(config, phase, spec=task)
    return found


def columns(found):
    """[(id, first text, second text, label)] of Examples."""
    names = ("ids", "texts_a", "texts_b", "labels")
    return list(zip(*(column(found, name) for name in names), strict=True))


def tsv(rows=ROWS, header=("id", "text_a", "text_b", "label"), end="\n"):
    return "".join("\t".join(row) + end for row in [header, *rows])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_tsv_reads_back(tmp_path, end, encoding, last):
    write(tmp_path, tsv(end=end) + last, encoding=encoding)
    found = read(tmp_path)
    assert columns(found) == ROWS
    assert column(found, "lines") == [2, 3, 4] and len(found) == 3


def test_csv_reads_back_with_quotes_and_line_breaks(tmp_path):
    rows = [
        ("1", 'a, "b"', "two\nlines", "yes"),
        ("2", "tab\there", "c", "no"),
        ("3", "x" * 200_000, "d", "no"),
    ]
    with open(tmp_path / "train.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text_a", "text_b", "label"), *rows])
    found = read(tmp_path)
    assert columns(found) == rows and column(found, "lines") == [2, 4, 5]


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tables")


def emptied(folder):
    for path in folder.iterdir():
        path.unlink()
    return folder


CELL = st.text(st.sampled_from("ab \"',;é\t\n\r\u2028"), max_size=6)
TABLE = st.lists(st.tuples(CELL, CELL, st.sampled_from("01")), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    table=TABLE,
    kind=st.sampled_from(["csv", "tsv", "json"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
)
def test_what_csv_and_json_write_reads_back(shared_folder, table, kind, quoting):
    names, path = ("text_a", "text_b", "label"), emptied(shared_folder) / f"train.{kind}"
    with open(path, "w", newline="", encoding="utf-8") as file:
        if kind == "json":
            json.dump([dict(zip(names, row, strict=True)) for row in table], file, indent=1)
        else:
            delimiter = dict(csv=",", tsv="\t")[kind]
            csv.writer(file, delimiter=delimiter, quoting=quoting).writerows([names, *table])
    found = read(shared_folder)
    assert [row[1:] for row in columns(found)] == table
    assert (QUOTES in found.warnings) == (kind == "tsv" and '"' in path.read_text())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=st.lists(st.text(st.sampled_from("ab \"'"), max_size=6), min_size=1, max_size=5))
def test_quotes_are_text_where_one_of_them_encloses_nothing(shared_folder, rows):
    rows = [(str(number), text, '5" wide', "1") for number, text in enumerate(rows)]
    write(emptied(shared_folder), tsv(rows))
    found = read(shared_folder)
    assert columns(found) == rows and QUOTES not in found.warnings


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_columns_of_0_and_1_are_named_with_what_to_write(tmp_path, form):
    names = ("text_a", "toxic", "threat", "insult")
    rows = [("a", "0", "1", "0"), ("b", "1", "1", "0")]
    if form == "csv":
        text = "\n".join(map(",".join, (names, *rows)))
    else:
        text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
    write(tmp_path, text, kind=form)
    with pytest.raises(
        UserError, match=r"3 columns of 0 and 1 \(toxic, threat, insult\); .*multilabel$"
    ):
        read(tmp_path)


def test_an_object_of_columns_is_no_row(tmp_path):
    write(tmp_path, '{"text_a": {"0": "a"}, "label": {"0": "1"}}', kind="json")
    with pytest.raises(UserError, match="line 1 is not an object with a row's cells"):
        read(tmp_path)


@pytest.mark.parametrize("stem", ["dev", "devel", "valid", "validation", "Dev"])
def test_the_dev_file_has_the_names_that_users_give_it(tmp_path, stem):
    for split in ("train", stem, "train_dev"):
        write(tmp_path, tsv(), split=split)
    found = read(tmp_path, "eval")
    assert found.path.endswith(f"{stem}.tsv") and found.source.stem == "dev"


def test_columns_have_any_order_and_name_and_ids_default_to_row_numbers(tmp_path):
    write(tmp_path, "gold\tq2\tnoise\tq1\n1\tb\t?\ta\n0\td\t?\tc\n")
    task = tasks.TaskSpec(name="mine", text_a="q1", text_b="q2", label="gold")
    assert columns(read(tmp_path, task=task)) == [("0", "a", "b", "1"), ("1", "c", "d", "0")]


def test_single_sentences_and_a_test_file_without_labels(tmp_path):
    write(tmp_path, "text_a\tlabel\na\t1\n")
    write(tmp_path, "text_a\nb\n\nc\n".replace("\n\n", "\n"), split="test")
    assert not read(tmp_path).has_pairs
    test = read(tmp_path, "predict")
    assert column(test, "labels") is None and column(test, "texts_a") == ["b", "c"]


@pytest.mark.parametrize("labels, warnings", [(["", " "], 0), (["-1", "-1"], 1)])
def test_a_file_to_predict_whose_labels_are_kept_secret_has_none(tmp_path, labels, warnings):
    rows = [("x", "a", "b", label) for label in labels]
    for split in ("train", "dev", "test"):
        write(tmp_path, tsv(rows), split=split)
    found = read(tmp_path, "predict")
    assert not found.has_labels and column(found, "labels") is None and found.label_names == ()
    assert column(found, "cells") == [list(row) for row in rows] and len(found.warnings) == warnings
    config = FinetuneConfig(data_dir=str(tmp_path))
    message = (
        f"dev.tsv: no example has a label ('label' is '{labels[0]}'); name a file that has some"
    )
    with pytest.raises(UserError) as caught:
        evaluations.read(config, "eval", ("0", "1"))
    assert str(caught.value).endswith(message)
    if labels[0]:  # and a class may be called -1
        [dev] = evaluations.read(config, "eval", ("-1", "1"))
        assert dev.has_labels and dev.labels == ("-1",)


def test_every_format_holds_the_same(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [("1", "a", "b", "yes"), ("2", "", "c\td", "no")]
    names = ("id", "text_a", "text_b", "label")
    objects = [dict(zip(names, row, strict=True)) | dict(more=[1]) for row in rows]
    lines = "\n".join(json.dumps(one) for one in objects) + "\n\n"
    parquet.write_table(pyarrow.Table.from_pylist(objects), tmp_path / "p.parquet")
    (tmp_path / "j.jsonl").write_text(lines)
    (tmp_path / "j.txt").write_text(lines)  # known by its first line
    with open(tmp_path / "c.csv", "w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    for name in ("p.parquet", "j.jsonl", "j.txt", "c.csv"):
        assert columns(read(tmp_path, train_file=str(tmp_path / name))) == rows, name


def test_numbers_of_json_are_the_text_of_cells(tmp_path):
    objects = [dict(text_a="a", label=1), dict(text_a="b", label=0), dict(text_a="", label=0.5)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, objects)))
    found = read(tmp_path)
    assert column(found, "labels") == ["1", "0", "0.5"] and column(found, "texts_a")[2] == ""


def test_chunks_join_to_the_whole(tmp_path, monkeypatch):
    rows = [(str(i), f"a{i}", f"b{i}", str(i % 3)) for i in range(10)]
    write(tmp_path, tsv(rows))
    monkeypatch.setattr(examples, "CHUNK_ROWS", 4)
    found = read(tmp_path)
    assert [len(chunk.lines) for chunk in found.chunks()] == [4, 4, 2] and columns(found) == rows
    assert found.label_names == ("0", "1", "2") and found.label_lines == (2, 3, 4)
    assert found.label_codes.tolist() == [i % 3 for i in range(10)]


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write(tmp_path, tsv())
    found = read(tmp_path)
    path.write_text(tsv(ROWS[:2]))
    with pytest.raises(UserError, match="has changed while it was read"):
        column(found, "ids")


def test_shares_split_a_file_by_the_texts_alone(tmp_path):
    rows = [(str(i), f"text {i}", f"other {i}", "1") for i in range(400)]
    path = write(tmp_path, tsv(rows), split="quora")
    shares = dict(train_file=str(path), dev_share=0.2, test_share=0.1)
    parts = {
        phase: columns(read(tmp_path, phase, **shares)) for phase in ("train", "eval", "predict")
    }
    assert sorted(sum(parts.values(), [])) == sorted(rows)
    assert 50 < len(parts["eval"]) < 110 and 20 < len(parts["predict"]) < 60
    # in another order, with the texts exchanged, and among others: each in the part it was in
    turned = [(i, b, a, label) for i, a, b, label in reversed(rows)]
    write(tmp_path, tsv([("x", "new", "newer", "0"), *turned]), split="quora")
    dev = {(row[0]) for row in columns(read(tmp_path, "eval", **shares)) if row[0] != "x"}
    assert dev == {row[0] for row in parts["eval"]}
    assert share_of(["a", "b"]) == share_of(["b", "a"]) != share_of(["ab"])


def test_a_share_of_one_text_alone_is_refused(tmp_path):
    write(tmp_path, tsv([(row[0], "one", "text", "1") for row in ROWS]))
    with pytest.raises(UserError, match="no row of it belongs to the dev examples"):
        read(tmp_path, "eval", dev_share=1e-9)


@settings(deadline=None, derandomize=True)
@given(
    texts=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    dev=st.sampled_from([0.0, 0.01, 0.2, 0.45]),
    test=st.sampled_from([0.0, 0.01, 0.2, 0.45]),
)
def test_each_share_gets_a_text_where_there_are_enough_and_equal_texts_stay_together(
    texts, dev, test
):
    shares = [share_of([str(text)]) for text in texts]
    parts = {
        split: [
            text
            for text in texts
            if Part(split, test, test + dev).fitted(shares).takes([str(text)])
        ]
        for split in ("train", "dev", "test")
    }
    assert sorted(sum(parts.values(), [])) == sorted(texts)
    assert not set(parts["train"]) & {*parts["dev"], *parts["test"]}
    assert not set(parts["dev"]) & set(parts["test"])
    assert bool(parts["test"]) == bool(test and len(set(texts)) > 1 or min(shares) < test)
    others = {share_of([str(text)]) for text in texts if text not in parts["test"]}
    assert bool(parts["dev"]) == bool(
        dev and (len(others) > 1 or (others and min(others) < test + dev))
    )


@pytest.mark.parametrize(
    "settings, parts",
    [
        (dict(dev_share=0.6, test_share=0.4), ["--dev_share=0.6", "leave nothing"]),
        (dict(dev_share=0.1, dev_file="d.tsv"), ["--dev_file=d.tsv", "--dev_share=0.1"]),
        (dict(dev_file="none.tsv"), ["--dev_file=none.tsv", "no such file"]),
        (dict(dev_share=0.5, test_file="none.tsv"), ["--test_file=none.tsv", "no such file"]),
    ],
)
def test_bad_parts_are_refused(tmp_path, settings, parts):
    write(tmp_path, tsv([(*row[:3], "01"[row is ROWS[0]]) for row in ROWS]))
    config = FinetuneConfig(data_dir=str(tmp_path), **settings)
    with pytest.raises(UserError) as caught:
        read_splits(task_of(PAIRS), config, ["train", "eval", "predict"])
    assert all(part in str(caught.value) for part in parts), caught.value


@pytest.mark.parametrize(
    "name, content, parts",
    [
        ("train.jsonl", '{"text_a": "a", "label": 1}\n[1]\n', ["line 2 is not an object"]),
        (
            "train.jsonl",
            '{"text_a": "a", "label": 1}\n{"text_a": "b"}\n',
            ["line 2 has no 'label'"],
        ),
        (
            "train.jsonl",
            '{"text_a": "a", "label": 1}\n{"text_a": "b", "text_b": "c", "label": 1}\n',
            ["line 2 has 'text_b', which the first has not"],
        ),
        ("train.jsonl", '{"text_a": NaN}\n', ["line 1 is not valid JSON"]),
        ("train.parquet", "PAR1 but not really", ["cannot be read", "copy it again"]),
        ("train.parquet", "", ["cannot be read"]),
    ],
)
def test_bad_json_and_parquet_are_refused(tmp_path, name, content, parts):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert all(part in message for part in [name, *parts]) and len(message) <= 300, message


@pytest.mark.parametrize(
    "labels, order",
    [
        (["1", "0", "1"], ("0", "1")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "a", "10"], ("10", "a", "b")),
        (["no", "yes"], ("no", "yes")),
        (["2", "1.0", "1.5"], ("1", "1.5", "2")),
    ],
)
def test_labels_are_sorted_as_numbers_where_they_are_numbers(tmp_path, labels, order):
    write(tmp_path, tsv([("i", "a", "b", label) for label in labels]))
    config = FinetuneConfig(data_dir=str(tmp_path))
    task, files = read_splits(task_of(PAIRS), config, ["train"])
    assert task.labels == order
    targets = task.targets(files["train"][0])
    assert targets.tolist() == [order.index(label.removesuffix(".0")) for label in labels]


@pytest.mark.parametrize(
    "text, parts",
    [
        (tsv(header=("id", "text_a", "text_b", "gold")), ["line 1", "'label'", "gold", "--label"]),
        (
            tsv(header=("id", "first", "text_b", "label")),
            ["line 1", "'text_a'", "first, text_b", "--text_a"],
        ),
        (
            tsv(header=("text_a", "text_a", "text_b", "label")),
            ["line 1", "2 columns called 'text_a'"],
        ),
        (
            tsv([("1", "a", "b", "-"), ("2", "a", "b", " ")]),
            ["no example has a label ('label' is '-', ''); name a file that has some"],
        ),
        (
            tsv([("1", "a", "b", "1"), ("2", "a", "b")]),
            ["line 3 has 3 columns, the header 4", "quote texts with a tab"],
        ),
        (
            tsv([("1", "a", "b", "1"), ("2", "a", "b", "1", "?")]),
            ["line 3 has 5 columns, the header 4"],
        ),
        (
            "text\tlabel\na\t1\n",
            ["line 1 has no column 'text_a' (it has text, label)", "give --task_name=single"],
        ),
        (
            "How are you?\tHow do you do\t1\na\tb\t0\n",
            ["line 1 (How are you?, How do you do, 1) seems", "--columns=text_a,text_b,label"],
        ),
        ("so it is\t1\na\t0\n", ["the 2 columns with --columns=text_a,label"]),
        ("so it is\t1\t2\tx\na\t0\t1\tx\n", ["the 4 columns with --columns=text_a,..."]),
        (
            "text_a;text_b;label\na, b;c;1\n",
            ["line 1 has ';' between its columns ('text_a;text_b;label')", "a .tsv has tabs;"],
        ),
        ("text_a,text_b,label\na,b,1\n", ["line 1 has ','", "name it .csv"]),
        (tsv([]), ["no examples"]),
        ("", ["no examples"]),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, parts):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    message = str(caught.value)
    assert "\n" not in message and len(message) <= 300, message
    assert all(part in message for part in [str(path), *parts]), message


def test_a_csv_with_tabs_or_semicolons_is_named_before_its_rows(tmp_path):
    for delimiter, shown in (("\t", "a tab"), (";", "';'")):
        row = delimiter.join(["text_a", "text_b", "label"])
        write(tmp_path, f"{row}\nYes, it is{delimiter}b{delimiter}1\n", kind="csv")
        with pytest.raises(UserError, match=f"line 1 has {shown} between its columns .* commas; "):
            read(tmp_path)


@pytest.mark.parametrize("task", ["pairs", "qqp"])  # qqp leaves out broken lines
def test_columns_that_do_not_fit_the_file_are_refused(tmp_path, task):
    path, config = write(tmp_path, tsv()), FinetuneConfig(data_dir=str(tmp_path), task_name=task)
    config = dataclasses.replace(config, columns=("one", "two"), text_a="one", label="two")
    with pytest.raises(UserError) as caught:
        read_splits(task_of(config), config, ["train"])
    assert str(caught.value) == (
        f"{path}: line 1 has 4 columns and is no header (it lacks 'one'); --columns must name each "
        "column, and 2 are named: one, two"
    )


def test_bad_files_are_refused(tmp_path):
    def refused(phase="train", task=PAIRS, folder=tmp_path):
        with pytest.raises(UserError) as caught:
            config = FinetuneConfig(data_dir=str(folder))
            read_splits(task_of(task), config, list(dict.fromkeys(["train", phase])))
        return str(caught.value)

    assert "no such folder" in refused(folder=tmp_path / "none")
    assert "has no train.tsv or .csv or .jsonl or .parquet" in refused()
    assert "--dev_share" not in refused()
    (tmp_path / "train.tsv").mkdir()
    assert "train.tsv: cannot be read (it is a folder)" in refused()
    (tmp_path / "train.tsv").rmdir()
    write(tmp_path, tsv([("1", "a", "b", "1")]) + "2\tcaf\xe9\tb\t0\n", encoding="latin-1")
    assert "train.tsv: line 3 is not UTF-8" in refused()
    (tmp_path / "train.tsv").write_bytes(gzip.compress(b"text_a"))
    assert "train.tsv: is a gzip archive, not plain text; unpack it (gzip -dc < F" in refused()
    (tmp_path / "train.tsv").write_bytes("text_a\n".encode("utf-16"))
    assert "the file is UTF-16, so convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW" in refused()
    write(tmp_path, tsv())
    assert refused("eval").endswith(
        "has no dev.tsv or .csv or .jsonl or .parquet or .json; add one, name another folder, name "
        "the file with --dev_file, or give a share of the training file, --dev_share=.1"
    )
    write(tmp_path, "text_a\tlabel\na\t1\n", split="dev")
    assert "dev.tsv: line 1 has no column 'text_b'" in refused("eval")
    write(tmp_path, 'text_a,text_b,label\n"a,b,1\n', kind="csv", split="test")
    assert "test.csv: line 2 is not valid CSV" in refused("predict")
    write(tmp_path, tsv(), split="dev", kind="csv")
    assert "both exist" in refused("eval")
    required = tasks.TaskSpec(name="pairs", text_b="second", requires_text_b=True)
    assert "no column 'second'" in refused(task=required)


def test_labels_unknown_to_the_task_or_alone_are_refused(tmp_path):
    write(tmp_path, tsv([("1", "a", "b", "1"), ("2", "a", "b", "1")]))
    with pytest.raises(UserError, match=r"train.tsv: '1' is the only label of its 2 "):
        read_splits(task_of(PAIRS), FinetuneConfig(data_dir=str(tmp_path)), ["train"])
    rte = dataclasses.replace(PAIRS, name="rte", labels=("yes", "no"))
    write(tmp_path, tsv([("1", "a", "b", "yes"), ("2", "a", "b", "1")]))
    said = (
        r"train.tsv: line 3 has the label '1', which rte does not have \(it has no, yes\); correct"
    )
    with pytest.raises(UserError, match=said):
        read(tmp_path, task=rte)


def test_labels_none_of_which_the_model_has_are_not_evaluated(tmp_path):
    config = FinetuneConfig(data_dir=str(tmp_path))
    for split in ("dev", "test"):
        write(tmp_path, tsv([("1", "a", "b", "1"), ("2", "a", "b", "2")]), split=split)
    said = (
        r"dev.tsv: none of its labels \(1 \(1\), 2 \(1\)\) is one of the model's \(no, yes\); write"
    )
    with pytest.raises(UserError, match=said):
        evaluations.read(config, "eval", ("yes", "no"))
    [test] = evaluations.read(config, "predict", ("yes", "no"))
    assert not test.has_labels and len(test) == 2 and "there are no metrics" in test.warnings[0]


@pytest.mark.parametrize(
    "labels, kind, warns",
    [
        (["0.1", "0.2", "3"], "classification", True),
        (["0.1", "0.2", "3"], "regression", False),
        (["1", "2.0", "3"], "classification", False),  # stars
        (["0.5", "1"], "classification", False),
        (["0.1", "0.2", "x"], "classification", False),
    ],
)
def test_numbers_that_are_taken_for_classes_are_warned_of(tmp_path, labels, kind, warns):
    write(tmp_path, tsv([("1", "a", "b", label) for label in labels]))
    warnings = read(tmp_path, task=dataclasses.replace(PAIRS, kind=kind)).warnings
    assert len(warnings) == warns and all("--task_kind=regression" in one for one in warnings)


@pytest.mark.parametrize(
    "files, phase, parts",
    [
        (["train"], "eval", ["--dev_file: there is no file", "--dev_share", "--nodo_eval"]),
        (["train", "dev"], "predict", ["--test_file: there is no file to predict"]),
        (["dev"], "train", ["--train_file: there is no file to train on"]),
    ],
)
def test_files_without_a_folder_are_all_there_is(tmp_path, files, phase, parts):
    named = {f"{split}_file": str(write(tmp_path, tsv(), split=split)) for split in files}
    config = FinetuneConfig(**named)
    assert resolve_phases(config) == ["train", "eval"] and not has_test_file(config)
    with pytest.raises(UserError) as caught:
        read_splits(task_of(PAIRS), config, [phase])
    message = str(caught.value)
    assert all(part in message for part in parts) and len(message) <= 300, message
    assert len(read_splits(task_of(PAIRS), config, [files[0].replace("dev", "eval")])[1]) == 1
