"""Text files in, documents of sentences out, a block at a time.

Files are UTF-8 in one of the formats of formats.py, and documents never span files. One scan plans
the corpus as a list of blocks: byte ranges that begin and end between documents. Then any worker
can read any block, in any order, and memory does not grow with the corpus. Compressed files and
tables are unpacked first (archives.py).

A window is about as much text as a data job holds at once: part of a large file, or several small
ones. Where it ends depends on the text alone, not on what the files contain beside it.
"""

import contextlib
import dataclasses
import itertools
import os
import typing

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.base.files import check_regular, comma_hint
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.text.config import LINES, TextFormat
from bert_gpu.text.formats import saved_datasets
from bert_gpu.text.formats.encodings import ARCHIVES, ENDINGS, check_plain, not_utf8
from bert_gpu.text.formats.plain import BadLine, cut_at_lines, find_documents, parse_documents
from bert_gpu.text.formats.table import FORMATS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 22  # that the scan holds at once, beside the longest line
# of files that are read from a folder, each once; the first ones say nothing of the format
FOLDER_ENDINGS = tuple(
    dict.fromkeys(
        [
            *(".txt", ".text", ".md"),
            *(ending for row in (*FORMATS.values(), *ARCHIVES) for ending in row.endings),
        ]
    )
)
TO_TEXT = "extract their text, as with pdftotext FILE, or name files to read them as they are"
BLOCKS_PER_WINDOW = 8  # so that windows are of equal size within an eighth of it


@dataclasses.dataclass(frozen=True)
class Block:
    """Consecutive whole documents of one file.

    Attributes:
      path: the file.
      start, end: byte offsets, end exclusive. The blocks of a file have no gaps between them.
      first_document: index of the first document in the whole corpus.
      num_documents: at least 1.
      num_sentences: number of lines that are not blank; None for formats whose documents are split
        into sentences later.
      num_bytes: of text, as formats.py measures it.
      text_format: of the file.
      num_empty: number of rows and objects without text, about here; right in the sum of a file.
      left_out: names of files without a document, of the whole corpus, in its first block.
    """

    path: str
    start: int
    end: int
    first_document: int
    num_documents: int
    num_sentences: int | None
    num_bytes: int
    text_format: TextFormat = LINES
    num_empty: int = 0
    left_out: tuple = ()


@dataclasses.dataclass(frozen=True)
class Window:
    """Consecutive whole documents, in blocks (tuple of Block) of one or several files."""

    blocks: tuple

    @property
    def documents(self):
        """The indices, in the whole corpus, of the documents."""
        last = self.blocks[-1]
        return slice(self.blocks[0].first_document, last.first_document + last.num_documents)

    @property
    def num_bytes(self):
        """Bytes of text."""
        return sum(block.num_bytes for block in self.blocks)

    def read(self):
        """The documents of all blocks; see `read_block`."""
        return [document for block in self.blocks for document in read_block(block)]


def find_files(patterns):
    """Comma-separated files, folders and globs (or a list of them) -> (paths, others): sorted paths
    of files, without repeats (of several paths of one file the first that is named), and of the
    files below the folders that are left out because of their endings.

    A folder stands for all files below it whose names end in one of FOLDER_ENDINGS, in small or
    capital letters, and do not begin with a dot; of a folder that Hugging Face's `datasets` saved,
    its tables alone. Links to folders below it are not followed. STANDARD_INPUT stays as it is.
    UserError when a pattern gives no file.
    """
    hint = comma_hint(patterns) if isinstance(patterns, str) else ""
    patterns = patterns.split(",") if isinstance(patterns, str) else patterns
    paths, others = {}, set()  # paths by the file that they lead to
    for pattern in filter(None, map(str.strip, patterns)):
        if pattern == STANDARD_INPUT:
            paths[pattern] = pattern
            continue
        # A file may have glob characters in its name, so the name itself comes first.
        matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        folders = [path for path in matches if tf.io.gfile.isdir(path)]
        shown = [
            path
            for path in folders
            if path == pattern or not os.path.basename(path).startswith(".")
        ]
        files, rest = set(matches).difference(folders), set()
        for path, is_text in (found for folder in shown for found in files_below(folder)):
            (files if is_text else rest).add(path)
        if folders and not files:
            raise no_text(pattern, rest)
        others |= rest
        if not files:
            raise UserError(
                "no such file",
                f"check the path (the pattern matches nothing){hint}",
                where=pattern[:200],
            )
        for path in sorted(files):
            paths.setdefault(path if "://" in path else os.path.realpath(path), path)
    if not paths:
        raise UserError("no input file is named", "give one or more, separated by commas")
    for path in paths.values():
        check_regular(path)
    return sorted(paths.values()), sorted(others.difference(paths.values()))


def no_text(folder, others):
    """The UserError for a folder in which no file has an ending of FOLDER_ENDINGS."""
    shown = shortened_path(folder.rstrip("/"))
    if not others:
        endings = " ".join("*" + ending for ending in FOLDER_ENDINGS)
        return UserError(
            f"is a folder with none of {endings} below it", "name the files", where=shown
        )
    return UserError(
        f"is a folder with files of other kinds only ({endings_of(others)})",
        f"{TO_TEXT}, as {os.path.basename(shown)}/*",
        where=shown,
    )


def endings_of(paths):
    """The endings of files, for messages."""
    endings = sorted({os.path.splitext(path)[1].lower()[:12] or "no ending" for path in paths})
    return ", ".join(endings[:5]) + (", ..." if len(endings) > 5 else "")


def files_below(folder):
    """Yields (path, whether it is read) of the files below a folder that are not hidden."""
    # TensorFlow's walk would follow links, and never end on a cycle.
    walk = tf.io.gfile.walk if "://" in folder else os.walk
    for parent, folders, names in walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if saved_datasets.is_saved(names):
            yield from ((path, True) for path in saved_datasets.tables(parent, names))
            continue
        yield from (
            (os.path.join(parent, name), name.lower().endswith(FOLDER_ENDINGS))
            for name in names
            if not name.startswith(".")
        )


def plan_blocks(paths, block_bytes, text_format=LINES, names=None, read=None):
    """Cuts files into blocks of about block_bytes of text, each at least that long except the last
    of a file.

    Args:
      paths: list of str; documents are indexed in this order.
      block_bytes: int > 0; a document longer than that makes a longer block.
      text_format: TextFormat of all the files, or a list, one for each.
      names: list of str, the name of each file in error messages, such as that of the compressed
        file. Default: its path.
      read: function of a path and a name that yields the file's bytes, cut after line breaks; for
        a caller that wants to see them. Default: `whole_lines`.

    Returns:
      list of Block. They depend on the files, on block_bytes and on the formats alone. A file
      without a document has no block.

    Raises:
      UserError: a file cannot be read, is not UTF-8 or not in the format (the message has the line
        number), or no file has a document.
    """
    formats = [text_format] * len(paths) if isinstance(text_format, TextFormat) else text_format
    blocks, left_out = [], []
    for path, own_format, name in zip(paths, formats, names or paths, strict=True):
        first = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
        marks = mark_blocks((read or whole_lines)(path, name), block_bytes, own_format, name)
        blocks += [
            Block(
                path=path,
                start=start.offset,
                end=end.offset,
                first_document=first + start.num_documents,
                num_documents=end.num_documents - start.num_documents,
                num_sentences=end.num_sentences - start.num_sentences
                if own_format.has_sentence_lines
                else None,
                num_bytes=end.num_bytes - start.num_bytes,
                text_format=own_format,
                num_empty=end.num_empty - start.num_empty,
            )
            for start, end in itertools.pairwise(marks)
        ]
        left_out += [name] if len(marks) == 1 else []
    if not blocks:
        raise no_document(left_out, formats[0])
    blocks[0] = dataclasses.replace(blocks[0], left_out=tuple(left_out))
    return blocks


def no_document(names, text_format):
    others = f", nor have the other {len(names) - 1:,} files" if len(names) > 1 else ""
    needed = (
        "one sentence a line is needed, and a blank line between documents"
        if text_format.has_sentence_lines
        else "lines with text are needed"
    )
    return UserError(f"has no document{others}", needed, where=names[0])


def plan_windows(paths, window_bytes, text_formats, names=None, min_windows=1, read=None):
    """Cuts files into windows of about the same size, near to window_bytes of text.

    Args:
      paths, text_formats, names, read: see `plan_blocks`; `read` sees each file once.
      window_bytes: int > 0.
      min_windows: number of windows wanted, also of a short text; fewer only when it has fewer
        documents.

    Returns:
      list of Window. They depend on the text of each file, on window_bytes and min_windows alone.
    """
    block_bytes = -(-window_bytes // BLOCKS_PER_WINDOW)
    blocks = plan_blocks(paths, block_bytes, text_formats, names, read)
    num_bytes = sum(block.num_bytes for block in blocks)
    num_windows = max(1, round(num_bytes / window_bytes))
    if min_windows > num_windows:
        num_windows, block_bytes = min_windows, -(-num_bytes // min_windows)
        blocks = plan_blocks(paths, block_bytes, text_formats, names)
    windows = cut(blocks, num_windows)
    if len(windows) < min_windows:
        num_documents = blocks[-1].first_document + blocks[-1].num_documents
        while len(blocks) < min(min_windows, num_documents):
            block_bytes = max(1, block_bytes // BLOCKS_PER_WINDOW)
            blocks = plan_blocks(paths, block_bytes, text_formats, names)
        windows = cut_all(blocks, min(min_windows, num_documents))
    return windows


def cut(blocks, num_windows):
    """Windows of blocks, in equal parts of the text: each ends with the block in which its part
    does. Parts that end in the same block are one.
    """
    ends = np.cumsum([block.num_bytes for block in blocks])
    parts = ends * num_windows // ends[-1]
    return divided(blocks, np.flatnonzero(np.diff(parts, prepend=0)) + 1)


def cut_all(blocks, num_windows):
    """As `cut`, but exactly num_windows of them, no more than there are blocks: each has one at
    least.
    """
    ends, index = np.cumsum([block.num_bytes for block in blocks]), np.arange(num_windows)
    stops = 1 + np.searchsorted(ends, ends[-1] * (index + 1) // num_windows)
    stops = index + np.maximum.accumulate(stops - index)
    return divided(blocks, np.minimum(stops, len(blocks) - index[::-1]))


def divided(blocks, stops):
    """Windows of blocks, each from the stop (an index) before it to its own."""
    pairs = itertools.pairwise([0, *stops])
    return [Window(tuple(joined(blocks[start:stop]))) for start, stop in pairs]


def joined(blocks):
    """Blocks, where those that follow one another in a file are one."""
    result = blocks[:1]
    for block in blocks[1:]:
        last = result[-1]
        if (last.path, last.end) != (block.path, block.start):
            result.append(block)
            continue
        sentences = None if last.num_sentences is None else last.num_sentences + block.num_sentences
        result[-1] = dataclasses.replace(
            last,
            end=block.end,
            num_documents=last.num_documents + block.num_documents,
            num_sentences=sentences,
            num_bytes=last.num_bytes + block.num_bytes,
            num_empty=last.num_empty + block.num_empty,
        )
    return result


def read_block(block):
    """The documents of a block: list of documents, each a list of sentences (bytes, UTF-8, without
    space at the ends, never empty).

    Raises:
      UserError: the file is missing or has changed since the block was planned.
    """
    try:
        content = read_content(block)
        documents = parse_documents(content, block.text_format)
    except (OSError, tf.errors.OpError, UnicodeDecodeError, BadLine) as error:
        raise changed(block.path) from error
    num_sentences = sum(map(len, documents)) if block.num_sentences is not None else None
    if len(content) != block.end - block.start or (len(documents), num_sentences) != (
        block.num_documents,
        block.num_sentences,
    ):
        raise changed(block.path)
    return documents


def document_bytes(block):
    """(D,) int64, bytes of text of each document of a block, as formats.py measures it. UserError
    as of `read_block`.
    """
    try:
        found = find_documents(read_content(block), False, block.text_format)
    except (OSError, tf.errors.OpError, UnicodeDecodeError, BadLine) as error:
        raise changed(block.path) from error
    if len(found.begins) != block.num_documents:
        raise changed(block.path)
    return np.diff(np.append(found.text_before, found.num_bytes))


def read_content(block):
    with open_binary(block.path) as file:
        file.seek(block.start)
        return file.read(block.end - block.start)


def changed(path):
    return UserError(
        "changed while it was being read",
        "run the command again when nothing writes to it",
        where=path,
    )


def open_binary(path):
    # For local files open() is several times faster.
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")


class Mark(typing.NamedTuple):
    """A place in a file: its byte offset, and the counts of what stands before it."""

    offset: int
    num_documents: int = 0
    num_sentences: int = 0
    num_bytes: int = 0
    num_empty: int = 0


def mark_blocks(pieces, block_bytes, text_format, name):
    """The Marks at the ends of blocks, after one at the begin of the first: a file without a
    document has that one alone. pieces: the bytes of the file, in whole lines.
    """
    place, num_lines, in_document = Mark(0), 0, False
    marks = [place]
    for lines in pieces:
        if place.offset == 0:
            check_plain(name, lines, ENDINGS)
            if lines.startswith(BYTE_ORDER_MARK):
                lines, place = lines[3:], Mark(3)
                marks = [place]
        check_utf8(name, lines, num_lines)
        try:
            found = find_documents(lines, in_document, text_format)
        except BadLine as error:
            where = f"line {num_lines + error.index + 1}"
            raise UserError(f"{where} {error.problem}", error.remedy, where=name) from None
        offset, num_documents, num_sentences, num_bytes, num_empty = place
        counted_to = 0  # an offset in these lines, before which num_sentences counts
        while True:
            # A block ends at the first document that starts after block_bytes.
            missing = marks[-1].num_bytes + block_bytes - num_bytes
            index = int(np.searchsorted(found.text_before, missing))
            if index == len(found.begins):
                break
            begin, text_before = int(found.begins[index]), int(found.text_before[index])
            num_sentences += found.count_sentences(counted_to, begin)
            counted_to = begin
            counts = num_documents + index, num_sentences, num_bytes + text_before, num_empty
            marks.append(Mark(offset + begin, *counts))
        place = Mark(
            offset + len(lines),
            num_documents + len(found.begins),
            num_sentences + found.count_sentences(counted_to, len(lines)),
            num_bytes + found.num_bytes,
            num_empty + found.num_empty,
        )
        num_lines, in_document = num_lines + lines.count(b"\n"), found.in_document
    return [*marks, place] if place.num_documents else marks


def file_pieces(path, name):
    """Yields the file's bytes, CHUNK_BYTES at a time. Raises UserError."""
    with readable(name), open_binary(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def whole_lines(path, name):
    """Yields the file's bytes, about CHUNK_BYTES at a time, cut after a line break.
    Raises UserError.
    """
    return cut_at_lines(file_pieces(path, name))


@contextlib.contextmanager
def readable(name):
    """Turns errors of a file that is missing or cannot be read into a UserError with its name."""
    try:
        yield
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise UserError("no such file", "check the path", where=name) from None
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"cannot be read ({type(error).__name__})", "name a readable text file", where=name
        ) from None


def check_utf8(name, lines, lines_before):
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        line_number = lines_before + lines.count(b"\n", 0, error.start) + 1
        head = b"" if lines_before else lines[:4]
        raise not_utf8(name, f"line {line_number}", head) from None
