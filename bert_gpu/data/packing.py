"""Makes rows that are not sentence pairs from tokenized documents: full sentences (RoBERTa) and
packed rows (Cramming).

A row is a list of pieces, each a range of consecutive tokens of one document. RoBERTa's
FULL-SENTENCES (Liu et al. 2019, section 4.2) takes whole sentences while they fit and continues
with the next document after another [SEP]. Packed rows are filled to the last token: a document is
cut where a row ends and continued in the next row, so at most two positions of a row, too few for a
token with its [CLS] and [SEP], are padding.

Legend: N rows, S row length, K pieces.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bert_gpu.base.compiled import compiled
from bert_gpu.data.config import CLS_SEP
from bert_gpu.data.instances import FRAME_KINDS, ROW, Documents, Tokens, make_rows

if TYPE_CHECKING:
    from bert_gpu.text.tokenizers.wordpiece import Tokenizer


@dataclasses.dataclass(frozen=True)
class PieceRows:
    """Rows as lists of pieces.

    pieces: (K, 2) int64, start and end of each piece in Documents.ids.
    row_splits: row i has the pieces row_splits[i] : row_splits[i + 1].
    frame: where special tokens stand: "cls_sep", "sep" or "none" in packed rows (--pack_separator),
    or "row" in full sentences: [CLS] first, [SEP] last and between pieces.
    """

    pieces: np.ndarray
    row_splits: np.ndarray
    frame: str

    def __len__(self) -> int:
        return len(self.row_splits) - 1

    @staticmethod
    def concatenate(parts: Sequence["PieceRows"]) -> "PieceRows":
        offsets = np.cumsum([0, *(len(part.pieces) for part in parts)])
        splits = [
            part.row_splits[:-1] + offset for part, offset in zip(parts, offsets, strict=False)
        ]
        return PieceRows(
            np.concatenate([part.pieces for part in parts]),
            np.concatenate([*splits, offsets[-1:]]),
            parts[0].frame,
        )

    def take(self, rows: np.ndarray) -> "PieceRows":
        """Return the rows with these indices, in that order."""
        counts = np.diff(self.row_splits)[rows]
        splits = np.concatenate([[0], np.cumsum(counts)])
        indices = np.repeat(self.row_splits[rows] - splits[:-1], counts) + np.arange(splits[-1])
        return PieceRows(self.pieces[indices], splits, self.frame)

    def tokens(self, documents: Documents, max_seq_length: int, tokenizer: "Tokenizer") -> Tokens:
        """Return the rows as Tokens. In packed rows each piece, with its special tokens, is a
        sequence of its own; a row of full sentences is a single sequence.
        """
        ends = np.isin(self.pieces[:, 1], documents.sentence_splits[documents.document_splits])
        input_ids, lengths, sequence_ids = make_rows(
            documents.ids,
            self.pieces,
            ends,
            self.row_splits,
            max_seq_length,
            tokenizer.cls_id,
            tokenizer.sep_id,
            FRAME_KINDS.index(self.frame),
        )
        return Tokens(input_ids, lengths, sequence_ids, labels=None)


def packed_rows(
    documents: Documents, order: npt.ArrayLike, *, max_seq_length: int, separator: str
) -> PieceRows:
    """Fill rows to the last token with documents, which are cut where a row ends.

    Args:
      order: (C,) indices of the documents, in the order in which the rows contain them.
      max_seq_length: S.
      separator: "cls_sep" = [CLS] ... [SEP] around each piece, "sep" = [SEP] after each document,
        "none" = no special tokens.
    """
    starts = documents.sentence_splits[documents.document_splits]
    frame = dict(cls_sep=2, sep=1, none=0)[separator]
    pieces, row_splits = _pack(
        starts, np.asarray(order, np.int64), max_seq_length, frame, separator == CLS_SEP
    )
    return PieceRows(pieces, row_splits, separator)


@compiled
def _pack(
    starts: np.ndarray,
    order: np.ndarray,
    max_seq_length: int,
    frame: int,
    frames_each_piece: bool,
) -> tuple[np.ndarray, np.ndarray]:
    total = 0
    for document in order:
        total += starts[document + 1] - starts[document]
    max_rows = len(order) + total // max(1, max_seq_length - 2) + 2
    pieces = np.empty((2 * max_rows, 2), np.int64)
    row_splits = np.zeros(max_rows + 1, np.int64)
    num_pieces = num_rows = used = 0
    for document in order:
        start, end = starts[document], starts[document + 1]
        while start < end:
            room = max_seq_length - used - (frame if frames_each_piece else 0)
            if room < 1:
                num_rows += 1
                row_splits[num_rows] = num_pieces
                used = 0
                continue
            length = min(room, end - start)
            pieces[num_pieces] = (start, start + length)
            num_pieces += 1
            start += length
            used += length
            # cls_sep puts [CLS] and [SEP] around every piece. With sep, a document that ends at the
            # end of a row has no room for its [SEP], which is then cut off.
            used += frame if frames_each_piece or start == end else 0
    if num_pieces > row_splits[num_rows]:
        num_rows += 1
        row_splits[num_rows] = num_pieces
    return pieces[:num_pieces].copy(), row_splits[: num_rows + 1].copy()


def full_sentence_rows(
    documents: Documents, order: npt.ArrayLike, *, max_seq_length: int
) -> PieceRows:
    """Fill rows [CLS] ... [SEP] with whole sentences of documents, which are taken in the order of
    their indices `order`.

    Pieces of different documents in one row have a [SEP] between them. A sentence longer than a row
    is cut into several rows.
    """
    pieces, row_splits = _full_sentences(
        documents.sentence_splits,
        documents.document_splits,
        np.asarray(order, np.int64),
        max_seq_length - 2,
    )
    return PieceRows(pieces, row_splits, ROW)


@compiled
def _full_sentences(
    sentence_splits: np.ndarray, document_splits: np.ndarray, order: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    max_rows = 1
    for document in order:
        for sentence in range(document_splits[document], document_splits[document + 1]):
            max_rows += 1 + (sentence_splits[sentence + 1] - sentence_splits[sentence]) // budget
    pieces = np.empty((max_rows, 2), np.int64)
    row_splits = np.zeros(max_rows + 1, np.int64)
    num_pieces = num_rows = used = 0
    for document in order:
        continues = False  # whether the last piece of the row is from this document
        for sentence in range(document_splits[document], document_splits[document + 1]):
            start, end = sentence_splits[sentence], sentence_splits[sentence + 1]
            while start < end:
                length = min(budget, end - start)
                extra = 0 if continues or used == 0 else 1
                if used + extra + length > budget:
                    num_rows += 1
                    row_splits[num_rows] = num_pieces
                    used = 0
                    continues = False
                    continue
                if continues:
                    pieces[num_pieces - 1, 1] = start + length
                else:
                    pieces[num_pieces] = (start, start + length)
                    num_pieces += 1
                used += extra + length
                continues = True
                start += length
    if num_pieces > row_splits[num_rows]:
        num_rows += 1
        row_splits[num_rows] = num_pieces
    return pieces[:num_pieces].copy(), row_splits[: num_rows + 1].copy()
