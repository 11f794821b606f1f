"""Texts -> the rows that BERT reads: [CLS] A [SEP], or [CLS] A [SEP] B [SEP], cut to a length.
RoBERTa's pairs have two [SEP] before B.

All rows are one flat array of tokens, with the positions where they begin, until a batch is padded.
A text that is too long loses its last tokens, or becomes what a LongTexts says.

Legend: N texts or pairs, M rows, T tokens of all rows, B batch, R rows of an example, S sequence.
"""

import typing
from collections.abc import Sequence

import numpy as np

from bert_gpu.text.long_texts import CUT, FIRST_TOKENS, LongTexts
from bert_gpu.text.tokenizers.wordpiece import Tokenizer


class Framed(typing.NamedTuple):
    """Rows of tokens.

    ids: int32 (T,), all rows concatenated. splits: int64 (M + 1,), where each row begins in ids,
    and T as the last. first_lengths: int64 (M,), number of tokens of segment 0, which precede text
    B. counts: int64 (N,), rows of each text or pair; 1 where texts are cut. num_long: number of
    texts, of pairs second texts, that do not fit into a row. num_truncated: number of texts or
    pairs of which tokens are in no row. texts: (ids, splits, kept) of texts A and of texts B: their
    tokens before they were cut, and how many each keeps, int64 (N,); of windows, and of head and
    tail, all.
    """

    ids: np.ndarray
    splits: np.ndarray
    first_lengths: np.ndarray
    counts: np.ndarray
    num_long: int
    num_truncated: int
    texts: tuple[tuple[np.ndarray, np.ndarray, np.ndarray], ...]

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each row, int64 (M,)."""
        return np.diff(self.splits)


def frame(
    tokenizer: Tokenizer,
    texts_a: Sequence[str | bytes],
    texts_b: Sequence[str | bytes] | None,
    max_seq_length: int,
    long_texts: LongTexts = FIRST_TOKENS,
) -> Framed:
    """Return texts, or pairs of texts, as rows: tokenized, truncated and joined.

    Args:
      texts_a, texts_b: N texts each; texts_b is None without pairs. max_seq_length: S, at least 2,
        or with pairs 5 (RoBERTa: 6), so that each text keeps a token.
    """
    ids_a, splits_a = tokenizer.tokenize(texts_a)
    if texts_b is None:
        ids_b = np.zeros(0, np.int32)
        splits_b = np.zeros(len(texts_a) + 1, np.int64)
    else:
        ids_b, splits_b = tokenizer.tokenize(texts_b)
    lengths_a = np.diff(splits_a)
    lengths_b = np.diff(splits_b)
    has_b = lengths_b > 0
    more = tokenizer.separators - 1
    kept_a, kept_b = truncated_lengths(lengths_a, lengths_b, max_seq_length, more)
    # of a row's last text there may be several parts
    excess_a, excess_b = np.where(has_b, 0, lengths_a - kept_a), lengths_b - kept_b
    rooms, excess = np.where(has_b, kept_b, kept_a), excess_a + excess_b
    counts, heads, skipped = long_texts.parts(rooms, excess)
    is_cut = (has_b & (kept_a < lengths_a)) | (counts - 1 < -(-excess // np.maximum(rooms, 1)))
    rows = np.repeat(np.arange(len(counts)), counts)  # (M,), the text of each row
    room_a, room_b, has_b = kept_a[rows], kept_b[rows], has_b[rows]
    first_lengths = room_a + 2 + more * has_b
    splits = np.cumsum(np.concatenate([[0], first_lengths + room_b + has_b]))
    starts = splits[:-1]
    ids = np.full(splits[-1], tokenizer.sep_id, np.int32)  # each [SEP]; all others are overwritten
    ids[starts] = tokenizer.cls_id
    skipped_a, skipped_b = np.where(has_b, 0, skipped), np.where(has_b, skipped, 0)
    ids[ranges(starts + 1, room_a)] = ids_a[places(splits_a[rows], room_a, heads, skipped_a)]
    ids[ranges(starts + first_lengths, room_b)] = ids_b[
        places(splits_b[rows], room_b, heads, skipped_b)
    ]
    texts = (
        (ids_a, splits_a, kept_a + excess_a * (long_texts.rule != CUT)),
        (ids_b, splits_b, kept_b + excess_b * (long_texts.rule != CUT)),
    )
    return Framed(
        ids, splits, first_lengths, counts, int(np.sum(excess > 0)), int(np.sum(is_cut)), texts
    )


def places(
    starts: np.ndarray, kept: np.ndarray, heads: np.ndarray, skipped: np.ndarray
) -> np.ndarray:
    """Return the integers from each of `starts` on, `kept` of them, without the `skipped` integers
    after the first `heads`, all in one array.
    """
    heads = np.minimum(heads, kept)
    begins = np.stack([starts, starts + heads + skipped], 1)
    return ranges(begins.ravel(), np.stack([heads, kept - heads], 1).ravel())


def truncated_lengths(
    lengths_a: np.ndarray, lengths_b: np.ndarray, max_seq_length: int, more: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of tokens that texts A and texts B keep, (N,) and (N,).

    Equals Google's run_classifier, which drops the last token of the longer text (on a tie: of B)
    until the row fits: a text shorter than half the room stays whole, and the other gets the rest.
    more: number of [SEP] before text B beyond the first. A row without B has one [SEP] in all.
    """
    room = np.where(lengths_b > 0, max_seq_length - 3 - more, max_seq_length - 2)
    kept_b = np.minimum(lengths_b, np.maximum(room // 2, room - lengths_a))
    return np.minimum(lengths_a, room - kept_b), kept_b


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the integers start, ..., start + length - 1 of each pair (start, length), all in one
    array.
    """
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)


def padded(
    ids: np.ndarray, splits: np.ndarray, rows: np.ndarray, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows with these indices, (B,) or (B, R), as a batch: input_ids int32, padded with
    0, and is_token bool, both (B, length) or (B, R, length). ids, splits: as in Framed.
    """
    starts = splits[rows]
    lengths = splits[rows + 1] - starts
    is_token = np.arange(length) < lengths[..., None]
    input_ids = np.zeros(is_token.shape, np.int32)
    input_ids[is_token] = ids[ranges(starts.ravel(), lengths.ravel())]
    return input_ids, is_token
