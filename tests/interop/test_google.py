"""Google's TensorFlow 1 checkpoints: read by their names, written so that their tools read them,
and every fault named.
"""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main
from bert_gpu.base.errors import UserError
from bert_gpu.interop import google, models
from bert_gpu.interop.formats import recognise
from bert_gpu.interop.sources import find_model, read_config
from bert_gpu.model.config import ModelConfig
from tests.interop import tensorflow_1


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(folder of a checkpoint as Google's Saver writes it, its variables)."""
    folder = tmp_path_factory.mktemp("google")
    return folder, tensorflow_1.write(folder)


def stored(folder):
    """{name: array} of a checkpoint."""
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def export(capsys, source, target, *more):
    code = main(["bert-gpu", "export", f"--from={source}", f"--to={target}", *more])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_checkpoint_reads_back_the_same_under_googles_names(theirs, tmp_path, capsys):
    folder, variables = theirs
    path, model = models.open_model(str(folder), "from")
    assert model.config == ModelConfig(**tensorflow_1.SHAPE, hidden_act="gelu_new")
    assert model.notes[:4] == ([], [], "BertForPreTraining", ())
    layer = variables["bert/encoder/layer_1/attention/self/key/kernel"]
    assert np.array_equal(model.weights["layer_1/attention/qkv/kernel"][:, 16:32], layer)
    relation = variables["cls/seq_relationship/output_weights"]
    assert np.array_equal(model.weights["nsp/kernel"], relation.T)
    code, out, err = export(capsys, folder, tmp_path / "back", "--format=google")
    assert code == 0 and f"{len(variables)} variables" in out, err
    back = stored(tmp_path / "back")
    assert back.keys() == variables.keys()
    assert all(np.array_equal(back[name], value) for name, value in variables.items())
    written = json.loads((tmp_path / "back" / "bert_config.json").read_text())
    expected = {k: v for k, v in tensorflow_1.SETTINGS.items() if k != "directionality"}
    assert written == expected
    assert (tmp_path / "back" / "vocab.txt").read_text() == (folder / "vocab.txt").read_text()


def test_it_is_found_by_any_of_its_files(theirs):
    folder = theirs[0]
    prefix = folder / "bert_model.ckpt"
    for path in (folder, prefix, f"{prefix}.index", f"{prefix}.data-00000-of-00001"):
        assert recognise(str(path)) == "google"
        assert find_model(str(path), "init_checkpoint") == str(path)
        assert read_config(str(path)).hidden_size == 16
    with pytest.raises(UserError, match="no such folder"):
        find_model(str(folder / "other.ckpt"), "init_checkpoint")


def test_the_newest_of_several_checkpoints_is_taken(theirs, tmp_path):
    for step in (900, 1000):
        for end in (".index", ".data-00000-of-00001"):
            shutil.copy(theirs[0] / f"bert_model.ckpt{end}", tmp_path / f"model.ckpt-{step}{end}")
    found = google.find_checkpoint(str(tmp_path))
    assert found == str(tmp_path / "model.ckpt-1000")


def test_a_classifier_comes_in_and_out(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    variables = tensorflow_1.write(tmp_path / "in", num_classes=3)
    model = google.read(str(tmp_path / "in"))
    assert model.notes.architecture == "BertForSequenceClassification"
    assert np.array_equal(model.weights["classifier/kernel"], variables["output_weights"].T)
    assert export(capsys, tmp_path / "in", tmp_path / "out", "--format=google")[0] == 0
    back = stored(tmp_path / "out")
    assert all(np.array_equal(back[name], value) for name, value in variables.items())


def test_an_exact_gelu_goes_out_with_a_note_and_comes_back(theirs, tmp_path, capsys):
    ours = google.read(str(theirs[0]))
    config = ModelConfig(**tensorflow_1.SHAPE)
    models.write_model(str(tmp_path / "ours"), config, ours.weights)
    code, out, _ = export(capsys, tmp_path / "ours", tmp_path / "out", "--format=google")
    assert code == 0 and "tanh-approximated GELU" in out
    assert json.loads((tmp_path / "out" / "bert_config.json").read_text())["hidden_act"] == "gelu"
    back = google.read(str(tmp_path / "out"))
    assert back.config == config
    assert all(np.array_equal(back.weights[name], value) for name, value in ours.weights.items())


def test_a_vocabulary_with_capitals_is_that_of_a_cased_model(theirs, tmp_path):
    assert models.open_model(str(theirs[0]), "from")[1].tokenizer.do_lower_case
    shutil.copytree(theirs[0], tmp_path / "cased")
    pieces = "\n".join(tensorflow_1.VOCAB)
    (tmp_path / "cased" / "vocab.txt").write_text(pieces.replace("\ng\n", "\nG\n"))
    assert not models.open_model(str(tmp_path / "cased"), "from")[1].tokenizer.do_lower_case


def test_a_table_beyond_bert_config_keeps_its_rows(theirs, tmp_path):
    """NVIDIA pads the table to a multiple of 8, and bert_config.json counts the pieces."""
    shutil.copytree(theirs[0], tmp_path / "in")
    settings = tensorflow_1.SETTINGS | dict(vocab_size=len(tensorflow_1.VOCAB) - 2)
    (tmp_path / "in" / "bert_config.json").write_text(json.dumps(settings))
    (tmp_path / "in" / "vocab.txt").write_text("\n".join(tensorflow_1.VOCAB[:-2]) + "\n")
    path, model = models.open_model(str(tmp_path / "in"), "from")
    rows = len(theirs[1]["bert/embeddings/word_embeddings"])
    assert model.config.vocab_size == read_config(path).vocab_size == rows
    assert model.tokenizer.vocab_size == len(tensorflow_1.VOCAB) - 2 < rows


@pytest.mark.parametrize(
    "switch",
    [
        dict(norm_first=True),
        dict(position_embedding_type="rotary"),
        dict(layer_norm_eps=1e-5),
        dict(pooler_size=8),
    ],
)
def test_what_google_does_not_have_is_named(tmp_path, switch, theirs):
    config = ModelConfig(**tensorflow_1.SHAPE, **switch)
    model = google.read(str(theirs[0]))._replace(config=config)
    with pytest.raises(UserError, match=f"--format=google: .*{next(iter(switch))}="):
        google.write(model, str(tmp_path / "out"), None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "settings, part",
    [
        (dict(num_hidden_layers=1), "more layers than bert_config.json says"),
        (dict(num_hidden_layers=3), "has no weights layer_2/"),
        (dict(num_hidden_layers=10**9), "num_hidden_layers=1000000000, the checkpoint has"),
        (dict(vocab_size=14), "word_embeddings has shape (13, 16), bert_config.json gives"),
        (dict(vocab_size=0), "vocab_size=0"),
        (dict(hidden_act="tanh"), "hidden_act=tanh"),
        (dict(model_type="roberta"), "model_type='roberta' is not supported"),
    ],
)
def test_a_config_that_contradicts_the_checkpoint_is_one_line(
    theirs, tmp_path, capsys, settings, part
):
    shutil.copytree(theirs[0], tmp_path / "in")
    (tmp_path / "in" / "bert_config.json").write_text(json.dumps(tensorflow_1.SETTINGS | settings))
    code, _, err = export(capsys, tmp_path / "in", tmp_path / "out")
    assert code == 2 and part in err and err.count("\n") == 1 and len(err) <= 301, err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("damage", ["no config", "no data", "short data", "index", "nan"])
def test_broken_files_are_one_line(theirs, tmp_path, capsys, damage):
    shutil.copytree(theirs[0], tmp_path / "in")
    data = tmp_path / "in" / "bert_model.ckpt.data-00000-of-00001"
    if damage == "no config":
        (tmp_path / "in" / "bert_config.json").unlink()
    if damage == "no data":
        data.unlink()
    if damage == "short data":
        data.write_bytes(data.read_bytes()[:2000])
    if damage == "index":
        (tmp_path / "in" / "bert_model.ckpt.index").write_bytes(b"\xff" * 500)
    if damage == "nan":
        google.save(
            str(tmp_path / "in" / "bert_model.ckpt"),
            theirs[1] | {"bert/pooler/dense/bias": np.full(16, np.nan, np.float32)},
        )
    code, _, err = export(capsys, tmp_path / "in", tmp_path / "out")
    assert code == 2 and str(tmp_path / "in") in err and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists()
