"""Every model leaves: transformers computes the same from an exported folder, in the class that the
export names, and the folder comes in again the same.
"""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.interop import formats, huggingface, models
from bert_gpu.interop.heads import ARCHITECTURES, LABELLED, PREFIXES
from bert_gpu.interop.relatives import RELATIVES, relative_of
from bert_gpu.model import encoder, heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests import pretraining, task_heads
from tests.interop.test_huggingface import (
    CONFIG,
    file_tensors,
    needs_oracle,
    oracle_environment,
    oracle_python,
    say_in_config,
)
from tests.model.variants import SMALL, VARIANTS, as_tensors, random_batch

MODERN = dict(
    model_family="modernbert", norm_first=True, first_norm=False, norm_bias=False,
    head_transform=True, use_bias=False, type_vocab_size=0, position_embedding_type="rotary",
    rotary_base=80.0, local_rotary_base=20.0, local_attention=4, hidden_act="geglu",
)  # fmt: skip
# a model of each relative
OF_RELATIVES = {
    "MegatronBert": ModelConfig(**SMALL, norm_first=True, embedding_norm=False),
    "RobertaPreLayerNorm": ModelConfig(**SMALL, norm_first=True),
    "Albert": ModelConfig(**SMALL, embedding_size=6, num_hidden_groups=2, hidden_act="gelu_new"),
    "NomicBert": ModelConfig(
        **SMALL, position_embedding_type="rotary", hidden_act="swiglu", use_bias=False
    ),
    "Roberta": ModelConfig(
        **SMALL, model_family="roberta", first_position=2, type_vocab_size=1, layer_norm_eps=1e-5
    ),
    "XLMRoberta": ModelConfig(**SMALL, model_family="xlm-roberta", first_position=2),
    "DistilBert": ModelConfig(
        **SMALL, model_family="distilbert", pooler_act="relu", type_vocab_size=0, hidden_act="relu"
    ),
    "Electra": ModelConfig(**SMALL, model_family="electra", pooler_act="gelu", embedding_size=6),
    "ModernBert": ModelConfig(**SMALL, **MODERN),
    "DebertaV2": ModelConfig(
        **SMALL, model_family="deberta-v2", position_embedding_type="disentangled",
        position_buckets=6, max_relative_positions=14, type_vocab_size=0, legacy=False,
        pooler_act="gelu",
    ),
}  # fmt: skip
# of families, what their classes do not compute
DEPARTED = ModelConfig(
    **SMALL,
    model_family="roberta",
    first_position=2,
    type_vocab_size=1,
    pooling="mean",
    pooler_act="relu",
)
QUICK = dict(norm_first=True, position_embedding_type="rotary")
# the model of the recipe `quick`, and one with each other head of a classifier
OF_OURS = {name: config for name, config in VARIANTS.items() if not config.is_classic} | {
    "quick": ModelConfig(**SMALL, **QUICK),
    "mean": ModelConfig(
        **SMALL, norm_first=True, pooling="mean", pooler_size=10, pooler_act="gelu"
    ),
    "departed": DEPARTED,
}
HERE = pathlib.Path(__file__).parent


def model_of(config, architecture, seed=5):
    """A formats.Model with random weights for every head, in which every weight matters."""
    opened, generator = open_encoder(config), np.random.default_rng(seed)
    specs = pretraining.weights(opened) | task_heads.specs("token_classifier", opened, 3)
    specs |= task_heads.specs("span", opened)
    if architecture == "BertForSequenceClassification":
        specs |= task_heads.specs("classifier", opened, 3)
    weights = {
        name: (0.2 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }
    relative = relative_of(config, architecture)
    if architecture == "BertModel" and relative and "pooler" not in relative.family.parts:
        weights = {name: x for name, x in weights.items() if not name.startswith("pooler/")}
    labels = ("no", "yes", "perhaps") if architecture in LABELLED else ()
    return formats.Model(config, weights, formats.Notes([], [], architecture, labels))


def export(model, folder):
    return huggingface.write(model, str(folder))


def kept(model, architecture):
    """{name: array} of the weights that a class of these heads has."""
    own = ARCHITECTURES[architecture].prefixes
    return {
        name: value
        for name, value in model.weights.items()
        if not name.startswith(PREFIXES) or name.startswith(own)
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", OF_RELATIVES)
def test_what_a_relative_holds_reads_back_the_same(name, architecture, tmp_path):
    config, model = OF_RELATIVES[name], model_of(OF_RELATIVES[name], architecture)
    relative = relative_of(config, architecture)
    line = export(model, tmp_path / "there")
    if relative is None:
        assert name == "NomicBert" and architecture in ("BertModel", "BertForQuestionAnswering")
        assert "modeling_bert_gpu.py" in line
        return
    assert relative.family.class_name == name and name in line
    back = huggingface.read(str(tmp_path / "there"))
    held = relative.architecture_for(architecture)
    assert back.config == config and back.notes == model.notes._replace(architecture=held)
    expected = kept(model, held)
    assert set(back.weights) == set(expected)
    assert all((back.weights[key] == value).all() for key, value in expected.items())
    export(back, tmp_path / "again")
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / part).iterdir()}
        for part in ("there", "again")
    )
    assert first == second


def test_each_relative_has_a_model_here():
    assert {row.family.class_name for row in RELATIVES} == set(OF_RELATIVES)
    # what is near a relative, but not it
    for config in (
        ModelConfig(**SMALL, norm_first=True, hidden_act="relu"),
        ModelConfig(**SMALL, num_hidden_groups=2),
        ModelConfig(**SMALL, norm_first=True, decoder_bias=False),
        ModelConfig(**SMALL, norm_first=True, pooling="mean"),
        ModelConfig(**SMALL, position_embedding_type="rotary", hidden_act="swiglu"),
        DEPARTED,
        ModelConfig(**SMALL, first_position=2),
        ModelConfig(**SMALL, model_family="distilbert", pooler_act="relu"),
        ModelConfig(**SMALL, model_family="electra", embedding_size=6),
        dataclasses.replace(OF_RELATIVES["Electra"], pooling="mean"),
        dataclasses.replace(OF_RELATIVES["Electra"], hidden_act="relu"),
        ModelConfig(**SMALL, **MODERN | dict(hidden_act="swiglu")),
    ):
        assert relative_of(config, "BertForMaskedLM") is None


@pytest.mark.parametrize(
    "name, said, message",
    [
        ("RobertaPreLayerNorm", dict(pad_token_id=1), "pad_token_id=1 is not supported, only 0 is"),
        ("RobertaPreLayerNorm", dict(hidden_act="relu"), "hidden_act='relu' is not supported"),
        ("RobertaPreLayerNorm", dict(hidden_act=["gelu"]), "hidden_act=.*is not supported"),
        ("Albert", dict(inner_group_num=2), "inner_group_num=2 is not supported"),
        (
            "MegatronBert",
            dict(position_embedding_type="relative_key"),
            "relative_key.*not supported",
        ),
        ("NomicBert", dict(rope_parameters=dict(rope_theta=1e3)), "rope_parameters=.*not supp"),
        ("NomicBert", dict(intermediate_size="24"), "intermediate_size=24: must be of type int"),
        ("MegatronBert", dict(is_decoder=True), "is_decoder=True is not supported"),
        ("MegatronBert", dict(hidden_size=10**9), "must be a multiple|has shape"),
        ("MegatronBert", dict(model_type="longformer"), "model_type='longformer'"),
        ("Roberta", dict(pad_token_id=0), "pad_token_id=0 is not supported, only 1 is"),
        ("Roberta", dict(max_position_embeddings=26), "has shape .24, 16., config.json gives"),
        ("XLMRoberta", dict(max_position_embeddings=1), "max_position_embeddings=1: must be abov"),
        ("XLMRoberta", dict(hidden_act="relu"), "hidden_act='relu' is not supported, only gelu"),
        ("DistilBert", dict(sinusoidal_pos_embds=True), "sinusoidal_pos_embds=True is not suppo"),
        ("DistilBert", dict(activation="silu"), "activation='silu' is not supported"),
        ("DistilBert", dict(n_layers=2), "more layers than config.json says"),
        ("DistilBert", dict(model_type="deberta"), "model_type='deberta' is not supported"),
        ("Electra", dict(hidden_act="relu"), "hidden_act='relu' is not supported, only gelu"),
        ("Electra", dict(embedding_size=7), "has shape .40, 6., config.json gives .40, 7."),
        ("Electra", dict(tie_word_embeddings=False), "tie_word_embeddings=False is not supported"),
        ("Electra", dict(is_decoder=True), "is_decoder=True is not supported"),
        ("MegatronBert", dict(num_hidden_layers=2), "more layers than config.json says"),
        ("ModernBert", dict(layer_types=["sliding_attention"] * 4), "layer_types=.* not supported"),
        ("ModernBert", dict(num_hidden_layers=5), "layer_types=.* not supported"),
        ("ModernBert", dict(rope_parameters=3), "rope_parameters=.*only default is"),
        ("ModernBert", dict(rope_scaling=dict(factor=2.0)), "rope_parameters=.*only default is"),
        ("DebertaV2", dict(pos_att_type=3), "pos_att_type=3: must be one of c2p"),
        ("DebertaV2", dict(pos_att_type=[["c2p"]]), "pos_att_type=.*must be one of c2p"),
        ("DebertaV2", dict(pos_att_type=None), "pos_att_type=none: must be one of c2p"),
        ("DebertaV2", dict(position_buckets="6"), "position_buckets=6: must be of type int"),
        ("DebertaV2", dict(position_buckets=8), "has shape .12, 16., config.json gives .16, 16."),
        ("DebertaV2", dict(max_relative_positions=[1]), "max_relative_positions=.*must be of type"),
        ("DebertaV2", dict(legacy=None), "legacy=None is not supported"),
        ("DebertaV2", dict(norm_rel_ebd="none"), "norm_rel_ebd='none' is not supported"),
        ("DebertaV2", dict(attention_head_size=4), "attention_head_size=4 is not supported"),
        ("DebertaV2", dict(conv_kernel_size=3), "conv_kernel_size=3 is not supported"),
        ("ModernBert", dict(mlp_bias=True), "mlp_bias=True is not supported, only False is"),
        ("ModernBert", dict(hidden_activation="silu"), "hidden_activation='silu' is not supported"),
    ],
)
def test_faults_of_a_relatives_folder_are_named(name, said, message, tmp_path):
    export(model_of(OF_RELATIVES[name], "BertForMaskedLM"), tmp_path / "there")
    say_in_config(**said)(tmp_path / "there")
    with pytest.raises(UserError, match=message) as caught:
        models.read_model(str(tmp_path / "there"))
    assert "there" in str(caught.value) and len(str(caught.value)) <= 300


NAMES = dict(input_ids="input_ids", input_mask="attention_mask", segment_ids="token_type_ids")


def compute_there(tmp_path, batch, *features):
    """Let transformers open all folders in tmp_path/folders and write what they compute, and save
    them again (folders_oracle.py).
    """
    arrays = {NAMES[feature]: batch[feature].astype(np.int64) for feature in features}
    np.savez(tmp_path / "batch.npz", **arrays)
    script = [HERE / "folders_oracle.py", tmp_path / "folders", tmp_path / "batch.npz"]
    done = subprocess.run(
        [oracle_python(), *map(str, script)],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def expected_outputs(model, batch):
    """{name of an output there: array} that ours computes; padding is masked out by the caller."""
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    batch = {name: tf.constant(value, tf.int32) for name, value in batch.items()}
    config, architecture = model.config, model.notes.architecture
    hidden = encoder.encode(weights, batch, config)
    positions = tf.tile(tf.range(hidden.shape[1])[None], [hidden.shape[0], 1])
    words = lambda: heads.mlm_logits(weights, hidden, positions, config)  # noqa: E731
    vector = lambda: heads.sentence_vector(weights, hidden, batch["input_mask"], config)  # noqa: E731
    outputs = dict(
        BertModel=lambda: dict(last_hidden_state=hidden),
        BertForPreTraining=lambda: dict(
            prediction_logits=words(),
            seq_relationship_logits=heads.nsp_logits(weights, heads.pool(weights, hidden)),
        ),
        BertForMaskedLM=lambda: dict(logits=words()),
        BertForSequenceClassification=lambda: dict(
            logits=heads.classifier_logits(weights, vector())
        ),
        BertForTokenClassification=lambda: dict(logits=heads.token_logits(weights, hidden, config)),
        BertForQuestionAnswering=lambda: dict(
            zip(
                ("start_logits", "end_logits"),
                heads.span_logits(weights, hidden, config),
                strict=True,
            )
        ),
    )[architecture]()
    return {name: value.numpy() for name, value in outputs.items()}


@needs_oracle
def test_exported_models_compute_the_same_there(tmp_path):
    """BERT and all relatives with all heads; all of ours as language models, and two with all
    heads. What transformers saves of them comes in again the same.
    """
    others = [ModelConfig(**SMALL), *OF_RELATIVES.values()]
    cases = [(config, head) for config in others for head in ARCHITECTURES]
    for name, config in OF_OURS.items():
        every = name in ("quick", "mean", "departed")
        cases += [(config, head) for head in (ARCHITECTURES if every else ("BertForMaskedLM",))]
        cases += [] if every else [(config, "BertModel")]
    batch = random_batch(CONFIG, [11, 6, 3], 11)
    batch["input_ids"] = 2 + batch["input_ids"] % 38  # no padding, 0 or 1, inside a text
    batch["input_ids"] *= batch["input_mask"]
    exported = {}
    for index, (config, head) in enumerate(cases):
        model, path = model_of(config, head), tmp_path / f"folders/{index}"
        export(model, path)
        exported[path] = model._replace(notes=huggingface.read(str(path)).notes)
    compute_there(tmp_path, batch, "input_ids", "input_mask", "segment_ids")
    real = batch["input_mask"] > 0
    for path, model in exported.items():
        theirs = np.load(f"{path}.npz")
        for name, ours in expected_outputs(model, batch).items():
            per_token = ours.shape[:2] == real.shape
            pair = (ours[real], theirs[name][real]) if per_token else (ours, theirs[name])
            told = f"{name} of {model.config}"
            np.testing.assert_allclose(*pair, rtol=0, atol=1e-4, err_msg=told)
        if "learns" in theirs:
            assert theirs["learns"] == theirs["weights"], model.config
            assert 0 < theirs["loss"] < 99
        saved = huggingface.read(f"{path}-saved")
        config = model.config
        if (path / "config.json").read_text().count("deberta-v2"):  # its class names its family
            config = dataclasses.replace(config, model_family="deberta-v2")
        assert saved.config == config and saved.notes.architecture == model.notes.architecture
        assert (saved.notes.missing, saved.notes.unused) == ([], [])
        held = kept(model, model.notes.architecture)
        assert saved.weights.keys() == held.keys()
        assert all((saved.weights[key] == value).all() for key, value in held.items())


@needs_oracle
def test_a_row_of_8192_tokens_computes_the_same_there(tmp_path):
    """Of a ModernBERT with its own window and bases, of which the local layers are in blocks; and
    all of its weights learn from such a row.
    """
    sizes = dict(num_attention_heads=1, max_position_embeddings=8192, local_attention=128)
    sizes |= dict(rotary_base=160000.0, local_rotary_base=10000.0)
    config = ModelConfig(**SMALL | MODERN | sizes)
    model, path = model_of(config, "BertForMaskedLM"), tmp_path / "folders/long"
    export(model, path)
    batch = random_batch(config, [8000], 8192)
    compute_there(tmp_path, batch, "input_ids", "input_mask")
    theirs = np.load(f"{path}.npz")["logits"][0, :8000]
    weights = {name: tf.constant(value) for name, value in kept(model, "BertForMaskedLM").items()}
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = encoder.encode(weights, as_tensors(batch), config)
        ours = heads.chosen_mlm_logits(weights, hidden, config)[0, :8000]
        gradients = tape.gradient(tf.reduce_sum(ours * theirs), weights)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * abs(theirs).max())
    sizes = [tf.norm(gradient).numpy() for gradient in gradients.values()]
    assert np.isfinite(sizes).all() and min(sizes) > 0


GRAPHS = {
    "garden:albert": {"savedmodel", "onnx"},
    "garden:fnet": {"savedmodel"},  # rows of one length
}


@pytest.mark.parametrize("chosen", GRAPHS)
@pytest.mark.parametrize("name", ["huggingface", "google", "garden"])
def test_encoders_of_model_garden_leave_as_graphs_alone(tmp_path, chosen, name):
    """A format that a refusal names takes the model."""
    model = model_of(ModelConfig(**SMALL, encoder=chosen), "BertForMaskedLM")
    with pytest.raises(UserError) as caught:
        formats.open_format(name).write(model, str(tmp_path / "there"), None)
    message = str(caught.value)
    assert message.startswith(f"--format={name}: ") and chosen in message and len(message) <= 300
    advised = set(re.findall(r"--format=(\w+)", message)) - {name}
    assert advised and advised <= GRAPHS[chosen] and not (tmp_path / "there").exists()


def test_a_refused_export_says_one_line(tmp_path):
    """Not what XLA logs when the encoder of Model Garden is built."""
    config = ModelConfig(**SMALL, encoder="garden:albert")
    models.write_own(model_of(config, "BertForMaskedLM"), str(tmp_path / "from"))
    pieces = [*SPECIAL_PIECES, *map(str, range(config.vocab_size))][: config.vocab_size]
    (tmp_path / "from" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    flags = f"--from={tmp_path}/from", f"--to={tmp_path}/to", "--format=google"
    command = [sys.executable, "-m", "bert_gpu", "export", *flags]
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 2 and done.stderr.startswith("--format=google: its BERT has no ")
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_onnx_takes_what_the_advice_says(tmp_path):
    pytest.importorskip("tf2onnx")
    for chosen, takers in GRAPHS.items():
        model = model_of(ModelConfig(**SMALL, encoder=chosen), "BertForMaskedLM")
        folder = str(tmp_path / chosen)
        if "onnx" in takers:
            assert "model.onnx" in formats.open_format("onnx").write(model, folder, None)
        else:
            with pytest.raises(UserError, match="--format=onnx: .*; give --format=savedmodel"):
                formats.open_format("onnx").write(model, folder, None)


def test_a_folder_of_ours_carries_its_code(tmp_path):
    model = model_of(OF_OURS["quick"], "BertForMaskedLM")
    line = export(model, tmp_path / "there")
    assert "modeling_bert_gpu.py" in line and "trust_remote_code" in line
    ours = (tmp_path / "there" / "modeling_bert_gpu.py").read_bytes()
    assert ours == huggingface.CODE.read_bytes()
    assert set(file_tensors(tmp_path / "there")) == set(kept(model, "BertForMaskedLM"))


@needs_oracle
def test_pipelines_open_exported_folders(tmp_path):
    """A BERT and a model that has its code with it, with texts of a thousand words."""
    pieces = [*SPECIAL_PIECES, "the", "a", "city", "king", "of", "river", "##s", "?", "is", "where"]
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    tokenizer = open_tokenizer(str(tmp_path / "vocab.txt"), True)
    words, tasks, expected = "the kings of a city river " * 170, [], []
    for name, switches in (("bert", {}), ("quick", dict(QUICK))):
        config = ModelConfig(**SMALL | dict(vocab_size=len(pieces)) | switches)
        for task, architecture in (
            ("fill-mask", "BertForMaskedLM"),
            ("text-classification", "BertForSequenceClassification"),
            ("ner", "BertForTokenClassification"),
            ("question-answering", "BertForQuestionAnswering"),
        ):
            model = model_of(config, architecture)._replace(tokenizer=tokenizer)
            folder = str(tmp_path / f"{name}-{task}")
            export(model, folder)
            text = f"the [MASK] of {words}" if task == "fill-mask" else words
            text = ["where is the king ?", words] if task == "question-answering" else text
            tasks.append([task, folder, text])
            expected.append((model, tokenizer))
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    script = [HERE / "pipelines_oracle.py", tmp_path / "tasks.json", tmp_path / "found.json"]
    done = subprocess.run(
        [oracle_python(), *map(str, script)],
        env=oracle_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    for (task, folder, text), (model, _), theirs in zip(tasks, expected, found, strict=True):
        if task == "fill-mask":
            before, after = (tokenizer.tokenize([part])[0] for part in text.split("[MASK]"))
            ids = np.concatenate([[2], before, [4], after])[None, :23]  # [CLS] ... [MASK] ...
            ids = np.append(ids, [[3]], axis=1)
            batch = dict(input_ids=ids, input_mask=ids > 0, segment_ids=0 * ids)
            logits = expected_outputs(model, batch)["logits"][0, 1 + len(before)]
            row = tf.nn.softmax(logits).numpy()
            best = np.argsort(-row)[:5]
            assert [one["token"] for one in theirs] == best.tolist(), folder
            np.testing.assert_allclose([one["score"] for one in theirs], row[best], atol=1e-4)
        elif task == "text-classification":
            assert {one["label"] for one in theirs} == {"no", "yes", "perhaps"}
            np.testing.assert_allclose(sum(one["score"] for one in theirs), 1, atol=1e-5)
        elif task == "ner":
            assert theirs and {one["entity"] for one in theirs} <= {"no", "yes", "perhaps"}
            assert len(theirs) <= model.config.max_position_embeddings - 2
        elif "starts" in theirs:
            assert theirs["length"] == len(theirs["starts"]) == 24
        else:
            assert theirs["answer"] in text[1]


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(**SMALL),
        OF_OURS["quick"],
        *(OF_RELATIVES[name] for name in ("Roberta", "DistilBert", "Electra", "ModernBert")),
    ],
    ids=["bert", "quick", "roberta", "distilbert", "electra", "modernbert"],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_heads_are_known_by_their_tensors(config, architecture, tmp_path):
    """Where config.json names no class, or one that is not ours to know: the head of a task is not
    read then, because its scores may mean anything.
    """
    if architecture == "BertForPreTraining" and config.model_family != "bert":
        architecture = "BertForMaskedLM"
    model = model_of(config, architecture)
    export(model, tmp_path / "there")
    expected = kept(model, architecture).keys()
    for said in (None, ["BertForMultipleChoice"]):
        say_in_config(architectures=said)(tmp_path / "there")
        back = huggingface.read(str(tmp_path / "there"))
        head = ARCHITECTURES[architecture].own
        if said and head:
            # the first layer of a classifier of other families is part of its head
            gone = (f"{head}/",) if config.model_family == "bert" else (f"{head}/", "pooler/")
            left = {name for name in expected if not name.startswith(gone)}
            assert back.weights.keys() == left
            assert back.notes.foreign == said[0]
            assert len(back.notes.unused) == len(expected) - len(left)
        elif config.head_transform and head:  # the heads of all tasks have the same names
            assert back.notes.architecture == "BertForSequenceClassification"
        else:
            assert back.notes == model.notes and back.weights.keys() == expected


def test_damaged_weights_are_named_with_what_to_do(tmp_path):
    models.write_own(model_of(OF_OURS["quick"], "BertForMaskedLM"), str(tmp_path))
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        models.read_model(str(tmp_path))
    problem = "is damaged: its tensors do not match their checksum"
    assert str(caught.value) == f"{path}: {problem}; write or get it again"
