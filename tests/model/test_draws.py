"""Dropout's random bits: a hash of index, seed and dropout_key whose masks show no correlation
where one could matter.
"""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.model import layers
from bert_gpu.train.step import fold_seed

SEED = tf.constant([3, -4])
NUM_DRAWS = 2**20


def hashed(x):
    """`layers.mix` of a Python integer."""
    for distance, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = (x ^ x >> distance) * factor % 2**32
    return x


def test_a_draw_is_the_hash_of_its_index_and_key():
    drawn = layers._draw(3, tf.constant([-2, 77])).numpy().view(np.uint32)
    assert drawn.shape == (3 * layers.DRAW_COLUMNS,)
    for index in (0, 1, 2, layers.DRAW_COLUMNS, 3 * layers.DRAW_COLUMNS - 1):
        assert drawn[index] == hashed(hashed((index - 2) % 2**32) ^ 77)


def test_draws_depend_on_seed_and_name_and_fill_any_shape():
    drawn = layers.draw_bits([5, 7], SEED, "here").numpy()
    assert drawn.dtype == np.uint16 and drawn.shape == (5, 7)
    assert not np.array_equal(drawn, layers.draw_bits([5, 7], SEED, "there"))
    assert not np.array_equal(drawn, layers.draw_bits([5, 7], SEED + 1, "here"))
    np.testing.assert_array_equal(
        drawn.ravel(), layers.draw_bits([70, 70], SEED, "here").numpy().ravel()[:35]
    )
    dynamic = tf.function(lambda shape: layers.draw_bits(tf.unstack(shape), SEED, "here"))
    np.testing.assert_array_equal(dynamic(tf.constant([5, 7])), drawn)
    compiled = tf.function(lambda seed: layers.draw_bits([5, 7], seed, "here"), jit_compile=True)
    np.testing.assert_array_equal(compiled(SEED), drawn)


@pytest.mark.parametrize("seed", [[0, 0], [1, 0], [0, 1], [-1, -1], [3, -4]])
def test_every_number_is_as_likely(seed):
    drawn = layers.draw_bits([NUM_DRAWS], tf.constant(seed), "").numpy()
    for bits in (drawn >> 8, drawn & 255):
        counts = np.bincount(bits, minlength=256)
        chi_squared = ((counts - NUM_DRAWS / 256) ** 2 / (NUM_DRAWS / 256)).sum()
        assert abs(chi_squared - 255) < 5 * np.sqrt(2 * 255)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_of_neighbours_sites_and_steps_are_independent(rate):
    """No correlation with nearby values, other sites, other micro-batches or other steps."""
    threshold, share = layers.drop_threshold(rate)

    def mask(seed, dropout_key):
        return (
            layers.draw_bits([NUM_DRAWS], seed, dropout_key).numpy() >= threshold.numpy()
        ) - share

    first, bound = mask(SEED, "layer_0/attention"), 5 * rate * (1 - rate) / np.sqrt(NUM_DRAWS)
    assert abs(first.mean()) < 5 * np.sqrt(rate * (1 - rate) / NUM_DRAWS)
    for lag in (
        1,
        2,
        3,
        63,
        64,
        127,
        128,
        768,
        1024,
        3072,
        layers.DRAW_COLUMNS,
        2 * layers.DRAW_COLUMNS,
        98304,
    ):
        assert abs((first * np.roll(first, lag)).mean()) < bound, lag
    others = [
        mask(SEED, dropout_key)
        for dropout_key in ("layer_0/feed_forward", "layer_1/attention", "embeddings")
    ]
    others += [mask(fold_seed(SEED, index), "layer_0/attention") for index in range(4)]
    others += [
        mask(SEED ^ tf.constant(flip), "layer_0/attention")
        for flip in ([1, 0], [0, 1], [0, -(2**31)], [-(2**31), 0])
    ]
    for index, other in enumerate(others):
        assert abs((first * other).mean()) < bound, index
        assert abs((first * np.roll(other, 1)).mean()) < bound, index


@pytest.mark.parametrize("word", [0, 1])
def test_each_bit_of_the_key_turns_half_of_the_bits(word):
    key = np.random.default_rng(0).integers(-(2**31), 2**31, 2).astype(np.int32)
    drawn = layers._draw(2, tf.constant(key)).numpy()
    for bit in range(32):
        other = key.view(np.uint32).copy()
        other[word] ^= np.uint32(1) << np.uint32(bit)
        turned = np.unpackbits(
            (drawn ^ layers._draw(2, tf.constant(other.view(np.int32))).numpy()).view(np.uint8)
        ).mean()
        assert abs(turned - 0.5) < 0.01, bit
