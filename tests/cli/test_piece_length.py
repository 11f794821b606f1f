"""A pretraining objective of one's own: one module (piece_length.py) and one row of the table. It
trains beside another, resumes with the same bits, and exports.
"""

import json

import numpy as np
import pytest

from bert_gpu.base.environment import LazyModule
from bert_gpu.interop import models
from bert_gpu.model.config import preset
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.heads import mlm_products
from bert_gpu.optim.muon import is_inner_kernel
from bert_gpu.pretrain.objectives.joint import open_objective
from bert_gpu.pretrain.objectives.table import OBJECTIVES, Row
from bert_gpu.runs.folder import RunFolder
from bert_gpu.text.tokenizers.open import open_tokenizer
from tests.cli.pretraining import copy_as_of, lines, pretrain, same, weights

ROW = Row("length of a masked piece", LazyModule("tests.cli.piece_length"))
BOTH = "--train_objective=mlm,piece_length"


@pytest.fixture(autouse=True)
def row(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "piece_length", ROW)


def test_it_trains_resumes_and_exports(data, tmp_path, capsys):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    saves = "--save_checkpoints_steps=5"
    assert pretrain(data, whole, BOTH, saves) == 0
    copy_as_of(whole, parts, 5)
    assert pretrain(data, parts, BOTH, saves) == 0
    assert same(weights(parts), weights(whole)) and lines(parts) == lines(whole)
    progress, values = RunFolder(str(whole)).newest_whole(print)
    assert progress.step == 12 and values["weights/piece_length/kernel"].shape == (16, 16)
    assert any("/piece_length/kernel" in name and name.startswith("slots/") for name in values)
    steps = [line for line in lines(whole) if "loss" in line]
    assert all(line["loss"] == pytest.approx(line["mlm"] + line["piece_length"]) for line in steps)
    assert steps[-1]["piece_length"] < steps[0]["piece_length"]
    validation = [line for line in lines(whole) if "eval_loss" in line][-1]
    parts = validation["eval_mlm_loss"] + validation["eval_piece_length_loss"]
    assert validation["eval_loss"] == pytest.approx(parts) and "eval_nsp_loss" not in validation
    # transformers has no class with this head: the model is that of the other objective
    exported = models.read_model(str(whole / "model"))
    assert exported.notes.architecture == "BertForMaskedLM" and exported.notes.missing == []
    assert not any(name.startswith("piece_length") for name in weights(whole))
    # another objective is another run
    assert pretrain(data, whole, "--train_objective=mlm") == 2
    assert "--train_objective" in capsys.readouterr().err


def test_alone_it_leaves_an_encoder(data, tmp_path):
    flags = "--train_objective=piece_length", "--freeze=embeddings", "--layer_lr_decay=0.5"
    assert pretrain(data, tmp_path / "run", *flags, "--padding=dynamic", steps=3) == 0
    assert models.read_model(str(tmp_path / "run/model")).notes.architecture == "BertModel"
    stored = json.loads((tmp_path / "run/run.json").read_text())
    assert stored["settings"]["train_objective"] == ["piece_length"]


def test_its_flops_are_those_of_its_head(data):
    encoder = BertEncoder(preset("tiny", vocab_size=100))
    tokenizer = open_tokenizer(str(data / "vocab.txt"), True)
    batch = dict(input_mask=np.ones([3, 32]), masked_lm_positions=np.zeros([3, 5]))
    own, words = (open_objective([name], encoder, tokenizer) for name in ("piece_length", "mlm"))
    products = 128 * 16 - mlm_products(encoder.config)
    assert own.flops(batch).model - words.flops(batch).model == 6 * 3 * 5 * products


def test_muon_takes_the_hidden_layer_of_any_head():
    assert is_inner_kernel("piece_length/transform/kernel")
    assert not is_inner_kernel("piece_length/kernel")
