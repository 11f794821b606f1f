"""Pictures of the predictions of a classifier (confusion matrix, ROC curve, reliability) or of a
regression (predicted against true numbers): PNG files, drawn by matplotlib.

Reliability is the share of right predictions among those in a bin of confidence (Guo et al. 2017,
arXiv 1706.04599, section 2); a calibrated classifier lies on the diagonal.

Legend: N examples, C classes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np

from bert_gpu.base.figure import new_figure
from bert_gpu.finetune.tasks.table import TaskSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "pictures"
SUFFIX = ".png"
NAME = r".+-(scatter|confusion|roc|reliability)\.png"  # regular expression of a picture's name
MAX_CLASSES = 30  # a matrix of more classes has no room for numbers
BINS = 10


def draw(
    output_dir: str,
    stem: str,
    task: TaskSpec,
    labels: Sequence[str],
    outputs: np.ndarray,
    targets: np.ndarray,
    new_file: Callable[[str, str], contextlib.AbstractContextManager[IO[bytes]]],
) -> list[str]:
    """Write the pictures of one file's predictions; return their paths.

    Args:
      stem: name of the file without ending, which begins the names of the pictures. labels: names
        of the classes.
      outputs, targets: the problem type's outputs, float64 (N, C), and targets, (N,), or (N, C) for
        several labels. Examples whose class the model lacks are left out.
      new_file: function of output_dir and a path that opens a new file there, as results.new_file.
    """
    folder = os.path.join(output_dir, FOLDER)
    if task.kind == "regression":
        figures = {"scatter": scatter(outputs[:, 0], targets)}
    elif task.kind == "multilabel":
        figures = {"roc": roc(labels, outputs, targets)}
    else:
        outputs = outputs[targets < len(labels)]
        targets = targets[targets < len(labels)]
        one_hot = np.eye(len(labels))[targets]
        figures = {
            "confusion": confusion(labels, np.argmax(outputs, -1), targets),
            "roc": roc(labels, outputs, one_hot),
            "reliability": reliability(outputs, targets),
        }
    paths = []
    for name, figure in figures.items():
        paths.append(os.path.join(folder, f"{stem}-{name}{SUFFIX}"))
        with new_file(output_dir, paths[-1]) as file:
            figure.savefig(file, format="png", dpi=120)
    return paths


def confusion(labels: Sequence[str], predictions: np.ndarray, targets: np.ndarray) -> Figure:
    """Draw the confusion matrix: the number of examples of each true class (row) and predicted
    class (column), shaded by its share of the row.
    """
    counts = count_pairs(len(labels), predictions, targets)
    figure, axes = new_figure("Confusion", "predicted", "true")
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [label if len(label) <= 12 else f"{label[:11]}..." for label in labels]
    if len(labels) <= MAX_CLASSES:
        axes.set_xticks(range(len(labels)), names, rotation=45, ha="right")
        axes.set_yticks(range(len(labels)), names)
        for row, column in np.ndindex(counts.shape):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour)
    return figure


def count_pairs(num_classes: int, predictions: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Count the examples of each class (row) that are predicted as each class (column), int64 (C,
    C).
    """
    pairs = np.asarray(targets) * num_classes + np.asarray(predictions)
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def roc(labels: Sequence[str], outputs: np.ndarray, one_hot: np.ndarray) -> Figure:
    """Draw the ROC curve of each class against the rest, of two classes only that of the second; a
    class that no example or every example has gets no curve.
    """
    from sklearn.metrics import auc, roc_curve

    figure, axes = new_figure("ROC", "false positive rate", "true positive rate")
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    is_pair = len(labels) == 2 and bool(np.all(one_hot.sum(-1) == 1))
    for index in [1] if is_pair else range(len(labels)):
        if 0 < one_hot[:, index].sum() < len(one_hot):
            false, true, _ = roc_curve(one_hot[:, index], outputs[:, index])
            axes.plot(false, true, label=f"{labels[index][:20]}: {auc(false, true):.3f}")
    if len(axes.lines) > 1 and len(labels) <= MAX_CLASSES:
        axes.legend(title="area", fontsize="small", loc="lower right")
    return figure


def reliability(outputs: np.ndarray, targets: np.ndarray) -> Figure:
    """Draw the share of right predictions in each bin of confidence; the size of a point shows the
    number of predictions in the bin.
    """
    figure, axes = new_figure("Reliability", "confidence", "share that is right")
    confidence, right, number = calibration(outputs, targets)
    error = np.sum(number * np.abs(right - confidence)) / number.sum()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    axes.scatter(confidence, right, s=20 + 300 * number / number.sum())
    axes.set_title(f"Reliability (expected calibration error {error:.3f})")
    axes.set(xlim=(0, 1.02), ylim=(0, 1.02))
    return figure


def calibration(outputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return (mean confidence, share of right predictions, number of predictions), (K,) each, of
    the K bins of confidence that hold predictions.
    """
    confidence = outputs.max(-1)
    right = np.argmax(outputs, -1) == targets
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    number = np.bincount(bins, minlength=BINS)
    has_any = number > 0
    means = [
        np.bincount(bins, weights=values, minlength=BINS)[has_any] / number[has_any]
        for values in (confidence, right)
    ]
    return *means, number[has_any]


def scatter(values: np.ndarray, targets: np.ndarray) -> Figure:
    figure, axes = new_figure("Predicted and true", "true", "predicted")
    axes.scatter(targets, values, s=8, alpha=0.5)
    ends = [min(np.min(values), np.min(targets)), max(np.max(values), np.max(targets))]
    axes.plot(ends, ends, color="0.7", linewidth=1)
    return figure
