"""Which tokens a classifier reads where --pooling does not say it."""

import dataclasses
import json
import re

import pytest

from bert_gpu.cli import classify
from bert_gpu.cli.flags import exit_code
from bert_gpu.finetune.config import StartConfig
from bert_gpu.finetune.start import default_pooling, start_training
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.interop import huggingface
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.interop.heads import architecture_of
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from tests import pretraining, task_heads
from tests.finetune.evaluations import task_of

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "green", "blue"]
OWN = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
    norm_first=True,
    position_embedding_type="rotary",
)
PRE_LAYER_NORM = dataclasses.replace(OWN, position_embedding_type="absolute")
CLASSIC = dataclasses.replace(PRE_LAYER_NORM, norm_first=False)
ROBERTA = dataclasses.replace(CLASSIC, model_family="roberta", first_position=2)
NOMIC = dataclasses.replace(
    CLASSIC,
    position_embedding_type="rotary",
    use_bias=False,
    hidden_act="swiglu",
    intermediate_size=48,
)
LABELS = ("no", "yes")


def save(folder, model, *, next_sentence=False, head=None):
    """Write a model that was pretrained, with or without next sentence, or that has a head."""
    encoder = BertEncoder(model)
    specs = task_heads.specs(head, encoder, 2) if head else None
    specs = specs or pretraining.weights(encoder, next_sentence)
    architecture = architecture_of({name.partition("/")[0] for name in specs})
    labels = LABELS if head else ()
    vocab = {"vocab.txt": "".join(f"{word}\n" for word in VOCAB).encode()}
    huggingface.write_model(
        str(folder), model, initialize(specs, 7), architecture, labels, files=vocab
    )
    return str(folder)


@pytest.mark.parametrize(
    "model, content, flags, pooling",
    [
        (OWN, dict(), dict(), "mean"),
        (OWN, dict(), dict(pooler_size=8), "mean"),
        (OWN, dict(), dict(pooling="cls"), "first"),
        (OWN, dict(next_sentence=True), dict(), "first"),
        (OWN, dict(next_sentence=True), dict(pooling="mean"), "mean"),
        (OWN, dict(head="classifier"), dict(), "first"),
        (OWN, dict(head="token_classifier"), dict(), "first"),
        (dataclasses.replace(OWN, pooling="mean"), dict(next_sentence=True), dict(), "mean"),
        (dataclasses.replace(OWN, pooling="mean"), dict(head="classifier"), dict(), "mean"),
        (CLASSIC, dict(), dict(), "first"),
        (dataclasses.replace(CLASSIC, pooling="mean"), dict(), dict(), "mean"),
        (ROBERTA, dict(), dict(), "first"),
    ],
)
def test_a_model_that_never_trained_its_first_token_is_read_at_all(
    tmp_path, model, content, flags, pooling
):
    path = save(tmp_path / "model", model, **content)
    texts, words = task_of(TASKS["pairs"], ("a", "b")), task_of(TASKS["ner"], LABELS)
    start = start_training(StartConfig(init_checkpoint=path, **flags), texts, 1)
    assert start.model.pooling == pooling
    named = StartConfig(init_checkpoint=path, **flags | dict(pooling=pooling))
    same = start_training(named, texts, 1)
    assert same.model == start.model and same.fresh == start.fresh
    assert all((start.weights[name] == value).all() for name, value in same.weights.items())
    tags = StartConfig(init_checkpoint=path, **{k: v for k, v in flags.items() if k != "pooling"})
    assert start_training(tags, words, 1).model.pooling == model.pooling


@pytest.mark.parametrize("pooling", ["first", "mean"])
@pytest.mark.parametrize(
    "model",
    [
        CLASSIC,
        PRE_LAYER_NORM,
        ROBERTA,
        dataclasses.replace(OWN, model_family="roberta"),
        NOMIC,
        dataclasses.replace(OWN, encoder="garden:bert"),
    ],
)
def test_published_models_are_read_as_their_own_code_reads_them(model, pooling):
    model = dataclasses.replace(model, pooling=pooling)
    notes = Notes([], [], "BertForMaskedLM", ())
    assert default_pooling(Model(model, {"mlm/bias": 1}, notes)) == pooling
    own = dataclasses.replace(OWN, pooling=pooling)
    assert default_pooling(Model(own, {"mlm/bias": 1}, notes)) == "mean"
    assert default_pooling(Model(own, {"pooler/kernel": 1}, notes)) == pooling


def test_random_weights_keep_their_pooling(tmp_path, capsys):
    """The default is the flag, to the byte."""
    path = save(tmp_path / "model", OWN)
    rows = dict(
        regression=("text_a\tlabel", "red green\t{}", ("0.5", "1.5")),
        classification=("text_a\ttext_b\tlabel", "red green\tblue\t{}", LABELS),
    )

    def train(kind, name, steps=2, **flags):
        header, row, cells = rows[kind]
        folder = tmp_path / f"{kind}-data"
        folder.mkdir(exist_ok=True)
        lines = [row.format(cells[index % 2]) for index in range(8)]
        (folder / "train.tsv").write_text("\n".join([header, *lines]) + "\n")
        values = dict(data_dir=folder, output_dir=tmp_path / name, task_kind=kind, num_gpus=0)
        values |= dict(num_train_steps=steps, train_batch_size=4, init_checkpoint=path) | flags
        words = [f"--{flag}={value}" for flag, value in values.items()]
        assert exit_code(classify.main, ["classify", "--do_train", *words]) == 0
        model = tmp_path / name / "model"
        config = json.loads((model / "config.json").read_text())
        return (model / "model.safetensors").read_bytes(), config["pooling"]

    def printed():
        return re.sub(" +", " ", capsys.readouterr().out)

    for kind in rows:
        weights, pooling = train(kind, kind)
        assert pooling == "mean" and "pooling: mean" in printed()
    assert train(kind, "mean", pooling="mean") == (weights, "mean")
    assert "pooling: mean" in printed()
    cls = train(kind, "cls", pooling="cls")
    assert cls[1] == "first" and cls[0] != weights and "pooling: " not in printed()
    files = dict(bert_config_file=f"{path}/config.json", vocab_file=f"{path}/vocab.txt")
    random = StartConfig(init_checkpoint="none", **files)
    assert start_training(random, task_of(TASKS["pairs"], LABELS), 1).model.pooling == "first"
