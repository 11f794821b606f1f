"""ONNX files give in onnxruntime what our code computes, for any batch and length; the names are
those of transformers' classes.
"""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.interop import huggingface, onnx
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig, read_problem_type
from bert_gpu.model.encoders import open_encoder
from bert_gpu.settings import UserError

SIZES = dict(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=40,
)
CRAMMED = dict(
    hidden_act="geglu",
    norm_first=True,
    norm_type="rms_norm",
    position_embedding_type="scaled_sinusoidal",
    type_vocab_size=0,
    use_bias=False,
    mlm_transform=False,
    decoder_bias=False,
    pooling="mean",
    pooler_size=16,
)
ROTARY = dict(position_embedding_type="rotary", embedding_size=16, num_hidden_groups=1)


def make(architecture, switches):
    config = ModelConfig(**SIZES, **switches)
    encoder = open_encoder(config)
    specs = dict(
        BertForPreTraining=lambda: heads.pretraining_weights(encoder),
        BertForMaskedLM=lambda: heads.pretraining_weights(encoder, next_sentence=False),
        BertForSequenceClassification=lambda: heads.classifier_weights(encoder, 3),
        BertForTokenClassification=lambda: heads.token_classifier_weights(encoder, 4),
        BertForQuestionAnswering=lambda: heads.span_weights(encoder),
    )[architecture]()
    generator = np.random.default_rng(0)
    weights = {
        name: (0.3 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }
    return Model(config, weights, Notes([], [], architecture, ()))


def expected(model, ids, mask, segments):
    """{name: array}, put down here once more from heads.py."""
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    batch = dict(input_ids=ids, input_mask=mask, segment_ids=segments)
    batch = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    hidden = open_encoder(model.config).encode(weights, batch)
    found, kind = dict(last_hidden_state=hidden), model.notes.architecture
    positions = tf.constant([[0, 2, 4]] * len(ids))
    if "mlm/norm/scale" in weights or kind == "BertForMaskedLM":
        name = "logits" if kind == "BertForMaskedLM" else "prediction_logits"
        found[name] = heads.mlm_logits(weights, hidden, positions, model.config)
    if kind == "BertForPreTraining":
        found["pooler_output"] = heads.pool(weights, hidden)
        found["seq_relationship_logits"] = heads.nsp_logits(weights, found["pooler_output"])
    if kind == "BertForSequenceClassification":
        vectors = heads.sentence_vector(weights, hidden, batch["input_mask"], model.config)
        found["logits"] = heads.classifier_logits(weights, vectors)
    if kind == "BertForTokenClassification":
        found["logits"] = heads.token_logits(weights, hidden)
    if kind == "BertForQuestionAnswering":
        found["start_logits"], found["end_logits"] = heads.span_logits(weights, hidden)
    return {name: value.numpy() for name, value in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    "architecture, switches",
    [
        ("BertForPreTraining", {}),
        ("BertForMaskedLM", ROTARY),
        ("BertForSequenceClassification", CRAMMED),
        ("BertForTokenClassification", dict(norm_first=True)),
        ("BertForQuestionAnswering", dict(hidden_act="gelu_new")),
    ],
)
def test_onnxruntime_computes_the_same(tmp_path, architecture, switches):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    model = make(architecture, switches)
    line = onnx.write(model, str(tmp_path / "out"), None)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"))
    names = [output.name for output in session.get_outputs()]
    generator = np.random.default_rng(1)
    for num_rows, length in ((3, 11), (1, 40)):
        ids, segments = (generator.integers(0, high, (num_rows, length)) for high in (50, 2))
        mask = (np.arange(length) < generator.integers(5, length + 1, (num_rows, 1))).astype(int)
        inputs = dict(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        if "token_type_ids" not in [given.name for given in session.get_inputs()]:
            del inputs["token_type_ids"]  # a model without segments
        found = dict(zip(names, session.run(None, inputs), strict=True))
        ours = expected(model, ids, mask, segments)
        assert found.keys() == ours.keys()
        for name, value in ours.items():
            theirs = found[name]
            if theirs.shape[-1] == 50:  # scores of words: ours at three positions
                theirs = theirs[:, [0, 2, 4]]
            if value.shape[:2] == mask.shape:
                value, theirs = value[mask > 0], theirs[mask > 0]
            np.testing.assert_allclose(theirs, value, rtol=0, atol=1e-4)
    assert all(name in line for name in names)
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "config.json", "model.onnx"]


@pytest.mark.parametrize(
    "lacking, names",
    [
        ("mlm/transform/kernel", ["pooler_output", "seq_relationship_logits"]),
        ("nsp/bias", ["pooler_output", "prediction_logits"]),
        ("pooler/kernel", ["prediction_logits"]),
    ],
)
def test_a_pretraining_head_that_lacks_weights_has_no_output(lacking, names):
    model = make("BertForPreTraining", {})
    weights = {name: value for name, value in model.weights.items() if name != lacking}
    hidden, mask = tf.zeros([2, 5, 32]), tf.ones([2, 5], tf.int32)
    found = onnx.outputs("BertForPreTraining", weights, hidden, mask, model.config)
    assert sorted(found) == ["last_hidden_state", *names]


@pytest.mark.parametrize("means", ["regression", "multi_label_classification", None])
def test_the_files_say_what_the_scores_mean(tmp_path, monkeypatch, means):
    """As those of our own folder do; nothing is translated."""
    model = make("BertForSequenceClassification", {})._replace(task={"task.json": b"{}"})
    model = model._replace(notes=model.notes._replace(labels=("a", "b", "c"), problem_type=means))
    graph = SimpleNamespace(graph=SimpleNamespace(output=[]), SerializeToString=lambda: b"")
    convert = SimpleNamespace(from_function=lambda *_, **__: (graph, None))
    monkeypatch.setattr(onnx, "import_tf2onnx", lambda: SimpleNamespace(convert=convert))
    onnx.write(model, str(tmp_path / "out"), None)
    huggingface.write_own(model, str(tmp_path / "own"))
    for name in ("config.json", "task.json"):
        there, ours = (tmp_path / folder / name for folder in ("out", "own"))
        assert there.read_bytes() == ours.read_bytes()
    assert read_problem_type(tmp_path / "out" / "config.json") == means


def test_what_cannot_leave_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    model = make("BertForMaskedLM", {})
    monkeypatch.setattr(onnx, "MOST_BYTES", 1000)
    with pytest.raises(UserError, match="one file of ONNX holds 2 GB"):
        onnx.write(model, str(tmp_path / "out"), None)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(UserError, match=r"needs tf2onnx; install it with pip install 'bert-gpu\["):
        onnx.write(model, str(tmp_path / "out"), None)
    headless = make("BertForSequenceClassification", {})
    notes = headless.notes._replace(missing=["classifier/kernel"])
    monkeypatch.setattr(onnx, "import_tf2onnx", lambda: None)
    with pytest.raises(UserError, match="needs the weight classifier/kernel, which this model"):
        onnx.write(headless._replace(notes=notes), str(tmp_path / "out"), None)
    assert os.listdir(tmp_path) == []
