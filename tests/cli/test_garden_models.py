"""An encoder of Model Garden from pretraining through fine-tuning and back, as any other model;
laws of its folder and of --freeze.
"""

import json
import os

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.cli import classify, fill_mask, flags
from bert_gpu.interop import huggingface
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.positions import interpolated
from bert_gpu.optim.optimizers import layer_factors
from bert_gpu.runs.folder import RunFolder
from bert_gpu.train.state import frozen_names
from tests.cli.pretraining import pretrain, same, weights

ALBERT = ["--encoder=garden:albert", "--embedding_size=8", "--freeze=embeddings"]


class Killed(BaseException):
    """What ends a run as kill -9 would: nothing after it happens."""


def kill_after_save(monkeypatch, run):
    """Runs until the first checkpoint is saved."""
    save = RunFolder.save

    def save_and_die(self, *arguments):
        save(self, *arguments)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "save", save_and_die)
        run()


@pytest.fixture(scope="module")
def albert(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("garden") / "albert"
    assert pretrain(data, output, *ALBERT, "--hidden_dropout_prob=0", steps=4) == 0
    return output


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    lines = [
        f"a river {number}\t{'the sea' if number % 2 else 'a hill'}\t{number % 2}"
        for number in range(24)
    ]
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("text_a\ttext_b\tlabel\n" + "\n".join(lines) + "\n")
    return folder


def call(capsys, main, *arguments):
    """(exit code, stdout, stderr) of a call."""
    code = flags.exit_code(main, ["program", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_its_folder_says_what_it_is_and_reads_back(albert):
    config = json.loads((albert / "model" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (
        "bert_gpu",
        ["BertGpuForPreTraining"],
    )
    assert (config["encoder"], config["embedding_size"]) == ("garden:albert", 8)
    model, stored, notes = huggingface.read_model(str(albert / "model"))
    assert model.encoder == "garden:albert" and notes.missing == notes.unused == []
    assert set(open_encoder(model).weights()) < set(stored)
    kept = RunFolder(str(albert)).restore(4)
    assert all(np.array_equal(kept[f"weights/{name}"], stored[name]) for name in stored)


def test_it_is_fine_tuned_killed_resumed_evaluated_and_predicts(
    albert, pairs, capsys, tmp_path, monkeypatch
):
    head = ["--pooling=mean", "--pooler_size=12", "--hidden_dropout_prob=0.1"]
    shape = [
        "--max_seq_length=16",
        "--train_batch_size=8",
        "--num_train_steps=6",
        "--save_checkpoints_steps=3",
    ]

    def arguments(output):
        return [
            f"--data_dir={pairs}",
            f"--init_checkpoint={albert}",
            f"--output_dir={output}",
            *shape,
            *head,
        ]

    code, out, err = call(capsys, classify.main, *arguments(tmp_path / "whole"))
    assert (
        code == 0
        and "fresh weights:   classifier/bias, classifier/kernel, pooler/bias, pooler/kernel" in out
    ), err
    kill_after_save(monkeypatch, lambda: call(capsys, classify.main, *arguments(tmp_path / "run")))
    code, out, err = call(capsys, classify.main, *arguments(tmp_path / "run"))
    assert code == 0 and "resuming from step 3 of 6" in out, err
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "run"))

    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert [
        config[name] for name in ("encoder", "pooling", "pooler_size", "hidden_dropout_prob")
    ] == ["garden:albert", "mean", 12, 0.1]
    before, after = weights(albert), weights(tmp_path / "run")
    assert after["pooler/kernel"].shape == (16, 12) and before["pooler/kernel"].shape == (16, 16)
    name = "encoder/transformer/intermediate/kernel"
    assert 0 < np.abs(after[name] - before[name]).max() < 0.01

    results = (
        (tmp_path / "run" / "eval_results.json").read_bytes(),
        (tmp_path / "run" / "test_results.tsv").read_bytes(),
    )
    again = [f"--data_dir={pairs}", f"--output_dir={tmp_path / 'run'}", "--do_eval", "--do_predict"]
    code, _, err = call(capsys, classify.main, *again)
    assert code == 0, err
    assert results == (
        (tmp_path / "run" / "eval_results.json").read_bytes(),
        (tmp_path / "run" / "test_results.tsv").read_bytes(),
    )


def test_it_guesses_words(albert, capsys):
    code, out, err = call(capsys, fill_mask.main, f"--model={albert}", "the [MASK]", "--top_k=3")
    assert code == 0 and len(out.splitlines()) == 4, err
    code, _, err = call(capsys, fill_mask.main, f"--model={albert}", "the [MASK] " * 300)
    assert code == 2 and "512 positions" in err


def test_pretraining_goes_on_from_it_with_the_same_encoder_alone(albert, data, tmp_path, capsys):
    start = [f"--init_checkpoint={albert}", "--embedding_size=8"]
    assert pretrain(data, tmp_path / "other", *start, "--encoder=garden:bert") == 2
    err = capsys.readouterr().err
    assert err.startswith("--encoder=garden:bert: the weights in ") and err.count("\n") == 1
    assert "are of encoder=garden:albert; drop the flag" in err
    assert not (tmp_path / "other").exists()
    positions = ["--max_position_embeddings=520"]
    assert (
        pretrain(
            data,
            tmp_path / "more",
            *start,
            *positions,
            "--freeze=embeddings,layers:1",
            steps=1,
        )
        == 0
    )
    before, after = weights(albert), weights(tmp_path / "more")
    name = "encoder/position_embedding/embeddings"
    assert np.array_equal(after[name], interpolated(before[name], 520))
    moved = {
        name
        for name in before
        if before[name].shape == after[name].shape and not np.array_equal(before[name], after[name])
    }
    assert moved and all(
        not name.startswith(("embeddings/", "encoder/"))
        or name == "encoder/embedding_projection/kernel"
        for name in moved
    )


@pytest.mark.parametrize(
    "flag, parts",
    [
        ("--recompute", ["--recompute", "garden:albert"]),
        ("--max_seq_length=600", ["--max_seq_length=600", "512 positions"]),
    ],
)
def test_what_fine_tuning_it_cannot_do_is_named(albert, pairs, capsys, tmp_path, flag, parts):
    code, _, err = call(
        capsys,
        classify.main,
        f"--data_dir={pairs}",
        f"--init_checkpoint={albert}",
        f"--output_dir={tmp_path / 'run'}",
        flag,
    )
    assert code == 2 and all(part in err.splitlines()[-1] for part in parts), err
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["bert", "albert", "mobilebert", "reuse"])
def test_freezing_counts_its_layers_too(name):
    """Each weight of the encoder is of the embeddings or of one layer; K layers are the first K
    numbers. ALBERT's three are one.
    """
    num_layers, num_own = 3, 1 if name == "albert" else 3
    sizes = dict(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=24,
    )
    names = set(open_encoder(ModelConfig(**sizes, encoder=f"garden:{name}")).weights()) | {
        "mlm/bias"
    }
    embeddings = frozen_names(names, ["embeddings"])
    layers = [frozen_names(names, [f"layers:{number}"]) for number in range(1, num_own + 1)]
    assert {"embeddings/word"} < embeddings and not embeddings & layers[-1]
    assert embeddings | layers[-1] == names - {"mlm/bias"}
    with pytest.raises(UserError, match=f"at most layers:{num_own}"):
        frozen_names(names, [f"layers:{num_own + 1}"])
    if num_own == 3:
        assert layers[0] < layers[1] < layers[2] and len(layers[1] - layers[0]) == len(
            layers[2] - layers[1]
        )
    with pytest.raises(UserError, match="layers:0"):
        frozen_names(names, ["layers:0"])
    factors = layer_factors(names, 0.5)
    assert factors["mlm/bias"] == 1.0
    assert {factors[name] for name in layers[0]} == {0.5**num_own}
    assert {factors[name] for name in embeddings} == {0.5 ** (num_own + 1)}
