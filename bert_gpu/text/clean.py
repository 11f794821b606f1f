"""Cleaning that needs no tokens: Unicode normalisation, and duplicate documents.

Duplicates are documents with exactly the same sentences. Every document gets a hash of 128 bits
(among a billion different ones the probability of a collision is 1e-21). Hashes are written to
files on disk by their first bits, and each file is sorted in memory. For a corpus of any size this
takes about 200 MB of memory, a block, and one byte per document for the result.
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
ROWS_IN_MEMORY = 1 << 20  # rows that are collected before they are written, and rows of a full file


def normalize(sentences: list[bytes], form: str) -> list[bytes]:
    """Bring sentences into a Unicode normal form.

    Args:
      sentences: UTF-8, no space at the ends.
      form: none; NFC (composes letters and accents); NFKC (also replaces variants that only look
        different: ligatures, wide letters).

    Returns:
      A list of the same length, without space at the ends; the list itself for none.
    """
    if form == "none":
        return sentences
    return [
        sentence
        if sentence.isascii()
        # NFKC turns some marks (U+00B4) into spaces, also at the ends.
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
      blocks: all of the plan.
      folder: for temporary files, 24 bytes per document; created here and removed at the end.
      normalization: form for `normalize`, applied before documents are compared.
      report: called with tokens = 0.

    Returns:
      bool (D,), by index of the document: False for the first of equal documents. It does not
        depend on how the corpus is cut into blocks.

    Raises:
      UserError: the text has changed, or the disk is full.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
    is_duplicate = np.zeros(num_documents, bool)
    # buckets differ in length, so they are planned to be half full on average
    num_buckets = -(-2 * num_documents // ROWS_IN_MEMORY)
    pending = []
    try:
        shutil.rmtree(folder, ignore_errors=True)  # files of a killed job
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
    """Return the hashes of all documents of the blocks: (D,) HASHED."""
    digests: list[bytes] = []
    indices = []
    for block in blocks:
        documents = corpus.read_block(block)
        indices.append(np.arange(block.first_document, block.first_document + len(documents)))
        # Sentences have no line breaks, so different documents give different bytes.
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
    """Set is_duplicate (D,) for all documents of rows (R,) except the first of each hash. Returns
    the rows of the first ones, sorted by hash.
    """
    rows = rows[np.lexsort((rows["index"], rows["low"], rows["high"]))]
    repeats = np.zeros(len(rows), bool)
    repeats[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    is_duplicate[rows["index"][repeats]] = True
    return rows[~repeats]


def spill(rows: np.ndarray, folder: str, num_buckets: int) -> None:
    """Append rows (R,), sorted by hash and without repeats, to the files of their hashes.

    Because a call writes each hash once, files stay small even when half of the corpus is one
    document.
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
