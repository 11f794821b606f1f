"""The library as a program or a notebook uses it: importing it changes nothing, its public names
are listed, its arguments are the flags, and its results say what was made.
"""

import dataclasses
import inspect
import json
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading

import nbformat
import numpy as np
import pytest

import bert_gpu
from bert_gpu import api
from bert_gpu.base import console, environment
from bert_gpu.base.settings import fields_of
from bert_gpu.finetune import sweep
from bert_gpu.finetune.run import Result
from bert_gpu.runs.folder import RunFolder
from bert_gpu.train.step import TrainStep

ROOT = pathlib.Path(__file__).parent.parent
CALLS = sorted(api.COMMANDS)


def python(code, *words, **variables):
    """What code prints in a fresh process in which nothing is set for TensorFlow."""
    names = ("TF_CPP_MIN_LOG_LEVEL", "GLOG_minloglevel", "TF_ENABLE_ONEDNN_OPTS", "XLA_FLAGS")
    values = {name: value for name, value in os.environ.items() if name not in names}
    values |= dict(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="-1") | variables
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, env=values, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Arguments of the smallest pretraining, and of its data."""
    folder = tmp_path_factory.mktemp("small")
    text = folder / "text.txt"
    lines = (ROOT / "tests" / "sample_text.txt").read_text().splitlines()[:400]
    text.write_text("\n".join(lines) + "\n")
    made = bert_gpu.create_pretraining_data(
        input_file=text,
        output_dir=folder / "data",
        vocab_size=300,
        max_seq_length=32,
        dupe_factor=1,
    )
    shape = dict(num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2)
    run = dict(input_file=folder / "data", model="tiny", train_batch_size=8, num_train_steps=2)
    return made, run | shape


@pytest.fixture(scope="module")
def trained(small, tmp_path_factory):
    """The folder of the smallest pretraining, by a call in a thread, and its result."""
    folder, results = tmp_path_factory.mktemp("trained") / "run", []

    def call():
        results.append(bert_gpu.run_pretraining(output_dir=folder, **small[1]))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    return folder, results[0]


def test_the_import_changes_nothing_in_the_process():
    code = """
import logging, os, signal, sys, warnings, importlib
def state():
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    loggers = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    log = (logging.root.level, list(logging.root.handlers), loggers, logging.root.manager.disable)
    hooks = (list(sys.meta_path), list(sys.path_hooks), sys.excepthook, list(sys.path))
    return dict(os.environ), handlers, log, hooks, list(warnings.filters), warnings.showwarning
before = state()
import bert_gpu
assert bert_gpu.__version__ and "run_pretraining" in dir(bert_gpu)
after = state()
print([old == new for old, new in zip(before, after)])
print([name for name in ("tensorflow", "numpy", "keras", "numba", "absl") if name in sys.modules])
bert_gpu.run_pretraining, bert_gpu.DataConfig  # imports NumPy, which sets filters of warnings
first, last = ([*each[:2], *each[2][:2], each[3]] for each in (before, state()))
print(first == last, "tensorflow" in sys.modules)
"""
    assert python(code).splitlines() == [str([True] * 6), "[]", "True False"]


@pytest.mark.parametrize(
    "names", ["bert_gpu, keras", pytest.param("keras, bert_gpu", marks=pytest.mark.long)]
)
def test_keras_is_the_same_before_and_after_the_import(names):
    code = f"""
import {names}, tensorflow as tf
print(keras.layers.Dense(2)(tf.ones([1, 3])).shape, tf.keras.layers.Dense is keras.layers.Dense)
"""
    assert python(code, TF_CPP_MIN_LOG_LEVEL="3") == "(1, 2) True\n"


def test_the_public_names_are_the_list():
    code = "import bert_gpu; print(dir(bert_gpu) == sorted(bert_gpu.__all__), *dir(bert_gpu))"
    is_list, *names = python(code).split()
    assert is_list == "True" and names == bert_gpu.__all__ == dir(bert_gpu)
    assert all(getattr(bert_gpu, name) is not None for name in names)
    assert {*CALLS, "UserError", "TrainingStopped", "DataConfig", "PretrainSettings"} <= set(names)
    with pytest.raises(AttributeError, match="no attribute 'pretrain_model'"):
        _ = bert_gpu.pretrain_model


@pytest.mark.parametrize("name", CALLS)
def test_arguments_and_their_help_are_the_flags(name):
    call, command = getattr(bert_gpu, name), api.COMMANDS[name]
    fields = fields_of(*command.CLASSES)
    parameters = inspect.signature(call).parameters
    assert set(parameters) == {"settings", *fields}
    assert call.__name__ == name and call.__module__ == "bert_gpu"
    text = "".join(call.__doc__.split())  # its lines may end at hyphens
    for field in fields.values():
        assert f"--{field.name}" in text
        assert "".join(field.metadata["help"].split()) in text


def test_defaults_in_the_signature_are_the_commands():
    parameters = inspect.signature(bert_gpu.run_classifier).parameters
    assert parameters["learning_rate"].default == 5e-5
    assert parameters["num_train_epochs"].default == 3.0
    assert inspect.signature(bert_gpu.run_pretraining).parameters["learning_rate"].default == 1e-4


@pytest.mark.parametrize(
    "call, arguments, message",
    [
        ("run_pretraining", dict(learing_rate=1), r"did you mean --learning_rate\? \(help\("),
        ("run_pretraining", dict(utterly=1), r"no such flag \(help\(bert_gpu.run_pretraining\)"),
        ("embed", dict(poolin="mean"), r"did you mean --pooling\? \(help\(bert_gpu.embed\)"),
        ("run_pretraining", dict(learning_rate=0), "--learning_rate=0.0: must be above 0"),
        ("run_pretraining", dict(hidden_size=True), "must be a whole number"),
        ("run_pretraining", dict(model="huge"), "--model=huge: must be one of tiny"),
        ("run_pretraining", dict(total_training_time="soon"), "such as 24h, 90m"),
        ("run_pretraining", dict(recipe="cramed"), "must be one of bert"),
        ("run_pretraining", dict(learning_rate={}), "must be a number, a text, a path"),
        ("create_pretraining_data", dict(max_seq_length=3), "--max_seq_length=3: must be at least"),
        ("run_classifier", dict(dev_share=1.0), "must be below 1"),
        ("fill_mask", {}, "a text is needed"),
        ("export", dict(source="x"), "is needed"),
        ("run_pretraining", dict(input_file=["a,b", "c"]), "a comma separates values"),
    ],
)
def test_what_is_wrong_is_a_user_error(call, arguments, message):
    with pytest.raises(bert_gpu.UserError, match=message):
        getattr(bert_gpu, call)(**arguments)


def test_values_are_those_of_python():
    text = bert_gpu.run_pretraining(
        show_config=True,
        recipe="crammed",
        total_training_time="12h",
        learning_rate=np.float64(3e-4),
        num_warmup_steps=None,
        finetune_time_markers=["0.5", "0.75"],
        input_file=[pathlib.Path("a") / "*.tfrecord", "b"],
        shuffle=False,
        norm_first=True,
        max_steps=70,  # the name of another project
    )
    assert isinstance(text, str) and "# recipe crammed: " in text
    for line in (
        "--total_training_time=12.0",
        "--learning_rate=0.0003",
        "--finetune_time_markers=0.5,0.75",
        "--input_file=a/*.tfrecord,b",
        "--shuffle=False",
        "--norm_first=True",
        "--num_train_steps=70",
        "--recipe=crammed",
    ):
        assert f"\n{line}  # " in text, line
    assert "--optimizer=adamw  # recipe crammed: " in text


def test_a_flagfile_is_an_argument_too(tmp_path):
    (tmp_path / "x.flags").write_text("--learning_rate=0.25\n")
    text = bert_gpu.run_pretraining(flagfile=tmp_path / "x.flags", show_config=True, model="tiny")
    assert "--learning_rate=0.25  # " in text


def test_a_flag_without_effect_is_logged(caplog, capsys):
    bert_gpu.run_pretraining(show_config=True, polynomial_power=3.0)
    assert "--polynomial_power has no effect without --curve" in caplog.text
    assert capsys.readouterr() == ("", "")


def test_settings_objects_stand_alone(small, tmp_path):
    """What they leave open has the class's defaults, which are not always the command's; so none
    may stand beside arguments.
    """
    config = bert_gpu.DataConfig(output_file=str(tmp_path / "x.tfrecord"), max_seq_length=32)
    settings = bert_gpu.PretrainSettings()
    for call, objects, arguments in (
        ("run_pretraining", [settings], dict(num_train_steps=7)),
        ("run_pretraining", [bert_gpu.OptimizerConfig()], {}),
        ("run_pretraining", [settings, settings], {}),
        ("run_classifier", [settings], {}),
        ("create_pretraining_data", [bert_gpu.TextFormat()], {}),
        ("create_pretraining_data", [config, 3], {}),
        ("embed", [bert_gpu.EmbedConfig()], {}),
    ):
        with pytest.raises(bert_gpu.UserError, match=f"{call}: settings objects stand alone"):
            getattr(bert_gpu, call)(*objects, **arguments)
    text = tmp_path / "text.txt"
    text.write_text("a b. c d.\n\ne f. g h.\n" * 20)
    config = dataclasses.replace(config, input_file=str(text), vocab_size=100, num_workers=1)
    made = bert_gpu.create_pretraining_data(config, bert_gpu.TextFormat(input_format="documents"))
    assert made.max_seq_length == 32


def test_a_grid_is_of_a_call_too(small, tmp_path, monkeypatch):
    """Its cells are told apart by their settings, before anything is trained."""
    found = []
    monkeypatch.setattr(sweep, "run_sweep", lambda variants, *rest: found.append(variants))
    bert_gpu.run_classifier(grid="learning_rate=1e-4,2e-4", output_dir=tmp_path / "grid")
    [variants] = found
    assert [one.optimizer.learning_rate for one in variants.values()] == [1e-4, 2e-4]
    assert {one.cadence.num_train_epochs for one in variants.values()} == {3.0}


def test_texts_are_no_flags(trained):
    for text in ("-h", "--help", "--top_k=3"):
        with pytest.raises(bert_gpu.UserError, match=r"has no \[MASK\]"):
            bert_gpu.fill_mask(text, model=trained[0])


def test_results_say_what_was_made(small, trained, tmp_path):
    made, folder = small[0], trained[0]
    rows = f"{made.num_train_instances:,} records in 1 files and "
    assert repr(made).startswith(f"Manifest('pretrain': {rows}")
    assert repr(made).endswith("rows of 32 tokens, vocab.txt of 300 pieces)")
    assert repr(trained[1]).startswith(f"TrainingResult('{folder}': 2 steps, best loss ")
    lines = tmp_path / "lines.txt"
    lines.write_text("a b\nc\n")
    done = bert_gpu.embed(model=folder, input=lines, output=tmp_path / "x.npy")
    assert done.files == (str(tmp_path / "x.npy"),) and np.load(tmp_path / "x.npy").shape == (2, 16)
    assert "num_texts=2" in repr(done) and "width=16" in repr(done)
    [[first], [second, third]] = bert_gpu.fill_mask(
        ["a [MASK]", "[MASK] b [MASK]"], model=folder, top_k=3
    )
    assert [len(words) for words in (first, second, third)] == [3, 3, 3]
    lines.write_text("a [MASK]\n")
    [[again]] = bert_gpu.fill_mask(model=folder, input=lines, top_k=3)
    assert [word for _, word in again] == [word for _, word in first]
    assert [share for share, _ in again] == pytest.approx([share for share, _ in first])
    line = bert_gpu.export(source=folder, to=tmp_path / "theirs", format="google")
    assert line.startswith(f"{tmp_path / 'theirs'}: ")
    line = bert_gpu.import_model(source=tmp_path / "theirs", to=tmp_path / "ours")
    assert line.startswith(str(tmp_path / "ours")) and (tmp_path / "ours/config.json").exists()


def test_a_fine_tuning_and_its_metrics():
    result = Result("runs/classify/model", dict(dev=dict(accuracy=0.5)), None)
    assert repr(result) == "Result('runs/classify/model': {'dev': {'accuracy': 0.5}})"


def test_a_call_from_a_thread(trained):
    """It has no signal handlers, which only the main thread may set."""
    assert trained[1].progress.step == 2 and (trained[0] / "model" / "config.json").exists()


def test_a_second_press_of_the_stop_button_leaves_the_process_and_what_is_saved(
    small, tmp_path, monkeypatch
):
    step = TrainStep.__call__

    def pressed(self, batches, learning_rates, number, *rest):
        for _ in range(2 * (number == 1)):
            signal.raise_signal(signal.SIGINT)
        return step(self, batches, learning_rates, number, *rest)

    monkeypatch.setattr(TrainStep, "__call__", pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            bert_gpu.run_pretraining(
                output_dir=tmp_path / "run", save_checkpoints_steps=1, **small[1]
            )
    finally:
        signal.signal(signal.SIGINT, before)
    assert RunFolder(str(tmp_path / "run")).steps() == [1]


def test_other_devices_in_a_second_call_are_refused(small, tmp_path):
    arguments = small[1] | dict(output_dir=tmp_path / "run")
    with pytest.raises(bert_gpu.UserError, match="other devices in this process; ask for the dev"):
        bert_gpu.run_pretraining(virtual_replicas=8, **arguments)  # the tests have four


def test_a_call_says_once_what_its_tensorflow_lacks(monkeypatch, caplog):
    environment.hint.cache_clear()
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    for _ in range(2):
        bert_gpu.run_pretraining(show_config=True)
    [record] = [one for one in caplog.records if "prepare()" in one.message]
    assert record.levelno == logging.WARNING and record.name == "bert_gpu"
    assert "TF_ENABLE_ONEDNN_OPTS='1'" in record.message
    assert "'--xla_dump_to=x --xla_allow_excess_precision=false'" in record.message
    assert "TF_ENABLE_ONEDNN_OPTS" not in os.environ
    environment.hint.cache_clear()
    environment.prepare()  # too late here, where TensorFlow is imported
    assert os.environ["TF_ENABLE_ONEDNN_OPTS"] == "1"
    assert [one.message for one in caplog.records].count(record.message) == 2
    environment.hint.cache_clear()


def test_bars_of_a_notebook(monkeypatch, capsys):
    assert not console.in_notebook()
    monkeypatch.setattr(console, "in_notebook", lambda: True)
    log = console.LogConsole()
    bar = log.progress(4, 0, "training")
    bar.update(2, "loss 1")
    bar.close()
    share = log.share_bar("training")
    share.show(0.5, "2/4", "0:01", [(1, "loss 1")])
    share.close()
    assert "2/4" in capsys.readouterr().err
    assert isinstance(console.LogConsole(quiet=True).progress(4, 0, "x"), console.NoProgress)


@pytest.mark.long
def test_the_example_as_a_notebook(small, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    text = (ROOT / "examples" / "library.ipynb").read_text()
    for cell in json.loads(text)["cells"]:
        assert cell["cell_type"] == "markdown" or not cell["outputs"]
    sample = pathlib.Path(small[1]["input_file"]).parent / "text.txt"
    for old, new in (("text = None", f"text = {str(sample)!r}"), ("steps = 300", "steps = 3")):
        assert text.count(old) == 1
        text = text.replace(old, new)
    notebook = nbformat.reads(text, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=300, resources=dict(metadata=dict(path=str(tmp_path)))
    ).execute()
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    results = [one["data"]["text/plain"] for some in outputs for one in some if "data" in one]
    trained = "TrainingResult('library/pretrain': 3 steps"
    begins = ("Manifest('pretrain'", trained, "[[[(", "Result('library/pairs/model': {'dev'")
    shown = [text for text in results if text.startswith(begins)]
    assert len(shown) == len(begins)


def test_the_variables_that_prepare_sets_are_those_of_the_document():
    code = """
import os
before = dict(os.environ)
import bert_gpu
bert_gpu.prepare()
print(*sorted(name for name in os.environ.keys() if os.environ[name] != before.get(name)))
"""
    names = python(code).split()
    page = (ROOT / "docs" / "python.md").read_text()
    assert len(names) == 4
    assert {name for name in names if f"`{name}" in page} == set(names)
