"""Metrics equal values worked out by hand, and are None where the data do not define them; F1 of
two classes is that of the class that it names.
"""

import math
import types

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import number_in
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.tasks.metrics import compute_metrics
from tests.finetune.evaluations import configured, evaluated, task_of

BINARY = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7], [0.8, 0.2], [0.45, 0.55]])


def test_two_classes():
    # Predicted 0 1 1 0 1; true positives 2 (rows 1, 4), false positives 1 (row 2), false
    # negatives 1 (row 3).
    values = compute_metrics(BINARY, [0, 1, 0, 1, 1])
    assert values["accuracy"] == pytest.approx(3 / 5)
    assert values["f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    # Positives have .6 .2 .55, negatives .1 .7: of six pairs, (.6 .2 .55) > .1 are
    # right, none > .7.
    assert values["auc"] == pytest.approx(3 / 6)
    assert values["loss"] == pytest.approx(-np.mean(np.log([0.9, 0.6, 0.3, 0.2, 0.55])))


def test_three_classes_take_the_mean_over_the_classes():
    probabilities = np.eye(3)[[0, 1, 1, 2]] * 0.7 + 0.1
    values = compute_metrics(probabilities, [0, 1, 2, 2])
    assert values["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    # class 0: 1 > the three others; 1: one of three others ties with it; 2: one of two is lowest
    assert values["auc"] == pytest.approx((1 + (2 + 0.5) / 3 + (1 + 0.5) / 2) / 3)
    assert values["accuracy"] == 0.75
    assert compute_metrics(probabilities, [0, 1, 1, 1])["auc"] is None  # no example of class 2


def test_two_classes_and_the_mean_of_their_f1():
    # of class 0: one of two predictions right, and one of its two examples found
    values = compute_metrics(BINARY, [0, 1, 0, 1, 1], ["f1_of_classes", "matthews"])
    assert values["f1_of_classes"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert values["matthews"] == pytest.approx((2 * 1 - 1 * 1) / math.sqrt(3 * 3 * 2 * 2))


def test_matthews_of_constants():
    constant = np.tile([0.9, 0.1], (4, 1))
    assert compute_metrics(constant, [0, 1, 0, 1], ["matthews"]) == dict(matthews=0.0)
    assert compute_metrics(constant, [0, 0, 0, 0], ["matthews"]) == dict(matthews=None)


def test_numbers():
    values, targets = np.array([[1.0], [2.0], [2.0], [5.0]]), np.float32([0, 3, 1, 4])
    found = compute_metrics(values, targets, ["pearson", "spearman", "loss"])
    centred = values[:, 0] - 2.5, targets - 2.0
    product = np.sum(centred[0] * centred[1])
    assert found["pearson"] == pytest.approx(
        product / np.sqrt(np.sum(centred[0] ** 2) * np.sum(centred[1] ** 2))
    )
    ranks = np.array([1, 2.5, 2.5, 4]), np.array([1, 3, 2, 4])  # ties share their mean rank
    assert found["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert found["loss"] == pytest.approx((1 + 1 + 1 + 1) / 4)


@pytest.mark.parametrize("values, targets", [([1, 1], [0, 1]), ([0, 1], [2, 2]), ([1], [1])])
def test_no_correlation_with_a_constant(values, targets):
    found = compute_metrics(np.array(values)[:, None], np.float32(targets), ["pearson", "spearman"])
    assert found == dict(pearson=None, spearman=None)


def test_several_labels_an_example():
    probabilities = np.array([[0.9, 0.8, 0.1], [0.2, 0.7, 0.1], [0.6, 0.5, 0.9]])
    targets = np.float32([[1, 0, 0], [0, 1, 0], [1, 0, 1]])
    values = compute_metrics(
        probabilities, targets, ["f1_micro", "f1_macro", "exact_match", "loss"]
    )
    assert values["f1_micro"] == pytest.approx(2 * 4 / (2 * 4 + 1 + 0))
    assert values["f1_macro"] == pytest.approx((1 + 2 / 3 + 1) / 3)
    assert values["exact_match"] == pytest.approx(2 / 3)
    chosen = np.where(targets > 0, probabilities, 1 - probabilities)
    assert values["loss"] == pytest.approx(-np.mean(np.log(chosen)))
    nothing = compute_metrics(probabilities, 0 * targets, ["f1_micro", "f1_macro"])
    assert nothing == dict(f1_micro=None, f1_macro=None)


def test_the_mean_over_labels_needs_each_label_and_not_a_label_of_each_example():
    probabilities = np.array([[0.9, 0.8], [0.2, 0.7], [0.6, 0.1]])
    absent = compute_metrics(probabilities, np.float32([[1, 0], [1, 0], [1, 0]]), ["f1_macro"])
    assert absent == dict(f1_macro=None)
    found = compute_metrics(probabilities, np.float32([[1, 0], [0, 1], [0, 0]]), ["f1_macro"])
    assert found["f1_macro"] == pytest.approx((2 / 3 + 2 / 3) / 2)


@pytest.mark.parametrize("label, f1", [(0, None), (1, 2 * 3 / (2 * 3 + 2))])
def test_a_class_that_is_absent(label, f1):
    values = compute_metrics(BINARY, [label] * 5)
    assert values["auc"] is None and values["f1"] == (f1 if f1 is None else pytest.approx(f1))
    assert values["accuracy"] is not None and values["loss"] is not None


def test_f1_is_0_when_the_positive_class_is_never_predicted():
    assert compute_metrics(np.array([[0.9, 0.1], [0.8, 0.2]]), [0, 1])["f1"] == 0.0


def test_loss_of_certain_mistakes_is_finite_and_not_cut_short():
    values = compute_metrics(np.array([[1 - 1e-200, 1e-200], [1.0, 0.0]]), [1, 1])
    assert math.isfinite(values["loss"]) and values["loss"] > 460


def test_no_numbers_from_a_model_that_overflowed():
    assert set(compute_metrics(np.full((2, 2), np.nan), [0, 1]).values()) == {None}


NAMES = st.text("abzNOÉüß1", min_size=1, max_size=5)
MARKS = st.sampled_from(["_", "-", " ", ""])
NEGATIONS = st.sampled_from(["not", "non", "Not", "NON", "un", "no"])


@st.composite
def negated_pairs(draw):
    """(name of a class, name that negates it)."""
    name = draw(NAMES)
    return draw(
        st.sampled_from(
            [(name, draw(NEGATIONS) + draw(MARKS) + name), (name, "no"), (name, "none")]
        )
    )


@settings(max_examples=100)
@given(
    negated_pairs(), st.booleans(), st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1)
)
def test_f1_is_of_the_class_that_is_no_negation_and_equals_scikit_learn(pair, is_asked, rows):
    name, negation = pair
    assume(name.casefold() not in ("no", "none", "not", "false", "negative", "without"))
    assume(number_in(name) is None)
    labels = tuple(sorted(pair))
    config = FinetuneConfig(positive_label=negation if is_asked else None)
    task = configured(task_of(config, labels), None, run=config, trains=False)
    assert task.positive_label == (negation if is_asked else name)
    assert task.details == dict(positive_label=task.positive_label)
    targets, predictions = np.array(rows, int).T
    one = evaluated(
        examples=types.SimpleNamespace(label_codes=targets),
        rows=types.SimpleNamespace(labels=targets),
        outputs=np.eye(2)[predictions] * 0.8 + 0.1,
    )
    names = [[labels[index] for index in indices] for indices in (targets, predictions)]
    found = task.judge(one)
    assert tuple(found) == task.metric_names == ("accuracy", "f1", "auc", "loss")
    if task.positive_label not in names[0]:
        assert found["f1"] is None
        return
    wanted = f1_score(*names, pos_label=task.positive_label, average="binary", zero_division=0)
    assert found["f1"] == pytest.approx(wanted)
    if len(set(targets)) == 2:
        is_positive = np.array(names[0]) == task.positive_label
        scores = one.outputs[:, labels.index(task.positive_label)]
        assert found["auc"] == pytest.approx(roc_auc_score(is_positive, scores))


@pytest.mark.parametrize("labels", [("a", "b", "c"), ("b", "c")])
def test_a_positive_label_is_one_of_two_classes(labels):
    config = FinetuneConfig(positive_label="a")
    with pytest.raises(UserError, match=f"--positive_label=a: .*the classes are {labels[0]}, "):
        configured(task_of(config, labels), None, run=config, trains=False)
