"""Metrics of predictions, from a problem type's outputs and targets (problem_types.py).

Legend: N examples, C classes or labels. A metric that the data do not define (ROC-AUC when all
labels are equal, F1 when a class does not occur, a correlation with a constant) is None, not 0 or
1. Pearson, Spearman, Matthews and the rest are SciPy's and scikit-learn's.

A target may be a label that the model lacks: a class C or more, or a column behind the C of several
labels. No output is right there; loss and ROC-AUC, which need its probability, leave it out.
"""

import functools

import numpy as np

from bert_gpu.base.environment import LazyModule

scores = LazyModule("sklearn.metrics")
stats = LazyModule("scipy.stats")


def accuracy(probabilities, labels):
    """Share of examples whose most probable class is the label; on a tie the first class counts."""
    return float(scores.accuracy_score(labels, np.argmax(probabilities, -1)))


def f1(probabilities, labels, positive=1):
    """F1 of the class `positive` for two classes, the unweighted mean over the classes for more,
    also over those that the model lacks.

    None when no example has the label of a class that it averages.
    """
    if probabilities.shape[1] == 2:
        return _f1(probabilities, labels, [positive])
    return f1_of_classes(probabilities, labels)


def f1_of_classes(probabilities, labels):
    """The unweighted mean of the F1 of every class ("macro"), also for two. None as for `f1`."""
    return _f1(probabilities, labels, np.union1d(np.arange(probabilities.shape[1]), labels))


def _f1(probabilities, labels, wanted):
    if not np.isin(wanted, labels).all():
        return None
    how = dict(labels=wanted, average="macro", zero_division=0.0)
    return float(scores.f1_score(labels, np.argmax(probabilities, -1), **how))


def auc(probabilities, labels):
    """Area under the ROC curve: for two classes of either, whose areas are equal, the unweighted
    mean over each class against the rest for more. None unless every class occurs.
    """
    num_classes = probabilities.shape[1]
    probabilities, labels = probabilities[labels < num_classes], labels[labels < num_classes]
    if len(np.unique(labels)) != num_classes:
        return None
    if num_classes == 2:
        return float(scores.roc_auc_score(labels, probabilities[:, 1]))
    columns = enumerate(probabilities.T)
    areas = [scores.roc_auc_score(labels == index, column) for index, column in columns]
    return float(np.mean(areas))


def matthews(probabilities, labels):
    """Matthews correlation of predicted and true classes. None when all labels are equal; 0 for a
    constant prediction, as scikit-learn and GLUE have it.
    """
    if len(np.unique(labels)) < 2:
        return None
    return float(scores.matthews_corrcoef(labels, np.argmax(probabilities, -1)))


def loss(outputs, targets):
    """The mean loss: of classes, or of several labels an example, the cross-entropy in nats; of
    numbers the squared error. Not scikit-learn's log_loss, which clips it at 36 and so differs from
    the training loss.
    """
    targets = np.asarray(targets)
    if targets.ndim == 1 and np.issubdtype(targets.dtype, np.floating):
        return float(np.mean(np.square(outputs[:, 0] - targets.astype(np.float64))))
    if targets.ndim == 1:
        is_known = targets < outputs.shape[1]
        outputs, targets = outputs[is_known], targets[is_known]
        chosen = np.take_along_axis(outputs, targets[:, None], -1)[:, 0]
    else:
        chosen = np.where(targets[:, : outputs.shape[1]] > 0, outputs, 1 - outputs)
    chosen = np.asarray(chosen, np.float64)
    return float(np.mean(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny))))


def correlation(values, targets, name):
    """Pearson's ("pearsonr") correlation of predicted and true numbers, or Spearman's ("spearmanr")
    of their ranks, ties at their mean rank; None when either are all equal.
    """
    values, targets = np.asarray(values[:, 0], np.float64), np.asarray(targets, np.float64)
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(targets) == 0:
        return None
    found = float(getattr(stats, name)(values, targets)[0])
    return found if np.isfinite(found) else None


def exact_match(probabilities, labels):
    """Share of examples all of whose labels are right."""
    labels = np.asarray(labels) > 0
    return float(np.mean(np.all(_decisions(probabilities, labels) == labels, -1)))


def _decisions(probabilities, labels):
    """bool (N, columns of the labels): which labels are predicted; none that the model lacks."""
    return np.pad(probabilities > 0.5, [(0, 0), (0, labels.shape[1] - probabilities.shape[1])])


def f1_of_labels(probabilities, labels, average):
    """F1 over all decisions together ("micro"), None when no example has any label; or the
    unweighted mean of the F1 of every label ("macro"), None when a label does not occur.
    """
    labels = np.asarray(labels) > 0
    if not (labels.any() if average == "micro" else labels.any(0).all()):
        return None
    decisions = _decisions(probabilities, labels)
    return float(scores.f1_score(labels, decisions, average=average, zero_division=0.0))


METRICS = dict(
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


def compute_metrics(outputs, targets, names=("accuracy", "f1", "auc", "loss"), positive=1):
    """{name: float or None} of the metrics `names`. positive: of two classes that of F1.

    Args:
      outputs: of a problem type's `outputs`: float (N, C); rows of a classifier's sum to 1.
      targets: of its `targets`: int (N,), float (N,), or 0 and 1 (N, C).
    """
    outputs, targets = np.asarray(outputs), np.asarray(targets)
    if not np.isfinite(outputs).all():  # a model that has overflowed predicts nothing
        return dict.fromkeys(names)
    metrics = METRICS | dict(f1=lambda *pair: f1(*pair, positive))
    return {name: metrics[name](outputs, targets) for name in names}
