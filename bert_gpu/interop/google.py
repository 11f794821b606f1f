"""Reads and writes TensorFlow 1 checkpoints of Google's BERT: bert_model.ckpt, bert_config.json and
vocab.txt.

The checkpoint's variables are bert-gpu's weights under other names. bert-gpu joins query, key and
value to one matrix; the checkpoint stores the kernels of the next-sentence head and of the
classifier transposed. The variables of an optimizer are ignored.
"""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.interop import heads, tf_checkpoints
from bert_gpu.interop.families import BERT_PARTS, Family
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.tensors import check_tensor
from bert_gpu.interop.tf_checkpoints import (
    CONFIG,
    check_classic,
    find_checkpoint,
    gelu_warning,
    has_objects,
    left_out,
    read_scores,
    reading,
    write_folder,
)
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.weights import WeightSpec

tf = LazyModule("tensorflow")
encoders = LazyModule("bert_gpu.model.encoders")

OPTIMIZER = re.compile(r"/(adam_[mv]|Adam(_1)?|lamb_[mv]|Momentum)$|^(global_step|beta[12]_power)$")
GOOGLE = Family(
    "bert",
    "Bert",
    "",
    {
        ours: theirs.removesuffix(".weight").replace(".{}", "_{}").replace(".", "/")
        for ours, theirs in BERT_PARTS.items()
    }
    | {
        "mlm/bias": "cls/predictions/output_bias",
        "nsp/kernel": "cls/seq_relationship/output_weights",
        "nsp/bias": "cls/seq_relationship/output_bias",
        "classifier/kernel": "output_weights",
        "classifier/bias": "output_bias",
    },
    leaves={"kernel": "/kernel", "bias": "/bias", "norm/scale": "/gamma", "norm/bias": "/beta"},
    transposed=("nsp/kernel", "classifier/kernel"),
)


def recognises(path: str) -> bool:
    """Return whether a path names a checkpoint of named variables (TensorFlow 1)."""
    prefix = find_checkpoint(path)
    return prefix is not None and not has_objects(prefix)


def specs_of(config: ModelConfig, num_classes: int = 1) -> dict[str, WeightSpec]:
    """Return {bert-gpu's name: WeightSpec} of all weights that a checkpoint may have."""
    encoder = encoders.open_encoder(config)
    return heads.specs_of(encoder, "BertForSequenceClassification", num_classes)


def read_config(path: str) -> ModelConfig:
    """Return the ModelConfig of a checkpoint; see formats.FormatModule. vocab_size is the number of
    rows of the word embeddings where it exceeds the vocab_size in bert_config.json, because NVIDIA
    pads the rows.
    """
    config = tf_checkpoints.read_config(path)
    prefix = find_checkpoint(path) or path
    with reading(prefix):
        shapes = dict(tf.train.list_variables(prefix))
    sizes = (config.vocab_size, *shapes.get("bert/embeddings/word_embeddings", ())[:1])
    return dataclasses.replace(config, vocab_size=max(sizes))


def read(path: str) -> Model:
    """Return the model of a checkpoint; see formats.FormatModule."""
    prefix = find_checkpoint(path) or path
    config = read_config(path)
    with reading(prefix):
        reader = tf.train.load_checkpoint(prefix)
        stored = reader.get_variable_to_shape_map()
    shapes = {name: tuple(size) for name, size in stored.items() if not OPTIMIZER.search(name)}
    if config.num_hidden_layers > len(shapes):  # checked before a huge table is built
        raise UserError(
            f"bert_config.json says num_hidden_layers={config.num_hidden_layers}, "
            f"the checkpoint has {len(shapes)} variables",
            where=path,
        )

    def read_variable(name: str, shape: tuple[int, ...]) -> np.ndarray:
        with reading(prefix):
            array = np.asarray(reader.get_tensor(name), np.float32)
        check_tensor(prefix, name, array, shape, CONFIG)
        return array

    specs = specs_of(config, (shapes.get("output_weights") or (1,))[0])
    needed = encoders.open_encoder(config).weights()
    weights, missing = GOOGLE.read_weights(specs, set(shapes), read_variable, needed.__contains__)
    unused = sorted(set(shapes) - {their for name in weights for their in GOOGLE.names(name)})
    if any(name.startswith(GOOGLE.layer_prefix(config.num_hidden_layers)) for name in unused):
        raise UserError(
            "has more layers than bert_config.json says "
            f"(num_hidden_layers={config.num_hidden_layers})",
            "correct it",
            where=path,
        )
    architecture = heads.guess_architecture(lambda name, _: name in weights)
    return Model(config, weights, Notes(missing, unused, architecture, **read_scores(path)))


def write(model: Model, folder: str, precision: str = "float32") -> str:
    """Write a model as the files of Google's BERT; see formats.FormatModule."""
    check_classic(model.config, "google")
    tensors: dict[str, np.ndarray] = {}
    specs = specs_of(model.config)
    for name, weight in model.weights.items():
        if name in specs:
            arrays = GOOGLE.to_theirs(name, np.asarray(weight, np.float32))
            tensors |= zip(GOOGLE.names(name), arrays, strict=True)
    usage = {
        "With Google's BERT": (
            "python run_classifier.py --init_checkpoint=FOLDER/bert_model.ckpt "
            "--bert_config_file=FOLDER/bert_config.json --vocab_file=FOLDER/vocab.txt",
        )
    }
    write_folder(model, folder, lambda prefix: save(prefix, tensors), usage)
    return (
        f"{folder}: bert_model.ckpt, bert_config.json and the vocabulary of a Google BERT, "
        f"{len(tensors)} variables{left_out(model.weights, specs)}{gelu_warning(model.config)}"
    )


def save(prefix: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Write {name: array} as a checkpoint that tf.train.Saver of TensorFlow 1 can read."""
    names = sorted(tensors)
    arrays = [tf.constant(np.ascontiguousarray(tensors[name])) for name in names]
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=arrays
        )
