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

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.settings import setting
from bert_gpu.base.weight_names import layer_of
from bert_gpu.optim import adam, adamw
from bert_gpu.optim.interface import Slot, is_decayed

tf, fused = LazyModule("tensorflow"), LazyModule("bert_gpu.base.fused")

SUMMARY = "orthogonalised momentum for the matrices of the layers, AdamW for the rest (Jordan 2024)"
corrections = adam.corrections

# Kernels of rank 3 in Model Garden's layers have an axis for heads: (inputs, heads, D) of query,
# key and value, (heads, D, outputs) of the attention's output.
HEADS_LAST = re.compile(r"(query|key|value)\w*/kernel$")
HEADS_FIRST = re.compile(r"attention_output\w*/kernel$")

# Jordan 2024: of a x + b x^3 + c x^5, the coefficients with the steepest slope at 0 of which five
# steps still keep [0, 1] near 1.
A, B, C = 3.4445, -4.7750, 2.0315
NUM_ITERATIONS = 5
RMS_OF_ADAMW = 0.2  # Liu et al. 2025, 2.2: typical root mean square of AdamW's updates
SMALLEST = 1e-37  # the least divisor of a momentum, so that zeros give an update of zeros


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(adam.Settings):
    """Muon's constants, and those of the AdamW for the rest."""

    muon_momentum: float = setting(
        0.95, "Decay of Muon's momentum (Nesterov's form).", low=0.0, below=1.0
    )
    muon_lr_ratio: float = setting(
        1.0,
        "AdamW's learning rate for embeddings, norms, biases and output layers, as a share of "
        "--learning_rate.",
        above=0.0,
    )


@dataclasses.dataclass(frozen=True)
class Traits:
    """is_decayed: whether weight decay applies. num_row_axes: how many leading axes of the weight
    are rows of the matrix.
    """

    is_decayed: bool
    num_row_axes: int


def is_inner_kernel(name: str) -> bool:
    """Return whether a weight is a kernel of a layer or the transform of a head. A router of
    experts is not: it is a small output layer.
    """
    if layer_of(name) is None:
        return name.endswith("/transform/kernel")
    return re.search(r"/.+/kernel$", name) is not None and "router/" not in name


def traits(name, shape, config):
    """Traits of the weight `name`: Muon's for the matrices of the layers and of the head's
    transform.
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


def is_matrix(traits):
    return isinstance(traits, Traits)


def slots(traits, shape, config):
    """{slot: Slot} of one weight: its momentum, 4 bytes for each element."""
    if not is_matrix(traits):
        return adamw.slots(traits, shape, config)
    return {"momentum": Slot(shape)}


def sides(traits, shape, num_blocks):
    """(rows, columns) of each matrix that a weight of this shape holds."""
    rows = math.prod(shape[: traits.num_row_axes])
    return rows, math.prod(shape) // (rows * num_blocks)


def joint_shape(traits, shape, num_blocks):
    """(num_blocks, m, n) of one weight, None for AdamW's; as in interface.py."""
    return (num_blocks, *sorted(sides(traits, shape, num_blocks))) if is_matrix(traits) else None


def next_momentum(momentum, gradient, config):
    return config.muon_momentum * momentum + (1.0 - config.muon_momentum) * gradient


def joint_input(traits, gradient, state, num_blocks, config, dtype):
    """The matrices to orthogonalise for one weight: Nesterov's momentum, with a Frobenius norm of
    1 (smaller where no element reaches 1e-37).

    Arguments as in interface.py. Returns (num_blocks, m, n); matrices with more rows than columns
    are transposed.
    """
    rows, columns = sides(traits, gradient.shape, num_blocks)
    update = next_momentum(next_momentum(state["momentum"], gradient, config), gradient, config)
    blocks = tf.transpose(
        tf.reshape(update, [rows, num_blocks, columns]),
        [1, 2, 0] if rows > columns else [1, 0, 2],
    )
    # First to magnitudes up to 1: squares of others leave the range of float32.
    blocks /= tf.maximum(tf.reduce_max(tf.abs(blocks), [1, 2], keepdims=True), SMALLEST)
    norms = tf.sqrt(tf.reduce_sum(tf.square(blocks), [1, 2], keepdims=True))
    return tf.cast(blocks / tf.maximum(norms, 1.0), dtype)


def joint_work(matrices):
    """Moves the singular values of matrices from (0, 1] to about 1 by five Newton-Schulz steps:
    (K, m, n) -> (K, m, n).

    U S V^T -> U f(S) V^T, f(s) in [0.68, 1.203] where s > 0.002. The products are computed in the
    type of `matrices`; bfloat16 adds errors of about 0.1. On CPUs the matrices are taken one by
    one, several times faster than a batched product.
    """
    if not fused.has_gpu():
        return tf.stack([newton_schulz(matrix) for matrix in tf.unstack(matrices)])
    return newton_schulz(matrices)


def steps_per_gram(small, large, dtype):
    """How many steps to take with each Gram matrix x x^T, (m, m); all of them together are
    NUM_ITERATIONS.

    Until the next one only (m, m) matrices are multiplied: a step updates the Gram matrix and the
    product of factors, by which x, (m, n), is multiplied once. That is less work for wide matrices,
    but the rounding errors of small singular values grow twelvefold with each step. With all 24
    bits one Gram matrix serves five steps. With bfloat16's 8 bits a second one is needed after
    three, and the errors are about those of one for each step. TensorFloat-32, the default of
    float32 on GPUs, has 11 bits; a GPU without it does a sixth more than it would have to.
    """
    if large < 2 * small:
        return (1,) * NUM_ITERATIONS
    if dtype != tf.float32:
        return 3, 2
    has_tensor_float_32 = tf.config.experimental.tensor_float_32_execution_enabled()
    return (3, 2) if fused.has_gpu() and has_tensor_float_32 else (NUM_ITERATIONS,)


def newton_schulz(x):
    """`joint_work` for matrices (..., m, n), m <= n."""
    identity = A * tf.eye(x.shape[-2], dtype=x.dtype)

    def factor(gram):  # x -> factor(x x^T) x is a step
        return identity + B * gram + C * tf.matmul(gram, gram)

    for num_steps in steps_per_gram(*x.shape[-2:], x.dtype):
        gram = tf.matmul(x, x, transpose_b=True)
        product = step = factor(gram)
        for _ in range(1, num_steps):
            gram = tf.matmul(step, tf.matmul(gram, step))
            step = factor(gram)
            product = tf.matmul(step, product)
        x = tf.matmul(product, x)
    return x


def joint_flops(shape, dtype):
    """FLOPs of `joint_work` for inputs of shape (K, m, n), 2 for each multiply-add."""
    count, small, large = shape
    return count * sum(
        4 * small**2 * large + (8 * num_steps - 6) * small**3
        for num_steps in steps_per_gram(small, large, dtype)
    )


def step(traits, weight, gradient, state, learning_rate, corrections, config, orthogonal=None):
    """One update of one weight; arguments and results as in interface.py. orthogonal:
    (num_blocks, m, n), what `joint_work` made of the weight's `joint_input`.
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
    shape, num_blocks = tuple(weight.shape), orthogonal.shape[0]
    rows, columns = sides(traits, shape, num_blocks)
    update = tf.transpose(
        tf.cast(orthogonal, tf.float32), [2, 0, 1] if rows > columns else [1, 0, 2]
    )
    update = RMS_OF_ADAMW * math.sqrt(max(rows, columns)) * tf.reshape(update, shape)
    if traits.is_decayed:
        update += config.weight_decay_rate * weight
    momentum = next_momentum(state["momentum"], gradient, config)
    return weight - learning_rate * update, {"momentum": momentum}
