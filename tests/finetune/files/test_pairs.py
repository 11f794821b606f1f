"""Files of the task similarity: what a file is follows from its content."""

import gzip

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.files.examples import Source
from bert_gpu.finetune.files.pairs import PairExamples
from bert_gpu.finetune.tasks.similarity_metrics import LABELLED, METRICS, PAIRS, SCORED, TEXTS
from bert_gpu.finetune.tasks.table import TASKS

ROWS = [("a b", "c"), ("d", "e f"), ("a  b", "g"), ("h", "c")]


def read(path, header, rows, needs_label=True, stem="train", **changes):
    """The examples of a table with these rows."""
    lines = ["\t".join(map(str, row)) for row in [header, *rows]]
    path.write_text("\n".join(lines) + "\n")
    task = TASKS["similarity"].__class__(**vars(TASKS["similarity"]) | changes)
    return PairExamples(task, Source(stem, str(path)), needs_label)


def texts_of(examples):
    return [text for texts in examples.texts() for text in texts]


def labelled(*labels):
    return [(*row, label) for row, label in zip(ROWS, labels, strict=False)]


@pytest.mark.parametrize(
    "labels, named, kind, targets",
    [
        ("1101", None, LABELLED, [1, 1, 0, 1]),
        ("1101", "0", LABELLED, [0, 0, 1, 0]),
        (["1.0", "1.0", "1.0", "1.0"], None, LABELLED, [1, 1, 1, 1]),
        (["same", "not_same", "same", "same"], None, LABELLED, [1, 0, 1, 1]),
        (["5", "2.5", "0", "1"], None, SCORED, [1, 0.5, 0, 0.2]),
    ],
)
def test_labels_are_classes_or_scores(tmp_path, labels, named, kind, targets):
    examples = read(tmp_path / "x.tsv", ["text_a", "text_b", "label"], labelled(*labels))
    assert examples.kind == kind and examples.has_labels and len(examples) == 4
    np.testing.assert_array_equal(examples.targets(named, 5.0), np.float32(targets))


def test_without_labels_pairs_are_positive_and_hard_negatives_follow(tmp_path):
    header = ["negative_2", "text_a", "id", "text_b", "negative", "negatives"]
    rows = [("n2", "a b", 7, "c", "n", "x"), ("", "d", 8, "e f", "m", "y")]
    examples = read(tmp_path / "x.tsv", header, rows)
    assert examples.kind == PAIRS and examples.rows_per_example == 4
    assert texts_of(examples) == ["a b", "c", "n2", "n", "d", "e f", "", "m"]
    assert examples.targets(None, 1.0).tolist() == [1, 1]
    assert examples.task.metrics == () and examples.text_b == "text_b"
    dev = read(tmp_path / "x.tsv", header, rows, stem="dev")
    assert dev.has_labels and dev.task.metrics == METRICS[PAIRS]
    test = read(tmp_path / "x.tsv", header, rows, needs_label=False, stem="test")
    assert not test.has_labels and test.task.metrics == ()


def test_rows_without_a_label_are_left_out_of_a_training(tmp_path):
    examples = read(tmp_path / "x.tsv", ["text_a", "text_b", "label"], labelled("1", "", "0", "1"))
    assert texts_of(examples) == ["a b", "c", "a  b", "g", "h", "c"]
    assert examples.targets(None, 1.0).tolist() == [1, 0, 1]


def test_single_texts_are_read_from_a_column_or_from_lines(tmp_path):
    examples = read(tmp_path / "x.tsv", ["id", "text_a", "label"], [(1, "a b", ""), (2, "c", 1)])
    assert examples.kind == TEXTS and texts_of(examples) == ["a b", "c"]
    assert examples.rows_per_example == 2
    (tmp_path / "x.txt").write_text('say "a, b\n\n\tc\td \ntext_a\n\n')
    lines = PairExamples(TASKS["similarity"], Source("train", str(tmp_path / "x.txt")), True)
    assert texts_of(lines) == ['say "a, b', "\tc\td ", "text_a"] and lines.kind == TEXTS
    assert lines.num_skipped == 0 and lines.task.text_b == "text_b"


ERRORS = {
    "lacks one of its two texts": (["text_a", "text_b"], [("a", "b"), ("c", " ")], {}),
    "line 3 has 1 columns, the header 2": (["text_a", "text_b"], [("a", "b"), ("c",)], {}),
    "line 3 has the score '5.1', which is not in the range 0 to 5": (
        ["text_a", "text_b", "label"], [("a", "b", 3), ("c", "d", 5.1)], {}),
    "line 3 has the score 'high', which is no number": (
        ["text_a", "text_b", "label"], [("a", "b", 3), ("c", "d", "high")], {}),
    "must be one of two classes": (["text_a", "text_b", "label"], labelled(*"1010"), {}),
    "has no column 'text_b'": (["text_a", "question"], [("a", "b")], dict(requires_text_b=True)),
    "has single texts, and a cosine is that of a pair": (
        ["text_a"], [("a",)], dict(needs_label=False)),
    "has no column 'text_a' (it has text); name yours with --text_a": (["text"], [("a",)], {}),
}  # fmt: skip


@pytest.mark.parametrize("problem", ERRORS)
def test_a_bad_file_is_one_clear_line(tmp_path, problem):
    header, rows, more = ERRORS[problem]
    with pytest.raises(UserError) as caught:
        examples = read(tmp_path / "x.tsv", header, rows, **more)
        texts_of(examples)
        examples.targets("yes" if "classes" in problem else None, 5.0)
    message = str(caught.value)
    assert problem in message and "\n" not in message and len(message) <= 300
    if "lacks" in problem:
        assert "line 3" in message


def test_a_compressed_text_is_refused(tmp_path):
    (tmp_path / "x.txt").write_bytes(gzip.compress(b"a b c\n"))
    with pytest.raises(UserError, match="gzip|compressed|unpack"):
        PairExamples(TASKS["similarity"], Source("train", str(tmp_path / "x.txt")), True)
