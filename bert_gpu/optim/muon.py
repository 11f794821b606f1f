"""Muon (Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
singular values are all moved to about 1, for the matrices inside the layers and the transforms of
heads.

Embeddings, norms, biases, poolers and output layers are left to AdamW. The update has the scale of
AdamW's and decoupled weight decay (Liu et al. 2025, arXiv 2502.16982, 2.2), so both share one
learning rate. A weight that holds several matrices side by side (query, key and value; value and
gate) is cut into them, and each is orthogonalised by itself.

Legend: m <= n sides of a matrix, K matrices of these sides in the whole model.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.settings import setting
from bert_gpu.base.weight_names import layer_of
from bert_gpu.optim import adam, adamw, interface
from bert_gpu.optim.interface import Slot, is_decayed

if TYPE_CHECKING:
    import tensorflow as tf

    from bert_gpu.base import fused
else:
    tf = LazyModule("tensorflow")
    fused = LazyModule("bert_gpu.base.fused")

SUMMARY = "orthogonalised momentum for the matrices of the layers, AdamW for the rest (Jordan 2024)"
corrections = adam.corrections

# Kernels of rank 3 in Model Garden's layers have an axis for heads: (inputs, heads, D) of query,
# key and value, (heads, D, outputs) of the attention's output.
HEADS_LAST = re.compile(r"(query|key|value)\w*/kernel$")
HEADS_FIRST = re.compile(r"attention_output\w*/kernel$")

# The coefficients of a x + b x^3 + c x^5, which each step applies to the singular values (Jordan
# 2024): the slope at 0 is the steepest with which five steps still move the values from (0, 1]
# close to 1.
A = 3.4445
B = -4.7750
C = 2.0315
NUM_ITERATIONS = 5
MOMENTUM = 0.95  # in Nesterov's form (Jordan 2024)
RMS_OF_ADAMW = 0.2  # typical root mean square of AdamW's updates (Liu et al. 2025, 2.2)
SMALLEST = 1e-37  # the smallest divisor of a momentum, so that zeros give an update of zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(adam.Settings):
    """The constants of Muon, and of AdamW for the other weights."""

    muon_lr_ratio: float = setting(
        1.0,
        "AdamW's learning rate for embeddings, norms, biases and output layers, as a share of "
        "--learning_rate.",
        above=0.0,
        needs=("optimizer", ("muon",)),
    )


@dataclasses.dataclass(frozen=True)
class Traits(interface.Traits):
    """The traits of a weight that Muon updates. num_row_axes: how many leading axes of the weight
    are together the rows of its matrix.
    """

    num_row_axes: int


def is_inner_kernel(name: str) -> bool:
    """Return whether a weight is a kernel inside a layer or of the transform of a head. The kernel
    of a router of experts does not count, because a router is a small output layer.
    """
    if layer_of(name) is None:
        return name.endswith("/transform/kernel")
    return re.search(r"/.+/kernel$", name) is not None and "router/" not in name


def traits(name: str, shape: tuple[int, ...], config: Settings) -> interface.Traits:
    """Return the traits of the weight `name`: Muon's for the matrices of the layers and of a head's
    transform, AdamW's for the others.
    """
    num_row_axes = 0
    if is_inner_kernel(name):
        if len(shape) == 2 or len(shape) == 3 and HEADS_LAST.search(name):
            num_row_axes = 1
        elif len(shape) == 3 and HEADS_FIRST.search(name):
            num_row_axes = 2
    if num_row_axes:
        return Traits(is_decayed(name, config), num_row_axes)
    return adamw.traits(name, shape, config)


def is_matrix(traits: interface.Traits) -> TypeGuard[Traits]:
    return isinstance(traits, Traits)


def slots(traits: interface.Traits, shape: tuple[int, ...], config: Settings) -> dict[str, Slot]:
    """Return {slot: Slot} of one weight: its momentum, 4 bytes for each element; AdamW's slots for
    a weight of AdamW.
    """
    if not is_matrix(traits):
        return adamw.slots(traits, shape, config)
    return {"momentum": Slot(shape)}


def sides(traits: Traits, shape: tuple[int, ...], num_blocks: int) -> tuple[int, int]:
    """Return (rows, columns) of each matrix that a weight of this shape holds."""
    rows = math.prod(shape[: traits.num_row_axes])
    return rows, math.prod(shape) // (rows * num_blocks)


def joint_shape(
    traits: interface.Traits, shape: tuple[int, ...], num_blocks: int
) -> tuple[int, ...] | None:
    """Return (num_blocks, m, n), the shape of a weight's part in the joint work of interface.py;
    None for a weight of AdamW.
    """
    return (num_blocks, *sorted(sides(traits, shape, num_blocks))) if is_matrix(traits) else None


def next_momentum(momentum: "tf.Tensor", gradient: "tf.Tensor", config: Settings) -> "tf.Tensor":
    return MOMENTUM * momentum + (1.0 - MOMENTUM) * gradient


def joint_input(
    traits: Traits,
    gradient: "tf.Tensor",
    state: "Mapping[str, tf.Tensor]",
    num_blocks: int,
    config: Settings,
    dtype: "tf.DType",
) -> "tf.Tensor":
    """Return the matrices to orthogonalise for one weight: Nesterov's momentum, with a Frobenius
    norm of 1 (smaller where no element reaches 1e-37).

    Arguments as in interface.py. Returns (num_blocks, m, n); matrices with more rows than columns
    are transposed.
    """
    rows, columns = sides(traits, gradient.shape, num_blocks)
    update = next_momentum(next_momentum(state["momentum"], gradient, config), gradient, config)
    blocks = tf.transpose(
        tf.reshape(update, [rows, num_blocks, columns]),
        [1, 2, 0] if rows > columns else [1, 0, 2],
    )
    # The elements are scaled to at most 1 first, so that their squares fit the range of float32.
    blocks /= tf.maximum(tf.reduce_max(tf.abs(blocks), [1, 2], keepdims=True), SMALLEST)
    norms = tf.sqrt(tf.reduce_sum(tf.square(blocks), [1, 2], keepdims=True))
    return tf.cast(blocks / tf.maximum(norms, 1.0), dtype)


def joint_work(matrices: "tf.Tensor") -> "tf.Tensor":
    """Move the singular values of matrices from (0, 1] to about 1 by five Newton-Schulz steps:
    (K, m, n) -> (K, m, n).

    U S V^T -> U f(S) V^T, f(s) in [0.68, 1.203] where s > 0.002. The products are computed in the
    type of `matrices`; bfloat16 adds errors of about 0.1. On CPUs the matrices are taken one by
    one, several times faster than a batched product.
    """
    if not fused.has_gpu():
        return tf.stack([newton_schulz(matrix) for matrix in tf.unstack(matrices)])
    return newton_schulz(matrices)


def steps_per_gram(small: int, large: int, dtype: "tf.DType") -> tuple[int, ...]:
    """Return how many Newton-Schulz steps to take with each Gram matrix x x^T, (m, m), until the
    next is computed; the numbers sum to NUM_ITERATIONS. small, large: m and n.

    Only (m, m) matrices are multiplied until the next Gram matrix: a step updates the Gram matrix
    and the product of factors, by which x, (m, n), is multiplied once. That is less work for wide
    matrices, but the rounding errors of small singular values grow twelvefold with each step. With
    the 24 bits of float32, one Gram matrix serves five steps. With the 8 bits of bfloat16 a second
    Gram matrix is needed after three steps; the errors are then about as large as with a Gram
    matrix for each step. TensorFloat-32, the default of float32 on GPUs, has 11 bits; a GPU without
    it does a sixth more work than necessary.
    """
    if large < 2 * small:
        return (1,) * NUM_ITERATIONS
    if dtype != tf.float32:
        return (3, 2)
    has_tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return (3, 2) if fused.has_gpu() and has_tensor_float_32 else (NUM_ITERATIONS,)


def newton_schulz(x: "tf.Tensor") -> "tf.Tensor":
    """Return the result of `joint_work` for a matrix or several, (..., m, n), m <= n."""
    identity = A * tf.eye(x.shape[-2], dtype=x.dtype)

    def factor(gram: "tf.Tensor") -> "tf.Tensor":  # a step maps x to factor(x x^T) x
        return identity + B * gram + C * tf.matmul(gram, gram)

    for num_steps in steps_per_gram(x.shape[-2], x.shape[-1], x.dtype):
        gram = tf.matmul(x, x, transpose_b=True)
        product = step = factor(gram)
        for _ in range(1, num_steps):
            gram = tf.matmul(step, tf.matmul(gram, step))
            step = factor(gram)
            product = tf.matmul(step, product)
        x = tf.matmul(product, x)
    return x


def joint_flops(shape: tuple[int, int, int], dtype: "tf.DType") -> int:
    """Return the FLOPs of `joint_work` for inputs of shape (K, m, n), 2 for each multiply-add."""
    count, small, large = shape
    return count * sum(
        4 * small**2 * large + (8 * num_steps - 6) * small**3
        for num_steps in steps_per_gram(small, large, dtype)
    )


def step(
    traits: interface.Traits,
    weight: "tf.Tensor",
    gradient: "tf.Tensor",
    state: "Mapping[str, tf.Tensor]",
    learning_rate: "tf.Tensor",
    corrections: "Sequence[tf.Tensor | float]",
    config: Settings,
    orthogonal: "tf.Tensor" = None,
) -> "tuple[tf.Tensor, dict[str, tf.Tensor]]":
    """Return (weight, state) after one update of a weight by Muon, or by AdamW; arguments as for
    `step` in interface.py.

    orthogonal: (num_blocks, m, n), the result of `joint_work` for the weight's `joint_input`; None
    for a weight of AdamW.
    """
    if not is_matrix(traits):
        return adamw.step(
            traits,
            weight,
            gradient,
            state,
            learning_rate * config.muon_lr_ratio,
            corrections,
            config,
        )
    shape = tuple(weight.shape)
    rows, columns = sides(traits, shape, orthogonal.shape[0])
    update = tf.transpose(
        tf.cast(orthogonal, tf.float32), [2, 0, 1] if rows > columns else [1, 0, 2]
    )
    update = RMS_OF_ADAMW * math.sqrt(max(rows, columns)) * tf.reshape(update, shape)
    if traits.is_decayed:
        update += config.weight_decay_rate * weight
    momentum = next_momentum(state["momentum"], gradient, config)
    return weight - learning_rate * update, {"momentum": momentum}
