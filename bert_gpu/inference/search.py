"""Lines of a text -> a folder with their vectors, the index; queries -> the nearest lines.

The index has vectors.npy, float32 (N, H) of length 1, and index.json, written last, which says to
which model and which first bytes of the text they belong; further rows do not count. Lines behind
these bytes are added to the index. Each call reads the text once, to check that it begins as it did
and to find where its lines begin; a line that a query finds is read from the file again.

Legend: N lines of the text that are not blank, H hidden.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, check_regular, only_writer, read_json, write_json
from bert_gpu.base.nearest import nearest
from bert_gpu.base.settings import fields_of
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.inference import lines
from bert_gpu.inference.arrays import NpyWriter
from bert_gpu.inference.config import EmbedConfig, SearchConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.text import corpus
from bert_gpu.text.formats import encodings
from bert_gpu.text.framing import Framed

INDEX = "index.json"
VECTORS = "vectors.npy"
ANEW = "give --overwrite to make the index anew"
Match = tuple[float, int, str]  # (cosine, number of a line from 1, its text)


class TextLines:
    """The lines of a text file, read in order. A last line without an end is read as if it had one.

    num_bytes, num_lines, digest: what was read; the bytes' hash. places: parts of an array int64
    (N, 2), the number of each line that is not blank, from 1, and its first byte.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        check_regular(path)
        with corpus.readable(path):
            self.file = open(path, "rb")
        mark = corpus.BYTE_ORDER_MARK
        has_mark = self.file.peek(len(mark)).startswith(mark)
        self.num_bytes = self.file.seek(len(mark) * has_mark)
        self.num_lines = 0
        self.digest = hashlib.sha256()
        self.places: list[np.ndarray] = []

    def windows(self, end: int = sys.maxsize) -> Iterator[list[bytes]]:
        """Yield the lines before the byte `end` that are not blank, in lists of at most
        lines.WINDOW_BYTES and one line. Raises UserError for text that is not plain UTF-8.
        """
        while piece := self.file.read(min(max(0, end - self.num_bytes), lines.WINDOW_BYTES)):
            if not piece.endswith(b"\n"):
                piece = (piece + self.file.readline(lines.LINE_BYTES)).removesuffix(b"\n") + b"\n"
            texts = piece.split(b"\n")[:-1]
            lines.check_length(len(texts[-1]), self.path, self.num_lines + len(texts))
            if not self.num_lines:
                encodings.check_plain(self.path, piece)
            corpus.check_utf8(self.path, piece, self.num_lines)
            begins = self.num_bytes + np.cumsum([0, *(len(text) + 1 for text in texts)])[:-1]
            places = np.stack([np.arange(len(texts)) + self.num_lines + 1, begins], 1)
            self.places.append(places[[bool(text.strip()) for text in texts]])
            self.num_bytes += len(piece)
            self.num_lines += len(texts)
            self.digest.update(piece)
            yield [text.removesuffix(b"\r") for text in texts if text.strip()]

    def line(self, place: np.ndarray) -> tuple[int, str]:
        """Return the number and the text of the line at a row of `places`."""
        self.file.seek(place[1])
        return int(place[0]), self.file.readline().decode(errors="replace").rstrip("\r\n")


def search(
    config: SearchConfig,
    console: Console = LOG,
    say: Callable[[str, list[Match]], object] = print,
) -> int:
    """Make or extend the index of a text, pass each query with its nearest lines, the nearest
    first, to `say`, and return the number of queries. Raises UserError for a wrong setting, an
    index of another model or text, and queries that are all blank.
    """
    if config.index is None or config.input in (None, STANDARD_INPUT):
        raise UserError("needs two names, such as --input=texts.txt --index=texts.index")
    check_local(config.index, "index")
    names = fields_of(EmbedConfig).keys() & fields_of(SearchConfig).keys()
    text = TextLines(str(config.input))
    num_queries = 0
    with text.file:
        embedder = Embedder(EmbedConfig(**{name: getattr(config, name) for name in names}))
        console.say(f"{embedder.opened.path}: {embedder.describe()}")
        vectors = open_index(config, text, embedder, console)
        places = np.concatenate(text.places)
        for window in query_windows(config):
            queries = [query for query in window if query.strip()]
            values = unit_vectors(embedder, embedder.frame(queries, "query"))
            for query, *found in zip(queries, *nearest(values, vectors, config.top_k), strict=True):
                rows = zip(*found, strict=True)
                say(query, [(float(score), *text.line(places[row])) for score, row in rows])
            num_queries += len(queries)
    flag = "query" if config.query_file is None else "query_file"
    if (value := getattr(config, flag)) is not None and not num_queries:
        raise UserError("is empty", "write what to find", setting=flag, value=value)
    return num_queries


def query_windows(config: SearchConfig) -> Iterator[list[str]]:
    """Yield the queries in lists; those of standard input one by one, as they arrive."""
    windows: Iterator[list[bytes]] = iter(())
    if config.query_file == STANDARD_INPUT:
        windows = ([line.rstrip(b"\r\n")] for line in iter(sys.stdin.buffer.readline, b""))
    elif config.query_file is not None:
        windows = lines.windows(config.query_file, Console(quiet=True))
    if config.query is not None:
        yield [config.query]
    for window in windows:
        yield [query.decode(errors="replace") for query in window]


def unit_vectors(embedder: Embedder, rows: Framed) -> np.ndarray:
    """Return the vectors of rows of `embedder.frame`, float32 (rows, H), of length 1."""
    vectors = embedder.collect(rows, len(rows.lengths))
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def open_index(
    config: SearchConfig, text: TextLines, embedder: Embedder, console: Console
) -> np.ndarray:
    """Return the vectors of a text, float32 (N, H), as a memory map, and read the text. Lines that
    the index lacks are added to it. Raises UserError when it belongs to another model or text.
    """
    folder = str(config.index)
    origin = origin_of(embedder)
    notes = read_notes(folder, origin, config.overwrite)
    for _ in text.windows(notes.get("num_bytes", 0)):
        pass
    if notes and text.digest.hexdigest() != notes["text"]:
        raise UserError(
            f"no longer begins with the {notes['num_vectors']:,} lines of the index",
            ANEW,
            setting="input",
            value=text.path,
        )
    if text.file.peek(1):
        old = read_vectors(folder, notes, embedder.width) if notes else np.zeros((0, 1))
        with only_writer(folder, "index", "index", folder):
            notes = extend(folder, text, embedder, old, origin, console)
    if not notes:
        raise lines.empty_input(text.path)
    return read_vectors(folder, notes, embedder.width)


def origin_of(embedder: Embedder) -> dict[str, Any]:
    """Return {key of index.json: value} of all but the text on which vectors depend. "model" is a
    hash of the model's shape, weights, tokenizer and rules.
    """
    opened = embedder.opened
    rules = [embedder.prefixes["passage"], embedder.own.lowers, opened.tokenizer.identity]
    digest = hashlib.sha256(repr([opened.config, *rules]).encode())
    for name in sorted(opened.weights):
        digest.update(name.encode() + opened.weights[name].numpy().tobytes())
    return dict(
        model=digest.hexdigest(),
        pooling=embedder.pooling,
        max_seq_length=embedder.max_seq_length,
    )


def read_notes(folder: str, origin: dict[str, Any], is_anew: bool) -> dict[str, Any]:
    """Return the content of index.json in a folder; {} where there is none, or to make it anew.
    Raises UserError for a folder of other files, a damaged index, and one of another origin.
    """
    path = os.path.join(folder, INDEX)
    has_index = os.path.exists(path)
    names = os.listdir(folder) if os.path.isdir(folder) and not has_index else ()
    if any(name != VECTORS and not name.startswith(".") for name in names):
        raise UserError(
            "holds other files and no index", "name another folder", setting="index", value=folder
        )
    if is_anew or not has_index:
        return {}
    notes = read_json(path, "the index of a search", keys=(*origin, "num_vectors"))
    other = next((name for name, value in origin.items() if notes[name] != value), None)
    if other:
        raise UserError(
            f"was made with another --{other}",
            f"name that, or another folder, or {ANEW}",
            setting="index",
            value=folder,
        )
    return notes


def read_vectors(folder: str, notes: dict[str, Any], width: int) -> np.ndarray:
    """Return the vectors of an index, float32 (N, H), as a memory map. Raises UserError when they
    are not there.
    """
    shape = (notes["num_vectors"], width)
    with contextlib.suppress(OSError, ValueError, EOFError):
        vectors = np.load(os.path.join(folder, VECTORS), mmap_mode="r")[: shape[0]]
        if vectors.shape == shape:
            return vectors
    raise UserError(f"has no {VECTORS} that fits", ANEW, setting="index", value=folder)


def extend(
    folder: str,
    text: TextLines,
    embedder: Embedder,
    old: np.ndarray,
    origin: dict[str, Any],
    console: Console,
) -> dict[str, Any]:
    """Write the index of a text, with the old vectors (N, H), if any, and those of the lines that
    are not read yet; return the content of index.json. After any failure, the index is the old one,
    or there is none.
    """
    num_cut = 0
    step = lines.WINDOW_LINES
    file = NpyWriter(os.path.join(folder, VECTORS), (embedder.width,), setting="index")
    with sigterm_unwinds(), file:
        for first in range(0, len(old), step):
            file.write(old[first : first + step])
        for window in lines.report_lines(text.windows(), console, "texts"):
            for first in range(0, len(window), step):
                rows = embedder.frame(window[first : first + step], "passage")
                num_cut += rows.num_truncated
                file.write(unit_vectors(embedder, rows))
        if not file.num_rows:
            raise lines.empty_input(text.path)
        file.finish()
        if not len(old):  # the vectors of another index are replaced when the context ends
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, INDEX))
    counts = dict(num_vectors=file.num_rows, num_bytes=text.num_bytes)
    notes = origin | counts | dict(text=text.digest.hexdigest())
    write_json(os.path.join(folder, INDEX), notes)
    console.say(
        f"{folder}: {file.num_rows - len(old):,} of {file.num_rows:,} lines are new; cut to "
        f"--max_seq_length: {num_cut:,}"
    )
    return notes
