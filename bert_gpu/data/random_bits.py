"""Stateless random bits: every draw is a hash of a key that names its purpose, so nothing has to be
saved and the order of draws does not matter.

The hash is SplitMix64's finaliser (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators"). There are three versions, for NumPy (keys), TensorFlow (masks, in the input pipeline)
and Numba (the sequential draws of NSP); a test checks that they give the same bits.
"""

import zlib

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from bert_gpu.base.compiled import compiled

GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
MASK64 = (1 << 64) - 1


def derive_key(*parts: int | str) -> int:
    """Return one 64-bit key, a hash of integers and strings, for example derive_key(seed, "masks",
    epoch).
    """
    key = 0
    for part in parts:
        value = zlib.crc32(part.encode()) if isinstance(part, str) else int(part)
        key = mix_int((key ^ (value & MASK64)) + GOLDEN)
    return key


def mix_int(x: int) -> int:
    x &= MASK64
    x = ((x ^ (x >> 30)) * MULTIPLIERS[0]) & MASK64
    x = ((x ^ (x >> 27)) * MULTIPLIERS[1]) & MASK64
    return x ^ (x >> 31)


def row_keys(key: int, rows: npt.ArrayLike) -> np.ndarray:
    """Return (N,) uint64: for each row index in `rows` (N,) a key that depends on `key` and the
    index alone, not on the other rows.
    """
    rows = np.asarray(rows).astype(np.uint64)
    with np.errstate(over="ignore"):
        x = np.uint64(key) + (rows + np.uint64(1)) * np.uint64(GOLDEN)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
        x = (x ^ (x >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


def permutation(key: int, num_rows: int) -> np.ndarray:
    """Return the indices 0 ... num_rows - 1 in a random order that `key` decides."""
    return np.random.Generator(np.random.Philox(key=key)).permutation(num_rows)


def column_bits(keys: tf.Tensor, columns: tf.Tensor, stream: int) -> tf.Tensor:
    """Return (N, K) int32 random bits in [0, 2**31): hashes of the row keys (N,) uint64, the
    columns (N, K) or (1, K) int32, and `stream`, a small number for each kind of draw.
    """
    counters = tf.cast(columns, tf.uint64) + tf.constant(1 + (stream << 32), tf.uint64)
    x = keys[:, None] + counters * tf.constant(GOLDEN, tf.uint64)
    for shift, multiplier in zip((30, 27), MULTIPLIERS, strict=True):
        x = tf.bitwise.bitwise_xor(
            x, tf.bitwise.right_shift(x, tf.constant(shift, tf.uint64))
        ) * tf.constant(multiplier, tf.uint64)
    x = tf.bitwise.bitwise_xor(x, tf.bitwise.right_shift(x, tf.constant(31, tf.uint64)))
    return tf.cast(tf.bitwise.right_shift(x, tf.constant(33, tf.uint64)), tf.int32)


@compiled
def draw(state: np.ndarray) -> np.uint64:
    """Return the next 64 random bits of a sequence. `state` is a (1,) uint64 array that starts at
    the key.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def draw_integer(state: np.ndarray, low: int, high: int) -> np.int64:
    """Return an integer in [low, high], both included, as Python's randint."""
    return low + np.int64((draw(state) >> np.uint64(11)) % np.uint64(high - low + 1))


@compiled
def draw_uniform(state: np.ndarray) -> float:
    """Return a float in [0, 1)."""
    return np.float64(draw(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
