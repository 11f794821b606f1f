"""What a text file looks like inside: where documents begin, and what sentences they have.

lines is Google's format: one sentence a line, a blank line (or several) between documents.
documents has one document a line, jsonl one JSON object a line with the text in one of its fields;
there a splitter finds the sentences. The functions here look at whole lines in UTF-8; corpus.py
brings them.
"""

import itertools
import json
import re

import numpy as np

from bert_gpu.text.sentences import split_sentences

ASCII_SPACES = b" \t\r\x0b\x0c\x1c\x1d\x1e\x1f"
# The line before a blank one ends here. What counts as blank is what str.strip takes
# away, in UTF-8.
SPACE = (
    rb"(?:[ \t\r\x0b\x0c\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80"
    rb"|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
)
BLANK_LINE = re.compile(rb"\n" + SPACE + rb"*(?=\n)")


class BadLine(Exception):
    """A line that is not in the format.

    Attributes:
      number: of the line, from 0, among those looked at.
      problem: what is wrong and what to do, to be read behind the words "line 3".
    """

    def __init__(self, number, problem):
        super().__init__(number, problem)
        self.number, self.problem = number, problem


def find_documents(lines, in_document, text_format):
    """Where documents begin in a run of whole lines.

    Args:
      lines: bytes in UTF-8.
      in_document: whether the line before them belongs to a document that may go on.

    Returns:
      begins: int64 (D,), the offset in `lines` of each document that begins here.
      count_sentences: function of two offsets of lines, from and to: the number of sentences
        between them; 0 where only the splitter knows.
      in_document: whether the last line belongs to a document that may go on.

    Raises:
      BadLine.
    """
    if text_format.has_sentence_lines:
        return find_paragraphs(lines, in_document)
    begins = [offset for offset, text in texts_of_lines(lines, text_format) if text]
    return np.array(begins, np.int64), lambda first, end: 0, False


def parse_documents(content, text_format):
    """The documents of whole lines (bytes): list of documents, each a list of sentences (bytes, not
    empty, no space at the ends).

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


def find_paragraphs(lines, in_document):
    """`find_documents` for one sentence a line."""
    # so that every line has a line break before it, at its own offset in `lines`, and one behind it
    text = b"\n" + lines
    if not text.endswith(b"\n"):
        text += b"\n"
    size = len(text) - 1
    # from, to; offsets in `lines`
    blanks = np.array([match.span() for match in BLANK_LINE.finditer(text)], np.int64).reshape(
        -1, 2
    )
    # of lines between blank lines
    stretches = np.stack([np.append(0, blanks[:, 1]), np.append(blanks[:, 0], size)], axis=1)
    has_text = stretches[:, 0] < stretches[:, 1]
    begins = stretches[has_text, 0]

    def count_sentences(first, end):
        end = size if end == len(lines) else end
        num_blanks = np.searchsorted(blanks[:, 0], end) - np.searchsorted(blanks[:, 0], first)
        return text.count(b"\n", first + 1, end + 1) - int(num_blanks)

    goes_on = in_document and has_text[0]
    return begins[1:] if goes_on else begins, count_sentences, bool(has_text[-1])


def texts_of_lines(lines, text_format):
    """Yields (offset in `lines`, text without space at the ends) of every line; the text of a blank
    line is empty. Raises BadLine.
    """
    offset = 0
    for number, line in enumerate(lines.split(b"\n")):
        text = line.decode().strip()
        if text and text_format.input_format == "jsonl":
            text = text_of_json(text, text_format.text_field, number).strip()
        yield offset, text
        offset += len(line) + 1


def text_of_json(line, field, number):
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine(
            number, "is not valid JSON; with --input_format=jsonl every line is one JSON object"
        ) from None
    if not isinstance(record, dict):
        raise BadLine(
            number,
            "is JSON but no object; with --input_format=jsonl "
            'every line is one, as {"text": "..."}',
        )
    if field not in record:
        names = ", ".join(record)[:100] or "none"
        raise BadLine(
            number,
            f"has no field {field[:50]!r}; name the one with "
            f"the text by --text_field (its fields: {names})",
        )
    text = record[field]
    if not isinstance(text, str):
        kind = type(text).__name__
        raise BadLine(
            number,
            f"the field {field[:50]!r} is no string ({kind}); "
            "name the one with the text by --text_field",
        )
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, written as "\ud83d": no character
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
