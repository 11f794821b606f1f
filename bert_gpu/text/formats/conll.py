"""Files of CoNLL: a word a line, in columns between white space (in a line with a tab: between
tabs), and a blank line after each sentence -> the cells of each sentence's words.

Comment lines are recognised by their form, or by a tag that no word has, and left out.
"""

import collections
import functools
import itertools
import re
from collections.abc import Iterator, Sequence

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.text.formats.rows import WholeFile

DOCUMENT = "-DOCSTART-"  # the first word of a line between documents
# matches a line between documents, and the comments of CoNLL-U ("# sent_id = 1", "# newdoc") and
# CoNLL-2012 ("#begin document")
COMMENT = re.compile(
    rf"\s*{DOCUMENT}(\s|$)|# *[^\s=]+ += |# *new(doc|par)\b|#(begin|end) document\b"
)
HASH = re.compile(r"#\s+\S")  # matches a comment of any other form, and the word "#"
TAG_FORM = re.compile(r"[BIOESLUM]([-_:.].+)?")  # matches a tag, which ends no comment


class WordLines(WholeFile):
    """A file with a word a line.

    Args of the constructor:
      columns: names of the columns, as many as a line has; None = as many as the first word has.

    Attributes:
      width: number of columns; first: number of the line with the first word. separator: text
        between the columns of a line.
      tag: index of the column of tags, None without one; set before `sentences` is called.
      num_comments: number of lines that are comments or stand between documents, known when
        `sentences` has been read to its end.

    Raises:
      UserError: the file is missing, is not UTF-8, or has no word.
    """

    tag: int | None = None
    num_comments = 0

    def __init__(self, path: str, columns: Sequence[str] | None = None) -> None:
        super().__init__(path)
        self.columns = columns
        # A line that begins with # may be a comment, so it is taken only where no word is on
        # another line.
        words = (word for word in self._words() if word[1][0] != "#")
        self.first, text = next(words, None) or next(self._words(), (0, ""))
        if not self.first:
            raise UserError(
                "has no sentence",
                "lines with a word and its tag are needed, and a blank line after each sentence",
                where=path,
            )
        self.separator = "\t" if "\t" in text else " "
        self.width = len(columns or cells_of(text))

    def _words(self) -> Iterator[tuple[int, str]]:
        """Return an iterator of (number of the line from 1, line) of all but blank lines and
        comments.
        """
        return ((n, text) for n, text in enumerate(self.lines(), 1) if is_word(text))

    def sentences(self) -> Iterator[tuple[int, list[list[str]], list[str]]]:
        """Read the file again: yield (line on which it begins, cells of each word, lines between
        documents that precede it) of each sentence. Raises UserError for a line with more or fewer
        columns than `width`, a word without a tag, or what may be a comment or a word.
        """
        rows: list[list[str]] = []
        before: list[str] = []
        begin = 1
        self.num_comments = 0
        for line, text in enumerate(itertools.chain(self.lines(), [""]), 1):
            cells = cells_of(text)
            if not cells or cells[0] == DOCUMENT:
                if rows:
                    yield begin, rows, before
                    rows, before = [], []
                if cells:
                    before.append(text.rstrip("\r\n"))
            if not cells or self._is_comment(line, text, bool(rows)):
                self.num_comments += bool(cells)
                continue
            if len(cells) != self.width:
                where = "--columns names" if self.columns else f"line {self.first} has"
                raise UserError(
                    f"line {line} has {len(cells)} columns, {where} {self.width}",
                    "a word is one line, and a blank line ends a sentence",
                    where=self.path,
                )
            if self.tag is not None and not cells[self.tag]:
                raise UserError(
                    f"line {line} has an empty tag", "every word needs one", where=self.path
                )
            begin = begin if rows else line
            rows.append(cells)

    def _is_comment(self, line: int, text: str, is_inside: bool) -> bool:
        """Return whether a line is a comment: whether it has the form of a comment, or is a #
        followed by words that do not fill the columns of the file, or whose last column is no tag
        of another word. is_inside: whether a word of the sentence is before it.

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
        return {len(cells), len(cells_of(text))} == {self.width}

    def _tag(self, text: str) -> str:
        return cells_of(text)[-1 if self.tag is None else self.tag]

    @functools.cached_property
    def tags(self) -> collections.Counter[tuple[str, bool]]:
        """{(tag, whether its line matches HASH): number of lines}; without tags, of the cells in
        the last column.
        """
        return collections.Counter(
            (self._tag(text), HASH.match(text) is not None)
            for _, text in self._words()
            if self._fills_columns(text)
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
