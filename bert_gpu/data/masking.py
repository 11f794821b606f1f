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
    batch, length = tf.unstack(tf.shape(input_ids))
    columns = tf.range(length)[None, :]
    special = (input_ids == spec.cls_id) | (input_ids == spec.sep_id)
    maskable = (columns < lengths[:, None]) & ~special
    quota = tf.cast(tf.round(tf.cast(lengths, tf.float64) * spec.share), tf.int32)
    quota = tf.minimum(spec.max_predictions, tf.maximum(1, quota))
    scores = random_bits(keys, columns, CHOICE)
    width = tf.minimum(spec.max_predictions, length)
    choose = _choose_words if spec.whole_word else _choose_tokens
    positions = choose(scores, maskable, word_starts, quota, width)  # (B, width), unused ones are `length`
    positions = tf.pad(positions, [[0, 0], [0, spec.max_predictions - width]], constant_values=length)
    positions = tf.ensure_shape(positions, [None, spec.max_predictions])

    is_real = positions < length
    positions = tf.where(is_real, positions, 0)
    labels = tf.where(is_real, tf.gather(input_ids, positions, batch_dims=1), 0)
    disguise = random_bits(keys, positions, DISGUISE)
    random_ids = random_bits(keys, positions, REPLACEMENT) % spec.vocab_size
    shown = tf.where(disguise < int(0.8 * 2**31), spec.mask_id, tf.where(disguise < int(0.9 * 2**31), labels, random_ids))
    rows = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(positions))
    places = tf.boolean_mask(tf.stack([rows, positions], -1), is_real)
    return dict(
        input_ids=tf.tensor_scatter_nd_update(input_ids, places, tf.boolean_mask(shown, is_real)),
        masked_lm_positions=positions,
        masked_lm_ids=labels,
        masked_lm_weights=tf.cast(is_real, tf.float32),
    )


def _choose_tokens(scores, maskable, word_starts, quota, width):
    """Positions (B, width), rising, of the `quota` (B,) maskable tokens with the highest scores (B, S); S where there are fewer."""
    del word_starts
    best, where = tf.math.top_k(tf.where(maskable, scores, -1), k=width, sorted=True)
    taken = (tf.range(width)[None, :] < quota[:, None]) & (best >= 0)
    return tf.sort(tf.where(taken, where, tf.shape(scores)[1]), axis=1)


def _choose_words(scores, maskable, word_starts, quota, width):
    """As `_choose_tokens`, but whole words in the order of their scores, each unless it would overflow the quota."""
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
    chosen = maskable & tf.gather(word_taken, tf.maximum(word_of, 0), batch_dims=1)
    return -tf.math.top_k(-tf.where(chosen, tf.range(length)[None, :], length), k=width, sorted=True).values
