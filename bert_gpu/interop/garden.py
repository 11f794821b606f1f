"""Reads and writes TF Model Garden's BERT: weights of its BertEncoderV2, BertPretrainerV2 and
BertClassifier.

A checkpoint of Model Garden is a graph of objects. So this module builds the objects, sets or reads
their variables, and leaves the files to tf.train.Checkpoint, with the items that Model Garden's
tasks save and load: `model`, `encoder`, `masked_lm`, `next_sentence.pooler_dense` and
`sentence_prediction.pooler_dense`. The kernels of attention are (H, N, D) in Model Garden and (H, N
x D) in bert-gpu (H hidden, N heads, D per head).
"""

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.errors import UserError
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.google import GOOGLE, specs_of
from bert_gpu.interop.heads import guess_architecture
from bert_gpu.interop.tensors import check_tensor
from bert_gpu.interop.tf_checkpoints import (
    CONFIG,
    PREFIX,
    check_classic,
    find_checkpoint,
    gelu_warning,
    has_objects,
    left_out,
    read_config,
    read_scores,
    reading,
    write_folder,
)
from bert_gpu.model.config import ModelConfig

tf = LazyModule("tensorflow")

# names of Model Garden's heads
MASKED_LM = "masked_lm"
NEXT_SENTENCE = "next_sentence"
CLASSES = "sentence_prediction"
POOLED_CLASSES = "pooled_prediction"  # bert-gpu's name of a classifier on the encoder's pooler
POOLER = "encoder/pooler_transform"
OUR_HEADS = {
    MASKED_LM: "mlm/",
    NEXT_SENTENCE: "nsp/",
    CLASSES: "classifier/",
    POOLED_CLASSES: "classifier/",
}
_LAYER = "encoder/transformer/layer_{}"
PARTS = {  # as families.BERT_PARTS; variable_names adds the pooler and the classifier
    "embeddings/word": "encoder/word_embeddings/embeddings",
    "embeddings/position": "encoder/position_embedding/embeddings",
    "embeddings/segment": "encoder/type_embeddings/embeddings",
    "embeddings/norm": "encoder/embeddings/layer_norm",
    "layer/attention/qkv": " ".join(
        f"{_LAYER}/self_attention/{name}" for name in ("query", "key", "value")
    ),
    "layer/attention/output": f"{_LAYER}/self_attention/attention_output",
    "layer/attention/norm": f"{_LAYER}/self_attention_layer_norm",
    "layer/feed_forward/in": f"{_LAYER}/intermediate",
    "layer/feed_forward/output": f"{_LAYER}/output",
    "layer/feed_forward/norm": f"{_LAYER}/output_layer_norm",
    "mlm/transform": "cls/predictions/transform/dense",
    "mlm/norm": "cls/predictions/transform/LayerNorm",
    "mlm/bias": "cls/predictions/output_bias/bias",
    "nsp": f"{NEXT_SENTENCE}/logits",
}
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # the end of a variable's name in a checkpoint


def recognises(path: str) -> bool:
    """Return whether a path names an object-based checkpoint (TensorFlow 2), as Model Garden
    writes.
    """
    prefix = find_checkpoint(path)
    return prefix is not None and has_objects(prefix)


def variable_names(config: ModelConfig, heads: Collection[str]) -> dict[str, list[str]]:
    """Return {bert-gpu's name of a weight: names of its variables} of an encoder with a set of
    heads. The encoder's variables have the names in BertEncoderV2 after "encoder/". The pooler is
    the one that belongs to a head, where a head has its own, else the encoder's.
    """
    poolers = [f"{head}/pooler_dense" for head in (NEXT_SENTENCE, CLASSES) if head in heads]
    classes = CLASSES if CLASSES in heads else POOLED_CLASSES
    parts = PARTS | {"pooler": (*poolers, POOLER)[0], "classifier": f"{classes}/logits"}
    family = GOOGLE._replace(parts=parts)
    absent = tuple({*OUR_HEADS.values()} - {OUR_HEADS[head] for head in heads})
    return {name: family.names(name) for name in specs_of(config) if not name.startswith(absent)}


def build(
    config: ModelConfig, num_classes: int | None = None
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Build Model Garden's objects, with the sizes of a classic ModelConfig. num_classes: number of
    classes of the BertClassifiers; without it there are none.

    Returns:
      (BertPretrainerV2, {name of a head: BertClassifier on the same encoder}, {name as in
        `variable_names`: tf.Variable}).
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.nlp.modeling import layers, models, networks
    exact = config.hidden_act == "gelu"
    settings = {} if exact else dict(inner_activation=config.hidden_act.removesuffix("_new"))
    encoder = networks.BertEncoderV2(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        max_sequence_length=config.max_position_embeddings,
        type_vocab_size=config.type_vocab_size,
        inner_dim=config.intermediate_size,
        initializer="zeros",
        name="encoder",
        **settings,
    )
    head = layers.ClassificationHead(config.hidden_size, 2, initializer="zeros", name=NEXT_SENTENCE)
    pretrainer = models.BertPretrainerV2(
        encoder, mlm_initializer="zeros", classification_heads=[head]
    )
    pretrainer(pretrainer.inputs)  # this call makes the variables
    names = {
        variable.name.removesuffix(":0").removeprefix("bert/"): variable
        for variable in pretrainer.trainable_weights
    }
    classifiers = {
        name: models.BertClassifier(
            encoder,
            num_classes,
            initializer="zeros",
            use_encoder_pooler=name == POOLED_CLASSES,
            head_name=name,
        )
        for name in (CLASSES, POOLED_CLASSES)
        if num_classes
    }
    for classifier in classifiers.values():
        variables = classifier.classifier.trainable_weights
        names |= {variable.name.removesuffix(":0"): variable for variable in variables}
    return pretrainer, classifiers, names


def items(model: Any) -> dict[str, Any]:
    """Return {name: object} of the objects that Model Garden's trainer saves for a BertPretrainerV2
    or a BertClassifier.
    """
    return dict(model.checkpoint_items, model=model)


def read(path: str) -> Model:
    """Return the model of a checkpoint; see formats.FormatModule."""
    prefix = find_checkpoint(path) or path
    config = read_config(path)
    check_classic(config, "garden")
    with reading(prefix):
        shapes = dict(tf.train.list_variables(prefix))
    if config.num_hidden_layers > len(shapes):  # checked before a wrong number of layers is built
        raise UserError(
            f"bert_config.json says num_hidden_layers={config.num_hidden_layers}, "
            f"the checkpoint has {len(shapes)} variables",
            where=path,
        )
    sizes = [shape[0] for name, shape in shapes.items() if name.endswith(f"out_proj/bias{VALUE}")]
    pretrainer, classifiers, variables = build(config, *sizes[:1])
    heads = restore(path, prefix, pretrainer, classifiers)
    specs = specs_of(config, *sizes[:1])
    weights = {}
    for name, theirs in variable_names(config, heads).items():
        arrays = [flat(config, name, variables[their].numpy()) for their in theirs]
        weights[name] = np.ascontiguousarray(np.concatenate(arrays, -1))
        check_tensor(prefix, name, weights[name], specs[name].shape, CONFIG)
    return Model(
        config,
        weights,
        Notes([], [], guess_architecture(lambda name, _: name in weights), **read_scores(path)),
    )


def restore(path: str, prefix: str, pretrainer: Any, classifiers: Mapping[str, Any]) -> set[str]:
    """Read a checkpoint into the variables of the encoder and of those heads that the checkpoint
    has, and return the names of these heads. Raise UserError when the checkpoint lacks part of the
    encoder.
    """
    encoder = pretrainer.encoder_network
    masked_lm = pretrainer.masked_lm
    both = tf.train.Checkpoint(encoder_network=encoder, masked_lm=masked_lm)
    attempts: tuple[tuple[dict[str, object], set[str]], ...] = (
        (items(pretrainer), {MASKED_LM, NEXT_SENTENCE}),
        (dict(model=pretrainer), {MASKED_LM, NEXT_SENTENCE}),
        *((dict(model=model), {head}) for head, model in classifiers.items()),
        (dict(encoder=encoder, masked_lm=masked_lm), {MASKED_LM}),
        (dict(model=both), {MASKED_LM}),
        (dict(encoder=both), {MASKED_LM}),  # written by Model Garden's converter
        (dict(encoder=encoder), set()),
        (dict(model=encoder), set()),
    )
    for objects, heads in attempts:
        try:
            status = tf.train.Checkpoint(**objects).read(prefix)
            status.assert_existing_objects_matched().expect_partial()
        except AssertionError:
            status.expect_partial()
            continue
        except (tf.errors.OpError, RuntimeError, ValueError, LookupError, TypeError) as error:
            reason = " ".join(str(error).split())[:120]
            raise UserError(
                f"does not fit bert_config.json, or is damaged: {reason}", where=path
            ) from None
        return heads
    raise UserError(
        "is no checkpoint of Model Garden's BERT with the layers of bert_config.json",
        "name one of its encoder, its pretraining or its classifier",
        where=path,
    )


def flat(config: ModelConfig, name: str, array: np.ndarray) -> np.ndarray:
    """Return a variable of Model Garden in the shape of bert-gpu's weight `name`, in which the axis
    of attention heads and the axis within a head are one.
    """
    if name.startswith("layer_") and "/attention/" in name and "norm" not in name:
        if name.endswith("output/kernel"):
            return array.reshape(-1, config.hidden_size)  # array: (N, D, H)
        if "qkv" in name:
            return array.reshape(*array.shape[:-2], -1)  # array: (..., N, D)
    return array


def saved_objects(
    weights: Mapping[str, np.ndarray], pretrainer: Any, classifiers: Mapping[str, Any]
) -> tuple[dict[str, object], set[str]]:
    """Return ({name: object to save}, set of the names of their heads) for weights, {bert-gpu's
    name: array}. A Model Garden classifier is saved without the pretraining heads.
    """
    encoder = pretrainer.encoder_network
    masked_lm = pretrainer.masked_lm
    if CLASSES in classifiers:
        return items(classifiers[CLASSES]), {CLASSES}
    if "mlm/bias" not in weights:
        return dict(encoder=encoder), set()
    if "nsp/kernel" not in weights:
        return dict(encoder=encoder, masked_lm=masked_lm), {MASKED_LM}
    return items(pretrainer), {MASKED_LM, NEXT_SENTENCE}


def write(model: Model, folder: str, precision: str = "float32") -> str:
    """Write a model as a checkpoint of Model Garden; see formats.FormatModule."""
    check_classic(model.config, "garden")
    pretrainer, classifiers, variables = build(
        model.config, len(model.weights.get("classifier/bias", ()))
    )
    objects, heads = saved_objects(model.weights, pretrainer, classifiers)
    names = variable_names(model.config, heads)
    for name, theirs in names.items():
        if name in model.weights:
            array = np.asarray(model.weights[name], np.float32)
            for their, part in zip(theirs, np.split(array, len(theirs), -1), strict=True):
                variables[their].assign(part.reshape(variables[their].shape))
    for kind in ("kernel", "bias"):
        variables[f"{POOLER}/{kind}"].assign(variables[names[f"pooler/{kind}"][0]])
    pointer = f'model_checkpoint_path: "{PREFIX}"\n'.encode()  # for tf.train.latest_checkpoint
    write_folder(
        model,
        folder,
        lambda path: tf.train.Checkpoint(**objects).write(path),
        {
            "In Model Garden, as a task's init_checkpoint, or by its objects": (
                f'tf.train.Checkpoint({", ".join(sorted(objects))}).read("FOLDER/{PREFIX}")',
            )
        },
        dict(checkpoint=pointer),
    )
    return (
        f"{folder}: {PREFIX} of Model Garden's BertEncoderV2, with {', '.join(sorted(objects))}"
        f"{left_out(model.weights, names)}{gelu_warning(model.config)}"
    )
