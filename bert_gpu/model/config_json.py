"""Reads and writes the config.json files of Google and Hugging Face.

A key of a file that needs a computation which our encoder does not have is an error; a key that is
neither ours nor in the lists of config_keys.py gets a warning.
"""

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bert_gpu.base import console
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import CHECKSUM, json_checksum, read_json
from bert_gpu.base.settings import Settings, fields_of, setting
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.config_keys import CHECKED_KEYS, IGNORED_KEYS

A_CONFIG = "a model's shape, like Google's bert_config.json"
OWN_TYPE = "bert_gpu"  # model_type of models that `transformers` has no class for
PROBLEM_TYPES = ("single_label_classification", "regression", "multi_label_classification")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConfigNotes(Settings):
    """The entries of a config.json that are read beside the fields of ModelConfig.
    position_embedding_type is in both, because it may be null here: transformers writes null when
    it was not set.
    """

    architectures: tuple[str, ...] | None = setting(None, "Classes of transformers.")
    id2label: dict | None = setting(None, "{index: name} of a classifier's classes.")
    problem_type: str | None = setting(
        None, "What its scores mean; None = one of the classes.", choices=PROBLEM_TYPES
    )
    position_embedding_type: str | None = setting(None, "How the model learns word order.")


NOTES_FIELDS = fields_of(ConfigNotes)
CONFIG_FIELDS = fields_of(ConfigNotes, ModelConfig)


def read_config(path: str) -> ModelConfig:
    """Read a bert_config.json of Google's BERT, or a config.json of Hugging Face's BERT or of this
    project, and return its ModelConfig; absent keys get the values of BERT base.

    Raises:
      UserError: the file is not a strict JSON object, has a value of the wrong type or range, or
        describes a model that our encoder cannot compute.
    """
    return config_of(path, read_json(path, A_CONFIG, CONFIG_FIELDS))


def config_of(path: str, values: dict[str, Any]) -> ModelConfig:
    """Return the ModelConfig for the entries of a config.json, {key: value}, whose types and ranges
    have been checked. Raises UserError as `read_config` does. path: the file, for messages.
    """
    fields = fields_of(ModelConfig)
    if values.get("model_type") not in (None, "bert", OWN_TYPE):
        raise UserError(
            f"model_type={values['model_type']!r:.60} is not supported, only 'bert' is",
            "name the folder of a BERT",
            where=path,
        )
    check_keys(path, values, {*fields, "model_type"})
    settings = {key: value for key, value in values.items() if key in fields}
    if settings.get("position_embedding_type", "") is None:
        del settings["position_embedding_type"]  # transformers writes null for not set
    with naming(path):
        config = ModelConfig(**settings)
    if values.get("model_type") == "bert" and not config.is_classic:
        departures = ", ".join(f"{name}={getattr(config, name)!r}" for name in config.departures())
        raise UserError(
            f"model_type='bert' has no {departures}",
            f"remove model_type, or make it '{OWN_TYPE}'",
            where=path,
        )
    return config


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Make a UserError that is raised inside the context name the file `path` instead of flags."""
    try:
        yield
    except UserError as error:
        raise error.within(path) from None


def check_keys(
    path: str,
    values: Mapping[str, object],
    known: Collection[str],
    own: Mapping[str, tuple[object, str]] | None = None,
) -> None:
    """Raise UserError for the first value in a config.json that our encoder does not implement;
    warn, once, of keys that are neither in `known` nor in the lists of config_keys.py.

    own: additional checked keys, in the form of CHECKED_KEYS, for which null is not accepted unless
    it is the accepted value.
    """
    checked = {**CHECKED_KEYS, **(own or {})}
    for key, (accepted, reason) in checked.items():
        value = values.get(key, accepted)
        if value != accepted and (value is not None or key not in CHECKED_KEYS):
            problem = f"{key}={value!r:.60} is not supported, only {accepted!r} is"
            raise UserError(f"{problem}, because {reason}", where=path)
    if unknown := sorted({*values} - {*known, *checked} - IGNORED_KEYS):
        console.warn_once(
            f"{path}: unknown keys are ignored, as if they did not change what the model computes: "
            f"{', '.join(unknown)}"
        )


def read_config_of(path: str, model: ModelConfig) -> ModelConfig:
    """Return the ModelConfig of a file, as `read_config` does. The user has named the file beside a
    model, whose own config is `model`.

    Google and TF Model Garden write "gelu" for the activation that is gelu_new here. So gelu in the
    file is read as gelu_new if the model has gelu_new, unless the file says which gelu it means, by
    model_type (as Hugging Face's files) or by gelu_form.
    """
    values = read_json(path, A_CONFIG, CONFIG_FIELDS)
    config = config_of(path, values)
    is_stated = {"model_type", "gelu_form"} & values.keys()
    if is_stated or (config.hidden_act, model.hidden_act) != ("gelu", "gelu_new"):
        return config
    return dataclasses.replace(config, hidden_act=model.hidden_act)


def labels_of(path: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of a classifier's classes, in the order of its logits, from "id2label" in
    `values`, the entries of a config.json of Hugging Face's form; () without them. Raises UserError
    for an index that is not an integer or a name that is not valid Unicode.
    """
    labels = values.get("id2label") or {}
    try:
        names = tuple(str(labels[key]) for key in sorted(labels, key=int))
    except (TypeError, ValueError):
        raise UserError("id2label must map class indices to names", where=path) from None
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise UserError(
            "id2label has a name that is not valid Unicode", "rename the class", where=path
        )
    return names


def config_bytes(
    config: ModelConfig,
    architecture: str,
    labels: Sequence[str] = (),
    more: Mapping[str, object] | None = None,
) -> bytes:
    """Return the content of a config.json from which `read_config` reads the same config;
    `transformers` can open the model if it is a classic BERT.

    Args:
      architecture: class of `transformers` that opens the folder, such as "BertForPreTraining". A
        model that `transformers` has no class for gets our own model_type, so that `transformers`
        refuses it instead of building a BERT with other weights.
      labels: names of the classes, in the order of the logits; transformers derives the width of
        the classifier from them.
      more: further entries, {key: value}, which do not describe the shape of the model.
    """
    fields = config.to_dict()
    if config.is_classic:
        fields = {
            field.name: fields[field.name]
            for field in dataclasses.fields(config)
            if field.metadata["role"] != "departure" or field.metadata["bert_values"]
        }
    name = architecture if config.is_classic else architecture.replace("Bert", "BertGpu", 1)
    return json_bytes(
        {"model_type": "bert" if config.is_classic else OWN_TYPE, **fields, **(more or {})},
        name,
        labels,
    )


def json_bytes(values: Mapping[str, object], class_name: str, labels: Sequence[str]) -> bytes:
    """Return the content of a config.json in Hugging Face's form. values: entries, {key: value}.
    class_name: the class of transformers that opens the model. labels: names of a classifier's
    classes, in the order of its logits; empty for other models.
    """
    content = {
        "architectures": [class_name],
        "pad_token_id": 0,
        "torch_dtype": "float32",
        **values,
    }
    content |= label_entries(labels)
    content[CHECKSUM] = json_checksum(content)
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode("utf-8")


def label_entries(labels: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the entries of a config.json for names of classes, which `labels_of` reads; {} for no
    names.
    """
    return (
        dict(
            id2label={str(index): label for index, label in enumerate(labels)},
            label2id={label: index for index, label in enumerate(labels)},
        )
        if labels
        else {}
    )
