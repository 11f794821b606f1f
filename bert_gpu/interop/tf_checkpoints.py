"""Finds and writes TensorFlow checkpoints with a bert_config.json beside them, the form in which
Google's BERT and TF Model Garden are published, and reads that bert_config.json.

Both projects compute gelu by its tanh approximation, which bert-gpu calls gelu_new, but they call
it gelu. So a model of these projects is read with gelu_new. A bert-gpu model with the exact gelu is
written with a note, GELU_FORM, which only this module reads.

Importing this module imports no TensorFlow.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import read_json
from bert_gpu.interop.folders import replace_folder, saved_files
from bert_gpu.interop.formats import OURS, Model
from bert_gpu.model import config_json
from bert_gpu.model.config import ModelConfig

# file names in Google's releases
CONFIG = "bert_config.json"
PREFIX = "bert_model.ckpt"
GELU_FORM = "gelu_form"  # key in bert_config.json; "erf" means the exact gelu
EPSILON = 1e-12  # the epsilon of all layer norms in these checkpoints
OBJECTS = b"_CHECKPOINTABLE_OBJECT_GRAPH"  # early in the index of an object-based checkpoint
HEAD_BYTES = 1 << 13


def find_checkpoint(path: str) -> str | None:
    """Return the path prefix of the checkpoint that `path` names, None without one. `path` is the
    prefix, one of the checkpoint's files, or a folder with checkpoints, of which the one with the
    highest step is taken.
    """
    prefix = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path)
    if os.path.isfile(f"{prefix}.index"):
        return prefix
    names = os.listdir(path) if os.path.isdir(path) else []
    matches = [re.fullmatch(r"(.*\bckpt(?:-(\d+))?)\.index", name) for name in names]
    steps = [(int(match[2] or 0), match[1]) for match in matches if match]
    return os.path.join(path, max(steps)[1]) if steps else None


def has_objects(prefix: str) -> bool:
    """Return whether a checkpoint is object-based (TensorFlow 2), not a list of named variables
    (TensorFlow 1).
    """
    with open(f"{prefix}.index", "rb") as file:
        return OBJECTS in file.read(HEAD_BYTES)


def read_config(path: str) -> ModelConfig:
    """Return the ModelConfig of the checkpoint at a path. Raise UserError when it cannot be
    read.
    """
    file, values = read_file(path)
    config = config_json.config_of(file, values)
    if config.hidden_act == "gelu" and values.get(GELU_FORM) != "erf":
        config = dataclasses.replace(config, hidden_act="gelu_new")
    return config


def read_scores(path: str) -> dict[str, Any]:
    """Return the fields of Notes on a classifier's scores that `config_bytes` has written; without
    them the classes have no names.
    """
    file, values = read_file(path)
    return dict(labels=config_json.labels_of(file, values), problem_type=values.get("problem_type"))


def read_file(path: str) -> tuple[str, dict[str, object]]:
    """Return (path, content) of the bert_config.json of the checkpoint at a path."""
    file = os.path.join(os.path.dirname(find_checkpoint(path) or path), CONFIG)
    if not os.path.exists(file):
        raise UserError(
            f"a TensorFlow checkpoint without {CONFIG}", "put the model's beside it", where=path
        )
    return file, read_json(file, config_json.A_CONFIG, config_json.CONFIG_FIELDS)


@contextlib.contextmanager
def reading(prefix: str) -> Iterator[None]:
    """Turn any error that TensorFlow raises inside this context, while it reads a checkpoint, into
    a UserError.
    """
    import tensorflow as tf

    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, LookupError, TypeError, OSError) as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(
            f"the checkpoint cannot be read ({reason})", "copy all of its files again", where=prefix
        ) from None


def check_classic(config: ModelConfig, whose: str) -> None:
    """Raise UserError when a model has options that a checkpoint of the format `whose` cannot hold;
    the message names the options.
    """
    odd = [f"{name}={getattr(config, name)}" for name in config.departures()]
    if config.layer_norm_eps != EPSILON:
        odd.append(f"layer_norm_eps={config.layer_norm_eps}")
    if odd:
        switches = ", ".join(odd)[:160]
        raise UserError(
            f"its BERT has no {switches}",
            f"give --format={OURS if config.has_own_encoder else 'savedmodel'}",
            setting="format",
            value=whose,
        )


def config_bytes(model: Model) -> bytes:
    """Return the bytes of a bert_config.json, which Google's code and `read_file` can read.
    Google's code keeps the entries for a classifier's scores, and does not use them.
    """
    config, _, notes, *_ = model
    values: dict[str, object] = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.metadata["role"] == "bert" and field.name != "layer_norm_eps"
    }
    values["hidden_act"] = config.hidden_act.removesuffix("_new")
    if config.hidden_act == "gelu":
        values[GELU_FORM] = "erf"
    if "classifier/bias" in model.weights:
        values |= config_json.label_entries(notes.labels) | dict(problem_type=notes.problem_type)
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()


def gelu_warning(config: ModelConfig) -> str:
    """Return a note for the log that Google's code does not compute the model's exact gelu; "" for
    other activations.
    """
    if config.hidden_act != "gelu":
        return ""
    return (
        "; Google's code uses tanh-approximated GELU, this model the exact one: "
        "hidden states will differ by about 1e-3"
    )


def left_out(weights: Collection[str], names: Collection[str]) -> str:
    """Return a note for the log that names the weights which are not written, because they are not
    among `names`; "" if there are none.
    """
    parts = sorted({name.split("/")[0] for name in weights if name not in names})
    return f"; left out: {', '.join(parts)}" if parts else ""


def write_folder(
    model: Model,
    folder: str,
    save: Callable[[str], object],
    usage: Mapping[str, Sequence[str]],
    files: Mapping[str, bytes] | None = None,
) -> None:
    """Write a model's folder as a whole: the checkpoint, bert_config.json, the vocabulary and the
    model card.

    Args:
      save: function of a path prefix that writes the checkpoint's files.
      usage: {title of a way to open the folder: lines of code}, for the card.
      files: {name: bytes} of further files.
    """
    from bert_gpu.interop import card
    from bert_gpu.interop.tokenizers import tokenizer_files
    from bert_gpu.interop.usage import written_usage

    all_usage = {**card.own_usage(model.notes.architecture), **usage}
    contents = {
        **(files or {}),
        CONFIG: config_bytes(model),
        **tokenizer_files(model.tokenizer),
        **written_usage(model),
        "README.md": card.readme(model, all_usage),
        **saved_files(lambda temporary: save(os.path.join(temporary, PREFIX))),
    }
    replace_folder(folder.rstrip("/"), contents, is_whole_model=True)
