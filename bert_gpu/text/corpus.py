"""Text files -> documents of sentences, a block at a time.

Files are UTF-8 in one of the formats of formats/table.py, and documents never span files. One scan
plans the corpus as a list of blocks: byte ranges that begin and end between documents. Then any
worker can read any block, in any order, and memory does not grow with the corpus. Compressed files
and tables are unpacked first (formats/archives.py).

A window is about as much text as a data job holds at once: part of a large file, or several small
ones. Where it ends depends on the text alone, not on markup or line ends of the files.
"""

import contextlib
import dataclasses
import itertools
import os
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError, shortened_path
from bert_gpu.base.files import check_regular, comma_hint
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.text.config import LINES, TextFormat
from bert_gpu.text.formats import saved_datasets
from bert_gpu.text.formats.encodings import ENDINGS, check_plain, not_utf8
from bert_gpu.text.formats.plain import BadLine, cut_at_lines, find_documents, parse_documents
from bert_gpu.text.formats.table import FORMATS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 22  # bytes that the scan holds at once, beside the longest line
# The endings of the files that are read when a folder is an input. The first three say nothing
# about the format.
FOLDER_ENDINGS = tuple(
    dict.fromkeys(
        [
            *(".txt", ".text", ".md"),
            *(ending for row in FORMATS.values() for ending in row.endings),
            *ENDINGS,
        ]
    )
)
TO_TEXT = "extract their text, as with pdftotext FILE, or name files to read them as they are"
WINDOW_BYTES = 8_000_000  # of text in a window of a data job
BLOCKS_PER_WINDOW = 8  # whole blocks, so that the sizes of windows differ by an eighth at most


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
      num_bytes: bytes of text, as formats/plain.py counts them.
      text_format: format of the file.
      num_empty: number of rows and objects without text. Only the sum over a file is exact.
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

    @property
    def documents(self) -> slice:
        """The indices, in the whole corpus, of the documents."""
        return slice(self.first_document, self.first_document + self.num_documents)


@dataclasses.dataclass(frozen=True)
class Window:
    """Consecutive whole documents, in blocks of one or several files."""

    blocks: tuple[Block, ...]

    @property
    def documents(self) -> slice:
        """The indices, in the whole corpus, of the documents."""
        return slice(self.blocks[0].first_document, self.blocks[-1].documents.stop)

    @property
    def num_bytes(self) -> int:
        """Number of bytes of text in all blocks."""
        return sum(block.num_bytes for block in self.blocks)

    def read(self) -> list[list[bytes]]:
        """Return the documents of all blocks; see `read_block`."""
        return [document for block in self.blocks for document in read_block(block)]


def find_files(patterns: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Return two sorted lists of paths: the files that patterns name, each once (by the first of
    its paths), and the files in folders that are left out because of their endings.

    A pattern is a file, a folder or a glob; a str holds several, separated by commas. A folder
    stands for all files below it whose names end in one of FOLDER_ENDINGS, in small or capital
    letters, and do not begin with a dot; a folder that Hugging Face's `datasets` saved stands for
    its tables. Links to folders below it are not followed. STANDARD_INPUT is returned unchanged.
    Raises UserError when a pattern matches no file.
    """
    hint = comma_hint(patterns) if isinstance(patterns, str) else ""
    patterns = patterns.split(",") if isinstance(patterns, str) else patterns
    paths: dict[str, str] = {}  # {path of the file, links resolved: path to return}
    others: set[str] = set()
    for pattern in filter(None, map(str.strip, patterns)):
        if pattern == STANDARD_INPUT:
            paths[pattern] = pattern
            continue
        # A file may have glob characters in its name, so an existing path is no glob.
        matches = [pattern] if tf.io.gfile.exists(pattern) else tf.io.gfile.glob(pattern)
        folders = [path for path in matches if tf.io.gfile.isdir(path)]
        visible = [
            path
            for path in folders
            if path == pattern or not os.path.basename(path).startswith(".")
        ]
        files = set(matches).difference(folders)
        rest: set[str] = set()
        for path, is_text in (file for folder in visible for file in files_below(folder)):
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


def no_text(folder: str, others: Iterable[str]) -> UserError:
    """Return the UserError for a folder in which no file has an ending of FOLDER_ENDINGS. others:
    the paths of its files.
    """
    place = shortened_path(folder.rstrip("/"))
    if not others:
        endings = " ".join("*" + ending for ending in FOLDER_ENDINGS)
        return UserError(
            f"is a folder with none of {endings} below it", "name the files", where=place
        )
    return UserError(
        f"is a folder with files of other kinds only ({endings_of(others)})",
        f"{TO_TEXT}, as {os.path.basename(place)}/*",
        where=place,
    )


def endings_of(paths: Iterable[str]) -> str:
    """Return the endings of the files' names, at most five, as text for a message (".pdf,
    .png").
    """
    endings = sorted({os.path.splitext(path)[1].lower()[:12] or "no ending" for path in paths})
    return ", ".join(endings[:5]) + (", ..." if len(endings) > 5 else "")


def files_below(folder: str) -> Iterator[tuple[str, bool]]:
    """Yield (path, whether it is read as text, by its ending) for each file below a folder that is
    not hidden. Of a data set that Hugging Face's `datasets` saved, only the tables are yielded.
    """
    # TensorFlow's walk, for remote folders only, follows links and would never end on a cycle.
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


def plan_blocks(
    paths: Sequence[str],
    block_bytes: int,
    text_format: TextFormat | Sequence[TextFormat] = LINES,
    names: Sequence[str] | None = None,
    read: Callable[[str, str], Iterable[bytes]] | None = None,
    sizes: list[np.ndarray] | None = None,
) -> list[Block]:
    """Cut files into blocks of about block_bytes of text, each at least that long except the last
    of a file.

    Args:
      paths: documents are indexed in this order.
      block_bytes: at least 1; a document longer than that makes a longer block.
      text_format: format of all the files, or one for each.
      names: name of each file in error messages, such as the name of the compressed file from which
        it was unpacked. Default: its path.
      read: function (path, name for messages) that yields the bytes of a file, cut after line
        breaks. A caller passes its own to see the bytes as they are read. Default: `whole_lines`.
      sizes: list to which the bytes of text of each document of a file, int64 (D,), are appended.

    Returns:
      Blocks that depend on the files, on block_bytes and on the formats alone. A file without a
      document has no block.

    Raises:
      UserError: a file cannot be read, is not UTF-8 or not in the format (the message has the line
        number), or no file has a document.
    """
    formats = [text_format] * len(paths) if isinstance(text_format, TextFormat) else text_format
    blocks: list[Block] = []
    for path, own_format, name in zip(paths, formats, names or paths, strict=True):
        first = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
        marks, starts = mark_blocks(
            (read or whole_lines)(path, name), block_bytes, own_format, name
        )
        if sizes is not None:
            sizes.append(np.diff(starts))
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
    if not blocks:
        others = f", nor have the other {len(paths) - 1:,} files" if len(paths) > 1 else ""
        needed = (
            "one sentence a line is needed, and a blank line between documents"
            if formats[0].has_sentence_lines
            else "lines with text are needed"
        )
        raise UserError(f"has no document{others}", needed, where=(names or paths)[0])
    return blocks


def plan_windows(
    paths: Sequence[str],
    window_bytes: int,
    text_formats: TextFormat | Sequence[TextFormat],
    names: Sequence[str] | None = None,
    min_windows: int = 1,
    read: Callable[[str, str], Iterable[bytes]] | None = None,
    sizes: list[np.ndarray] | None = None,
) -> list[Window]:
    """Cut files into windows of about equal size, near to window_bytes of text.

    Args:
      paths, text_formats, names, read, sizes: see `plan_blocks`; `read` is called once for each
        file.
      window_bytes: at least 1.
      min_windows: minimum number of windows; a text with fewer documents gets one per document.

    Returns:
      Windows that depend on the text of each file, on window_bytes and min_windows alone.
    """
    block_bytes = -(-window_bytes // BLOCKS_PER_WINDOW)
    blocks = plan_blocks(paths, block_bytes, text_formats, names, read, sizes)
    num_bytes = sum(block.num_bytes for block in blocks)
    num_windows = max(1, round(num_bytes / window_bytes))
    if min_windows > num_windows:
        num_windows = min_windows
        block_bytes = -(-num_bytes // min_windows)
        blocks = plan_blocks(paths, block_bytes, text_formats, names)
    windows = cut(blocks, num_windows)
    if len(windows) < min_windows:
        num_documents = blocks[-1].first_document + blocks[-1].num_documents
        while len(blocks) < min(min_windows, num_documents):
            block_bytes = max(1, block_bytes // BLOCKS_PER_WINDOW)
            blocks = plan_blocks(paths, block_bytes, text_formats, names)
        windows = cut_all(blocks, min(min_windows, num_documents))
    return windows


def cut(blocks: list[Block], num_windows: int) -> list[Window]:
    """Divide the text of blocks into num_windows equal parts. Return a window for each, which ends
    with the block in which its part ends; parts that end in the same block share a window.
    """
    ends = np.cumsum([block.num_bytes for block in blocks])
    parts = ends * num_windows // ends[-1]
    return cut_at(blocks, np.flatnonzero(np.diff(parts, prepend=0)) + 1)


def cut_all(blocks: list[Block], num_windows: int) -> list[Window]:
    """Cut blocks as `cut` does, but into exactly num_windows windows, each of one block at least.
    num_windows: at most the number of blocks.
    """
    ends = np.cumsum([block.num_bytes for block in blocks])
    index = np.arange(num_windows)
    stops = 1 + np.searchsorted(ends, ends[-1] * (index + 1) // num_windows)
    stops = index + np.maximum.accumulate(stops - index)
    return cut_at(blocks, np.minimum(stops, len(blocks) - index[::-1]))


def cut_at(blocks: list[Block], stops: Iterable[int]) -> list[Window]:
    """Return one window for each stop, an index in blocks: the blocks from the stop before it, or
    from the first block, up to this stop, exclusive.
    """
    pairs = itertools.pairwise([0, *stops])
    return [Window(tuple(join_blocks(blocks[start:stop]))) for start, stop in pairs]


def join_blocks(blocks: list[Block]) -> list[Block]:
    """Return the blocks, with neighbours in the same file joined into one block."""
    result = blocks[:1]
    for block in blocks[1:]:
        last = result[-1]
        if (last.path, last.end) != (block.path, block.start):
            result.append(block)
            continue
        result[-1] = dataclasses.replace(
            last,
            end=block.end,
            num_documents=last.num_documents + block.num_documents,
            num_sentences=None
            if last.num_sentences is None or block.num_sentences is None
            else last.num_sentences + block.num_sentences,
            num_bytes=last.num_bytes + block.num_bytes,
            num_empty=last.num_empty + block.num_empty,
        )
    return result


def read_block(block: Block) -> list[list[bytes]]:
    """Return the documents of a block, each a list of sentences (UTF-8, without space at the ends,
    never empty).

    Raises:
      UserError: the file is missing or has changed since the block was planned.
    """
    try:
        content = read_content(block)
        documents = parse_documents(content, block.text_format)
    except (OSError, tf.errors.OpError, UnicodeDecodeError, BadLine) as error:
        raise changed_file(block.path) from error
    num_sentences = sum(map(len, documents)) if block.num_sentences is not None else None
    if len(content) != block.end - block.start or (len(documents), num_sentences) != (
        block.num_documents,
        block.num_sentences,
    ):
        raise changed_file(block.path)
    return documents


def read_content(block: Block) -> bytes:
    with open_binary(block.path) as file:
        file.seek(block.start)
        return file.read(block.end - block.start)


def changed_file(path: str) -> UserError:
    """Return the UserError for a file that has changed since its blocks were planned."""
    return UserError(
        "changed while it was being read",
        "run the command again when nothing writes to it",
        where=path,
    )


def open_binary(path: str) -> typing.BinaryIO:
    # open() is several times faster than TensorFlow for local files
    return tf.io.gfile.GFile(path, "rb") if "://" in path else open(path, "rb")


class Mark(typing.NamedTuple):
    """A place in a file: its byte offset, and the numbers of documents, sentences, bytes of text
    and rows without text before it.
    """

    offset: int
    num_documents: int = 0
    num_sentences: int = 0
    num_bytes: int = 0
    num_empty: int = 0


def mark_blocks(
    pieces: Iterable[bytes], block_bytes: int, text_format: TextFormat, name: str
) -> tuple[list[Mark], np.ndarray]:
    """Return (the Marks at the beginning of a file's first block and at the end of each block, only
    the first Mark if the file has no document; the bytes of text before each document and in the
    whole file, int64 (D + 1,)). pieces: the bytes of the file, in whole lines.
    """
    place = Mark(0)
    num_lines = 0
    in_document = False
    marks = [place]
    starts = []
    for lines in pieces:
        if place.offset == 0:
            check_plain(name, lines, ENDINGS)
            if lines.startswith(BYTE_ORDER_MARK):
                lines = lines[3:]
                place = Mark(3)
                marks = [place]
        check_utf8(name, lines, num_lines)
        try:
            parsed = find_documents(lines, in_document, text_format)
        except BadLine as error:
            where = f"line {num_lines + error.index + 1}"
            raise UserError(f"{where} {error.problem}", error.remedy, where=name) from None
        offset, num_documents, num_sentences, num_bytes, num_empty = place
        starts.append(num_bytes + parsed.text_before)
        counted_to = 0  # offset in these lines up to which sentences are counted in num_sentences
        while True:
            # A block ends where a document begins, as soon as it has block_bytes of text.
            missing = marks[-1].num_bytes + block_bytes - num_bytes
            index = int(np.searchsorted(parsed.text_before, missing))
            if index == len(parsed.begins):
                break
            begin = int(parsed.begins[index])
            text_before = int(parsed.text_before[index])
            num_sentences += parsed.count_sentences(counted_to, begin)
            counted_to = begin
            counts = num_documents + index, num_sentences, num_bytes + text_before, num_empty
            marks.append(Mark(offset + begin, *counts))
        place = Mark(
            offset + len(lines),
            num_documents + len(parsed.begins),
            num_sentences + parsed.count_sentences(counted_to, len(lines)),
            num_bytes + parsed.num_bytes,
            num_empty + parsed.num_empty,
        )
        num_lines += lines.count(b"\n")
        in_document = parsed.in_document
    starts.append(np.array([place.num_bytes]))
    return [*marks, place] if place.num_documents else marks, np.concatenate(starts)


def file_pieces(path: str, name: str) -> Iterator[bytes]:
    """Yield a file's bytes, CHUNK_BYTES at a time. Raises a UserError, with `name`, if the file
    cannot be read.
    """
    with readable(name), open_binary(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def whole_lines(path: str, name: str) -> Iterator[bytes]:
    """Yield a file's bytes in pieces of about CHUNK_BYTES that end with a line break. Raises a
    UserError, with `name`, if the file cannot be read.
    """
    return cut_at_lines(file_pieces(path, name))


@contextlib.contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn the errors of a missing or unreadable file, raised inside the `with` block, into a
    UserError with its name.
    """
    try:
        yield
    except (FileNotFoundError, tf.errors.NotFoundError):
        raise UserError("no such file", "check the path", where=name) from None
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"cannot be read ({type(error).__name__})", "name a readable text file", where=name
        ) from None


def check_utf8(name: str, lines: bytes, lines_before: int) -> None:
    """Raise a UserError with the line number if lines are not UTF-8. lines_before: number of lines
    of the file before these.
    """
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        line_number = lines_before + lines.count(b"\n", 0, error.start) + 1
        raise not_utf8(name, f"line {line_number}", b"" if lines_before else lines[:4]) from None
