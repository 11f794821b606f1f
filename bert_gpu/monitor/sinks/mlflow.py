"""The sink of MLflow (--mlflow_experiment).

A thread makes all calls to the server, so that a slow or missing server delays no step. An error in
the thread is raised by the next write.
"""

import os
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import write_text
from bert_gpu.base.run_names import MLFLOW_RUN_ID
from bert_gpu.monitor.sinks.interface import Sink

URI = "MLFLOW_TRACKING_URI"  # the variable of the environment that names the server or folder
PARAMS_A_CALL = 100  # MLflow's limit
PARAM_CHARACTERS = 500  # MLflow's limit
WAITING = 10_000  # lines that may wait for a server that does not answer
CLOSING_SECONDS = 30.0


class MLflow(Sink):
    """The sink that writes to one run of an MLflow experiment. MLflow deletes nothing, so a metric
    is written only at steps above the last one that it has there: steps repeated after a resume or
    a rollback keep their first values. The status of a run that stopped before its end is KILLED.

    Args of the constructor: path: OUTPUT_DIR. settings: {setting: value}, shown with the run. The
    environment names the server or folder.
    """

    def __init__(self, path: str, experiment: str, settings: Mapping[str, object]) -> None:
        self.path = path
        self.experiment = experiment
        self.settings = settings
        self.uri = os.environ.get(URI)
        self.lines: queue.Queue[tuple] = queue.Queue(WAITING)  # (step, milliseconds, values)
        self.error: Exception | None = None
        self.ends = object()  # queued in place of values to end the thread
        self.thread = threading.Thread(target=self._send, name="mlflow", daemon=True)
        self.thread.start()

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        self._raise()
        try:
            self.lines.put_nowait((step, int(time.time() * 1000), values))
        except queue.Full:
            raise TimeoutError(f"{shortened(self.uri)} does not answer") from None

    def close(self) -> None:
        """Wait until all lines are sent, CLOSING_SECONDS at most. Raises the error of the thread
        that sends them.
        """
        if self.thread.is_alive():
            self.lines.put((None, None, self.ends), timeout=CLOSING_SECONDS)
            self.thread.join(CLOSING_SECONDS)
        self._raise()
        if self.thread.is_alive():
            raise TimeoutError(f"{shortened(self.uri)} does not answer")

    def _raise(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _send(self) -> None:
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric

            client = MlflowClient(tracking_uri=self.uri)
            run_id = self._open(client)
            stored = client.get_run(run_id).data.to_proto().metrics
            last_steps = {metric.key: metric.step for metric in stored}
            while True:
                step, moment, values = self.lines.get()
                if values is self.ends:
                    client.set_terminated(run_id, "FINISHED" if self.is_complete else "KILLED")
                    return
                # MLflow allows no @ in a name, as in mrr@10
                named = {name.replace("@", "_at_"): value for name, value in values.items()}
                metrics = [
                    Metric(name, float(value), moment, step)
                    for name, value in named.items()
                    if value is not None and step > last_steps.get(name, -1)
                ]
                client.log_batch(run_id, metrics=metrics)
                last_steps |= {metric.key: step for metric in metrics}
        except Exception as error:  # `_raise` raises it in the thread of the run
            self.error = error

    def _open(self, client: Any) -> str:
        """Return the id of the MLflow run: the id stored in OUTPUT_DIR, or that of a new run."""
        from mlflow.entities import Param

        path = os.path.join(self.path, MLFLOW_RUN_ID)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                run_id = file.read().strip()
            client.update_run(run_id, status="RUNNING")
            return run_id
        experiment = client.get_experiment_by_name(self.experiment)
        experiment_id = (
            client.create_experiment(self.experiment)
            if experiment is None
            else experiment.experiment_id
        )
        name = os.path.basename(os.path.abspath(self.path))
        run_id = client.create_run(experiment_id, run_name=name).info.run_id
        write_text(path, run_id + "\n")
        params = [
            Param(name, str(value)[:PARAM_CHARACTERS]) for name, value in self.settings.items()
        ]
        for first in range(0, len(params), PARAMS_A_CALL):
            client.log_batch(run_id, params=params[first : first + PARAMS_A_CALL])
        return run_id


def check_mlflow(experiment: str) -> object:
    """Return the module mlflow. Raises UserError when the package is missing, or when the
    environment names no server or folder.
    """
    if not os.environ.get(URI):
        raise UserError(
            "name the server with MLFLOW_TRACKING_URI=http://HOST:PORT in the environment, or a "
            "folder as file:mlruns",
            setting="mlflow_experiment",
            value=experiment,
        )
    # since MLflow 3, logging to a folder needs this variable
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    remedy = "pip install 'bert-gpu[mlflow]', or leave it out"
    return import_extra("mlflow", f"--mlflow_experiment={experiment}", remedy)
