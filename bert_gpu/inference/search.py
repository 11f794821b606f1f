"""Lines of a text -> a folder with their vectors, the index; queries -> the nearest lines.

The index has vectors.f32, the float32 rows (N, H) of length 1, and index.json, written last, which
says to which model and which first lines of the text they belong; rows beyond these do not count.
It has a checksum of each block of the rows' bytes. Vectors of lines that were added to the text are
appended. The text is held in memory.

Legend: N lines of the text that are not blank, H hidden.
"""

import contextlib
import hashlib
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import google_crc32c
import numpy as np

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import check_local, only_writer, read_json, write_json
from bert_gpu.base.nearest import nearest, units
from bert_gpu.base.settings import fields_of
from bert_gpu.base.standard_input import STANDARD_INPUT
from bert_gpu.inference import lines
from bert_gpu.inference.config import EmbedConfig, SearchConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.runs.provenance import weights_hash
from bert_gpu.text.progress import ByteProgress

INDEX = "index.json"
VECTORS = "vectors.f32"
BLOCK_BYTES = 1 << 20
ANEW = "give --overwrite to make the index anew"
Match = tuple[float, int, str]  # (cosine, number of a line from 1, its text)


def search(config: SearchConfig, console: Console = LOG) -> Iterator[tuple[str, list[Match]]]:
    """Make or extend the index of a text, and yield each query with its nearest lines, the nearest
    first. Raises UserError for a wrong setting, and an index of another model or text.
    """
    if config.index is None or config.input in (None, STANDARD_INPUT):
        raise UserError("needs two names, such as --input=texts.txt --index=texts.index")
    check_local(config.index, "index")
    queries = read_queries(config)
    names = fields_of(EmbedConfig).keys() & fields_of(SearchConfig).keys()
    embedder = Embedder(EmbedConfig(**{name: getattr(config, name) for name in names}))
    console.say(f"{embedder.opened.path}: {embedder.describe()}")
    texts = list(itertools.chain.from_iterable(lines.windows(str(config.input), console)))
    places = np.flatnonzero([bool(text.strip()) for text in texts])
    if not len(places):
        raise lines.empty_input(str(config.input))
    vectors = open_index(config, embedder, texts, places, console)
    for window in queries:
        values = units(embedder.collect(embedder.frame(window, "query"), len(window)))
        for query, *row in zip(window, *nearest(values, vectors, config.top_k), strict=True):
            matches = [
                (float(score), int(places[index]) + 1, texts[places[index]].decode())
                for score, index in zip(*row, strict=True)
            ]
            yield query, matches


def read_queries(config: SearchConfig) -> Iterable[list[str]]:
    """Return the queries that are not blank, in lists; those of standard input come one by one, as
    they arrive. Raises UserError for a file that cannot be read or a blank --query.
    """
    if config.query is not None and not config.query.strip():
        raise UserError("is empty", "write what to find", setting="query", value=config.query)
    asked = [] if config.query is None else [[config.query]]
    windows: Iterable[list[bytes]] = ()
    if config.query_file == STANDARD_INPUT:
        windows = ([line] for line in iter(sys.stdin.buffer.readline, b""))
    elif config.query_file is not None:
        windows = list(lines.windows(config.query_file, Console(quiet=True)))
    texts = (
        [line.decode(errors="replace").rstrip("\r\n") for line in window if line.strip()]
        for window in windows
    )
    return itertools.chain(asked, filter(None, texts))


def open_index(
    config: SearchConfig,
    embedder: Embedder,
    texts: Sequence[bytes],
    places: np.ndarray,
    console: Console,
) -> np.ndarray:
    """Return the vectors of a text, float32 (N, H), as a memory map; first append those that the
    index lacks. texts: all lines; places: indices of those that are not blank, (N,).

    Raises UserError when the index is damaged or belongs to another model or text.
    """
    folder = str(config.index)
    path = os.path.join(folder, VECTORS)
    origin = origin_of(embedder)
    notes = read_notes(folder, origin, config.overwrite)
    num_lines = notes["num_lines"]
    if digest_of(texts[:num_lines]) != notes["text"]:
        raise UserError(
            f"no longer begins with the {num_lines:,} lines of the index",
            ANEW,
            setting="input",
            value=config.input,
        )
    num_old = int(np.searchsorted(places, num_lines))
    row_bytes = embedder.width * np.dtype(np.float32).itemsize
    num_bytes = num_old * row_bytes
    if checksums(path, num_bytes) != notes["checksums"]:
        raise UserError(f"its {VECTORS} is damaged or missing", ANEW, setting="index", value=folder)
    if num_old < len(places):
        with only_writer(folder, "index", "index", folder):
            new = [texts[place] for place in places[num_old:]]
            num_cut = append(folder, embedder, new, num_bytes, console)
            counts = dict(
                num_lines=len(texts),
                text=digest_of(texts),
                checksums=checksums(path, len(places) * row_bytes),
            )
            write_json(os.path.join(folder, INDEX), origin | counts)
        console.say(
            f"{folder}: {len(places) - num_old:,} of {len(places):,} lines are new; cut to "
            f"--max_seq_length: {num_cut:,}"
        )
    return np.memmap(path, np.float32, "r", shape=(len(places), embedder.width))


def checksums(path: str, num_bytes: int) -> list[str]:
    """Return the CRC-32C of each block, of BLOCK_BYTES, of the first bytes of a file; [] without
    the file.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open(path, "rb") as file:
        sizes = (min(BLOCK_BYTES, num_bytes - first) for first in range(0, num_bytes, BLOCK_BYTES))
        return [f"{google_crc32c.value(file.read(size)):08x}" for size in sizes]
    return []


def origin_of(embedder: Embedder) -> dict[str, object]:
    """Return {key of index.json: value} of all but the text on which vectors depend. "model" is a
    hash of the model's shape, weights, tokenizer and rules.
    """
    opened = embedder.opened
    weights = weights_hash({name: weight.numpy() for name, weight in opened.weights.items()})
    rules = [embedder.prefixes["passage"], embedder.own.lowers, opened.tokenizer.identity]
    return dict(
        precision=opened.dtype.name,  # first, as the weights, too, have this type
        model=digest_of([repr([opened.config, *rules, weights]).encode()]),
        pooling=embedder.pooling,
        max_seq_length=embedder.max_seq_length,
    )


def digest_of(texts: Iterable[bytes]) -> str:
    """Return a hash of lines."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text + b"\n")
    return digest.hexdigest()


def read_notes(folder: str, origin: dict[str, Any], is_anew: bool) -> dict[str, Any]:
    """Return the content of index.json in a folder: `origin`, num_lines, the number of lines that
    the index has, text, their hash, and checksums, those of its vectors. Without the file, or to
    make it anew, it has none. Raises UserError for a damaged index, or one of another origin.
    """
    path = os.path.join(folder, INDEX)
    empty = origin | dict(num_lines=0, text=digest_of(()), checksums=[])
    if is_anew or not os.path.exists(path):
        return empty
    try:
        notes = read_json(path, "the index of a search", keys=empty)
    except UserError as error:
        raise UserError(error.problem, ANEW, where=path) from None
    other = next((name for name, value in origin.items() if notes[name] != value), None)
    if other:
        raise UserError(
            f"was made with another --{other}",
            f"name that, or another folder, or {ANEW}",
            setting="index",
            value=folder,
        )
    return notes


def append(
    folder: str, embedder: Embedder, texts: Sequence[bytes], num_bytes: int, console: Console
) -> int:
    """Write the vectors of texts behind the first `num_bytes` of the file of vectors, and return
    how many texts were cut. A stop at any time leaves the old index, or none if num_bytes is 0.
    """
    num_cut = 0
    if not num_bytes:  # a search that is under way keeps the files of an older index
        for name in (INDEX, VECTORS):
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, name))
    progress = ByteProgress(console, sum(map(len, texts)), "texts", "texts")
    with open(os.path.join(folder, VECTORS), "r+b" if num_bytes else "wb") as file, progress:
        file.seek(num_bytes)
        for window in lines.in_windows(texts):
            rows = embedder.frame(window, "passage")
            num_cut += rows.num_truncated
            file.write(units(embedder.collect(rows, len(window))).tobytes())
            progress.add(sum(map(len, window)), len(window))
        file.flush()
        os.fsync(file.fileno())
    return num_cut
