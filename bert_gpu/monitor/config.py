"""The settings of the metrics log: where metrics go, and how often hardware is sampled."""

import dataclasses
import re

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig(Settings):
    """Where a run's metrics go, besides metrics.jsonl."""

    tensorboard: bool = setting(True, "Write TensorBoard's event files too.")
    wandb_project: str | None = setting(
        None,
        "Weights & Biases project to log to as well. Needs pip install 'bert-gpu[wandb]'.",
    )
    wandb_mode: str = setting(
        "online",
        "online sends the metrics; offline keeps them in OUTPUT_DIR/wandb for `wandb sync`.",
        choices=("online", "offline"),
        needs=("wandb_project", None),
    )
    mlflow_experiment: str | None = setting(
        None,
        "MLflow experiment to log to as well. Needs pip install 'bert-gpu[mlflow]'.",
    )
    mlflow_tracking_uri: str | None = setting(
        None,
        "Where MLflow's runs go: http://HOST:PORT, or a folder as file:mlruns. Default: the "
        "environment's MLFLOW_TRACKING_URI. Passwords and tokens stand in MLflow's environment "
        "variables alone.",
        needs=("mlflow_experiment", None),
    )
    hardware_seconds: float = setting(
        5.0,
        "Time between samples of the GPUs' utilisation, memory, temperature, "
        "power and clocks. 0 = no samples.",
        low=0.0,
        unit="seconds",
    )

    def __post_init__(self):
        super().__post_init__()
        if re.search(r"://[^/]*@", self.mlflow_tracking_uri or ""):
            # settings are logged and stored, so that no secret may be among them
            raise UserError(
                "holds a name or a password before the @",
                "leave them out and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
                setting="mlflow_tracking_uri",
            )
