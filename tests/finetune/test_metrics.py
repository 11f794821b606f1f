"""Metrics equal values worked out by hand, and are None where the data do not define them."""

import math

import numpy as np
import pytest

from bert_gpu.finetune.metrics import compute_metrics

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


def test_three_classes_take_the_mean_of_f1_and_have_no_auc():
    probabilities = np.eye(3)[[0, 1, 1, 2]] * 0.7 + 0.1
    values = compute_metrics(probabilities, [0, 1, 2, 2])
    assert values["f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)
    assert values["auc"] is None and values["accuracy"] == 0.75


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
