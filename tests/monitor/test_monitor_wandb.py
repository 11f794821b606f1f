"""Weights & Biases, for real and offline: what its own file holds, that a resume keeps the id, and
what is said without it.
"""

import glob
import os
import pathlib
import struct
import sys
import threading
import time

import pytest
from wandb.proto import wandb_internal_pb2

from bert_gpu.base.errors import UserError
from bert_gpu.monitor import metrics_log
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.runs.folder import RunFolder

CONFIG = MonitorConfig(wandb_project="project", tensorboard=False)
# LevelDB's log: blocks of records (checksum, length, kind: whole, first, middle, last)
BLOCK, HEADER = 32768, struct.Struct("<IHB")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    # no key of whoever runs the tests, and no cache in their home
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = RunFolder(str(tmp_path / "run"))
    folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
    return folder


def records(path):
    """The messages of a .wandb file."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:4] == b":W&B"
    at, message = 7, b""
    while at + HEADER.size <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER.size:
            at += left
            continue
        _, length, kind = HEADER.unpack_from(data, at)
        message += data[at + HEADER.size : at + HEADER.size + length]
        at += HEADER.size + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(message)
            message = b""


def sessions(folder, count):
    """[(run id, config, [history row], exit code)] of the sessions, in their order, once the
    service has written them.
    """
    for _ in range(6000):  # ten minutes, which only end a hang
        # the time is in the name
        paths = sorted(glob.glob(os.path.join(folder.path, "wandb", "offline-run-*", "*.wandb")))
        found = [list(records(path)) for path in paths]
        if len(found) == count and all(one and one[-1].HasField("exit") for one in found):
            return [session(one) for one in found]
        time.sleep(0.1)
    pytest.fail(f"not written: {paths}")


def session(found):
    (run,) = [record.run for record in found if record.HasField("run")]
    rows = []
    for record in found:
        if record.HasField("history"):
            row = {
                item.key or "/".join(item.nested_key): float(item.value_json)
                for item in record.history.item
            }
            rows.append(
                {
                    name: value
                    for name, value in row.items()
                    if name not in ("_timestamp", "_runtime")
                }
            )
    config = {item.key: item.value_json for item in run.config.update}
    return run.run_id, config, rows, found[-1].exit.exit_code


def open_log(folder, step, settings):
    return metrics_log.open_log(folder, CONFIG, settings, step=step, warn=pytest.fail)


def test_offline_and_on_again(folder):
    settings = dict(hidden_size=16, data=dict(seed=1))
    log = open_log(folder, None, settings)
    for step in (1, 2):
        log.write(step, dict(loss=1.0 / step, none=None, nan=float("nan")))
    log.write(2, dict(eval_loss=3.0))
    log.close(is_complete=False)
    second = int(time.time())
    while int(time.time()) == second:  # sessions of one second would share a folder
        time.sleep(0.05)
    log = open_log(folder, 2, settings)
    log.write(3, dict(loss=9.0))
    log.close()
    first, second = sessions(folder, 2)
    assert (first[3], second[3]) == (1, 0), "the code is 0 only for a run that is complete"
    assert first[0] == second[0]
    assert first[1]["hidden_size"] == "16" and first[1]["data"] == '{"seed":1}'
    assert first[2] == [
        {"_step": 1, "step": 1, "loss": 1.0},
        {"_step": 2, "step": 2, "loss": 0.5, "eval_loss": 3.0},
    ]
    assert second[2] == [{"_step": 3, "step": 3, "loss": 9.0}]
    # offline sends nothing about itself
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("Otel")]
    folder.clear()
    assert os.listdir(folder.path) == []


def test_a_rollback_loses_no_row(folder):
    log = open_log(folder, None, {})
    for step in (10, 20, 30):
        log.write(step, dict(loss=float(step)))
    for step in (30, 31, 20, 21, 60):
        log.cut(step - 1)
        log.write(step, dict(loss=float(step)))
    log.close()
    ((_, _, rows, _),) = sessions(folder, 1)
    assert [(row["step"], row["loss"]) for row in rows] == [
        (step, float(step)) for step in (10, 20, 30, 30, 31, 20, 21, 60)
    ]
    assert [row["_step"] for row in rows] == [10, 20, 30, 31, 32, 33, 34, 60]


def test_online_without_a_key_is_refused(folder, monkeypatch):
    import wandb

    wandb.teardown()  # of the tests before, which were offline
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(
        UserError, match="--wandb_project=project: .*No API key.*WANDB_MODE=offline"
    ) as caught:
        metrics_log.check_monitoring(CONFIG)
    assert len(str(caught.value)) <= 300 and not os.path.exists(os.path.join(folder.path, "wandb"))


def test_a_network_that_is_gone_does_not_stop_a_run(folder, monkeypatch):
    import wandb

    def init(**_):
        raise wandb.errors.CommError("timed out: https://api.wandb.ai")

    told = []
    monkeypatch.setattr(wandb, "init", init)
    log = metrics_log.open_log(folder, CONFIG, {}, warn=told.append)
    log.write(1, dict(loss=1.0))
    log.close()
    assert told == [
        "Weights & Biases: cannot be opened (timed out: https://api.wandb.ai); "
        "the run continues without it"
    ]
    assert len(pathlib.Path(folder.metrics).read_text().splitlines()) == 1


def test_no_key_is_in_what_it_leaves(folder, monkeypatch):
    key = "0123456789" * 4
    monkeypatch.setenv("WANDB_API_KEY", key)
    log = open_log(folder, None, dict(hidden_size=16))
    log.write(1, dict(loss=1.0))
    log.close()
    sessions(folder, 1)
    for path in glob.glob(os.path.join(folder.path, "**"), recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as file:
                assert key.encode() not in file.read(), path


def test_without_the_package(folder, monkeypatch):
    metrics_log.check_monitoring(CONFIG)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        UserError, match=r"--wandb_project=project: .*pip install 'bert-gpu\[wandb\]'"
    ):
        metrics_log.check_monitoring(CONFIG)
    metrics_log.check_monitoring(MonitorConfig())
