"""Cleaning that needs no tokens: duplicate documents, repeated sentences.

Duplicates are documents with the same sentences (`comparable`). Every document gets a hash of 128
bits (among a billion different ones the probability of a collision is 1e-21). Hashes are written to
files on disk by their first bits, and each file is sorted in memory. Whatever the size of the
corpus, this takes about 200 MB of memory, plus one block of text and one byte per document for the
result. near_duplicates.py finds documents that are nearly equal.
"""

import collections
import contextlib
import functools
import glob
import hashlib
import itertools
import os
import re
import shutil
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.corpus import Block
from bert_gpu.text.formats import archives
from bert_gpu.text.parallel import LOCAL, Report, Workers, map_blocks

HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("index", "i8")])  # a document's hash and index
COUNTED = np.dtype([("high", "u8"), ("index", "i8")])  # a hash, and an index or a number
# Hashes that are collected in memory before they are written, and the most that a file should hold.
ROWS_IN_MEMORY = 1 << 20
LINE_BYTES = 64  # of a sentence, about


def comparable(text: bytes, lowers: bool) -> bytes:
    """Return text in the form in which documents are compared: NFC, so that the two spellings of an
    accented letter are one, and in lower case if `lowers`. Both are UTF-8.
    """
    letters = text.decode("utf-8", "ignore")
    return unicodedata.normalize("NFC", letters.lower() if lowers else letters).encode()


def find_duplicates(
    blocks: Sequence[Block],
    folder: str,
    lowers: bool = False,
    *,
    workers: Workers = LOCAL,
    report: Report | None = None,
) -> np.ndarray:
    """Find the documents that have the same sentences as an earlier one.

    Args:
      blocks: all blocks of the corpus.
      folder: for temporary files, 24 bytes per document; created here and removed at the end.
      lowers: whether case does not matter, because the model is uncased.
      report: called with the bytes of text done since its last call, and 0 tokens.

    Returns:
      bool (D,) for D documents: True for each that equals an earlier document. It does not depend
        on how the corpus is cut into blocks.

    Raises:
      UserError: the text has changed since it was cut into blocks, or the disk is full.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
    is_duplicate = np.zeros(num_documents, bool)
    hash_group = functools.partial(hash_documents, lowers=lowers)
    with temporary(folder):
        parts = map_blocks(hash_group, blocks, workers, report)
        # a part without its repeats, so that files stay small even when half of the corpus is
        # copies of one document
        firsts = (mark_repeats(sort_rows(rows), is_duplicate) for rows in parts)
        for rows in sort_on_disk(firsts, f"{folder}/hashes", num_documents):
            mark_repeats(rows, is_duplicate)
    return is_duplicate


@contextlib.contextmanager
def temporary(folder: str) -> Iterator[None]:
    """Create an empty folder for the `with` block, and remove it at the end. Raise UserError when
    it cannot be used, as when the disk is full.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)  # a killed job may have left files
        os.makedirs(folder)
        yield
    except OSError as error:
        raise UserError(
            f"cannot be used to look for duplicates ({error.strerror})",
            archives.write_remedy(error),
            where=folder,
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hash_documents(blocks: Sequence[Block], lowers: bool = False) -> np.ndarray:
    """Return the hash and the index of each document of the blocks, (D,) of dtype HASHED. lowers:
    as for `comparable`.
    """
    digests: list[bytes] = []
    indices = []
    for block in blocks:
        documents = corpus.read_block(block)
        indices.append(np.arange(block.first_document, block.first_document + len(documents)))
        # Sentences contain no line breaks, so joining by these keeps different documents different.
        texts = (b"\n".join(document) for document in documents)
        digests += [
            hashlib.blake2b(comparable(text, lowers), digest_size=16).digest() for text in texts
        ]
    rows = np.empty(len(digests), HASHED)
    halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
    rows["high"] = halves[:, 0]
    rows["low"] = halves[:, 1]
    rows["index"] = np.concatenate(indices)
    return rows


def mark_repeats(rows: np.ndarray, is_duplicate: np.ndarray) -> np.ndarray:
    """Set is_duplicate (D,) to True for each document whose hash another of the rows (R,) has with
    a smaller index. Return the rows of all other documents. Rows are of dtype HASHED, sorted.
    """
    repeats = np.zeros(len(rows), bool)
    repeats[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    is_duplicate[rows["index"][repeats]] = True
    return rows[~repeats]


def spill(rows: np.ndarray, folder: str, num_buckets: int) -> None:
    """Append each of the rows (R,), sorted by hash, to the file for its range of hashes."""
    width = (1 << 64) // num_buckets + 1
    bounds = np.searchsorted(
        rows["high"], np.array([bucket * width for bucket in range(num_buckets)], np.uint64)
    )
    for bucket, part in enumerate(np.split(rows, bounds[1:])):
        if len(part):
            with open(os.path.join(folder, f"hashes-{bucket:05d}"), "ab") as file:
                part.tofile(file)


def sort_on_disk(parts: Iterable[np.ndarray], folder: str, num_rows: int) -> Iterator[np.ndarray]:
    """Write rows (R,) of dtype HASHED or COUNTED, in parts in any order, to files in a new folder.
    Return an iterator of all rows, sorted, about ROWS_IN_MEMORY / 2 at a time; rows of one hash
    come together. num_rows: number of all rows, about.
    """
    os.makedirs(folder)
    dtype = COUNTED
    for rows in parts:
        dtype = rows.dtype
        spill(sort_rows(rows), folder, 1 + 2 * num_rows // ROWS_IN_MEMORY)
    paths = sorted(glob.glob(os.path.join(glob.escape(folder), "*")))
    return (sort_rows(np.fromfile(path, dtype)) for path in paths)


def counted(hashes: np.ndarray, numbers: ArrayLike) -> np.ndarray:
    """Return rows (R,) of dtype COUNTED."""
    rows = np.empty(len(hashes), COUNTED)
    rows["high"] = hashes
    rows["index"] = numbers
    return rows


def sort_rows(rows: np.ndarray) -> np.ndarray:
    """Return rows (R,) of dtype HASHED or COUNTED, sorted by their fields."""
    return rows[np.lexsort([rows[name] for name in reversed(rows.dtype.names or ())])]


def read(block: Block, is_used: np.ndarray) -> Iterator[list[bytes]]:
    """Return the documents of a block that are used. is_used: bool (D,)."""
    return itertools.compress(corpus.read_block(block), is_used[block.documents])


def plain_lines(sentences: Iterable[bytes]) -> list[str]:
    """Return sentences without their digits, in lower case and in NFC."""
    return [re.sub(r"\d", "", comparable(line, True).decode()) for line in sentences]


def hash_lines(sentences: Iterable[bytes]) -> list[bytes]:
    """Return the hash, of 8 bytes, of each sentence as `plain_lines` returns it."""
    return [
        hashlib.blake2b(line.encode(), digest_size=8).digest() for line in plain_lines(sentences)
    ]


def count_lines(blocks: Sequence[Block], is_used: np.ndarray) -> np.ndarray:
    """Return the hash of each different sentence of each block, and the number of its documents
    that have the sentence, (R,) of dtype COUNTED. is_used: bool (D,), which documents count.
    """
    parts = []
    for block in blocks:
        documents = map(hash_lines, read(block, is_used))
        counts = collections.Counter(itertools.chain.from_iterable(map(set, documents)))
        parts.append(counted(np.frombuffer(b"".join(counts), np.uint64), list(counts.values())))
    return np.concatenate(parts)


def find_repeated(
    blocks: Sequence[Block],
    folder: str,
    limit: int,
    is_used: np.ndarray,
    *,
    workers: Workers = LOCAL,
    report: Report | None = None,
) -> tuple[str, int]:
    """Find the sentences that, but for digits and case, occur in more than `limit` documents.

    Args:
      folder: for temporary files, 16 bytes per different sentence of each block.
      is_used: bool (D,), which of the D documents count.

    Returns:
      (the path of a file in the folder, which stays, with the sorted hashes of these sentences,
        uint64; in how many documents each occurs, added up).
    """
    count = functools.partial(count_lines, is_used=is_used)
    num_rows = sum(block.num_bytes for block in blocks) // LINE_BYTES
    path = os.path.join(folder, "repeated")
    total = 0
    with temporary(f"{folder}/lines"), open(path, "wb") as file:
        parts = map_blocks(count, blocks, workers, report)
        for rows in sort_on_disk(parts, f"{folder}/lines/hashes", num_rows):
            starts = np.flatnonzero(np.append(True, rows["high"][1:] != rows["high"][:-1]))
            sums = np.add.reduceat(rows["index"], starts)
            rows["high"][starts][sums > limit].tofile(file)
            total += int(sums[sums > limit].sum())
    return path, total


def drop_repeated(documents: list[list[bytes]], path: str) -> list[list[bytes]]:
    """Return documents without the sentences whose hashes are in a file of `find_repeated`, which
    must not be empty; a document of such sentences alone is left out.
    """
    repeated = np.memmap(path, np.uint64, "r")
    own = np.frombuffer(b"".join(hash_lines(itertools.chain.from_iterable(documents))), np.uint64)
    places = np.minimum(np.searchsorted(repeated, own), len(repeated) - 1)
    is_other = iter(repeated[places] != own)
    kept = (list(itertools.compress(document, is_other)) for document in documents)
    return list(filter(None, kept))
