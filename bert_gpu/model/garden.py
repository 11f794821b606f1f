"""Encoders of TF Model Garden as functions on a dict of weights, so that they train with our
training step, data and checkpoints.

A tf_keras layer owns its variables and draws dropout from a stateful generator; our step passes
tensors and a seed to pure functions. So we build an encoder once, to read the names, shapes and
initializers of its weights, and drop its variables. Whenever the encoder is traced, the tensors of
the step replace its variables, and stateless draws replace its generators.

Legend: B batch, S sequence, H hidden, V vocabulary, E width of the word embeddings.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import compile_silently_once, custom_gradient
from bert_gpu.model.config import ENCODER_PREFIX, ModelConfig
from bert_gpu.model.encoder import Products, token_products
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
# Encoders whose matrices along the sequence, or whose attention blocks, are built for one row
# length, max_position_embeddings.
FIXED_LENGTH = ("fnet", "sparse_mixer", "bigbird")
# encoders that fail in bfloat16 and float16, because they add float32 tensors to tensors of that
# dtype
FLOAT32_ONLY = ("mobilebert", "kernel")
# Options with which an encoder draws random numbers without our seed, or has variables that our
# weights do not replace.
IMPURE = ("redraw", "use_gradient_checkpointing")
BERT_PRODUCTS = ("bert", "bert_v2", "albert")  # encoders with the same matrix products as ours
# The first parts of the names of poolers in Model Garden, which are not used: our own heads compute
# the sentence vectors.
POOLERS = ("pooler_transform", "cls_transform", "pooler")


@dataclasses.dataclass(frozen=True)
class GardenEncoder:
    """An encoder of Model Garden with the methods of the Encoder protocol, which encoders.py
    documents.

    name: the encoder's type in `official.nlp.configs.encoders`. options: (field, value) pairs of
    its own configuration.
    """

    config: ModelConfig
    name: str
    options: tuple[tuple[str, object], ...] = ()

    @property
    def flag(self) -> str:
        return f"--encoder={ENCODER_PREFIX}" + ",".join(
            [self.name, *(f"{field}={value}" for field, value in self.options)]
        )

    @property
    def shares_layers(self) -> bool:
        """Whether all layers share one set of weights."""
        return self.name == "albert"

    @property
    def num_groups(self) -> int:
        return 1 if self.shares_layers else self.config.num_hidden_layers

    @property
    def fixed_length(self) -> int | None:
        return self.config.max_position_embeddings if self.name in FIXED_LENGTH else None

    def weights(self) -> dict[str, WeightSpec]:
        """Return {name: WeightSpec}: "embeddings/word", and "encoder/NAME" for Model Garden's other
        weights, without those of its pooler.
        """
        return dict(build(self, "float32").specs)

    def encode(
        self,
        weights: Mapping[str, tf.Tensor],
        batch: Mapping[str, tf.Tensor],
        *,
        dtype: tf.DType = tf.float32,
        seed: tf.Tensor | None = None,
        positions: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return the hidden states. Raises UserError for rows that the encoder cannot take: packed
        rows, and lengths for which it was not built.
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
        with built.bound_to(weights, seed):
            hidden = built.model(features, training=seed is not None)["sequence_output"]
        hidden = tf.cast(hidden, dtype)
        return hidden if positions is None else select(hidden, positions)

    def check(self, length: int | None, precision: str, is_packed: bool = False) -> None:
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

    def cudnn_obstacle(self, **conditions: object) -> str:
        return f"works only with our own encoder, not with {self.flag}; drop that flag"

    def token_products(
        self, num_attended: float, num_local: float | None = None
    ) -> Products | None:
        return (
            token_products(self.config, num_attended)._replace(unread=0)
            if self.name in BERT_PRODUCTS and not self.options
            else None
        )

    def for_training(
        self, *, recompute_every: int = 0, attention: str = "plain", xla: bool = False
    ) -> "GardenEncoder":
        if recompute_every or attention != "plain":
            raise UserError(
                f"works only with our own encoder, not with {self.flag}",
                "drop the flag",
                setting="recompute_every" if recompute_every else "attention",
                value=None if recompute_every else attention,
            )
        return self


def open_encoder(config: ModelConfig) -> GardenEncoder:
    """Return the GardenEncoder of a ModelConfig with --encoder=garden:NAME[,FIELD=VALUE...]; each
    FIELD is a field of Model Garden's configuration of that encoder.

    Raises UserError for unknown names and fields.
    """
    assert config.encoder is not None
    # split at commas outside of brackets
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


def garden_config(encoder: GardenEncoder) -> encoders.EncoderConfig:
    """Return Model Garden's configuration of an encoder. Raises UserError when the encoder's
    ModelConfig sets a field that Model Garden's encoder does not have.
    """
    config = encoder.config
    result = encoders.EncoderConfig(type=encoder.name)
    theirs = result.get()
    transfer(config, theirs, encoder.flag, shares_layers=encoder.shares_layers)
    if encoder.name == "mobilebert":  # ModelConfig has no field for it
        theirs.intra_bottleneck_size = config.hidden_size
    if encoder.name == "query_bert":  # its embeddings always have their own width
        theirs.embedding_size = config.embedding_width
    for field, value in encoder.options:
        setattr(theirs, field, value)
    return result


class _Model(tf_keras.layers.Layer):
    """A Keras layer around an encoder. The layer takes the argument `training`, which the encoder
    itself may not take; Keras passes it on to the layers inside.
    """

    def __init__(self, encoder: tf_keras.Model) -> None:
        super().__init__()
        self.encoder = encoder

    def call(self, inputs: dict[str, tf.Tensor], training: bool | None = None) -> dict[str, object]:
        return self.encoder(inputs)


class _SeededDropout:
    """A replacement for the random generator of a Dropout layer. It draws from the training step's
    seed, a different mask in each call.
    """

    def __init__(self, seed: tf.Tensor | None, dropout_key: str) -> None:
        self.seed = seed
        self.dropout_key = dropout_key
        self.num_calls = 0

    def dropout(self, inputs: tf.Tensor, rate: float, noise_shape: None = None) -> tf.Tensor:
        assert noise_shape is None
        self.num_calls += 1
        return dropout(inputs, rate, self.seed, f"{self.dropout_key}/{self.num_calls}")


@custom_gradient
def dense_gradient(table: tf.Tensor) -> tuple[tf.Tensor, Callable]:
    """Return an embedding table unchanged; its gradient, which arrives as tf.IndexedSlices from
    lookups, becomes a dense tensor, summed in float32.
    """

    def gradient(upstream: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
        if isinstance(upstream, tf.IndexedSlices):
            upstream = tf.math.unsorted_segment_sum(
                tf.cast(upstream.values, tf.float32), upstream.indices, table.shape[0]
            )
        return tf.cast(upstream, table.dtype)

    return tf.identity(table), gradient


class BuiltEncoder:
    """A Model Garden encoder that has been built and whose variables have been removed.

    model: callable (features, training) -> {"sequence_output": ...}, usable only inside `bound_to`.
    attributes: for each weight (layer that holds it, attribute of the layer, our name of the
    weight); the name is None for the pooler's weights, because the pooler's output is not used.
    """

    def __init__(
        self,
        encoder: tf_keras.Model,
        specs: Mapping[str, WeightSpec],
        attributes: Sequence[tuple[tf_keras.layers.Layer, str, str | None]],
    ) -> None:
        self.model = _Model(encoder)
        self.specs = specs
        self.attributes = attributes
        self.layers = list(encoder._flatten_layers())
        self.shapes = {
            (layer, attribute): vars(layer)[attribute].shape for layer, attribute, _ in attributes
        }
        for layer, attribute, _ in attributes:
            vars(layer)[attribute] = None
        for layer in self.layers:
            layer._trainable_weights = []
            layer._non_trainable_weights = []

    @contextlib.contextmanager
    def bound_to(self, weights: Mapping[str, tf.Tensor], seed: tf.Tensor | None) -> Iterator[None]:
        """A context in which the layers compute with the tensors `weights` and draw dropout from
        `seed`.
        """
        tensors = {
            name: dense_gradient(tensor) if tensor.shape.rank == 2 else tensor
            for name, tensor in weights.items()
        }
        inserted: list[tuple[tf_keras.layers.Layer, str, object]] = []
        for layer, attribute, name in self.attributes:
            value = tf.zeros(self.shapes[layer, attribute]) if name is None else tensors[name]
            inserted.append((layer, attribute, tf.cast(value, layer.compute_dtype)))
        for index, layer in enumerate(self.layers):
            # Layers that route tokens to experts write metrics to variables, which a pure function
            # must not do, so their add_metric does nothing here. The metrics have no weight in the
            # loss.
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
                if value is vars:  # vars marks an attribute that did not exist
                    del vars(layer)[attribute]
                else:
                    vars(layer)[attribute] = value


@functools.lru_cache(maxsize=8)
def build(encoder: GardenEncoder, dtype: str) -> BuiltEncoder:
    """Build a Model Garden encoder for a compute dtype ("float32", "bfloat16" or "float16").

    The encoder is built in a thread of its own, because the caller's thread may be tracing a graph
    in a replica context.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(_build, encoder, dtype).result()


def _build(encoder: GardenEncoder, dtype: str) -> BuiltEncoder:
    compile_silently_once()  # building calls the fused functions, which compiles them
    config = encoder.config
    theirs = garden_config(encoder)
    initializers = {}

    def create(next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        # tf_keras passes partial(initializer, shape, dtype=...) as initial_value
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
        stack.callback(np.random.set_state, np.random.get_state())  # BigBird seeds NumPy
        precision = tf_keras.mixed_precision
        stack.callback(precision.set_global_policy, precision.global_policy())
        precision.set_global_policy(dtype if dtype == "float32" else f"mixed_{dtype}")
        activations = {
            activation_name(name): _plain(function) for name, function in ACTIVATIONS.items()
        }
        stack.enter_context(tf.device("CPU:0"))
        stack.enter_context(tf_keras.utils.custom_object_scope(activations))
        stack.enter_context(tf.variable_creator_scope(create))
        tf_keras.backend.reset_uids()  # so that names do not count the encoders built before
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
    owners: dict[int, list[tuple[tf_keras.layers.Layer, str]]] = {}
    for layer in network._flatten_layers():
        for attribute, value in vars(layer).items():
            if isinstance(value, tf.Variable):
                owners.setdefault(id(value), []).append((layer, attribute))
    table = network.get_embedding_table()
    specs: dict[str, WeightSpec] = {}
    attributes: list[tuple[tf_keras.layers.Layer, str, str | None]] = []
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


def _spec(variable: tf.Variable, initializer: tf_keras.initializers.Initializer) -> WeightSpec:
    shape = tuple(variable.shape)
    if isinstance(initializer, tf_keras.initializers.TruncatedNormal):
        return WeightSpec(shape, "normal", initializer.get_config()["stddev"])
    return WeightSpec(
        shape,
        {tf_keras.initializers.Zeros: "zeros", tf_keras.initializers.Ones: "ones"}[
            type(initializer)
        ],
    )


def _plain(function: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """Wrap an activation in a plain function, which tf_keras can serialise; it cannot serialise
    TensorFlow's functions with custom gradients.
    """
    return lambda x: function(x)
