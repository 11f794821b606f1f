"""Disentangled attention (He et al. 2021, "DeBERTa", and DeBERTa v2 and v3 in transformers): scores
depend on the tokens, as in BERT, and also on the distance between them, through a table with a row
for each distance.

The score of query i and key j is

    (Q_i K_j + Q_i KR[d] + QR[d] K_j) / sqrt(3 D),

where KR and QR are the rows of the table after a layer's own projections to keys and queries, and d
is the row for the distance i - j (`rows_of_distances`). The second term is c2p, from content to
position, the third p2c.

A query has a product with one row for each distance from S - 1 to -S, in this order. The products
with keys 0 to S - 1 are S neighbours among them, and begin one place earlier for the next query. So
the products of all queries, read as rows one place shorter, have them in the same columns: `skew`
takes them by slices alone, without indices. The queries of a block of U need S + U distances, not 2
S, which saves up to half of the products.

Legend: B batch, S sequence, H hidden, N heads, D dimensions per head, C blocks of a row, U =
S / C tokens of a block.
"""

import typing
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import fused, widened
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.embeddings import look_up
from bert_gpu.model.layers import dense, dropout, norm, sizes
from bert_gpu.model.weights import WeightSpec, norm_weights

TABLE = "embeddings/relative"
ROWS = "attention/relative"  # name, among a layer's weights, of the table's normalised rows


def relative_weights(config: ModelConfig) -> dict[str, WeightSpec]:
    """Return the specifications of the table of distances and of its normalisation; {} for a model
    without disentangled attention.
    """
    if not config.is_disentangled:
        return {}
    shape = (2 * config.num_distances, config.hidden_size)
    return {
        TABLE: WeightSpec(shape, "normal", config.initializer_range),
        **norm_weights(config, f"{TABLE}/norm", config.hidden_size),
    }


def rows_of_distances(distances: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Return the row of the table for each distance i - j from a key j to a query i: int -> int32.

    With position_buckets, distances up to half of the buckets have rows of their own, and longer
    ones up to max_relative_positions share rows on a logarithmic scale. Computed in float32, as in
    transformers.
    """
    span = config.num_distances
    middle = config.position_buckets // 2
    if middle:
        far = np.maximum(np.abs(distances), middle).astype(np.float32) / np.float32(middle)
        end = np.float32((config.max_relative_positions - 1) / middle)
        with np.errstate(divide="ignore", invalid="ignore"):  # a table of few distances
            steps = np.ceil(np.log(far) / np.log(end) * np.float32(middle - 1)) + middle
        distances = np.where(np.abs(distances) <= middle, distances, steps * np.sign(distances))
    return np.clip(distances + span, 0, 2 * span - 1).astype(np.int32)


class Distances(typing.NamedTuple):
    """The rows of the table that the distances in rows of S tokens have, counted from `first`.

    falling: int32 (2 S,), for the distances S - 1 to -S. rising: for -(S - 1) to S. first, last:
    the part of the table that is used.
    """

    falling: tf.Tensor
    rising: tf.Tensor
    first: int
    last: int


def make_distances(length: int | tf.Tensor, config: ModelConfig) -> Distances:
    """Return the Distances of rows of `length` tokens, at most config.max_position_embeddings."""
    num = length if isinstance(length, int) else config.max_position_embeddings
    rows = rows_of_distances(np.arange(-num, num + 1), config)
    first, last = int(rows[1:-1].min()), int(rows[1:-1].max())
    # the last distance belongs to no pair of tokens: it only makes their number even
    rows = np.clip(rows, first, last) - first
    begin = num - length
    falling = tf.constant(rows[-2::-1])[begin : begin + 2 * length]
    rising = tf.constant(rows[1:])[begin : begin + 2 * length]
    return Distances(falling, rising, first, last + 1)


def shared_rows(
    weights: Mapping[str, tf.Tensor], distances: Distances, config: ModelConfig, dtype: tf.DType
) -> dict[str, tf.Tensor]:
    """Return {name: used rows of the table, normalised} as a weight of each group of layers, so
    that all layers read the same rows and recomputation gives them a gradient.
    """
    table = tf.cast(weights[TABLE], dtype)[distances.first : distances.last]
    rows = norm(weights, f"{TABLE}/norm", table, config)
    return {f"layer_{group}/{ROWS}": rows for group in range(config.num_groups)}


def count_blocks(length: float | tf.Tensor) -> int:
    """Return C, the number of blocks of a row of `length` tokens."""
    return 4 if isinstance(length, int) and length % 4 == 0 else 1


class Relative(typing.NamedTuple):
    """A layer's projections of the rows for all distances, (N, 2 S, D) each: `keys` for c2p, in
    falling order, and `queries` for p2c, in rising order; [] for a term that the model lacks.
    """

    keys: list[tf.Tensor]
    queries: list[tf.Tensor]

    def products(self, q: tf.Tensor, k: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the products of queries and keys, (B, N, S, D) each, with the rows, in blocks: of
        the queries with `keys`, and of the keys with `queries`, [(B, N, C, U, S + U)] or [] each.
        """
        return (
            [block_products(q, rows) for rows in self.keys],
            [block_products(k, rows) for rows in self.queries],
        )


def block_products(x: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return the products of each block's vectors with the rows that they need: (B, N, S, D) and
    (N, 2 S, D) -> (B, N, C, U, S + U).
    """
    batch_size, num_heads, length, size = sizes(x)
    num_blocks = count_blocks(length)
    part = length // num_blocks
    # block t needs U + S rows, from that of its last vector's farthest neighbour on
    starts = [length - (block + 1) * part for block in range(num_blocks)]
    needed = [rows[:, start : start + length + part] for start in starts]
    return tf.matmul(
        tf.reshape(x, [batch_size, num_heads, num_blocks, part, size]),
        tf.stack(needed, 1),
        transpose_b=True,
    )


def project_rows(
    weights: Mapping[str, tf.Tensor],
    distances: Distances,
    config: ModelConfig,
    seed: tf.Tensor | None,
    dropout_key: str,
) -> Relative:
    """Return the Relative of a layer, whose own weights and ROWS are in `weights`. The rows get
    hidden dropout, drawn anew in each layer; the projections are those of the tokens.
    """
    hidden = config.hidden_size
    orders = {"p2c": distances.rising, "c2p": distances.falling}
    terms = [term for term in orders if term in config.pos_att_type]
    start = 0 if "p2c" in terms else hidden  # the kernel has columns for queries, then for keys
    part = {
        name: value[..., start : start + len(terms) * hidden]
        for name, value in weights.items()
        if name.startswith("attention/qkv/")
    }
    rows = dropout(weights[ROWS], config.hidden_dropout_prob, seed, f"{dropout_key}{ROWS}")
    projected = tf.split(dense(part, "attention/qkv", rows), len(terms), -1)
    shape = [-1, config.num_attention_heads, hidden // config.num_attention_heads]
    found: dict[str, list[tf.Tensor]] = {term: [] for term in orders}
    for term, values in zip(terms, projected, strict=True):
        by_head = tf.reshape(look_up(values, orders[term]), shape)
        found[term].append(tf.transpose(by_head, [1, 0, 2]))
    return Relative(found["c2p"], found["p2c"])


def skew(products: tf.Tensor) -> tf.Tensor:
    """Return, of the products with the distances that a block needs, those with the S keys: (B, N,
    C, U, S + U) -> (B, N, S, S), column j of a block's row i from column U - 1 - i + j.
    """
    batch_size, num_heads, num_blocks, part, width = sizes(products)
    start = [batch_size, num_heads, num_blocks]
    flat = tf.reshape(products, [*start, part * width])
    shorter = flat[..., part - 1 : part - 1 + part * (width - 1)]
    columns = tf.reshape(shorter, [*start, part, width - 1])[..., : width - part]
    return tf.reshape(columns, [batch_size, num_heads, num_blocks * part, width - part])


def unskew(gradient: tf.Tensor, num_blocks: int) -> tf.Tensor:
    """Return the gradient of the argument of `skew`, with C = `num_blocks`: (B, N, S, S) -> (B, N,
    C, U, S + U).
    """
    batch_size, num_heads, length, _ = sizes(gradient)
    part = length // num_blocks
    start = [batch_size, num_heads, num_blocks]
    others = [[0, 0]] * len(start)
    blocks = tf.reshape(gradient, [*start, part, length])
    wide = tf.pad(blocks, [*others, [0, 0], [0, part - 1]])
    flat = tf.reshape(wide, [*start, part * (length + part - 1)])
    flat = tf.pad(flat, [*others, [part - 1, 1]])
    return tf.reshape(flat, [*start, part, length + part])


def _turned(x: tf.Tensor) -> tf.Tensor:
    return tf.transpose(x, [0, 1, 3, 2])


@fused
def masked_sum(
    scores: tf.Tensor,
    c2p: Sequence[tf.Tensor],
    p2c: Sequence[tf.Tensor],
    scale: tf.Tensor | float,
    bias: tf.Tensor,
) -> tf.Tensor:
    """Return the attention scores, float32 (B, N, S, S), from the products of queries and keys, (B,
    N, S, S), and those with distances, from `Relative.products`. bias: added after the sum is
    multiplied by `scale`.
    """
    total = widened(scores)
    for products in c2p:
        total += widened(skew(products))
    for products in p2c:
        total += widened(_turned(skew(products)))
    return total * scale + bias


def products_gradient(
    dscores: tf.Tensor, c2p: Sequence[tf.Tensor], p2c: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """Return the gradients of the products c2p and p2c of `masked_sum` from that of the scores. Not
    fused, because XLA on CPUs takes longer.
    """
    return [
        *(unskew(dscores, products.shape[2]) for products in c2p),
        *(unskew(_turned(dscores), products.shape[2]) for products in p2c),
    ]
