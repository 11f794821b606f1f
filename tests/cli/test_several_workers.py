"""Several workers as processes of this machine: what one of them meets with ends all of them in
time, and what they leave is resumed by any number of workers.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.base.environment import OUR_FLAGS
from bert_gpu.devices import launch as launched
from bert_gpu.runs.folder import RunFolder
from tests.cli.pretraining import HANG_SECONDS, ROOT, SMALL, lines, pretrain
from tests.cli.test_classify import FLAGS, write_split

pytestmark = pytest.mark.long

FAULTY = pathlib.Path(__file__).parent / "faulty_worker.py"
# 12 rows a step for 1, 2 and 3 workers; without what depends on how they divide them
CALM = [
    *(
        "--train_batch_size=2",
        "--global_batch_size=12",
        "--lr_scaling=none",
        "--num_train_steps=12",
    ),
    *("--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", "--log_steps=1", "--quiet"),
    *("--save_checkpoints_steps=4", "--worker_timeout=20", "--curve=constant"),
]


def arguments(data, output):
    given = [f"--input_file={data}/*.tfrecord", f"--output_dir={output}"]
    return [*given, *[flag for flag in SMALL if "batch" not in flag], *CALM]


def environment():
    """Of a process, with the commands' own flags for XLA: with others it logs a line."""
    ours = dict(PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES="-1", XLA_FLAGS=OUR_FLAGS)
    return os.environ | ours


def start(num_workers, data, output, *more, fault=None):
    """Processes of a pretraining by several workers; fault: as for faulty_worker.py."""
    fault = dict(worker=None, step=None, signal=None, mark=str(output) + "-mark") | (fault or {})
    script = [sys.executable, str(FAULTY), json.dumps(fault)]
    return [
        subprocess.Popen(
            [*script, *arguments(data, output), *more], env=own, stderr=subprocess.PIPE, text=True
        )
        for own in launched.environments(num_workers, 0, environment())
    ]


def end(processes):
    """[(exit code, stderr)] of the processes."""
    found = []
    for process in processes:
        error = process.communicate(timeout=HANG_SECONDS)[1]
        assert "Traceback" not in error, error
        found.append((process.returncode, error))
    return found


def losses(output):
    return {line["step"]: line["loss"] for line in lines(output) if "loss" in line}


def check_losses(output, expected):
    found = losses(output)
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-5)


@pytest.fixture(scope="module")
def expected(data, tmp_path_factory):
    """The losses of one process that is left alone."""
    output = tmp_path_factory.mktemp("alone") / "run"
    assert command(["bert-gpu", "pretrain", *arguments(data, output)]) == 0
    return losses(output)


def test_stopped_hung_and_resumed_with_1_and_with_3_workers(data, expected, tmp_path):
    output = tmp_path / "run"
    fault = dict(worker=1, step=2, signal=signal.SIGTERM, mark=str(tmp_path / "stopped"))
    for code, error in end(start(2, data, output, fault=fault)):
        assert code == 143 and "stopped by SIGTERM after step 3" in error
    folder = RunFolder(str(output))
    assert folder.steps() == [3]

    fault = dict(worker=1, step=6, signal=signal.SIGSTOP, mark=str(tmp_path / "hung"))
    first, hung = start(2, data, output, fault=fault)
    ((code, error),) = end([first])
    assert hung.poll() is None
    hung.kill()
    hung.communicate()
    assert code == 4 and "worker 1 (127.0.0.1:" in error and error.count("\n") == 1
    assert folder.steps() == [3, 4]

    assert pretrain(data, output, *arguments(data, output), steps=8) == 0
    assert [code for code, _ in end(start(3, data, output))] == [0, 0, 0]
    check_losses(output, expected)


def test_the_launcher_names_a_killed_worker_and_the_same_command_resumes(data, expected, tmp_path):
    output = tmp_path / "run"
    fault = dict(worker=1, step=6, signal=signal.SIGKILL, mark=str(tmp_path / "killed"))
    launch = [sys.executable, "-m", "bert_gpu", "launch", "--num_workers=2", "--"]

    def call():
        return subprocess.run(
            [*launch, str(FAULTY), json.dumps(fault), *arguments(data, output)],
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANG_SECONDS,
        )

    result = call()
    assert result.returncode == 128 + signal.SIGKILL
    assert "worker 1 was ended by SIGKILL; its log " in result.stderr
    # as worker 0 has told; its connection may have broken before it saw whose it was
    assert "worker 1 (127.0.0.1:" in result.stderr or "another worker is gone" in result.stderr
    result = call()
    assert result.returncode == 0, result.stderr
    check_losses(output, expected)


def test_a_full_disk_of_worker_0_ends_all(data, tmp_path):
    """Steps up to 4 are saved; the saves behind it are told of, and the last ends the run."""
    output = tmp_path / "run"
    fault = dict(worker=0, step=6, mark=str(tmp_path / "full"))
    first, second = end(start(2, data, output, fault=fault))
    assert (first[0], second[0]) == (3, 3)
    assert "checkpoint of step 8 could not be saved: No space left" in first[1]
    assert RunFolder(str(output)).steps() == [4]


def run_two(name, *arguments, more):
    """The output of two workers, which both end with code 2 and one line. more: for worker 1."""
    words = [sys.executable, "-m", "bert_gpu", name, *arguments]
    processes = [
        subprocess.Popen([*words, *own], env=env, stderr=subprocess.PIPE, text=True)
        for own, env in zip(([], more), launched.environments(2, 0, environment()), strict=True)
    ]
    (told,) = {(code, error) for code, error in end(processes)}
    assert told[0] == 2 and told[1].count("\n") == 1
    assert told[1].startswith("worker 1 (127.0.0.1:")
    return told[1]


def test_other_settings_are_told(data, tmp_path):
    output = tmp_path / "run"
    told = run_two("pretrain", *arguments(data, output), more=["--seed=1"])
    assert "seed is 1, on worker 0 12345" in told and not output.exists()


@pytest.mark.parametrize(
    "more, told",
    [
        (["--overwrite"], "overwrite is True, on worker 0 False"),
        (["--nodo_train", "--do_eval"], "do_train is False, on worker 0 None"),
    ],
)
def test_a_finished_run_and_other_flags(data, finished, more, told):
    """Before the run's folder is read."""
    before = (finished / "metrics.jsonl").read_bytes()
    assert told in run_two("pretrain", *arguments(data, finished), more=more)
    assert (finished / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("flags", [[], ["--do_eval"]], ids=["train", "evaluate"])
def test_other_validation_data_are_told(data, finished, tmp_path, flags):
    """Of the same records but for their order."""
    (path,) = data.glob("*validation*.tfrecord")
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(path))]
    other = str(tmp_path / path.name)
    with tf.io.TFRecordWriter(other) as writer:
        for record in reversed(records):
            writer.write(record)
    given = [*arguments(data, finished), *flags, f"--eval_input_file={path}"]
    told = run_two("pretrain", *given, more=[f"--eval_input_file={other}"])
    assert f"the validation data is {len(records):,} records with checksum" in told


def test_another_vocabulary_is_told(data, tmp_path):
    """Of records without dataset.json; before any weights are made, which differ in their shape."""
    (path,) = (path for path in data.glob("*.tfrecord") if "validation" not in path.name)
    pieces = (data / "vocab.txt").read_text()
    for name, text in (("one", pieces), ("two", f"{pieces}onemore\n")):
        (tmp_path / name).write_text(text)
    shutil.copy(path, tmp_path)
    given = arguments(tmp_path, tmp_path / "run")
    own, other = (f"--vocab_file={tmp_path}/{name}" for name in ("one", "two"))
    assert "vocabulary is " in run_two("pretrain", *given, own, more=[other])


@pytest.mark.parametrize("phase, split", [("eval", "dev"), ("predict", "test")])
def test_other_data_to_evaluate_are_told(finished, tmp_path, phase, split):
    """Of a classifier without training."""
    write_split(tmp_path, "train", 8, seed=1)
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        write_split(tmp_path / folder, split, 8, seed=len(folder))
    given = [*FLAGS, "--quiet", f"--init_checkpoint={finished}/model", "--num_train_epochs=1"]
    trained = tmp_path / "trained"
    own = [f"--train_file={tmp_path}/train.tsv", f"--output_dir={trained}"]
    assert command(["bert-gpu", "classify", *given, *own, "--do_train"]) == 0
    files = [f"--{split}_file={tmp_path}/{folder}/{split}.tsv" for folder in ("first", "second")]
    words = [*FLAGS, "--quiet", f"--init_checkpoint={trained}/model", f"--do_{phase}"]
    words += [f"--output_dir={tmp_path}/results"]
    told = run_two("classify", *words, files[0], more=[files[1]])
    assert f"the data to {phase} is {split}.tsv " in told


def launch(*words):
    code = subprocess.run(
        [sys.executable, "-m", "bert_gpu", "launch", "--num_workers=2", "--", *words],
        env=environment(),
        timeout=HANG_SECONDS,
    ).returncode
    assert code == 0


def test_fine_tuning_on_two_is_that_on_one(finished, tmp_path):
    """The same metrics and predictions of a classifier."""
    for split, count in (("train", 64), ("dev", 31), ("test", 15)):
        write_split(tmp_path, split, count, seed=count)
    calm = ["--dropout=0", "--do_predict", "--do_train", "--do_eval", "--quiet"]
    calm = ["--hidden_dropout_prob=0", "--attention_probs_dropout_prob=0", *calm[1:]]
    given = [*FLAGS, *calm, f"--data_dir={tmp_path}", f"--init_checkpoint={finished}/model"]
    given += ["--lr_scaling=none", "--eval_batch_size=4", "--num_train_epochs=2"]
    one, two = tmp_path / "one", tmp_path / "two"
    assert command(["bert-gpu", "classify", *given, f"--output_dir={one}"]) == 0
    launch("classify", *given, "--train_batch_size=8", f"--output_dir={two}")
    results = [json.loads((run / "eval_results.json").read_text()) for run in (one, two)]
    for name in ("accuracy", "num_examples"):
        assert results[0][name] == results[1][name]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-4)
    tables = [(run / "predictions.tsv").read_text() for run in (one, two)]
    assert tables[0] == tables[1] and len(tables[0].splitlines()) == 16
