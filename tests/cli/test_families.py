"""RoBERTa, DistilBERT, ELECTRA, ModernBERT and DeBERTa through the commands: continued, fine-tuned
for every kind of task, used, and exported as the class that they came from.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from bert_gpu import EmbedConfig, Embedder
from bert_gpu.__main__ import main as command
from bert_gpu.inference.config import FillMaskConfig
from bert_gpu.inference.masked_words import MaskFiller
from bert_gpu.interop import models, onnx, savedmodel
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import pretraining
from tests.cli import test_answers, test_classify, test_tagging
from tests.cli.test_classify import VOCAB, WORDS
from tests.interop.test_huggingface import say_in_config
from tests.interop.test_leaving import MODERN

SIZES = dict(
    vocab_size=len(VOCAB) + 1,  # a padded table
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
)
FAMILIES = {
    "roberta": ModelConfig(
        **SIZES,
        model_family="roberta",
        first_position=2,
        max_position_embeddings=34,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    ),
    "distilbert": ModelConfig(
        **SIZES,
        model_family="distilbert",
        pooler_act="relu",
        max_position_embeddings=32,
        type_vocab_size=0,
    ),
    "electra": ModelConfig(
        **SIZES,
        model_family="electra",
        pooler_act="gelu",
        max_position_embeddings=32,
        embedding_size=16,
        initializer_range=0.1,  # so that a few steps are enough
    ),
    # rows are longer than the window
    "modernbert": ModelConfig(
        **SIZES | dict(num_hidden_layers=2), **MODERN, max_position_embeddings=32
    ),
    "deberta-v2": ModelConfig(
        **SIZES,
        model_family="deberta-v2",
        position_embedding_type="disentangled",
        position_buckets=16,
        max_relative_positions=32,
        pooler_act="gelu",
        max_position_embeddings=32,
        type_vocab_size=0,
        legacy=False,
    ),
}
CLASSES = dict(
    roberta="Roberta", distilbert="DistilBert", electra="Electra", modernbert="ModernBert"
) | {"deberta-v2": "DebertaV2"}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with a masked-word model of each of FAMILIES, discriminator/, text.txt and data of
    masked words and of pairs.
    """
    folder = tmp_path_factory.mktemp("families")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer = WordPieceTokenizer(str(folder / "vocab.txt"))
    for name, config in FAMILIES.items():
        weights = initialize(pretraining.weights(BertEncoder(config), next_sentence=False), 1)
        notes = Notes([], [], "BertForMaskedLM", ())
        models.write_own(Model(config, weights, notes, tokenizer), str(folder / name))
    discriminate(folder / "electra", folder / "discriminator")
    draws = np.random.default_rng(1)
    text = "\n\n".join(
        "\n".join(" ".join(draws.choice(WORDS, 7)) for _ in range(5)) for _ in range(40)
    )
    (folder / "text.txt").write_text(text + "\n")
    for objective in ("packed", "nsp"):
        flags = [f"--objective={objective}", f"--init_checkpoint={folder}/roberta", "--quiet"]
        assert make_data(folder, folder / objective, *flags) == 0
    return folder


def discriminate(generator, folder):
    """Write an ElectraForPreTraining with the encoder of a generator."""
    shutil.copytree(generator, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: x for name, x in tensors.items() if not name.startswith("generator_")}
    head = {"dense.weight": (32, 32), "dense.bias": 32, "dense_prediction.weight": (1, 32)}
    for name, shape in (head | {"dense_prediction.bias": 1}).items():
        tensors[f"discriminator_predictions.{name}"] = np.ones(shape, np.float32)
    save_file(tensors, folder / "model.safetensors")
    say_in_config(architectures=["ElectraForPreTraining"])(folder)


def make_data(folder, output, *flags, length=32):
    fixed = [f"--input_file={folder}/text.txt", f"--output_dir={output}", "--dupe_factor=1"]
    return command(["bert-gpu", "data", *fixed, f"--max_seq_length={length}", *flags])


def train(data, output, *flags, steps=2):
    fixed = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}", "--train_batch_size=8"]
    return command(["bert-gpu", "pretrain", *fixed, f"--num_train_steps={steps}", *flags])


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("distilbert", "electra")]


@pytest.mark.parametrize("name", ["roberta", "modernbert", "deberta-v2", *LONG])
def test_a_continued_family_stays_one(world, tmp_path, capsys, name):
    """Rows fill all positions; the unused rows are kept, in spite of weight decay."""
    start = world / name
    flags = [f"--init_checkpoint={start}", "--learning_rate=1e-3"]
    other = ["--rotary_base=90"] if name == "modernbert" else []  # not in the weights
    flags += other
    assert train(world / "packed", tmp_path / "run", *flags) == 0
    out = capsys.readouterr().out
    assert "fresh" not in out and ("rotary_base=90.0 instead of 80.0" in out) == bool(other)
    there = tmp_path / "run" / "model"
    said, config = config_of(start), config_of(there)
    if other:
        assert said["rope_parameters"]["full_attention"]["rope_theta"] == 80.0
        said["rope_parameters"]["full_attention"]["rope_theta"] = 90.0
        said["global_rope_theta"] = 90.0  # the key of transformers before 5
    assert said["architectures"] == [f"{CLASSES[name]}ForMaskedLM"]
    assert {key: config[key] for key in said if key != "crc32c"} == {
        key: said[key] for key in said if key != "crc32c"
    }
    before, after = (load_file(folder / "model.safetensors") for folder in (start, there))
    assert before.keys() == after.keys()
    if name == "modernbert":
        assert all(np.any(before[tensor] != after[tensor]) for tensor in before)
        assert "model.layers.0.attn_norm.weight" not in before.keys()
        assert [said["pad_token_id"], said["cls_token_id"], said["eos_token_id"]] == [0, 2, 3]
    elif name == "deberta-v2":
        assert all(np.any(before[tensor] != after[tensor]) for tensor in before)
        assert "lm_predictions.lm_head.bias" in after
    else:
        positions = f"{name}.embeddings.position_embeddings.weight"
        first = FAMILIES[name].first_position
        moved = np.any(before[positions] != after[positions], -1)
        assert moved.tolist() == [False] * first + [True] * 32
    assert len(json.loads((there / "tokenizer_config.json").read_text())) > 3
    assert json.loads((there / "tokenizer_config.json").read_text())["model_max_length"] == 32
    assert "| Longest text | 32 tokens |" in (there / "README.md").read_text()
    assert train(world / "packed", tmp_path / "run", *flags) == 0
    assert "this run is finished" in capsys.readouterr().out


@pytest.mark.long
def test_a_discriminator_has_vectors_and_no_words(world, capsys):
    """Its vectors are those of the generator with the same encoder; a pretraining from it has a
    fresh head of words.
    """
    start = world / "discriminator"
    np.testing.assert_array_equal(vectors_of(start), vectors_of(world / "electra"))
    assert command(["bert-gpu", "fill-mask", f"--model={start}", "the [MASK]"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "discriminator: has no mlm/transform/kernel, so it cannot guess words" in error
    assert train(world / "packed", world / "words", f"--init_checkpoint={start}") == 0
    said = capsys.readouterr().out
    assert "fresh: mlm/bias" in said and "discriminator_predictions" in said
    assert config_of(world / "words" / "model")["architectures"] == ["ElectraForMaskedLM"]


def test_what_a_family_cannot_learn_is_one_line(world, tmp_path, capsys):
    start = f"--init_checkpoint={world}/roberta"
    for flags in ([], ["--train_objective=mlm,nsp"]):
        assert train(world / "nsp", tmp_path / "run", start, *flags) == 2
        error = capsys.readouterr().err
        problem = "--train_objective=mlm,nsp: a roberta has no head of next sentences; give "
        assert error == f"{problem}--train_objective=mlm\n"
    flags = [f"--init_checkpoint={world}/roberta", "--objective=full_sentences", "--quiet"]
    assert make_data(world, tmp_path / "long", *flags, length=33) == 0
    capsys.readouterr()
    rows = "--max_position_embeddings=34"
    assert train(tmp_path / "long", tmp_path / "run", start, rows) == 2
    error = capsys.readouterr().err
    assert "=34: fewer than the 33 tokens of the data's rows and 2 unused rows" in error
    assert error.count("\n") == 1 and not (tmp_path / "run" / "model").exists()
    assert train(tmp_path / "long", tmp_path / "run", start, "--show_config") == 0
    assert "--max_position_embeddings=35" in capsys.readouterr().out


TASKS = [  # (kind of task, folder of the start, class)
    ("pairs", "roberta", "RobertaForSequenceClassification"),
    ("regression", "roberta", "RobertaForSequenceClassification"),
    ("multilabel", "distilbert", "DistilBertForSequenceClassification"),
    ("ner", "distilbert", "DistilBertForTokenClassification"),
    ("squad", "roberta", "RobertaForQuestionAnswering"),
    ("pairs", "discriminator", "ElectraForSequenceClassification"),
    ("squad", "electra", "ElectraForQuestionAnswering"),
    ("pairs", "modernbert", "ModernBertForSequenceClassification"),
    ("ner", "modernbert", "ModernBertForTokenClassification"),
    ("squad", "modernbert", "ModernBertForQuestionAnswering"),
    ("pairs", "deberta-v2", "DebertaV2ForSequenceClassification"),
    ("ner", "deberta-v2", "DebertaV2ForTokenClassification"),
    ("squad", "deberta-v2", "DebertaV2ForQuestionAnswering"),
]


def write_task(kind, folder):
    """Write the files of a task; return its flags."""
    if kind == "pairs":
        for seed, (split, count) in enumerate(dict(train=128, dev=30, test=9).items()):
            test_classify.write_split(folder, split, count, seed)
        return [f"--data_dir={folder}", "--num_train_epochs=6"]
    few = ["--num_train_steps=3"]
    if kind == "ner":
        for name in ("train.txt", "valid.txt", "test.txt"):
            test_tagging.write_split(folder, name, 20, 1)
        return ["--task_name=ner", f"--data_dir={folder}", *few]
    if kind == "squad":
        for split in ("train", "dev"):
            test_answers.write_split(folder / f"{split}-v1.1.json", 20, 1, False)
        return ["--task_name=squad", f"--data_dir={folder}", "--max_query_length=8", *few]
    cells = ["0.5", "-1.5"] if kind == "regression" else ["red,warm", "none"]
    lines = ["text_a\tlabel", *(f"red {WORDS[i % 9]}\t{cells[i % 2]}" for i in range(64))]
    (folder / "all.tsv").write_text("\n".join(lines) + "\n")
    return [f"--train_file={folder}/all.tsv", "--dev_share=.2", f"--task_kind={kind}", *few]


@pytest.mark.long
@pytest.mark.parametrize("kind, name, class_name", TASKS)
def test_a_fine_tuned_family_stays_one(world, tmp_path, capsys, kind, name, class_name):
    """Its classifier is that of its class, whose first layer is fresh, or that of masked words in
    ModernBERT; the model alone gives the same results.
    """
    (tmp_path / "data").mkdir()
    flags = [*write_task(kind, tmp_path / "data"), "--max_seq_length=24", "--learning_rate=2e-3"]
    flags += [f"--output_dir={tmp_path}/run", "--train_batch_size=16"]
    start = f"--init_checkpoint={world}/{name}"
    assert command(["bert-gpu", "classify", start, *flags]) == 0
    out = capsys.readouterr().out
    there = tmp_path / "run" / "model"
    assert config_of(there)["architectures"] == [class_name]
    assert ("discriminator_predictions" in out) == (name == "discriminator")
    if name == "modernbert":
        assert models.read_model(str(there)).config.model_family == name
        (fresh,) = (line for line in out.splitlines() if "fresh weights" in line)
        head = dict(pairs="classifier", ner="token_classifier", squad="span")[kind]
        assert fresh.split()[2:] == [f"{head}/bias,", f"{head}/kernel"]
        assert "head.norm.weight" in load_file(there / "model.safetensors")
    elif class_name.endswith("ForSequenceClassification"):
        firsts = {"distilbert": "pre_classifier", "deberta-v2": "pooler.dense"}
        first = firsts.get(name, "classifier.dense")
        assert f"{first}.weight" in load_file(there / "model.safetensors")
        assert "pooler/kernel" in out
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text())
    assert kind != "pairs" or results["accuracy"] > 0.9
    flags[-2] = f"--output_dir={tmp_path}/again"
    alone = ["--do_eval", f"--init_checkpoint={there}"]
    assert command(["bert-gpu", "classify", *alone, *flags]) == 0, capsys.readouterr().err
    again = json.loads((tmp_path / "again" / "eval_results.json").read_text())
    assert again["num_examples"] == results["num_examples"] > 5
    metric = "f1" if kind == "squad" else "loss"
    np.testing.assert_allclose(again[metric], results[metric], rtol=1e-5)


TEXTS = ["the cat [MASK]", " ".join(WORDS * 3), "red"]


def vectors_of(folder):
    return Embedder(EmbedConfig(model=str(folder), max_seq_length=32))(TEXTS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["roberta", "modernbert", "deberta-v2"])
def test_a_family_gives_the_same_as_a_savedmodel(world, tmp_path, name):
    """Vectors, and words for a mask, of strings; with our tokenizers."""
    folder = world / name
    model = models.open_model(str(folder), "model")[1]
    savedmodel.write(model, str(tmp_path))
    signatures = tf.saved_model.load(str(tmp_path)).signatures
    strings = tf.constant(TEXTS)
    found = signatures["embed"](text=strings)["cls"]
    np.testing.assert_allclose(found, vectors_of(folder), atol=1e-5)
    served = signatures["fill_mask"](text=strings)
    (probability, word), *_ = MaskFiller(FillMaskConfig(model=str(folder)))(TEXTS[:1])[0][0]
    assert served["words"][0, 0].numpy().decode() == word
    np.testing.assert_allclose(served["probabilities"][0, 0], probability, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_gives_the_same_as_onnx(world, tmp_path, capsys, name):
    """Rows that fill all positions and short ones. Other formats refuse it in one line."""
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = world / name
    model = models.open_model(str(folder), "model")[1]
    line = onnx.write(model, str(tmp_path / "there"))
    segments = ", token_type_ids" * (FAMILIES[name].type_vocab_size > 1)
    assert f"input_ids, attention_mask{segments} (int64)" in line
    assert config_of(tmp_path / "there")["model_type"] == name
    session = onnxruntime.InferenceSession(str(tmp_path / "there/onnx/model.onnx"))
    ids = np.zeros((2, 32), np.int64)
    ids[0] = [2, *(VOCAB.index(word) for word in (WORDS * 3)), 3]
    ids[1, :3] = 2, VOCAB.index("red"), 3
    rows = dict(input_ids=ids, attention_mask=(ids > 0) * 1)
    rows |= dict(token_type_ids=0 * ids) if segments else {}
    hidden = session.run(["last_hidden_state"], rows)[0]
    np.testing.assert_allclose(hidden[:, 0], vectors_of(folder)[1:], atol=1e-5)
    capsys.readouterr()
    export = ["bert-gpu", "export", f"--from={folder}", f"--to={tmp_path}/google"]
    assert command([*export, "--format=google"]) == 2
    error = capsys.readouterr().err
    switch = "local_attention=4" if name == "modernbert" else name
    assert switch in error and error.count("\n") == 1


@pytest.mark.long
def test_a_model_that_keeps_accents_keeps_them_in_every_use(tmp_path):
    """Fine-tuned, embedded, exported for transformers and as a SavedModel of texts."""
    (tmp_path / "vocab.txt").write_text("\n".join([*VOCAB, "été", "ete"]) + "\n")
    tokenizer = open_tokenizer(str(tmp_path / "vocab.txt"), True, False)
    config = dataclasses.replace(test_classify.MODEL, vocab_size=tokenizer.vocab_size)
    weights = initialize(pretraining.weights(BertEncoder(config), next_sentence=False), 1)
    model = Model(config, weights, Notes([], [], "BertForMaskedLM", ()), tokenizer)
    models.write_own(model, str(tmp_path / "start"))
    for seed, split in enumerate(("train", "dev")):
        test_classify.write_split(tmp_path, split, 32, seed)
    files = [f"--data_dir={tmp_path}", f"--init_checkpoint={tmp_path}/start"]
    run = tmp_path / "run"
    sizes = ["--num_train_steps=2", "--max_seq_length=16"]
    assert command(["bert-gpu", "classify", *files, f"--output_dir={run}", *sizes]) == 0
    path, tuned = models.open_model(str(run), "from")
    to = tmp_path / "exported"
    assert command(["bert-gpu", "export", f"--from={run}", f"--to={to}"]) == 0
    for one in (tuned.tokenizer, models.load_tokenizer(str(to))):
        assert one.pieces(one.tokenize(["Été ETE"])[0]) == ["été", "ete"]
        assert one.identity == tokenizer.identity
    texts = ["Été", "ETE", "the été"]
    vectors = Embedder(EmbedConfig(model=path, max_seq_length=16))(texts)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    savedmodel.write(tuned, str(tmp_path / "saved"))
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures["embed"]
    np.testing.assert_allclose(served(text=tf.constant(texts))["cls"], vectors, atol=1e-5)
