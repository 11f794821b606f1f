"""Weights into and out of Model Garden's BertEncoderV2, as its own code saves and loads them.

All of it builds tf_keras models, which takes seconds.
"""

import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main
from bert_gpu.base.errors import UserError
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.interop import garden, google, models
from bert_gpu.interop.formats import Model, Notes, recognise
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, encode
from tests import pretraining, task_heads
from tests.finetune.evaluations import task_of
from tests.interop import tensorflow_1

pytestmark = pytest.mark.long
CLASSIFIER = task_of(TASKS["pairs"])
CONFIG = ModelConfig(**tensorflow_1.SHAPE, hidden_act="gelu_new")


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """(folder of a model of ours with pretraining heads, its weights)."""
    generator = np.random.default_rng(7)
    specs = pretraining.weights(BertEncoder(CONFIG))
    weights = {
        name: (0.3 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }
    folder = tmp_path_factory.mktemp("ours")
    models.write_model(str(folder), CONFIG, weights)
    (folder / "vocab.txt").write_text("\n".join(tensorflow_1.VOCAB) + "\n")
    return folder, weights


@pytest.fixture(scope="module")
def exported(ours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    command = ["bert-gpu", "export", f"--from={ours[0]}", f"--to={folder}", "--format=garden"]
    assert main(command) == 0
    return folder


def their_encoder(kind="BertEncoderV2", **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.nlp.modeling import networks
    sizes = dict(
        vocab_size=13,
        hidden_size=16,
        num_layers=2,
        num_attention_heads=4,
        max_sequence_length=12,
        type_vocab_size=2,
        inner_dim=32,
    )
    return getattr(networks, kind)(**sizes, **settings)


def batch():
    generator = np.random.default_rng(1)
    return dict(
        input_ids=tf.constant(generator.integers(0, 13, (3, 9)), tf.int32),
        input_mask=tf.constant(np.arange(9) < [[9], [5], [2]], tf.int32),
        segment_ids=tf.constant(generator.integers(0, 2, (3, 9)), tf.int32),
    )


def outputs_of(encoder):
    found = batch()
    return encoder(
        dict(
            input_word_ids=found["input_ids"],
            input_mask=found["input_mask"],
            input_type_ids=found["segment_ids"],
        )
    )


def assert_same_hidden(theirs, weights):
    weights = {name: tf.constant(value) for name, value in weights.items()}
    hidden = encode(weights, batch(), CONFIG).numpy()
    real = batch()["input_mask"].numpy().astype(bool)
    np.testing.assert_allclose(theirs["sequence_output"].numpy()[real], hidden[real], 0, 1e-5)
    np.testing.assert_allclose(theirs["pooled_output"], heads.pool(weights, hidden), 0, 1e-5)


@pytest.mark.parametrize("kind", ["BertEncoderV2", "BertEncoder"])
def test_their_encoder_loads_ours_and_computes_the_same(ours, exported, kind):
    encoder = their_encoder(kind, **dict(dict_outputs=True) if kind == "BertEncoder" else {})
    outputs_of(encoder)
    checkpoint = tf.train.Checkpoint(encoder=encoder)
    status = checkpoint.read(tf.train.latest_checkpoint(exported))
    status.assert_existing_objects_matched().expect_partial()
    assert_same_hidden(outputs_of(encoder), ours[1])


def test_their_pretraining_task_goes_on_from_ours(exported, ours):
    """What their trainer restores, in a model that their code builds: both heads' scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.nlp.modeling import layers
        from official.nlp.modeling import models as their_models
    head = layers.ClassificationHead(16, 2, name="next_sentence")
    pretrainer = their_models.BertPretrainerV2(
        their_encoder(),
        mlm_activation=lambda x: tf.nn.gelu(x, approximate=True),
        classification_heads=[head],
    )
    features = dict(
        input_word_ids=batch()["input_ids"],
        input_mask=batch()["input_mask"],
        input_type_ids=batch()["segment_ids"],
        masked_lm_positions=tf.constant([[0, 1]] * 3),
    )
    pretrainer(features)
    status = tf.train.Checkpoint(model=pretrainer, **pretrainer.checkpoint_items).read(
        tf.train.latest_checkpoint(exported)
    )
    status.assert_existing_objects_matched().expect_partial()
    found = pretrainer(features)
    weights = {name: tf.constant(value) for name, value in ours[1].items()}
    hidden = encode(weights, batch(), CONFIG)
    expected = heads.nsp_logits(weights, heads.pool(weights, hidden))
    np.testing.assert_allclose(found["next_sentence"], expected, 0, 1e-5)
    words = heads.mlm_logits(weights, hidden, features["masked_lm_positions"], CONFIG)
    np.testing.assert_allclose(found["mlm_logits"], words, 0, 1e-5)


def their_classifier(num_classes, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from official.nlp.modeling import models as their_models
    return their_models.BertClassifier(their_encoder(), num_classes, **settings)


def class_scores(weights):
    weights = {name: tf.constant(value) for name, value in weights.items()}
    return CLASSIFIER.logits(weights, batch(), BertEncoder(CONFIG), tf.float32)


@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_their_classification_task_goes_on_from_our_classifier(num_classes, tmp_path):
    """Its head, and the encoder's pooler for a task that takes the encoder alone."""
    generator = np.random.default_rng(num_classes)
    weights = {
        name: (0.3 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in task_heads.specs("classifier", BertEncoder(CONFIG), num_classes).items()
    }
    notes = Notes([], [], "BertForSequenceClassification", ())
    garden.write(Model(CONFIG, weights, notes), str(tmp_path / "out"), None)
    classifier = their_classifier(num_classes, use_encoder_pooler=False)
    status = tf.train.Checkpoint(model=classifier, **classifier.checkpoint_items).read(
        tf.train.latest_checkpoint(tmp_path / "out")
    )
    status.assert_existing_objects_matched().expect_partial()
    np.testing.assert_allclose(outputs_of(classifier), class_scores(weights), 0, 1e-5)
    encoder = classifier.checkpoint_items["encoder"]
    assert_same_hidden(outputs_of(encoder), weights)


@pytest.mark.parametrize("has_items", [False, True])
@pytest.mark.parametrize("use_encoder_pooler", [False, True])
def test_a_checkpoint_of_their_classifier_comes_in_with_the_pooler_that_it_uses(
    use_encoder_pooler, has_items, tmp_path
):
    generator = np.random.default_rng(3)
    classifier = their_classifier(2, use_encoder_pooler=use_encoder_pooler)
    for variable in classifier.trainable_weights:
        variable.assign(0.3 * generator.standard_normal(variable.shape))
    items = classifier.checkpoint_items if has_items else {}
    saved = tf.train.Checkpoint(model=classifier, global_step=tf.Variable(3), **items)
    saved.save(str(tmp_path / "ckpt"))
    (tmp_path / "bert_config.json").write_text(json.dumps(tensorflow_1.SETTINGS))
    model = models.read_model(str(tmp_path))
    assert model.notes.architecture == "BertForSequenceClassification"
    np.testing.assert_allclose(outputs_of(classifier), class_scores(model.weights), 0, 1e-5)


def test_out_and_in_again_is_the_same(ours, exported):
    assert recognise(str(exported)) == "garden"
    assert (exported / "vocab.txt").read_bytes() == (ours[0] / "vocab.txt").read_bytes()
    model = garden.read(str(exported))
    assert model.config == CONFIG and model.notes.architecture == "BertForPreTraining"
    assert model.weights.keys() == ours[1].keys()
    assert all(np.array_equal(model.weights[name], value) for name, value in ours[1].items())


@pytest.mark.parametrize("name, architecture", [("encoder", "BertModel"), ("model", "BertModel")])
def test_a_checkpoint_of_their_encoder_alone_comes_in(tmp_path, name, architecture):
    generator = np.random.default_rng(2)
    encoder = their_encoder()
    outputs_of(encoder)
    for variable in encoder.trainable_weights:
        variable.assign(0.3 * generator.standard_normal(variable.shape))
    tf.train.Checkpoint(**{name: encoder}).save(str(tmp_path / "ckpt"))
    (tmp_path / "bert_config.json").write_text(json.dumps(tensorflow_1.SETTINGS))
    model = garden.read(str(tmp_path))
    assert model.notes.architecture == architecture and "pooler/kernel" in model.weights
    assert_same_hidden(outputs_of(encoder), model.weights)


def test_their_converter_takes_our_export_for_google_and_we_take_what_it_makes(tmp_path):
    (tmp_path / "tf1").mkdir()
    variables = tensorflow_1.write(tmp_path / "tf1")
    google.write(google.read(str(tmp_path / "tf1")), str(tmp_path / "in"), None)
    command = [
        sys.executable,
        "-m",
        "official.nlp.tools.tf2_bert_encoder_checkpoint_converter",
        f"--bert_config_file={tmp_path}/in/bert_config.json",
        f"--checkpoint_to_convert={tmp_path}/in/bert_model.ckpt",
        f"--converted_checkpoint_path={tmp_path}/out/ckpt",
        "--converted_model=pretrainer",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    shutil.copy(tmp_path / "in" / "bert_config.json", tmp_path / "out")
    model = garden.read(str(tmp_path / "out"))
    assert model.notes.architecture == "BertForMaskedLM"
    kernel = variables["bert/encoder/layer_1/attention/self/value/kernel"]
    assert np.array_equal(model.weights["layer_1/attention/qkv/kernel"][:, 32:], kernel)
    bias = variables["cls/predictions/output_bias"]
    assert np.array_equal(model.weights["mlm/bias"], bias)
    pooler = variables["bert/pooler/dense/kernel"]
    assert np.array_equal(model.weights["pooler/kernel"], pooler)


@pytest.mark.parametrize(
    "settings, part",
    [
        (dict(num_hidden_layers=3), "no checkpoint of Model Garden's BERT with the layers"),
        (dict(hidden_size=32), "does not fit bert_config.json"),
        (dict(vocab_size=14), "does not fit bert_config.json"),
        (dict(num_hidden_layers=10**9), "num_hidden_layers=1000000000"),
        (dict(layer_norm_eps=1e-5), "layer_norm_eps=1e-05"),
    ],
)
def test_a_config_that_contradicts_the_checkpoint_is_one_line(exported, tmp_path, settings, part):
    shutil.copytree(exported, tmp_path / "in")
    (tmp_path / "in" / "bert_config.json").write_text(json.dumps(tensorflow_1.SETTINGS | settings))
    with pytest.raises(UserError) as error:
        garden.read(str(tmp_path / "in"))
    assert part in str(error.value) and len(str(error.value)) <= 300, error.value


@pytest.mark.parametrize("damage", ["no data", "short data", "index"])
def test_broken_files_are_one_line(exported, tmp_path, damage):
    shutil.copytree(exported, tmp_path / "in")
    data = tmp_path / "in" / "bert_model.ckpt.data-00000-of-00001"
    if damage == "no data":
        data.unlink()
    if damage == "short data":
        data.write_bytes(data.read_bytes()[:900])
    if damage == "index":
        index = tmp_path / "in" / "bert_model.ckpt.index"
        content = index.read_bytes()
        index.write_bytes(content[:100] + b"\xff" * 50 + content[150:])
    with pytest.raises(UserError) as error:
        models.read_model(str(tmp_path / "in"))
    assert str(tmp_path / "in") in str(error.value) and "\n" not in str(error.value)


def test_what_model_garden_does_not_have_is_named(ours, tmp_path):
    model = models.read_model(str(ours[0]))
    odd = ModelConfig(**tensorflow_1.SHAPE, norm_first=True)
    with pytest.raises(UserError, match="--format=garden: .*norm_first=True"):
        garden.write(model._replace(config=odd), str(tmp_path / "out"), None)
    assert not (tmp_path / "out").exists()
