"""Metrics of predictions, from the outputs and targets of a type of task on texts.

Legend: N examples, C classes or labels. A metric that is not defined for the data (ROC-AUC when all
labels are equal, F1 when a class does not occur, a correlation with a constant) is None, not 0 or
1. SciPy and scikit-learn compute correlations, F1 and areas.

A target may be a label that the model lacks: a class of C or more, or a column after the first C of
several labels. Any prediction for it counts as wrong; loss and ROC-AUC, which need the label's
probability, leave it out.
"""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from bert_gpu.base.environment import LazyModule

scores = LazyModule("sklearn.metrics")
stats = LazyModule("scipy.stats")


def accuracy(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of examples whose most probable class is the label; on a tie the first class
    counts.
    """
    return float(scores.accuracy_score(labels, np.argmax(probabilities, -1)))


def f1(probabilities: np.ndarray, labels: np.ndarray, positive: int = 1) -> float | None:
    """Return the F1 of the class `positive` for two classes; for more, the unweighted mean over the
    classes, including those that the model lacks.

    None when a class that is scored has no example.
    """
    if probabilities.shape[1] == 2:
        return _f1(probabilities, labels, [positive])
    return f1_of_classes(probabilities, labels)


def f1_of_classes(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the unweighted mean of the F1 of every class ("macro"), also for two classes; None
    when a class has no example.
    """
    return _f1(probabilities, labels, np.union1d(np.arange(probabilities.shape[1]), labels))


def _f1(
    probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[int] | np.ndarray
) -> float | None:
    if not np.isin(classes, labels).all():
        return None
    predicted = np.argmax(probabilities, -1)
    return float(
        scores.f1_score(labels, predicted, labels=classes, average="macro", zero_division=0.0)
    )


def auc(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the area under the ROC curve: for two classes the area of either, as both are equal;
    for more the unweighted mean of the areas of each class against the rest. None unless every
    class has an example.
    """
    num_classes = probabilities.shape[1]
    probabilities = probabilities[labels < num_classes]
    labels = labels[labels < num_classes]
    if len(np.unique(labels)) != num_classes:
        return None
    if num_classes == 2:
        return float(scores.roc_auc_score(labels, probabilities[:, 1]))
    columns = enumerate(probabilities.T)
    areas = [scores.roc_auc_score(labels == index, column) for index, column in columns]
    return float(np.mean(areas))


def matthews(probabilities: np.ndarray, labels: np.ndarray) -> float | None:
    """Return the Matthews correlation of predicted and true classes. None when all labels are
    equal; 0 for a constant prediction, as in scikit-learn and GLUE.
    """
    if len(np.unique(labels)) < 2:
        return None
    return float(scores.matthews_corrcoef(labels, np.argmax(probabilities, -1)))


def loss(outputs: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean loss: the cross-entropy in nats for one class or several labels an example,
    the squared error for numbers. scikit-learn's log_loss is not used: it is clipped at 36, and so
    differs from the training loss.
    """
    targets = np.asarray(targets)
    if targets.ndim == 1 and np.issubdtype(targets.dtype, np.floating):
        return float(np.mean(np.square(outputs[:, 0] - targets.astype(np.float64))))
    if targets.ndim == 1:
        is_known = targets < outputs.shape[1]
        shares = np.take_along_axis(outputs[is_known], targets[is_known][:, None], -1)[:, 0]
    else:
        shares = np.where(targets[:, : outputs.shape[1]] > 0, outputs, 1 - outputs)
    shares = np.asarray(shares, np.float64)
    return float(np.mean(-np.log(np.maximum(shares, np.finfo(np.float64).tiny))))


def correlation(values: np.ndarray, targets: np.ndarray, name: str) -> float | None:
    """Return Pearson's ("pearsonr") correlation of predicted and true numbers, or Spearman's
    ("spearmanr") of their ranks, ties at their mean rank; None when all predicted or all true
    numbers are equal.
    """
    values = np.asarray(values[:, 0], np.float64)
    targets = np.asarray(targets, np.float64)
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(targets) == 0:
        return None
    value = float(getattr(stats, name)(values, targets)[0])
    return value if np.isfinite(value) else None


def exact_match(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of examples all of whose labels are right."""
    labels = np.asarray(labels) > 0
    return float(np.mean(np.all(_decisions(probabilities, labels) == labels, -1)))


def _decisions(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether each label is predicted for each example, bool (N, number of columns of the
    labels); False for a label that the model lacks.
    """
    return np.pad(probabilities > 0.5, [(0, 0), (0, labels.shape[1] - probabilities.shape[1])])


def f1_of_labels(probabilities: np.ndarray, labels: np.ndarray, average: str) -> float | None:
    """Return the F1 over all decisions together ("micro"), None when no example has any label; or
    the unweighted mean of the F1 of every label ("macro"), None when a label does not occur.
    """
    labels = np.asarray(labels) > 0
    if not (labels.any() if average == "micro" else labels.any(0).all()):
        return None
    decisions = _decisions(probabilities, labels)
    return float(scores.f1_score(labels, decisions, average=average, zero_division=0.0))


METRICS: dict[str, Callable[..., float | None]] = dict(
    accuracy=accuracy,
    f1=f1,
    f1_of_classes=f1_of_classes,
    auc=auc,
    matthews=matthews,
    loss=loss,
    pearson=functools.partial(correlation, name="pearsonr"),
    spearman=functools.partial(correlation, name="spearmanr"),
    exact_match=exact_match,
    f1_micro=functools.partial(f1_of_labels, average="micro"),
    f1_macro=functools.partial(f1_of_labels, average="macro"),
)


def compute_metrics(
    outputs: np.ndarray,
    targets: np.ndarray,
    names: Sequence[str] = ("accuracy", "f1", "auc", "loss"),
    positive: int = 1,
) -> dict[str, float | None]:
    """Return {name: value} of the metrics `names`; None for a metric that is not defined. positive:
    index of the class whose F1 is reported, of two classes.

    Args:
      outputs: the outputs of a problem type, float (N, C); a classifier's rows sum to 1.
      targets: the targets of the problem type: int (N,) for classes, float (N,) for numbers, 0 and
        1 (N, C) for several labels.
    """
    outputs = np.asarray(outputs)
    targets = np.asarray(targets)
    if not np.isfinite(outputs).all():  # a model that has overflowed predicts nothing
        return dict.fromkeys(names)
    metrics = METRICS | dict(f1=functools.partial(f1, positive=positive))
    return {name: metrics[name](outputs, targets) for name in names}
