"""Writes eval_results.json and .txt, test_results.tsv and predictions.tsv, and checks that the
folder may receive them.

A training owns its folder. Without training, results may be written to the folder of a finished run
or a folder of their own, but must never overwrite foreign files of the same names.

eval_results.json lists the result files, and the list decides which files are results. A file is
listed before it is written (`new_file`), first of all in a new folder, and eval_results.json itself
is replaced as a whole. So a process that is killed leaves no file that is not listed. --overwrite
removes the listed files first, then eval_results.json, then run.json (RunFolder.clear).
"""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import atomic_file, check_writable, write_text
from bert_gpu.base.run_names import EVAL_RESULTS, LOCK, RUN
from bert_gpu.finetune.files.examples import Examples, Loaded, Source
from bert_gpu.runs.folder import RunFolder

RESULTS_TEXT = "eval_results.txt"
PROBABILITIES = "test_results.tsv"
PREDICTIONS = "predictions.tsv"
TAGGED = "predictions.conll"
ANSWERS = "predictions.json"
N_BEST = "nbest_predictions.json"
NULL_ODDS = "null_odds.json"
FILES = "files"  # key of the list in eval_results.json
ORIGIN = ("checkpoint", "step", "data", "positive_label")  # keys that say what was evaluated
NO_METRICS = {"num_examples", FILES, *ORIGIN}
# name of files.atomic_file's unfinished file
PARTIAL = re.compile(r"(?:^|(?<=/))\.([^/]+)\.\d+\.partial$")
BREAKS = re.compile(r"[\t\r\n]+")  # separators of the cells and lines of a table
# Names of results. Only where an eval_results.json was written without a list do they count.
NAMES = re.compile(
    r"eval_results\.(json|txt)|(test_results|predictions)(_[^/]+)?\.tsv|predictions\.conll|"
    r"(predictions|nbest_predictions|null_odds)(_[^/]+)?\.json|"
    r"submission/[^/]+\.tsv|pictures/[^/]+\.png"
)


def files_in(folder: str, inner: str = "") -> Iterator[str]:
    """Yield the names of the files in a folder and its subfolders, relative to the folder, in the
    order of the names. A link to a folder counts as a file. inner: the subfolder that is read.
    """
    with contextlib.suppress(OSError):  # there is no such folder, or it cannot be read
        for name in sorted(os.listdir(os.path.join(folder, inner))):
            path = os.path.join(folder, inner, name)
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            part = os.path.join(inner, name)
            yield from files_in(folder, part) if is_folder else [part]


def finished(name: str) -> str:
    """Return the name that an unfinished file will have, such as predictions.tsv for
    .predictions.tsv.17.partial; other names unchanged.
    """
    return PARTIAL.sub(r"\1", name)


def read_content(folder: str) -> dict[str, Any]:
    """Return the content of eval_results.json; {} when there is none or it is no JSON object."""
    try:
        with open(os.path.join(folder, EVAL_RESULTS), encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_files(folder: str) -> set[str]:
    """Return the names of the results that a folder has or will have, relative to the folder,
    eval_results.json included. The names are those in the list in eval_results.json; set() when
    that file is no fine-tuning's.
    """
    content = read_content(folder)
    files = content.get(FILES)
    if isinstance(files, list) and all(isinstance(name, str) for name in files):
        return {EVAL_RESULTS, *files}
    if content.keys() >= {"num_examples", "checkpoint"}:  # written without a list
        return {*filter(NAMES.fullmatch, map(finished, files_in(folder)))}
    return set() if os.path.lexists(os.path.join(folder, EVAL_RESULTS)) else {EVAL_RESULTS}


def write_list(folder: str, content: Mapping[str, Any], files: Iterable[str]) -> None:
    """Write eval_results.json with a content and a list of files. OSError: it cannot be written."""
    text = json.dumps({**content, FILES: sorted({*files} - {EVAL_RESULTS})}, indent=1)
    write_text(os.path.join(folder, EVAL_RESULTS), text + "\n")


@contextlib.contextmanager
def new_file(output_dir: str, name: str) -> Iterator[IO[bytes]]:
    """Yield a new result file, which exists as a whole or not at all, open for writing. Before,
    eval_results.json in output_dir lists it. Raise UserError when it cannot be written.
    """
    path = os.path.join(output_dir, name)
    try:
        os.makedirs(output_dir, exist_ok=True)
        files = read_files(output_dir)
        if name not in files:
            listing = os.path.join(output_dir, EVAL_RESULTS)
            before = os.stat(listing) if os.path.exists(listing) else None
            write_list(output_dir, read_content(output_dir), {*files, name})
            if before is not None:  # the time of the evaluation, for runs/card_facts.py
                os.utime(listing, ns=(before.st_atime_ns, before.st_mtime_ns))
        with atomic_file(path, "wb") as file:
            yield file
    except OSError as error:
        raise UserError(
            f"cannot be written ({error.strerror})", "name another folder", where=path
        ) from None


def find_results(folder: str) -> list[str]:
    """Return the paths of the result files in a run's folder that --overwrite removes, then those
    of their subfolders, then that of eval_results.json. Files outside of the folder stay.
    """
    files = read_files(folder)
    kept = {EVAL_RESULTS, RUN, LOCK}
    names = [name for name in files_in(folder) if finished(name) in files and name not in kept]
    for path, _, _ in os.walk(folder, topdown=False):
        inner = os.path.relpath(path, folder)
        names += [inner] * any(name.startswith(f"{inner}/") for name in files)
    names.append(EVAL_RESULTS)  # in a run's folder it is always the run's own
    return [os.path.join(folder, name) for name in names]


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
    files = read_files(folder.path)
    others = (name for name in files_in(folder.path) if finished(name) not in {LOCK, *files})
    if other := next(others, None):
        raise UserError(
            f"holds no run, but {other.split('/')[0][:60]}",
            "results go into a run or a folder of their own, so name another",
            setting="output_dir",
            value=folder.path,
        )
    return None


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
    values["num_examples"] = sum(sizes[stem] for stem in dev)
    values |= origin_of(examples, checkpoint, step, positive_label)
    values[FILES] = sorted(read_files(output_dir) - {EVAL_RESULTS} | {RESULTS_TEXT})
    write(output_dir, EVAL_RESULTS, [json.dumps(values, indent=1), "\n"])
    lines = [
        f"{name if len(dev) == 1 else f'{stem}_{name}'} = {parts[stem][name]}\n"
        for stem in dev
        for name in parts[stem]
    ]
    lines += [f"positive_label = {positive_label}\n"] * bool(positive_label)
    write(output_dir, RESULTS_TEXT, sorted(lines))


def origin_of(
    examples: Mapping[str, Sequence[Loaded]],
    checkpoint: str,
    step: int | None,
    positive_label: str | None,
) -> dict[str, Any]:
    """Return the entries of eval_results.json that say what was evaluated; arguments as for
    `write_results`. "data" is {stem: description} of the files that are evaluated or predicted; the
    description has the file's name, its digest and the range of rows that are read.
    """
    parts = [part for phase in ("eval", "predict") for part in examples.get(phase, ())]
    data = {part.source.stem: part.describe() for part in parts}
    more = dict(positive_label=positive_label) if positive_label else {}
    return dict(checkpoint=checkpoint, step=step, data=data, **more)


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
    content = read_content(output_dir)
    origin = origin_of(examples, checkpoint, step, positive_label)
    stems = [*origin["data"]]
    is_same = all(content.get(name) == origin.get(name) for name in ORIGIN)
    if not stems or not is_same or not NO_METRICS.isdisjoint(stems):
        return None
    first = {name: content[name] for name in content if name not in {*NO_METRICS, *stems}}
    metrics = {stem: content.get(stem, {}) for stem in stems} | {stems[0]: first}
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
) -> str:
    """Write two files of predictions for examples: test_results.tsv, with the model's outputs, and
    predictions.tsv, with the unchanged columns of the examples' file and the prediction. Return the
    path of predictions.tsv.

    Files of predictions for another file than test.* have its name in theirs:
    predictions_matched.tsv for test_matched.tsv.

    Args:
      titles: of the C columns of outputs. answers: the prediction for each example. outputs: such
        as probabilities, float64 (N, C).
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
    name = with_suffix(PREDICTIONS, suffix)
    write_table(
        output_dir,
        name,
        [*([] if has_id else ["id"]), *examples.header, title],
        ([*([] if has_id else [row]), *cells, answers[index]] for index, row, cells in rows()),
    )
    return os.path.join(output_dir, name)


def suffix_of(source: Source) -> str:
    """Return the suffix of the names of the result files for a source: "_matched" for test_matched,
    "_extra" for extra, "" for test.
    """
    return source.stem.removeprefix("test") if source.stem.startswith("test") else f"_{source.stem}"


def with_suffix(name: str, suffix: str) -> str:
    stem, ending = os.path.splitext(name)
    return f"{stem}{suffix}{ending}"


def write_table(
    folder: str, name: str, heading: Sequence[str], rows: Iterable[Sequence[str]]
) -> None:
    """Write a heading and rows of cells to a file, with tabs between the cells, inside which a
    space replaces tabs and line breaks. Arguments as for `write`.
    """
    lines = itertools.chain([heading], rows)
    write(folder, name, ("\t".join(map(one_line, cells)) + "\n" for cells in lines))


def one_line(cell: str) -> str:
    """Return a cell's text with spaces in place of tabs and line breaks, else unchanged."""
    return BREAKS.sub(" ", cell)


def write(folder: str, name: str, lines: Iterable[str]) -> None:
    """Write lines of text to a file, which exists as a whole or not at all."""
    with new_file(folder, name) as file:
        file.writelines(line.encode(errors="replace") for line in lines)
