"""Reads and writes model folders of Hugging Face's BERT: config.json and model.safetensors.

This is also the project's own format, so that trained models open in `transformers` directly. One
table says which of their tensors make up each of ours. Two
differences matter: torch keeps a linear layer's weight as (out, in), and our query, key and value
projections are one matrix (H, 3H), in this order. Other architectures than BERT's (not
config.is_classic), such as an encoder of Model Garden, have their own model_type, and their tensors
are ours under our names.
"""

import contextlib
import re

import numpy as np

from bert_gpu import tensor_files
from bert_gpu.files import read_json
from bert_gpu.interop.folders import replace_folder
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.tensors import join, read_tensors
from bert_gpu.interop.tokenizers import tokenizer_files
from bert_gpu.model import config as model_config
from bert_gpu.model import heads
from bert_gpu.model.encoders import open_encoder
from bert_gpu.settings import UserError

# The weights of each class of transformers beside the encoder's, as prefixes of our names.
ARCHITECTURES = {
    "BertModel": ("pooler/",),
    "BertForPreTraining": ("pooler/", "mlm/", "nsp/"),
    "BertForMaskedLM": ("mlm/",),
    "BertForSequenceClassification": ("pooler/", "classifier/"),
}
_HEADS = ("pooler/", "mlm/", "nsp/", "classifier/")


def _dense(ours, *theirs):
    return {
        f"{ours}/kernel": [f"{name}.weight" for name in theirs],
        f"{ours}/bias": [f"{name}.bias" for name in theirs],
    }


def _norm(ours, theirs):
    return {f"{ours}/scale": [f"{theirs}.weight"], f"{ours}/bias": [f"{theirs}.bias"]}


def weight_names(config, specs):
    """{our name: [their names]}, as in the classes with heads, where names of the encoder begin
    with "bert."; specs: from `_specs`.
    """
    if not config.is_classic:
        return {name: [name] for name in specs}
    names = {
        "embeddings/word": ["bert.embeddings.word_embeddings.weight"],
        "embeddings/position": ["bert.embeddings.position_embeddings.weight"],
        "embeddings/segment": ["bert.embeddings.token_type_embeddings.weight"],
        **_norm("embeddings/norm", "bert.embeddings.LayerNorm"),
    }
    for index in range(config.num_hidden_layers):
        ours, theirs = f"layer_{index}", f"bert.encoder.layer.{index}"
        names.update(
            {
                **_dense(
                    f"{ours}/attention/qkv",
                    *(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")),
                ),
                **_dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense"),
                **_norm(f"{ours}/attention/norm", f"{theirs}.attention.output.LayerNorm"),
                **_dense(f"{ours}/feed_forward/in", f"{theirs}.intermediate.dense"),
                **_dense(f"{ours}/feed_forward/output", f"{theirs}.output.dense"),
                **_norm(f"{ours}/feed_forward/norm", f"{theirs}.output.LayerNorm"),
            }
        )
    return {
        **names,
        **_dense("pooler", "bert.pooler.dense"),
        **_dense("mlm/transform", "cls.predictions.transform.dense"),
        **_norm("mlm/norm", "cls.predictions.transform.LayerNorm"),
        "mlm/bias": ["cls.predictions.bias"],
        **_dense("nsp", "cls.seq_relationship"),
        **_dense("classifier", "classifier"),
    }


def _is_transposed(name, theirs):
    """Whether the file has the transposed weight."""
    return name.endswith("/kernel") and theirs != [name]


def _to_ours(name, theirs, tensors):
    """Their tensors of one weight -> ours."""
    if _is_transposed(name, theirs):
        tensors = [tensor.T for tensor in tensors]
    return np.ascontiguousarray(
        np.concatenate(tensors, axis=-1) if len(tensors) > 1 else tensors[0]
    )


def _to_theirs(name, theirs, array):
    """Our weight -> their tensors."""
    parts = np.split(array, len(theirs), axis=-1)
    return [
        np.ascontiguousarray(part.T if _is_transposed(name, theirs) else part) for part in parts
    ]


def _their_shape(name, theirs, shape):
    """Shape of each of their tensors of one weight, from that of ours."""
    shape = (*shape[:-1], shape[-1] // len(theirs))
    return shape[::-1] if _is_transposed(name, theirs) else shape


def _canonical(name):
    """Their name as in our table: old norms have gamma and beta, and names of a bare encoder lack
    "bert.".
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name


def _pop_decoder(folder, tensors):
    """Removes the MLM decoder, which repeats the word embeddings and the output bias; keeps its
    bias if that is the only copy.
    """
    decoder, words = (
        tensors.pop("cls.predictions.decoder.weight", None),
        tensors.get("bert.embeddings.word_embeddings.weight"),
    )
    bias = tensors.pop("cls.predictions.decoder.bias", None)
    if bias is not None:
        tensors.setdefault("cls.predictions.bias", bias)
    if decoder is not None and words is not None and not np.array_equal(decoder, words):
        raise UserError(
            f"{folder}: cls.predictions.decoder.weight differs from "
            "the word embeddings; an untied decoder is not supported"
        )


def _guess_architecture(names):
    if "classifier.weight" in names or "classifier/kernel" in names:
        return "BertForSequenceClassification"
    if "cls.seq_relationship.weight" in names or "nsp/kernel" in names:
        return "BertForPreTraining"
    return (
        "BertForMaskedLM" if "cls.predictions.bias" in names or "mlm/bias" in names else "BertModel"
    )


def _stated_architecture(path):
    """The class that config.json names, or None; for our architectures, the BERT class with the
    same heads.
    """
    stated = read_json(path, model_config.A_CONFIG, model_config.CONFIG_FIELDS).get("architectures")
    if stated is None or stated == []:
        return None
    if not isinstance(stated, list) or not isinstance(stated[0], str):
        raise UserError(
            f"{path}: architectures={str(stated)[:60]} must "
            "be a list of names such as BertForPreTraining"
        )
    return stated[0].replace("BertGpu", "Bert", 1)


def _read_labels(path):
    """Names of the classes; UserError unless they are text."""
    labels = read_json(path, model_config.A_CONFIG, model_config.CONFIG_FIELDS).get("id2label")
    if labels is not None and not isinstance(labels, dict):
        raise UserError(f"{path}: id2label must map class indices to names")
    names = model_config.read_labels(path)
    if any("\ud800" <= character <= "\udfff" for name in names for character in name):
        raise UserError(f"{path}: id2label has a name that is not valid Unicode; rename the class")
    return names


def _specs(encoder, num_classes, architecture):
    """Every weight that we can read. A classifier's pooler may differ from that of next-sentence
    prediction.
    """
    parts = [heads.classifier_weights(encoder, num_classes), heads.pretraining_weights(encoder)]
    return (
        {**parts[0], **parts[1]}
        if architecture != "BertForSequenceClassification"
        else {**parts[1], **parts[0]}
    )


@contextlib.contextmanager
def _blaming(path):
    """Names `path`, the file with the settings, in errors about an impossible encoder."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix('--')}"[:300]) from None


def read_model(folder):
    """Reads a folder of a Hugging Face BertModel, BertForPreTraining, BertForMaskedLM or
    BertForSequenceClassification.

    Returns:
      (config, weights, notes): ModelConfig; {our name: float32 array} of the weights in the
        folder; Notes. `notes.missing` names weights of the folder's architecture that the file
        lacks.

    Raises:
      UserError: no such folder or file, a damaged file, a shape that contradicts config.json, an
        architecture that is not BERT's.
    """
    tensors = {
        name: tensor
        for name, tensor in read_tensors(folder).items()
        if not name.endswith("position_ids")
    }
    config_path = join(folder, "config.json")
    config = model_config.read_config(config_path)
    if config.is_classic:
        tensors = {_canonical(name): tensor for name, tensor in tensors.items()}
        _pop_decoder(folder, tensors)
    with _blaming(config_path):
        encoder = open_encoder(config)
    if encoder.num_groups > len(tensors):  # before building a table of that many layers
        raise UserError(
            f"{folder}: config.json says num_hidden_layers={config.num_hidden_layers}, "
            f"the file has {len(tensors)} tensors"
        )
    stated = _stated_architecture(config_path)
    architecture = stated if stated in ARCHITECTURES else _guess_architecture(tensors)
    # (C, H)
    classifier = tensors.get("classifier.weight", np.transpose(tensors.get("classifier/kernel", 0)))
    num_classes = len(classifier) if np.ndim(classifier) == 2 else 1

    weights, missing = {}, []
    with _blaming(config_path):
        specs = _specs(encoder, num_classes, architecture)
    names = weight_names(config, specs)
    for name, spec in specs.items():
        theirs = names[name]
        lacking = [their for their in theirs if their not in tensors]
        if lacking:
            if not name.startswith(_HEADS) or name.startswith(ARCHITECTURES[architecture]):
                missing.append(name)
            continue
        shape = _their_shape(name, theirs, spec.shape)
        for their in theirs:
            if tensors[their].shape != shape:
                raise UserError(
                    f"{folder}: {their} has shape {tensors[their].shape}, "
                    f"config.json asks for {shape}"
                )
            if not np.isfinite(tensors[their]).all():
                raise UserError(
                    f"{folder}: {their} has values that are not finite; "
                    "the file is damaged, so download or write it again"
                )
        weights[name] = _to_ours(name, theirs, [tensors[their] for their in theirs])
    known = {their for name in weights for their in names[name]}
    unused = sorted(set(tensors) - known)
    if any(
        name.startswith(
            (f"bert.encoder.layer.{config.num_groups}.", f"layer_{config.num_groups}/", "encoder/")
        )
        for name in unused
    ):
        raise UserError(
            f"{folder}: has more layers than config.json says "
            f"(num_hidden_layers={config.num_hidden_layers}); correct it"
        )
    labels = _read_labels(config_path) if "classifier/kernel" in weights else ()
    return config, weights, Notes(missing, unused, architecture, labels)


def read(path):
    """The formats.Model of a folder."""
    return Model(*read_model(path))


def write(model, folder, options):
    """Writes a Model's folder; returns the line for the log."""
    write_model(
        folder,
        model.config,
        model.weights,
        model.notes.architecture,
        model.notes.labels,
        tokenizer_files(model.tokenizer),
    )
    return f"{folder}: {model.notes.architecture}"


def write_model(folder, config, weights, architecture="BertForPreTraining", labels=(), files=None):
    """Writes a model folder that `read_model` reads back and, for a BERT, `transformers` opens with
    `architecture`.from_pretrained.

    The bytes depend on the arguments alone. The folder is replaced as a whole when it is complete;
    other files of the old folder stay.

    Args:
      folder: path.
      weights: {our name: array}; weights that the architecture does not have (a pretraining head
        in a classifier) are left out.
      architecture: a key of ARCHITECTURES.
      labels: names of a classifier's classes; by default LABEL_0, LABEL_1 and so on.
      files: {name: bytes} of further files, such as vocab.txt.

    Raises:
      UserError: a weight of the architecture is missing.
    """
    if architecture not in ARCHITECTURES:
        raise UserError(f"--architecture={architecture}: known are {', '.join(ARCHITECTURES)}")
    num_classes = (
        np.shape(weights["classifier/kernel"])[-1] if "classifier/kernel" in weights else 1
    )
    if architecture == "BertForSequenceClassification":
        labels = tuple(labels) or tuple(f"LABEL_{index}" for index in range(num_classes))
        if len(labels) != num_classes:
            raise UserError(f"{folder}: {len(labels)} labels for {num_classes} classes")
    else:
        labels = ()

    specs = _specs(open_encoder(config), num_classes, architecture)
    tensors, names = {}, weight_names(config, specs)
    for name, spec in specs.items():
        if name.startswith(_HEADS) and not name.startswith(ARCHITECTURES[architecture]):
            continue
        if name not in weights:
            if name.startswith("pooler/") and architecture == "BertModel":
                continue
            raise UserError(
                f"{folder}: {architecture} needs the weight {name}, which this model lacks"
            )
        array = np.asarray(weights[name], np.float32)
        assert array.shape == spec.shape, f"{name}: {array.shape}, expected {spec.shape}"
        for their, part in zip(names[name], _to_theirs(name, names[name], array), strict=True):
            tensors[their.removeprefix("bert.") if architecture == "BertModel" else their] = part
    replace_folder(
        str(folder).rstrip("/"),
        {
            **(files or {}),
            "model.safetensors": tensor_files.save(tensors),
            "config.json": model_config.config_bytes(config, architecture, labels),
        },
    )
