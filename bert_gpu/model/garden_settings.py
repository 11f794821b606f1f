"""Translates our ModelConfig to the configurations of TF Model Garden's encoders, and refuses
fields that an encoder does not have.

This module does not import Model Garden: `theirs` is an encoder's configuration, a mutable
dataclass.
"""

import ast
import dataclasses
from collections.abc import Iterable
from typing import Any, NoReturn

from bert_gpu.base.errors import UserError
from bert_gpu.model.config import GATED, ModelConfig

# {field of ModelConfig: its names in the configurations of Model Garden's encoders}. layer_norm_eps
# has none, because it is always 1e-12 there.
FIELDS = {
    "vocab_size": ("vocab_size", "word_vocab_size"),
    "hidden_size": ("hidden_size",),
    "num_hidden_layers": ("num_layers", "num_blocks"),
    "num_attention_heads": ("num_attention_heads",),
    "intermediate_size": ("intermediate_size", "inner_dim"),
    "hidden_act": ("hidden_activation", "inner_activation"),
    "hidden_dropout_prob": ("dropout_rate", "output_dropout", "hidden_dropout_prob"),
    "attention_probs_dropout_prob": (
        "attention_dropout_rate",
        "attention_dropout",
        "attention_probs_dropout_prob",
    ),
    "max_position_embeddings": ("max_position_embeddings", "max_sequence_length"),
    "type_vocab_size": ("type_vocab_size",),
    "initializer_range": ("initializer_range",),
    "embedding_size": ("embedding_size", "embedding_width", "word_embed_size"),
}
# fields of ModelConfig that work with every encoder, because only our heads read them
HEAD_FIELDS = ("mlm_transform", "decoder_bias", "pooling", "pooler_size")


def activation_name(name: str) -> str:
    """Return the name under which our activation `name` is registered in tf_keras. The name must
    not be one of Model Garden's, whose "gelu" is the tanh approximation.
    """
    return f"bert_gpu_{name}"


def transfer(config: ModelConfig, theirs: Any, flag: str, shares_layers: bool) -> None:
    """Set the fields of `theirs`, the configuration of a Model Garden encoder, from a ModelConfig;
    activations get the names of `activation_name`.

    Args:
      flag: --encoder as the user gave it, for messages. shares_layers: whether all layers share one
        set of weights.

    Raises UserError for a field of ModelConfig that the encoder does not support.
    """
    names = {field.name for field in dataclasses.fields(theirs)}

    def refuse(field: str, remedy: str) -> NoReturn:
        raise UserError(
            f"{flag} has no such switch", remedy, setting=field, value=str(getattr(config, field))
        )

    if config.hidden_act in GATED:
        refuse("hidden_act", "give gelu, gelu_new or relu")
    if not config.type_vocab_size:
        refuse("type_vocab_size", "give 1 or more")
    if config.num_hidden_groups not in (None, 1 if shares_layers else config.num_hidden_layers):
        refuse("num_hidden_groups", "drop the flag")
    for field in dataclasses.fields(ModelConfig):
        value = getattr(config, field.name)
        name = next((name for name in FIELDS.get(field.name, ()) if name in names), None)
        if field.name == "embedding_size":
            value = config.embedding_width
            if name is None and value != config.hidden_size:
                refuse(field.name, "drop the flag")
        elif (
            name is None
            and field.name not in (*HEAD_FIELDS, "num_hidden_groups", "encoder")
            and value != field.default
        ):
            refuse(field.name, f"leave it at {field.default}")
        if name is not None:
            setattr(theirs, name, activation_name(value) if field.name == "hidden_act" else value)


def read_options(encoder: str, theirs: Any, options: Iterable[str]) -> tuple[tuple[str, Any], ...]:
    """Parse `options`, texts FIELD=VALUE that set fields of `theirs`, and return ((field, value),
    ...). encoder: the value of --encoder, for messages.

    Raises UserError for an unknown field, a field that has its own flag, and a value whose type
    differs from the default's.
    """
    ours = {name: field for field, names in FIELDS.items() for name in names}
    fields = {field.name for field in dataclasses.fields(theirs)}
    own = sorted(
        field
        for field in fields - set(ours)
        if not field.startswith("return_") and field != "output_range"
    )
    pairs = []
    for option in options:
        field, equals, text = option.partition("=")
        if field in fields and field in ours:
            raise UserError(
                f"{field} is set by the flag --{ours[field]}", setting="encoder", value=encoder
            )
        if field not in own or not equals:
            raise UserError(
                f"{option!r} is not FIELD=VALUE",
                f"fields are {', '.join(own) or 'none'}",
                setting="encoder",
                value=encoder,
            )
        pairs.append(
            (field, _parse(f"--encoder={encoder}: {field}={text}", text, getattr(theirs, field)))
        )
    return tuple(pairs)


def _parse(place: str, text: str, default: object) -> object:
    """Return `text` as a value of the type of `default`; as a number if the default is None. place:
    the option, for messages.
    """
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        value = None
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        value = tuple(value)
    expected = (int, float) if default is None else type(default)
    if not isinstance(value, expected) or isinstance(value, bool) != isinstance(default, bool):
        kind = "number" if default is None else type(default).__name__
        raise UserError(f"{place} must be of type {kind}, like its default {default}")
    return value
