"""The library does what the scripts do, without flags, prints or exits, as often as a
program likes.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

import bert_gpu
from bert_gpu import InputConfig
from bert_gpu.base.environment import OUR_FLAGS
from bert_gpu.base.errors import TrainingStopped, UserError
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.runs.folder import RunFolder
from bert_gpu.train.config import BatchConfig, CadenceConfig, EndingConfig
from bert_gpu.train.step import TrainStep
from tests.cli.pretraining import ROOT, lines, same, weights
from tests.cli.pretraining import pretrain as pretrain_by_script


def settings(data, output, **others):
    """What tests.cli.pretraining.pretrain gives as flags."""
    return dataclasses.replace(
        bert_gpu.PretrainSettings(
            run=bert_gpu.PretrainConfig(output_dir=str(output), model="tiny"),
            inputs=InputConfig(input_file=f"{data}/*.tfrecord"),
            batch=BatchConfig(train_batch_size=8),
            optimizer=OptimizerConfig(learning_rate=1e-3),
            cadence=CadenceConfig(num_train_steps=4, log_steps=1),
            architecture=dict(
                num_hidden_layers=1, hidden_size=16, intermediate_size=32, num_attention_heads=2
            ),
        ),
        **others,
    )


@pytest.mark.parametrize("others", [[], pytest.param([("two", 2)], marks=pytest.mark.long)])
def test_same_bits_as_the_script_several_times_in_a_process(data, tmp_path, capsys, others):
    assert pretrain_by_script(data, tmp_path / "script", "--num_attention_heads=2", steps=4) == 0
    capsys.readouterr()
    for name, replicas in (("one", 1), *others, ("again", 1)):
        devices = DeviceConfig(virtual_replicas=replicas)
        outcome = bert_gpu.run_pretraining(
            settings(
                data,
                tmp_path / name,
                devices=devices,
                batch=BatchConfig(train_batch_size=8 // replicas),
            )
        )
        assert (
            outcome.signal is None
            and outcome.progress.step == 4
            and outcome.folder.path == str(tmp_path / name)
        )
    assert same(weights(tmp_path / "one"), weights(tmp_path / "script"))
    assert same(weights(tmp_path / "one"), weights(tmp_path / "again"))
    assert lines(tmp_path / "one") == lines(tmp_path / "script")
    stored = [
        json.loads((tmp_path / name / "run.json").read_text())["settings"]
        for name in ("one", "script")
    ]
    assert stored[0] == stored[1]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(architecture=dict(hiden_size=16)), "unknown field 'hiden_size'"),
        (dict(architecture=dict(hidden_size=0)), "--hidden_size=0: must be at least 1"),
        (dict(batch=OptimizerConfig()), "batch must be a BatchConfig, not a OptimizerConfig"),
    ],
)
def test_settings_are_checked_when_they_are_made(wrong, message):
    with pytest.raises(UserError, match=message):
        bert_gpu.PretrainSettings(**wrong)


def test_an_interrupt_arrives_when_the_run_is_saved(data, tmp_path, monkeypatch):
    step = TrainStep.__call__

    def interrupted(self, batches, learning_rates, number, *rest):
        if number == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self, batches, learning_rates, number, *rest)

    monkeypatch.setattr(TrainStep, "__call__", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest-xdist ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            bert_gpu.run_pretraining(settings(data, tmp_path / "run"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert RunFolder(str(tmp_path / "run")).steps() == [3]


def test_what_goes_wrong_is_raised(data, tmp_path, capsys, caplog):
    with pytest.raises(UserError, match="no file matches"):
        bert_gpu.run_pretraining(settings(tmp_path, tmp_path / "run"))
    ending = EndingConfig(early_stop_time=0.0, early_stop_eval_loss=0.1)
    with pytest.raises(TrainingStopped, match="early stop at step 4"):
        bert_gpu.run_pretraining(settings(data, tmp_path / "run", ending=ending))
    with caplog.at_level("INFO", logger="bert_gpu"):
        bert_gpu.run_pretraining(settings(data, tmp_path / "run", ending=EndingConfig()))
    assert any(
        "resuming from step 4" in record.message or "finished" in record.message
        for record in caplog.records
    )
    assert capsys.readouterr() == ("", "")


@pytest.mark.long
def test_the_example(tmp_path):
    command = [
        sys.executable,
        str(ROOT / "examples" / "library.py"),
        str(tmp_path / "library"),
        "3",
    ]
    # the commands' own flags for XLA: with others it logs a line
    environment = dict(os.environ, XLA_FLAGS=OUR_FLAGS)
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
    title, *rows = result.stdout.splitlines()
    assert "validation loss" in title and [row.split()[0] for row in rows] == ["0.0003", "0.001"]
    assert (tmp_path / "library" / "pairs-0.001" / "eval_results.json").exists()
