"""Continued pretraining is one command for the data and one for the model: --init_checkpoint=FOLDER
brings shape, vocabulary and casing along, and only what contradicts them is refused.
"""

import json
import os
import shutil

import numpy as np
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base import tensor_files
from bert_gpu.cli import data as data_command
from bert_gpu.cli import flags as cli_flags
from bert_gpu.cli import pretrain as pretrain_command
from bert_gpu.data import build
from bert_gpu.interop import huggingface, models
from bert_gpu.interop.families import family_of
from bert_gpu.model.config_json import read_config
from tests.cli.pretraining import lines, weights

TOPICS = [[f"{first}{vowel}{last}" for vowel in "aeo"] for first in "BKMP" for last in "nr"]
CLASSES = dict(data=data_command.CLASSES, pretrain=pretrain_command.CLASSES)
SHAPE = ["--model=tiny", "--num_hidden_layers=1", "--hidden_size=64", "--intermediate_size=128"]


def write_text(path, seed):
    """Documents of one topic each, which has three words of its own: words tell each other."""
    draws = np.random.default_rng(seed)
    documents = [
        "\n".join(" ".join(draws.choice(topic, 8)) for _ in range(6))
        for topic in (TOPICS[index] for index in draws.integers(0, len(TOPICS), 60))
    ]
    path.write_text("\n\n".join(documents) + "\n")


def make_data(text, folder, *flags):
    fixed = ["--max_seq_length=32", "--dupe_factor=1", f"--output_dir={folder}"]
    return command(["bert-gpu", "data", f"--input_file={text}", *fixed, *flags])


def train(data, output, *flags, steps=1):
    fixed = [f"--output_dir={output}", f"--num_train_steps={steps}", "--train_batch_size=32"]
    return command(["bert-gpu", "pretrain", f"--input_file={data}", *fixed, *flags])


def first_validation(output):
    (line,) = [line for line in lines(output) if line["step"] == 0]
    return line["eval_mlm_loss"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """text.txt, data/ and run/ of a first pretraining, of a cased vocabulary; more.txt and more/,
    held-out text of the same kind and its data for that model.
    """
    folder = tmp_path_factory.mktemp("world")
    for name, seed in (("text", 1), ("more", 2)):
        write_text(folder / f"{name}.txt", seed)
    vocabulary = ["--vocab_size=100", "--nodo_lower_case", "--quiet"]
    assert make_data(folder / "text.txt", folder / "data", *vocabulary) == 0
    fixed = [*SHAPE, "--learning_rate=5e-3", "--quiet", "--log_steps=50"]
    assert train(f"{folder}/data/*.tfrecord", folder / "run", *fixed, steps=60) == 0
    start = f"--init_checkpoint={folder}/run"
    assert make_data(folder / "more.txt", folder / "more", start, "--quiet") == 0
    return folder


def test_a_continued_model_knows_held_out_text(world, tmp_path, capsys):
    """Also: its shape needs no flag, a flag for what is not in the weights wins, and the exported
    model has the vocabulary and the casing that it began with.
    """
    more, start = f"{world}/more/*.tfrecord", f"--init_checkpoint={world}/run"
    assert train(more, tmp_path / "on", start, "--hidden_dropout_prob=0") == 0
    out = capsys.readouterr().out
    assert f"starting from {world}/run/model: the model of its config.json, " in out
    assert "hidden_dropout_prob=0.0 instead of 0.1; vocabulary vocab.txt (" in out
    assert "pieces, cased)\n" in out and "fresh" not in out
    assert train(more, tmp_path / "fresh", "--init_checkpoint=none", *SHAPE, "--quiet") == 0
    continued, fresh = (first_validation(tmp_path / name) for name in ("on", "fresh"))
    assert continued < fresh - 1.5
    for name in ("vocab.txt", "tokenizer_config.json"):
        ours, theirs = ((each / "model" / name) for each in (tmp_path / "on", world / "run"))
        assert ours.read_bytes() == theirs.read_bytes()
    ours, theirs = (
        read_config(str(each / "model" / "config.json")).to_dict()
        for each in (tmp_path / "on", world / "run")
    )
    assert ours == theirs | dict(hidden_dropout_prob=0.0)
    # none is as good as no flag, also in a resume
    assert train(more, tmp_path / "fresh", *SHAPE) == 0
    assert "this run is finished" in capsys.readouterr().out


def test_a_resume_does_not_need_the_folder(world, tmp_path, capsys):
    """Without it the model loses the settings of its tokenizer, with a warning."""
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    names = ("start/tokenizer_config.json", "run/model/tokenizer_config.json")
    file, written = (tmp_path / name for name in names)
    settings = json.loads(file.read_text()) | dict(padding_side="left", truncation_side="left")
    file.write_text(json.dumps({key: settings[key] for key in settings if key != "crc32c"}))
    call = [f"{world}/more/*.tfrecord", tmp_path / "run", f"--init_checkpoint={start}", "--quiet"]
    assert train(*call) == 0
    settings = json.loads(written.read_text())
    assert settings["padding_side"] == "left" and "truncation_side" not in settings
    shutil.rmtree(start)
    capsys.readouterr()
    assert train(*call, steps=2) == 0
    assert "gets no settings of that tokenizer: --init_checkpoint=" in capsys.readouterr().err
    assert [line["step"] for line in lines(tmp_path / "run") if "loss" in line] == [1, 2]
    assert train(*call, "--hidden_size=32", steps=3) == 2
    assert "--hidden_size: 64 -> 32" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flag, problem",
    [
        ("--hidden_size=32", "the weights in FOLDER are of hidden_size=64"),
        ("--model=mini", "has num_hidden_layers=4, but the weights in FOLDER are of"),
        ("--vocab_size=99", "the weights in FOLDER are of vocab_size="),
        ("--hidden_act=relu", "the weights in FOLDER are of hidden_act=gelu"),
    ],
)
def test_what_contradicts_the_weights_is_refused(world, tmp_path, capsys, flag, problem):
    folder = f"{world}/run/model"
    call = [f"{world}/more/*.tfrecord", tmp_path / "run", f"--init_checkpoint={world}/run"]
    for more in (["--show_config"], []):
        assert train(*call, flag, *more) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"{flag}: {problem.replace('FOLDER', folder)}"), error
        assert error.count("\n") == 1 and not (tmp_path / "run").exists()


def test_what_agrees_with_the_weights_is_no_contradiction(world, tmp_path, capsys):
    call = [f"{world}/more/*.tfrecord", tmp_path / "run", f"--init_checkpoint={world}/run"]
    assert train(*call, "--hidden_size=64", "--embedding_size=64", "--show_config") == 0
    assert "--num_hidden_layers=1  # derived" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["size", "pieces", "casing"])
def test_data_of_another_vocabulary_is_refused(world, data, tmp_path, capsys, how):
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    more = f"{data if how == 'size' else world / 'more'}/*.tfrecord"
    if how == "pieces":
        (start / "tokenizer_config.json").write_text('{"do_lower_case": false}')
        pieces = (start / "vocab.txt").read_text().split()
        (start / "vocab.txt").write_text("\n".join([*pieces[:-1], "other"]) + "\n")
    elif how == "casing":
        (start / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert train(more, tmp_path / "run", f"--init_checkpoint={start}") == 2
    *warnings, error = capsys.readouterr().err.splitlines(keepends=True)
    assert ["tokenizer.json: gives other ids" in line for line in warnings] == [True] * (
        how == "pieces"
    )
    problem = dict(
        size="but that of the data has 500 pieces",
        pieces="its vocab.txt is not the vocabulary of the data",
        casing="its text was lower-cased, unlike that of the data",
    )[how]
    assert error.startswith(f"--init_checkpoint={start}: ") and problem in error
    assert error.endswith("; build the data with create_pretraining_data.py and this flag\n")
    assert not (tmp_path / "run").exists()


def test_records_of_others_get_the_models_vocabulary(world, tmp_path, capsys):
    """Without dataset.json only sizes can be compared. Of a bare encoder, the heads are fresh."""
    (tmp_path / "theirs").mkdir()
    for path in (world / "more").glob("*.tfrecord"):
        shutil.copy(path, tmp_path / "theirs")
    config, values, _ = huggingface.read_model(str(world / "run" / "model"))
    tokenizer = models.load_tokenizer(str(world / "run" / "model"))
    bare = tmp_path / "bare"
    files = models.tokenizer_files(tokenizer, config)
    huggingface.write_model(bare, config, values, "BertModel", files=files)
    theirs = f"{tmp_path}/theirs/*.tfrecord"
    assert train(theirs, tmp_path / "run", f"--init_checkpoint={bare}") == 0
    out = capsys.readouterr().out
    assert "fresh: mlm/bias, mlm/norm/bias, mlm/norm/scale, mlm/transform/bias" in out
    for name, content in files.items():
        assert (tmp_path / "run" / "model" / name).read_bytes() == content
    encoder = "bert.encoder.layer.0.output.dense.weight"
    before, after = (weights(folder)[encoder] for folder in (world / "run", tmp_path / "run"))
    np.testing.assert_allclose(before, after, atol=2e-3)


def test_an_encoder_with_a_hole_is_refused(world, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    config, values, notes = huggingface.read_model(str(start))
    del values["layer_0/attention/qkv/kernel"]
    family, tensors = family_of(config), {}
    for name, value in values.items():
        tensors |= zip(family.names(name), family.to_theirs(name, value), strict=True)
    (start / "model.safetensors").write_bytes(tensor_files.save(tensors))
    call = [f"{world}/more/*.tfrecord", tmp_path / "run", f"--init_checkpoint={start}"]
    assert train(*call) == 2
    assert "has no weights layer_0/attention/qkv/kernel" in capsys.readouterr().err


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_data_for_a_model_is_that_of_its_vocabulary(world, tmp_path, capsys):
    """The same files as with --vocab_file, from ours and from a tokenizer.json alone, and after an
    interruption.
    """
    model = world / "run" / "model"
    named = [f"--vocab_file={model}/vocab.txt", "--nodo_lower_case"]
    assert make_data(world / "more.txt", tmp_path / "named", *named, "--quiet") == 0
    expected = content(tmp_path / "named")
    assert content(world / "more") == expected

    theirs = tmp_path / "theirs"
    theirs.mkdir()
    shutil.copy(model / "config.json", theirs)
    pieces = (model / "vocab.txt").read_text().split()
    vocab = {piece: index for index, piece in reversed([*enumerate(pieces)])}
    described = dict(
        normalizer=dict(type="BertNormalizer", lowercase=False, strip_accents=None),
        model=dict(type="WordPiece", continuing_subword_prefix="##", vocab=vocab),
        added_tokens=[dict(content="[PAD]", id=0)],
    )
    (theirs / "tokenizer.json").write_text(json.dumps(described))
    capsys.readouterr()
    assert make_data(world / "more.txt", tmp_path / "json", f"--init_checkpoint={theirs}") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"from {theirs}: WordPiece tokenizer.json, {len(pieces)} pieces, cased"
    assert content(tmp_path / "json") == expected
    assert json.loads(expected["dataset.json"])["do_lower_case"] is False


def test_a_job_for_a_model_goes_on(world, tmp_path, monkeypatch):
    flags = [f"--init_checkpoint={world}/run", "--num_shards=3", "--num_workers=1", "--quiet"]
    monkeypatch.setattr("bert_gpu.text.corpus.WINDOW_BYTES", 3000)
    assert make_data(world / "more.txt", tmp_path / "whole", *flags) == 0
    write = build.ShardBuilder.write_shard

    def killed(worker, shard, report):
        if shard.index == 1:
            raise KeyboardInterrupt
        write(worker, shard, report)

    with monkeypatch.context() as patch:
        patch.setattr(build.ShardBuilder, "write_shard", killed)
        assert make_data(world / "more.txt", tmp_path / "parts", *flags) == 130
    assert (tmp_path / "parts" / ".pretrain.building.json").exists()
    agrees = f"--vocab_file={world}/data/vocab.txt"  # other bytes would be refused
    assert make_data(world / "more.txt", tmp_path / "parts", *flags, agrees) == 0
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


@pytest.mark.parametrize(
    "flag, problem",
    [
        ("--do_lower_case", "--do_lower_case=True: the model in FOLDER has False"),
        ("--vocab_size=101", "--vocab_size=101: the model in FOLDER has"),
        ("--tokenization=SentencePiece", "the model in FOLDER has WordPiece"),
        ("--sp_model_file=x.model", "the model in FOLDER has WordPiece (vocab.txt)"),
        ("--vocab_file=OTHER", "is not the vocabulary of the model, FOLDER/vocab.txt"),
        ("--init_checkpoint=nowhere", "--init_checkpoint=nowhere: no such folder"),
    ],
)
def test_flags_that_contradict_the_model_are_refused(world, data, tmp_path, capsys, flag, problem):
    folder = f"{world}/run/model"
    flag = flag.replace("OTHER", f"{data}/vocab.txt")
    given = [f"--init_checkpoint={world}/run", flag]
    assert make_data(world / "more.txt", tmp_path / "data", *given) == 2
    error = capsys.readouterr().err
    assert problem.replace("FOLDER", folder) in error and error.count("\n") == 1, error
    assert not (tmp_path / "data").exists()


def test_a_tokenizer_that_ours_cannot_be_is_refused(world, tmp_path, capsys):
    notes = dict(do_lower_case=False, tokenize_chinese_chars=False)
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    (start / "tokenizer_config.json").write_text(json.dumps(notes))
    os.remove(start / "tokenizer.json")
    call = [world / "more.txt", tmp_path / "data", f"--init_checkpoint={start}"]
    assert make_data(*call) == 2
    assert "tokenize_chinese_chars=false" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert make_data(*call, "--nodo_lower_case", "--show_config") == 0


def test_lower_casing_for_a_model_that_keeps_accents_is_warned_of(world, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    pieces = (start / "vocab.txt").read_text().splitlines()
    pieces[5] = "möchte"  # the first one after the special ones
    (start / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (start / "tokenizer_config.json").write_text('{"do_lower_case": true, "strip_accents": false}')
    os.remove(start / "tokenizer.json")  # of other pieces
    call = [world / "more.txt", tmp_path / "data", f"--init_checkpoint={start}", "--do_lower_case"]
    assert make_data(*call, "--strict") == 2 and not (tmp_path / "data").exists()
    error = capsys.readouterr().err
    assert "pieces of the vocabulary, such as 'möchte', are never used" in error
    assert make_data(*call) == 0 and f"warning: {error[10:]}" in capsys.readouterr().err


def test_a_folder_that_says_no_casing_is_said_to(world, tmp_path, capsys):
    start = tmp_path / "start"
    shutil.copytree(world / "run" / "model", start)
    for name in ("tokenizer_config.json", "tokenizer.json"):
        os.remove(start / name)
    assert make_data(world / "more.txt", tmp_path / "data", f"--init_checkpoint={start}") == 0
    pieces = (start / "vocab.txt").read_text().split()
    has_capitals = any(piece != piece.lower() for piece in pieces if piece[0] != "[")
    guess = "cased (no file states it" if has_capitals else "lower case (no file states it"
    assert guess in capsys.readouterr().out.splitlines()[0]
    os.remove(start / "vocab.txt")
    assert make_data(world / "more.txt", tmp_path / "other", f"--init_checkpoint={start}") == 2
    assert f"{start}: has no vocab.txt" in capsys.readouterr().err


def test_a_recipe_yields_to_the_model(world):
    """Its vocabulary and its shape give way; its other values stay."""
    start = f"--init_checkpoint={world}/run"

    def recipe(script, *argv):
        return cli_flags.parse(["x", *argv], "", (), CLASSES[script], script=script).recipe

    kept = recipe("data", "--recipe=bert", start)
    assert not {"vocab_size", "do_lower_case", "tokenization"} & set(kept) and "objective" in kept
    assert recipe("data", "--recipe=bert", "--init_checkpoint=none")["vocab_size"][0] == 30522
    kept = recipe("pretrain", "--recipe=modern", start)
    assert not {"model", "num_hidden_layers", "hidden_act"} & set(kept)
    assert kept["hidden_dropout_prob"][0] == 0.0 and "learning_rate" in kept


def test_what_is_taken_from_the_model_is_shown_as_its_own(world, tmp_path, capsys):
    flags = [f"--init_checkpoint={world}/run", "--show_config"]
    assert make_data(world / "more.txt", tmp_path / "data", *flags) == 0
    folder, source = world / "run" / "model", "# the folder of --init_checkpoint"
    size = read_config(f"{folder}/config.json").vocab_size
    text = capsys.readouterr().out
    assert f"--vocab_size={size}  {source}\n" in text
    assert f"--do_lower_case=False  {source}\n" in text
    assert f"--vocab_file={folder}/vocab.txt  {source}\n" in text
