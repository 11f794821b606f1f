"""Hugging Face's folders: equal outputs in both directions, every known variation read, every
fault named.

BERT_GPU_ORACLE_PYTHON names a Python with torch and transformers, where the tests' own
environment has none.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.base.files import CHECKSUM
from bert_gpu.interop import huggingface
from bert_gpu.interop.heads import ARCHITECTURES, LABELLED
from bert_gpu.interop.tensors import read_tensors
from bert_gpu.model import encoder, heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.weights import initialize
from tests import pretraining, task_heads
from tests.model import variants
from tests.model.variants import VARIANTS

CONFIG = ModelConfig(
    vocab_size=70,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=3,
    intermediate_size=40,
    max_position_embeddings=16,
)
CLASSES = list(ARCHITECTURES)
HERE = pathlib.Path(__file__).parent


def oracle_python():
    here = (
        sys.executable
        if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch")
        else None
    )
    return os.environ.get("BERT_GPU_ORACLE_PYTHON", here)


def needs_oracle(test):
    """Marks a test that compares with transformers."""
    is_missing = oracle_python() is None
    reason = "needs transformers and torch: set BERT_GPU_ORACLE_PYTHON"
    return pytest.mark.long(pytest.mark.skipif(is_missing, reason=reason)(test))


def oracle_environment(folder):
    """Environment variables for transformers; `folder` holds its copies of models' code."""
    return {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(folder / "modules"),
        "OMP_NUM_THREADS": "1",
    }


def run_oracle(mode, folder):
    """What each class of transformers computes for the batch: {class: {output: array}}."""
    batch = oracle_batch()
    np.savez(
        folder / "batch.npz",
        input_ids=batch["input_ids"],
        attention_mask=batch["input_mask"],
        token_type_ids=batch["segment_ids"],
    )
    script = [oracle_python(), str(HERE / "huggingface_oracle.py"), mode, str(folder)]
    environment = oracle_environment(folder)
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: dict(np.load(folder / f"{name}.npz")) for name in CLASSES}


def oracle_batch():
    generator = np.random.default_rng(2)
    return {
        "input_ids": generator.integers(0, 70, (3, 11)),
        "input_mask": (np.arange(11) < [[11], [6], [3]]).astype(np.int64),
        "segment_ids": generator.integers(0, 2, (3, 11)),
    }


def random_weights(num_classes=3, seed=4):
    generator = np.random.default_rng(seed)
    specs = {
        **pretraining.weights(open_encoder(CONFIG)),
        **task_heads.specs("classifier", open_encoder(CONFIG), num_classes),
        **task_heads.specs("token_classifier", open_encoder(CONFIG), num_classes),
        **task_heads.specs("span", open_encoder(CONFIG)),
    }
    return {
        name: (0.2 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }


def assert_same_outputs(name, weights, config, expected):
    batch = {key: tf.constant(values, tf.int32) for key, values in oracle_batch().items()}
    weights = {key: tf.constant(value) for key, value in weights.items()}
    hidden = encoder.encode(weights, batch, config)
    positions = tf.tile(tf.range(11)[None], [3, 1])
    real = batch["input_mask"].numpy().astype(bool)
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)  # noqa: E731
    if name == "BertModel":
        close(hidden.numpy()[real], expected["last_hidden_state"][real])
        close(heads.pool(weights, hidden), expected["pooler_output"])
    if name == "BertForPreTraining":
        close(
            heads.nsp_logits(weights, heads.pool(weights, hidden)),
            expected["seq_relationship_logits"],
        )
    if name in ("BertForPreTraining", "BertForMaskedLM"):
        logits = heads.mlm_logits(weights, hidden, positions, config).numpy()
        close(
            logits[real],
            expected["prediction_logits" if name == "BertForPreTraining" else "logits"][real],
        )
    if name == "BertForSequenceClassification":
        close(heads.classifier_logits(weights, heads.pool(weights, hidden)), expected["logits"])
    if name == "BertForTokenClassification":
        close(heads.token_logits(weights, hidden, config).numpy()[real], expected["logits"][real])
    if name == "BertForQuestionAnswering":
        for ours, theirs in zip(
            heads.span_logits(weights, hidden, config), ("start", "end"), strict=True
        ):
            close(ours.numpy()[real], expected[f"{theirs}_logits"][real])


@needs_oracle
def test_their_models_compute_the_same_here(tmp_path):
    outputs = run_oracle("make", tmp_path)
    for name in CLASSES:
        config, weights, notes = huggingface.read_model(str(tmp_path / name))
        assert (notes.missing, notes.unused, notes.architecture) == ([], [], name)
        assert config == CONFIG
        assert_same_outputs(name, weights, config, outputs[name])


@needs_oracle
def test_our_models_compute_the_same_there(tmp_path):
    weights = random_weights()
    for name in CLASSES:
        labels = ("no", "yes", "perhaps") if name in LABELLED else ()
        huggingface.write_model(str(tmp_path / name), CONFIG, weights, name, labels)
    outputs = run_oracle("open", tmp_path)
    for name in CLASSES:
        assert_same_outputs(name, weights, CONFIG, outputs[name])
    for name in LABELLED:
        assert list(outputs[name]["labels"]) == ["no", "yes", "perhaps"]


def file_tensors(folder):
    return safetensors.numpy.load((folder / "model.safetensors").read_bytes())


def save_tensors(folder, tensors):
    (folder / "model.safetensors").write_bytes(
        safetensors.numpy.save(tensors, metadata={"format": "pt"})
    )


@pytest.fixture
def folder(tmp_path):
    """A BertForPreTraining folder, as its path."""
    huggingface.write_model(str(tmp_path / "model"), CONFIG, random_weights(), "BertForPreTraining")
    return tmp_path / "model"


@pytest.mark.parametrize("name", CLASSES)
def test_what_is_written_reads_back_the_same(tmp_path, name):
    weights = random_weights()
    huggingface.write_model(str(tmp_path / "model"), CONFIG, weights, name)
    config, back, notes = huggingface.read_model(str(tmp_path / "model"))
    assert config == CONFIG and notes.missing == notes.unused == [] and notes.architecture == name
    assert notes.labels == (("LABEL_0", "LABEL_1", "LABEL_2") if name in LABELLED else ())
    heads_kept = ARCHITECTURES[name].prefixes
    assert set(back) == {
        key for key in weights if key.startswith(("embeddings/", "layer_", *heads_kept))
    }
    assert all((back[key] == weights[key]).all() and back[key].dtype == np.float32 for key in back)


@pytest.mark.parametrize(
    "variant", [name for name, config in VARIANTS.items() if not config.is_classic]
)
@pytest.mark.parametrize(
    "name", ["BertForPreTraining", "BertForMaskedLM", "BertForSequenceClassification"]
)
def test_architectures_of_our_own_read_back_the_same(tmp_path, name, variant):
    """Under our names and a model_type that transformers does not know."""
    config = VARIANTS[variant]
    weights = variants.random_weights(config, num_classes=3)
    huggingface.write_model(
        str(tmp_path / "model"),
        config,
        weights,
        name,
        ("a", "b", "c") if "Classification" in name else (),
    )
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "bert_gpu"
    back_config, back, notes = huggingface.read_model(str(tmp_path / "model"))
    assert (
        back_config == config and notes.missing == notes.unused == [] and notes.architecture == name
    )
    assert notes.labels == (("a", "b", "c") if "Classification" in name else ())
    heads_kept = {"BertForPreTraining": ("pooler", "mlm", "nsp"), "BertForMaskedLM": ("mlm",)}.get(
        name, ("pooler", "classifier")
    )
    expected = {
        key
        for key in weights
        if not key.startswith(("pooler", "mlm", "nsp", "classifier")) or key.startswith(heads_kept)
    }
    assert set(back) == expected == set(file_tensors(tmp_path / "model"))
    assert all((back[key] == weights[key]).all() for key in back)


def test_faults_of_our_own_architectures_are_named(tmp_path):
    config = dataclasses.replace(VARIANTS["crammed"], num_hidden_layers=4)
    folder = tmp_path / "model"
    weights = variants.random_weights(config)
    huggingface.write_model(str(folder), config, weights, "BertForMaskedLM")
    tensors = file_tensors(folder)
    del tensors["layer_1/attention/qkv/kernel"]
    save_tensors(folder, tensors | {"layer_0/odd": np.zeros(2, np.float32)})
    _, _, notes = huggingface.read_model(str(folder))
    assert notes.missing == ["layer_1/attention/qkv/kernel"] and notes.unused == ["layer_0/odd"]
    say_in_config(num_hidden_layers=2)(folder)
    with pytest.raises(UserError, match="more layers than config.json says"):
        huggingface.read_model(str(folder))
    say_in_config(num_hidden_layers=4, hidden_size=24)(folder)
    with pytest.raises(UserError, match="embeddings/word has shape"):
        huggingface.read_model(str(folder))


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertForSequenceClassification"])
@pytest.mark.parametrize(
    "switches",
    [dict(pooling="mean"), dict(pooler_size=10), dict(encoder="garden:albert", embedding_size=6)],
)
def test_heads_and_encoders_of_other_kinds_read_back_the_same(tmp_path, name, switches):
    """A pretraining's pooler is that of next sentences, a classifier's what the config says."""
    config = ModelConfig(**variants.SMALL | switches)
    is_classifier = name == "BertForSequenceClassification"
    specs = (
        task_heads.specs("classifier", open_encoder(config), 3)
        if is_classifier
        else pretraining.weights(open_encoder(config))
    )
    weights = initialize(specs, 0)
    assert weights["pooler/kernel"].shape == (
        16,
        switches.get("pooler_size", 16) if is_classifier else 16,
    )
    huggingface.write_model(str(tmp_path / "model"), config, weights, name)
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    assert written["model_type"] == "bert_gpu" and written.items() >= switches.items()
    back_config, back, notes = huggingface.read_model(str(tmp_path / "model"))
    assert (
        back_config == config and notes.missing == notes.unused == [] and notes.architecture == name
    )
    assert set(back) == set(weights) and all((back[key] == weights[key]).all() for key in back)


def test_a_pooler_of_the_hidden_size_is_that_of_bert(tmp_path):
    config = ModelConfig(**variants.SMALL, pooling="first", pooler_size=16)
    huggingface.write_model(
        str(tmp_path),
        config,
        initialize(task_heads.specs("classifier", open_encoder(config), 2), 0),
        CLASSES[3],
    )
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "bert" and not {"pooling", "pooler_size", "encoder"} & set(
        written
    )


@pytest.mark.parametrize(
    "said, message",
    [
        (dict(encoder="garden:alberta"), "encoder=garden:alberta: no such encoder"),
        (dict(encoder="albert"), "encoder=albert: must be garden:NAME"),
        (
            dict(encoder="garden:albert,block_size=4"),
            "encoder=garden:albert,block_size=4: 'block_size=4' is not FIELD=VALUE",
        ),
        (dict(norm_first=True), "norm_first=True: .*garden:albert has no such switch"),
        (dict(encoder=None, pooling="max"), "pooling=max: must be one of cls, mean"),
        (dict(model_type="bert"), "model_type='bert' has no encoder='garden:albert'"),
        (dict(encoder="garden:bert"), "has more layers"),
    ],
)
def test_faults_of_a_garden_encoders_folder_are_named(tmp_path, said, message):
    config, folder = ModelConfig(**variants.SMALL, encoder="garden:albert"), tmp_path / "model"
    huggingface.write_model(
        str(folder), config, initialize(pretraining.weights(open_encoder(config)), 0)
    )
    say_in_config(**said)(folder)
    with pytest.raises(UserError, match=message) as caught:
        huggingface.read_model(str(folder))
    assert (
        str(folder) in str(caught.value)
        and len(str(caught.value)) <= 300
        and "\n" not in str(caught.value)
    )


@needs_oracle
def test_transformers_does_not_take_our_own_architectures_for_bert(tmp_path):
    config = VARIANTS["pre"]
    huggingface.write_model(
        str(tmp_path / "model"), config, variants.random_weights(config), "BertForMaskedLM"
    )
    program = (
        "import sys, transformers; transformers.AutoModelForMaskedLM.from_pretrained(sys.argv[1])"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [oracle_python(), "-c", program, str(tmp_path / "model")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0 and "trust_remote_code=True" in done.stderr


def test_same_weights_same_bytes_and_other_files_stay(folder, tmp_path):
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "vocab.txt").write_text("[PAD]\n")
    weights = dict(reversed(random_weights().items()))
    huggingface.write_model(
        str(folder) + "/", CONFIG, weights, "BertForPreTraining", files={"extra.txt": b"x"}
    )
    assert {name: (folder / name).read_bytes() for name in first} == first
    assert sorted(os.listdir(folder)) == [
        "config.json",
        "extra.txt",
        "model.safetensors",
        "vocab.txt",
    ]
    assert os.listdir(tmp_path) == ["model"]


def test_old_names_bare_encoder_stored_decoder_and_buffers_are_read(folder):
    config, expected, _ = huggingface.read_model(str(folder))
    tensors = file_tensors(folder)
    old = {}
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        )
        old[name.removeprefix("bert.")] = tensor
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
    old["embeddings.position_ids"] = np.arange(16)[None]
    save_tensors(folder, old)
    _, weights, notes = huggingface.read_model(str(folder))
    assert notes.missing == notes.unused == [] and set(weights) == set(expected)
    assert all((weights[name] == expected[name]).all() for name in expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16])
def test_other_precisions_become_float32(folder, dtype):
    _, expected, _ = huggingface.read_model(str(folder))
    save_tensors(
        folder, {name: tensor.astype(dtype) for name, tensor in file_tensors(folder).items()}
    )
    _, weights, _ = huggingface.read_model(str(folder))
    for name, value in weights.items():
        assert (
            value.dtype == np.float32
            and (value == expected[name].astype(dtype).astype(np.float32)).all()
        )


def test_missing_and_unused_weights_are_named(folder):
    tensors = file_tensors(folder)
    del (
        tensors["bert.encoder.layer.1.attention.self.key.bias"],
        tensors["cls.seq_relationship.bias"],
    )
    tensors["qa_outputs.bias"] = np.zeros(2, np.float32)
    save_tensors(folder, tensors)
    _, weights, notes = huggingface.read_model(str(folder))
    assert notes.missing == ["layer_1/attention/qkv/bias", "nsp/bias"]
    assert "qa_outputs.bias" in notes.unused and "layer_1/attention/qkv/bias" not in weights


def test_shards_are_read_through_their_index(folder):
    _, expected, _ = huggingface.read_model(str(folder))
    tensors, weight_map = file_tensors(folder), {}
    for part, names in enumerate([sorted(tensors)[::2], sorted(tensors)[1::2]]):
        shard = f"model-0000{part + 1}-of-00002.safetensors"
        (folder / shard).write_bytes(
            safetensors.numpy.save({name: tensors[name] for name in names})
        )
        weight_map.update(dict.fromkeys(names, shard))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    _, weights, notes = huggingface.read_model(str(folder))
    assert not notes.missing and all((weights[name] == expected[name]).all() for name in expected)


def test_the_index_says_which_shard_holds_a_tensor(tmp_path):
    """Also where other shards hold another tensor of that name; what the index does not know is
    left out and named, what its shard lacks is an error, wherever else it is.
    """
    names, shards = st.sampled_from("abcd"), st.sampled_from(["x", "y", "z"])

    @settings(max_examples=60)
    @given(
        st.dictionaries(names, shards, min_size=1),
        st.dictionaries(shards, st.dictionaries(names, st.integers(0, 9))),
    )
    def check(weight_map, contents):
        for shard in "xyz":
            tensors = {k: np.float32([value]) for k, value in contents.get(shard, {}).items()}
            (tmp_path / shard).write_bytes(safetensors.numpy.save(tensors))
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps(dict(weight_map=weight_map)))
        lacking = [n for n, shard in weight_map.items() if n not in contents.get(shard, {})]
        if lacking:
            name = min(lacking)
            with pytest.raises(UserError, match=f"json: {weight_map[name]} lacks {name}; download"):
                read_tensors(str(tmp_path))
            return
        tensors, left_out = read_tensors(str(tmp_path))
        assert tensors == {n: contents[shard][n] for n, shard in weight_map.items()}
        others = {n for shard in weight_map.values() for n in contents[shard]} - weight_map.keys()
        assert left_out == [f"{n} (not in the index)" for n in sorted(others)]

    check()


def break_shape(folder):
    save_tensors(
        folder,
        {
            **file_tensors(folder),
            "bert.encoder.layer.0.output.dense.weight": np.zeros((3, 4), np.float32),
        },
    )


def untie_decoder(folder):
    save_tensors(
        folder,
        {**file_tensors(folder), "cls.predictions.decoder.weight": np.zeros((70, 24), np.float32)},
    )


def cut_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def only_torch(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder):
    (folder / "model.safetensors").unlink()


def no_config(folder):
    (folder / "config.json").unlink()


def say_in_config(**values):
    def damage(folder):
        config = json.loads((folder / "config.json").read_text())
        config.pop(CHECKSUM, None)  # as who edits it does
        (folder / "config.json").write_text(json.dumps(config | values))

    return damage


def spoil_number(folder):
    tensors = file_tensors(folder)
    tensors["bert.pooler.dense.bias"][3] = np.nan
    save_tensors(folder, tensors)


def scalar_classifier(folder):
    say_in_config(architectures=["BertForSequenceClassification"])(folder)
    save_tensors(
        folder,
        {
            **file_tensors(folder),
            "classifier.weight": np.zeros((), np.float32),
            "classifier.bias": np.zeros(1, np.float32),
        },
    )


def classify_with(labels):
    def damage(folder):
        huggingface.write_model(
            str(folder), CONFIG, random_weights(2), "BertForSequenceClassification"
        )
        say_in_config(id2label=labels)(folder)

    return damage


def claim(size, entry):
    """A header of `size` bytes, by its own account, with one tensor in it."""

    def damage(folder):
        header = json.dumps({"bert.pooler.dense.bias": dict(dtype="F32") | entry}).encode()
        begin = (len(header) if size is None else size).to_bytes(8, "little")
        (folder / "model.safetensors").write_bytes(begin + header + bytes(8))

    return damage


def break_index(weight_map):
    def damage(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps(dict(weight_map=weight_map))
        )

    return damage


@pytest.mark.parametrize(
    "damage, message",
    [
        (break_shape, r"bert.encoder.layer.0.output.dense.weight has shape \(3, 4\).*\(24, 40\)"),
        (untie_decoder, "cls.predictions.decoder.weight differs"),
        (cut_file, "not a complete safetensors file"),
        (only_torch, "installed: BertForPreTraining.from_pretrained.*save_pretrained"),
        (no_weights, "has no model.safetensors"),
        (no_config, "config.json: no such file"),
        *[
            (say_in_config(architectures=value), "architectures=.*must be ")
            for value in (5, "BertModel", [5], [["a"]], {})
        ],
        (say_in_config(hidden_size=-8), "hidden_size=-8: must be at least 1"),
        (say_in_config(hidden_size="24"), "hidden_size=24: must be of type int"),
        (say_in_config(hidden_size=24 * 10**15), "has shape"),
        (say_in_config(num_hidden_layers=10**9), "num_hidden_layers=1000000000"),
        (say_in_config(num_hidden_layers=1), "more layers than config.json says"),
        *[
            (classify_with(labels), "id2label")
            for labels in (5, [5], ["a", "b"], {"a": "b"}, {"0": "\ud800", "1": "b"})
        ],
        *[
            (break_index(weight_map), "weight_map")
            for weight_map in (5, {"a": 5}, {"a": ["b"]}, {"a": "../b.safetensors"})
        ],
        (break_index({"a": "b.safetensors"}), "b.safetensors: cannot be read"),
        *[
            (claim(size, entry), "not a complete safetensors file")
            for size, entry in (
                (2**63, {}),
                (10**9, {}),
                (None, dict(shape=[2**32, 2**32], data_offsets=[0, 4])),
                (None, dict(shape=[2], data_offsets=[0, 10**12])),
                (None, dict(shape=[-2], data_offsets=[0, 8])),
            )
        ],
        (spoil_number, "bert.pooler.dense.bias has values that are not finite"),
        (scalar_classifier, r"classifier.weight has shape \(\)"),
    ],
)
def test_faults_are_named_in_one_line(folder, damage, message):
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        huggingface.read_model(str(folder))
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        huggingface.read_model(str(tmp_path / "nowhere"))


def test_weights_that_the_architecture_needs_are_asked_for(tmp_path):
    weights = {
        name: value for name, value in random_weights().items() if not name.startswith("nsp/")
    }
    with pytest.raises(UserError, match="BertForPreTraining needs the weight nsp/kernel"):
        huggingface.write_model(str(tmp_path / "model"), CONFIG, weights, "BertForPreTraining")
    assert os.listdir(tmp_path) == []
