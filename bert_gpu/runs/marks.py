"""Finds the models that a pretraining exported at shares of its run, in its folder marks/."""

import os
import re

from bert_gpu.base.run_names import MARKS, METRICS
from bert_gpu.runs import metrics


def find_marks(path: str | None) -> dict[float, str]:
    """Return {share of the pretraining: folder of the model exported there} of a folder marks/, in
    rising order of the shares; {} where `path` is no folder marks/.
    """
    path = path or ""
    is_marks = os.path.basename(os.path.normpath(path)) == MARKS and os.path.isdir(path)
    marks = {
        float(name): os.path.join(path, name)
        for name in (os.listdir(path) if is_marks else ())
        if re.fullmatch(r"\d*\.?\d+(e-\d+)?", name)
    }
    return dict(sorted(marks.items()))


def hours_at(path: str | None) -> dict[float, float]:
    """Return {share of the pretraining: hours of training until then} for each model in a folder
    marks/, from the metrics of that pretraining; {} where the metrics are missing, or `path` is no
    folder marks/.
    """
    shares = find_marks(path)
    if path is None or not shares:
        return {}
    lines = metrics.read_lines(os.path.join(os.path.dirname(os.path.normpath(path)), METRICS))
    times = [(line["progress"], line["seconds"]) for line, _ in lines if line.get("progress")]
    hours = {}
    for share in shares:
        reached = [seconds for progress, seconds in times if progress >= share - 1e-9]
        if reached:
            hours[share] = reached[0] / 3600
    return hours
