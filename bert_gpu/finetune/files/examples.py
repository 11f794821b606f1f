"""The examples of a task's files. A file is read in chunks, again each time its examples are
needed, so that of a large file only the labels stay in memory. Errors name the file, the line and
the remedy, before any training.
"""

import dataclasses
import itertools
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.settings import number_in
from bert_gpu.finetune.files.parts import Part, hash_of, share_of
from bert_gpu.finetune.tasks.labels import (
    are_measures,
    check_cells,
    plain_label,
    read_labels,
    with_separator,
)
from bert_gpu.finetune.tasks.table import TASKS, TaskSpec
from bert_gpu.text.formats.cells import DIALECTS, NULL
from bert_gpu.text.formats.rows import Table

CHUNK_ROWS = 8192
FEW_ROWS = 100  # number of rows whose cells are compared with FLAGS
FLAGS = {"0", "1", "0.0", "1.0", "false", "true", "False", "True"}  # cells of one-hot columns
IDS = ("id", "index")  # columns that number the examples


@dataclasses.dataclass(frozen=True)
class Source:
    """The place of a split's examples: the rows of a file that belong to a Part.

    stem: the split's name, or the name of one of its files without ending (dev_matched), which
    results are named after.
    """

    stem: str
    path: str
    part: Part = Part()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive examples. All lists have one entry for each example; an entry of `cells` is the
    list of all cells of the example's row.
    """

    lines: list[int]
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str] | None
    labels: list[str] | None
    cells: list[list[str]]


class Loaded:
    """The examples of a Source, with the attributes that all tasks have.

    Attributes:
      path: path of the file. digest: SHA-256 of the file, "" before it is read. num_examples: N.
      rows_per_example: rows of tokens that an example is encoded as.
      has_pairs: whether a row holds a pair of texts. num_skipped: number of rows that were left
        out; why_skipped: description of these rows. labels: the distinct labels of texts. warnings:
        messages to the user about unusual data.
      label_hashes: uint64 (N,), equal for examples with the same labels; 0 for an example without a
        label.
    """

    digest = ""
    num_examples = 0
    rows_per_example = 1
    has_pairs = False
    num_skipped = 0
    why_skipped = "lines with another number of columns than the first"
    labels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    label_hashes: np.ndarray = np.zeros((), np.uint64)

    def __init__(self, task: TaskSpec, source: Source, needs_label: bool) -> None:
        self.source = source
        self.path = source.path
        self.task = task
        self.needs_label = needs_label
        # names of the columns of a file without a header line
        self.columns = task.columns.get(task.split_of(source.stem))

    def __len__(self) -> int:
        return self.num_examples

    @property
    def text_b(self) -> str | None:
        """The name of the column of second texts, None for single texts."""
        return self.task.text_b if self.has_pairs else None

    def describe(self) -> str:
        """Return a text that identifies the examples wherever their file lies: the file's name, its
        digest and the range of rows.
        """
        return f"{os.path.basename(self.path)} {self.digest[:12]}{self.source.part.describe()}"

    def fit_part(self, shares: Iterable[float]) -> None:
        """Move the bounds of the source's Part (parts.py) so that no split is empty. shares: the
        `share_of` of all rows.
        """
        self.source = dataclasses.replace(self.source, part=self.source.part.fitted(shares))

    def check_some(self, count: int) -> None:
        """Raise UserError when none of the file's rows belong to the source."""
        if not count and self.source.part == Part():
            raise UserError("has no examples", "name a file that has some", where=self.path)
        if not count:
            raise UserError(
                f"no row of it belongs to the {self.source.stem} examples",
                "give them a larger share, or a file of their own",
                where=self.path,
            )


class Examples(Loaded):
    """The examples of one Source. Rows without a label (labels.py) are left out where labels are
    needed.

    Args of the constructor:
      needs_label: False for a file to predict. classes: names of the classes of the training or of
        the model, None for a training file.

    Attributes, beside those of Loaded:
      header: names of the file's columns. names: names of the classes in the file's schema.
        has_labels: whether the file has labels, at least one of which is among the classes.
      label_names: the distinct cells that hold labels, in the order of their first rows;
        label_lines: the lines of these rows; label_sets: the labels in each of these cells.
      label_codes: int32 (N,), index of each example's cell in label_names, -1 without a label; None
        where the file has no labels. left_out: the label cells of the rows that are left out.

    Raises:
      UserError: a file or column is missing, a row has the wrong number of columns, the file is not
        UTF-8 or has no rows; labels are needed and there are none, or none is a class; in a
        training, a label is none of those that the task or the schema names.
    """

    table_kind: str | None = None  # as in Table

    def __init__(
        self,
        task: TaskSpec,
        source: Source,
        needs_label: bool = True,
        classes: Sequence[str] | None = None,
    ) -> None:
        super().__init__(task, source, needs_label)
        expected = (task.text_a, task.label) if needs_label else (task.text_a,)
        self.table = Table(source.path, self.columns, expected, task.skips_broken, self.table_kind)
        header = self.header = self.table.header
        self.warnings += self.table.notes
        check_header(self.table, task, needs_label)
        self.a = find_column(self.path, header, task.text_a, "text_a")
        self.b: int | None = None
        self.label: int | None = None
        if task.text_b is not None and (task.requires_text_b or task.text_b in header):
            self.b = find_column(self.path, header, task.text_b, "text_b")
        if needs_label or task.label in header:
            self.label = find_column(self.path, header, task.label, "label")
        self.id = next((header.index(name) for name in IDS if header.count(name) == 1), None)
        self.table.absent = {task.text_b or task.label, task.label}
        self.table.allowed = {
            self.a: (),
            self.b: (),
            self.label: (NULL, list) if task.facts.has_label_lists else NULL,
        }
        self.has_pairs = self.b is not None
        self.has_labels = self.label is not None
        self.classes = classes
        self.names: tuple[str, ...] = ()
        self.left_out: frozenset[str] = frozenset()
        if self.label is not None:
            self.names = tuple(map(plain_label, self.table.class_names(self.label)))
        if source.part.split is not None:
            self.fit_part(share_of(self._texts(row)) for _, row in self.table.rows())
            if self.label is not None and task.facts.has_classes:
                train_only = self._only_to_train(self.label)
                part = dataclasses.replace(self.source.part, train_only=train_only)
                self.source = dataclasses.replace(source, part=part)
        self._scan()

    def _only_to_train(self, column: int) -> frozenset[float]:
        """Return the shares (`share_of`) of texts that are trained on although they belong to
        another split: for each class without a training example, the highest share of its texts.

        column: index of the column of labels.
        """
        cells: dict[str, float] = {}
        highest: dict[str, float] = {}
        for _, row in self.table.rows():
            cell = row[column].strip()
            cells[cell] = max(share_of(self._texts(row)), cells.get(cell, 0.0))
        self.task = with_separator(self.task, cells)
        for cell, labels in read_labels(cells, self.task, names=self.names).items():
            for label in labels:
                highest[label] = max(cells[cell], highest.get(label, 0.0))
        return frozenset(x for x in highest.values() if x < self.source.part.train_from)

    def _scan(self) -> None:
        """Read the file once: count examples, collect labels."""
        codes: list[int] = []
        cells: dict[str, tuple[int, int]] = {}
        count = 0
        for chunk in self.chunks():
            count += len(chunk.lines)
            if chunk.labels is None:
                continue
            for line, label in zip(chunk.lines, chunk.labels, strict=True):
                codes.append(cells.setdefault(label, (len(cells), line))[0])
        self.check_some(count)
        self.num_examples = count
        self.num_skipped = self.table.num_skipped
        self.digest = self.table.digest
        if self.has_labels:
            self._keep_labels({cell: line for cell, (_, line) in cells.items()}, codes)

    def _keep_labels(self, lines: Mapping[str, int], codes: Sequence[int]) -> None:
        """Store the labels, and warn of examples that have none.

        Args:
          lines: {cell: its first line}. codes: indices of the N examples' cells in `lines`.
        """
        is_training = self.needs_label and self.classes is None
        self.task = with_separator(self.task, lines)
        labels = read_labels(lines, self.task, self.classes, self.names, not is_training)
        self.label_names = tuple(labels)
        self.label_sets = tuple(labels.values())
        self.label_lines = tuple(lines[cell] for cell in labels)
        self.labels = tuple(dict.fromkeys(itertools.chain.from_iterable(self.label_sets)))
        places = {cell: place for place, cell in enumerate(labels)}
        label_codes = np.array([places.get(cell, -1) for cell in lines], np.int32)[
            np.array(codes, int)
        ]
        hashes = [
            hash_of(*(x if self.task.facts.has_classes else str(number_in(x) or x) for x in one))
            for one in self.label_sets
        ]
        self.label_hashes = np.array([*hashes, 0], np.uint64)[label_codes]  # code -1 reads the 0
        blank = [cell for cell in lines if cell not in labels]
        has_label = label_codes >= 0
        self.label_codes = label_codes
        spelling = f"{self.task.label!r} is {listed(map(repr, blank))}"
        if not labels:
            problem = f"no example has a label ({spelling})"
            self._drop_labels(problem, "name a file that has some", is_expected=blank == [""])
        elif blank:
            outcome = "are left out" if self.needs_label else "count in no metric"
            self.warnings += (
                f"{np.sum(~has_label):,} of the {self.source.stem} examples have no label "
                f"({spelling}) and {outcome}; the first is {self.table.unit} {lines[blank[0]]}",
            )
        if self.needs_label:
            self.label_codes = label_codes[has_label]
            self.left_out = frozenset(blank)
            self.num_examples = len(self.label_codes)
            self.label_hashes = self.label_hashes[has_label]
        is_single = self.task.facts.has_classes and not self.task.facts.has_label_lists
        if is_single and are_measures(self.labels):
            self.warnings += (
                f"{self.task.label!r} has numbers such as {self.labels[0]}, which are taken "
                "for classes; to predict numbers, give --task_kind=regression",
            )
        if is_training and self.task.facts.has_label_lists:
            odd = listed(map(repr, check_cells(self.path, lines, self.labels)))
            self.warnings += bool(odd) * (
                f"labels such as {odd} contain a possible separator, but that of the column is "
                f"{self.task.separator!r}; if each is several labels, write JSON lists",
            )
        classes = self.classes or self.task.labels or self.names
        if self.has_labels and classes and self.task.facts.has_classes:
            self._check_classes(set(map(plain_label, classes)), is_training)

    def _drop_labels(self, problem: str, remedy: str, is_expected: bool = False) -> None:
        """Treat the file as one without labels, with a warning unless that is expected. Raises
        UserError where labels are needed.
        """
        if self.needs_label:
            raise UserError(problem, remedy, where=self.path)
        self.label = None
        self.has_labels = False
        self.label_codes = None
        self.warnings += () if is_expected else (f"{problem}; there are no metrics",)

    def _check_classes(self, classes: Collection[str], is_training: bool) -> None:
        """Warn of labels that are not among the classes. Raises UserError where a training file has
        such a label, or where a file to evaluate has no other labels.
        """
        lacking = {label: 0 for label in self.labels if label not in classes}
        sizes = np.bincount(self.label_codes[self.label_codes >= 0]).tolist()
        for labels, size, line in zip(self.label_sets, sizes, self.label_lines, strict=True):
            for label in lacking.keys() & labels:
                if is_training:
                    owner = self.task.name if self.task.labels else "its schema"
                    raise UserError(
                        f"line {line} has the label {label[:40]!r}, which {owner} does not have "
                        f"(it has {listed(sorted(classes))})",
                        "correct it, or leave its rows out",
                        where=self.path,
                    )
                lacking[label] += size
        shares = listed(f"{label} ({number:,})" for label, number in lacking.items())
        if lacking and len(lacking) == len(self.labels):
            self._drop_labels(
                f"none of its labels ({shares}) is one of the model's ({listed(sorted(classes))})",
                "write them alike, here or in id2label of the model's config.json",
            )
        elif lacking:
            self.warnings += (
                f"{self.source.stem} labels that the model lacks count as wrong, and not in loss "
                f"and AUC: {shares}",
            )

    def _texts(self, cells: Sequence[str]) -> list[str]:
        return [cells[self.a], "" if self.b is None else cells[self.b]]

    def chunks(self) -> Iterator[Chunk]:
        """Read the file again: yield chunks of up to CHUNK_ROWS examples, in order."""
        rows = (
            (line, number, cells)
            for number, (line, cells) in enumerate(self.table.rows())
            if (self.label is None or cells[self.label].strip() not in self.left_out)
            and self.source.part.takes(self._texts(cells))
        )
        return map(self._chunk, batched(rows, CHUNK_ROWS))

    def _chunk(self, rows: Sequence[tuple[int, int, list[str]]]) -> Chunk:
        def column(index: int) -> list[str]:
            return [cells[index] for _, _, cells in rows]

        return Chunk(
            lines=[line for line, _, _ in rows],
            ids=[str(number) for _, number, _ in rows] if self.id is None else column(self.id),
            texts_a=column(self.a),
            texts_b=None if self.b is None else column(self.b),
            labels=None if self.label is None else [x.strip() for x in column(self.label)],
            cells=[cells for _, _, cells in rows],
        )


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last one may be shorter."""
    items = iter(items)
    return iter(lambda: list(itertools.islice(items, size)), [])


def listed(names: Iterable[str]) -> str:
    return shortened(", ".join(names))


def check_alike(task: TaskSpec, examples: Sequence[Loaded]) -> None:
    """Raise UserError unless all examples are pairs, or all are single texts."""
    pairs = [part for part in examples if part.has_pairs]
    for part in examples:
        if pairs and not part.has_pairs:
            raise UserError(
                f"line 1 has no column {shortened(task.text_b)!r}, but "
                f"{shortened(os.path.basename(pairs[0].path))} has",
                "add it, or name the column with --text_b (--text_b= for single sentences)",
                where=part.path,
            )


def check_header(table: Table, task: TaskSpec, needs_label: bool) -> None:
    """Raise UserError with a remedy for a table that lacks a task's columns, where its first rows
    show the cause: the first line is a row and no header, the labels are columns of 0 and 1, or the
    table has single texts and the task is pairs.
    """
    header = table.header
    if {task.text_a, task.label if needs_label else task.text_a} <= set(header):
        return
    if table.kind in DIALECTS and table.is_headed and any(map(is_content, header)):
        first, second = task.text_a, task.text_b or "text_b"
        names = {
            1: (first,),
            2: (first, task.label if needs_label else second),
            3: (first, second, task.label),
        }.get(len(header), (first, "..."))
        raise UserError(
            f"line 1 ({shortened(', '.join(header))}) seems to be a row, not a header",
            f"name the {len(header)} columns with --columns={','.join(map(shortened, names))}",
            where=table.path,
        )
    rows = (cells for _, cells in itertools.islice(table.rows(), FEW_ROWS))
    flags = [name for name, *cells in zip(header, *rows, strict=True) if FLAGS.issuperset(cells)]
    if needs_label and task.label not in header and len(flags) > 1:
        raise UserError(
            f"line 1 has no column {shortened(task.label)!r}, but {len(flags)} columns "
            f"of 0 and 1 ({shortened(', '.join(flags))})",
            "write the names of those with 1 in one column, with commas between them, and give "
            "--task_kind=multilabel",
            where=table.path,
        )
    single = TASKS["single"]
    is_pairs = task.text_a == TASKS["pairs"].text_a not in header and not task.facts.makes_vectors
    if is_pairs and single.text_a in header:
        raise UserError(
            f"line 1 has no column {task.text_a!r} (it has {shortened(', '.join(header))})",
            "for single texts give --task_name=single, else name your columns "
            "with --text_a and --text_b",
            where=table.path,
        )


def is_content(title: str) -> bool:
    """Return whether a cell of a first line is a number or a text rather than the name of a
    column.
    """
    return number_in(title) is not None or len(title) > 40 or title.count(" ") > 2


def find_column(path: str, header: Sequence[str], name: str, flag: str) -> int:
    """Return the index of the column called `name`. Raises UserError unless there is exactly
    one.
    """
    if header.count(name) == 1:
        return header.index(name)
    if name in header:
        raise UserError(
            f"line 1 has {header.count(name)} columns called {shortened(name)!r}",
            "rename all but one",
            where=path,
        )
    raise UserError(
        f"line 1 has no column {shortened(name)!r} (it has {shortened(', '.join(header), 80)})",
        f"name yours with --{flag}",
        where=path,
    )
