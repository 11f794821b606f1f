"""Chooses the tokens that a model must predict and disguises them: batched, stateless TensorFlow ops.

One algorithm for both places where rows are masked: when records are written (static) and when they are read (dynamic). What a row
gets depends on its key alone, not on its batch. Counts and shares are Google's (create_masked_lm_predictions in google-research/bert):
min(P, max(1, round(length * share))) tokens a row, [CLS] and [SEP] never, and of the chosen pieces 80 % become [MASK], 10 % stay, 10 %
become a random id of the whole vocabulary.

Legend: B rows, S row length, P predictions a row.
"""

import dataclasses

import tensorflow as tf

from bert_gpu.data.chance import random_bits

# Streams of random numbers: one for each question asked of a row.
CHOICE, DISGUISE, REPLACEMENT = 0, 1, 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingSpec:
    """What masking needs to know. whole_word masks all pieces of a word or none."""

    max_predictions: int
    share: float
    vocab_size: int
    cls_id: int
    sep_id: int
    mask_id: int
    whole_word: bool = False


def mask_rows(input_ids, lengths, word_starts, keys, spec):
    """Masks a batch of rows.

    Args:
      input_ids: (B, S) int32. lengths: (B,) int32, tokens that are not padding.
      word_starts: (B, S) bool, True where a piece begins a word; only read for whole-word masking, None otherwise.
      keys: (B,) uint64 row keys. spec: MaskingSpec.

    Returns a dict: input_ids (B, S) int32 disguised; masked_lm_positions and masked_lm_ids (B, P) int32, in rising order of position and
    padded with 0; masked_lm_weights (B, P) float32, 1 for a prediction and 0 for padding.
    """
    length = tf.shape(input_ids)[1]
    columns = tf.range(length)[None, :]
    special = (input_ids == spec.cls_id) | (input_ids == spec.sep_id)
    maskable = (columns < lengths[:, None]) & ~special
    quota = tf.cast(tf.round(tf.cast(lengths, tf.float64) * spec.share), tf.int32)
    quota = tf.minimum(spec.max_predictions, tf.maximum(1, quota))
    scores = random_bits(keys, length, CHOICE)
    choose = _choose_words if spec.whole_word else _choose_tokens
    chosen = choose(scores, maskable, word_starts, quota, spec.max_predictions)  # (B, S) bool

    disguise = random_bits(keys, length, DISGUISE)
    as_mask = chosen & (disguise < int(0.8 * 2**31))
    as_random = chosen & (disguise >= int(0.9 * 2**31))
    random_ids = random_bits(keys, length, REPLACEMENT) % spec.vocab_size
    disguised = tf.where(as_mask, spec.mask_id, tf.where(as_random, random_ids, input_ids))

    # Positions in rising order: unchosen columns sort behind all chosen ones.
    width = tf.minimum(spec.max_predictions, length)
    positions = -tf.math.top_k(-tf.where(chosen, columns, length), k=width, sorted=True).values  # (B, min(P, S))
    positions = tf.pad(positions, [[0, 0], [0, spec.max_predictions - width]], constant_values=length)
    is_real = positions < length
    positions = tf.where(is_real, positions, 0)
    labels = tf.where(is_real, tf.gather(input_ids, positions, batch_dims=1), 0)
    return dict(
        input_ids=disguised,
        masked_lm_positions=positions,
        masked_lm_ids=labels,
        masked_lm_weights=tf.cast(is_real, tf.float32),
    )


def _choose_tokens(scores, maskable, word_starts, quota, max_predictions):
    """The `quota` (B,) maskable tokens with the highest scores (B, S)."""
    del word_starts
    scores = tf.where(maskable, scores, -1)
    best, where = tf.math.top_k(scores, k=tf.minimum(max_predictions, tf.shape(scores)[1]), sorted=True)
    taken = (tf.range(tf.shape(where)[1])[None, :] < quota[:, None]) & (best >= 0)
    rows = tf.broadcast_to(tf.range(tf.shape(where)[0])[:, None], tf.shape(where))
    places = tf.boolean_mask(tf.stack([rows, where], -1), taken)
    return tf.scatter_nd(places, tf.ones(tf.shape(places)[0], tf.int32), tf.shape(scores)) > 0


def _choose_words(scores, maskable, word_starts, quota, max_predictions):
    """Whole words in the order of their scores, each unless it would overflow the quota."""
    del max_predictions
    batch, length = tf.unstack(tf.shape(scores))
    # A piece at the very start of a segment counts as a word's start even when its beginning was cut off.
    after_gap = ~tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
    starts = maskable & (word_starts | after_gap)
    word_of = tf.cumsum(tf.cast(starts, tf.int32), axis=1) - 1  # (B, S), the number of the word in its row
    flat_word = tf.where(maskable, word_of + tf.range(batch)[:, None] * length, batch * length)
    sizes = tf.math.unsorted_segment_sum(tf.cast(maskable, tf.int32), flat_word, batch * length + 1)[:-1]
    sizes = tf.reshape(sizes, [batch, length])  # (B, words)
    rank = tf.where(sizes > 0, scores, -1)
    order = tf.argsort(rank, axis=1, direction="DESCENDING", stable=True)  # (B, words)
    sizes = tf.gather(sizes, order, batch_dims=1)
    num_words = tf.reduce_max(tf.reduce_sum(tf.cast(sizes > 0, tf.int32), axis=1))

    def take(i, used, taken):
        size = sizes[:, i]
        fits = (size > 0) & (used + size <= quota)
        return i + 1, used + tf.where(fits, size, 0), taken.write(i, fits)

    taken = tf.TensorArray(tf.bool, size=num_words, element_shape=[None])
    _, _, taken = tf.while_loop(lambda i, *_: i < num_words, take, [0, tf.zeros_like(quota), taken], parallel_iterations=1)
    taken = tf.transpose(tf.reshape(taken.stack(), [num_words, batch]))  # (B, num_words), in the order drawn
    rows = tf.broadcast_to(tf.range(batch)[:, None], [batch, num_words])
    places = tf.boolean_mask(tf.stack([rows, order[:, :num_words]], -1), taken)
    word_taken = tf.scatter_nd(places, tf.ones(tf.shape(places)[0], tf.int32), [batch, length]) > 0
    return maskable & tf.gather(word_taken, tf.maximum(word_of, 0), batch_dims=1)
