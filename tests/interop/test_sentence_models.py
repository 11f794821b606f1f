"""Sentence models: a folder that sentence-transformers opens with our vectors, and one of theirs
whose rules stay with every copy.
"""

import json
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.inference.config import EmbedConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.interop import models, savedmodel
from bert_gpu.interop.formats import Embedding, Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests.interop.test_huggingface import HERE, needs_oracle, oracle_environment, oracle_python
from tests.interop.test_usage import WORDS, copy

LENGTH = 9
RULES = {
    "plain": Embedding("mean"),
    "mean": Embedding("mean", True, "ba ", "do du ", "ba "),
    "cls": Embedding("cls", True, "", "do "),  # as BGE: only queries have a prefix
    "lower": Embedding("cls", False, "ba ", "", "ba ", lowers=True),
    "query": Embedding("mean", True, "do ", "do ", "ba "),
    "other": Embedding("mean", True, "du ", "do ", "ba "),
}
TEXTS = ["ba be", "bi", "", "du " * 30, "ko ka ke ki", "Ba be"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in [*SPECIAL_PIECES, *WORDS]))
    return WordPieceTokenizer(str(path), do_lower_case=False)


def sentence_model(tokenizer, rules, **switches):
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=24,
        **switches,
    )
    generator = np.random.default_rng(3)
    weights = {
        name: (0.5 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in open_encoder(config).weights().items()
    }
    notes = Notes([], [], "BertModel", (), max_seq_length=LENGTH, embedding=rules)
    return Model(config, weights, notes, tokenizer)


@pytest.mark.parametrize("name", RULES)
def test_the_rules_of_a_sentence_model_are_in_its_folder_and_in_every_copy(
    name, tokenizer, tmp_path
):
    model = sentence_model(tokenizer, RULES[name])
    models.write_own(model, str(tmp_path / "model"))
    assert not copy(tmp_path / "model", tmp_path / "copy", "huggingface")
    assert not copy(tmp_path / "model", tmp_path / "other", "google")
    for folder in (tmp_path / "model", tmp_path / "copy", tmp_path / "other"):
        notes = models.read_model(str(folder)).notes
        assert notes.embedding == RULES[name] and notes.max_seq_length == LENGTH
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / folder).rglob("*.*")}
        for folder in ("model", "copy")
    )
    assert {*first} == {*second} >= {"modules.json", "sentence_bert_config.json"}
    assert all(second[file] == data for file, data in first.items() if file != "README.md")
    card = first["README.md"].decode()
    assert "pipeline_tag: sentence-similarity" in card and 'SentenceTransformer("FOLDER")' in card


def test_a_training_takes_over_the_default_prefix_and_the_case_of_its_start():
    plain, trained = Embedding("cls"), Embedding("mean", True, "ba ", "do ", "ba ")
    assert trained.trained_from(plain) == trained
    assert trained.trained_from(RULES["cls"]) == trained
    assert trained.trained_from(RULES["lower"]) == trained._replace(lowers=True)
    assert trained.trained_from(RULES["query"]).prefix == "do "
    assert trained.trained_from(RULES["other"]).prefix == "du "
    alone = Embedding("cls", prefix="ku ")
    assert alone.of_pairs() == Embedding("cls", False, "ku ", "ku ", "ku ")
    assert all(rules.of_pairs() == rules for rules in (plain, trained, RULES["cls"]))


def test_a_model_that_is_none_gets_no_file_of_sentence_transformers(tokenizer, tmp_path):
    models.write_own(sentence_model(tokenizer, Embedding()), str(tmp_path / "model"))
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert not {"modules.json", "1_Pooling", "sentence_bert_config.json"} & names


def test_embed_puts_the_prefix_of_its_flag_before_each_text(tokenizer, tmp_path):
    models.write_own(sentence_model(tokenizer, RULES["mean"]), str(tmp_path / "model"))
    models.write_own(sentence_model(tokenizer, RULES["plain"]), str(tmp_path / "plain"))
    model = str(tmp_path / "model")
    queries = Embedder(EmbedConfig(model=model, prompt="query"))
    plain = Embedder(EmbedConfig(model=str(tmp_path / "plain")))
    expected = plain([f"do du {text}" for text in TEXTS])
    expected /= np.linalg.norm(expected, axis=-1, keepdims=True)
    np.testing.assert_allclose(queries(TEXTS), expected, rtol=0, atol=1e-6)
    assert "prefix 'do du '" in queries.describe() and "prefix" not in plain.describe()
    with pytest.raises(UserError, match="prompt=query: the model .* without prefixes; leave it"):
        Embedder(EmbedConfig(model=str(tmp_path / "plain"), prompt="query"))
    assert EmbedConfig(pooling="first") == EmbedConfig(pooling="cls")


@pytest.fixture(scope="module")
def vectors(tokenizer, tmp_path_factory):
    """(folder, {name of a model in it: its vectors by sentence-transformers})."""
    top = tmp_path_factory.mktemp("sentences")
    ours = {
        "mean": sentence_model(tokenizer, RULES["mean"]),
        "cls": sentence_model(tokenizer, RULES["cls"]),
        "variant": sentence_model(tokenizer, RULES["lower"], norm_first=True),
    }
    for name, model in ours.items():
        models.write_own(model, str(top / name))
    models.write_own(sentence_model(tokenizer, Embedding()), str(top / "encoder"))
    script = [oracle_python(), HERE / "sentence_oracle.py", top, top / "encoder", str(LENGTH)]
    done = subprocess.run(
        [*script, *ours],
        input=json.dumps(TEXTS),
        env=oracle_environment(top),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return top, {path.stem: np.load(path) for path in top.glob("*.npz")}


def check_vectors(folder, theirs):
    """encode, encode_query and encode_document of sentence-transformers are ours."""
    embedder = Embedder(EmbedConfig(model=str(folder)))
    prompts = dict(texts=None, queries="query", passages="passage")
    for kind, prompt in prompts.items():
        np.testing.assert_allclose(embedder(TEXTS, prompt), theirs[kind], rtol=0, atol=1e-5)


@needs_oracle
@pytest.mark.parametrize("name", ["mean", "cls", "variant"])
def test_sentence_transformers_opens_our_folder_with_our_vectors(name, vectors):
    """Of a variant of BERT with the code in the folder."""
    top, theirs = vectors
    check_vectors(top / name, theirs[name])


@needs_oracle
@pytest.mark.parametrize("name", ["cls-theirs", "mean-theirs"])
def test_a_folder_of_sentence_transformers_keeps_its_vectors(name, vectors, tmp_path):
    """Its texts are cut at LENGTH, which version 6 states for the tokenizer alone."""
    top, theirs = vectors
    assert not copy(top / name, tmp_path / "copy", "huggingface")
    check_vectors(tmp_path / "copy", theirs[name])
    served = savedmodel.Served(models.open_model(str(tmp_path / "copy"), "model")[1])
    for kind, embed in dict(texts=served.embed, queries=served.embed_query).items():
        found = embed(tf.constant(TEXTS))["embedding"]
        np.testing.assert_allclose(found, theirs[name][kind], rtol=0, atol=1e-5)
