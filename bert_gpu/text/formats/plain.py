"""The formats of text files with one text on a line: finds where documents begin and reads their
sentences.

lines is Google's format: one sentence a line, a blank line (or several) between documents.
documents has one document a line, jsonl one JSON object a line with the text in one of its fields;
in both a splitter finds the sentences. The functions take whole lines in UTF-8 from corpus.py.

Text is measured in bytes of the text alone, with one byte between sentences and one after each
document, so that the same text measures the same in every format.

Legend: D documents.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bert_gpu.base.errors import UserError, shortened
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats.cells import NULL, text_of
from bert_gpu.text.sentences import split_sentences

LINE_BREAK = "\v"  # replaces line breaks in texts written as lines; alone, it is a row without text
ASCII_SPACES = b" \t\r\x0b\x0c\x1c\x1d\x1e\x1f"
# The characters that str.strip removes, in UTF-8: a line of these is blank.
SPACE = (
    rb"(?:[ \t\r\x0b\x0c\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80"
    rb"|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
)
BLANK_LINE = re.compile(rb"\n" + SPACE + rb"*(?=\n)")


class BadLine(UserError):
    """A line that is not in the format. index: of the line, from 0, among the lines that were read.
    problem: the end of a sentence that begins with "line 3".
    """

    def __init__(self, index: int, problem: str, remedy: str) -> None:
        super().__init__(problem, remedy)
        self.index = index


def cut_at_lines(pieces: Iterable[bytes], longest: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of pieces, cut anew so that each piece ends with a line break, except perhaps
    the last, and the beginning of a line of more than `longest` bytes.
    """
    pending: list[bytes] = []
    for piece in pieces:
        end = piece.rfind(b"\n") + 1
        if end or (longest and sum(map(len, pending)) > longest):
            yield b"".join([*pending, piece[:end]])
            pending = []
        pending.append(piece[end:])
    if any(pending):
        yield b"".join(pending)


@dataclasses.dataclass(frozen=True)
class ParsedLines:
    """The documents in consecutive whole lines.

    Attributes:
      begins: int64 (D,), the offset in the lines of each document that begins here.
      text_before: int64 (D,), bytes of text in the lines before each of these documents.
      num_bytes: bytes of text in all of the lines.
      count_sentences: function of a first and an end offset of lines that returns the number of
        sentences between them; 0 for formats that need the splitter.
      in_document: whether the last line belongs to a document that may continue.
      num_empty: number of rows and objects without text, which are no documents.
    """

    begins: np.ndarray
    text_before: np.ndarray
    num_bytes: int
    count_sentences: Callable[[int, int], int]
    in_document: bool
    num_empty: int = 0


def find_documents(lines: bytes, in_document: bool, text_format: TextFormat) -> ParsedLines:
    """Find the documents in consecutive whole lines.

    Args:
      lines: UTF-8.
      in_document: whether the line before them belongs to a document that may continue.

    Raises:
      BadLine.
    """
    if text_format.has_sentence_lines:
        return find_paragraphs(lines, in_document)
    begins = []
    sizes = [0]
    num_empty = 0
    for offset, text in texts_of_lines(lines, text_format):
        if text:
            begins.append(offset)
            sizes.append(1 + (len(text) if text.isascii() else len(text.encode())))
        else:
            num_empty += lines.startswith((b"{", LINE_BREAK.encode()), offset)
    ends = np.cumsum(sizes)
    return ParsedLines(
        np.array(begins, np.int64),
        text_before=ends[:-1],
        num_bytes=int(ends[-1]),
        count_sentences=lambda first, end: 0,
        in_document=False,
        num_empty=num_empty,
    )


def parse_documents(content: bytes, text_format: TextFormat) -> list[list[bytes]]:
    """Return the documents of whole lines, each a list of sentences (not empty, no space at the
    ends).

    Raises:
      BadLine, UnicodeDecodeError.
    """
    if not text_format.has_sentence_lines:
        texts = (text for _, text in texts_of_lines(content, text_format) if text)
        return [
            [sentence.encode() for sentence in split_sentences(text, text_format.language)]
            for text in texts
        ]
    lines = [line.strip(ASCII_SPACES) for line in content.split(b"\n")]
    if not content.isascii():
        lines = [line if line.isascii() else line.decode().strip().encode() for line in lines]
    return [list(sentences) for has_text, sentences in itertools.groupby(lines, bool) if has_text]


def find_paragraphs(lines: bytes, in_document: bool) -> ParsedLines:
    """Find documents, as `find_documents` does, where each line is a sentence."""
    # In `text` each line has a line break before it, whose index is the line's offset in `lines`,
    # and one after it.
    text = b"\n" + lines
    if not text.endswith(b"\n"):
        text += b"\n"
    size = len(text) - 1
    # start and end offsets in `lines` of the blank lines
    blanks = np.array([match.span() for match in BLANK_LINE.finditer(text)], np.int64).reshape(
        -1, 2
    )
    # start and end of the lines between blank lines
    paragraphs = np.stack([np.append(0, blanks[:, 1]), np.append(blanks[:, 0], size)], axis=1)
    sizes = paragraphs[:, 1] - paragraphs[:, 0]
    has_text = sizes > 0
    begins = paragraphs[has_text, 0]
    ends = np.cumsum(sizes)

    def count_sentences(first: int, end: int) -> int:
        end = size if end == len(lines) else end
        num_blanks = np.searchsorted(blanks[:, 0], end) - np.searchsorted(blanks[:, 0], first)
        return text.count(b"\n", first + 1, end + 1) - int(num_blanks)

    first = int(in_document and has_text[0])  # skips a document that began earlier
    text_before = (ends - sizes)[has_text]
    return ParsedLines(
        begins[first:], text_before[first:], int(ends[-1]), count_sentences, bool(has_text[-1])
    )


def texts_of_lines(lines: bytes, text_format: TextFormat) -> Iterator[tuple[int, str]]:
    """Yield (offset in `lines`, text without space at the ends) of every line; the text of a blank
    line is empty. Raises BadLine.
    """
    offset = 0
    row = text_format.row
    text_of_line = row.load_reader() if row.reader else None
    for index, line in enumerate(lines.split(b"\n")):
        text = line.decode().strip()
        if text and text_of_line:
            text = text_of_line(text, text_format.text_field, index).strip()
        yield offset, text
        offset += len(line) + 1


def text_of_json(line: str, field: str, index: int) -> str:
    """Return the text in a field of a line of JSON. Raises BadLine, with the index of the line."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine(
            index, "is not valid JSON", "with --input_format=jsonl every line is one JSON object"
        ) from None
    return text_of_record(record, field, index)


def text_of_record(record: object, field: str, index: int) -> str:
    """Return the text, possibly empty, in a field of a JSON value. Raises BadLine."""
    if not isinstance(record, dict):
        raise BadLine(
            index, "is JSON but not an object", 'objects such as {"text": "..."} are needed'
        )
    if field not in record:
        names = shortened(", ".join(record) or "none")
        raise BadLine(
            index,
            f"has no field {field[:50]!r}",
            f"give --text_field=NAME (the fields are: {names})",
        )
    if not isinstance(record[field], str | NULL):
        raise BadLine(
            index,
            f"the field {field[:50]!r} is not a string ({type(record[field]).__name__})",
            "name the field with the text by --text_field",
        )
    return text_of(record[field], NULL)
