"""Chooses the tokens that a model must predict and masks them, in loops that Numba compiles.

The same algorithm masks rows when records are written (static) and when they are read (dynamic).
The masks of a row depend on its key alone, not on its batch. Counts and shares are Google's
(create_masked_lm_predictions in google-research/bert): min(P, max(1, round(length * share))) tokens
a row, never [CLS] or [SEP]; of the predicted tokens 80 % become [MASK], 10 % stay, 10 % become a
random id of the whole vocabulary.

Legend: B rows, S row length, P predictions a row.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bert_gpu.base.compiled import compiled
from bert_gpu.data.random_bits import column_bits

if TYPE_CHECKING:
    from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# Streams of random bits, one for each kind of draw in a row.
CHOICE, ACTION, REPLACEMENT, SPAN = 0, 1, 2, 3
GEOMETRIC = 0.2  # SpanBERT's parameter of the geometric distribution of span lengths
# draws below these become [MASK], or stay; other tokens become random
MASKED, UNCHANGED = int(0.8 * 2**31), int(0.9 * 2**31)
LOW_BITS = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingSpec:
    """The settings of masking.

    whole_word: whether all pieces of a word are masked or none.
    max_ngram_size: above 1, spans of up to that many whole words are masked together.
    ngram_weights: the weights with which lengths n of spans are drawn, 1/n ("inverse", Model
    Garden) or, in data sets of revision 6ecee0dd, (1 - 0.2)**(n - 1) ("geometric", SpanBERT section
    3.1).
    blank_ids: the ids below vocab_size without a piece, which are never drawn.
    """

    max_predictions: int
    share: float
    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    whole_word: bool = False
    max_ngram_size: int = 1
    ngram_weights: str = "inverse"
    blank_ids: tuple[int, ...] = ()

    @classmethod
    def from_settings(
        cls, settings: Mapping[str, Any], max_predictions: int, tokenizer: "Tokenizer"
    ) -> "MaskingSpec":
        """Return the MaskingSpec of a data set. settings: {name: value} with at least the names in
        manifest.FOR_MASKING.
        """
        return cls(
            max_predictions=max_predictions,
            share=settings["masked_lm_prob"],
            vocab_size=tokenizer.vocab_size,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            mask_id=tokenizer.mask_id,
            whole_word=settings["do_whole_word_mask"],
            max_ngram_size=settings["max_ngram_size"],
            ngram_weights=settings.get("ngram_weights", "inverse"),
            blank_ids=tuple(index for index, piece in enumerate(tokenizer.vocab) if not piece),
        )

    @property
    def masks_words(self) -> bool:
        """Whether whole words or spans of words are masked, not single pieces."""
        return self.whole_word or self.max_ngram_size > 1

    @functools.cached_property
    def pieces(self) -> np.ndarray:
        """The ids that random tokens are drawn from, int32."""
        return np.delete(np.arange(self.vocab_size, dtype=np.int32), self.blank_ids)

    @functools.cached_property
    def span_bounds(self) -> np.ndarray:
        """The draws from which on a span has 2, 3, ... words, int64 (max_ngram_size - 1,)."""
        sizes = range(1, self.max_ngram_size + 1)
        weights = [
            1.0 / size if self.ngram_weights == "inverse" else (1.0 - GEOMETRIC) ** (size - 1)
            for size in sizes
        ]
        bounds = [int(sum(weights[:size]) / sum(weights) * 2**31) for size in sizes]
        return np.array(bounds[:-1], np.int64)


def mask_rows(
    input_ids: npt.ArrayLike,
    lengths: npt.ArrayLike,
    word_starts: npt.ArrayLike | None,
    keys: npt.ArrayLike,
    spec: MaskingSpec,
) -> dict[str, np.ndarray]:
    """Mask a batch of rows.

    Args:
      input_ids: (B, S) int32. lengths: (B,) int32, tokens that are not padding.
      word_starts: (B, S) bool, True where a piece begins a word; needed if spec.masks_words, else
        None.
      keys: (B,) uint64, for each row the key of its random draws.

    Return a dict: input_ids (B, S) int32 with masks; masked_lm_positions and masked_lm_ids (B, P)
    int32, in rising order of position and padded with 0; masked_lm_weights (B, P) float32, 1 for a
    prediction and 0 for padding.
    """
    keys = np.ascontiguousarray(keys, np.uint64)
    ranks = _ranks(keys, np.shape(input_ids)[1])
    ranks.sort()
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    values = _mask_rows(
        np.ascontiguousarray(input_ids, np.int32),
        np.ascontiguousarray(lengths, np.int32),
        np.ascontiguousarray(word_starts if spec.masks_words else [[]], bool),
        keys,
        ranks,
        spec.pieces,
        spec.span_bounds,
        spec.masks_words,
        spec.max_predictions,
        spec.share,
        np.array([spec.cls_id, spec.sep_id, spec.mask_id]),
    )
    return dict(zip(names, values, strict=True))


@compiled
def _ranks(keys: np.ndarray, length: int) -> np.ndarray:
    """Return (B, S): for each token or word of a row a number that is the larger the earlier it is
    chosen. It holds a random draw and, for equal draws, LOW_BITS - the index of the token or word.
    """
    ranks = np.empty((len(keys), length), np.int64)
    for row in range(len(keys)):
        for index in range(length):
            ranks[row, index] = (column_bits(keys[row], index, CHOICE) << 31) + LOW_BITS - index
    return ranks


@compiled
def _mask_rows(
    ids: np.ndarray,
    lengths: np.ndarray,
    word_starts: np.ndarray,
    keys: np.ndarray,
    ranks: np.ndarray,
    pieces: np.ndarray,
    span_bounds: np.ndarray,
    masks_words: bool,
    max_predictions: int,
    share: float,
    special_ids: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the values of the dict that `mask_rows` returns. ranks: (B, S), of `_ranks`, sorted.
    special_ids: of [CLS], [SEP] and [MASK].
    """
    num_rows, length = ids.shape
    masked = ids.copy()
    positions = np.zeros((num_rows, max_predictions), np.int32)
    labels = np.zeros((num_rows, max_predictions), np.int32)
    weights = np.zeros((num_rows, max_predictions), np.float32)
    for row in range(num_rows):
        key = keys[row]
        can_mask = (ids[row] != special_ids[0]) & (ids[row] != special_ids[1])
        can_mask[lengths[row] :] = False
        quota = min(max_predictions, max(1, int(np.rint(lengths[row] * share))))
        order = LOW_BITS - (ranks[row, ::-1] & LOW_BITS)
        if masks_words:
            choice = _choose_words(key, order, can_mask, word_starts[row], quota, span_bounds)
        else:
            choice = _choose_tokens(order, can_mask, quota)
        count = 0
        for column in range(length):
            if choice[column] < 0:
                continue
            action = column_bits(key, choice[column], ACTION)
            if action < MASKED:
                masked[row, column] = special_ids[2]
            elif action >= UNCHANGED:
                draw = column_bits(key, column, REPLACEMENT)
                masked[row, column] = pieces[draw % len(pieces)]
            positions[row, count] = column
            labels[row, count] = ids[row, column]
            weights[row, count] = 1.0
            count += 1
    return masked, positions, labels, weights


@compiled
def _choose_tokens(order: np.ndarray, can_mask: np.ndarray, quota: int) -> np.ndarray:
    """Choose the first `quota` tokens in `order` that can_mask, (S,) bool. Return (S,): for each
    chosen token the column whose draw decides what it becomes, its own; -1 for all others.
    """
    choice = np.full(len(order), -1, np.int64)
    for column in order:
        if quota and can_mask[column]:
            choice[column] = column
            quota -= 1
    return choice


@compiled
def _choose_words(
    key: np.uint64,
    order: np.ndarray,
    can_mask: np.ndarray,
    word_starts: np.ndarray,
    quota: int,
    span_bounds: np.ndarray,
) -> np.ndarray:
    """Choose whole words, or spans that begin at a word, in `order`, (S,) indices of words. Skip a
    word or span that would exceed the quota of tokens or overlap one already chosen. Spans do not
    cross the end of their segment.

    Return (S,): for each chosen token the column whose draw decides what it becomes, which is the
    first of its span or, without spans, its own (Google); -1 for all others. One draw decides for
    all pieces of a span whether they become [MASK], stay or become random (SpanBERT, Model Garden).
    """
    length = len(can_mask)
    firsts = np.empty(length, np.int64)  # of each word, its first column
    ends = np.empty(length, np.int64)  # of each word, the column after its last
    segments = np.empty(length, np.int64)  # of each word
    num_words = 0
    segment = 0
    for column in range(length):
        if can_mask[column]:
            # The first piece of a segment counts as the start of a word even when the word was cut.
            after_gap = column == 0 or not can_mask[column - 1]
            segment += after_gap
            if after_gap or word_starts[column]:
                firsts[num_words] = column
                segments[num_words] = segment
                num_words += 1
            ends[num_words - 1] = column + 1
    choice = np.full(length, -1, np.int64)
    for bounds in (span_bounds, span_bounds[:0]):  # spans, then single words
        for first in order:
            if first >= num_words:
                continue
            draw = column_bits(key, first, SPAN)
            last = first
            while (
                last - first < len(bounds)
                and draw >= bounds[last - first]
                and last + 1 < num_words
                and segments[last + 1] == segments[first]
            ):
                last += 1
            begin = firsts[first]
            end = ends[last]
            if end - begin <= quota and (choice[begin:end] < 0).all():
                quota -= end - begin
                for column in range(begin, end):
                    choice[column] = begin if len(span_bounds) else column
    return choice
