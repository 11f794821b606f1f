"""BERT's relatives in transformers compute the same here, from switches of ModelConfig: an
independent check of each switch, and of the folders that come in.

MegatronBERT is pre-LN without an embedding norm, RoBERTa-PreLayerNorm pre-LN, RoFormer rotary and
factorised, ALBERT factorised with shared layers, Nomic BERT rotary with SwiGLU and no biases.
RoBERTa and XLM-R begin their positions at row 2, DistilBERT has no segments and no pooler. ELECTRA
is factorised, to narrower, wider or equal embeddings, without a pooler.
ModernBERT is rotary with local layers, GEGLU, no biases and no first norm.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.interop import huggingface, models, relatives, sources
from bert_gpu.model import encoder, heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from tests import pretraining
from tests.interop.test_huggingface import file_tensors, needs_oracle, oracle_python

SIZES = dict(
    vocab_size=70, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
    max_position_embeddings=16, layer_norm_eps=1e-6,
)  # fmt: skip
BATCH = {
    "input_ids": np.random.default_rng(2).integers(2, 70, (3, 18)),
    "input_mask": (np.arange(18) < [[18], [6], [3]]).astype(np.int64),
    "segment_ids": np.random.default_rng(3).integers(0, 2, (3, 18)),
}


def dense(ours, *theirs, has_bias=True):
    return {f"{ours}/kernel": [f"{name}.weight" for name in theirs]} | (
        {f"{ours}/bias": [f"{name}.bias" for name in theirs]} if has_bias else {}
    )


def norm(ours, theirs):
    return {f"{ours}/scale": [f"{theirs}.weight"], f"{ours}/bias": [f"{theirs}.bias"]}


def embeddings(theirs, has_positions=True):
    return {
        "embeddings/word": [f"{theirs}.word_embeddings.weight"],
        "embeddings/segment": [f"{theirs}.token_type_embeddings.weight"],
        **(
            {"embeddings/position": [f"{theirs}.position_embeddings.weight"]}
            if has_positions
            else {}
        ),
    }


def mlm_head(transform, normalisation, decoder):
    return {
        **dense("mlm/transform", transform),
        **norm("mlm/norm", normalisation),
        "mlm/bias": [f"{decoder}.bias"],
    }


def projections(theirs, names):
    return [f"{theirs}.{name}" for name in names]


def roformer():
    names = embeddings("roformer.embeddings", has_positions=False) | norm(
        "embeddings/norm", "roformer.embeddings.LayerNorm"
    )
    names |= dense("embeddings/projection", "roformer.embeddings_project")
    for index in range(2):
        ours, theirs = f"layer_{index}", f"roformer.encoder.layer.{index}"
        names |= dense(
            f"{ours}/attention/qkv",
            *projections(f"{theirs}.attention.self", ("query", "key", "value")),
        )
        names |= dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense")
        names |= norm(f"{ours}/attention/norm", f"{theirs}.attention.output.LayerNorm")
        names |= dense(f"{ours}/feed_forward/in", f"{theirs}.intermediate.dense")
        names |= dense(f"{ours}/feed_forward/output", f"{theirs}.output.dense") | norm(
            f"{ours}/feed_forward/norm", f"{theirs}.output.LayerNorm"
        )
    head = "cls.predictions"
    names |= mlm_head(f"{head}.transform.dense", f"{head}.transform.LayerNorm", f"{head}.decoder")
    return ModelConfig(**SIZES, position_embedding_type="rotary", embedding_size=10), names


# of the models that come in as folders, what they are here
COMING_IN = {
    "MegatronBertForMaskedLM": dict(norm_first=True, embedding_norm=False),
    "RobertaPreLayerNormForMaskedLM": dict(norm_first=True),
    "AlbertForMaskedLM": dict(
        hidden_act="gelu_new", num_hidden_layers=4, embedding_size=10, num_hidden_groups=2
    ),
    "NomicBertForMaskedLM": dict(
        position_embedding_type="rotary", hidden_act="swiglu", use_bias=False, intermediate_size=80
    ),
}
ROBERTA = dict(first_position=2, max_position_embeddings=18, type_vocab_size=1, layer_norm_eps=1e-5)
DISTIL = dict(model_family="distilbert", pooler_act="relu", type_vocab_size=0, layer_norm_eps=1e-12)
MODERN = dict(
    model_family="modernbert", norm_first=True, first_norm=False, norm_bias=False,
    head_transform=True, use_bias=False, type_vocab_size=0, position_embedding_type="rotary",
    rotary_base=160000.0, local_rotary_base=10000.0, hidden_act="geglu",
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
OLDER = dict(rotary_base=90.0, local_rotary_base=30.0)
for shape, sizes in enumerate(
    (
        {},
        dict(vocab_size=73, hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
        dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=4, intermediate_size=50),
    )
):
    for name, family in (("Roberta", "roberta"), ("XLMRoberta", "xlm-roberta")):
        COMING_IN[f"{name}ForMaskedLM-{shape}"] = ROBERTA | sizes | dict(model_family=family)
    more = dict(hidden_act=("gelu", "relu")[shape % 2], max_position_embeddings=16 + shape)
    COMING_IN[f"DistilBertForMaskedLM-{shape}"] = DISTIL | sizes | more
    more = dict(model_family="electra", pooler_act="gelu", embedding_size=(10, 40, None)[shape])
    COMING_IN[f"ElectraForMaskedLM-{shape}"] = sizes | more
    more = dict(local_attention=4 + 2 * shape, decoder_bias=shape < 2)
    more |= dict(pooling=("first", "mean")[shape % 2])
    inner = 2 * sizes.get("intermediate_size", SIZES["intermediate_size"])
    COMING_IN[f"ModernBertForMaskedLM-{shape}"] = (
        MODERN | sizes | more | (OLDER if shape == 0 else {}) | dict(intermediate_size=inner)
    )


@pytest.mark.parametrize("every", [1, 2, 3, 4])
@pytest.mark.parametrize("bases", [(160000.0, 10000.0), (90.0, 30.0), (90.0, None)])
def test_a_modernbert_says_the_same_in_the_keys_of_older_files(every, bases):
    """transformers before 5 reads three keys, whose defaults are 3, 160000 and 10000, and not
    layer_types and rope_parameters, which transformers 5 reads.
    """
    bases_of = dict(zip(("rotary_base", "local_rotary_base"), bases, strict=True))
    shape = MODERN | SIZES | bases_of | dict(num_hidden_layers=5, global_attention_every=every)
    config = ModelConfig(**shape)
    name = "BertForMaskedLM"
    found = json.loads(relatives.relative_of(config, name).config_bytes(config, name, (), {}))
    older = found.get("global_attn_every_n_layers", 3)
    assert found["layer_types"] == [
        "sliding_attention" if layer % older else "full_attention" for layer in range(5)
    ]
    for kind, key, default in (
        ("full_attention", "global_rope_theta", 160000.0),
        ("sliding_attention", "local_rope_theta", 10000.0),
    ):
        assert found["rope_parameters"][kind]["rope_theta"] == found.get(key, default)


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """(folder of saved models, {class: {"weights/NAME" or "outputs/NAME": array}})."""
    folder = tmp_path_factory.mktemp("relatives")
    batch = dict(
        input_ids=BATCH["input_ids"],
        attention_mask=BATCH["input_mask"],
        token_type_ids=BATCH["segment_ids"],
    )
    np.savez(folder / "batch.npz", **batch)
    script = [
        oracle_python(),
        str(pathlib.Path(__file__).parent / "relatives_oracle.py"),
        str(folder),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, {path.stem: dict(np.load(path)) for path in folder.glob("*For*.npz")}


def neighbours_to_halves(kernel, num_heads):
    """Columns of a query or key kernel, whose heads RoFormer turns as (0, 1), (2, 3), ..., in the
    order of our pairs (i, i + D / 2).
    """
    columns = np.arange(kernel.shape[-1]).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return kernel[..., columns]


def cut_batch(config):
    """BATCH in rows as long as the positions of a model, padded with 0."""
    length = config.num_positions
    batch = {key: tf.constant(values[:, :length], tf.int32) for key, values in BATCH.items()}
    return batch | dict(input_ids=batch["input_ids"] * batch["input_mask"])


def assert_same_scores(weights, config, outputs):
    """Of the tokens, for rows that fill the model's positions and rows with padding."""
    length, batch = config.num_positions, cut_batch(config)
    weights = {name: tf.constant(value) for name, value in weights.items()}
    positions, real = tf.tile(tf.range(length)[None], [3, 1]), batch["input_mask"].numpy() > 0
    hidden = encoder.encode(weights, batch, config)
    ours = heads.mlm_logits(weights, hidden, positions, config)
    for name, values in (("hidden", hidden), ("logits", ours)):
        expected = outputs[f"outputs/{name}"][real]
        assert len(expected) == length + 9
        atol = 2e-5 * max(1, abs(expected).max())
        np.testing.assert_allclose(values.numpy()[real], expected, rtol=0, atol=atol, err_msg=name)


@needs_oracle
@pytest.mark.parametrize("name", COMING_IN)
def test_relatives_come_in_and_compute_the_same(oracle, name):
    folder, outputs = oracle
    path = str(folder / name)
    config, weights, notes = huggingface.read_model(path)
    assert config == ModelConfig(**SIZES | COMING_IN[name])
    assert (notes.missing, notes.unused, notes.architecture) == ([], [], "BertForMaskedLM")
    assert sources.read_config(path) == config
    assert_same_scores(weights, config, outputs[name])


@needs_oracle
@pytest.mark.parametrize("name", [name for name in COMING_IN if "-" in name])
def test_a_family_leaves_as_it_came(oracle, name, tmp_path):
    """The class, all tensors bit by bit, and what transformers makes of the config.json; also in
    the folders that trainings write.
    """
    theirs = oracle[0] / name
    model = huggingface.read(str(theirs))
    line = huggingface.write(model, str(tmp_path / "there"))
    assert name.partition("-")[0] in line and "AutoModelForMaskedLM" in line
    models.write_own(model, str(tmp_path / "own"))
    there, own, before = (
        file_tensors(folder) for folder in (tmp_path / "there", tmp_path / "own", theirs)
    )
    assert there.keys() == own.keys() == before.keys()
    assert all(there[key].tobytes() == before[key].tobytes() for key in before)
    assert all(own[key].tobytes() == before[key].tobytes() for key in before)
    config, own_config, said = (
        json.loads((folder / "config.json").read_text())
        for folder in (tmp_path / "there", tmp_path / "own", theirs)
    )
    assert config == own_config
    # transformers 5 keeps the distance of global layers as it was given, and reads layer_types
    same = config.keys() & said.keys() - {"architectures", "global_attn_every_n_layers"}
    assert {"model_type", "vocab_size", "pad_token_id", "max_position_embeddings"} <= same
    assert {key: config[key] for key in same} == {key: said[key] for key in same}
    assert huggingface.read(str(tmp_path / "there")).config == model.config


@needs_oracle
def test_a_discriminator_comes_in_as_an_encoder(oracle, tmp_path, capsys):
    """Its head, which finds replaced tokens, is named in one warning; the rest leaves bit by
    bit.
    """
    theirs, to = oracle[0] / "ElectraForPreTraining", tmp_path / "there"
    assert command(["bert-gpu", "import", f"--from={theirs}", f"--to={to}"]) == 0
    err = capsys.readouterr().err
    assert err.count("\n") == 2 and "no such weights: discriminator_predictions.dense.bias" in err
    config, weights, notes = huggingface.read_model(str(to))
    assert (notes.missing, notes.unused, notes.architecture) == ([], [], "BertModel")
    assert json.loads((to / "config.json").read_text())["architectures"] == ["ElectraModel"]
    before = {
        name.removeprefix("electra."): tensor.tobytes()
        for name, tensor in file_tensors(theirs).items()
        if not name.startswith("discriminator_predictions.")
    }
    assert {name: tensor.tobytes() for name, tensor in file_tensors(to).items()} == before
    outputs = oracle[1]["ElectraForPreTraining"]
    batch, real = cut_batch(config), BATCH["input_mask"][:, : config.num_positions] > 0
    hidden = encoder.encode({name: tf.constant(x) for name, x in weights.items()}, batch, config)
    expected = outputs["outputs/hidden"][real]
    atol = 2e-5 * max(1, abs(expected).max())
    np.testing.assert_allclose(hidden.numpy()[real], expected, rtol=0, atol=atol)


@needs_oracle
def test_roformer_computes_the_same_here(oracle):
    """Which comes in by hand: its heads turn neighbours."""
    config, names = roformer()
    outputs = oracle[1]["RoFormerForMaskedLM"]
    weights = {}
    for ours, theirs in names.items():
        parts = [outputs[f"weights/{key}"] for key in theirs]
        parts = [part.T for part in parts] if ours.endswith("/kernel") else parts
        if "/qkv/" in ours:
            parts[:2] = [
                neighbours_to_halves(part, config.num_attention_heads) for part in parts[:2]
            ]
        weights[ours] = np.concatenate(parts, -1) if len(parts) > 1 else parts[0]
    assert set(weights) == set(pretraining.weights(BertEncoder(config), next_sentence=False))
    assert_same_scores(weights, config, outputs)
