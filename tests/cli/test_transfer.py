"""import and export: what goes out comes in again the same, and what is wrong is one line before
anything is written.
"""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.finetune.config import StartConfig
from bert_gpu.finetune.notes import read_notes, write_notes
from bert_gpu.finetune.start import start_training
from bert_gpu.finetune.tasks.interface import open_task_type
from bert_gpu.finetune.tasks.n_best import AnswerRules
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.interop import formats, models
from bert_gpu.interop.config import ExportConfig
from bert_gpu.interop.sources import find_model, read_config
from bert_gpu.model.config import ModelConfig
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests.finetune.evaluations import task_of
from tests.interop.test_leaving import model_of
from tests.model.variants import SMALL
from tests.test_architecture import ROOT

PIECES = [*SPECIAL_PIECES, "a", "b"]


def transfer(name, *arguments):
    return command(["bert-gpu", name, *map(str, arguments)])


@pytest.fixture(scope="module")
def exported(finished, tmp_path_factory):
    """The model of a run, exported for Hugging Face."""
    folder = tmp_path_factory.mktemp("exported") / "there"
    assert transfer("export", f"--from={finished}", f"--to={folder}", "--format=huggingface") == 0
    return folder


def test_out_and_in_again_are_the_same_bytes(finished, exported, tmp_path, capsys):
    assert transfer("import", f"--from={exported}", f"--to={tmp_path}/back") == 0
    assert str(tmp_path / "back") in capsys.readouterr().out
    ours = (finished / "model" / "model.safetensors").read_bytes()
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == ours
    for folder in (exported, tmp_path / "back"):
        model = models.read_model(str(folder))
        assert model.config == models.read_model(str(finished / "model")).config
        tokenizer = models.load_tokenizer(str(folder))
        assert tokenizer.identity == models.load_tokenizer(str(finished / "model")).identity


def test_names_that_are_taken_need_overwrite(finished, exported, capsys):
    (exported / "mine.txt").write_text("mine")
    before = (exported / "model.safetensors").read_bytes()
    assert transfer("export", f"--from={finished}", f"--to={exported}") == 2
    assert f"--to={exported}: is not empty" in capsys.readouterr().err
    assert transfer("export", f"--from={finished}", f"--to={exported}", "--overwrite") == 0
    assert (exported / "model.safetensors").read_bytes() == before
    assert (exported / "mine.txt").read_text() == "mine"


OTHERS = {
    *("pytorch_model.bin", "spiece.model", "task.json", "modeling_bert_gpu.py", "model.onnx"),
    *("bert_config.json", "bert_model.ckpt-9.index", "checkpoint", "saved_model.pb"),
    *("variables/variables.index", "assets/vocab.txt", "model-00001-of-00002.safetensors"),
    *("onnx/model.onnx", "onnx/model_quantized.onnx"),
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
}


@pytest.mark.parametrize(
    "name",
    ["huggingface", "google", "savedmodel", pytest.param("onnx", marks=pytest.mark.long), None],
)
def test_a_model_that_is_written_over_another_leaves_nothing_of_it(name, finished, tmp_path):
    """The folder is what a new one is, and files of no model."""
    new, old = tmp_path / "new", tmp_path / "old"
    for path in (*OTHERS, "config.json", "mine.txt", "runs/checkpoint"):
        (old / path).parent.mkdir(parents=True, exist_ok=True)
        (old / path).write_text("old")
    for folder in (new, old):
        given = [f"--from={finished}", f"--to={folder}", "--overwrite"]
        assert transfer(*(["export", f"--format={name}"] if name else ["import"]), *given) == 0
    found, expected = (
        {str(path.relative_to(top)) for path in top.rglob("*")} for top in (old, new)
    )
    assert found == expected | {"mine.txt", "runs", "runs/checkpoint"}


def test_folders_named_as_a_saved_models_stay_without_one(finished, tmp_path):
    """Nor does a folder onnx/ go, or a file of another name, without the model that we write."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "onnx").mkdir()
    others = [tmp_path / name for name in ("onnx/mine.onnx", "mine.onnx")]
    for path in others:
        path.touch()
    assert transfer("import", f"--from={finished}", f"--to={tmp_path}", "--overwrite") == 0
    assert (tmp_path / "assets").is_dir() and all(path.exists() for path in others)


@pytest.mark.parametrize("name", ["import", "export"])
@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "--from: is needed"),
        (["--from=MODEL"], "--to: is needed"),
        (["--from=NOWHERE", "--to=NEW"], "--from=NOWHERE: no such folder"),
        (["--from=MODEL", "--to=gs://models/one"], "--to=gs://models/one: "),
        (["--from=MODEL", "--to=FILE"], "--to=FILE"),
        (["--from=MODEL", "--to=MODEL", "--overwrite"], "the model lies there"),
        (["--from=MODEL", "--to=ABOVE", "--overwrite"], "the model lies there"),
        (["--from=MODEL", "--to=RUN", "--overwrite"], "--to=RUN: is the folder of a run"),
        (["--from=MODEL", "--to=NEW", "--vocab_file=FILE"], "FILE"),
    ],
)
def test_faults_are_one_line(name, arguments, message, finished, tmp_path, capsys):
    (tmp_path / "file").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n")
    places = dict(MODEL=finished / "model", NOWHERE=tmp_path / "no", FILE=tmp_path / "file")
    places |= dict(NEW=tmp_path / "new", RUN=finished, ABOVE=finished.parent)
    before = sorted(os.listdir(finished))
    for word, path in places.items():
        arguments = [argument.replace(word, str(path)) for argument in arguments]
        message = message.replace(word, str(path))
    assert transfer(name, *arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert os.listdir(tmp_path) == ["file"] and sorted(os.listdir(finished)) == before


@pytest.mark.parametrize("mark", ["run.json", ".run.lock", "checkpoints"])
def test_a_run_is_no_target_and_its_model_wins_over_files_beside_it(exported, mark, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(exported, run)
    shutil.copytree(exported, run / "model")
    assert find_model(str(run), "from") == str(run)
    (run / mark).mkdir()
    assert find_model(str(run), "from") == str(run / "model")
    with pytest.raises(UserError, match="is the folder of a run; name another folder"):
        models.transfer(ExportConfig(source=str(exported), to=str(run), overwrite=True), print)


def test_paths_are_looked_at_without_tensorflow(tmp_path):
    """Whatever formats there are, so that a wrong --init_checkpoint is told at once."""
    (tmp_path / "other").write_text("")
    code = (
        "import sys; from bert_gpu.interop.formats import recognise; "
        "assert recognise(sys.argv[1]) is None; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True)


@pytest.mark.parametrize("file", ["saved_model.pb", "onnx/model.onnx"])
def test_a_format_that_only_goes_out_is_not_read(file, exported, tmp_path, capsys):
    """A folder that also has a model that is read is that one."""
    there = tmp_path / "there"
    shutil.copytree(exported, there)
    (there / file).parent.mkdir(exist_ok=True)
    (there / file).touch()
    assert find_model(str(there), "from") == str(there)
    (there / "model.safetensors").unlink()
    if file == "saved_model.pb":
        (there / "config.json").unlink()
    assert transfer("import", f"--from={there}", f"--to={tmp_path}/back") == 2
    told = capsys.readouterr().err
    assert "has no model.safetensors; " in told or "has no config.json; " in told
    assert told.count("\n") == 1 and not (tmp_path / "back").exists()


def test_a_missing_vocabulary_is_named(exported, tmp_path, capsys):
    shutil.copytree(exported, tmp_path / "bare")
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / "bare" / name).unlink()
    call = [f"--from={tmp_path}/bare", f"--to={tmp_path}/back"]
    assert transfer("export", *call, f"--vocab_file={exported}/vocab.txt") == 0
    assert capsys.readouterr().err == ""
    assert transfer("export", *call, "--overwrite", "--nodo_lower_case") == 0
    assert "bare: has no vocabulary; name it with --vocab_file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "switches", [{}, dict(norm_first=True), dict(norm_first=True, norm_type="rms_norm")]
)
@pytest.mark.parametrize("name", ["huggingface", "google"])
def test_a_training_starts_from_what_was_exported(name, switches, tmp_path, capsys):
    """From a BERT, a relative and a model with its code; Google's format has the first alone."""
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    config = ModelConfig(**SMALL | dict(vocab_size=len(PIECES)) | switches)
    tokenizer = open_tokenizer(str(tmp_path / "vocab.txt"), True)
    model = model_of(config, "BertForPreTraining")._replace(tokenizer=tokenizer)
    folder = tmp_path / "there"
    if name == "google" and switches:
        with pytest.raises(UserError, match="norm_first"):
            formats.open_format(name).write(model, str(folder))
        return
    formats.open_format(name).write(model, str(folder))
    task = task_of(TASKS["pairs"], ("no", "yes"))
    start = start_training(StartConfig(init_checkpoint=str(folder)), task, 0)
    hidden = "layer_1/attention/qkv/kernel"
    assert (start.weights[hidden] == model.weights[hidden]).all()
    assert (
        start.tokenizer.identity == tokenizer.identity
        and start.model.norm_first == config.norm_first
    )
    path = find_model(str(folder), "init_checkpoint")
    assert read_config(path).hidden_size == config.hidden_size


def test_what_is_left_over_is_named(exported, tmp_path, capsys):
    shutil.copytree(exported, tmp_path / "more")
    path = tmp_path / "more" / "model.safetensors"
    tensors = safetensors.numpy.load_file(path) | {f"odd.{n}": np.zeros(2) for n in range(5)}
    safetensors.numpy.save_file(tensors, path)
    assert transfer("import", f"--from={tmp_path}/more", f"--to={tmp_path}/back") == 0
    assert "weights: odd.0, odd.1, odd.2 and 2 more\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name == "garden" else ())
        for name in formats.format_names(writes=False)
    ],
)
def test_every_format_has_a_card_and_comes_in_again(name, data, finished, tmp_path):
    """Of those that come in again; a pretraining starts from the files as they are."""
    if name in formats.format_names(writes=True):
        there, back = tmp_path / "there", tmp_path / "back"
        assert transfer("export", f"--from={finished}", f"--to={there}", f"--format={name}") == 0
        card = (there / "README.md").read_text()
        assert "| steps | 12 of 12 |" in card and "## How to open it" in card
        assert transfer("import", f"--from={there}", f"--to={back}") == 0
        first, second = (models.read_model(str(path)) for path in (finished / "model", back))
        assert first.weights.keys() == second.weights.keys()
        assert all((first.weights[key] == value).all() for key, value in second.weights.items())
        run = [f"--input_file={data}/*.tfrecord", f"--output_dir={tmp_path}/run", "--quiet"]
        run += [f"--init_checkpoint={there}", "--num_train_steps=1", "--train_batch_size=8"]
        assert transfer("pretrain", *run, "--learning_rate=1e-12", "--max_eval_steps=1") == 0
        third = models.read_model(str(tmp_path / "run" / "model")).weights
        for key, value in first.weights.items():
            np.testing.assert_allclose(third[key], value, rtol=0, atol=1e-9)


@pytest.fixture
def tuned(tmp_path):
    """(folder, TaskNotes) of a fine-tuned model that a relative of transformers computes."""
    folder = str(tmp_path / "tuned")
    task = task_of(TASKS["squad"], doc_stride=7, rules=AnswerRules(allows_none=True))
    model = model_of(ModelConfig(**SMALL, norm_first=True), task.architecture)
    models.write_own(model, folder, write_notes(task, True, 24))
    return folder, notes_in(folder)


def notes_in(folder):
    model = models.read_model(folder)
    return read_notes(folder, open_task_type("answers"), model.notes)


def test_a_copy_of_a_fine_tuned_model_knows_its_task(tuned, tmp_path):
    """Imported, and exported as a relative."""
    folder, notes = tuned
    assert notes.max_seq_length == 24 and notes.version_2_with_negative and notes.doc_stride == 7
    back, there = str(tmp_path / "back"), str(tmp_path / "there")
    assert transfer("import", f"--from={folder}", f"--to={back}") == 0
    assert notes_in(back) == notes
    assert transfer("export", f"--from={folder}", f"--to={there}") == 0
    assert json.loads((tmp_path / "there" / "config.json").read_text())["model_type"] != "bert_gpu"
    assert notes_in(there) == notes
