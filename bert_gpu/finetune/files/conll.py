"""Sentences of words with their tags, as the files of ner hold them.

CoNLL's files have a word a line, in columns between white space (in a line with a tab: between
tabs), and a blank line after each sentence; the first column is the word, the last one its tag,
unless --columns names them. Comment lines are recognised by their form, or by a tag that no word
has, and left out. Tables (.jsonl, .json, .csv and .parquet) have a sentence a row: a list of words
and a list of tags, which may be numbers that the schema of a .parquet names. A table whose header
has one of the titles in SENTENCES has a word a row; a sentence continues while the cell in that
column is empty or the same. A file is read again whenever its sentences are needed, so that its
words need not stay in memory.
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import operator
import re
from collections.abc import Iterator, Sequence

import numpy as np

from bert_gpu.base.errors import UserError, shortened, shortened_path
from bert_gpu.finetune.files.examples import CHUNK_ROWS, IDS, Loaded, Source, batched, find_column
from bert_gpu.finetune.files.tables import (
    DIALECTS,
    Table,
    class_names,
    hash_of,
    kind_of,
    read_pieces,
    settled_digest,
    share_of,
)
from bert_gpu.finetune.tasks.table import TASKS, TaskSpec
from bert_gpu.text.formats.containers import decoded_lines

DOCUMENT = "-DOCSTART-"  # the first word of a line between documents
# matches a line between documents, and the comments of CoNLL-U ("# sent_id = 1", "# newdoc") and
# CoNLL-2012 ("#begin document")
COMMENT = re.compile(
    rf"\s*{DOCUMENT}(\s|$)|# *[^\s=]+ += |# *new(doc|par)\b|#(begin|end) document\b"
)
HASH = re.compile(r"#\s+\S")  # matches a comment of any other form, and the word "#"
TAG_FORM = re.compile(r"[BIOESLUM]([-_:.].+)?")  # matches a tag, which ends no comment
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
      has_labels: whether the words have tags. label_names: the distinct tags, in the order of their
        first words; label_lines: the lines of these words. tag_counts: {tag: number of words that
        have it}.
      num_words: number of words of all sentences. num_comments: number of lines that are comments
        or stand between documents. separator: text between the columns of a line. width: (line of
        the first word, number of columns). names: names of the tags 0, 1 and so on in a .parquet's
        schema, () without them.

    Raises:
      UserError: a file or column is missing, lines have different numbers of columns, a word has no
        tag, a sentence has more or fewer tags than words, a number has no name in the schema, the
        file is not UTF-8, or it has no sentence.
    """

    def __init__(self, task: TaskSpec, source: Source, needs_label: bool = True) -> None:
        super().__init__(task, source, needs_label)
        self.table: Table | None = None
        self.separator = "\t"
        self.names: tuple[str, ...] = ()
        self.num_comments = 0
        if is_table(source.path):
            self.table = Table(source.path, self.columns, self.columns or (task.text_a,))
            self._find_columns(self.table.header, needs_label)
            self.table.allowed = {self.word: list, self.label: list}
            if self.label is not None and self.table.kind == "parquet":
                self.names = class_names(source.path, self.table.header[self.label])
        else:
            self._find_places(self._first_line())
        self.has_labels = self.label is not None
        if source.part.split is not None:
            self.fit_part(share_of([" ".join(one.words)]) for one in self._all_sentences())
        lines: dict[str, int] = {}
        self.num_examples = 0
        self.num_words = 0
        self.tag_counts: collections.Counter[str] = collections.Counter()
        hashes: list[int] = []
        for sentence in self.sentences():
            hashes.append(hash_of(" ".join(sentence.tags)) if sentence.tags else 0)
            self.num_examples += 1
            self.num_words += len(sentence.words)
            self.tag_counts.update(sentence.tags or ())
            for offset, tag in enumerate(sentence.tags or ()):
                lines.setdefault(tag, sentence.line + (offset if self.table is None else 0))
        self.check_some(self.num_examples)
        self.label_hashes = np.array(hashes, np.uint64)
        self.label_names = tuple(lines)
        self.label_lines = tuple(lines.values())
        if lines and all(re.fullmatch(r"-?\d+", tag) for tag in lines):
            self.warnings = (NUMBERED,)

    def _find_columns(self, header: Sequence[str], needs_label: bool) -> None:
        """Set `word`, `label`, `id` and `sentence`, the indices of a table's columns; None for a
        column that is missing.
        """
        names = {}
        for field in ("text_a", "label"):
            name = getattr(self.task, field)
            others = ALIASES[name] if name == getattr(TASKS[self.task.name], field) else ()
            names[field] = next((one for one in (name, *others) if one in header), name)
        self.word = find_column(self.path, header, names["text_a"], "text_a")
        self.label: int | None = None
        if needs_label or names["label"] in header:
            self.label = find_column(self.path, header, names["label"], "label")
        self.id = next((header.index(name) for name in IDS if header.count(name) == 1), None)
        titles = [title.lower() for title in header]
        self.sentence = next((titles.index(name) for name in SENTENCES if name in titles), None)

    def _find_places(self, first: Sequence[str]) -> None:
        """Set `word`, `label` and `id`, the indices of the columns, for a file with a word a line.
        first: the cells of the line with the first word.
        """
        if self.columns is not None:
            self._find_columns(list(self.columns), self.needs_label)
        else:
            self.word = 0
            self.label = len(first) - 1 if len(first) > 1 else None
        self.id = None
        if self.label is None and self.needs_label:
            raise UserError(
                "its lines have one column",
                "a word and its tag are needed, with white space between them",
                where=self.path,
            )

    def _first_line(self) -> list[str]:
        """Set `separator` and `width`; return the cells of the first line with a word. A line that
        begins with # may be a comment, so it is taken only where no word is on another line.
        """

        def words() -> Iterator[tuple[int, str]]:
            lines = decoded_lines(read_pieces(self.path, hashlib.sha256()), self.path)
            return ((n, text) for n, text in enumerate(lines, 1) if is_word(text))

        first = next((one for one in words() if one[1][0] != "#"), None) or next(words(), None)
        if first is None:
            raise UserError(
                "has no sentence",
                "lines with a word and its tag are needed, and a blank line after each sentence",
                where=self.path,
            )
        cells = cells_of(first[1])
        self.separator = "\t" if "\t" in first[1] else " "
        self.width = first[0], len(self.columns or cells)
        return cells

    def sentences(self) -> Iterator[Sentence]:
        """Read the file again: yield the sentences of the source, in order."""
        takes = self.source.part.takes
        return (one for one in self._all_sentences() if takes([" ".join(one.words)]))

    def _all_sentences(self) -> Iterator[Sentence]:
        return self._lines() if self.table is None else self._rows(self.table)

    def chunks(self) -> Iterator[list[Sentence]]:
        """Yield the `sentences` as lists of up to CHUNK_ROWS sentences."""
        return batched(self.sentences(), CHUNK_ROWS)

    def _lines(self) -> Iterator[Sentence]:
        digest = hashlib.sha256()
        number = 0
        rows: list[list[str]] = []
        before: list[str] = []
        begin = 1
        self.num_comments = 0
        for line, text in enumerate(decoded_lines(read_pieces(self.path, digest), self.path), 1):
            cells = cells_of(text)
            if not cells or cells[0] == DOCUMENT:
                if rows:
                    yield self._sentence(begin, number, rows, before)
                    number += 1
                    rows, before = [], []
                if cells:
                    before.append(text.rstrip("\r\n"))
            if not cells or self._is_comment(line, text, bool(rows)):
                self.num_comments += bool(cells)
                continue
            if len(cells) != self.width[1]:
                where = "--columns names" if self.columns else f"line {self.width[0]} has"
                raise UserError(
                    f"line {line} has {len(cells)} columns, {where} {self.width[1]}",
                    "a word is one line, and a blank line ends a sentence",
                    where=self.path,
                )
            if self.label is not None and not cells[self.label]:
                raise UserError(
                    f"line {line} has an empty tag", "every word needs one", where=self.path
                )
            begin = begin if rows else line
            rows.append(cells)
        if rows:
            yield self._sentence(begin, number, rows, before)
        self.digest = settled_digest(self.path, digest, self.digest)

    def _is_comment(self, line: int, text: str, is_inside: bool) -> bool:
        """Return whether a line is blank or a comment: whether it has the form of a comment, or is
        a # followed by words that do not fill the columns of the file, or whose last column is no
        tag of another word. is_inside: whether a word of the sentence is before it.

        Raises UserError for a line that may be a comment as well as the word #: the last column has
        the form of a tag, or is on several such lines of which this one is inside a sentence.
        """
        if not is_word(text) or HASH.match(text) is None or not self._fills_columns(text):
            return not is_word(text) or HASH.match(text) is not None
        tag = self._tag(text)
        if self.tags[tag, False] or tag == text[0]:
            return False
        is_rare = self.tags[tag, True] == 1 or not is_inside
        if is_rare and TAG_FORM.fullmatch(tag) is None:
            return True
        raise UserError(
            f"line {line} ({shortened(text.strip())}) is a comment, or the word '#' with the tag "
            f"{shortened(tag)!r}, which no other word has",
            "write a comment as '# text = ...' or delete it, and a word in another way",
            where=self.path,
        )

    def _fills_columns(self, text: str) -> bool:
        has_tabs = self.separator == "\t"
        cells = text.split("\t") if has_tabs else cells_of(text.replace("\t", " "))
        return {len(cells), len(cells_of(text))} == {self.width[1]}

    def _tag(self, text: str) -> str:
        return cells_of(text)[-1 if self.label is None else self.label]

    @functools.cached_property
    def tags(self) -> collections.Counter[tuple[str, bool]]:
        """{(tag, whether its line matches HASH): number of lines}; without tags, of the cells in
        the last column.
        """
        return collections.Counter(
            (self._tag(line), HASH.match(line) is not None)
            for line in decoded_lines(read_pieces(self.path, hashlib.sha256()), self.path)
            if is_word(line) and self._fills_columns(line)
        )

    def _sentence(
        self, line: int, number: int, rows: list[list[str]], before: Sequence[str]
    ) -> Sentence:
        tags = None if self.label is None else [cells[self.label] for cells in rows]
        words = [cells[self.word] for cells in rows]
        return Sentence(line, str(number), words, tags, rows, tuple(before))

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
        self.digest = table.digest

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
        or WORD_TABLE.fullmatch(next(decoded_lines(read_pieces(path, hashlib.sha256()), path), ""))
        is not None
    )


def is_word(text: str) -> bool:
    """Return whether a line is neither blank nor has the form of a comment."""
    return bool(text.strip()) and COMMENT.match(text) is None


def cells_of(text: str) -> list[str]:
    """Return the cells of a line; none for a blank one."""
    if not text.strip():
        return []
    if "\t" in text:
        return [cell.strip(" ") for cell in text.rstrip("\r\n").split("\t")]
    return [cell for cell in re.split(r"[ \r\n]+", text) if cell]
