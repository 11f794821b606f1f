"""Encoders of TF Model Garden as functions on a dict of weights, so that our step, data and
checkpoints train them.

A tf_keras layer owns its variables and draws dropout from a stateful generator; our step passes
tensors and a seed to pure functions. So we build an encoder once, to learn the names, shapes and
initializers of its weights, and drop its variables. Whenever the encoder is traced, the given
tensors replace its variables, and stateless draws replace its generators.

Legend: B batch, S sequence, H hidden, V vocabulary, E width of the word embeddings.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import re
import warnings

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import compile_silently_once, custom_gradient
from bert_gpu.model.config import ENCODER_PREFIX, ModelConfig
from bert_gpu.model.encoder import token_products
from bert_gpu.model.garden_settings import activation_name, read_options, transfer
from bert_gpu.model.layers import ACTIVATIONS, dropout, select
from bert_gpu.model.weights import WeightSpec

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tf_keras
    from official.nlp.configs import encoders

SUPPORTED = (
    "bert",
    "bert_v2",
    "query_bert",
    "albert",
    "mobilebert",
    "reuse",
    "kernel",
    "bigbird",
    "fnet",
    "sparse_mixer",
)
REFUSED = {
    "funnel": "it shortens the sequence, but each masked word needs a hidden state",
    "xlnet": "it predicts words in permuted orders and needs other inputs",
    "any": "it names no encoder",
}
# Their matrices along the sequence, or their attention blocks, are built for one length:
# max_position_embeddings.
FIXED_LENGTH = ("fnet", "sparse_mixer", "bigbird")
FLOAT32_ONLY = ("mobilebert", "kernel")  # they add float32 to lower precision inside, which fails
# options that draw random numbers without our seed, or own variables that our weights do not
# replace
IMPURE = ("redraw", "use_gradient_checkpointing")
BERT_PRODUCTS = ("bert", "bert_v2", "albert")  # do the same matrix products as ours
# Model Garden's poolers, unused: our own heads make the sentence vectors
POOLERS = ("pooler_transform", "cls_transform", "pooler")


@dataclasses.dataclass(frozen=True)
class GardenEncoder:
    """An encoder of Model Garden behind the Encoder protocol (encoders.py), which documents the
    methods.

    name: the encoder's type in `official.nlp.configs.encoders`. options: (field, value) pairs of
    its own configuration.
    """

    config: ModelConfig
    name: str
    options: tuple = ()

    @property
    def flag(self):
        return f"--encoder={ENCODER_PREFIX}" + ",".join(
            [self.name, *(f"{field}={value}" for field, value in self.options)]
        )

    @property
    def shares_layers(self):
        """Whether all layers share one set of weights."""
        return self.name == "albert"

    @property
    def num_groups(self):
        return 1 if self.shares_layers else self.config.num_hidden_layers

    @property
    def fixed_length(self):
        return self.config.max_position_embeddings if self.name in FIXED_LENGTH else None

    def weights(self):
        """{name: WeightSpec}: "embeddings/word", and the others as "encoder/..." with Model
        Garden's names, without its pooler.
        """
        return dict(build(self, "float32").specs)

    def encode(self, weights, batch, *, dtype=tf.float32, seed=None, positions=None):
        """Raises UserError for rows that the encoder cannot take: packed ones, and lengths that it
        was not built for.
        """
        self.check(
            batch["input_ids"].shape[1], tf.as_dtype(dtype).name, is_packed="sequence_ids" in batch
        )
        features = dict(
            input_word_ids=batch["input_ids"],
            input_mask=batch["input_mask"],
            input_type_ids=batch["segment_ids"],
        )
        if self.fixed_length is not None:
            features = {
                name: tf.ensure_shape(x, [None, self.fixed_length]) for name, x in features.items()
            }
        built = build(self, tf.as_dtype(dtype).name)
        with built.given(weights, seed):
            hidden = built.model(features, training=seed is not None)["sequence_output"]
        hidden = tf.cast(hidden, dtype)
        return hidden if positions is None else select(hidden, positions)

    def check(self, length, precision, is_packed=False):
        positions = self.config.max_position_embeddings
        if is_packed:
            raise UserError(
                "attends across the sequences of packed rows",
                "use data of another --objective, or drop --encoder",
                setting="encoder",
                value=self.config.encoder,
            )
        if precision != "float32" and self.name in FLOAT32_ONLY:
            raise UserError(
                f"{self.flag} works only in float32",
                "give --precision=float32",
                setting="precision",
                value=precision,
            )
        if length is None:
            return
        if self.fixed_length not in (None, length):
            raise UserError(
                f"takes rows of exactly --max_position_embeddings={positions} tokens, "
                f"but these have {length}",
                "set it to the data's length, with --padding=fixed",
                setting="encoder",
                value=self.config.encoder,
            )
        if length > positions:
            raise UserError(
                f"rows of {length} tokens, but --max_position_embeddings={positions}",
                "raise it",
                setting="encoder",
                value=self.config.encoder,
            )
        if self.name == "bigbird" and length % (block := garden_config(self).get().block_size):
            raise UserError(
                f"takes rows of a multiple of {block} tokens, not of {length}",
                f"give --encoder={ENCODER_PREFIX}bigbird,block_size=N, or data of another length",
                setting="encoder",
                value=self.config.encoder,
            )

    def cudnn_obstacle(self, **conditions):
        return f"works only with our own encoder, not with {self.flag}; drop that flag"

    def token_products(self, num_attended):
        return (
            token_products(self.config, num_attended)
            if self.name in BERT_PRODUCTS and not self.options
            else None
        )

    def for_training(self, *, recompute_every=0, attention="plain", xla=False):
        if recompute_every or attention != "plain":
            raise UserError(
                f"works only with our own encoder, not with {self.flag}",
                "drop the flag",
                setting="recompute" if recompute_every else "attention",
                value=None if recompute_every else attention,
            )
        return self


def open_encoder(config):
    """The GardenEncoder of a ModelConfig with --encoder=garden:NAME[,FIELD=VALUE...]; each FIELD is
    one of Model Garden's configuration.

    Raises UserError for unknown names and fields.
    """
    # at commas outside of brackets
    name, *options = re.split(r",(?![^(\[]*[)\]])", config.encoder.removeprefix(ENCODER_PREFIX))
    named = dict(setting="encoder", value=config.encoder)
    if name in REFUSED:
        raise UserError(
            f"cannot be trained here, because {REFUSED[name]}",
            f"choose one of {', '.join(SUPPORTED)}",
            **named,
        )
    if name not in SUPPORTED:
        raise UserError("no such encoder", f"known are {', '.join(SUPPORTED)}", **named)
    pairs = read_options(config.encoder, encoders.EncoderConfig(type=name).get(), options)
    for field, value in pairs:
        if field in IMPURE and value:
            raise UserError(f"{field} is not supported here", "leave it out", **named)
    return GardenEncoder(config, name, pairs)


def garden_config(encoder):
    """Model Garden's EncoderConfig of a GardenEncoder. Raises UserError when its ModelConfig asks
    for something that the encoder does not have.
    """
    config, result = encoder.config, encoders.EncoderConfig(type=encoder.name)
    theirs = result.get()
    transfer(config, theirs, encoder.flag, shares_layers=encoder.shares_layers)
    if encoder.name == "mobilebert":  # ModelConfig has no inner width
        theirs.intra_bottleneck_size = config.hidden_size
    if encoder.name == "query_bert":  # always factorises
        theirs.embedding_size = config.embedding_width
    for field, value in encoder.options:
        setattr(theirs, field, value)
    return result


class _Model(tf_keras.layers.Layer):
    """Passes `training` down to an encoder whose own call does not take the argument."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def call(self, inputs, training=None):
        return self.encoder(inputs)


class _SeededDropout:
    """Replaces the random generator of a Dropout layer: draws from the step's seed, with another
    mask for each call.
    """

    def __init__(self, seed, dropout_key):
        self.seed, self.dropout_key, self.num_calls = seed, dropout_key, 0

    def dropout(self, inputs, rate, noise_shape=None):
        assert noise_shape is None
        self.num_calls += 1
        return dropout(inputs, rate, self.seed, f"{self.dropout_key}/{self.num_calls}")


@custom_gradient
def dense_gradient(table):
    """The identity on an embedding table. Turns gradients of lookups, which arrive as slices, into
    dense ones, summed in float32.
    """

    def gradient(upstream):
        if isinstance(upstream, tf.IndexedSlices):
            upstream = tf.math.unsorted_segment_sum(
                tf.cast(upstream.values, tf.float32), upstream.indices, table.shape[0]
            )
        return tf.cast(upstream, table.dtype)

    return tf.identity(table), gradient


class BuiltEncoder:
    """An encoder without variables.

    model: callable (features, training) -> {"sequence_output": ...}, usable only inside `given`.
    specs: {name: WeightSpec}.
    attributes: [(layer, attribute, name)] of all weights; name is None for the pooler's, because
    its output is not used.
    """

    def __init__(self, encoder, specs, attributes):
        self.model, self.specs, self.attributes = _Model(encoder), specs, attributes
        self.layers = list(encoder._flatten_layers())
        self.shapes = {
            (layer, attribute): vars(layer)[attribute].shape for layer, attribute, _ in attributes
        }
        for layer, attribute, _ in attributes:
            vars(layer)[attribute] = None
        for layer in self.layers:
            layer._trainable_weights, layer._non_trainable_weights = [], []

    @contextlib.contextmanager
    def given(self, weights, seed):
        """Within this context, the layers compute with these weights and draw dropout from this
        seed.
        """
        tensors = {
            name: dense_gradient(tensor) if tensor.shape.rank == 2 else tensor
            for name, tensor in weights.items()
        }
        inserted = []
        for layer, attribute, name in self.attributes:
            value = tf.zeros(self.shapes[layer, attribute]) if name is None else tensors[name]
            inserted.append((layer, attribute, tf.cast(value, layer.compute_dtype)))
        for index, layer in enumerate(self.layers):
            # Routers report metrics into variables, which a pure function must not write. Their
            # weight in the loss is 0.
            inserted.append((layer, "add_metric", lambda *args, **kwargs: None))
            if isinstance(layer, tf_keras.layers.Dropout):
                inserted.append(
                    (layer, "_random_generator", _SeededDropout(seed, f"garden/dropout_{index}"))
                )
        before = [
            (layer, attribute, vars(layer).get(attribute, vars)) for layer, attribute, _ in inserted
        ]
        try:
            for layer, attribute, value in inserted:
                vars(layer)[attribute] = value
            yield
        finally:
            for layer, attribute, value in before:
                if value is vars:  # marks an attribute that did not exist
                    del vars(layer)[attribute]
                else:
                    vars(layer)[attribute] = value


@functools.lru_cache(maxsize=8)
def build(encoder, dtype):
    """The BuiltEncoder of a GardenEncoder for a compute dtype ("float32", "bfloat16", "float16").

    Builds in its own thread, which has neither the graph nor the replica context in which the
    caller may be tracing.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(_build, encoder, dtype).result()


def _build(encoder, dtype):
    compile_silently_once()  # building computes, and so compiles, what is fused
    config, theirs, initializers = encoder.config, garden_config(encoder), {}

    def create(next_creator, **settings):
        # tf_keras passes partial(initializer, shape, dtype=...)
        initializer = getattr(settings["initial_value"], "func", None)
        if initializer is not None:
            shape = settings["initial_value"].args[0]
            settings["initial_value"] = lambda: tf.zeros(shape, settings.get("dtype") or tf.float32)
        variable = next_creator(**settings)
        initializers[variable.name] = initializer
        return variable

    length = config.max_position_embeddings
    features = {
        name: tf.ones([1, length], tf.int32)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    }
    features["input_type_ids"] = tf.zeros_like(features["input_type_ids"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(np.random.set_state, np.random.get_state())  # BigBird seeds it
        precision = tf_keras.mixed_precision
        stack.callback(precision.set_global_policy, precision.global_policy())
        precision.set_global_policy(dtype if dtype == "float32" else f"mixed_{dtype}")
        activations = {
            activation_name(name): _plain(function) for name, function in ACTIVATIONS.items()
        }
        stack.enter_context(tf.device("CPU:0"))
        stack.enter_context(tf_keras.utils.custom_object_scope(activations))
        stack.enter_context(tf.variable_creator_scope(create))
        tf_keras.backend.reset_uids()  # names without a count of what was built before
        try:
            network = encoders.build_encoder(theirs)
            hidden = network(features)["sequence_output"]
        except (ValueError, TypeError, ZeroDivisionError, tf.errors.OpError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"Model Garden cannot build it for this configuration: {reason}",
                setting="encoder",
                value=encoder.config.encoder,
            ) from error
    assert hidden.shape == [1, length, config.hidden_size], (encoder, hidden.shape)
    owners = {}
    for layer in network._flatten_layers():
        for attribute, value in vars(layer).items():
            if isinstance(value, tf.Variable):
                owners.setdefault(id(value), []).append((layer, attribute))
    table = network.get_embedding_table()
    specs, attributes = {}, []
    for variable in network.trainable_weights:
        path = variable.name.removesuffix(":0").removeprefix(f"{network.name}/")
        name = (
            "embeddings/word"
            if variable is table
            else None
            if path.startswith(POOLERS)
            else f"encoder/{path}"
        )
        if name is not None:
            specs[name] = _spec(variable, initializers[variable.name])
        attributes += [(layer, attribute, name) for layer, attribute in owners[id(variable)]]
    counts = collections.Counter(variable.name for variable in network.trainable_weights)
    assert max(counts.values()) == 1 and "embeddings/word" in specs, (
        encoder,
        counts.most_common(1),
    )
    return BuiltEncoder(network, specs, attributes)


def _spec(variable, initializer):
    shape = tuple(variable.shape)
    if isinstance(initializer, tf_keras.initializers.TruncatedNormal):
        return WeightSpec(shape, "normal", initializer.get_config()["stddev"])
    return WeightSpec(
        shape,
        {tf_keras.initializers.Zeros: "zeros", tf_keras.initializers.Ones: "ones"}[
            type(initializer)
        ],
    )


def _plain(function):
    """Wraps an activation in a function object, which tf_keras can serialise; it cannot serialise
    TensorFlow's functions with custom gradients.
    """
    return lambda x: function(x)
