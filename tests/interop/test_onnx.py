"""ONNX files give in onnxruntime what our code computes, for any batch and length; the names are
those of transformers' classes.
"""

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu import EmbedConfig, Embedder, fill_mask
from bert_gpu.base.errors import UserError
from bert_gpu.interop import huggingface, onnx
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests import pretraining, task_heads
from tests.interop.test_huggingface import oracle_environment

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
HERE = pathlib.Path(__file__).parent
LETTERS = "abcdefghijklmnopqrstuv"
PIECES = [*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS), "the"]
TEXTS = ["the bad cab", "a", "the face had aged, an old cab"]
LONG = "the face had aged and a badge faded on the old jade cab"  # more than 40 pieces
MASKED = "the [MASK] cab"
OPENED = {
    "pretrained": ("BertForPreTraining", {}),
    "classifier": ("BertForSequenceClassification", {}),
    "quick": ("BertForMaskedLM", dict(norm_first=True, position_embedding_type="rotary")),
    "crammed": ("BertForMaskedLM", CRAMMED),
}
ROTARY = dict(position_embedding_type="rotary", embedding_size=16, num_hidden_groups=1)


def make(architecture, switches):
    config = ModelConfig(**SIZES, **switches)
    encoder = open_encoder(config)
    specs = dict(
        BertForPreTraining=lambda: pretraining.weights(encoder),
        BertForMaskedLM=lambda: pretraining.weights(encoder, next_sentence=False),
        BertForSequenceClassification=lambda: task_heads.specs("classifier", encoder, 3),
        BertForTokenClassification=lambda: task_heads.specs("token_classifier", encoder, 4),
        BertForQuestionAnswering=lambda: task_heads.specs("span", encoder),
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
        found["logits"] = heads.mlm_logits(weights, hidden, positions, model.config)
    if kind == "BertForPreTraining":
        found["pooler_output"] = heads.pool(weights, hidden)
        found["seq_relationship_logits"] = heads.nsp_logits(weights, found["pooler_output"])
    if kind == "BertForSequenceClassification":
        vectors = heads.sentence_vector(weights, hidden, batch["input_mask"], model.config)
        found["logits"] = heads.classifier_logits(weights, vectors)
    if kind == "BertForTokenClassification":
        found["logits"] = heads.token_logits(weights, hidden, model.config)
    if kind == "BertForQuestionAnswering":
        found["start_logits"], found["end_logits"] = heads.span_logits(
            weights, hidden, model.config
        )
    return {name: value.numpy() for name, value in found.items()}


@pytest.mark.long
@pytest.mark.parametrize(
    "architecture, switches",
    [
        ("BertForPreTraining", {}),
        ("BertForMaskedLM", ROTARY),
        ("BertForMaskedLM", dict(position_embedding_type="disentangled", position_buckets=8)),
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
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
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
    assert sorted(os.listdir(tmp_path / "out")) == ["README.md", "config.json", "onnx"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """A folder of exported folders, and of our own ones of the same models, under own/; the models
    by name.
    """
    pytest.importorskip("tf2onnx")
    top, models = tmp_path_factory.mktemp("opened"), {}
    (top / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    tokenizer = open_tokenizer(str(top / "vocab.txt"), True)
    for name, (architecture, switches) in OPENED.items():
        models[name] = make(architecture, switches)._replace(tokenizer=tokenizer)
        onnx.write(models[name], str(top / name), None)
        huggingface.write_own(models[name], str(top / "own" / name))
    return top, models


@pytest.mark.long
def test_sentence_transformers_computes_our_embeddings(opened):
    """With its ONNX backend, for BERT and its variants; nothing is written to the folders."""
    top, models = opened
    if "BERT_GPU_OPTIMUM_PYTHON" not in os.environ:
        pytest.skip("needs sentence-transformers: set BERT_GPU_OPTIMUM_PYTHON")
    before = sorted(top.rglob("*"))
    command = [os.environ["BERT_GPU_OPTIMUM_PYTHON"], HERE / "optimum_oracle.py"]
    subprocess.run(
        [*command, *(top / name for name in models)],
        input=json.dumps([*TEXTS, LONG]),
        text=True,
        env=oracle_environment(top),
        check=True,
    )
    for name in models:
        config = EmbedConfig(model=str(top / "own" / name), pooling="mean", max_seq_length=40)
        theirs = np.load(top / f"{name}.npy")
        np.testing.assert_allclose(theirs, Embedder(config)([*TEXTS, LONG]), rtol=0, atol=1e-5)
    assert {path for path in top.rglob("*") if path.suffix != ".npy"} == set(before)


@pytest.mark.long
def test_transformers_js_computes_the_same(opened):
    """Ids, outputs, words for [MASK] and probabilities of classes."""
    top, models = opened
    if "BERT_GPU_NODE_FOLDER" not in os.environ:
        pytest.skip("needs transformers.js: set BERT_GPU_NODE_FOLDER")
    asked = dict(folders=str(top), names=list(models), texts=TEXTS, masked=MASKED)
    command = ["node", HERE / "transformers_js.cjs", os.environ["BERT_GPU_NODE_FOLDER"]]
    result = subprocess.run(
        command, input=json.dumps(asked), stdout=subprocess.PIPE, text=True, check=True
    )
    for name, theirs in json.loads(result.stdout).items():
        model, own = models[name], str(top / "own" / name)
        ids, mask = np.array(theirs["ids"]), np.array(theirs["mask"])
        for row, text in zip(ids, TEXTS, strict=True):
            assert row[row > 0].tolist() == [2, *model.tokenizer.tokenize([text])[0][:38], 3], name
        ours = expected(model, ids, mask, np.zeros_like(ids))
        assert theirs["outputs"].keys() == ours.keys()
        for key, value in ours.items():
            found = np.reshape(theirs["outputs"][key]["data"], theirs["outputs"][key]["dims"])
            if found.shape[-1] == 50:  # scores of words: ours at three positions
                found, value = found[:, [0, 2, 4]], value * mask[:, [0, 2, 4], None]
                found = found * mask[:, [0, 2, 4], None]
            elif found.shape[:2] == mask.shape:
                found, value = found[mask > 0], value[mask > 0]
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-4, err_msg=f"{name} {key}")
        if name == "classifier":
            scores = tf.nn.softmax(ours["logits"]).numpy()
            found = [
                [row[f"LABEL_{label}"] for label in range(3)]
                for row in (
                    {one["label"]: one["score"] for one in rows} for rows in theirs["found"]
                )
            ]
            np.testing.assert_allclose(found, scores, rtol=0, atol=1e-5)
        else:
            (words,) = fill_mask(MASKED, model=own, top_k=3)[0]
            found = [(one["score"], one["token_str"]) for one in theirs["found"]]
            assert [word for _, word in found] == [word for _, word in words]
            np.testing.assert_allclose(
                [score for score, _ in found], [score for score, _ in words], rtol=0, atol=1e-5
            )


@pytest.mark.parametrize(
    "lacking, names",
    [
        ("mlm/transform/kernel", ["pooler_output", "seq_relationship_logits"]),
        ("nsp/bias", ["logits", "pooler_output"]),
        ("pooler/kernel", ["logits"]),
    ],
)
def test_a_pretraining_head_that_lacks_weights_has_no_output(lacking, names):
    model = make("BertForPreTraining", {})
    weights = {name: value for name, value in model.weights.items() if name != lacking}
    hidden, mask = tf.zeros([2, 5, 32]), tf.ones([2, 5], tf.int32)
    found = onnx.outputs("BertForPreTraining", weights, hidden, mask, model.config)
    assert sorted(found) == sorted(["last_hidden_state", *names])


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
    assert json.loads((tmp_path / "out" / "config.json").read_text()).get("problem_type") == means


def test_what_cannot_leave_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    model = make("BertForMaskedLM", {})
    monkeypatch.setattr(onnx, "MAX_WEIGHT_BYTES", 1000)
    with pytest.raises(UserError, match="one file of ONNX holds 2 GB"):
        onnx.write(model, str(tmp_path / "out"), None)
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(
        UserError, match=r"needs the package tf2onnx; install it with pip install 'bert-gpu\["
    ):
        onnx.write(model, str(tmp_path / "out"), None)
    headless = make("BertForSequenceClassification", {})
    notes = headless.notes._replace(missing=["classifier/kernel"])
    monkeypatch.setattr(onnx, "import_tf2onnx", lambda: None)
    with pytest.raises(UserError, match="needs the weight classifier/kernel, which this model"):
        onnx.write(headless._replace(notes=notes), str(tmp_path / "out"), None)
    assert os.listdir(tmp_path) == []
