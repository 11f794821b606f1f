"""Sentences of words with their tags, as the files of ner hold them.

A file with a word a line (text/formats/conll.py) has the word in its first column and its tag in
the last one, unless --columns names them. Tables (.jsonl, .json, .csv and .parquet) have a sentence
a row: a list of words and a list of tags, which may be numbers that the schema of a .parquet names.
A table whose header has one of the titles in SENTENCES has a word a row; a sentence continues while
the cell in that column is empty or the same. A file is read again whenever its sentences are
needed, so that its words need not stay in memory.
"""

import collections
import dataclasses
import itertools
import json
import operator
import re
from collections.abc import Iterator, Sequence

import numpy as np

from bert_gpu.base.errors import UserError, shortened, shortened_path
from bert_gpu.finetune.files.examples import CHUNK_ROWS, IDS, Loaded, Source, batched, find_column
from bert_gpu.finetune.files.parts import hash_of, share_of
from bert_gpu.finetune.tasks.table import TASKS, TaskSpec
from bert_gpu.text.formats.cells import DIALECTS
from bert_gpu.text.formats.conll import WordLines
from bert_gpu.text.formats.rows import Table, WholeFile, kind_of

# {name of a task's column: other names that tables give it}
ALIASES = dict(
    words=("tokens", "word", "Word", "token", "Token"),
    tags=("ner_tags", "labels", "ner", "tag", "Tag"),
)
TABLES = ("jsonl", "json", "parquet")
# titles, in lower case, of a column that separates the sentences of a table with a word a row
SENTENCES = ("sentence #", "sentence_id", "sent_id")
WORD_TABLE = re.compile(rf'(?i)\ufeff?(.*[\t,])?"?({"|".join(SENTENCES)})"?([\t,].*)?[\r\n]*')
NUMBERED = (
    "all tags are numbers, so F1 is the mean over the tags, not that of entities; to count these, "
    "write names such as B-PER"
)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a file.

    line: number of the line on which the sentence begins. id: the sentence's id in the table, else
    its number from 0. tags: None where the file has no tags. rows: the cells of each word's line.
    before: the lines between documents that precede the sentence, unchanged.
    """

    line: int
    id: str
    words: list[str]
    tags: list[str] | None
    rows: list[list[str]]
    before: tuple[str, ...] = ()


class TaggedExamples(Loaded):
    """The sentences of one Source.

    Attributes, beside those of Loaded:
      file: the file, of one of two forms. has_labels: whether the words have tags.
      label_names: the distinct tags, in the order of their first words; label_lines: the lines of
        these words. tag_counts: {tag: number of words that have it}. names: names of the tags 0, 1
        and so on in a .parquet's schema, () without them.
      num_words: number of words of all sentences. num_comments, separator: as in WordLines.

    Raises:
      UserError: a file or column is missing, lines have different numbers of columns, a word has no
        tag, a sentence has more or fewer tags than words, a number has no name in the schema, the
        file is not UTF-8, or it has no sentence.
    """

    num_comments = 0
    separator = "\t"

    def __init__(self, task: TaskSpec, source: Source, needs_label: bool = True) -> None:
        super().__init__(task, source, needs_label)
        self.names: tuple[str, ...] = ()
        self.file: Table | WordLines
        if is_table(source.path):
            self.file = Table(source.path, self.columns, self.columns or (task.text_a,))
            self._find_columns(self.file.header)
            self.file.allowed = {self.word: list, self.label: list}
            if self.label is not None:
                self.names = self.file.class_names(self.label)
        else:
            self.file = WordLines(source.path, self.columns)
            self.separator = self.file.separator
            titles = [task.text_a, *[""] * (self.file.width - 2), task.label][: self.file.width]
            if titles == [task.text_a] and needs_label and not self.columns:
                raise UserError(
                    "its lines have one column",
                    "a word and its tag are needed, with white space between them",
                    where=self.path,
                )
            self._find_columns(self.columns or titles)
            self.file.tag = self.label
        self.has_labels = self.label is not None
        if source.part.split is not None:
            self.fit_part(share_of([" ".join(one.words)]) for one in self._all_sentences())
        lines: dict[str, int] = {}
        self.num_words = 0
        self.tag_counts: collections.Counter[str] = collections.Counter()
        hashes: list[int] = []
        for sentence in self.sentences():
            hashes.append(hash_of(" ".join(sentence.tags)) if sentence.tags else 0)
            self.num_words += len(sentence.words)
            self.tag_counts.update(sentence.tags or ())
            for offset, tag in enumerate(sentence.tags or ()):
                lines.setdefault(tag, sentence.line + offset * isinstance(self.file, WordLines))
        self.num_examples = len(hashes)
        self.check_some(self.num_examples)
        self.digest = self.file.digest
        if isinstance(self.file, WordLines):
            self.num_comments = self.file.num_comments
        self.label_hashes = np.array(hashes, np.uint64)
        self.label_names = tuple(lines)
        self.label_lines = tuple(lines.values())
        if lines and all(re.fullmatch(r"-?\d+", tag) for tag in lines):
            self.warnings = (NUMBERED,)

    def _find_columns(self, header: Sequence[str]) -> None:
        """Set `word`, `label`, `id` and `sentence`, the indices of the columns; None for a column
        that is missing.
        """
        names = {}
        for field in ("text_a", "label"):
            name = getattr(self.task, field)
            others = ALIASES[name] if name == getattr(TASKS[self.task.name], field) else ()
            names[field] = next((one for one in (name, *others) if one in header), name)
        self.word = find_column(self.path, header, names["text_a"], "text_a")
        self.label: int | None = None
        if self.needs_label or names["label"] in header:
            self.label = find_column(self.path, header, names["label"], "label")
        self.id = next((header.index(name) for name in IDS if header.count(name) == 1), None)
        titles = [title.lower() for title in header]
        self.sentence = next((titles.index(name) for name in SENTENCES if name in titles), None)

    def sentences(self) -> Iterator[Sentence]:
        """Read the file again: yield the sentences of the source, in order."""
        takes = self.source.part.takes
        return (one for one in self._all_sentences() if takes([" ".join(one.words)]))

    def _all_sentences(self) -> Iterator[Sentence]:
        file = self.file
        return self._lines(file) if isinstance(file, WordLines) else self._rows(file)

    def chunks(self) -> Iterator[list[Sentence]]:
        """Yield the `sentences` as lists of up to CHUNK_ROWS sentences."""
        return batched(self.sentences(), CHUNK_ROWS)

    def _lines(self, file: WordLines) -> Iterator[Sentence]:
        for number, (line, rows, before) in enumerate(file.sentences()):
            tags = None if self.label is None else [cells[self.label] for cells in rows]
            words = [cells[self.word] for cells in rows]
            yield Sentence(line, str(number), words, tags, rows, tuple(before))

    def _rows(self, table: Table) -> Iterator[Sentence]:
        lines = (
            self._joined(table, self.sentence)
            if table.kind in DIALECTS and self.sentence is not None
            else table.rows()
        )
        for number, (line, cells) in enumerate(lines):
            words = self._list(table, line, cells, self.word)
            tags = None
            if self.label is not None:
                tags = [
                    self._named(line, tag) for tag in self._list(table, line, cells, self.label)
                ]
                if len(tags) != len(words) or "" in tags:
                    raise UserError(
                        f"line {line} has {len(words)} words and {sum(map(bool, tags))} tags",
                        "every word needs one",
                        where=self.path,
                    )
            if words:
                rows = [list(row) for row in zip(words, *([tags] if tags else []), strict=True)]
                name = str(number) if self.id is None else cells[self.id]
                yield Sentence(line, name, words, tags, rows)

    def _joined(self, table: Table, sentence: int) -> Iterator[tuple[int, list[str]]]:
        """Yield (line of its first row, cells) of each sentence of a table with a word a row; a
        cell is a JSON list of the sentence's cells in one column.
        """
        rows, others = itertools.tee(table.rows())
        names: Iterator[str] = itertools.accumulate(
            (cells[sentence].strip() for _, cells in others), lambda name, cell: cell or name
        )
        for _, part in itertools.groupby(zip(names, rows, strict=True), operator.itemgetter(0)):
            lines, cells = zip(*(row for _, row in part), strict=True)
            yield lines[0], [json.dumps(column) for column in zip(*cells, strict=True)]

    def _named(self, line: int, tag: str) -> str:
        """Return the name that the schema gives to a tag that is a number; without names, the tag
        itself. Raises UserError for a number without a name.
        """
        if not self.names or not re.fullmatch(r"-?\d+", tag):
            return tag
        if not 0 <= int(tag) < len(self.names):
            raise UserError(
                f"line {line} has the tag {tag}, and its schema names the tags 0 to "
                f"{len(self.names) - 1}",
                "correct it, or drop the column of tags in a file to predict",
                where=self.path,
            )
        return self.names[int(tag)]

    def _list(self, table: Table, line: int, cells: Sequence[str], place: int) -> list[str]:
        """Return the entries of the JSON list in the cell at index `place`, as texts."""
        try:
            values = json.loads(cells[place])
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or any(isinstance(one, list | dict) for one in values):
            raise UserError(
                f"{shortened_path(self.path)}: line {line} has no list of texts in "
                f"{shortened(table.header[place])!r}; "
                + (
                    "a column 'Sentence #' or 'sentence_id' is needed where a row is a single word"
                    if table.kind in DIALECTS
                    else "each row is a sentence such as "
                    '{"words": ["Rome", "."], "tags": ["B-LOC", "O"]}'
                )
            )
        return table.texts(line, values, list_in=place)


def is_table(path: str) -> bool:
    """Return whether a file is a table rather than the columns of CoNLL."""
    return (
        kind_of(path) in TABLES
        or str(path).lower().endswith(".csv")
        or WORD_TABLE.fullmatch(next(WholeFile(path).lines(), "")) is not None
    )
