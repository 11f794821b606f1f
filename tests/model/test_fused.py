"""Functions compiled for their own sake: sums for the gradients of biases, dropout's draws, rows that have nothing to attend to."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu import fused
from bert_gpu.model import layers
from bert_gpu.model.attention import attention, mask_bias


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_gradient_of_a_bias_is_a_sum_of_columns(dtype):
    x = tf.cast(np.random.default_rng(0).standard_normal((300, 7)).astype(np.float32), dtype)
    sums = fused.column_sums(x)
    assert sums.dtype == tf.float32
    np.testing.assert_allclose(sums, np.asarray(tf.cast(x, tf.float32)).sum(0), rtol=1e-2 if dtype == "bfloat16" else 1e-4, atol=1e-3)


def test_sums_may_be_larger_than_float16():
    np.testing.assert_allclose(fused.column_sums(tf.fill([16, 2], tf.constant(30_000, tf.float16))), 16 * 30_000)


def test_draws_are_philox_numbers_of_the_seed_and_the_place():
    seed = tf.constant([3, 4])
    drawn = layers.draw_bits([5, 7], seed, "here").numpy()
    assert not np.array_equal(drawn, layers.draw_bits([5, 7], seed, "there"))
    zero = tf.bitwise.bitwise_xor(seed, seed)
    words = layers._draw(9, zero)  # of 64 bits on CPUs, twice as many of 32 on GPUs: the same numbers
    plain = tf.random.stateless_uniform([18], zero, minval=None, maxval=None, dtype=tf.uint32, alg="philox")
    np.testing.assert_array_equal(tf.reshape(tf.bitcast(words, tf.uint32), [-1]), plain)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16, tf.float16])
def test_a_row_of_padding_alone_is_finite(dtype):
    q = tf.cast(np.random.default_rng(1).standard_normal((2, 2, 5, 4)), dtype)
    bias = mask_bias(np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]))
    with tf.GradientTape() as tape:
        tape.watch(q)
        mixed = attention(q, q, q, bias, rate=0.5, seed=tf.constant([1, 2]))
    assert np.isfinite(tf.cast(mixed, tf.float32)).all() and np.isfinite(tf.cast(tape.gradient(mixed, q), tf.float32)).all()
