"""The files of the task similarity: pairs of texts with a label, a score or neither, or single
texts. The content of a file decides its kind.
"""

import dataclasses
import re
from collections.abc import Iterator

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import number_in
from bert_gpu.finetune.files.examples import Examples, Source
from bert_gpu.finetune.tasks.labels import choose_positive
from bert_gpu.finetune.tasks.similarity_metrics import LABELLED, METRICS, PAIRS, SCORED, TEXTS
from bert_gpu.finetune.tasks.table import BINARY, TaskSpec
from bert_gpu.text.formats.cells import NULL
from bert_gpu.text.formats.rows import LINES

NEGATIVE = re.compile(r"negative(_\d+)?")  # matches the names of columns of hard negatives


class PairExamples(Examples):
    """The examples of one Source: pairs of texts, each of which becomes rows of its own, or single
    texts, those of a .txt a line each.

    Attributes, beside those of Examples:
      kind: one of similarity_metrics.METRICS. columns_of_texts: indices of the columns with the R
        texts of an example: the first and the second text, or the single one, and hard negatives.

    Raises:
      UserError: as Examples; a file to predict has single texts.
    """

    def __init__(self, task: TaskSpec, source: Source, needs_label: bool) -> None:
        own = task
        if source.path.lower().endswith(".txt"):
            self.table_kind = LINES
            own = dataclasses.replace(
                task,
                text_b=None,
                requires_text_b=False,
                skips_broken=True,
                columns={task.split_of(source.stem): (task.text_a,)},
            )
        self.is_evaluated = needs_label  # or trained on
        super().__init__(own, source, needs_label=False)
        if self.b is None and not needs_label:
            raise UserError(
                "has single texts, and a cosine is that of a pair",
                "name the column of the second texts with --text_b; `python -m bert_gpu embed` "
                "makes vectors of single texts",
                where=self.path,
            )
        negatives = [place for place, name in enumerate(self.header) if NEGATIVE.fullmatch(name)]
        self.table.allowed |= dict.fromkeys(negatives, NULL)
        self.columns_of_texts = [self.a] if self.b is None else [self.a, self.b, *negatives]
        self.rows_per_example = max(2, len(self.columns_of_texts))
        self.has_pairs = False  # in one row
        self.has_labels |= needs_label
        self.is_binary = set(self.labels) <= set(BINARY)  # all labels are 0 or 1
        self.kind = self._kind()
        names = METRICS[self.kind] if self.has_labels and source.stem != "train" else ()
        self.task = dataclasses.replace(task, metrics=task.metrics or names)

    @property
    def text_b(self) -> str | None:
        return self.task.text_b

    def _scan(self) -> None:
        self.table.absent |= {"negative", *(f"negative_{number}" for number in range(100))}
        if self.b is None:
            self.label = None
            self.has_labels = False
        self.needs_label = self.is_evaluated and self.label is not None
        super()._scan()

    def _kind(self) -> str:
        if self.b is None or self.label is None:
            return TEXTS if self.b is None else PAIRS
        names = [label for label in self.labels if number_in(label) is None]
        return LABELLED if self.is_binary or len(names) == len(self.labels) == 2 else SCORED

    def texts(self) -> Iterator[list[str]]:
        """Read the file again: yield the texts of chunks, those of an example after each other; a
        missing hard negative is empty. Raises UserError for a pair that lacks a text.
        """
        for chunk in self.chunks():
            for line, cells in zip(chunk.lines, chunk.cells, strict=True):
                if self.b is not None and not (cells[self.a].strip() and cells[self.b].strip()):
                    problem = f"line {line} lacks one of its two texts"
                    raise UserError(problem, "add it, or leave the line out", where=self.path)
            yield [cells[column] for cells in chunk.cells for column in self.columns_of_texts]

    def targets(self, positive_label: str | None, max_score: float) -> np.ndarray:
        """Return the target of each example, float32 (N,): 1 for a positive pair, 0 for another
        labelled pair, and for a score its share of max_score. An example without a label has an
        arbitrary one. Raises UserError for a score that is no number from 0 to max_score, or when
        positive_label is none of the labels.
        """
        if self.kind in (TEXTS, PAIRS):
            return np.ones(len(self), np.float32)
        if self.kind == LABELLED:
            labels = BINARY if self.is_binary else tuple(sorted(self.labels))
            positive = choose_positive(labels, positive_label)
            values = [float(label == positive) for (label,) in self.label_sets]
            return np.array(values, np.float32)[self.label_codes]
        for label, line in zip(self.label_names, self.label_lines, strict=True):
            value = number_in(label)
            if value is None or not 0 <= value <= max_score:
                fault = "no number" if value is None else f"not in the range 0 to {max_score:g}"
                raise UserError(
                    f"line {line} has the score {label[:40]!r}, which is {fault}",
                    "correct it, or name the highest score with --max_score",
                    where=self.path,
                )
        shares = np.array(self.label_names, np.float64) / max_score
        return shares.astype(np.float32)[self.label_codes]
