"""Writes eval_results.json and .txt, test_results.tsv, predictions.tsv and the files for GLUE's
server, and checks that the folder may receive them.

A training owns its folder. Without training, results may be written to the folder of a finished run
or a folder of their own, but must never overwrite foreign files of the same names.
"""

import csv
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, check_writable
from bert_gpu.base.run_names import EVAL_RESULTS, LOCK, RUN
from bert_gpu.finetune.config import STANDARD_OUTPUT, FinetuneConfig
from bert_gpu.finetune.files.conll import DOCUMENT, cells_of
from bert_gpu.finetune.files.examples import Examples, Loaded, Source
from bert_gpu.finetune.tasks import pictures
from bert_gpu.finetune.tasks.table import TASKS, TaskSpec
from bert_gpu.runs.folder import RunFolder

RESULTS_TEXT = "eval_results.txt"
PROBABILITIES = "test_results.tsv"
PREDICTIONS = "predictions.tsv"
SUBMISSION = "submission"
TAGGED = "predictions.conll"
ANSWERS = "predictions.json"
N_BEST = "nbest_predictions.json"
NULL_ODDS = "null_odds.json"
PARTIAL = re.compile(r"\.(.+)\.\d+\.partial")  # name of files.atomic_file's unfinished file
SUBMITTED = sorted({name for task in TASKS.values() for name in task.submission.values()})
BREAKS = re.compile(r"[\t\r\n]+")  # separators of the cells and lines of a table
FOLDERS = (SUBMISSION, pictures.FOLDER)
# regular expressions for the beginning of a table whose last column is the prediction, and of a
# JSON file of answers
PREDICTED = rb"([^\n]*[\t,])?prediction_*\n"
ANSWERED = rb'\{\s*("(\\.|[^"\\])*":\s*"|\}\s*$)'
# {regular expression for the name of a result file: one for the beginning of its content};
# `is_tagged` recognises the content of predictions.conll
BEGINNINGS = {
    r"eval_results\.json": rb'(?s)\{(?=.*"num_examples":).*"checkpoint":',
    r"eval_results\.txt": rb"[^\n]* = ",
    r"test_results(_\w+)?\.tsv": rb"id\tprediction\t",
    r"predictions(_\w+)?\.tsv": PREDICTED,
    r"predictions\.conll": rb"",
    r"(predictions|nbest_predictions|null_odds)(_dev)?\.json": rb"\{",
    rf"{SUBMISSION}/({'|'.join(map(re.escape, SUBMITTED))})": rb"index\tprediction\n",
    # a picture is empty if its process was killed before drawing it
    rf"{pictures.FOLDER}/{pictures.NAME}": rb"(?s)$|\x89PNG.{1,200}Software\0Matplotlib",
}
BEGINNING_BYTES = 1 << 20


def find_results(folder: str) -> list[str]:
    """Return the paths of the result files in a run's folder that fine-tunings of any task have
    written, then the paths of the subfolders that hold result files.

    predictions.conll comes before test_results.tsv, by which `is_result` recognises it.
    """
    paths, folders = [], []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name in FOLDERS and os.path.isdir(path):
            parts = [f"{name}/{part}" for part in sorted(os.listdir(path))]
            paths += [os.path.join(folder, part) for part in parts if is_result(folder, part)]
            folders.append(path)
        elif name == EVAL_RESULTS or is_result(folder, name):
            # an EVAL_RESULTS in a run's folder is always the run's own
            paths.append(path)
    return paths + folders


def open_results(folder: RunFolder, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Check the folder into which an evaluation without training writes its results; return the
    content of the folder's run.json, None when the folder holds no run. Writes nothing.

    Args:
      fields: as for RunFolder.read_run.

    Raises:
      UserError: the folder cannot be written, or holds anything but a classifier's run or earlier
        results.
    """
    check_writable(folder.path, "output_dir", folder.path)
    if os.path.exists(os.path.join(folder.path, RUN)):
        run = folder.read_run(fields)
        if run is None or "task_name" not in run["settings"]:
            raise UserError(
                "holds a run that is not a classifier's",
                "name another folder for the results",
                setting="output_dir",
                value=folder.path,
            )
        return run
    present = set(os.listdir(folder.path)) - {LOCK} if os.path.isdir(folder.path) else ()
    others = [name for name in sorted(present) if not is_result(folder.path, name)]
    if others:
        raise UserError(
            f"holds no run, but {others[0][:60]}",
            "results go into a run or a folder of their own, so name another",
            setting="output_dir",
            value=folder.path,
        )
    return None


def is_result(folder: str, name: str) -> bool:
    """Return whether the file `name` in a folder, such as submission/RTE.tsv, is a result of a
    fine-tuning, judged by its name and beginning, or an unfinished one that a killed process left;
    for a subfolder, whether all files in it are results.
    """
    path = os.path.join(folder, name)
    if name in FOLDERS and os.path.isdir(path):
        return all(is_result(folder, f"{name}/{part}") for part in os.listdir(path))
    partial = PARTIAL.fullmatch(os.path.basename(name))
    whole = os.path.join(os.path.dirname(name), partial[1]) if partial else name
    form = next((form for like, form in BEGINNINGS.items() if re.fullmatch(like, whole)), None)
    if form is None or partial:
        return form is not None
    if name == TAGGED:
        return is_tagged(path, os.path.join(folder, PROBABILITIES))
    return begins_as(path, form)


def begins_as(path: str, form: bytes) -> bool:
    """Return whether the beginning of a file matches a regular expression."""
    try:
        with open(path, "rb") as file:
            return re.match(form, file.read(BEGINNING_BYTES)) is not None
    except OSError:
        return False


def is_tagged(path: str, table: str) -> bool:
    """Return whether the predictions.conll at `path` was written together with the test_results.tsv
    at `table`: both begin with the same word, and predictions.conll gives it one of the table's
    tags.
    """
    try:
        with open(table, encoding="utf-8") as file:
            titles, first = (file.readline().rstrip("\n").split("\t") for _ in range(2))
        with open(path, encoding="utf-8") as file:
            lines = (cells for cells in map(cells_of, file) if cells and cells[0] != DOCUMENT)
            cells = next(lines, [""])
    except (OSError, ValueError):
        return False
    if titles[:3] != ["id", "prediction", "word"] or len(first) != len(titles):
        return False
    tags = {title.removeprefix("probability_").strip(" ") for title in titles[3:]}
    return first[2].strip(" ") in cells[:-1] and cells[-1] in tags


def write_results(
    output_dir: str,
    metrics: Mapping[str, Mapping[str, float | None]],
    examples: Mapping[str, Sequence[Loaded]],
    checkpoint: str,
    step: int | None,
    positive_label: str | None = None,
) -> None:
    """Write eval_results.json and, as lines "name = value", eval_results.txt.

    Args:
      metrics: {stem of a file: {name of a metric: value}}. eval_results.json has the metrics of the
        first dev file at its top level and, where several files have labels, the metrics of each
        file under its stem.
      examples: {phase: list with the examples of each file}. checkpoint: path of the model. step:
        training step of the model, None where it is not known. positive_label: of two classes the
        one whose F1 is reported.
    """
    dev = [part.source.stem for part in examples["eval"]]
    sizes = {part.source.stem: len(part) for parts in examples.values() for part in parts}
    parts = {stem: metrics[stem] for stem in metrics if metrics[stem]}
    values: dict[str, Any] = dict(parts[dev[0]])
    if len(parts) > 1:
        values |= {stem: {**part, "num_examples": sizes[stem]} for stem, part in parts.items()}
    values |= dict(
        num_examples=sum(sizes[stem] for stem in dev),
        checkpoint=checkpoint,
        step=step,
        data=describe_data(examples),
        **(dict(positive_label=positive_label) if positive_label else {}),
    )
    write(output_dir, EVAL_RESULTS, [json.dumps(values, indent=1), "\n"])
    lines = [
        f"{name if len(dev) == 1 else f'{stem}_{name}'} = {parts[stem][name]}\n"
        for stem in dev
        for name in parts[stem]
    ]
    lines += [f"positive_label = {positive_label}\n"] * bool(positive_label)
    write(output_dir, RESULTS_TEXT, sorted(lines))


def describe_data(examples: Mapping[str, Sequence[Loaded]]) -> dict[str, str]:
    """Return {stem: description} of the files that are evaluated or predicted; the description has
    the file's name, its digest and the range of rows that are read.
    """
    return {
        part.source.stem: part.describe()
        for phase in ("eval", "predict")
        for part in examples.get(phase, ())
    }


def read_results(
    output_dir: str,
    examples: Mapping[str, Sequence[Loaded]],
    checkpoint: str,
    step: int | None,
    positive_label: str | None = None,
) -> dict[str, dict[str, float | None]] | None:
    """Return the metrics in eval_results.json, in the form that `write_results` takes, if they are
    of the same model, step, files and positive_label as the arguments; else None.
    """
    try:
        with open(os.path.join(output_dir, EVAL_RESULTS), encoding="utf-8") as file:
            values = json.load(file)
        origin = [
            values["checkpoint"],
            values["step"],
            values["data"],
            values.get("positive_label"),
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    stems = [part.source.stem for phase in ("eval", "predict") for part in examples.get(phase, ())]
    if origin != [checkpoint, step, describe_data(examples), positive_label] or not stems:
        return None
    others = ("num_examples", "checkpoint", "step", "data", "positive_label", *stems)
    first = {name: value for name, value in values.items() if name not in others}
    metrics = {stem: values.get(stem, {}) for stem in stems} | {stems[0]: first}
    return {
        stem: {name: value for name, value in part.items() if name != "num_examples"}
        for stem, part in metrics.items()
    }


def write_predictions(
    output_dir: str,
    examples: Examples,
    titles: Sequence[str],
    answers: Sequence[str],
    outputs: np.ndarray,
    predictions_file: str | None = None,
) -> str:
    """Write two files of predictions for examples: test_results.tsv, with the model's outputs, and
    predictions.tsv, with the unchanged columns of the examples' file and the prediction. Return the
    path of predictions.tsv.

    Files of predictions for another file than test.* have its name in theirs:
    predictions_matched.tsv for test_matched.tsv.

    Args:
      titles: of the C columns of outputs. answers: the prediction for each example. outputs: such
        as probabilities, float64 (N, C).
      predictions_file: takes the place of predictions.tsv; "-" is standard output.
    """
    suffix = suffix_of(examples.source)
    heading = ["id", "prediction", *titles]

    def rows() -> Iterator[tuple[int, str, list[str]]]:
        first = 0
        for chunk in examples.chunks():
            for offset, cells in enumerate(chunk.cells):
                yield first + offset, chunk.ids[offset], cells
            first += len(chunk.cells)

    write_table(
        output_dir,
        with_suffix(PROBABILITIES, suffix),
        heading,
        (
            [example, answers[index], *(f"{value:.6g}" for value in outputs[index])]
            for index, example, _ in rows()
        ),
    )
    has_id = examples.id is not None
    title = "prediction"
    while title in examples.header:
        title += "_"
    where, name = predictions_path(output_dir, suffix, predictions_file)
    write_table(
        where,
        name,
        [*([] if has_id else ["id"]), *examples.header, title],
        ([*([] if has_id else [name]), *cells, answers[index]] for index, name, cells in rows()),
    )
    return os.path.join(where, name)


def is_submitted(run: FinetuneConfig, examples: Loaded) -> bool:
    """Return whether examples to predict are a test file whose predictions GLUE's server takes: the
    task's own test file, not a --predict_file or a share of the training file.
    """
    is_own = run.predict_file is None and not run.test_share
    return is_own and examples.source.stem in examples.task.submission


def has_labels_of(task: TaskSpec, labels: Sequence[str]) -> bool:
    """Return whether the classes of a model are those that GLUE's server takes for a task."""
    if task.labels is None:
        return task.submitted == "number" and len(labels) == 1
    return set(labels) == set(task.labels)


def write_submission(
    output_dir: str, examples: Examples, answers: Sequence[str], outputs: np.ndarray
) -> None:
    """Write the predictions as a file in submission/, in the form that GLUE's server takes.
    Arguments as for `write_predictions`.
    """
    task = examples.task
    submitted = submission_of(task, outputs, answers)
    ids = itertools.chain.from_iterable(chunk.ids for chunk in examples.chunks())
    write_table(
        os.path.join(output_dir, SUBMISSION),
        task.submission[examples.source.stem],
        ["index", "prediction"],
        zip(ids, submitted, strict=True),
    )


def predictions_path(
    output_dir: str, suffix: str, predictions_file: str | None, default: str = PREDICTIONS
) -> tuple[str, str]:
    """Return (folder, name) of a file of predictions: `default` or the file that --predictions_file
    names in its place, with `suffix` added to the name; "-" stands for standard output.
    """
    if predictions_file in (None, STANDARD_OUTPUT):
        return output_dir, predictions_file or with_suffix(default, suffix)
    folder, name = os.path.split(predictions_file)
    return folder or ".", with_suffix(name, suffix)


def check_predictions_file(run: FinetuneConfig, parts: Sequence[Loaded], own: str) -> None:
    """Raise UserError where --predictions_file cannot be written, or would replace a file that
    holds anything but earlier predictions.

    Args:
      parts: examples of each file to predict. own: name of the file that --predictions_file
        replaces, such as predictions.tsv.
    """
    named = run.predictions_file
    if named in (None, STANDARD_OUTPUT):
        return
    for part in parts:
        suffix = suffix_of(part.source)
        path = os.path.join(*predictions_path(run.output_dir, suffix, named))
        if os.path.isdir(path):
            raise UserError("is a folder", "name a file", setting="predictions_file", value=named)
        check_writable(os.path.dirname(path), "predictions_file", named)
        if os.path.exists(path) and (
            os.path.samefile(path, part.path) or not is_earlier(path, own, run.output_dir)
        ):
            raise UserError(
                "exists and is no file of earlier predictions",
                "name another file, or remove it",
                setting="predictions_file",
                value=named,
            )


def is_earlier(path: str, own: str, output_dir: str) -> bool:
    """Return whether a file, whatever its name, looks like earlier predictions in the form of the
    file `own`, such as predictions.tsv.
    """
    if own == TAGGED:
        return is_tagged(path, os.path.join(output_dir, PROBABILITIES))
    return begins_as(path, ANSWERED if own == ANSWERS else PREDICTED)


def submission_of(task: TaskSpec, outputs: np.ndarray, answers: Sequence[str]) -> Sequence[str]:
    """Return the prediction for each example of a GLUE task as the text that GLUE's server takes.
    Scores of STS-B are clipped to the range from 0 to 5.
    """
    if task.submitted == "number":
        return [f"{value:.3f}" for value in np.clip(outputs[:, 0], 0, 5)]
    if task.submitted == "index":
        return [str((task.labels or ()).index(answer)) for answer in answers]
    return answers


def suffix_of(source: Source) -> str:
    """Return the suffix of the names of the result files for a source: "_matched" for test_matched,
    "_extra" for extra, "" for test.
    """
    stem = source.stem
    return stem.removeprefix("test") if stem.startswith("test") else f"_{stem}"


def with_suffix(name: str, suffix: str) -> str:
    stem, ending = os.path.splitext(name)
    return f"{stem}{suffix}{ending}"


def write_table(
    output_dir: str, name: str, heading: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Write a heading and rows of cells to a file: as CSV where its name ends in .csv, else with
    tabs between the cells, inside which a space replaces tabs and line breaks.
    """
    line_of = comma_separated if name.lower().endswith(".csv") else tab_separated
    write(output_dir, name, map(line_of, itertools.chain([heading], rows)))


def comma_separated(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()


def tab_separated(cells: Sequence[str]) -> str:
    return "\t".join(map(one_line, cells)) + "\n"


def one_line(cell: str) -> str:
    """Return a cell's text with spaces in place of tabs and line breaks, else unchanged."""
    return BREAKS.sub(" ", cell)


def write(output_dir: str, name: str, lines: Iterable[str]) -> None:
    """Write lines of text to a file, which exists as a whole or not at all; "-" is standard
    output.
    """
    if name == STANDARD_OUTPUT:
        for line in lines:
            console.answer(line.removesuffix("\n"))
        return
    path = os.path.join(output_dir, name)
    try:
        os.makedirs(output_dir, exist_ok=True)
        with atomic_file(path, "wb") as file:
            file.writelines(line.encode(errors="replace") for line in lines)
    except OSError as error:
        raise UserError(
            f"cannot be written ({error.strerror})", "name another folder", where=path
        ) from None


def table(lines: Sequence[Sequence[str | float | None]]) -> str:
    """Return lines of (file, number of examples, metrics...) as the text of a table with aligned
    columns; the first line is the heading.
    """
    rows = [
        [text if isinstance(text, str) else show_number(text) for text in line] for line in lines
    ]
    columns = itertools.zip_longest(*rows, fillvalue="")  # a file without labels has no metrics
    first, *others = (max(map(len, column)) for column in columns)
    widths = [max(10, width + 2) for width in others]
    return "\n".join(
        f"  {line[0]:<{first}}"
        + "".join(f"{text:>{width}}" for text, width in zip(line[1:], widths, strict=False))
        for line in rows
    )


def show_number(value: float | None) -> str:
    return f"{value:,}" if isinstance(value, int) else console.format_metric(value)
