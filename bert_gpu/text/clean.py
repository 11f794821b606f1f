"""Cleaning that needs no tokens: Unicode normalisation, and duplicate documents.

Duplicates are documents with exactly the same sentences. Every document gets a hash of 128 bits
(among a billion different ones the probability of a collision is 1e-21). Hashes are written to
files on disk by their first bits, and each file is sorted in memory. So memory is about 200 MB plus
a block for any corpus, plus one byte per document for the result.
"""

import functools
import glob
import hashlib
import os
import shutil
import unicodedata

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.text import corpus
from bert_gpu.text.formats import archives
from bert_gpu.text.parallel import LOCAL, map_blocks

HASHED = np.dtype([("high", "u8"), ("low", "u8"), ("index", "i8")])  # of a document
ROWS_IN_MEMORY = 1 << 20  # of HASHED, before they are written, and in a file


def normalize(sentences, form):
    """Brings sentences into a Unicode normal form.

    Args:
      sentences: list of bytes (UTF-8, no space at the ends).
      form: none; NFC (composes letters and accents); NFKC (also replaces variants that only look
        different: ligatures, wide letters).

    Returns:
      list of bytes of the same length, without space at the ends; the list itself for none.
    """
    if form == "none":
        return sentences
    return [
        sentence
        if sentence.isascii()
        # NFKC turns some marks (U+00B4) into spaces, also at the ends.
        else unicodedata.normalize(form, sentence.decode("utf-8", "ignore")).strip().encode()
        for sentence in sentences
    ]


def find_duplicates(blocks, folder, *, normalization="none", workers=LOCAL, report=None):
    """Finds the documents that have the same sentences as an earlier one.

    Args:
      blocks: list of Block, all of the plan.
      folder: of temporary files, 24 bytes per document; made here and removed at the end.
      normalization: form for `normalize`, applied before documents are compared.
      workers: parallel.Workers.
      report: called with (bytes of text, tokens = 0) done since the last call.

    Returns:
      bool (D,), by index of the document: False for the first of equal documents. It does not
        depend on how the corpus is cut into blocks.

    Raises:
      UserError: the text has changed, or the disk is full.
    """
    num_documents = blocks[-1].first_document + blocks[-1].num_documents if blocks else 0
    is_duplicate = np.zeros(num_documents, bool)
    # so that buckets are half full on average, since they differ in length
    num_buckets = -(-2 * num_documents // ROWS_IN_MEMORY)
    pending = []
    try:
        shutil.rmtree(folder, ignore_errors=True)  # left by a killed run
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


def hash_documents(blocks, normalization):
    """The hashes of all documents of the blocks: (D,) HASHED."""
    digests, indices = [], []
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
    rows["high"], rows["low"], rows["index"] = halves[:, 0], halves[:, 1], np.concatenate(indices)
    return rows


def mark_repeats(rows, is_duplicate):
    """Marks all documents of the rows (R,) except the first of each hash; returns the rows of the
    first ones.
    """
    rows = rows[np.lexsort((rows["index"], rows["low"], rows["high"]))]
    repeats = np.zeros(len(rows), bool)
    repeats[1:] = (rows["high"][1:] == rows["high"][:-1]) & (rows["low"][1:] == rows["low"][:-1])
    is_duplicate[rows["index"][repeats]] = True
    return rows[~repeats]


def spill(rows, folder, num_buckets):
    """Appends rows (R,), sorted by hash and without repeats, to the files of their hashes.

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
