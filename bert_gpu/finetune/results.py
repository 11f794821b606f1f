"""Writes eval_results.json and test_results.tsv, and checks that the folder may receive them.

A training owns its folder. Without training, results may go into the folder of a finished run or a
folder of their own, but must never overwrite foreign files of the same names.
"""

import json
import os
import re

import numpy as np

from bert_gpu.files import check_writable, write_text
from bert_gpu.settings import UserError
from bert_gpu.train import checkpoint, loop

RESULTS, PREDICTIONS = "eval_results.json", "test_results.tsv"


def open_results(folder, fields):
    """The content of run.json of a folder for results without training, None when it holds no run.
    Writes nothing.

    Args:
      folder: checkpoint.RunFolder. fields: as for its `stored`.

    Raises:
      UserError: the folder cannot be written, or holds anything but a classifier's run or earlier
        results.
    """
    check_writable(folder.path, f"--output_dir={folder.path}")
    if os.path.exists(os.path.join(folder.path, checkpoint.RUN)):
        run = folder.stored(fields)
        if "task_name" not in run["settings"]:
            raise UserError(
                f"--output_dir={folder.path}: holds a run that is "
                "not a classifier's; name another folder for the results"
            )
        return run
    present = set(os.listdir(folder.path)) - {checkpoint.LOCK} if os.path.isdir(folder.path) else ()
    others = [name for name in sorted(present) if not is_result(folder.path, name)]
    if others:
        problem = f"holds no run, but {others[0][:60]}"
        raise UserError(
            f"--output_dir={folder.path}: {problem}; results go "
            "into a run or a folder of their own, so name another"
        )
    return None


def is_result(path, name):
    """Whether `write_results` or `write_predictions` wrote a file, judged by its content, or left
    it when killed.
    """
    if re.fullmatch(rf"\.({re.escape(RESULTS)}|{re.escape(PREDICTIONS)})\.\d+\.partial", name):
        return True
    try:
        with open(os.path.join(path, name), encoding="utf-8") as file:
            if name == RESULTS:
                values = json.load(file)
                return isinstance(values, dict) and {"num_examples", "checkpoint"} <= set(values)
            return name == PREDICTIONS and file.readline().startswith(
                "id\tprediction\tprobability_"
            )
    except (OSError, ValueError, RecursionError):
        return False


def write_results(output_dir, results):
    write(output_dir, RESULTS, json.dumps(results, indent=1) + "\n")


def write_predictions(output_dir, ids, labels, probabilities):
    """Writes test_results.tsv: id, the most probable label, the probability of each label."""

    def cell(text):  # tabs separate columns, so no cell may contain one
        return " ".join(text.split())

    lines = ["\t".join(["id", "prediction", *(f"probability_{cell(label)}" for label in labels)])]
    for example, row in zip(ids, probabilities, strict=True):
        lines.append(
            "\t".join(
                [
                    cell(example),
                    cell(labels[int(np.argmax(row))]),
                    *(f"{value:.6g}" for value in row),
                ]
            )
        )
    write(output_dir, PREDICTIONS, "\n".join(lines) + "\n")


def write(output_dir, name, text):
    try:
        os.makedirs(output_dir, exist_ok=True)
        write_text(os.path.join(output_dir, name), text)
    except OSError as error:
        raise UserError(
            f"--output_dir={output_dir}: {name} cannot be "
            f"written ({error.strerror}); name another folder"
        ) from None


def table(lines):
    """Lines of (split, number of examples, metrics...), aligned; the first is the heading."""
    shown = [
        [text if isinstance(text, str) else show_number(text) for text in line] for line in lines
    ]
    return "\n".join(
        "  " + f"{line[0]:<5}" + "".join(f"{text:>10}" for text in line[1:]) for line in shown
    )


def show_number(value):
    return f"{value:,}" if isinstance(value, int) else loop.format_metric(value)
