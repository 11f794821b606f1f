"""The examples of a task's files: read from their file as often as they are needed, in chunks, so
that of a large file only the labels stay in memory. Errors name the file, the line and the remedy,
before any training.
"""

import dataclasses
import os

import numpy as np

from bert_gpu.finetune.problem_types import are_measures, number_in
from bert_gpu.finetune.tables import DIALECTS, Part, Table
from bert_gpu.finetune.tasks import SPLITS, TASKS
from bert_gpu.settings import UserError, shortened

CHUNK_ROWS = 8192
IDS = ("id", "index")  # columns that number the examples
UNLABELLED = {"", "-1", "-1.0"}  # what all rows of a test file have whose labels are kept secret


@dataclasses.dataclass(frozen=True)
class Source:
    """Where the examples of a split are: the rows of a file that belong to a Part.

    stem: the split's name, or that of one of its files (dev_matched); it names results.
    """

    stem: str
    path: str
    part: Part = Part()


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Consecutive examples. All lists have one entry each; cells: all cells of their rows."""

    lines: list[int]
    ids: list[str]
    texts_a: list[str]
    texts_b: list[str] | None
    labels: list[str] | None
    cells: list[list[str]]


class Loaded:
    """What the examples of a Source have in common, whatever their task (task_types.py).

    Attributes:
      source: Source. path: of the file. digest: SHA-256 of the file. num_examples: N.
      has_pairs: whether they are pairs of texts. num_skipped: examples that were left out, and
      why_skipped: which ones. warnings: of what the user may not expect of them.
    """

    source, path, digest, num_examples = None, None, None, 0
    has_pairs, num_skipped = False, 0
    why_skipped = "lines with another number of columns than the first"
    warnings = ()

    def __len__(self):
        return self.num_examples

    def describe(self):
        """Which rows of which content they are, wherever the file lies."""
        part = self.source.part
        rows = "" if part == Part() else f", share {part.low:g} to {part.high:g}"
        return f"{os.path.basename(self.path)} {self.digest[:12]}{rows}"

    def check_some(self, count):
        """UserError when none of the file's rows belong to the Source."""
        if not count and self.source.part == Part():
            raise UserError(f"{self.path}: has no examples; name a file that has some")
        if not count:
            raise UserError(
                f"{self.path}: no row of it belongs to the {self.source.stem} examples; "
                "give them a larger share, or a file of their own"
            )


class Examples(Loaded):
    """The examples of one Source.

    Attributes:
      those of Loaded. header: names of the file's columns. has_labels: whether there are labels;
      in a file to predict, a column that is empty or -1 throughout holds none. label_names: the
      distinct labels, in the order of their first row. label_lines: that row's line of each.
      label_codes: int32 (N,), indices into label_names; None without labels.

    Raises:
      UserError: a missing file or column, a row with the wrong number of columns, an empty label
        (of a multilabel task it is no label), no UTF-8, no rows.
    """

    def __init__(self, task, source, needs_label=True):
        split = next((split for split in SPLITS if source.stem in task.stems(split)), source.stem)
        wanted = (task.text_a, task.label) if needs_label else (task.text_a,)
        self.source, self.path, self.task = source, source.path, task
        self.table = Table(source.path, task.columns.get(split), wanted, task.skips_broken)
        header = self.header = self.table.header
        check_header(self.table, task, needs_label)
        self.a = find_column(self.path, header, task.text_a, "text_a")
        self.b = self.label = None
        if task.text_b is not None and (task.requires_text_b or task.text_b in header):
            self.b = find_column(self.path, header, task.text_b, "text_b")
        if needs_label or task.label in header:
            self.label = find_column(self.path, header, task.label, "label")
        self.id = next((header.index(name) for name in IDS if header.count(name) == 1), None)
        self.has_pairs, self.has_labels = self.b is not None, self.label is not None
        self._scan(needs_label)

    def _scan(self, needs_label):
        """Reads the file once: counts examples, collects labels. Without needs_label, a column that
        holds none is as good as no column.
        """
        codes, found, count = [], {}, 0
        for chunk in self.chunks():
            count += len(chunk.lines)
            if not self.has_labels:
                continue
            for line, label in zip(chunk.lines, chunk.labels, strict=True):
                code = found.setdefault(label, (len(found), line))[0]
                codes.append(code)
        may_lack = not needs_label and self.source.part == Part()
        if may_lack and found and found.keys() <= UNLABELLED:
            if found.keys() != {""}:
                named = repr(self.task.label)
                self.warnings = (f"every {named} is -1, taken for no label; there are no metrics",)
            self.label, self.has_labels, found = None, False, {}
        if "" in found and self.task.kind != "multilabel":  # there it means none of them
            raise UserError(
                f"{self.path}: line {found[''][1]} has an empty {self.task.label!r}; "
                "every example needs a label"
            )
        self.check_some(count)
        self.num_examples, self.num_skipped = count, self.table.num_skipped
        self.digest = self.table.digest
        self.label_names = tuple(found)
        self.label_lines = tuple(line for _, line in found.values())
        self.label_codes = np.array(codes, np.int32) if self.has_labels else None
        if self.has_labels and self.task.kind == "classification" and are_measures(found):
            self.warnings += (
                f"{self.task.label!r} has numbers such as {self.label_names[0]}, which are taken "
                "for classes; to predict numbers, give --task_kind=regression",
            )

    def chunks(self):
        """Reads the file again: yields Chunks of up to CHUNK_ROWS examples, in order."""
        rows, number = [], 0
        for line, cells in self.table.rows():
            if self.source.part.takes([cells[self.a], "" if self.b is None else cells[self.b]]):
                rows.append((line, number, cells))
            number += 1
            if len(rows) == CHUNK_ROWS:
                yield self._chunk(rows)
                rows = []
        if rows:
            yield self._chunk(rows)

    def _chunk(self, rows):
        def column(index):
            return None if index is None else [cells[index] for _, _, cells in rows]

        labels = column(self.label)
        return Chunk(
            lines=[line for line, _, _ in rows],
            ids=column(self.id) or [str(number) for _, number, _ in rows],
            texts_a=column(self.a),
            texts_b=column(self.b),
            labels=None if labels is None else [label.strip() for label in labels],
            cells=[cells for _, _, cells in rows],
        )

    def column(self, name):
        """A whole column, read anew: the list of all `name` (lines, ids, texts_a, texts_b, labels)
        of the Chunks, None where these have None.
        """
        parts = [getattr(chunk, name) for chunk in self.chunks()]
        return None if parts[0] is None else [value for part in parts for value in part]


def check_alike(task, examples):
    """UserError unless all Examples are pairs, or all are single texts."""
    pairs = [part for part in examples if part.has_pairs]
    for part in examples:
        if pairs and not part.has_pairs:
            raise UserError(
                f"{part.path}: line 1 has no column {task.text_b!r}, "
                f"but {pairs[0].path} has; add it, or name the "
                "column with --text_b (--text_b= for single sentences)"
            )


def check_header(table, task, needs_label):
    """UserError that says what to do about a table without the columns of a TaskSpec, where its
    first line shows it: it is a row, or has single texts and the task is pairs.
    """
    header, wanted = table.header, (task.text_a, task.label) if needs_label else (task.text_a,)
    if set(wanted) <= set(header):
        return
    if table.kind in DIALECTS and table.is_headed and any(map(is_content, header)):
        first, second = task.text_a, task.text_b or "text_b"
        names = {
            1: (first,),
            2: (first, task.label if needs_label else second),
            3: (first, second, task.label),
        }.get(len(header), (first, "..."))
        raise UserError(
            f"{table.path}: line 1 ({shortened(', '.join(header))}) seems to be a row, not a "
            f"header; name the {len(header)} columns with --columns={','.join(names)}"[:300]
        )
    single = TASKS["single"]
    if task.text_a == TASKS["pairs"].text_a not in header and single.text_a in header:
        raise UserError(
            f"{table.path}: line 1 has no column {task.text_a!r} (it has "
            f"{shortened(', '.join(header))}); for single texts give --task_name=single, else name "
            "your columns with --text_a and --text_b"[:300]
        )


def is_content(title):
    """Whether a cell of a first line is a number or a text rather than the name of a column."""
    return number_in(title) is not None or len(title) > 40 or title.count(" ") > 2


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
        f"{path}: line 1 has no column {name!r} (it has {shown}); name yours with --{flag}"[:300]
    )
