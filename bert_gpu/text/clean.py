"""Cleaning that needs no tokens: Unicode normalisation, and duplicate documents.

Duplicates are documents with exactly the same sentences. Every document gets a hash of 128 bits
(among a billion different ones the probability of a collision is 1e-21). Hashes are written to
files on disk by their first bits, and each file is sorted in memory. Whatever the size of the
corpus, this takes about 200 MB of memory, plus one block of text and one byte per document for the
result.
"""

import functools
import glob
import hashlib
import os
import shutil
import unicodedata
from collections.abc import Sequence

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.corpus import Block
from bert_gpu.text.formats import archives
from bert_gpu.text.parallel import LOCAL, Report, Workers, map_blocks

HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("index", "i8")])  # a document's hash and index
# Hashes that are collected in memory before they are written, and the most that a file should hold.
ROWS_IN_MEMORY = 1 << 20


def normalize(sentences: list[bytes], form: str) -> list[bytes]:
    """Bring sentences into a Unicode normal form.

    Args:
      sentences: UTF-8, no space at the ends.
      form: none; NFC (composes letters and accents); NFKC (also replaces variants that only look
        different: ligatures, wide letters).

    Returns:
      A list of the same length, without space at the ends; with form none, `sentences` itself.
    """
    if form == "none":
        return sentences
    return [
        sentence
        if sentence.isascii()
        # strip, because NFKC turns some marks (such as U+00B4) into spaces
        else unicodedata.normalize(form, sentence.decode("utf-8", "ignore")).strip().encode()  # type: ignore[arg-type]
        for sentence in sentences
    ]


def find_duplicates(
    blocks: Sequence[Block],
    folder: str,
    *,
    normalization: str = "none",
    workers: Workers = LOCAL,
    report: Report | None = None,
) -> np.ndarray:
    """Find the documents that have the same sentences as an earlier one.

    Args:
      blocks: all blocks of the corpus.
      folder: for temporary files, 24 bytes per document; created here and removed at the end.
      normalization: form for `normalize`, applied before documents are compared.
      report: called with the bytes of text done since its last call, and 0 tokens.

    Returns:
      bool (D,) for D documents: True for each that equals an earlier document. It does not depend
        on how the corpus is cut into blocks.

    Raises:
      UserError: the text has changed since it was cut into blocks, or the disk is full.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
    is_duplicate = np.zeros(num_documents, bool)
    # files of hashes differ in length, so they are planned to be half full on average
    num_buckets = -(-2 * num_documents // ROWS_IN_MEMORY)
    pending = []
    try:
        shutil.rmtree(folder, ignore_errors=True)  # a killed job may have left files
        os.makedirs(folder)
        for rows in map_blocks(
            functools.partial(hash_documents, normalization=normalization),
            blocks,
            workers,
            report,
        ):
            pending.append(rows)
            if sum(map(len, pending)) >= ROWS_IN_MEMORY:
                spill(mark_repeats(np.concatenate(pending), is_duplicate), folder, num_buckets)
                pending = []
        spill(
            mark_repeats(np.concatenate([np.zeros(0, HASHED), *pending]), is_duplicate),
            folder,
            num_buckets,
        )
        for path in glob.glob(os.path.join(glob.escape(folder), "*")):
            mark_repeats(np.fromfile(path, HASHED), is_duplicate)
    except OSError as error:
        raise UserError(
            f"cannot be used to look for duplicates ({error.strerror})",
            archives.write_remedy(error),
            where=folder,
        ) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return is_duplicate


def hash_documents(blocks: Sequence[Block], normalization: str) -> np.ndarray:
    """Return the hash and the index of each document of the blocks, (D,) of dtype HASHED.
    normalization: form for `normalize`.
    """
    digests: list[bytes] = []
    indices = []
    for block in blocks:
        documents = corpus.read_block(block)
        indices.append(np.arange(block.first_document, block.first_document + len(documents)))
        # Sentences contain no line breaks, so joining by these keeps different documents different.
        digests += [
            hashlib.blake2b(b"\n".join(normalize(document, normalization)), digest_size=16).digest()
            for document in documents
        ]
    rows = np.empty(len(digests), HASHED)
    halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
    rows["high"] = halves[:, 0]
    rows["low"] = halves[:, 1]
    rows["index"] = np.concatenate(indices)
    return rows


def mark_repeats(rows: np.ndarray, is_duplicate: np.ndarray) -> np.ndarray:
    """Set is_duplicate (D,) to True for each document whose hash another of the rows (R,) has with
    a smaller index. Return the rows of all other documents, sorted by hash.
    """
    rows = rows[np.lexsort((rows["index"], rows["low"], rows["high"]))]
    repeats = np.zeros(len(rows), bool)
    repeats[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    is_duplicate[rows["index"][repeats]] = True
    return rows[~repeats]


def spill(rows: np.ndarray, folder: str, num_buckets: int) -> None:
    """Append each of the rows (R,), sorted by hash and without repeats, to the file for its range
    of hashes.

    Because a call writes each hash once, files stay small even when half of the corpus is copies of
    one document.
    """
    if num_buckets:
        width = (1 << 64) // num_buckets + 1
        bounds = np.searchsorted(
            rows["high"], np.array([bucket * width for bucket in range(num_buckets)], np.uint64)
        )
        for bucket, part in enumerate(np.split(rows, bounds[1:])):
            if len(part):
                with open(os.path.join(folder, f"hashes-{bucket:05d}"), "ab") as file:
                    part.tofile(file)
