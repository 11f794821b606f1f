"""MLflow, for real and in a local folder: what its own client reads back, that a resume keeps the
run and repeats no step, and that a server which is gone delays nothing and is told of once.
"""

import json
import os
import pathlib
import sys
import tempfile
import threading
import types
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.monitor import metrics_log
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.monitor.sinks import mlflow
from bert_gpu.runs.folder import RunFolder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = RunFolder(str(tmp_path / "run"))
    folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
    return folder


CONFIG = MonitorConfig(mlflow_experiment="words", tensorboard=False)


def open_log(folder, uri, step=None, warn=pytest.fail, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        return metrics_log.open_log(folder, CONFIG, settings, step=step, warn=warn)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of MLflow's own imports
def test_a_run_and_its_resume(folder, tmp_path, monkeypatch):
    uri = f"file:{tmp_path / 'mlruns'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    metrics_log.check_monitoring(CONFIG)
    settings = {f"setting_{number}": number for number in range(150)} | dict(long="x" * 900)
    log = open_log(folder, uri, **settings)
    for step in (1, 2):
        log.write(step, dict(loss=1.0 / step, none=None, nan=float("nan")))
    log.write(2, {"eval_loss": 3.0, "eval_mrr@10": 0.5})
    log.close()
    log = open_log(folder, uri, step=1, **settings)
    for step, loss in ((2, 0.5), (3, 9.0)):
        log.write(step, dict(loss=loss))
    log.cut(2)  # a rollback
    log.write(3, dict(loss=7.0))
    log.close()
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("words")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "run" and run.info.status == "FINISHED"
    assert len(run.data.params) == 151 and run.data.params["setting_7"] == "7"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 0.5), (3, 9.0)]
    assert run.data.metrics == {"loss": 9.0, "eval_loss": 3.0, "eval_mrr_at_10": 0.5}
    folder.clear()
    assert RunFolder(folder.path).read_run() is None


class Store:
    """A server of one run, and the package's client of it: keeps what is logged, deletes nothing.
    Its lists of metrics hold (name, value, time, step), as MLflow's entities are made.
    """

    def __init__(self):
        self.logged = []

    def modules(self):
        entities = dict(Metric=Metric, Param=lambda *_: None)
        return {
            "mlflow": types.SimpleNamespace(MlflowClient=lambda tracking_uri: self),
            "mlflow.entities": types.SimpleNamespace(**entities),
        }

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id=name)

    def create_run(self, experiment_id, run_name):
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))

    def log_batch(self, run_id, metrics=(), params=()):
        self.logged += metrics

    def get_run(self, run_id):
        """The newest of each metric, as a server says it."""
        newest = {metric.key: metric for metric in sorted(self.logged, key=lambda m: m.step)}
        message = types.SimpleNamespace(metrics=list(newest.values()))
        return types.SimpleNamespace(data=types.SimpleNamespace(to_proto=lambda: message))

    def update_run(self, run_id, status):
        pass

    def set_terminated(self, run_id, status):
        self.status = status


class Metric(typing.NamedTuple):
    key: str
    value: float
    timestamp: int
    step: int


SESSIONS = st.lists(
    st.tuples(
        st.integers(0, 9),  # steps back from the last one, to the checkpoint that is restored
        st.integers(0, 6),  # steps that are trained then
        st.booleans(),  # whether it is a rollback within the session
    ),
    max_size=4,
)


@settings(max_examples=20)
@given(st.integers(1, 12), SESSIONS)
def test_each_metric_has_each_step_once_after_kills_and_rollbacks(num_steps, sessions):
    """As in metrics.jsonl, which is cut: a resumed run trains the same steps again. The first
    checkpoint is that of step 1.
    """
    store = Store()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as path:
        for name, module in store.modules().items():
            patch.setitem(sys.modules, name, module)
        folder = RunFolder(os.path.join(path, "run"))
        folder.create(dict(settings={}, global_batch_size=8, learning_rate=1e-3))
        log, step = open_log(folder, "file:x"), 0
        for back, more, is_rollback in [(0, num_steps, True), *sessions]:
            if step:
                step = max(1, step - back)
                if is_rollback:
                    log.cut(step)
                else:
                    log.close()
                    log = open_log(folder, "file:x", step)
            for step in range(step + 1, step + more + 1):  # noqa: B020
                log.write(step, dict(loss=1 / step, nothing=None, seconds=float(step)))
                if step % 2 == 0:
                    log.write(step, dict(eval_loss=2 / step, seconds=float(step)))
        log.close()
        content = pathlib.Path(folder.metrics).read_text()
        lines = [json.loads(line) for line in content.splitlines()]
    found = [(metric.key, metric.step) for metric in store.logged]
    assert len(found) == len(set(found))
    expected = {
        (name, line["step"]): value
        for line in lines
        for name, value in line.items()
        if name != "step" and value is not None
    }
    values = {(metric.key, metric.step): metric.value for metric in store.logged}
    assert expected.items() <= values.items()


@pytest.mark.parametrize("is_complete, status", [(True, "FINISHED"), (False, "KILLED")])
def test_only_a_complete_run_is_finished(folder, monkeypatch, is_complete, status):
    store = Store()
    for name, module in store.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    log = open_log(folder, "file:x")
    log.write(1, dict(loss=1.0))
    log.close(is_complete)
    assert store.status == status


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_a_server_that_is_gone(folder, monkeypatch):
    told = []
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    log = open_log(folder, "http://127.0.0.1:9", warn=told.append)
    log.write(0, dict(loss=0.0))
    log.sinks["MLflow"].thread.join(60)
    for step in (1, 2):
        log.write(step, dict(loss=1.0))
    log.close()
    assert len(told) == 1 and told[0].startswith("MLflow: cannot be written (")
    assert told[0].endswith("; the run continues without it")


def test_a_server_that_does_not_answer(folder, monkeypatch):
    """The thread is stuck; writes and the end are not."""
    told, answers = [], threading.Event()
    monkeypatch.setattr(mlflow.MLflow, "_send", lambda self: answers.wait(600))
    monkeypatch.setattr(mlflow, "CLOSING_SECONDS", 0.05)
    monkeypatch.setattr(mlflow, "WAITING", 2)
    log = open_log(folder, "http://127.0.0.1:9", warn=told.append)
    thread = log.sinks["MLflow"].thread
    for step in range(5):
        log.write(step, dict(loss=1.0))
    log.close()
    assert told == [
        "MLflow: cannot be written (http://127.0.0.1:9 does not answer); "
        "the run continues without it"
    ]
    assert thread.is_alive(), "it has waited for the server"
    answers.set()
    thread.join()
    assert len(pathlib.Path(folder.metrics).read_text().splitlines()) == 5


def test_what_is_missing_is_named(folder, monkeypatch):
    with pytest.raises(UserError, match="--mlflow_experiment=words: name the server"):
        metrics_log.check_monitoring(CONFIG)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "file:mlruns")
    with pytest.raises(UserError, match=r"pip install 'bert-gpu\[mlflow\]'"):
        metrics_log.check_monitoring(CONFIG)
