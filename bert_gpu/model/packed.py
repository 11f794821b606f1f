"""Rows that hold several sequences: which tokens see each other, and positions that restart.

A batch says so by sequence_ids (B, S): the same number, above 0, for the tokens of a sequence,
consecutive in the row, and 0 for padding. Everything here is made of it by a few int32 ops on (B,
S) that XLA compiles with any shape, and once for all layers.

Legend: B batch, S row length.
"""

import tensorflow as tf

from bert_gpu.model.layers import sizes


def sequence_bias(sequence_ids):
    """(B, S) -> (B, 1, S, S) float32, added to attention scores: 0 between tokens of one sequence,
    -1e9 elsewhere.
    """
    is_other = sequence_ids[:, None, :, None] != sequence_ids[:, None, None, :]
    return tf.where(is_other, tf.constant(-1e9), tf.constant(0.0))


def _runs(sequence_ids):
    """Number of each token's run of equal ids, and where each run of each row begins: int32 (B, S),
    (B, S), 0 where there are no more.
    """
    batch_size, length = sizes(sequence_ids)
    is_start = tf.concat(
        [tf.ones([batch_size, 1], tf.bool), sequence_ids[:, 1:] != sequence_ids[:, :-1]], axis=1
    )
    run = tf.cumsum(tf.cast(is_start, tf.int32), axis=1) - 1
    places = tf.where(is_start, tf.range(length)[None], 0)
    cells = run + length * tf.range(batch_size)[:, None]
    begins = tf.math.unsorted_segment_sum(
        tf.reshape(places, [-1]), tf.reshape(cells, [-1]), batch_size * length
    )
    return run, tf.reshape(begins, [batch_size, length])


def restarted_positions(sequence_ids):
    """The place of each token in its sequence, from 0: (B, S) -> int32 (B, S)."""
    run, begins = _runs(sequence_ids)
    return tf.range(sizes(sequence_ids)[1])[None] - tf.gather(begins, run, batch_dims=1)
