"""Text files in, documents of sentences out, a block at a time.

The format is Google's: one sentence a line, a blank line (or several) between documents, UTF-8; documents never span files. A corpus is
planned once, by a scan that remembers only where documents begin, as a list of blocks: byte ranges that begin and end between
documents. Then each block can be read anywhere, in any order, by any worker, and memory never grows with the corpus.
"""

import dataclasses
import itertools
import re

import numpy as np
import tensorflow as tf

from bert_gpu.settings import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 22  # what the scan holds at once, beside the longest line
ASCII_SPACES = b" \t\r\x0b\x0c\x1c\x1d\x1e\x1f"
# The line before a blank one ends here. What counts as blank is what str.strip takes away, in UTF-8.
SPACE = rb"(?:[ \t\r\x0b\x0c\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
BLANK_LINE = re.compile(rb"\n" + SPACE + rb"*(?=\n)")


@dataclasses.dataclass(frozen=True)
class Block:
    """Whole documents that lie together in one file.

    Attributes:
      path: the file.
      start, end: its bytes, end exclusive. The blocks of a file follow one another without a gap.
      first_document: number of the first document, counted from 0 over all planned files in their order.
      num_documents: at least 1.
      num_sentences: lines that are not blank.
    """

    path: str
    start: int
    end: int
    first_document: int
    num_documents: int
    num_sentences: int


def expand_inputs(patterns):
    """Comma-separated files and globs (or a list of them) -> sorted paths, each once. Raises UserError for one that matches nothing."""
    patterns = patterns.split(",") if isinstance(patterns, str) else patterns
    paths = set()
    for pattern in filter(None, map(str.strip, patterns)):
        # A file may have glob characters in its name, so the name itself comes first.
        matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        files = [path for path in matches if not tf.io.gfile.isdir(path)]
        if matches and not files:
            raise UserError(f"{pattern}: is a folder; name the files in it, for example {pattern.rstrip('/')}/*.txt"[:300])
        if not files:
            raise UserError(f"{pattern}: no such file; check the path (the pattern matches nothing)"[:300])
        paths.update(files)
    if not paths:
        raise UserError("no input file is named; give one or more, separated by commas")
    return sorted(paths)


def plan_blocks(paths, block_bytes):
    """Cuts files into blocks of about block_bytes, each at least that long unless it is the last of its file.

    Args:
      paths: list of str, in the order in which documents are to be numbered.
      block_bytes: int > 0; a document longer than that makes a longer block.

    Returns:
      list of Block. They depend on the files and on block_bytes alone.

    Raises:
      UserError: a file cannot be read, is not UTF-8 (the message has the line number) or has no document.
    """
    blocks = []
    for path in paths:
        first = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
        blocks += scan_file(path, block_bytes, first)
    return blocks


def read_block(block):
    """The documents of a block: list of documents, each a list of sentences (bytes, UTF-8, without space at the ends, never empty).

    Raises:
      UserError: the file is gone, or not what it was when the block was planned.
    """
    try:
        with open_binary(block.path) as file:
            file.seek(block.start)
            content = file.read(block.end - block.start)
        lines = [line.strip(ASCII_SPACES) for line in content.split(b"\n")]
        if not content.isascii():
            lines = [line if line.isascii() else line.decode().strip().encode() for line in lines]
    except (OSError, tf.errors.OpError, UnicodeDecodeError) as error:
        raise changed(block.path) from error
    documents = [list(sentences) for has_text, sentences in itertools.groupby(lines, bool) if has_text]
    if (len(documents), sum(map(len, documents))) != (block.num_documents, block.num_sentences):
        raise changed(block.path)
    return documents


def changed(path):
    return UserError(f"{path}: changed while it was being read; run the command again once the file rests"[:300])


def open_binary(path):
    # For local files the plain call is several times faster.
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")


def scan_file(path, block_bytes, first_document):
    """The blocks of one file, in one pass. Arguments and errors as of `plan_blocks`."""
    blocks = []
    start = num_documents = num_sentences = 0  # of the block that is being filled
    position = num_lines = 0  # of the file
    in_document = False

    def close(end):
        nonlocal start, num_documents, num_sentences, first_document
        blocks.append(Block(path, start, end, first_document, num_documents, num_sentences))
        first_document += num_documents
        start, num_documents, num_sentences = end, 0, 0

    for lines in whole_lines(path):
        if position == 0 and lines.startswith(BYTE_ORDER_MARK):
            lines, position, start = lines[3:], 3, 3
        check_utf8(path, lines, num_lines)
        begins, count_sentences, in_document = find_documents(lines, in_document)
        next_document = counted_to = 0  # what of these lines is in a block already: documents, bytes
        while True:
            # A block ends where the first document begins after it has its length and a document.
            least = next_document + (num_documents == 0)
            cut = max(least, int(np.searchsorted(begins, start + block_bytes - position)))
            if cut >= len(begins):
                break
            num_documents += cut - next_document
            num_sentences += count_sentences(counted_to, int(begins[cut]))
            next_document, counted_to = cut, int(begins[cut])
            close(position + counted_to)
        num_documents += len(begins) - next_document
        num_sentences += count_sentences(counted_to, len(lines))
        num_lines += lines.count(b"\n")
        position += len(lines)
    if num_documents:
        close(position)
    if not blocks:
        raise UserError(f"{path}: has no document; one sentence a line is needed, and a blank line between documents"[:300])
    return blocks


def whole_lines(path):
    """Yields the file's bytes, about CHUNK_BYTES at a time, cut after a line break. Raises UserError."""
    try:
        with open_binary(path) as file:
            pending = []
            while chunk := file.read(CHUNK_BYTES):
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield b"".join([*pending, chunk[:end]])
                    pending = []
                pending.append(chunk[end:])
            if any(pending):
                yield b"".join(pending)
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise UserError(f"{path}: no such file; check the path"[:300]) from None
    except (OSError, tf.errors.OpError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); name a readable text file"[:300]) from None


def check_utf8(path, lines, lines_before):
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        number = lines_before + lines.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {number} is not UTF-8; convert the file, for example with iconv -t UTF-8"[:300]) from None


def find_documents(lines, in_document):
    """Where documents begin in a stretch of a file.

    Args:
      lines: bytes, whole lines.
      in_document: whether the line before them belongs to a document.

    Returns:
      begins: int64 (D,), the offset in `lines` of each document that begins here.
      count_sentences: function of two offsets of lines, from and to: the number of lines between them that are not blank.
      in_document: whether the last line belongs to a document.
    """
    text = b"\n" + lines  # so that every line has a line break before it, at its own offset in `lines`, and one behind it
    if not text.endswith(b"\n"):
        text += b"\n"
    size = len(text) - 1
    blanks = np.array([match.span() for match in BLANK_LINE.finditer(text)], np.int64).reshape(-1, 2)  # from, to; offsets in `lines`
    stretches = np.stack([np.append(0, blanks[:, 1]), np.append(blanks[:, 0], size)], axis=1)  # of lines between blank lines
    has_text = stretches[:, 0] < stretches[:, 1]
    begins = stretches[has_text, 0]

    def count_sentences(first, end):
        end = size if end == len(lines) else end
        num_blanks = np.searchsorted(blanks[:, 0], end) - np.searchsorted(blanks[:, 0], first)
        return text.count(b"\n", first + 1, end + 1) - int(num_blanks)

    goes_on = in_document and has_text[0]
    return begins[1:] if goes_on else begins, count_sentences, bool(has_text[-1])
