"""The sink of MLflow (--mlflow_experiment).

All calls to the server are made by a thread, so that a slow or missing one delays no step; what it
raises is raised by the next write.
"""

import os
import queue
import threading
import time

from bert_gpu.base.environment import import_extra
from bert_gpu.base.errors import UserError, shortened
from bert_gpu.base.files import write_text
from bert_gpu.base.run_names import MLFLOW_RUN_ID
from bert_gpu.monitor.sinks.interface import Sink

URI = "MLFLOW_TRACKING_URI"  # in the environment, of the server or folder
PARAMS_A_CALL, PARAM_CHARACTERS = 100, 500  # MLflow's limits
WAITING = 10_000  # lines at most, for a server that does not answer
CLOSING_SECONDS = 30.0


class MLflow(Sink):
    """A run of an experiment. MLflow deletes nothing, so each metric has only steps above its last
    one: those that are repeated after a resume or a rollback keep their first values there.

    Args of the constructor: path: OUTPUT_DIR. experiment: its name. settings: dict that is shown
      with the run. The environment names the server or folder.
    """

    def __init__(self, path, experiment, settings):
        self.path, self.experiment, self.settings = path, experiment, settings
        self.uri = os.environ.get(URI)
        self.lines, self.error, self.ends = queue.Queue(WAITING), None, object()
        self.thread = threading.Thread(target=self._send, name="mlflow", daemon=True)
        self.thread.start()

    def write(self, step, values):
        self._raise()
        try:
            self.lines.put_nowait((step, int(time.time() * 1000), values))
        except queue.Full:
            raise TimeoutError(f"{shortened(self.uri)} does not answer") from None

    def close(self):
        """Waits until all is sent, not for long. Raises what went wrong."""
        if self.thread.is_alive():
            self.lines.put((None, None, self.ends), timeout=CLOSING_SECONDS)
            self.thread.join(CLOSING_SECONDS)
        self._raise()
        if self.thread.is_alive():
            raise TimeoutError(f"{shortened(self.uri)} does not answer")

    def _raise(self):
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _send(self):
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
                    client.set_terminated(run_id)
                    return
                metrics = [
                    Metric(name, float(value), moment, step)
                    for name, value in values.items()
                    if value is not None and step > last_steps.get(name, -1)
                ]
                client.log_batch(run_id, metrics=metrics)
                last_steps |= {metric.key: step for metric in metrics}
        except Exception as error:  # raised where the run can tell of it
            self.error = error

    def _open(self, client):
        """The id of the run, which is made unless OUTPUT_DIR has one."""
        from mlflow.entities import Param

        path = os.path.join(self.path, MLFLOW_RUN_ID)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                run_id = file.read().strip()
            client.update_run(run_id, status="RUNNING")
            return run_id
        found = client.get_experiment_by_name(self.experiment)
        experiment_id = (
            client.create_experiment(self.experiment) if found is None else found.experiment_id
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


def check_mlflow(experiment):
    """UserError when the package is missing, or it is not said where the runs go."""
    if not os.environ.get(URI):
        raise UserError(
            "name the server with MLFLOW_TRACKING_URI=http://HOST:PORT in the environment, or a "
            "folder as file:mlruns",
            setting="mlflow_experiment",
            value=experiment,
        )
    # folders need this since MLflow 3
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    remedy = "pip install 'bert-gpu[mlflow]', or leave it out"
    import_extra("mlflow", f"--mlflow_experiment={experiment}", remedy)
