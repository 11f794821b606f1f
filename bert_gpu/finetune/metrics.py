"""Accuracy, F1, ROC-AUC and loss of predictions, from probabilities and labels.

Legend: N examples, C classes. A metric that the data do not define (ROC-AUC when all labels are
equal, F1 when a class does not occur) is None, not 0 or 1.
"""

import numpy as np


def accuracy(probabilities, labels):
    """Share of examples whose most probable class is the label; on a tie the first class counts."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, np.argmax(probabilities, -1)))


def f1(probabilities, labels):
    """F1 of class 1 (the last in order: "1" of "0" and "1") for two classes, the unweighted mean
    over the classes for more.

    None when no example has the label of a class that it averages.
    """
    from sklearn.metrics import f1_score

    num_classes = probabilities.shape[1]
    predictions = np.argmax(probabilities, -1)
    wanted = [1] if num_classes == 2 else list(range(num_classes))
    if not np.isin(wanted, labels).all():
        return None
    return float(f1_score(labels, predictions, labels=wanted, average="macro", zero_division=0.0))


def auc(probabilities, labels):
    """Area under the ROC curve of class 1. None unless there are two classes and both occur."""
    from sklearn.metrics import roc_auc_score

    if probabilities.shape[1] != 2 or len(np.unique(labels)) != 2:
        return None
    return float(roc_auc_score(labels, probabilities[:, 1]))


def loss(probabilities, labels):
    """Mean cross-entropy in nats. Not scikit-learn's log_loss, which clips it at 36 and so differs
    from the training loss.
    """
    chosen = np.take_along_axis(probabilities, np.asarray(labels)[:, None], -1)[:, 0].astype(
        np.float64
    )
    return float(np.mean(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny))))


METRICS = dict(accuracy=accuracy, f1=f1, auc=auc, loss=loss)


def compute_metrics(probabilities, labels, names=tuple(METRICS)):
    """{name: float or None} of the metrics `names`.

    Args:
      probabilities: float (N, C), rows that sum to 1. labels: int (N,), from 0 to C - 1.
    """
    probabilities, labels = np.asarray(probabilities), np.asarray(labels)
    if not np.isfinite(probabilities).all():  # a model that has overflowed predicts nothing
        return dict.fromkeys(names)
    return {name: METRICS[name](probabilities, labels) for name in names}
