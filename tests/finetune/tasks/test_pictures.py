"""What pictures show equals what is counted by hand."""

import pathlib

import numpy as np
import pytest

from bert_gpu.finetune import results
from bert_gpu.finetune.tasks import pictures
from bert_gpu.finetune.tasks.table import TaskSpec

OUTPUTS = np.array([[0.9, 0.05, 0.05], [0.2, 0.7, 0.1], [0.35, 0.33, 0.32], [0.0, 0.0, 1.0]])
TARGETS = np.array([0, 0, 1, 2])


def test_confusion():
    counts = pictures.count_pairs(3, np.argmax(OUTPUTS, -1), TARGETS)
    assert counts.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    texts = [text.get_text() for text in pictures.confusion("abc", [0, 1], [0, 0]).axes[0].texts]
    assert texts == ["1", "1", "0", "0", "0", "0", "0", "0", "0"]


def test_reliability():
    confidence, right, number = pictures.calibration(OUTPUTS, TARGETS)
    np.testing.assert_allclose(confidence, [0.35, 0.7, 0.95])  # .9 and 1.0 share the last bin
    assert right.tolist() == [0, 0, 1] and number.tolist() == [1, 1, 2]
    title = pictures.reliability(OUTPUTS, TARGETS).axes[0].get_title()
    assert f"{(0.35 + 0.7 + 2 * 0.05) / 4:.3f}" in title


def test_roc_has_the_classes_that_can_have_one():
    one_hot = np.eye(3)[[0, 0, 1, 1]]
    legend = pictures.roc("abc", OUTPUTS, one_hot).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["a: 0.750", "b: 0.250"]
    alone = pictures.roc("ab", OUTPUTS[:, :2], np.eye(2)[[0, 0, 0, 0]]).axes[0]
    assert alone.get_legend() is None


@pytest.mark.parametrize(
    "kind, outputs, targets, names",
    [
        ("regression", OUTPUTS[:, :1], TARGETS.astype(np.float32), ["scatter"]),
        ("multilabel", OUTPUTS, np.eye(3)[TARGETS], ["roc"]),
        ("classification", OUTPUTS, TARGETS, ["confusion", "roc", "reliability"]),
    ],
)
def test_files(tmp_path, kind, outputs, targets, names):
    task = TaskSpec(name="x", kind=kind)
    paths = pictures.draw(str(tmp_path), "dev", task, "abc", outputs, targets, results.new_file)
    assert paths == [str(tmp_path / "pictures" / f"dev-{name}.png") for name in names]
    assert results.read_files(str(tmp_path)) == {
        "eval_results.json",
        *(f"pictures/dev-{name}.png" for name in names),
    }
    assert all(pathlib.Path(path).read_bytes().startswith(b"\x89PNG") for path in paths)
