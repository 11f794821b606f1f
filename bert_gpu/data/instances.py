"""Makes pairs of segments, for next sentence or sentence order, from tokenized documents; a segment
is a range of a document's tokens.

A segment stays a range of consecutive tokens when it is truncated (only its ends move), so a pair
is six integers: start and end of A, start and end of B, the label, and whether the pair's chunk of
the text has one sentence. Tokens are copied once, when rows are made. The algorithm is that of
`create_instances_from_document` in google-research/bert, create_pretraining_data.py, with two
differences: a random B is never from A's own document, and sentences longer than a row are split.
The loop is sequential (each draw decides where the next chunk begins) and therefore compiled with
Numba. Sentence order (ALBERT, Lan et al. 2020) swaps half of the pairs instead of drawing a random
B.

Legend: N rows, S row length.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bert_gpu.base.compiled import compiled
from bert_gpu.data.config import FRAMES
from bert_gpu.data.random_bits import draw, draw_integer, draw_uniform

if TYPE_CHECKING:
    from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# Two more kinds of rows, of full sentences and of pairs: both have [CLS] first and [SEP] after each
# piece. In pairs, sequence_ids number the two segments; in rows of full sentences they are all 1.
ROW, PAIR = "row", "pair"
FRAME_KINDS = (*FRAMES, ROW, PAIR)
# a sentence longer than a row is split into pieces of 1/5 row; measured in dev/measurements.md
PIECES_PER_ROW = 5


@dataclasses.dataclass(frozen=True)
class Documents:
    """Tokenized documents.

    ids: (T,) int32 token ids of all sentences, concatenated.
    sentence_splits: sentence i is ids[sentence_splits[i] : sentence_splits[i + 1]].
    document_splits: document d has the sentences document_splits[d] : document_splits[d + 1].
    """

    ids: np.ndarray
    sentence_splits: np.ndarray
    document_splits: np.ndarray

    @classmethod
    def from_sentences(
        cls, ids: np.ndarray, sentence_splits: np.ndarray, sentences_per_document: Sequence[int]
    ) -> "Documents":
        """Make Documents of a tokenizer's flat output and the number of sentences of each document.
        Drop sentences without tokens, and then documents without sentences.
        """
        has_tokens = np.diff(sentence_splits) > 0
        document_of = np.repeat(np.arange(len(sentences_per_document)), sentences_per_document)
        counts = np.bincount(document_of[has_tokens], minlength=len(sentences_per_document))
        splits = np.concatenate([[0], sentence_splits[1:][has_tokens]]).astype(np.int64)
        document_splits = np.concatenate([[0], np.cumsum(counts[counts > 0])]).astype(np.int64)
        return cls(ids, splits, document_splits)

    def __len__(self) -> int:
        return len(self.document_splits) - 1

    def split_long(self, max_tokens: int) -> "Documents":
        """Return the documents with each sentence of more than max_tokens tokens split into pieces
        of ceil(max_tokens / PIECES_PER_ROW) tokens; the last piece may be shorter.

        An unsplit long sentence would be a chunk of its own, always get a random second segment,
        and lose the tokens that a row cannot hold.
        """
        starts = self.sentence_splits[:-1]
        lengths = np.diff(self.sentence_splits)
        piece = -(-max_tokens // PIECES_PER_ROW)
        num_pieces = np.where(lengths > max_tokens, -(-lengths // piece), 1)
        ends = np.concatenate([[0], np.cumsum(num_pieces)])
        within = np.arange(ends[-1]) - np.repeat(ends[:-1], num_pieces)
        splits = np.append(np.repeat(starts, num_pieces) + piece * within, self.sentence_splits[-1])
        return Documents(self.ids, splits, ends[self.document_splits])


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Rows as arrays of token ids.

    input_ids: (N, S) int32, padded with 0. lengths: (N,) int32.
    sequence_ids: (N, S) int32: 1, 2, ... for the segment or sequence that a token belongs to, 0 for
    padding.
    labels: (N,) int, next-sentence or sentence-order labels; None when rows are not pairs.
    """

    input_ids: np.ndarray
    lengths: np.ndarray
    sequence_ids: np.ndarray
    labels: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class PairRows:
    """Rows of two segments.

    pairs: (N, 6) int64 [a_start, a_end, b_start, b_end, label, is_single]: the ranges of A and B in
    Documents.ids, the label, and 1 if the pair's chunk of the text has one sentence.
    """

    pairs: np.ndarray

    def __len__(self) -> int:
        return len(self.pairs)

    @staticmethod
    def concatenate(parts: Sequence["PairRows"]) -> "PairRows":
        return PairRows(np.concatenate([part.pairs for part in parts]))

    def take(self, rows: np.ndarray) -> "PairRows":
        """Return the rows with these indices, in that order."""
        return PairRows(self.pairs[rows])

    def num_used(self, is_random: bool) -> int:
        """Return how many tokens the rows hold of the documents that they were made from.
        is_random: whether label 1 means a random B, whose tokens are from another document and do
        not count.
        """
        a_start, a_end, b_start, b_end, label, _ = self.pairs.T
        b_weight = 1 - label if is_random else 1
        return int((a_end - a_start + b_weight * (b_end - b_start)).sum())

    def tokens(self, documents: Documents, max_seq_length: int, tokenizer: "Tokenizer") -> Tokens:
        """Return the tokens of the rows, [CLS] A [SEP] B [SEP]."""
        pieces = self.pairs[:, :4].reshape(-1, 2)
        input_ids, lengths, sequence_ids = make_rows(
            documents.ids,
            pieces,
            np.ones(len(pieces), bool),
            np.arange(0, len(pieces) + 1, 2),
            max_seq_length,
            tokenizer.cls_id,
            tokenizer.sep_id,
            FRAME_KINDS.index(PAIR),
        )
        return Tokens(input_ids, lengths, sequence_ids, self.pairs[:, 4])


def pair_instances(
    documents: Documents,
    own: npt.ArrayLike,
    pool: npt.ArrayLike,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    key: int,
    swaps: bool = False,
) -> np.ndarray:
    """Make pairs in one pass over the documents `own`. Return (N, 6) int64 rows [a_start, a_end,
    b_start, b_end, label, is_single], as in PairRows.

    Without `swaps` (next sentence) label 1 means that B is random, from another document of the
    pool; if the pool has no other document, B is the real next segment, and a chunk of one sentence
    makes no row. With `swaps` (sentence order) label 1 means that the two segments of one document
    are swapped; a chunk of one sentence is cut in two, and a chunk of one token makes no row.

    Args:
      own: (C,) indices of the documents to make pairs from.
      pool: (D,) different indices of the documents that random second segments are drawn from.
      max_seq_length: S; A and B together get S - 3 tokens.
      short_seq_prob: share of documents (per pass) whose pairs have a random, shorter target
        length.
      key: 64-bit key of all random draws of this pass.
    """
    return _pair_instances(
        documents.sentence_splits,
        documents.document_splits,
        np.asarray(own, np.int64),
        np.asarray(pool, np.int64),
        max_seq_length - 3,
        float(short_seq_prob),
        swaps,
        np.array([key], np.uint64),
    )


@compiled
def _pair_instances(
    sentence_splits: np.ndarray,
    document_splits: np.ndarray,
    own: np.ndarray,
    pool: np.ndarray,
    max_tokens: int,
    short_seq_prob: float,
    swaps: bool,
    state: np.ndarray,
) -> np.ndarray:
    num_sentences = 0
    for document in own:
        num_sentences += document_splits[document + 1] - document_splits[document]
    pairs = np.empty((num_sentences, 6), np.int64)
    count = 0
    for document in own:
        first, last = document_splits[document], document_splits[document + 1]
        has_other = len(pool) > 1 or (len(pool) == 1 and pool[0] != document)
        target = max_tokens
        if draw_uniform(state) < short_seq_prob:
            target = draw_integer(state, 2, max_tokens)
        chunk_start = first
        sentence = first
        while sentence < last:
            length = sentence_splits[sentence + 1] - sentence_splits[chunk_start]
            if sentence == last - 1 or length >= target:
                num_in_chunk = sentence + 1 - chunk_start
                split = chunk_start + 1
                if num_in_chunk >= 2:
                    split = chunk_start + draw_integer(state, 1, num_in_chunk - 1)
                a_start, a_end = sentence_splits[chunk_start], sentence_splits[split]
                b_start, b_end = a_end, sentence_splits[sentence + 1]
                label = 0
                if swaps:
                    if num_in_chunk == 1 and length >= 2:
                        a_end = b_start = a_start + draw_integer(state, 1, length - 1)
                    if draw_uniform(state) < 0.5:
                        label = 1
                        a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
                elif (num_in_chunk == 1 or draw_uniform(state) < 0.5) and has_other:
                    label = 1
                    b_target = target - (a_end - a_start)
                    b_start, b_end = _random_segment(
                        sentence_splits, document_splits, document, pool, b_target, state
                    )
                    sentence = split - 1  # sentences that a random B replaced begin the next chunk
                if a_start < a_end and b_start < b_end:
                    pairs[count, :4] = _truncate(a_start, a_end, b_start, b_end, max_tokens, state)
                    pairs[count, 4] = label
                    pairs[count, 5] = num_in_chunk == 1
                    count += 1
                chunk_start = sentence + 1
            sentence += 1
    return pairs[:count].copy()


@compiled
def _random_segment(
    sentence_splits: np.ndarray,
    document_splits: np.ndarray,
    document: int,
    pool: np.ndarray,
    target: int,
    state: np.ndarray,
) -> tuple[int, int]:
    """Return start and end, in tokens, of a random segment: whole sentences of a random document of
    the pool other than `document`, from a random sentence on, until they have `target` tokens or
    the document ends.
    """
    other = document
    while other == document:
        other = pool[draw_integer(state, 0, len(pool) - 1)]
    begin = draw_integer(state, document_splits[other], document_splits[other + 1] - 1)
    end = begin + 1
    while (
        end < document_splits[other + 1] and sentence_splits[end] - sentence_splits[begin] < target
    ):
        end += 1
    return sentence_splits[begin], sentence_splits[end]


@compiled
def _truncate(
    a_start: int, a_end: int, b_start: int, b_end: int, max_tokens: int, state: np.ndarray
) -> tuple[int, int, int, int]:
    """Drop one token at a time from the longer segment (B when equal), at its front or back at
    random, until A and B together have at most max_tokens. Return the new starts and ends.
    """
    while a_end - a_start + b_end - b_start > max_tokens:
        front = draw(state) >> np.uint64(63) == 1
        if a_end - a_start > b_end - b_start:
            if front:
                a_start += 1
            else:
                a_end -= 1
        elif front:
            b_start += 1
        else:
            b_end -= 1
    return a_start, a_end, b_start, b_end


@compiled
def make_rows(
    ids: np.ndarray,
    pieces: np.ndarray,
    ends: np.ndarray,
    row_splits: np.ndarray,
    max_seq_length: int,
    cls_id: int,
    sep_id: int,
    kind: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Copy pieces of ids to rows, with [CLS] and [SEP]; row i has the pieces row_splits[i] :
    row_splits[i + 1].

    pieces: (K, 2), start and end of each piece in ids. ends: (K,) bool, whether a piece ends its
    document. kind: index in FRAME_KINDS, which decides where [CLS] and [SEP] stand.
    Return input_ids (N, S), lengths (N,) and sequence_ids (N, S), int32, as in Tokens.
    """
    num_rows = len(row_splits) - 1
    input_ids = np.zeros((num_rows, max_seq_length), np.int32)
    sequence_ids = np.zeros((num_rows, max_seq_length), np.int32)
    lengths = np.empty(num_rows, np.int32)
    for row in range(num_rows):
        position = 0
        for piece in range(row_splits[row], row_splits[row + 1]):
            begin = position
            if kind == 0 or (kind >= 3 and piece == row_splits[row]):
                input_ids[row, position] = cls_id
                position += 1
            for token in range(pieces[piece, 0], pieces[piece, 1]):
                input_ids[row, position] = ids[token]
                position += 1
            has_sep = kind == 0 or kind >= 3 or (kind == 1 and ends[piece])
            if has_sep and position < max_seq_length:
                input_ids[row, position] = sep_id
                position += 1
            sequence_ids[row, begin:position] = 1 if kind == 3 else piece - row_splits[row] + 1
        lengths[row] = position
    return input_ids, lengths, sequence_ids
