"""What is logged is read back by those who read it; a resume cuts it back; a sink in trouble does
not end a run.
"""

import errno
import glob
import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from bert_gpu.base.errors import UserError
from bert_gpu.monitor import metrics_log
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.monitor.sinks import interface
from bert_gpu.monitor.sinks.interface import JsonLines
from bert_gpu.runs import metrics
from bert_gpu.runs.folder import RunFolder

LOSSES = ("mlm",)
QUIET = MonitorConfig()


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(str(tmp_path / "run"))
    folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
    return folder


def open_log(folder, step, config=QUIET, warn=pytest.fail):
    return metrics_log.open_log(folder, config, {}, step=step, losses=LOSSES, warn=warn)


def lines(folder):
    with open(folder.metrics) as file:
        return [json.loads(line) for line in file]


def scalars(accumulator, name):
    """[(step, value)] of a scalar, as TensorBoard has it."""
    accumulator.Reload()
    return [
        (event.step, float(make_ndarray(event.tensor_proto))) for event in accumulator.Tensors(name)
    ]


def tensorboard(folder, run="train"):
    path = os.path.join(folder.tensorboard, run)
    return EventAccumulator(path, size_guidance=dict(tensors=0))


def test_both_sinks_get_every_number(folder):
    log = open_log(folder, None)
    log.write(1, dict(loss=0.1, rate=1, none=None, nan=float("nan"), inf=float("inf")))
    # flushed at every line
    assert lines(folder) == [dict(step=1, loss=0.1, rate=1, none=None, nan=None, inf=None)]
    assert scalars(tensorboard(folder), "loss") == [(1, pytest.approx(0.1))]
    log.write(2, dict(loss=0.2))
    log.write(2, dict(eval_loss=0.3))
    log.close()
    assert lines(folder)[1:] == [dict(step=2, loss=0.2), dict(step=2, eval_loss=0.3)]
    assert scalars(tensorboard(folder), "loss") == [
        (1, pytest.approx(0.1)),
        (2, pytest.approx(0.2)),
    ]
    assert scalars(tensorboard(folder, "validation"), "loss") == [(2, pytest.approx(0.3))]
    accumulator = tensorboard(folder).Reload()
    assert set(accumulator.Tags()["tensors"]) == {"loss", "rate"}
    plugin = accumulator.SummaryMetadata("loss").plugin_data.plugin_name
    assert plugin == "scalars"


def test_no_tensorboard(folder):
    log = open_log(folder, None, MonitorConfig(tensorboard=False))
    log.write(1, dict(loss=1.0))
    log.close()
    assert not os.path.exists(folder.tensorboard) and lines(folder) == [dict(step=1, loss=1.0)]


def cut_by_resume(folder, log):
    log.close()
    return open_log(folder, 3)


def cut_by_rollback(folder, log):
    log.cut(3)
    return log


@pytest.mark.parametrize("cut", [cut_by_resume, cut_by_rollback])
def test_cut_back_to_a_step(folder, cut):
    """Readers that open the files afterwards see only the steps of the resumed run."""
    log = open_log(folder, None)
    for step in range(1, 7):
        log.write(step, dict(loss=float(step), only_before=1.0 * step))
        if step % 3 == 0:
            log.write(step, dict(eval_loss=float(step)))
    assert len(scalars(tensorboard(folder), "loss")) == 6
    log = cut(folder, log)
    for step in (4, 5):
        log.write(step, dict(loss=10.0 * step))
    log.close()
    expected = [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0), (5, 50.0)]
    assert [(line["step"], line["loss"]) for line in lines(folder) if "loss" in line] == expected
    assert [line["step"] for line in lines(folder) if "eval_loss" in line] == [3]
    accumulator = tensorboard(folder)
    assert scalars(accumulator, "loss") == expected
    assert scalars(tensorboard(folder, "validation"), "loss") == [(3, 3.0)]
    assert scalars(accumulator, "only_before") == expected[:3]


def test_events_that_a_kill_left_broken(folder):
    log = open_log(folder, None)
    for step in (1, 2, 3):
        log.write(step, dict(loss=float(step)))
    log.close()
    train = os.path.join(folder.tensorboard, "train")
    (path,) = glob.glob(os.path.join(train, "*tfevents*"))
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 5)
    with open(os.path.join(train, ".cut.partial"), "wb") as file:
        file.write(b"of a process killed while it cut")
    log = open_log(folder, 3)
    log.write(4, dict(loss=4.0))
    log.close()
    assert scalars(tensorboard(folder), "loss") == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert os.listdir(folder.tensorboard) == ["train"]
    assert [name for name in os.listdir(train) if "tfevents" not in name] == []
    total = sum(
        1 for path in glob.glob(os.path.join(train, "*")) for _ in tf.data.TFRecordDataset(path)
    )
    assert total == 3 + 2  # version, 1, 2; version, 4


def test_a_run_killed_before_its_first_checkpoint_begins_with_nothing(folder):
    log = open_log(folder, None)
    log.write(1, dict(loss=1.0))
    log.close()
    log = open_log(folder, None)
    log.write(1, dict(loss=2.0))
    log.close()
    assert lines(folder) == [dict(step=1, loss=2.0)]
    assert scalars(tensorboard(folder), "loss") == [(1, 2.0)]


def test_an_unfinished_line_is_cut_and_a_broken_one_is_named(folder):
    for broken in ("", '{"step": 3, "lo', "\udcff"):
        with open(folder.metrics, "w", errors="surrogateescape") as file:
            file.write('{"step": 1}\n{"step": 9}\n{"step": 2}\n' + broken)
        metrics.cut_lines(folder.metrics, 5)
        assert lines(folder) == [dict(step=1), dict(step=2)]
    for broken in ('{"step": 3, "lo', "{}", "[]", "\udcff"):
        with open(folder.metrics, "w", errors="surrogateescape") as file:
            file.write('{"step": 1}\n' + broken + '\n{"step": 3}\n')
        with pytest.raises(UserError, match="metrics.jsonl, line 2: "):
            metrics.cut_lines(folder.metrics, 5)


class FullDisk:
    """A file on a disk with limited space."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def write(self, data):
        if self.room == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self.file.write(data[: self.room])
        self.room -= written
        return written

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_on_a_full_disk_lines_wait_and_are_whole(folder):
    told = []
    log = open_log(folder, None, MonitorConfig(tensorboard=False), told.append)
    log.write(1, dict(loss=1.0))
    (sink,) = log.sinks.values()
    real, sink.file = sink.file, FullDisk(sink.file, 10)
    for step in (2, 3):
        log.write(step, dict(loss=1.0))
        assert lines(folder) == [dict(step=1, loss=1.0)]
    assert len(told) == 1 and "No space left on device" in told[0] and "wait in memory" in told[0]
    sink.file.room = 10_000
    log.write(4, dict(loss=1.0))
    assert [line["step"] for line in lines(folder)] == [1, 2, 3, 4] and len(told) == 1
    sink.file.room = 0
    log.write(5, dict(loss=1.0))
    log.close()
    assert len(told) == 3 and "lost" in told[2]
    assert real.closed and [line["step"] for line in lines(folder)] == [1, 2, 3, 4]


LIMITED = """
import resource
import sys
from bert_gpu.monitor import metrics_log
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.runs.folder import RunFolder
folder = RunFolder(sys.argv[1])
folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
config = MonitorConfig()
log = metrics_log.open_log(folder, config, {}, warn=print)
for step in range(200):
    if step == 100:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9000, resource.RLIM_INFINITY))
    if step == 150:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    log.write(step, {f"metric_{number}": 1.0 * number for number in range(5)})
log.close()
"""


def test_the_kernel_refuses_to_write(folder):
    """Without a mock: a temporary limit on file sizes. metrics.jsonl has all lines, TensorBoard
    those before.
    """
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, folder.path],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    assert [line["step"] for line in lines(folder)] == list(range(200))
    told = sorted(result.stdout.splitlines())
    assert (
        len(told) == 2
        and told[0].startswith("TensorBoard: ")
        and told[1].startswith("metrics.jsonl: ")
    ), told
    assert len(scalars(tensorboard(folder), "metric_4")) > 20


def test_a_rollback_on_a_full_disk(folder, monkeypatch):
    """Lines that wait are cut too; a file that cannot be cut goes on, and the next
    resume cuts it.
    """
    told = []
    log = open_log(folder, None, MonitorConfig(tensorboard=False), told.append)
    for step in (1, 2, 3):
        log.write(step, dict(loss=1.0))
    (sink,) = log.sinks.values()
    real, sink.file = sink.file, FullDisk(sink.file, 0)
    for step in (4, 5):
        log.write(step, dict(loss=1.0))
    log.cut(4)
    assert real.closed and len(told) == 1
    log.write(5, dict(loss=2.0))
    assert [(line["step"], line["loss"]) for line in lines(folder)] == [
        (1, 1.0),
        (2, 1.0),
        (3, 1.0),
        (4, 1.0),
        (5, 2.0),
    ]
    with monkeypatch.context() as patch:
        patch.setattr(
            metrics,
            "write_text",
            lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
        )
        log.cut(3)
    assert len(told) == 2
    log.write(6, dict(loss=3.0))
    log.close()
    assert [line["step"] for line in lines(folder)] == [1, 2, 3, 4, 5, 6]


def test_a_broken_sink_is_left_out_and_told_once(folder):
    class Broken(interface.Sink):
        num_calls = 0

        def write(self, step, values):
            self.num_calls += 1
            raise RuntimeError("the service\nis gone")

    told, broken = [], Broken()
    log = open_log(folder, None, warn=told.append)
    log.sinks["Broken"] = broken
    for step in (1, 2):
        log.write(step, dict(loss=1.0))
    log.close()
    assert told == ["Broken: cannot be written (the service is gone); the run continues without it"]
    assert (
        broken.num_calls == 1
        and len(lines(folder)) == 2
        and len(scalars(tensorboard(folder), "loss")) == 2
    )


def test_what_is_not_finite_is_never_written_as_such(tmp_path):
    sink = JsonLines(str(tmp_path / "x"))
    with pytest.raises(ValueError):  # the log makes None of it; a sink alone refuses
        sink.write(1, dict(loss=float("nan")))
    sink.close()
