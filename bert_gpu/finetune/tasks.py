"""The table of downstream tasks, and the reader of their files: DATA_DIR/{train,dev,test}.{tsv,csv}
-> examples.

A file has a header line that names its columns. Columns of .tsv are separated by tabs, and quotes
mean nothing; .csv has commas and quotes (RFC 4180). Texts are kept as they are, labels are
stripped. Errors name the file, the line and the remedy, before any training.
"""

import csv
import dataclasses
import hashlib
import io
import math
import os

from bert_gpu import files
from bert_gpu.environment import Later
from bert_gpu.settings import UserError

tf = Later("tensorflow")

CSV_FORMATS = {
    "tsv": dict(delimiter="\t", quoting=csv.QUOTE_NONE),
    "csv": dict(delimiter=",", strict=True),
}
# some documents exceed the csv module's limit of 131,072
MAX_CELL_CHARACTERS = 1 << 27


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """One task: the columns of its files, its labels and its metrics.

    Attributes:
      name: as --task_name gives it.
      text_a, text_b, label: names of the columns; text_b None means single sentences.
      requires_text_b: whether a file must have the column text_b; otherwise one without it holds
        single sentences.
      labels: the labels in the order of the logits; None = those of the training file (see
        `find_labels`).
      metrics: names from metrics.METRICS, the most important first.
    """

    name: str
    text_a: str = "text_a"
    text_b: str | None = "text_b"
    label: str = "label"
    requires_text_b: bool = False
    labels: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("accuracy", "f1", "auc", "loss")


TASKS = {task.name: task for task in [TaskSpec("pairs")]}


@dataclasses.dataclass(frozen=True)
class Examples:
    """One file. All lists have one entry per example; texts_b is None for single sentences, labels
    when the file has none.

    lines: the line of the file on which each example begins, from 1. digest: SHA-256 of the file.
    """

    path: str
    digest: str
    lines: list[int]
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str] | None
    labels: list[str] | None

    def __len__(self):
        return len(self.ids)


def find_split(data_dir, split):
    """The path of a split's file, None when there is none; UserError when there are two."""
    paths = [os.path.join(data_dir, f"{split}.{extension}") for extension in CSV_FORMATS]
    found = [path for path in paths if files.exists(path)]
    if len(found) > 1:
        raise UserError(f"{found[0]} and {found[1]}: both exist; delete one of them")
    return found[0] if found else None


def read_splits(task, data_dir, splits):
    """{split: Examples} of several splits, checked to be all pairs or all single sentences."""
    examples = {split: read_split(task, data_dir, split) for split in splits}
    pairs = [split for split in splits if examples[split].texts_b is not None]
    for split in splits:
        if pairs and split not in pairs:
            raise UserError(
                f"{examples[split].path}: line 1 has no column {task.text_b!r}, "
                f"but {examples[pairs[0]].path} has; add it, or name the "
                "column with --text_b (--text_b= for single sentences)"
            )
    return examples


def read_split(task, data_dir, split):
    """The Examples of DATA_DIR/SPLIT.tsv or .csv.

    Args:
      task: TaskSpec. data_dir: folder. split: "train", "dev" or "test"; only test may lack the
        column of labels.

    Raises:
      UserError: a missing folder, file or column, a row with the wrong number of columns, an empty
        label, no UTF-8, no rows.
    """
    if not tf.io.gfile.isdir(data_dir):
        problem = "is a file, not a folder" if tf.io.gfile.exists(data_dir) else "no such folder"
        raise UserError(
            f"--data_dir={data_dir}: {problem}; "
            "name the one that holds train.tsv, dev.tsv and test.tsv"
        )
    path = find_split(data_dir, split)
    if path is None:
        raise UserError(
            f"--data_dir={data_dir}: has neither {split}.tsv "
            f"nor {split}.csv; add one, or name another folder"
        )
    header, rows, digest = read_table(path)
    a = find_column(path, header, task.text_a, "text_a")
    has_b = task.text_b is not None and (task.requires_text_b or task.text_b in header)
    has_label = split != "test" or task.label in header
    labels = None
    if has_label:
        column = find_column(path, header, task.label, "label")
        labels = [cells[column].strip() for _, cells in rows]
        if "" in labels:
            line = rows[labels.index("")][0]
            raise UserError(
                f"{path}: line {line} has an empty {task.label!r}; every example needs a label"
            )
    return Examples(
        path=path,
        digest=digest,
        lines=[line for line, _ in rows],
        ids=column_texts(rows, header.index("id"))
        if "id" in header
        else [str(index) for index in range(len(rows))],
        texts_a=column_texts(rows, a),
        texts_b=column_texts(rows, find_column(path, header, task.text_b, "text_b"))
        if has_b
        else None,
        labels=labels,
    )


def column_texts(rows, column):
    return [cells[column] for _, cells in rows]


def find_column(path, header, name, flag):
    """The index of the column called `name`; UserError unless there is exactly one."""
    if header.count(name) == 1:
        return header.index(name)
    if name in header:
        raise UserError(
            f"{path}: line 1 has {header.count(name)} columns called {name!r}; rename all but one"
        )
    shown = ", ".join(header)
    shown = shown if len(shown) <= 120 else shown[:117] + "..."
    raise UserError(
        f"{path}: line 1 has no column {name!r} (it has {shown}); name yours with --{flag}"
    )


def read_table(path):
    """(header, [(line, cells)], SHA-256) of a .tsv or .csv file: UTF-8 with or without a byte order
    mark, lines ending in LF or CRLF.
    """
    files.check_regular(path)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            content = file.read()
    except (tf.errors.OpError, OSError) as error:
        reason = "it is a folder" if tf.io.gfile.isdir(path) else getattr(error, "message", error)
        raise UserError(
            (
                f"{path}: cannot be read ({reason}); "
                f"a {path.rsplit('.', 1)[1].upper()} file is needed"
            )[:300]
        ) from None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8; save the file as UTF-8") from None
    kind = path.rsplit(".", 1)[1]
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    reader = csv.reader(io.StringIO(text.rstrip("\r\n"), newline=""), **CSV_FORMATS[kind])
    rows, line = [], 1
    try:
        for cells in reader:
            rows.append((line, cells))
            line = reader.line_num + 1  # a quoted cell may span several lines
    except csv.Error as error:
        raise UserError(
            f"{path}: line {line} is not valid {kind.upper()} ({error}); check its quotes"
        ) from None
    if len(rows) < 2:
        raise UserError(f"{path}: has no examples; a header line and at least one row are needed")
    header = [title.strip() for title in rows[0][1]]
    for line, cells in rows[1:]:
        if len(cells) != len(header):
            remedy = (
                "a text with a tab needs .csv"
                if kind == "tsv"
                else "a text with a comma needs quotes"
            )
            raise UserError(
                f"{path}: line {line} has {len(cells)} columns, the header {len(header)}; {remedy}"
            )
    return header, rows[1:], hashlib.sha256(content).hexdigest()


def find_labels(examples):
    """The distinct labels of the training examples, sorted: as numbers where all are numbers,
    else as text.
    """
    distinct = sorted(set(examples.labels))
    if len(distinct) < 2:
        raise UserError(
            f"{examples.path}: all {len(examples)} examples have the "
            f"label {distinct[0]!r}; a classifier needs two or more"
        )
    try:
        numbers = {label: float(label) for label in distinct}
    except ValueError:
        return tuple(distinct)
    return tuple(
        sorted(distinct, key=numbers.get) if all(map(math.isfinite, numbers.values())) else distinct
    )


def index_labels(examples, labels):
    """The labels of the examples as indices into `labels`, a list of int; UserError for an unknown
    label.
    """
    indices = {label: index for index, label in enumerate(labels)}
    for line, label in zip(examples.lines, examples.labels, strict=True):
        if label not in indices:
            shown = ", ".join(labels)
            shown = shown if len(shown) <= 100 else shown[:97] + "..."
            raise UserError(
                f"{examples.path}: line {line} has the label {label[:40]!r}, "
                f"which the classifier does not have (it has {shown})"
            )
    return [indices[label] for label in examples.labels]
