"""Each kind of answer: labels become the right targets, losses equal NumPy's, answers are names."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings
from bert_gpu.finetune.files.splits import read_splits
from bert_gpu.finetune.tasks.labels import read_labels
from bert_gpu.finetune.tasks.opening import check_settings, resolve_spec
from bert_gpu.finetune.tasks.table import TaskSpec
from bert_gpu.finetune.tasks.text_classification import Classification, Regression
from tests.finetune.evaluations import configured, task_of

LOGITS = np.random.default_rng(1).normal(size=(6, 3)).astype(np.float32) * 2


def labelled(folder, labels, **settings):
    """(task, Examples) of a training on a file with these labels."""
    rows = "".join(f"text\t{label}\n" for label in labels)
    (folder / "train.tsv").write_text(f"text_a\tlabel\n{rows}")
    config = FinetuneConfig(data_dir=str(folder), **settings)
    task, files = read_splits(task_of(config), config, ["train"])
    return configured(task, files["train"][0], run=config), files["train"][0]


def log_softmax(logits):
    return logits - np.log(np.sum(np.exp(logits), -1, keepdims=True))


def test_smoothed_and_weighted_cross_entropy():
    targets, weights = np.array([0, 1, 2, 2, 1, 0], np.int32), (1.0, 2.0, 0.5)
    task = Classification(
        spec=TaskSpec(name="own"), labels=tuple("abc"), label_smoothing=0.1, class_weights=weights
    )
    wanted = np.eye(3)[targets] * 0.9 + 0.1 / 3
    losses = -np.sum(wanted * log_softmax(LOGITS.astype(np.float64)), -1)
    factors = np.array(weights)[targets]
    np.testing.assert_allclose(
        task.losses(tf.constant(LOGITS), targets), losses * factors, rtol=1e-5
    )
    np.testing.assert_allclose(task.weights(tf.constant(targets)), factors)
    outputs = task.outputs(LOGITS.astype(np.float64))
    np.testing.assert_allclose(outputs, np.exp(log_softmax(LOGITS.astype(np.float64))))
    assert task.predicted_labels(outputs) == ["abc"[index] for index in np.argmax(LOGITS, -1)]


def test_a_number(tmp_path):
    task, examples = labelled(tmp_path, ["0", "2.5", "-1e3", "2.5"], task_kind="regression")
    assert isinstance(task, Regression) and task.labels == ("score",)
    targets = task.targets(examples)
    assert targets.tolist() == [0, 2.5, -1000, 2.5] and targets.dtype == np.float32
    found = task.losses(tf.constant(LOGITS[:4, :1]), targets)
    np.testing.assert_allclose(found, (LOGITS[:4, 0] - targets) ** 2, rtol=1e-6)
    assert task.predicted_labels(np.array([[0.25], [-3.0]])) == ["0.25", "-3"]


@pytest.mark.parametrize("label", ["much", "inf", "1e999", "1e39"])
def test_what_is_no_number_is_refused(tmp_path, label):
    task, examples = labelled(tmp_path, ["1", label], task_kind="regression")
    with pytest.raises(UserError, match=f"line 3 has the label '{label}', which is no number"):
        task.targets(examples)


def test_several_labels(tmp_path):
    cells = ["b", "a, b", '["c", "a,x"]', "b,,b", "", "[]"]
    task, examples = labelled(tmp_path, cells, task_kind="multilabel")
    assert task.labels == ("a", "a,x", "b", "c")
    targets = task.targets(examples)
    assert targets[:4].tolist() == [[0, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]
    assert not targets[4:].any()  # none of them
    logits = np.array([[1.0, -2.0, 30.0, -30.0]] * 6)
    outputs = task.outputs(logits)
    np.testing.assert_allclose(outputs, 1 / (1 + np.exp(-logits)), rtol=1e-12)
    assert task.predicted_labels(outputs) == ["a,b"] * 6
    losses = np.mean(np.where(targets > 0, np.log1p(np.exp(-logits)), np.log1p(np.exp(logits))), -1)
    np.testing.assert_allclose(
        task.losses(tf.constant(logits, tf.float32), targets), losses, rtol=1e-5
    )
    lacking = dataclasses.replace(task, labels=("a", "b", "c")).targets(examples)
    assert lacking.tolist() == targets[:, [0, 2, 3, 1]].tolist()


def test_weights_of_classes(tmp_path):
    labels = ["x"] * 6 + ["y"] * 2

    def weights(text):
        return labelled(tmp_path, labels, class_weights=text)[0].class_weights

    assert weights(None) is None
    assert weights("balanced") == pytest.approx((8 / 12, 8 / 4))


@pytest.mark.parametrize("flags", [dict(label_smoothing=0.1), dict(class_weights="balanced")])
def test_what_is_for_classes_is_refused_elsewhere(flags):
    config = FinetuneConfig(task_kind="regression", **flags)
    with pytest.raises(
        UserError, match=r"applies to classification only, not to regression; drop it"
    ):
        check_settings(FinetuneSettings(run=config), task_of(config))


@pytest.mark.parametrize(
    "cells, known, labels",
    [
        (["-1", "0", "1"], {}, ["-1", "0", "1"]),
        (["-1", "0", "x"], {}, [None, "0", "x"]),
        (["-1", "0", "x"], dict(classes=("0", "1")), ["-1", "0", "x"]),
        (["-1", "0", "1"], dict(classes=("a", "b", "0")), [None, "0", "1"]),
        (["-1", "0", "1"], dict(task_name="cola"), [None, "0", "1"]),
        (["-1", "-"], dict(classes=("+", "-")), [None, "-"]),
        (["-1", "0", "1"], dict(names=("-1", "0"), classes=("-1", "0")), [None, "-1", "0"]),
        (["-1", "0", "1"], dict(names=("1", "2", "3"), classes=("1", "2")), [None, "1", "2"]),
        (["-1", "0", "1"], dict(names=("1", "2", "3"), classes=("0", "1")), [None, "0", "1"]),
        (["-1", "-1.0"], dict(classes=("0", "1"), may_lack=True), [None, None]),
        (["-1", "much", "nan"], dict(task_kind="regression"), ["-1", "much", None]),
        (["-1", "2"], dict(task_kind="regression", classes=("LABEL_0",)), ["-1", "2"]),
    ],
)
def test_minus_one_is_a_class_among_numbers_that_nothing_names(cells, known, labels):
    known = dict(known)
    asked = {name: known.pop(name) for name in ("task_name", "task_kind") if name in known}
    found = read_labels(cells, resolve_spec(FinetuneConfig(**asked)), **known)
    assert [found.get(cell, (None,)) for cell in cells] == [(label,) for label in labels]
