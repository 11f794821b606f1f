"""AdamW with both moments in 8 bits: block-wise dynamic quantisation (Dettmers et al. 2022, arXiv
2110.02861).

A moment is cut into blocks; each block stores its largest magnitude in float32 and every element as
the nearest of 256 values, which the dynamic tree data type spreads over seven decades. Each update
decodes the moments, computes in float32 and encodes them again, so 8 bits are only a storage
format. Encoding needs no search: the leading bits of an element select a cell, an interval with at
most one midpoint between the values of two codes. Embeddings keep 32-bit moments, as the paper
recommends (section 2.3), and so do weights too small to matter.

Legend: N elements of a weight, B elements of a block, K = ceil(N / B) blocks.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.optim import adam, adamw, interface
from bert_gpu.optim.interface import Slot, is_decayed

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow")

SUMMARY = "AdamW with both moments in 8 bits, a quarter of its memory (Dettmers et al. 2022)"
Settings = adam.Settings
corrections = adam.corrections

# min_8bit_size of bitsandbytes, the software of the paper. Smaller tensors save next to nothing.
MIN_QUANTIZED_SIZE = 4096
BLOCK_SIZE = 2048  # B, from Dettmers et al. 2022
SMALLEST = np.float32(np.finfo(np.float32).tiny)  # the least divisor of a block, against 0 / 0

# A cell is 1 / 128 of a binade [2^k, 2^(k + 1)), because its index drops the last 16 of 23 bits of
# the mantissa. Cells cover the 23 binades of [2^-23, 1), and 1 has its own cell; smaller magnitudes
# belong to the first cell.
CELL_SHIFT = 16
FIRST_BINADE = np.float32(2.0**-23).view(np.int32)
ONE = np.float32(1.0).view(np.int32)


@dataclasses.dataclass(frozen=True)
class Traits(interface.Traits):
    """The traits of a weight. is_quantized: whether its moments are stored in 8 bits."""

    is_quantized: bool


def traits(name: str, shape: tuple[int, ...], config: Settings) -> Traits:
    """Return the traits of the weight `name`: large enough matrices other than embeddings are
    quantised.
    """
    is_large_matrix = len(shape) >= 2 and math.prod(shape) >= MIN_QUANTIZED_SIZE
    return Traits(is_decayed(name, config), is_large_matrix and "embedding" not in name)


@functools.lru_cache
def dynamic_map(signed: bool) -> np.ndarray:
    """Return the 256 values of the dynamic tree data type, ascending, float32 in [-1, 1] or [0, 1]
    (the paper's sections 1.3, 2.2).

    A code has a sign, leading zeros that count its decade, and a mantissa in the remaining bits:
    each lower decade has one bit of mantissa less. A mantissa of k bits stands for the middle of
    one of 2^k equal intervals of [0.1, 1], scaled to the decade. The unsigned type uses the sign
    bit for the mantissa. The two remaining codes are 0 and 1, so the signed type has no -1.
    """
    parts = []
    for decade in range(7):
        num_intervals = 2 ** (decade + (not signed))
        edges = np.linspace(0.1, 1.0, num_intervals + 1)
        parts.append((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6))
    magnitudes = np.concatenate(parts)
    return np.concatenate([-magnitudes[::-1] if signed else [], [0.0], magnitudes, [1.0]]).astype(
        np.float32
    )


@functools.lru_cache
def lookup(signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (cells, midpoints), the tables by which `encode` finds the code of a magnitude. cells:
    for each cell, the code of its lowest value, int32. midpoints: for each code, the magnitude at
    which the next code begins, float32.
    """
    # the values from 0 to 1, without the negative ones of the signed type
    magnitudes = dynamic_map(signed)[127 if signed else 0 :].astype(np.float64)
    midpoints = ((magnitudes[:-1] + magnitudes[1:]) / 2).astype(np.float32)
    lowest = np.arange(FIRST_BINADE, ONE + 1, 1 << CELL_SHIFT, dtype=np.int32).view(np.float32)
    cells = np.searchsorted(midpoints, lowest, side="right").astype(np.int32)
    assert np.all(np.diff(cells) <= 1), "a cell with two midpoints"
    return cells, np.append(midpoints, np.float32(np.inf))


def encode(blocks: tf.Tensor, signed: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the code nearest to each element, and the largest magnitude of each block: blocks
    float32 (K, B) -> uint8 (K, B), float32 (K,). signed: whether elements may be negative.
    """
    absmax = tf.reduce_max(tf.abs(blocks), axis=1)
    normed = blocks / tf.maximum(absmax, SMALLEST)[:, None]
    magnitude = tf.abs(normed)
    cells, midpoints = lookup(signed)
    bits = tf.bitcast(tf.maximum(magnitude, FIRST_BINADE.view(np.float32)), tf.int32)
    # The minimum clamps the index, so that NaN does not read beyond the table.
    cell = tf.minimum(tf.bitwise.right_shift(bits - FIRST_BINADE, CELL_SHIFT), len(cells) - 1)
    code = tf.gather(tf.constant(cells), cell)
    code += tf.cast(magnitude >= tf.gather(tf.constant(midpoints), code), tf.int32)
    if signed:
        code = tf.where(normed < 0.0, 127 - tf.minimum(code, 127), 127 + code)
    return tf.cast(code, tf.uint8), absmax


def decode(codes: tf.Tensor, absmax: tf.Tensor, signed: bool) -> tf.Tensor:
    """Return the values for which codes stand: codes uint8 (K, B), largest magnitudes of the blocks
    float32 (K,) -> float32 (K, B).
    """
    return tf.gather(tf.constant(dynamic_map(signed)), tf.cast(codes, tf.int32)) * absmax[:, None]


def to_blocks(tensor: tf.Tensor, block_size: int) -> tf.Tensor:
    """Return a tensor of N elements cut into blocks, (K, B), the last one padded with zeros. B is
    block_size, or N if that is smaller.
    """
    flat = tf.reshape(tensor, [-1])
    size = flat.shape[0]
    block_size = min(block_size, size)
    missing = -size % block_size
    if missing:
        flat = tf.pad(flat, [[0, missing]])
    return tf.reshape(flat, [-1, block_size])


def from_blocks(blocks: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    """Return the tensor of this shape that `to_blocks` has cut into blocks."""
    flat = tf.reshape(blocks, [-1])
    size = math.prod(shape)
    return tf.reshape(flat if flat.shape[0] == size else flat[:size], shape)


def slots(traits: Traits, shape: tuple[int, ...], config: Settings) -> dict[str, Slot]:
    """Return {slot: Slot} of one weight: for each moment, codes in the weight's shape and the
    largest magnitude of each block; for a weight that is not quantised, AdamW's slots.
    """
    if not traits.is_quantized:
        return adamw.slots(traits, shape, config)
    num_blocks = math.ceil(math.prod(shape) / BLOCK_SIZE)
    return {
        "mean_codes": Slot(shape, np.uint8, 127),
        "mean_absmax": Slot((num_blocks,)),
        "square_codes": Slot(shape, np.uint8, 0),
        "square_absmax": Slot((num_blocks,)),
    }


def step(
    traits: Traits,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor,
    corrections: Sequence[tf.Tensor | float],
    config: Settings,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return (weight, state) after one update of a weight by AdamW with 8-bit moments; arguments as
    for `step` in interface.py.
    """
    if not traits.is_quantized:
        return adamw.step(traits, weight, gradient, state, learning_rate, corrections, config)
    shape = tuple(weight.shape)

    def read(moment: str, signed: bool) -> tf.Tensor:
        blocks = decode(
            to_blocks(state[f"{moment}_codes"], BLOCK_SIZE),
            state[f"{moment}_absmax"],
            signed,
        )
        return from_blocks(blocks, shape)

    def quantize(moment: str, values: tf.Tensor, signed: bool) -> dict[str, tf.Tensor]:
        codes, absmax = encode(to_blocks(values, BLOCK_SIZE), signed)
        return {f"{moment}_codes": from_blocks(codes, shape), f"{moment}_absmax": absmax}

    first_moment, second_moment = adam.moments(
        read("mean", True), read("square", False), gradient, config
    )
    weight = weight - learning_rate * adam.direction(
        traits, weight, first_moment, second_moment, corrections, config
    )
    return weight, quantize("mean", first_moment, True) | quantize("square", second_moment, False)
