"""TensorFlow 1 checkpoints of Google's BERT: bert_model.ckpt, bert_config.json and vocab.txt.

Their variables are ours under other names: query, key and value are one matrix here, and the
scores of next sentences and of classes are stored transposed. What an optimizer adds is ignored.
"""

import dataclasses
import re

import numpy as np

from bert_gpu.base.settings import UserError
from bert_gpu.interop import tf_checkpoints
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.tf_checkpoints import (
    architecture_of,
    check_classic,
    check_finite,
    find_checkpoint,
    gelu_warning,
    has_objects,
    left_out,
    reading,
    write_folder,
)

OPTIMIZER = re.compile(r"/(adam_[mv]|Adam(_1)?|lamb_[mv]|Momentum)$|^(global_step|beta[12]_power)$")
TRANSPOSED = ("nsp/kernel", "classifier/kernel")


def recognises(path):
    """Whether a path names a checkpoint of named variables."""
    prefix = find_checkpoint(path)
    return prefix is not None and not has_objects(prefix)


def dense(ours, *theirs):
    return {f"{ours}/{part}": [f"{name}/{part}" for name in theirs] for part in ("kernel", "bias")}


def norm(ours, theirs):
    return {f"{ours}/scale": [f"{theirs}/gamma"], f"{ours}/bias": [f"{theirs}/beta"]}


def variable_names(config):
    """{our name: [their names]} of all weights that a checkpoint may have."""
    names = {
        "embeddings/word": ["bert/embeddings/word_embeddings"],
        "embeddings/position": ["bert/embeddings/position_embeddings"],
        "embeddings/segment": ["bert/embeddings/token_type_embeddings"],
        **norm("embeddings/norm", "bert/embeddings/LayerNorm"),
    }
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layer_{index}", f"bert/encoder/layer_{index}"
        attention = f"{theirs}/attention"
        names |= {
            **dense(
                f"{ours}/attention/qkv",
                *(f"{attention}/self/{part}" for part in ("query", "key", "value")),
            ),
            **dense(f"{ours}/attention/output", f"{attention}/output/dense"),
            **norm(f"{ours}/attention/norm", f"{attention}/output/LayerNorm"),
            **dense(f"{ours}/feed_forward/in", f"{theirs}/intermediate/dense"),
            **dense(f"{ours}/feed_forward/output", f"{theirs}/output/dense"),
            **norm(f"{ours}/feed_forward/norm", f"{theirs}/output/LayerNorm"),
        }
    return {
        **names,
        **dense("pooler", "bert/pooler/dense"),
        **dense("mlm/transform", "cls/predictions/transform/dense"),
        **norm("mlm/norm", "cls/predictions/transform/LayerNorm"),
        "mlm/bias": ["cls/predictions/output_bias"],
        "nsp/kernel": ["cls/seq_relationship/output_weights"],
        "nsp/bias": ["cls/seq_relationship/output_bias"],
        "classifier/kernel": ["output_weights"],
        "classifier/bias": ["output_bias"],
    }


def their_shape(name, theirs, shape):
    """The shape of each of their variables of one weight, from that of ours."""
    shape = (*shape[:-1], shape[-1] // len(theirs))
    return shape[::-1] if name in TRANSPOSED else shape


def read_config(path):
    """The ModelConfig of a checkpoint; see formats.FormatModule. Its vocab_size is that of the word
    embeddings, whose table NVIDIA pads beyond that of bert_config.json.
    """
    import tensorflow as tf

    config, prefix = tf_checkpoints.read_config(path), find_checkpoint(path)
    with reading(prefix):
        shapes = dict(tf.train.list_variables(prefix))
    sizes = (config.vocab_size, *shapes.get("bert/embeddings/word_embeddings", ())[:1])
    return dataclasses.replace(config, vocab_size=max(sizes))


def read(path):
    """The formats.Model of a checkpoint; see formats.FormatModule."""
    import tensorflow as tf

    from bert_gpu.model import heads
    from bert_gpu.model.encoders import open_encoder

    prefix, config = find_checkpoint(path), read_config(path)
    with reading(prefix):
        reader = tf.train.load_checkpoint(prefix)
        found = reader.get_variable_to_shape_map()
    shapes = {name: tuple(size) for name, size in found.items() if not OPTIMIZER.search(name)}
    if config.num_hidden_layers > len(shapes):  # before building a table of that many layers
        raise UserError(
            f"{path}: bert_config.json says num_hidden_layers={config.num_hidden_layers}, "
            f"the checkpoint has {len(shapes)} variables"[:300]
        )
    encoder, names = open_encoder(config), variable_names(config)
    num_classes = (shapes.get("output_weights") or (1,))[0]
    specs = heads.pretraining_weights(encoder) | heads.classifier_weights(encoder, num_classes)
    weights, missing = {}, []
    for name, theirs in names.items():
        if any(their not in shapes for their in theirs):
            missing += [name] if name in encoder.weights() else []
            continue
        wanted = their_shape(name, theirs, specs[name].shape)
        parts = []
        for their in theirs:
            if shapes[their] != wanted:
                raise UserError(
                    f"{path}: {their} has shape {shapes[their]}, bert_config.json asks for {wanted}"
                )
            parts.append(read_variable(reader, prefix, their))
        whole = np.concatenate(parts, -1)
        weights[name] = np.ascontiguousarray(whole.T if name in TRANSPOSED else whole)
    unused = sorted(set(shapes) - {their for name in weights for their in names[name]})
    if any(name.startswith(f"bert/encoder/layer_{config.num_hidden_layers}/") for name in unused):
        raise UserError(
            f"{path}: has more layers than bert_config.json says "
            f"(num_hidden_layers={config.num_hidden_layers}); correct it"
        )
    return Model(config, weights, Notes(missing, unused, architecture_of(weights), ()))


def read_variable(reader, prefix, name):
    """One variable as float32. Raises UserError."""
    with reading(prefix):
        array = np.asarray(reader.get_tensor(name), np.float32)
    check_finite(prefix, name, array)
    return array


def write(model, folder, options):
    """Writes a Model as Google's files; see formats.FormatModule."""
    check_classic(model.config, "google")
    tensors, names = {}, variable_names(model.config)
    for name, theirs in names.items():
        if name in model.weights:
            array = np.asarray(model.weights[name], np.float32)
            array = array.T if name in TRANSPOSED else array
            tensors.update(zip(theirs, np.split(array, len(theirs), -1), strict=True))
    usage = {
        "With Google's BERT": (
            "python run_classifier.py --init_checkpoint=FOLDER/bert_model.ckpt "
            "--bert_config_file=FOLDER/bert_config.json --vocab_file=FOLDER/vocab.txt",
        )
    }
    write_folder(model, folder, lambda prefix: save(prefix, tensors), usage)
    return (
        f"{folder}: bert_model.ckpt, bert_config.json and the vocabulary of a Google BERT, "
        f"{len(tensors)} variables{left_out(model.weights, names)}{gelu_warning(model.config)}"
    )


def save(prefix, tensors):
    """Writes {name: array} as a checkpoint, which tf.train.Saver of TensorFlow 1 reads."""
    import tensorflow as tf

    names = sorted(tensors)
    arrays = [tf.constant(np.ascontiguousarray(tensors[name])) for name in names]
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=arrays
        )
