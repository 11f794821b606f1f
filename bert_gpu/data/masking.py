"""Chooses the tokens that a model must predict and masks them: batched, stateless TensorFlow ops.

The same algorithm masks rows when records are written (static) and when they are read (dynamic).
The masks of a row depend on its key alone, not on its batch. Counts and shares are Google's
(create_masked_lm_predictions in google-research/bert): min(P, max(1, round(length * share))) tokens
a row, never [CLS] or [SEP]; of the predicted tokens 80 % become [MASK], 10 % stay, 10 % become a
random id of the whole vocabulary.

Legend: B rows, S row length, P predictions a row.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from bert_gpu.data.random_bits import column_bits

if TYPE_CHECKING:
    from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# Streams of random bits, one for each kind of draw in a row.
CHOICE, ACTION, REPLACEMENT, SPAN = 0, 1, 2, 3
GEOMETRIC = 0.2  # SpanBERT's parameter of the geometric distribution of span lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingSpec:
    """The settings of masking.

    whole_word: whether all pieces of a word are masked or none.
    max_ngram_size: above 1, spans of up to that many whole words are masked together.
    ngram_weights: the weights with which lengths n of spans are drawn, 1/n ("inverse", Model
    Garden) or (1 - 0.2)**(n - 1) ("geometric", SpanBERT section 3.1).
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
            ngram_weights=settings["ngram_weights"],
            blank_ids=tuple(index for index, piece in enumerate(tokenizer.vocab) if not piece),
        )


def compile_masking(spec: MaskingSpec) -> Callable[..., dict[str, np.ndarray]]:
    """Return a compiled function that takes the other arguments of `mask_rows`, masks rows as the
    spec says, and returns NumPy arrays.
    """
    masks = functools.partial(mask_rows, spec=spec)
    compiled = tf.function(masks, autograph=False, reduce_retracing=True)

    def mask(*batch: np.ndarray) -> dict[str, np.ndarray]:
        with tf.device("CPU:0"):  # the GPU has the training step to do
            return {name: value.numpy() for name, value in compiled(*batch).items()}

    return mask


def mask_rows(
    input_ids: tf.Tensor,
    lengths: tf.Tensor,
    word_starts: tf.Tensor | None,
    keys: tf.Tensor,
    spec: MaskingSpec,
) -> dict[str, tf.Tensor]:
    """Mask a batch of rows.

    Args:
      input_ids: (B, S) int32. lengths: (B,) int32, tokens that are not padding.
      word_starts: (B, S) bool, True where a piece begins a word; needed for whole words and spans
        only, else None.
      keys: (B,) uint64, for each row the key of its random draws.

    Return a dict: input_ids (B, S) int32 with masks; masked_lm_positions and masked_lm_ids (B, P)
    int32, in rising order of position and padded with 0; masked_lm_weights (B, P) float32, 1 for a
    prediction and 0 for padding.
    """
    batch, length = tf.unstack(tf.shape(input_ids))
    columns = tf.range(length)[None, :]
    special = (input_ids == spec.cls_id) | (input_ids == spec.sep_id)
    maskable = (columns < lengths[:, None]) & ~special
    quota = tf.cast(tf.round(tf.cast(lengths, tf.float64) * spec.share), tf.int32)
    quota = tf.minimum(spec.max_predictions, tf.maximum(1, quota))
    scores = column_bits(keys, columns, CHOICE)
    width = tf.minimum(spec.max_predictions, length)
    if spec.whole_word or spec.max_ngram_size > 1:
        positions, span_keys = _choose_words(
            scores, keys, maskable, word_starts, quota, width, spec
        )
    else:
        # positions: (B, width); unused entries are `length`
        positions = _choose_tokens(scores, maskable, quota, width)
        span_keys = positions
    missing = [[0, 0], [0, spec.max_predictions - width]]
    positions = tf.ensure_shape(
        tf.pad(positions, missing, constant_values=length), [None, spec.max_predictions]
    )

    is_real = positions < length
    positions = tf.where(is_real, positions, 0)
    labels = tf.where(is_real, tf.gather(input_ids, positions, batch_dims=1), 0)
    # One draw decides for all pieces of a span whether they become [MASK], stay or become random
    # (SpanBERT, Model Garden); without spans each piece has its own draw (Google).
    action = column_bits(
        keys, tf.pad(span_keys, missing) if spec.max_ngram_size > 1 else positions, ACTION
    )
    pieces = np.delete(np.arange(spec.vocab_size, dtype=np.int32), spec.blank_ids)
    random_ids = tf.gather(pieces, column_bits(keys, positions, REPLACEMENT) % len(pieces))
    new_ids = tf.where(
        action < int(0.8 * 2**31),
        spec.mask_id,
        tf.where(action < int(0.9 * 2**31), labels, random_ids),
    )
    rows = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(positions))
    indices = tf.boolean_mask(tf.stack([rows, positions], -1), is_real)
    return dict(
        input_ids=tf.tensor_scatter_nd_update(
            input_ids, indices, tf.boolean_mask(new_ids, is_real)
        ),
        masked_lm_positions=positions,
        masked_lm_ids=labels,
        masked_lm_weights=tf.cast(is_real, tf.float32),
    )


def _choose_tokens(
    scores: tf.Tensor, maskable: tf.Tensor, quota: tf.Tensor, width: tf.Tensor
) -> tf.Tensor:
    """Return the positions (B, width), rising, of the maskable tokens with the highest scores (B,
    S), `quota` (B,) of them in each row. Unused entries are S.
    """
    best, where = tf.math.top_k(tf.where(maskable, scores, -1), k=width, sorted=True)
    is_used = (tf.range(width)[None, :] < quota[:, None]) & (best >= 0)
    return tf.sort(tf.where(is_used, where, tf.shape(scores)[1]), axis=1)


def _choose_words(
    scores: tf.Tensor,
    keys: tf.Tensor,
    maskable: tf.Tensor,
    word_starts: tf.Tensor,
    quota: tf.Tensor,
    width: tf.Tensor,
    spec: MaskingSpec,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Choose whole words, or spans of words, to mask, highest score first. Skip a word or span that
    would exceed the row's quota or overlap one already chosen.

    Return (positions, span_keys), both (B, width), S where unused: the rising positions of the
    chosen pieces, and for each piece the first position of its span.
    """
    batch, length = tf.unstack(tf.shape(scores))
    columns = tf.range(length)[None, :]
    after_gap = ~tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
    # The first piece of a segment counts as the start of a word even when the word was cut.
    starts = maskable & (word_starts | after_gap)
    # (B, S): for each piece, the index of its word in the row
    word_of = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1
    segment_of = tf.cumsum(tf.cast(maskable & after_gap, tf.int32), axis=1)

    def per_word(values: tf.Tensor, where: tf.Tensor) -> tf.Tensor:
        """Return (B, S), whose entry w is the sum of values (B, S) over the pieces of word w of the
        row at which `where` (B, S) is True.
        """
        flat = tf.where(where, word_of + tf.range(batch)[:, None] * length, batch * length)
        return tf.reshape(
            tf.math.unsorted_segment_sum(values, flat, batch * length + 1)[:-1], [batch, length]
        )

    # (B, words): number of pieces of each word
    sizes = per_word(tf.cast(maskable, tf.int32), maskable)
    num_words = tf.reduce_max(tf.reduce_sum(tf.cast(starts, tf.int32), axis=1))
    sizes = sizes[:, :num_words]
    order = tf.argsort(
        tf.where(sizes > 0, scores[:, :num_words], -1), axis=1, direction="DESCENDING", stable=True
    )
    # for each word: 0 = in no span, else 1 + index of the first word of its span
    spans = tf.zeros([batch, num_words], tf.int32)
    used = tf.zeros_like(quota)
    if spec.max_ngram_size > 1:
        segments = per_word(segment_of, starts)[:, :num_words]
        lengths = _span_lengths(column_bits(keys, columns[:, :num_words], SPAN), segments, spec)
        used, spans = _take_spans(used, spans, order, sizes, lengths, quota, spec.max_ngram_size)
    _, spans = _take_spans(used, spans, order, sizes, tf.ones_like(sizes), quota, 1)

    span_of = tf.where(
        maskable, tf.gather(spans, tf.clip_by_value(word_of, 0, num_words - 1), batch_dims=1), 0
    )
    positions = -tf.math.top_k(-tf.where(span_of > 0, columns, length), k=width, sorted=True).values
    first_of_word = per_word(tf.where(starts, columns, 0), starts)[:, :num_words]
    span_at = tf.gather(span_of, tf.minimum(positions, length - 1), batch_dims=1)
    span_keys = tf.gather(first_of_word, tf.maximum(span_at - 1, 0), batch_dims=1)
    return positions, tf.where(positions < length, span_keys, length)


def _span_lengths(bits: tf.Tensor, segments: tf.Tensor, spec: MaskingSpec) -> tf.Tensor:
    """Return (B, words), the length in words of the span that would begin at each word. Spans do
    not cross the end of their segment.

    bits: (B, words), a random draw for each word. segments: (B, words), the segment of each word.
    """
    sizes = range(1, spec.max_ngram_size + 1)
    weights = [
        1.0 / size if spec.ngram_weights == "inverse" else (1.0 - GEOMETRIC) ** (size - 1)
        for size in sizes
    ]
    bounds = [int(sum(weights[:size]) / sum(weights) * 2**31) for size in sizes]
    lengths = tf.ones_like(bits) + tf.add_n(
        [tf.cast(bits >= bound, tf.int32) for bound in bounds[:-1]]
    )
    reach = tf.ones_like(bits)
    is_same = tf.ones_like(bits, tf.bool)  # whether the next `step` words are in the same segment
    for step in sizes[:-1]:
        ahead = tf.pad(segments[:, step:], [[0, 0], [0, step]], constant_values=-1)[
            :, : tf.shape(segments)[1]
        ]
        is_same &= (ahead == segments) & (segments > 0)
        reach += tf.cast(is_same, tf.int32)
    return tf.minimum(lengths, reach)


def _take_spans(
    used: tf.Tensor,
    spans: tf.Tensor,
    order: tf.Tensor,
    sizes: tf.Tensor,
    lengths: tf.Tensor,
    quota: tf.Tensor,
    longest: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Go through the words in `order` (B, words), and take the span that begins at a word, of
    `lengths` words, if its pieces fit into the quota and it overlaps no span taken before. longest:
    the most words in a span.

    Return used (B,), the number of pieces taken in each row, and spans (B, words), for each word 1
    + index of the first word of its span, or 0 outside spans. The arguments of the same names are
    the values to begin with.
    """
    batch, num_words = tf.unstack(tf.shape(order))
    offsets = tf.range(longest)[None, :]
    # `spans` is flattened, with `longest` unused entries at the end of each row, because a window
    # of `longest` words may reach beyond the row's last word.
    padded = num_words + longest
    row_starts = (tf.range(batch) * padded)[:, None]
    ends = tf.pad(tf.cumsum(sizes, axis=1), [[0, 0], [1, 0]])
    lengths = tf.gather(lengths, order, batch_dims=1)
    num_pieces = tf.gather(ends, order + lengths, batch_dims=1) - tf.gather(
        ends, order, batch_dims=1
    )
    firsts, lengths, num_pieces = (tf.transpose(each) for each in (order, lengths, num_pieces))

    def take(
        i: tf.Tensor, used: tf.Tensor, flat: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        first = firsts[i][:, None]
        window = row_starts + first + offsets  # (B, longest)
        inside = offsets < lengths[i][:, None]
        current = tf.gather(flat, window)
        fits = (
            (num_pieces[i] > 0)
            & (used + num_pieces[i] <= quota)
            & ~tf.reduce_any(inside & (current > 0), axis=1)
        )
        written = tf.where(inside & fits[:, None], first + 1, current)
        flat = tf.tensor_scatter_nd_update(flat, window[..., None], written)
        return i + 1, used + tf.where(fits, num_pieces[i], 0), flat

    words_in_row = tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=1)
    # A row is done when not even its smallest span fits into the quota.
    smallest = tf.reduce_min(tf.where(num_pieces > 0, num_pieces, tf.int32.max // 2), axis=0)
    _, used, flat = tf.while_loop(
        lambda i, used, _: tf.reduce_any((i < words_in_row) & (used + smallest <= quota)),
        take,
        [0, used, tf.reshape(tf.pad(spans, [[0, 0], [0, longest]]), [-1])],
        parallel_iterations=1,
    )
    return used, tf.reshape(flat, [batch, padded])[:, :num_words]
