"""The encoder: specifications of its weights, and a pure function from weights and a batch to
hidden states.

The encoder is BERT's (Devlin et al. 2018) unless the config says otherwise: each departure from
BERT is a field of ModelConfig, and any combination of them works.

Legend: B batch, S sequence, P positions of a row, H hidden, N heads, D dimensions per head, R = B x
S rows, K sequences of a packed row.

These functions hold no state: the training step owns the variables, reads them as tensors, casts
those of rank 2 and more to the compute dtype and calls `encode`. `encoder_weights` alone decides
which weights there are; `encode` finds them by name. BertEncoder implements the protocol of
encoders.py by these functions.
"""

import dataclasses
import typing
from collections.abc import Mapping

import tensorflow as tf

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.model import cudnn_attention, disentangled
from bert_gpu.model.attention import (
    Blocks,
    attention_from,
    band,
    make_blocks,
    mask_bias,
    rotation,
    self_attention,
)
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.embeddings import embed, embedding_products, embedding_weights
from bert_gpu.model.layers import activate, add_dropped, norm, project, select, sizes
from bert_gpu.model.packed import sequence_bias
from bert_gpu.model.recompute import recompute
from bert_gpu.model.weights import WeightSpec, dense_products, dense_weights, norm_weights


def attention_weights(config: ModelConfig, name: str) -> dict[str, WeightSpec]:
    hidden = config.hidden_size
    use_bias = config.use_bias
    return {
        **dense_weights(config, f"{name}/qkv", hidden, 3 * hidden, use_bias, num_blocks=3),
        **dense_weights(config, f"{name}/output", hidden, hidden, use_bias),
        **norm_weights(config, f"{name}/norm", hidden),
    }


def feed_forward_weights(config: ModelConfig, name: str) -> dict[str, WeightSpec]:
    hidden = config.hidden_size
    use_bias = config.use_bias
    return {
        **dense_weights(
            config,
            f"{name}/in",
            hidden,
            config.intermediate_size,
            use_bias,
            num_blocks=config.intermediate_size // config.inner_size,
        ),
        **dense_weights(config, f"{name}/output", config.inner_size, hidden, use_bias),
        **norm_weights(config, f"{name}/norm", hidden),
    }


def encoder_weights(config: ModelConfig) -> dict[str, WeightSpec]:
    """Return the specifications of embeddings and layers; pooler and heads are specified in
    heads.py.

    Layers that share weights form a group. Names count groups, not layers: "layer_0" is the first
    of config.num_groups groups.
    """
    specs = embedding_weights(config) | disentangled.relative_weights(config)
    for group in range(config.num_groups):
        specs |= {
            **attention_weights(config, f"layer_{group}/attention"),
            **feed_forward_weights(config, f"layer_{group}/feed_forward"),
        }
    if config.norm_first:
        specs.update(norm_weights(config, "final_norm", config.hidden_size))
    if not config.first_norm:
        unused = "layer_0/attention/norm/"
        specs = {name: spec for name, spec in specs.items() if not name.startswith(unused)}
    return specs


LONG_ROW = 1024  # tokens of the shortest rows whose local attention is computed in blocks


class BatchContext(typing.NamedTuple):
    """The values of a batch that all layers with the same kind of attention read.

    batch_size, length: B and S. mask: float32, (B, 1, 1, S) or (B, 1, S, S), added to attention
    scores, cudnn_attention.Mask or Blocks. rotation: cosines and sines of rotary positions, (S, D)
    each; None without them. reach: number of tokens on each side to which a token attends; None =
    all. distances: those of disentangled attention; None without it.
    """

    batch_size: int | tf.Tensor
    length: int | tf.Tensor
    mask: tf.Tensor | cudnn_attention.Mask | Blocks
    rotation: tuple[tf.Tensor, tf.Tensor] | None
    reach: int | None = None
    distances: disentangled.Distances | None = None

    def rows_at(self, x: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Return the vectors in x of the tokens at some positions of each row: (R, H), int32 (B, P)
        -> (B x P, H).
        """
        width = x.shape[-1]
        return tf.reshape(
            select(tf.reshape(x, [self.batch_size, self.length, width]), positions), [-1, width]
        )


class Readout(typing.NamedTuple):
    """The tokens of each row whose hidden states are read after the last layer, such as masked
    words. The last layer computes queries, residual connections and the feed-forward block only for
    these tokens, but keys and values for all.

    positions: int32 (B, P). mask: as in BatchContext, (B, 1, 1 or P, S). rotation: cosines and
    sines of these positions, (B, 1, P, D) each.
    """

    positions: tf.Tensor
    mask: tf.Tensor | cudnn_attention.Mask
    rotation: tuple[tf.Tensor, tf.Tensor] | None


def mix_values(
    weights: Mapping[str, tf.Tensor],
    x: tf.Tensor,
    context: BatchContext,
    config: ModelConfig,
    seed: tf.Tensor | None,
    dropout_key: str,
) -> tf.Tensor:
    """Return, for each token, the mean of the values weighted by attention: x (R, H) -> (R, H).
    Queries, keys and values come from one matrix product.
    """
    num_heads = config.num_attention_heads
    size = config.hidden_size // num_heads
    qkv, bias = project(weights, "attention/qkv", x)
    qkv = tf.reshape(qkv, [context.batch_size, context.length, 3, num_heads, size])
    bias = [tf.reshape(b, [3, num_heads, size]) for b in bias]
    relative = None
    if context.distances is not None:
        relative = disentangled.project_rows(weights, context.distances, config, seed, dropout_key)
    mixed = self_attention(
        qkv,
        bias,
        context.mask,
        context.rotation,
        config.attention_probs_dropout_prob,
        seed,
        f"{dropout_key}attention/probabilities",
        relative,
    )
    return tf.reshape(mixed, [-1, config.hidden_size])


def read_values(
    weights: Mapping[str, tf.Tensor],
    query_inputs: tf.Tensor,
    x: tf.Tensor,
    context: BatchContext,
    readout: Readout,
    config: ModelConfig,
    seed: tf.Tensor | None,
    dropout_key: str,
) -> tf.Tensor:
    """Return, for each token of a Readout, the mean of the values weighted by attention: (B x P,
    H). Queries are computed from `query_inputs` (B x P, H), keys and values from x (R, H).
    """
    num_heads = config.num_attention_heads
    size = config.hidden_size // num_heads
    parts = {}
    widths = [config.hidden_size, 2 * config.hidden_size]
    for kind in ("kernel", "bias"):
        if f"attention/qkv/{kind}" in weights:
            parts[f"q/{kind}"], parts[f"kv/{kind}"] = tf.split(
                weights[f"attention/qkv/{kind}"], widths, axis=-1
            )
    projected = []
    for name, rows, length, num in (
        ("q", query_inputs, sizes(readout.positions)[1], 1),
        ("kv", x, context.length, 2),
    ):
        product, bias = project(parts, name, rows)
        product = tf.reshape(product, [context.batch_size, length, num, num_heads, size])
        projected.append((product, [tf.reshape(b, [num, num_heads, size]) for b in bias]))
    mixed = attention_from(
        projected[0],
        projected[1],
        readout.mask,
        readout.rotation,
        context.rotation,
        config.attention_probs_dropout_prob,
        seed,
        f"{dropout_key}attention/probabilities",
    )
    return tf.reshape(mixed, [-1, config.hidden_size])


def attention_block(
    weights: Mapping[str, tf.Tensor],
    x: tf.Tensor,
    context: BatchContext,
    config: ModelConfig,
    seed: tf.Tensor | None,
    dropout_key: str,
    readout: Readout | None = None,
    query_inputs: tf.Tensor | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the output of self-attention without the bias of its last dense layer, (R, H) -> (R,
    H), and this bias, [(H,)] or [], which the caller adds. With a Readout, the output is for its
    tokens only: `query_inputs` (B x P, H) -> (B x P, H).

    Attention by cuDNN, in blocks or with distances is always computed for all tokens; a Readout's
    are selected from its result.
    """
    if readout is None:
        mixed = mix_values(weights, x, context, config, seed, dropout_key)
    elif context.distances or isinstance(context.mask, (cudnn_attention.Mask, Blocks)):
        mixed = mix_values(weights, x, context, config, seed, dropout_key)
        mixed = context.rows_at(mixed, readout.positions)
    else:
        mixed = read_values(weights, query_inputs, x, context, readout, config, seed, dropout_key)
    return project(weights, "attention/output", mixed)


def attention_products(config: ModelConfig, num_attended: float) -> float:
    """Return the number of multiply-adds of `attention_block` for a token that attends to T =
    num_attended tokens: 4 H^2 in the dense layers, T H in each term of the scores and T H in mixing
    the values. The projections of the rows of distances, once for a micro-batch, are left out.
    """
    return (
        dense_products(attention_weights(config, "attention"))
        + (2 + config.num_terms) * num_attended * config.hidden_size
    )


def feed_forward_block(
    weights: Mapping[str, tf.Tensor], x: tf.Tensor, config: ModelConfig
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Return the output of two dense layers with an activation between them, without the bias of
    the second, (R, H) -> (R, H), and this bias, [(H,)] or [], which the caller adds.
    """
    inner, bias = project(weights, "feed_forward/in", x)
    return project(weights, "feed_forward/output", activate(config.hidden_act, inner, *bias))


def feed_forward_products(config: ModelConfig) -> int:
    """Return the number of multiply-adds of `feed_forward_block` for one token: H I + I' H, where I
    is config.intermediate_size and I' is I, or I / 2 with a gated activation.
    """
    return dense_products(feed_forward_weights(config, "feed_forward"))


class Products(typing.NamedTuple):
    """Numbers of multiply-adds for one token in a training step.

    embeddings: in the forward pass before the layers. layers: in the forward pass through all
    layers. recomputed: forward computation that the backward pass repeats. unread: the part of
    `layers` that is not computed for a token whose hidden state after the last layer is not read.
    """

    embeddings: float
    layers: float
    recomputed: float = 0
    unread: float = 0


def token_products(
    config: ModelConfig, num_attended: float, num_local: float | None = None
) -> Products:
    """Return the Products of `encode` for a token that attends to `num_attended` tokens, in local
    layers to `num_local` tokens (None = as many), when no activation is recomputed.
    """
    numbers = [
        num_attended if num_local is None or not config.is_local(index) else num_local
        for index in range(config.num_hidden_layers)
    ]
    layers = sum(attention_products(config, number) for number in numbers)
    layers += len(numbers) * feed_forward_products(config)
    return Products(embedding_products(config), layers, unread=unread_products(config, numbers[-1]))


def unread_products(config: ModelConfig, num_attended: float) -> float:
    """Return the number of multiply-adds that the last layer saves for a token whose hidden state
    is not read: those of the feed-forward block and of `attention_products`, except the 2 H^2 for
    the token's key and value.
    """
    key_and_value = 2 * config.hidden_size**2
    return attention_products(config, num_attended) - key_and_value + feed_forward_products(config)


def layer_weights(
    weights: Mapping[str, tf.Tensor], index: int, config: ModelConfig
) -> dict[str, tf.Tensor]:
    """Return {full name: weight} of the layer at `index`; other layers may share these weights with
    it.
    """
    group = f"layer_{index * config.num_groups // config.num_hidden_layers}/"
    return {name: weight for name, weight in weights.items() if name.startswith(group)}


def run_layer(
    weights: Mapping[str, tf.Tensor],
    index: int,
    x: tf.Tensor,
    context: BatchContext,
    config: ModelConfig,
    seed: tf.Tensor | None,
    readout: Readout | None = None,
) -> tf.Tensor:
    """Return the output of the layer at `index`: x (R, H) -> (R, H); with a Readout, only for its
    tokens, (B x P, H). weights: those of the whole encoder, or at least this layer's.
    """
    own = {
        name.split("/", 1)[1]: weight
        for name, weight in layer_weights(weights, index, config).items()
    }
    dropout_key = f"layer_{index}/"

    def before(part: str, x: tf.Tensor) -> tf.Tensor:
        has_norm = config.norm_first and f"{part}/norm/scale" in own
        return norm(own, f"{part}/norm", x, config) if has_norm else x

    def add(part: str, x: tf.Tensor, change: tuple[tf.Tensor, list[tf.Tensor]]) -> tf.Tensor:
        x = add_dropped(x, *change, config.hidden_dropout_prob, seed, dropout_key + part)
        return x if config.norm_first else norm(own, f"{part}/norm", x, config)

    tokens = before("attention", x)
    query_inputs = None
    if readout is not None:
        x = context.rows_at(x, readout.positions)
        query_inputs = before("attention", x)
    change = attention_block(own, tokens, context, config, seed, dropout_key, readout, query_inputs)
    x = add("attention", x, change)
    return add("feed_forward", x, feed_forward_block(own, before("feed_forward", x), config))


def encode(
    weights: Mapping[str, tf.Tensor],
    batch: Mapping[str, tf.Tensor],
    config: ModelConfig,
    *,
    dtype: tf.DType = tf.float32,
    seed: tf.Tensor | None = None,
    recompute_every: int = 0,
    xla: bool = False,
    attention: str = "plain",
    positions: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return the hidden states after the last layer.

    Args:
      weights: at least those of `encoder_weights`; float32 or already of the compute dtype.
      batch: int32 "input_ids", "input_mask" (1 for tokens, 0 for padding) and "segment_ids", (B, S)
        each. With "sequence_ids" (packed.py) no token sees another sequence of its row, and
        positions restart in each sequence: its hidden states are the same as without the others.
      dtype: compute dtype of products and activations.
      seed: int32 (2,) for dropout; None switches dropout off.
      recompute_every: k > 0 keeps one activation, of all B x S tokens, for every k layers, and the
        backward pass recomputes the others (recompute.py): with the same results, the activations
        of only k layers are in memory at a time, at the cost of one more forward pass. 0 keeps all.
      xla: whether XLA compiles the call; only used where recompute_every is above 0.
      attention: "plain" or "cudnn"; "cudnn" needs XLA, a GPU, static shapes and no dropout of
        attention probabilities (cudnn_attention.py). It changes the hidden states of padding, on
        which nothing depends.
      positions: int32 (B, P): the tokens whose hidden states are returned; None = all. Fewer
        positions save work and change no result: of the tokens left out, the last layer computes
        only keys and values, 2 H^2 of the 12 H^2 multiply-adds for a token.

    Returns:
      (B, S, H), or (B, P, H), in the compute dtype.
    """
    batch_size, length = sizes(batch["input_ids"])
    last = config.num_hidden_layers - 1
    contexts = {
        is_local: make_context(batch, config, dtype, attention, is_local)
        for is_local in {config.is_local(index) for index in range(last + 1)}
    }
    readout = None
    if positions is not None:
        readout = make_readout(batch, positions, contexts[config.is_local(last)])
    distances = next(iter(contexts.values())).distances
    if distances is not None:
        weights = {**weights, **disentangled.shared_rows(weights, distances, config, dtype)}
    x = embed(weights, batch, config, dtype=dtype, seed=seed)
    for first in range(0, config.num_hidden_layers, recompute_every or config.num_hidden_layers):
        indices = range(
            first,
            min(first + (recompute_every or config.num_hidden_layers), config.num_hidden_layers),
        )

        def run(
            x: tf.Tensor,
            weights: Mapping[str, tf.Tensor],
            seed: tf.Tensor | None,
            indices: range = indices,
        ) -> tf.Tensor:
            for index in indices:
                read = readout if index == last else None
                context = contexts[config.is_local(index)]
                x = run_layer(weights, index, x, context, config, seed, read)
            return x

        if recompute_every:
            own = {
                name: weight
                for index in indices
                for name, weight in layer_weights(weights, index, config).items()
            }
            x = recompute(run, x, own, seed, xla=xla)
        else:
            x = run(x, weights, seed)
    if config.norm_first:
        x = norm(weights, "final_norm", x, config)
    num_read = length if positions is None else sizes(positions)[1]
    return tf.reshape(x, [batch_size, num_read, config.hidden_size])


def is_in_blocks(length: float | tf.Tensor, reach: int) -> bool:
    """Return whether local attention is computed in blocks for rows of `length` tokens: a length
    that is known, and long enough that blocks save time (dev/measurements.md).
    """
    return isinstance(length, int) and length >= max(LONG_ROW, 4 * reach)


def make_context(
    batch: Mapping[str, tf.Tensor],
    config: ModelConfig,
    dtype: tf.DType,
    attention: str,
    is_local: bool,
) -> BatchContext:
    """Return the BatchContext of a batch for the layers with local, or with global attention;
    arguments as for `encode`. cuDNN computes global attention only.
    """
    batch_size, length = sizes(batch["input_ids"])
    ids = batch.get("sequence_ids")
    turns = None
    if config.position_embedding_type == "rotary":
        size = config.hidden_size // config.num_attention_heads
        base = (is_local and config.local_rotary_base) or config.rotary_base
        turns = rotation(length, config.max_position_embeddings, size, dtype, base)
    distances = disentangled.make_distances(length, config) if config.is_disentangled else None
    if attention == "cudnn" and not is_local:
        return BatchContext(batch_size, length, cudnn_attention.make_mask(batch, dtype), turns)
    reach = config.reach if is_local else None
    if reach and distances is None and is_in_blocks(length, reach):
        blocks = make_blocks(batch["input_mask"] if ids is None else ids, reach)
        return BatchContext(batch_size, length, blocks, turns, reach)
    mask = mask_bias(batch["input_mask"]) if ids is None else sequence_bias(ids)
    mask = mask + band(length, reach) if reach else mask
    return BatchContext(batch_size, length, mask, turns, reach, distances)


def make_readout(
    batch: Mapping[str, tf.Tensor], positions: tf.Tensor, context: BatchContext
) -> Readout:
    """Return the Readout of the tokens at `positions`, int32 (B, P), of a batch."""
    mask = context.mask
    rotation_at_positions = None
    ids = batch.get("sequence_ids")
    if isinstance(mask, tf.Tensor) and (ids is not None or context.reach):
        mask = mask_bias(batch["input_mask"]) if ids is None else sequence_bias(ids, positions)
        mask = mask + band(context.length, context.reach, positions) if context.reach else mask
    if context.rotation is not None:
        cosines, sines = (tf.gather(values, positions)[:, None] for values in context.rotation)
        rotation_at_positions = (cosines, sines)
    return Readout(positions, mask, rotation_at_positions)


@dataclasses.dataclass(frozen=True)
class BertEncoder:
    """This project's own encoder, with the methods of the Encoder protocol, which encoders.py
    documents; recompute_every, attention and xla as for `encode`.
    """

    config: ModelConfig
    recompute_every: int = 0
    attention: str = "plain"
    xla: bool = False
    fixed_length = None

    @property
    def num_groups(self) -> int:
        return self.config.num_groups

    def weights(self) -> dict[str, WeightSpec]:
        return encoder_weights(self.config)

    def encode(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        *,
        dtype: tf.DType = tf.float32,
        seed: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        return encode(
            weights,
            batch,
            self.config,
            dtype=dtype,
            seed=seed,
            positions=positions,
            recompute_every=self.recompute_every,
            attention=self.attention,
            xla=self.xla,
        )

    def check(self, length: int | None, precision: str, is_packed: bool = False) -> None:
        config = self.config
        if length is not None and length > config.num_positions:
            raise UserError(
                f"rows of {length} tokens, but "
                f"--max_position_embeddings={config.max_position_embeddings}"
                + (f", {config.first_position} of them unused" if config.first_position else ""),
                "raise it",
            )

    def cudnn_obstacle(self, **conditions: typing.Any) -> str | None:
        if self.config.is_disentangled:
            return "has no terms for distances, and this model's attention is disentangled"
        size = self.config.hidden_size // self.config.num_attention_heads
        return cudnn_attention.obstacle(
            size=size, dropout=self.config.attention_probs_dropout_prob, **conditions
        )

    def token_products(self, num_attended: float, num_local: float | None = None) -> Products:
        config = self.config
        products = token_products(config, num_attended, num_local)
        attends_for_all = config.is_disentangled
        if config.is_disentangled:  # products with S + U distances for each token, not S
            more = num_attended / disentangled.count_blocks(num_attended) * config.hidden_size
            more *= config.num_hidden_layers * config.num_terms
            products = products._replace(layers=products.layers + (num_local is None) * more)
        elif num_local is None and config.reach and is_in_blocks(num_attended, config.reach):
            products = token_products(config, num_attended, 4 * config.reach)
            attends_for_all = config.is_local(config.num_hidden_layers - 1)
        if attends_for_all and num_local is None:
            unread = unread_products(config, 0) - config.hidden_size**2
            products = products._replace(unread=unread)
        return products._replace(recomputed=products.layers) if self.recompute_every else products

    def for_training(
        self, *, recompute_every: int = 0, attention: str = "plain", xla: bool = False
    ) -> "BertEncoder":
        if attention == "cudnn" and self.config.reach:
            console.warn_once("cuDNN has no local attention; local layers use plain attention")
        return dataclasses.replace(
            self, recompute_every=recompute_every, attention=attention, xla=xla
        )
