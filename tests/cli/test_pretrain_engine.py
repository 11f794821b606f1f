"""The engine through the command: the clock, the ramp, freezing, rollback, marks, full disks, kills
at any moment.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_gpu.__main__ import main as command
from bert_gpu.base.console import Console
from bert_gpu.data.config import InputConfig
from bert_gpu.devices.workers import ALONE
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig
from bert_gpu.pretrain import run
from bert_gpu.pretrain.config import PretrainConfig, PretrainSettings
from bert_gpu.runs import folder
from bert_gpu.runs.folder import RunFolder
from bert_gpu.runs.progress import Progress
from bert_gpu.train import run as engine
from bert_gpu.train.config import BatchConfig, CadenceConfig, EndingConfig
from bert_gpu.train.evaluation import ForwardPass
from bert_gpu.train.loop import Loop
from bert_gpu.train.step import TrainStep
from tests.cli.pretraining import (
    HANG_SECONDS,
    ROOT,
    SMALL,
    copy_as_of,
    lines,
    pretrain,
    same,
    wait_until,
    weights,
)


@pytest.mark.long
def test_killed_while_a_checkpoint_is_written():
    """The short form of tests/faults/killing.py: a kill while a checkpoint is written, with several
    steps a call.
    """
    command = [
        sys.executable,
        "-m",
        "tests.faults.killing",
        "--kills=1",
        "--steps=24",
        "--signal=kill",
    ]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(os.environ, CUDA_VISIBLE_DEVICES="-1"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("same bits") == 3 and "writing a checkpoint" in result.stdout


@pytest.fixture
def clock(monkeypatch):
    """() -> seconds, of a clock that stands still but for a second at each training step."""
    now, call = [1000.0], TrainStep.__call__

    def timed(self, batches, learning_rates, *rest):
        now[0] += len(learning_rates)
        return call(self, batches, learning_rates, *rest)

    monkeypatch.setattr(TrainStep, "__call__", timed)
    return lambda: now[0]


def test_a_run_on_the_clock(data, tmp_path, clock):
    """It ends when its time is spent, is finished then, and goes on when it gets more; the clock,
    not the steps, has the learning rate.
    """

    def train(num_seconds):
        settings = PretrainSettings(
            run=PretrainConfig(output_dir=str(tmp_path), model="tiny"),
            inputs=InputConfig(input_file=f"{data}/*.tfrecord"),
            batch=BatchConfig(train_batch_size=8),
            optimizer=OptimizerConfig(learning_rate=1e-3),
            schedule=ScheduleConfig(
                lr_schedule="time", curve="triangle", total_training_time=num_seconds / 3600
            ),
            cadence=CadenceConfig(num_train_steps=1_000_000, log_steps=1),
            architecture=dict(
                num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2
            ),
        )
        progress = run.pretrain(settings, Console(quiet=True), clock).progress
        stored = RunFolder(str(tmp_path)).newest_progress()
        assert (stored.step, stored.seconds) == (progress.step, progress.seconds)
        return progress.step, progress.seconds

    def triangle(share):
        """From a quarter of the peak up to it at three quarters of the time, then down to 0."""
        return 1e-3 * (0.25 + share if share < 0.75 else 4 * (1 - share))

    assert train(8) == (8, 8.0)
    assert train(8) == (8, 8.0)
    assert train(16) == (16, 16.0)
    steps = [line for line in lines(tmp_path) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, 17))
    budgets = [8] * 8 + [16] * 8  # the second part has more time, and its schedule is longer
    for index, (line, budget) in enumerate(zip(steps, budgets, strict=True)):
        assert line["learning_rate"] == pytest.approx(triangle(index / budget), rel=1e-12)
        assert line["progress"] == (index + 1) / budget


def test_the_command_gives_a_run_the_real_clock(data, tmp_path, monkeypatch):
    clocks, loop = [], Loop.run

    def run(self):
        clocks.append(self.watch.clock)
        return loop(self)

    monkeypatch.setattr(Loop, "run", run)
    assert pretrain(data, tmp_path / "run", steps=1) == 0
    assert clocks == [time.monotonic]


def test_a_ramp_resumes_to_the_bit(data, tmp_path):
    ramp = [
        "--batch_ramp_proportion=0.5",
        "--gradient_accumulation_steps=4",
        "--train_batch_size=2",
        "--num_train_steps=12",
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert pretrain(data, whole, *ramp, "--save_checkpoints_steps=5") == 0
    copy_as_of(whole, parts, 5)
    assert pretrain(data, parts, *ramp, "--save_checkpoints_steps=5") == 0
    assert same(weights(whole), weights(parts)) and lines(whole) == lines(parts)
    sizes = [line["global_batch_size"] for line in lines(whole) if "loss" in line]
    assert sizes[0] == 2 and sizes[6:] == [8] * 6 and sizes == sorted(sizes)
    assert RunFolder(str(whole)).newest_progress().records == sum(sizes)
    assert pretrain(data, parts, *ramp, "--train_batch_size=1", steps=20) == 2
    assert (
        pretrain(data, parts, "--batch_ramp_proportion=0.5", "--train_batch_size=8", steps=20) == 2
    )
    assert (
        pretrain(data, parts, *ramp, "--virtual_replicas=2", "--train_batch_size=1", steps=13) == 0
    )


def test_frozen_weights_have_no_state_and_do_not_move(data, finished, tmp_path, capsys):
    output = tmp_path / "run"
    flags = [
        f"--init_checkpoint={finished}",
        "--freeze=embeddings,layer_0/attention",
        "--recompute",
        "--steps_per_loop=2",
    ]
    assert pretrain(data, output, *flags, steps=4) == 0
    before, after = weights(finished), weights(output)
    for name in before:
        frozen = (
            "embeddings" in name
            or "layer.0.attention" in name
            or name == "cls.predictions.decoder.weight"
        )
        if frozen:
            assert np.array_equal(before[name], after[name]), name
    assert not np.array_equal(
        before["bert.encoder.layer.0.output.dense.weight"],
        after["bert.encoder.layer.0.output.dense.weight"],
    )
    saved = load_file(output / "checkpoints" / "step-00000004" / "variables.safetensors")
    assert not any(
        "embeddings/" in name or "layer_0/attention/" in name
        for name in saved
        if name.startswith("slots/")
    )
    capsys.readouterr()
    assert pretrain(data, output, *flags, "--freeze=embeddings", steps=8) == 2
    assert "--freeze" in capsys.readouterr().err
    assert pretrain(data, tmp_path / "other", "--freeze=nothing_like_this", steps=8) == 2
    assert "--freeze=nothing_like_this: no weight" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["lamb", "adamw8bit", "muon"])
def test_other_optimizers_resume_to_the_bit(data, tmp_path, optimizer):
    flags = [
        f"--optimizer={optimizer}",
        "--hidden_size=64",
        "--intermediate_size=128",
        "--curve=constant",
        "--num_warmup_steps=0",
    ]
    assert pretrain(data, tmp_path / "whole", *flags, steps=4) == 0
    for steps in (2, 4):
        assert pretrain(data, tmp_path / "parts", *flags, steps=steps) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_rollback_leaves_the_bad_data_behind(data, tmp_path, capsys, optimizer):
    """With a far too high learning rate every checkpoint diverges again, so that the run rolls
    back, and gives up in the end.
    """
    output = tmp_path / "run"
    calm = [
        f"--optimizer={optimizer}",
        "--save_checkpoints_steps=2",
        "--num_warmup_steps=0",
        "--curve=constant",
    ]
    assert pretrain(data, output, *calm, steps=4) == 0
    path = output / "run.json"
    content = json.loads(path.read_text())
    del content["crc32c"]  # as who edits it does
    path.write_text(json.dumps(content | dict(learning_rate=1e30)))
    flags = [*calm, "--max_bad_steps=2", "--on_divergence=rollback"]
    assert pretrain(data, output, *flags, steps=40) == 3
    error = capsys.readouterr().err
    assert error.count("back to step 4") == 3 and "it has been rolled back 3 times" in error
    assert RunFolder(str(output)).newest_progress().num_rollbacks == 3


def test_marks_best_and_early_stop(data, tmp_path, capsys):
    output = tmp_path / "run"
    flags = [
        "--finetune_time_markers=0.5,1",
        "--save_checkpoints_steps=4",
        "--keep_checkpoint_max=1",
        "--export_best",
    ]
    assert pretrain(data, output, *flags) == 0
    assert {path.name for path in (output / "marks").iterdir()} == {"0.5", "1"}
    assert {"config.json", "model.safetensors", "vocab.txt"} <= set(
        os.listdir(output / "marks" / "0.5")
    )
    best = RunFolder(str(output)).best_step()
    evaluations = {
        line["step"]: line["eval_loss"]
        for line in lines(output)
        if "eval_loss" in line and line["step"]
    }
    assert best == min(evaluations, key=evaluations.get) and best in RunFolder(str(output)).steps()
    assert pretrain(data, output, "--overwrite", steps=1) == 0
    assert not (output / "marks").exists()
    stop = ["--early_stop_time=0", "--early_stop_eval_loss=0.5", "--save_checkpoints_steps=3"]
    assert pretrain(data, tmp_path / "stopped", *stop) == 3
    assert "early stop at step 3" in capsys.readouterr().err
    assert not (tmp_path / "stopped" / "model").exists() and RunFolder(
        str(tmp_path / "stopped")
    ).steps() == [3]


def test_a_best_checkpoint_that_could_not_be_saved_is_said(capsys):
    exported = []
    of_run = types.SimpleNamespace(
        settings=types.SimpleNamespace(ending=EndingConfig(export_best=True)),
        folder=types.SimpleNamespace(best_step=lambda: None, model="model"),
        progress=Progress(step=12, best_step=8),
        workers=ALONE,
        console=Console(),
    )
    engine.export_end(of_run, None, lambda path, state, step: exported.append(step))
    assert exported == [12]
    error = capsys.readouterr().err
    problem = "step 8, which has the best validation loss, is missing; "
    assert f"{problem}model/ holds the weights of step 12" in error


def test_a_full_disk_keeps_the_good_checkpoints(data, tmp_path, capsys, monkeypatch):
    """The disk is full at the saves of steps 4 and 8 and has room at 12: the run ends well. Full to
    the end: it does not.
    """
    save, full = folder.save_file, set()

    def save_file(values, path, *rest):
        if any(f"{step:08d}" in path for step in full):
            raise OSError(28, "No space left on device", path)
        return save(values, path, *rest)

    monkeypatch.setattr(folder, "save_file", save_file)
    full |= {4, 8}
    assert pretrain(data, tmp_path / "a", "--save_checkpoints_steps=4") == 0
    error = capsys.readouterr().err
    assert error.count("could not be saved: No space left on device") == 2
    assert RunFolder(str(tmp_path / "a")).steps() == [12]
    full |= {12}
    full -= {4}
    assert pretrain(data, tmp_path / "b", "--save_checkpoints_steps=4") == 3
    assert (
        RunFolder(str(tmp_path / "b")).steps() == [4]
        and "newest good one is step 4" in capsys.readouterr().err
    )


def test_run_json_says_what_was_run(data, finished):
    content = json.loads((finished / "run.json").read_text())
    assert {"bert_gpu", "tensorflow", "python"} <= content["versions"].keys()
    assert content["hashes"]["vocabulary"] and len(content["hashes"]["dataset"]) == 64
    assert (
        "git_commit" in content
        and content["settings"]["optimizer"] == "adamw"
        and content["free"]["steps_per_loop"] is None
    )


def test_auto_batch_without_a_gpu(data, tmp_path):
    output = tmp_path / "run"
    assert pretrain(data, output, "--train_batch_size=auto", "--global_batch_size=96", steps=1) == 0
    content = json.loads((output / "run.json").read_text())
    assert content["global_batch_size"] == 96 and content["unit_size"] == 96
    assert math.isclose(content["learning_rate"], 1e-3)


ENDLESS = """
import sys, bert_gpu.__main__
import tensorflow as tf
from bert_gpu.cli import flags, pretrain
from bert_gpu.train.step import TrainStep
from bert_gpu.devices.workers import ALONE

@tf.function(autograph=False)
def call_of_many_steps():
    def step(number, matrix):
        with tf.control_dependencies([tf.print(number, output_stream="file://" + sys.argv[1])]):
            return number + 1, tf.linalg.matmul(matrix, matrix)
    return tf.while_loop(lambda number, _: number >= 0, step, (0, tf.eye(300)))

TrainStep.__call__ = lambda *_: call_of_many_steps()
sys.exit(flags.exit_code(pretrain.main, ["pretrain", *sys.argv[2:]]))
"""


def test_a_second_signal_leaves_at_once(data, tmp_path):
    """Also inside a call of many steps, here one that never ends: the first signal is asked to wait
    for its end, and a line says so meanwhile; the second is not.
    """
    ticks, said = tmp_path / "ticks", tmp_path / "said"
    flags = [f"--input_file={data}/*.tfrecord", f"--output_dir={tmp_path}/run", *SMALL]
    with open(said, "w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(ticks), *flags, "--num_train_steps=10"],
            env=dict(os.environ, CUDA_VISIBLE_DEVICES="-1"),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    answer = "warning: SIGINT: the run saves and stops after the current call; a second"
    with process:
        try:
            wait_until(process, ticks.exists)
            process.send_signal(signal.SIGINT)
            wait_until(process, lambda: answer in said.read_text())
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=HANG_SECONDS) == 128 + signal.SIGINT
        finally:
            process.kill()


@pytest.mark.long
def test_a_validation_that_is_interrupted_is_made_when_the_run_resumes(data, tmp_path, monkeypatch):
    """The run ends as one that was not interrupted, with the same bits and the same validations:
    before its first step, in its middle and at its end.
    """
    forward, flags, batches = ForwardPass.on_own_replicas, ["--eval_steps=2"], []
    flags.append("--eval_batch_size=16")

    def counted(self, batch):
        batches.append(batch)
        if len(batches) == interrupted_at:
            signal.raise_signal(signal.SIGINT)
        return forward(self, batch)

    monkeypatch.setattr(ForwardPass, "on_own_replicas", counted)
    interrupted_at = None
    assert pretrain(data, tmp_path / "plain", *flags, steps=4) == 0
    num_batches = len(batches) // 3  # of a validation: at steps 0, 2 and 4
    assert num_batches >= 3 and len(batches) == 3 * num_batches
    # the first session ends before the first step, the second in step 2, the third in step 4
    for interrupted_at, code in ((2, 130), (num_batches + 2, 130), (num_batches + 1, 130), (0, 0)):
        batches.clear()
        assert pretrain(data, tmp_path / "run", *flags, steps=4) == code
        assert not code or len(batches) == interrupted_at
        assert (tmp_path / "run" / "model").exists() == (code == 0)
    assert lines(tmp_path / "run") == lines(tmp_path / "plain")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "plain"))


def test_flags_that_need_validation_records(data, tmp_path, capsys):
    shard = tmp_path / "x.tfrecord"
    shard.write_bytes(next(data.glob("x-00000*.tfrecord")).read_bytes())
    flags = [
        f"--input_file={shard}",
        f"--vocab_file={data}/vocab.txt",
        f"--output_dir={tmp_path}/run",
        "--num_train_steps=1",
        *SMALL,
    ]
    for flag in ("--export_best", "--early_stop_patience=1", "--best_metric=mlm_accuracy"):
        assert command(["bert-gpu", "pretrain", *flags, flag]) == 2
        name = flag.partition("=")[0]
        assert f"{name}: the data has no validation records" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags, complaint",
    [
        (["--num_train_epochs=1e308"], "--num_train_epochs=1e+308: must be"),
        (["--train_batch_size=many"], "--train_batch_size=many: must be of type int or auto"),
        (["--lr_schedule=time"], "--total_training_time"),
        (["--all_reduce=nccl"], "--all_reduce=nccl: needs one physical GPU"),
        (["--validation_epochs=1", "--eval_steps=5"], "give one of them"),
        (
            ["--finetune_time_markers=0.5,2"],
            "--finetune_time_markers=0.5,2: must be numbers above 0 and at most 1",
        ),
        (["--freeze=["], "--freeze=["),
        (["--on_divergence=pray"], "--on_divergence=pray: must be one of stop, rollback"),
    ],
)
def test_bad_input(data, tmp_path, capsys, flags, complaint):
    assert pretrain(data, tmp_path / "run", *flags) == 2
    error = capsys.readouterr().err
    assert complaint in error and error.count("\n") == 1 and len(error) <= 301
    assert not (tmp_path / "run").exists()
