"""Files of a task read back as they were written, whatever their line ends and quotes; each bad
file is refused in one line.
"""

import csv

import pytest

from bert_gpu.finetune import tasks
from bert_gpu.settings import UserError

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


def tsv(rows=ROWS, header=("id", "text_a", "text_b", "label"), end="\n"):
    return "".join("\t".join(row) + end for row in [header, *rows])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n"])
def test_tsv_reads_back(tmp_path, end, encoding, last):
    write(tmp_path, tsv(end=end) + last, encoding=encoding)
    examples = tasks.read_split(PAIRS, str(tmp_path), "train")
    assert (
        list(zip(examples.ids, examples.texts_a, examples.texts_b, examples.labels, strict=True))
        == ROWS
    )
    assert examples.lines == [2, 3, 4] and len(examples) == 3


def test_csv_reads_back_with_quotes_and_line_breaks(tmp_path):
    rows = [
        ("1", 'a, "b"', "two\nlines", "yes"),
        ("2", "tab\there", "c", "no"),
        ("3", "x" * 200_000, "d", "no"),
    ]
    with open(tmp_path / "train.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "text_a", "text_b", "label"), *rows])
    examples = tasks.read_split(PAIRS, str(tmp_path), "train")
    assert (
        list(zip(examples.ids, examples.texts_a, examples.texts_b, examples.labels, strict=True))
        == rows
    )
    assert examples.lines == [2, 4, 5]


def test_columns_have_any_order_and_name_and_ids_default_to_row_numbers(tmp_path):
    write(tmp_path, "gold\tq2\tnoise\tq1\n1\tb\t?\ta\n0\td\t?\tc\n")
    task = tasks.TaskSpec("mine", text_a="q1", text_b="q2", label="gold")
    examples = tasks.read_split(task, str(tmp_path), "train")
    assert (examples.ids, examples.texts_a, examples.texts_b, examples.labels) == (
        ["0", "1"],
        ["a", "c"],
        ["b", "d"],
        ["1", "0"],
    )


def test_single_sentences_and_a_test_file_without_labels(tmp_path):
    write(tmp_path, "text_a\tlabel\na\t1\n")
    write(tmp_path, "text_a\nb\n\nc\n".replace("\n\n", "\n"), split="test")
    splits = tasks.read_splits(PAIRS, str(tmp_path), ["train", "test"])
    assert (
        splits["train"].texts_b is None
        and splits["test"].labels is None
        and splits["test"].texts_a == ["b", "c"]
    )


@pytest.mark.parametrize(
    "labels, order",
    [
        (["1", "0", "1"], ("0", "1")),
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["b", "a", "10"], ("10", "a", "b")),
        (["no", "yes"], ("no", "yes")),
        (["nan", "1"], ("1", "nan")),
        (["1", "1.0"], ("1", "1.0")),
    ],
)
def test_labels_are_sorted_as_numbers_where_they_are_numbers(tmp_path, labels, order):
    write(tmp_path, tsv([("i", "a", "b", label) for label in labels]))
    examples = tasks.read_split(PAIRS, str(tmp_path), "train")
    assert tasks.find_labels(examples) == order
    assert tasks.index_labels(examples, order) == [order.index(label) for label in labels]


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
        (tsv([("1", "a", "b", "1"), ("2", "a", "b", " ")]), ["line 3", "empty 'label'"]),
        (
            tsv([("1", "a", "b", "1"), ("2", "a", "b")]),
            ["line 3 has 3 columns, the header 4", ".csv"],
        ),
        (
            tsv([("1", "a", "b", "1"), ("2", "a", "b", "1", "?")]),
            ["line 3 has 5 columns, the header 4"],
        ),
        (tsv([("1", "a", "b", "1"), (), ("2", "a", "b", "0")]), ["line 3 has 0 columns"]),
        (tsv([]), ["no examples"]),
        ("", ["no examples"]),
    ],
)
def test_bad_tables_are_refused(tmp_path, text, parts):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        tasks.read_split(PAIRS, str(tmp_path), "train")
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in [str(path), *parts]), message


def test_bad_files_are_refused(tmp_path):
    def refused(split="train", task=PAIRS, folder=tmp_path):
        with pytest.raises(UserError) as caught:
            tasks.read_splits(
                task, str(folder), ["train", split] if split != "train" else ["train"]
            )
        return str(caught.value)

    assert "no such folder" in refused(folder=tmp_path / "none")
    assert "neither train.tsv nor train.csv" in refused()
    (tmp_path / "train.tsv").mkdir()
    assert "train.tsv: cannot be read (it is a folder)" in refused()
    (tmp_path / "train.tsv").rmdir()
    write(tmp_path, tsv([("1", "a", "b", "1")]) + "2\tcaf\xe9\tb\t0\n", encoding="latin-1")
    assert "train.tsv: line 3 is not UTF-8" in refused()
    write(tmp_path, tsv())
    write(tmp_path, "text_a\tlabel\na\t1\n", split="dev")
    assert "dev.tsv: line 1 has no column 'text_b'" in refused("dev")
    write(tmp_path, 'text_a,text_b,label\n"a,b,1\n', kind="csv", split="test")
    assert "test.csv: line 2 is not valid CSV" in refused("test")
    write(tmp_path, tsv(), split="dev", kind="csv")
    assert "both exist" in refused("dev")
    required = tasks.TaskSpec("pairs", text_b="second", requires_text_b=True)
    assert "no column 'second'" in refused(task=required)


def test_labels_unknown_or_alone_are_refused(tmp_path):
    write(tmp_path, tsv([("1", "a", "b", "1"), ("2", "a", "b", "2")]), split="dev")
    dev = tasks.read_split(PAIRS, str(tmp_path), "dev")
    with pytest.raises(UserError, match=r"dev.tsv: line 3 has the label '2'.*\(it has 0, 1\)"):
        tasks.index_labels(dev, ("0", "1"))
    write(tmp_path, tsv([("1", "a", "b", "1"), ("2", "a", "b", "1")]))
    with pytest.raises(UserError, match=r"train.tsv: all 2 examples have the label '1'"):
        tasks.find_labels(tasks.read_split(PAIRS, str(tmp_path), "train"))
