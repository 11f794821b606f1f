"""Cleaning that needs no tokens: Unicode normalisation, and documents that are there twice.

Duplicates are exact: documents with the same sentences. Every document becomes a hash of 128 bits
(that any two of a billion different ones are alike has a probability of 1e-21). Hashes go to files
on disk, by their first bits, and each file is sorted in memory, so that memory is about 200 MB and
a block, whatever the corpus, and one byte for each document, which is the answer.
"""

import functools
import glob
import hashlib
import os
import unicodedata

import numpy as np

from bert_gpu.settings import UserError
from bert_gpu.text import corpus
from bert_gpu.text.parallel import map_blocks

HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("number", "i8")])  # of a document
ROWS_IN_MEMORY = 1 << 20  # of HASHED, both before they are written and of a file when it is read


def normalize(sentences, form):
    """Brings sentences into a Unicode normal form.

    Args:
      sentences: list of bytes (UTF-8, no space at the ends).
      form: none; NFC (letters and their accents composed); NFKC (and what only looks different made
        equal: ligatures, wide letters).

    Returns:
      list of bytes, as many, without space at the ends; the same list for none.
    """
    if form == "none":
        return sentences
    return [
        sentence if sentence.isascii() else normalize_one(sentence, form) for sentence in sentences
    ]


def normalize_one(sentence, form):
    # NFKC makes a space of some marks (U+00B4), also at the ends.
    return unicodedata.normalize(form, sentence.decode("utf-8", "ignore")).strip().encode()


def find_duplicates(blocks, folder, *, normalization="none", num_workers=None, report=None):
    """Which documents have the same sentences as an earlier one.

    Args:
      blocks: list of Block, all of the plan.
      folder: for files that are there while it runs, 24 bytes a document; made when it is needed.
      normalization: as of `normalize`, done before documents are compared.
      num_workers: processes; None = one for each core.
      report: called with the bytes of text that are done since the last call.

    Returns:
      bool (D,), by number of the document: False for the first of its kind. It does not depend on
        how the corpus is cut into blocks.

    Raises:
      UserError: the text has changed, or the disk is full.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
    is_duplicate = np.zeros(num_documents, bool)
    # twice as many as needed on average, since they differ in length
    num_buckets = -(-2 * num_documents // ROWS_IN_MEMORY)
    pending, num_pending = [], 0
    try:
        os.makedirs(folder, exist_ok=True)
        remove_buckets(folder)  # of a run that was killed
        for rows in map_blocks(
            functools.partial(hash_documents, normalization=normalization),
            blocks,
            num_workers,
            report,
        ):
            pending.append(rows)
            num_pending += len(rows)
            if num_pending >= ROWS_IN_MEMORY:
                spill(mark_repeats(np.concatenate(pending), is_duplicate), folder, num_buckets)
                pending, num_pending = [], 0
        spill(
            mark_repeats(np.concatenate([np.zeros(0, HASHED), *pending]), is_duplicate),
            folder,
            num_buckets,
        )
        for path in bucket_files(folder):
            mark_repeats(np.fromfile(path, HASHED), is_duplicate)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be used to look for duplicates "
            f"({error.strerror}); make room or choose another folder"
        ) from None
    finally:
        remove_buckets(folder)
    return is_duplicate


def hash_documents(blocks, normalization):
    """HASHED (documents of the blocks,)."""
    digests, numbers = [], []
    for block in blocks:
        documents = corpus.read_block(block)
        numbers.append(np.arange(block.first_document, block.first_document + len(documents)))
        # A sentence has no line break in it, so that other sentences are other bytes.
        digests += [
            hashlib.blake2b(b"\n".join(normalize(document, normalization)), digest_size=16).digest()
            for document in documents
        ]
    rows = np.empty(len(digests), HASHED)
    halves = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)
    rows["high"], rows["low"], rows["number"] = halves[:, 0], halves[:, 1], np.concatenate(numbers)
    return rows


def mark_repeats(rows, is_duplicate):
    """Marks all rows (R,) but the first document of each hash; returns those first ones."""
    rows = rows[np.lexsort((rows["number"], rows["low"], rows["high"]))]
    repeats = np.zeros(len(rows), bool)
    repeats[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    is_duplicate[rows["number"][repeats]] = True
    return rows[~repeats]


def spill(rows, folder, num_buckets):
    """Appends rows (R,), sorted by hash and each hash once, to the files of their hashes.

    That each hash is there once a call keeps files small even when half of the corpus is
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


def bucket_files(folder):
    return sorted(glob.glob(os.path.join(glob.escape(folder), "hashes-*")))


def remove_buckets(folder):
    for path in bucket_files(folder):
        os.remove(path)
