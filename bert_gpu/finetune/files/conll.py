"""Sentences of words with their tags, as the files of ner hold them.

CoNLL's files have a word a line, in columns between white space (in a line with a tab: between
tabs), and a blank line behind each sentence; the first column is the word, the last one its tag,
unless --columns names them. Comment lines are known by their form and left out. Tables, .jsonl,
.json, .csv and .parquet, have a sentence a row: a list of words and one of tags, which may be
numbers that the schema of a .parquet names. A table with a header that has one of SENTENCES has a
word a row; a sentence goes on while that column is empty or the same. A file is read again for what
is written of it, so only its tags stay in memory.
"""

import collections
import dataclasses
import hashlib
import itertools
import json
import operator
import re

import numpy as np

from bert_gpu.base.errors import UserError, shortened, shortened_path
from bert_gpu.finetune.files.examples import CHUNK_ROWS, IDS, Loaded, batched, find_column
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
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.text.formats.containers import decoded_lines

DOCUMENT = "-DOCSTART-"  # the first word of a line between documents
# such a line; comments of CoNLL-U ("# sent_id = 1", "# newdoc") and CoNLL-2012 ("#begin document")
COMMENT = re.compile(
    rf"\s*{DOCUMENT}(\s|$)|# *[^\s=]+ += |# *new(doc|par)\b|#(begin|end) document\b"
)
# other names of the columns of tables than those of the task
ALIASES = dict(
    words=("tokens", "word", "Word", "token", "Token"),
    tags=("ner_tags", "labels", "ner", "tag", "Tag"),
)
TABLES = ("jsonl", "json", "parquet")
# titles, in lower case, of a column that tells the sentences of a table with a word a row
SENTENCES = ("sentence #", "sentence_id", "sent_id")
WORD_TABLE = re.compile(rf'(?i)\ufeff?(.*[\t,])?"?({"|".join(SENTENCES)})"?([\t,].*)?[\r\n]*')
NUMBERED = (
    "all tags are numbers, so F1 is the mean over the tags, not that of entities; to count these, "
    "write names such as B-PER"
)


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of a file.

    line: on which it begins. id: of the table, or its number from 0. words, tags: list of str; tags
    None where the file has none. rows: the cells of each word's line. before: lines of documents
    that stand before it, as they are.
    """

    line: int
    id: str
    words: list[str]
    tags: list[str] | None
    rows: list[list[str]]
    before: tuple[str, ...] = ()


class TaggedExamples(Loaded):
    """The sentences of one Source.

    Attributes:
      those of Loaded. has_labels: whether the words have tags. label_names: the distinct tags, in
      the order of their first word. label_lines: its line of each. tag_counts: {tag: its words}.
      num_words: of all sentences. num_comments: lines of comments and documents. separator: between
      the columns of a line. width: (line of the first word, number of columns). names: of the tags
      0, 1 and so on, () where tags are what they are.

    Raises:
      UserError: a missing file or column, lines with other numbers of columns, words without tags
        or another number of tags than words, a number without a name, no UTF-8, no sentence.
    """

    def __init__(self, task, source, needs_label=True):
        super().__init__(task, source, needs_label)
        self.table, self.separator, self.names, self.num_comments = None, "\t", (), 0
        if is_table(source.path):
            self.table = Table(source.path, self.columns, self.columns or (task.text_a,))
            self._find_columns(self.table.header, needs_label)
            if self.label is not None and self.table.kind == "parquet":
                self.names = class_names(source.path, self.table.header[self.label])
        else:
            self._find_places(self._first_line())
        self.has_labels = self.label is not None
        if source.part.split is not None:
            self.fit_part(share_of([" ".join(one.words)]) for one in self._all_sentences())
        found, self.num_examples, self.num_words = {}, 0, 0
        self.tag_counts, hashes = collections.Counter(), []
        for sentence in self.sentences():
            hashes += [
                hash_of(" ".join(texts)) if texts else 0
                for texts in (sentence.words, sentence.tags)
            ]
            self.num_examples += 1
            self.num_words += len(sentence.words)
            self.tag_counts.update(sentence.tags or ())
            for offset, tag in enumerate(sentence.tags or ()):
                found.setdefault(tag, sentence.line + (offset if self.table is None else 0))
        self.check_some(self.num_examples)
        self.text_hashes, self.label_hashes = np.array(hashes, np.uint64).reshape(-1, 2).T
        self.label_names, self.label_lines = tuple(found), tuple(found.values())
        if found and all(re.fullmatch(r"-?\d+", tag) for tag in found):
            self.warnings = (NUMBERED,)

    def _find_columns(self, header, needs_label):
        """Sets `word`, `label` and `id`, the places of the columns of a table; None for none."""
        default, names = TASKS[self.task.name], {}
        for field, flag in (("text_a", "text_a"), ("label", "label")):
            name = getattr(self.task, field)
            others = ALIASES[name] if name == getattr(default, field) else ()
            names[flag] = next((one for one in (name, *others) if one in header), name)
        self.word = find_column(self.path, header, names["text_a"], "text_a")
        self.label = None
        if needs_label or names["label"] in header:
            self.label = find_column(self.path, header, names["label"], "label")
        self.id = next((header.index(name) for name in IDS if header.count(name) == 1), None)
        titles = [title.lower() for title in header]
        self.sentence = next((titles.index(name) for name in SENTENCES if name in titles), None)

    def _find_places(self, first):
        """The same for a file of columns. first: the cells of its first word's line."""
        if self.columns is not None:
            self._find_columns(list(self.columns), self.needs_label)
        else:
            self.word, self.label = 0, len(first) - 1 if len(first) > 1 else None
        self.id = None
        if self.label is None and self.needs_label:
            raise UserError(
                "its lines have one column",
                "a word and its tag are needed, with white space between them",
                where=self.path,
            )

    def _first_line(self):
        """Sets `separator` and `width`; returns the cells of the first line with a word. A line
        that begins with # may be a comment, so it is only taken where there is no other.
        """

        def words():
            lines = decoded_lines(read_pieces(self.path, hashlib.sha256()), self.path)
            return ((n, text) for n, text in enumerate(lines, 1) if is_word(text))

        first = next((one for one in words() if one[1][0] != "#"), None) or next(words(), None)
        if first is None:
            raise UserError(
                "has no sentence",
                "lines with a word and its tag are needed, and a blank line behind each sentence",
                where=self.path,
            )
        cells, self.separator = cells_of(first[1]), "\t" if "\t" in first[1] else " "
        self.width = first[0], len(self.columns or cells)
        return cells

    def sentences(self):
        """Reads the file again: yields the Sentences of the Source, in order."""
        takes = self.source.part.takes
        return (one for one in self._all_sentences() if takes([" ".join(one.words)]))

    def _all_sentences(self):
        return self._lines() if self.table is None else self._rows()

    def chunks(self):
        """The same as lists of up to CHUNK_ROWS sentences."""
        return batched(self.sentences(), CHUNK_ROWS)

    def _lines(self):
        digest, number, rows, before, begin = hashlib.sha256(), 0, [], [], 1
        self.num_comments = 0
        for line, text in enumerate(decoded_lines(read_pieces(self.path, digest), self.path), 1):
            cells = cells_of(text)
            if not cells or cells[0] == DOCUMENT:
                if rows:
                    yield self._sentence(begin, number, rows, before)
                    number, rows, before = number + 1, [], []
                if cells:
                    before.append(text.rstrip("\r\n"))
            if not cells or self._is_comment(text):
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

    def _is_comment(self, text: str) -> bool:
        """Whether a line has the form of a comment, or is a lone # and words behind it that are not
        as many as the columns of the file.
        """
        has_tabs = self.separator == "\t"
        cells = text.split("\t") if has_tabs else cells_of(text.replace("\t", " "))
        is_row = {len(cells), len(cells_of(text))} == {self.width[1]}
        return not is_word(text) or (not is_row and re.match(r"#\s+\S", text) is not None)

    def _sentence(self, line, number, rows, before):
        tags = None if self.label is None else [cells[self.label] for cells in rows]
        words = [cells[self.word] for cells in rows]
        return Sentence(line, str(number), words, tags, rows, tuple(before))

    def _rows(self):
        has_words = self.table.kind in DIALECTS and self.sentence is not None
        for number, (line, cells) in enumerate(self._joined() if has_words else self.table.rows()):
            words, tags = self._list(line, cells, self.word), None
            if self.label is not None:
                tags = [self._named(line, tag) for tag in self._list(line, cells, self.label)]
                if len(tags) != len(words) or "" in tags:
                    raise UserError(
                        f"line {line} has {len(words)} words and {sum(map(bool, tags))} tags",
                        "every word needs one",
                        where=self.path,
                    )
            if words:
                rows = [list(pair) for pair in zip(words, tags or words, strict=True)]
                rows = rows if tags else [[word] for word in words]
                name = str(number) if self.id is None else cells[self.id]
                yield Sentence(line, name, words, tags, rows)
        self.digest = self.table.digest

    def _joined(self):
        """The rows of a table with a word a row, those of a sentence as one with lists of cells."""
        rows, others = itertools.tee(self.table.rows())
        names = itertools.accumulate(
            (cells[self.sentence].strip() for _, cells in others), lambda name, cell: cell or name
        )
        for _, part in itertools.groupby(zip(names, rows, strict=True), operator.itemgetter(0)):
            lines, cells = zip(*(row for _, row in part), strict=True)
            yield lines[0], [json.dumps(column) for column in zip(*cells, strict=True)]

    def _named(self, line, tag):
        """The name of a tag where the schema names the numbers, else the tag."""
        if not self.names or not re.fullmatch(r"-?\d+", tag):
            return tag
        if not 0 <= int(tag) < len(self.names):
            raise UserError(
                f"line {line} has the tag {tag}, and its schema names the tags 0 to "
                f"{len(self.names) - 1}",
                "correct it, or of a file to predict drop the column",
                where=self.path,
            )
        return self.names[int(tag)]

    def _list(self, line, cells, place):
        """The list in a cell, its entries as text."""
        try:
            values = json.loads(cells[place])
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or any(isinstance(one, list | dict) for one in values):
            raise UserError(
                f"{shortened_path(self.path)}: line {line} has no list of texts in "
                f"{shortened(self.table.header[place])!r}; "
                + (
                    "a column 'Sentence #' or 'sentence_id' must tell the sentences of single words"
                    if self.table.kind in DIALECTS
                    else "each row is a sentence such as "
                    '{"words": ["Rome", "."], "tags": ["B-LOC", "O"]}'
                )
            )
        return [one if isinstance(one, str) else json.dumps(one) for one in values]


def is_table(path):
    """Whether a file is a table rather than the columns of CoNLL."""
    return (
        kind_of(path) in TABLES
        or str(path).lower().endswith(".csv")
        or WORD_TABLE.fullmatch(next(decoded_lines(read_pieces(path, hashlib.sha256()), path), ""))
        is not None
    )


def is_word(text: str) -> bool:
    """Whether a line is neither blank nor has the form of a comment."""
    return bool(text.strip()) and COMMENT.match(text) is None


def cells_of(text):
    """The cells of a line; none of a blank one."""
    if not text.strip():
        return []
    if "\t" in text:
        return [cell.strip(" ") for cell in text.rstrip("\r\n").split("\t")]
    return [cell for cell in re.split(r"[ \r\n]+", text) if cell]
