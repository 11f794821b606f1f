"""Writes ONNX for CPUs and other runtimes: a graph that takes token ids, in onnx/model.onnx, where
transformers.js and sentence-transformers look for it. Inputs and outputs have the names that
Hugging Face's optimum gives them.

tf2onnx translates bert-gpu's TensorFlow graph, so every variant of the encoder can be exported.
Batch size and length are not fixed. The inputs are int64 (B, S); the tokenizer's files lie beside
the model.

Legend: B batch, S sequence, H hidden, V vocabulary, C classes.
"""

import logging
import os
import types
import warnings
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError
from bert_gpu.base.fused import inlined, stderr_discarded
from bert_gpu.interop import card
from bert_gpu.interop.folders import replace_folder
from bert_gpu.interop.formats import Model
from bert_gpu.interop.heads import ARCHITECTURES, HEADS
from bert_gpu.interop.huggingface import score_meaning
from bert_gpu.interop.relatives import own_relative
from bert_gpu.interop.tokenizers import tokenizer_files
from bert_gpu.interop.usage import written_usage
from bert_gpu.model import config_json
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder

OPSET = 17
MODEL = "onnx/model.onnx"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
USAGE = {
    "In onnxruntime": (
        "import onnxruntime, transformers",
        'session = onnxruntime.InferenceSession("FOLDER/onnx/model.onnx")',
        'tokenizer = transformers.AutoTokenizer.from_pretrained("FOLDER")',
        'session.run(None, dict(tokenizer(texts, padding=True, return_tensors="np")))',
    ),
    "In sentence-transformers, with its ONNX backend": (
        "from sentence_transformers import SentenceTransformer",
        'SentenceTransformer("FOLDER", backend="onnx").encode(texts)',
    ),
    "In transformers.js": (
        "import { env, AutoModel, AutoTokenizer } from '@huggingface/transformers';",
        "env.localModelPath = 'THE FOLDER ABOVE IT';",
        "const tokenizer = await AutoTokenizer.from_pretrained('FOLDER');",
        "const model = await AutoModel.from_pretrained('FOLDER', { dtype: 'fp32' });",
        "const outputs = await model(tokenizer(texts, { padding: true, truncation: true }));",
    ),
}
MAX_WEIGHT_BYTES = 2_000_000_000  # an ONNX file is one protobuf message, at most 2 GiB long


def outputs(
    architecture: str,
    weights: Mapping[str, tf.Tensor],
    hidden: tf.Tensor,
    mask: tf.Tensor,
    config: ModelConfig,
) -> dict[str, tf.Tensor]:
    """Return {name: tensor} of the outputs of the class `architecture` of transformers:
    last_hidden_state and the outputs of its heads. A class for a task gives only the task's head; a
    head that lacks weights is left out. The scores of words are called logits also where there is a
    next-sentence head, because programs that fill masks read that name.
    """
    tensors = dict(last_hidden_state=hidden)
    row = ARCHITECTURES[architecture]
    for name in (row.own,) if row.own else row.heads:
        if weights.keys() >= HEADS[name].weights(config, 1).keys():
            tensors |= HEADS[name].outputs(weights, hidden, mask, config)
    return tensors


def write(model: Model, folder: str, precision: str = "float32") -> str:
    """Write a model as ONNX; see formats.FormatModule."""
    tf2onnx = import_tf2onnx()
    config = model.config
    architecture = model.notes.architecture
    encoder = open_encoder(config)
    if encoder.fixed_length:
        raise UserError(
            f"the encoder ({config.encoder}) takes only rows of {encoder.fixed_length} tokens",
            "give --format=savedmodel",
            setting="format",
            value="onnx",
        )
    if model.notes.missing and architecture not in ("BertModel", "BertForPreTraining"):
        raise UserError(
            f"{architecture} needs the weight {model.notes.missing[0]}, which this model lacks",
            "name a model with its head",
            setting="format",
            value="onnx",
        )
    num_bytes = sum(np.size(value) for value in model.weights.values()) * 4
    if num_bytes > MAX_WEIGHT_BYTES:
        raise UserError(
            f"{num_bytes / 1000000000.0:.1f} GB of weights, but one file of ONNX holds 2 GB",
            "give --format=savedmodel",
            setting="format",
            value="onnx",
        )
    # tf2onnx would turn constants, but not variables, into inputs of the graph.
    weights = {name: tf.Variable(value) for name, value in model.weights.items()}

    relative = own_relative(config, architecture)
    names = INPUTS if config.takes_segments else INPUTS[:2]

    def compute(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        ids, mask, *others = (tf.cast(value, tf.int32) for value in values)
        segments = others[0] if others else tf.zeros_like(ids)
        tensors = {name: tf.convert_to_tensor(weight) for name, weight in weights.items()}
        batch = dict(input_ids=ids, input_mask=mask, segment_ids=segments)
        return outputs(architecture, tensors, encoder.encode(tensors, batch), mask, config)

    signature = [tf.TensorSpec([None, None], tf.int64, name=name) for name in names]
    with inlined(), stderr_discarded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        function = tf.function(compute, autograph=False, input_signature=signature)
        proto, _ = tf2onnx.convert.from_function(function, signature, opset=OPSET)
    # a variant of BERT too has the model_type "bert" here: the graph computes it, not the class
    more = score_meaning(architecture, model.notes.problem_type)
    make_config = relative.config_bytes if relative else config_json.config_bytes
    more |= {} if relative else dict(model_type="bert")
    contents = {
        **tokenizer_files(model.tokenizer, config, max_seq_length=model.notes.max_seq_length),
        **written_usage(model),
        MODEL: proto.SerializeToString(),
        "README.md": card.readme(model, USAGE),
        "config.json": make_config(config, architecture, model.notes.labels, more),
    }
    replace_folder(folder.rstrip("/"), contents, is_whole_model=True)
    results = ", ".join(output.name for output in proto.graph.output)
    return f"{os.path.join(folder, MODEL)}: {', '.join(names)} (int64) -> {results}"


def import_tf2onnx() -> types.ModuleType:
    """Import and return tf2onnx, which is not installed by default. Raise UserError when it is
    missing.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tf2onnx = import_extra(
            "tf2onnx",
            "--format=onnx",
            "install it with pip install 'bert-gpu[onnx]', or pip install tf2onnx",
        )
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    return tf2onnx
