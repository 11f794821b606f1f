"""The settings that choose the sinks of the metrics log."""

import dataclasses

from bert_gpu.base.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig(Settings):
    """Where a run's metrics go, besides metrics.jsonl."""

    tensorboard: bool = setting(True, "Write TensorBoard's event files too.")
    wandb_project: str | None = setting(
        None,
        "Weights & Biases project to log to as well. Needs pip install 'bert-gpu[wandb]'. With "
        "WANDB_MODE=offline in the environment, metrics stay in OUTPUT_DIR/wandb for `wandb sync`.",
    )
    mlflow_experiment: str | None = setting(
        None,
        "MLflow experiment to log to as well, on the server or in the folder (file:mlruns) that "
        "MLFLOW_TRACKING_URI in the environment names. Needs pip install 'bert-gpu[mlflow]'.",
    )
