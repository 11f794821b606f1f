"""The encoder: specifications of its weights, and a pure function from weights and a batch to
hidden states.

It is BERT's (Devlin et al. 2018) unless the config says otherwise: each departure is a switch, and
any combination of switches works.

Legend: B batch, S sequence, P positions of a row, H hidden, N heads, D dimensions per head,
R = B x S rows, K sequences of a packed row.

Nothing here holds state: the training step owns the variables, reads them as tensors, casts those
of rank 2 and more to the compute dtype and calls `encode`. `encoder_weights` alone decides which
weights there are; `encode` finds them by name. BertEncoder puts these functions behind the protocol
of encoders.py.
"""

import dataclasses
import typing

import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.model import cudnn_attention
from bert_gpu.model.attention import attention_from, mask_bias, rotation, self_attention
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.embeddings import embed, embedding_products, embedding_weights
from bert_gpu.model.layers import activate, add_dropped, norm, project, select, sizes
from bert_gpu.model.packed import sequence_bias
from bert_gpu.model.recompute import recompute
from bert_gpu.model.weights import dense_products, dense_weights, norm_weights


def attention_weights(config, name):
    hidden, use_bias = config.hidden_size, config.use_bias
    return {
        **dense_weights(config, f"{name}/qkv", hidden, 3 * hidden, use_bias, num_blocks=3),
        **dense_weights(config, f"{name}/output", hidden, hidden, use_bias),
        **norm_weights(config, f"{name}/norm", hidden),
    }


def feed_forward_weights(config, name):
    hidden, use_bias = config.hidden_size, config.use_bias
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


def encoder_weights(config):
    """{name: WeightSpec} of embeddings and layers; pooler and heads are specified in heads.py.

    Layers that share weights are one group: "layer_0" is the first of config.num_groups.
    """
    specs = embedding_weights(config)
    for group in range(config.num_groups):
        specs.update(attention_weights(config, f"layer_{group}/attention"))
        specs.update(feed_forward_weights(config, f"layer_{group}/feed_forward"))
    if config.norm_first:
        specs.update(norm_weights(config, "final_norm", config.hidden_size))
    return specs


class BatchContext(typing.NamedTuple):
    """What all layers share of a batch.

    batch_size, length: B and S, ints or scalar tensors. mask: float32, (B, 1, 1, S) or (B, 1, S,
    S), added to attention scores, or cudnn_attention.Mask. rotation: cosines and sines of rotary
    positions, (S, D) each, or None.
    """

    batch_size: int | tf.Tensor
    length: int | tf.Tensor
    mask: tf.Tensor | cudnn_attention.Mask
    rotation: tuple | None

    def rows_at(self, x, positions):
        """The rows of the tokens at some positions: (R, H), int32 (B, P) -> (B x P, H)."""
        width = x.shape[-1]
        return tf.reshape(
            select(tf.reshape(x, [self.batch_size, self.length, width]), positions), [-1, width]
        )


class Readout(typing.NamedTuple):
    """The tokens of each row that are read after the last layer. In that layer only they have
    queries, residual connections and a feed-forward block; all tokens have keys and values.

    positions: int32 (B, P). mask: as in BatchContext, (B, 1, 1 or P, S). rotation: cosines and
    sines of these positions, (B, 1, P, D) each, or None.
    """

    positions: tf.Tensor
    mask: tf.Tensor
    rotation: tuple | None


def mix_values(weights, x, context, config, seed, dropout_key):
    """What each token attends to: (R, H) -> (R, H); queries, keys and values come from one
    product.
    """
    num_heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    qkv, bias = project(weights, "attention/qkv", x)
    qkv = tf.reshape(qkv, [context.batch_size, context.length, 3, num_heads, size])
    bias = [tf.reshape(b, [3, num_heads, size]) for b in bias]
    mixed = self_attention(
        qkv,
        bias,
        context.mask,
        context.rotation,
        config.attention_probs_dropout_prob,
        seed,
        f"{dropout_key}attention/probabilities",
    )
    return tf.reshape(mixed, [-1, config.hidden_size])


def read_values(weights, query_inputs, x, context, readout, config, seed, dropout_key):
    """What the tokens of a Readout, `query_inputs` (B x P, H), attend to: -> (B x P, H)."""
    num_heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    parts, widths = {}, [config.hidden_size, 2 * config.hidden_size]
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
        *projected,
        readout.mask,
        None if context.rotation is None else (readout.rotation, context.rotation),
        config.attention_probs_dropout_prob,
        seed,
        f"{dropout_key}attention/probabilities",
    )
    return tf.reshape(mixed, [-1, config.hidden_size])


def attention_block(
    weights, x, context, config, seed, dropout_key, readout=None, query_inputs=None
):
    """Self-attention: (R, H) -> (R, H) and a bias yet to be added, as `project` returns them. With
    a Readout, only of its tokens: `query_inputs` (B x P, H) -> (B x P, H).

    cuDNN's attention computes queries for all tokens, and those of a Readout are selected after it.
    """
    if readout is None:
        mixed = mix_values(weights, x, context, config, seed, dropout_key)
    elif isinstance(context.mask, cudnn_attention.Mask):
        mixed = mix_values(weights, x, context, config, seed, dropout_key)
        mixed = context.rows_at(mixed, readout.positions)
    else:
        mixed = read_values(weights, query_inputs, x, context, readout, config, seed, dropout_key)
    return project(weights, "attention/output", mixed)


def attention_products(config, num_attended):
    """Multiply-adds of `attention_block` for a token that attends to T tokens: 4 H^2 in the dense
    layers, T H in the scores and T H in mixing the values.
    """
    return (
        dense_products(attention_weights(config, "attention"))
        + 2 * num_attended * config.hidden_size
    )


def feed_forward_block(weights, x, config):
    """Two dense layers with an activation between them: (R, H) -> (R, H) and a bias yet to be
    added, as `project` returns them.
    """
    inner, bias = project(weights, "feed_forward/in", x)
    return project(weights, "feed_forward/output", activate(config.hidden_act, inner, *bias))


def feed_forward_products(config):
    """Multiply-adds of `feed_forward_block` for one token: H I + I' H; I' is I, or I / 2 with a
    gate.
    """
    return dense_products(feed_forward_weights(config, "feed_forward"))


class Products(typing.NamedTuple):
    """Multiply-adds of one token in a training step.

    embeddings: forward, before the layers. layers: forward, in all layers. recomputed: forward once
    more, in the backward pass. unread: forward, those of the layers that a token does without when
    its hidden state after the last layer is not read.
    """

    embeddings: float
    layers: float
    recomputed: float = 0
    unread: float = 0


def token_products(config, num_attended):
    """The Products of `encode` for a token that attends to `num_attended` tokens, with all
    activations kept.
    """
    layer = attention_products(config, num_attended) + feed_forward_products(config)
    return Products(embedding_products(config), config.num_hidden_layers * layer)


def unread_products(config, num_attended):
    """Multiplications that the last layer saves for a token that is not read: of
    `attention_products` all but the 2 H^2 of its key and value, and the feed-forward block.
    """
    kept = 2 * config.hidden_size**2
    return attention_products(config, num_attended) - kept + feed_forward_products(config)


def layer_weights(weights, index, config):
    """The weights of the layer at `index`, by full name; consecutive layers may share them."""
    group = f"layer_{index * config.num_groups // config.num_hidden_layers}/"
    return {name: weight for name, weight in weights.items() if name.startswith(group)}


def run_layer(weights, index, x, context, config, seed, readout=None):
    """Runs the layer at `index`: (R, H) -> (R, H), or with a Readout -> (B x P, H)."""
    own = {
        name.split("/", 1)[1]: weight
        for name, weight in layer_weights(weights, index, config).items()
    }
    dropout_key = f"layer_{index}/"

    def before(part, x):
        return norm(own, f"{part}/norm", x, config) if config.norm_first else x

    def add(part, x, change):
        x = add_dropped(x, *change, config.hidden_dropout_prob, seed, dropout_key + part)
        return x if config.norm_first else norm(own, f"{part}/norm", x, config)

    tokens, query_inputs = before("attention", x), None
    if readout is not None:
        x = context.rows_at(x, readout.positions)
        query_inputs = before("attention", x)
    change = attention_block(own, tokens, context, config, seed, dropout_key, readout, query_inputs)
    x = add("attention", x, change)
    return add("feed_forward", x, feed_forward_block(own, before("feed_forward", x), config))


def encode(
    weights,
    batch,
    config,
    *,
    dtype=tf.float32,
    seed=None,
    recompute_every=0,
    xla=False,
    attention="plain",
    positions=None,
):
    """Hidden states after the last layer.

    Args:
      weights: {name: tensor} with at least the names of `encoder_weights`; float32 or already of
        the compute dtype.
      batch: int32 "input_ids", "input_mask" (1 for tokens, 0 for padding) and "segment_ids", (B, S)
        each. With "sequence_ids" (packed.py) no token sees another sequence of its row, and
        positions restart in each: every sequence gets what it would get alone.
      dtype: compute dtype of products and activations.
      seed: int32 (2,) for dropout; None switches dropout off.
      recompute_every: k > 0 keeps one activation (R, H) for every k layers, and the backward pass
        recomputes the others (recompute.py): the same results, the activations of only k layers in
        memory at a time, at the price of one more forward pass. 0 keeps all.
      xla: whether XLA compiles this; only used where recompute_every is above 0.
      attention: "plain" or "cudnn"; "cudnn" needs XLA, a GPU, static shapes and no dropout of
        attention probabilities (cudnn_attention.py). It changes the hidden states of padding, on
        which nothing depends.
      positions: int32 (B, P): the tokens whose hidden states are wanted; None = all. They are the
        same, but the last layer computes little for the others: of a layer's 12 H^2 multiply-adds
        for each token only the 2 H^2 of keys and values.

    Returns:
      (B, S, H), or (B, P, H), in the compute dtype.
    """
    batch_size, length = sizes(batch["input_ids"])
    size = config.hidden_size // config.num_attention_heads
    if attention == "cudnn":
        mask = cudnn_attention.make_mask(batch, dtype)
    else:
        mask = (
            sequence_bias(batch["sequence_ids"])
            if "sequence_ids" in batch
            else mask_bias(batch["input_mask"])
        )
    context = BatchContext(
        batch_size,
        length,
        mask,
        rotation(length, config.max_position_embeddings, size, dtype)
        if config.position_embedding_type == "rotary"
        else None,
    )
    readout = None if positions is None else make_readout(batch, positions, context)
    last = config.num_hidden_layers - 1
    x = embed(weights, batch, config, dtype=dtype, seed=seed)
    for first in range(0, config.num_hidden_layers, recompute_every or config.num_hidden_layers):
        indices = range(
            first,
            min(first + (recompute_every or config.num_hidden_layers), config.num_hidden_layers),
        )

        def run(x, weights, seed, indices=indices):
            for index in indices:
                read = readout if index == last else None
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


def make_readout(batch, positions, context):
    """The Readout of positions (B, P) of a batch with this BatchContext."""
    mask, turned = context.mask, None
    if "sequence_ids" in batch and not isinstance(mask, cudnn_attention.Mask):
        mask = sequence_bias(batch["sequence_ids"], positions)
    if context.rotation is not None:
        turned = tuple(tf.gather(values, positions)[:, None] for values in context.rotation)
    return Readout(positions, mask, turned)


@dataclasses.dataclass(frozen=True)
class BertEncoder:
    """Our own encoder behind the protocol of encoders.py; recompute_every, attention and xla as for
    `encode`.
    """

    config: ModelConfig
    recompute_every: int = 0
    attention: str = "plain"
    xla: bool = False
    fixed_length = None

    @property
    def num_groups(self):
        return self.config.num_groups

    def weights(self):
        return encoder_weights(self.config)

    def encode(self, weights, batch, *, dtype=tf.float32, seed=None, positions=None):
        how = dict(recompute_every=self.recompute_every, attention=self.attention, xla=self.xla)
        return encode(
            weights, batch, self.config, dtype=dtype, seed=seed, positions=positions, **how
        )

    def check(self, length, precision, is_packed=False):
        positions = self.config.max_position_embeddings
        if length is not None and length > positions:
            raise UserError(
                f"rows of {length} tokens, but --max_position_embeddings={positions}", "raise it"
            )

    def cudnn_obstacle(self, **conditions):
        size = self.config.hidden_size // self.config.num_attention_heads
        return cudnn_attention.obstacle(
            size=size, dropout=self.config.attention_probs_dropout_prob, **conditions
        )

    def token_products(self, num_attended):
        products = token_products(self.config, num_attended)
        products = products._replace(unread=unread_products(self.config, num_attended))
        return products._replace(recomputed=products.layers) if self.recompute_every else products

    def for_training(self, *, recompute_every=0, attention="plain", xla=False):
        return dataclasses.replace(
            self, recompute_every=recompute_every, attention=attention, xla=xla
        )
