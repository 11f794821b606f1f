"""Finds documents that are nearly equal: whose sets of shingles, five words in a row, have at least
a given Jaccard similarity, the number of common shingles divided by that of all.

MinHash: each of 125 functions gives a document the least value of its shingles. Two documents have
the same with a probability that is their similarity. They are compared if all functions of a band
agree, so few pairs are; by the hashes (64 bits) of all their shingles, made from the text again.

In the order of the text, a document is removed if it is similar to an earlier one that is not
removed. Band keys, pairs and shingles are in files: memory holds a block of text for each worker,
three bytes for each document, and a row for each document that is removed.

Legend: D documents, B bands.
"""

import collections
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bert_gpu.base.compiled import compiled
from bert_gpu.text import clean, corpus
from bert_gpu.text.corpus import Block
from bert_gpu.text.framing import ranges
from bert_gpu.text.parallel import LOCAL, Report, Workers, map_blocks
from bert_gpu.text.tokenizers.basic import CLEAN

NUM_HASHES = 125
SHINGLE_WORDS = 5
MAX_ROWS = 5  # functions in a band, at most
MIN_RECALL = 0.99  # probability that two documents as similar as the threshold are compared
# Documents of a band's key with which each later one is compared, the first ones. More would matter
# for thousands of documents that are similar to one another, but less than the threshold.
MAX_COMPARED = 8
# a removed document, the first document that it is similar to, and their similarity
REMOVED = np.dtype([("document", "i8"), ("first", "i8"), ("similarity", "f8")])
# The constants of FNV-1a; 2^64 divided by the golden ratio; shifts.
SEED, PRIME, MIX, HALF, SHIFT = np.array(
    [0xCBF29CE484222325, 0x100000001B3, 0x9E3779B97F4A7C15, 32, 29], np.uint64
)
# The functions are h -> factor * h + offset modulo 2^32. An odd factor makes it a permutation. The
# numbers of RandomState are the same in all versions of NumPy.
FACTORS, OFFSETS = np.random.RandomState(0).randint(
    1 << 32, size=(2, NUM_HASHES), dtype=np.uint32
) | np.array([[1], [0]], np.uint32)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Return (number of bands, functions in each): the longest bands of at most MAX_ROWS that have
    MIN_RECALL, which are 25 of 5 from .8 on.
    """
    sizes = [(NUM_HASHES // rows, rows) for rows in range(MAX_ROWS, 0, -1)]
    return next(size for size in sizes if (1 - threshold ** size[1]) ** size[0] <= 1 - MIN_RECALL)


def disk_bytes(num_documents: int, num_text_bytes: int, threshold: float) -> int:
    """Return about how much room the files take if each document has a copy: band keys and pairs of
    16 bytes, and 8 bytes for each word of six bytes.
    """
    return 2 * choose_bands(threshold)[0] * 16 * num_documents + num_text_bytes * 8 // 6


def find_near_duplicates(
    blocks: Sequence[Block],
    folder: str,
    threshold: float,
    *,
    workers: Workers = LOCAL,
    report: Report | None = None,
) -> np.ndarray:
    """Return the removed documents in the order of the text, (removed,) of dtype REMOVED. They do
    not depend on how the text is cut into blocks, nor on the workers.

    Args:
      blocks: all blocks of the text, which has a document.
      folder: for temporary files of about `disk_bytes`, which all workers share; created here and
        removed at the end.
      report: called with the bytes of text read since its last call; a negative number for those
        that will be read again.
    """
    num_documents = blocks[-1].documents.stop
    bands = choose_bands(threshold)
    num_rows = bands[0] * num_documents
    spread = (1 << 63) // num_documents  # makes indices as large as hashes
    is_compared, is_removed = np.zeros((2, num_documents), bool)
    make = functools.partial(band_keys, bands=bands)
    write = functools.partial(write_shingles, is_compared, folder)
    with clean.temporary(folder):
        parts = map_blocks(make, blocks, workers, report)
        keys = clean.sort_on_disk(parts, f"{folder}/keys", num_rows)
        links = (link(rows, is_compared, spread) for rows in keys)
        pairs = clean.sort_on_disk(links, f"{folder}/pairs", num_rows)
        marked = [block for block in blocks if is_compared[block.documents].any()]
        if report:
            report(-sum(block.num_bytes for block in marked), 0)
        collections.deque(map_blocks(write, marked, workers, report), 0)
        starts = np.array([block.first_document for block in blocks])
        read = functools.partial(read_shingles, folder, starts, is_compared)
        compare = functools.partial(similar, read=read, threshold=threshold, is_removed=is_removed)
        rows = (compare(part["high"] // spread, part["index"]) for part in map(np.unique, pairs))
        return np.fromiter(itertools.chain.from_iterable(rows), REMOVED)


def plain_text(document: list[bytes]) -> np.ndarray:
    """Return a document in lower case and in NFC, with spaces around Chinese characters, which are
    words of their own, and a line break at its end; uint8.
    """
    text = b"\n".join(document)
    if not text.isascii():
        text = text.decode("utf-8", "ignore").translate(CLEAN).encode()
    return np.frombuffer(clean.comparable(text, lowers=True) + b"\n", np.uint8)


def band_keys(blocks: Sequence[Block], bands: tuple[int, int]) -> np.ndarray:
    """Return rows of dtype COUNTED, the band keys and the index of each document."""
    parts = []
    for block in blocks:
        texts = [plain_text(document) for document in corpus.read_block(block)]
        keys = np.empty((len(texts), bands[0]), np.uint64)
        splits = np.cumsum([0, *map(len, texts)])
        hash_bands(np.concatenate(texts), splits, FACTORS, OFFSETS, bands[1], keys)
        indices = np.repeat(np.arange(block.num_documents), bands[0])
        parts.append(clean.counted(keys.ravel(), block.first_document + indices))
    return np.concatenate(parts)


def link(rows: np.ndarray, is_compared: np.ndarray, spread: int) -> np.ndarray:
    """Return the pairs of documents that have a key in common, rows (spread x later, earlier) of
    dtype COUNTED: each document with the first MAX_COMPARED of its key. Set is_compared (D,) to
    True for these documents. rows: (key, document), sorted.
    """
    is_first = np.append(True, rows["high"][1:] != rows["high"][:-1])
    starts = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    counts = np.minimum(np.arange(len(rows)) - starts, MAX_COMPARED)
    later = np.repeat(rows["index"], counts)
    earlier = rows["index"][ranges(starts, counts)]
    is_compared[later] = True
    is_compared[earlier] = True
    return np.unique(clean.counted(later * spread, earlier))


def write_shingles(is_used: np.ndarray, folder: str, blocks: Sequence[Block]) -> None:
    """Write the shingles of the documents of each block that are used to a file, uint64: the places
    where those of each document begin, and the last end; then the sorted hashes of each. is_used:
    bool (D,).
    """
    for block in blocks:
        parts = []
        for document in clean.read(block, is_used):
            text = plain_text(document)
            hashes = np.empty(len(text) // 2 + 1, np.uint64)
            parts.append(np.unique(hashes[: hash_shingles(text, hashes)]))
        splits = np.cumsum([len(parts) + 1, *map(len, parts)]).astype(np.uint64)
        np.concatenate([splits, *parts]).tofile(f"{folder}/shingles-{block.first_document}")


def read_shingles(
    folder: str, starts: np.ndarray, is_used: np.ndarray, document: int
) -> np.ndarray:
    """Return the sorted hashes of a document's shingles from the files of `write_shingles`. starts:
    the first document of each block.
    """
    start = starts[np.searchsorted(starts, document, "right") - 1]
    path = f"{folder}/shingles-{start}"
    rank = int(is_used[start:document].sum())
    begin, end = np.fromfile(path, np.int64, 2, offset=8 * rank).tolist()
    return np.fromfile(path, np.uint64, end - begin, offset=8 * begin)


def similar(
    later: np.ndarray,
    earlier: np.ndarray,
    read: Callable[[int], np.ndarray],
    threshold: float,
    is_removed: np.ndarray,
) -> Iterator[tuple[int, int, float]]:
    """Yield a row of dtype REMOVED, and set is_removed (D,) to True, for each document that is
    similar to an earlier one that is not removed.

    Args:
      later, earlier: the pairs (P,) to compare, sorted. read: document -> hashes of its shingles.
    """
    for document, first in zip(later.tolist(), earlier.tolist(), strict=True):
        if is_removed[document] or is_removed[first]:
            continue
        own, others = read(document), read(first)
        num_common = len(np.intersect1d(own, others, assume_unique=True))
        similarity = num_common / (len(own) + len(others) - num_common)
        if similarity >= threshold:
            is_removed[document] = True
            yield document, first, similarity


@compiled
def hash_shingles(text: np.ndarray, hashes: np.ndarray) -> int:
    """Write the hashes of a text's shingles to the beginning of `hashes` and return their number. A
    text of fewer than SHINGLE_WORDS words is one shingle. text: uint8, with a space at its end.
    """
    ring = np.zeros(SHINGLE_WORDS, np.uint64)
    num_words = 0
    word = SEED
    for position in range(len(text)):
        if text[position] > 32:
            word = (word ^ np.uint64(text[position])) * PRIME
        elif word != SEED:
            ring[num_words % SHINGLE_WORDS] = word
            num_words += 1
            word = SEED
        if word == SEED and (num_words >= SHINGLE_WORDS or position == len(text) - 1):
            shingle = np.uint64(num_words < SHINGLE_WORDS)
            for index in range(num_words, num_words + SHINGLE_WORDS):
                shingle = (shingle ^ ring[index % SHINGLE_WORDS]) * MIX
                shingle ^= shingle >> SHIFT
            hashes[max(0, num_words - SHINGLE_WORDS)] = shingle
    return max(1, num_words - SHINGLE_WORDS + 1)


@compiled
def hash_bands(
    text: np.ndarray,
    splits: np.ndarray,
    factors: np.ndarray,
    offsets: np.ndarray,
    num_rows: int,
    keys: np.ndarray,
) -> None:
    """Write the band keys (D, B) of D documents. text: uint8, document d from splits[d] to
    splits[d + 1]. factors, offsets: of the functions, num_rows in each band.
    """
    hashes = np.empty(len(text) // 2 + 1, np.uint64)
    least = np.empty(len(factors), np.uint32)
    for document in range(len(keys)):
        least[:] = np.uint32(0xFFFFFFFF)
        num_shingles = hash_shingles(text[splits[document] : splits[document + 1]], hashes)
        for position in range(num_shingles):
            half = np.uint32(hashes[position] >> HALF)
            for index in range(len(factors)):
                least[index] = min(least[index], np.uint32(factors[index] * half + offsets[index]))
        keys[document] = 0
        for index in range(keys.shape[1] * num_rows):
            key = (keys[document, index // num_rows] ^ np.uint64(least[index])) + np.uint64(index)
            keys[document, index // num_rows] = (key * MIX) ^ (key * MIX >> SHIFT)
