"""Computes, for packed rows, which hold several sequences, the mask of attention between tokens,
and positions that restart in each sequence.

A packed batch has sequence_ids (B, S): one id above 0 for all tokens of a sequence, which are
consecutive in the row, and 0 for padding. A few int32 ops on (B, S), which XLA compiles for any
shape, compute everything here, once for all layers.

Legend: B batch, S row length.
"""

import tensorflow as tf

from bert_gpu.model.layers import sizes


def sequence_bias(sequence_ids: tf.Tensor, positions: tf.Tensor | None = None) -> tf.Tensor:
    """Return the mask as a bias to add to attention scores: sequence_ids (B, S) -> (B, 1, S, S)
    float32, 0 between tokens of one sequence, -1e9 elsewhere. With positions, int32 (B, P), only
    for the queries at these positions: (B, 1, P, S).
    """
    query_ids = (
        sequence_ids if positions is None else tf.gather(sequence_ids, positions, batch_dims=1)
    )
    is_other = query_ids[:, None, :, None] != sequence_ids[:, None, None, :]
    return tf.where(is_other, tf.constant(-1e9), tf.constant(0.0))


def _runs(sequence_ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two int32 (B, S): for each token, which run of equal ids of its row it is in (0, 1,
    ...); and for each run of a row, the position where it begins (0 in entries without a run).
    """
    batch_size, length = sizes(sequence_ids)
    is_start = tf.concat(
        [tf.ones([batch_size, 1], tf.bool), sequence_ids[:, 1:] != sequence_ids[:, :-1]], axis=1
    )
    run = tf.cumsum(tf.cast(is_start, tf.int32), axis=1) - 1
    positions = tf.where(is_start, tf.range(length)[None], 0)
    cells = run + length * tf.range(batch_size)[:, None]
    begins = tf.math.unsorted_segment_sum(
        tf.reshape(positions, [-1]), tf.reshape(cells, [-1]), batch_size * length
    )
    return run, tf.reshape(begins, [batch_size, length])


def restarted_positions(sequence_ids: tf.Tensor) -> tf.Tensor:
    """Return the position of each token in its sequence, from 0: (B, S) -> int32 (B, S)."""
    run, begins = _runs(sequence_ids)
    return tf.range(sizes(sequence_ids)[1])[None] - tf.gather(begins, run, batch_dims=1)
