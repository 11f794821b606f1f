"""Stateless random bits: every draw is a hash of a key that names its purpose, so nothing has to be
saved and the order of draws does not matter.

The hash is SplitMix64's finaliser (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
generators"). There are three versions, for Python and NumPy (keys) and Numba (masks, and the
sequential draws of NSP); a test checks that they give the same bits.
"""

import zlib

import numpy as np
import numpy.typing as npt

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


@compiled
def mix(x: np.uint64) -> np.uint64:
    """Return the hash of 64 bits, as `mix_int` does."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(MULTIPLIERS[0])
    x = (x ^ (x >> np.uint64(27))) * np.uint64(MULTIPLIERS[1])
    return x ^ (x >> np.uint64(31))


@compiled
def column_bits(key: np.uint64, column: int, stream: int) -> np.int64:
    """Return 31 random bits: a hash of a row's key, a column and `stream`, a small number for each
    kind of draw.
    """
    counter = np.uint64(column + 1 + (stream << 32))
    return np.int64(mix(key + counter * np.uint64(GOLDEN)) >> np.uint64(33))


@compiled
def draw(state: np.ndarray) -> np.uint64:
    """Return the next 64 random bits of a sequence. `state` is a (1,) uint64 array that starts at
    the key.
    """
    state[0] += np.uint64(GOLDEN)
    return mix(state[0])


@compiled
def draw_integer(state: np.ndarray, low: int, high: int) -> np.int64:
    """Return an integer in [low, high], both included, as Python's randint."""
    return low + np.int64((draw(state) >> np.uint64(11)) % np.uint64(high - low + 1))


@compiled
def draw_uniform(state: np.ndarray) -> float:
    """Return a float in [0, 1)."""
    return np.float64(draw(state) >> np.uint64(11)) * (1.0 / 9007199254740992.0)
