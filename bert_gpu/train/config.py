"""The settings of a training: devices, batch, memory, length and cadence, endings and monitoring;
and functions that check and adjust them.
"""

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.monitor.config import MonitorConfig
from bert_gpu.optim.config import OptimizerConfig, ScheduleConfig

MAX_EPOCHS = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchConfig(Settings):
    """Batch sizes in sequences, and the scaling of the learning rate."""

    train_batch_size: int = setting(
        32,
        "Sequences that one GPU processes at once (the micro-batch). Global batch "
        "= GPUs x accumulation steps x this. auto = the largest that fits in the "
        "GPU's memory, found by trial.",
        low=1,
        words=("auto",),
    )
    gradient_accumulation_steps: int | None = setting(
        None,
        "Micro-batches per GPU whose gradients are added before an update. "
        "Default: 1, or derived from --global_batch_size. A resumed run keeps its "
        "global batch and derives this again.",
        low=1,
    )
    global_batch_size: int | None = setting(
        None,
        "Sequences per update, over all GPUs; the accumulation steps follow from "
        "it. Give this or --gradient_accumulation_steps.",
        low=1,
    )
    lr_scaling: str = setting(
        "linear",
        "How --learning_rate, that of one GPU's share of a step, grows with their number.",
        choices=("linear", "sqrt", "none"),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryConfig(Settings):
    """Saving GPU memory (see also --precision, --optimizer=adamw8bit and
    --gradient_accumulation_steps).
    """

    recompute_every: int | None = setting(
        None,
        "Keep one activation for every k layers and recompute the rest in the backward pass: up to "
        "a third more compute. --recompute stands for 1. Default: all are kept.",
        low=1,
    )
    attention: str = setting(
        "auto",
        "How attention is computed in training. cudnn = cuDNN's fused kernels, "
        "which store no attention scores; they need a GPU of compute capability "
        "8.0 or later, XLA, bfloat16 or float16, and "
        "--attention_probs_dropout_prob=0. auto = cudnn where that is possible "
        "and the compute capability is 9.0 or later (H100, H200), where it was "
        "measured; plain elsewhere and with --deterministic.",
        choices=("auto", "plain", "cudnn"),
    )
    freeze: tuple[str, ...] = setting(
        (),
        "Weights that are not trained, and so have no gradients or optimizer "
        "state, separated by commas: embeddings, layers:K (the first K layers), "
        "or a regular expression that matches part of a weight's name, such as "
        "attention/.*bias.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CadenceConfig(Settings):
    """How long a run is, and when it logs, saves and validates."""

    num_train_steps: int | None = setting(
        None,
        "Optimizer updates of the run. Overrides --num_train_epochs; with "
        "--total_training_time, whichever comes first.",
        low=1,
    )
    num_train_epochs: float | None = setting(
        None,
        "Passes over the training records. Default in fine-tuning: 3, or as many as make 9,600 "
        "examples; in pretraining 40 passes over the text, which are 4 over records with "
        "--dupe_factor=10, or as many as --total_training_time allows.",
        above=0.0,
        high=MAX_EPOCHS,
    )
    steps_per_loop: int | None = setting(
        None,
        "Steps per call into TensorFlow. With more, the GPU waits less for Python; a call never "
        "runs past a step that logs or saves. Default: 1 on a CPU, in fine-tuning and where the "
        "lengths of rows differ, else as many as fit in 10 micro-batches, at least 1.",
        low=1,
    )
    log_steps: int = setting(10, "Steps between lines of metrics.jsonl.", low=1)
    save_checkpoints_steps: int = setting(
        1000, "Steps between checkpoints; the last step is always saved.", low=1
    )
    eval_steps: int | None = setting(
        None,
        "Steps between validations. Default: at every checkpoint. A run also "
        "validates before its first step.",
        low=1,
    )
    validation_epochs: float | None = setting(
        None, "Epochs between validations, instead of --eval_steps.", above=0.0, high=MAX_EPOCHS
    )
    validation_marks: tuple[str, ...] = setting(
        (), "Shares of the run at which to validate as well, separated by commas: 0.1,0.5."
    )
    finetune_time_markers: tuple[str, ...] = setting(
        (),
        "Shares of the run at which to export the model to OUTPUT_DIR/marks/SHARE "
        "for fine-tuning, separated by commas: 0.25,0.5.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eval_steps is not None and self.validation_epochs is not None:
            raise UserError(
                "give one of them",
                setting=("eval_steps", "validation_epochs"),
                value=f"{self.eval_steps} and --validation_epochs={self.validation_epochs}",
            )
        for name in ("validation_marks", "finetune_time_markers"):
            shares(name, getattr(self, name))


def shares(name: str, texts: Iterable[str]) -> list[float]:
    """Return `texts`, the entries of a setting that lists shares of the run, as numbers in rising
    order. Raises UserError for an entry that is not a number above 0 and at most 1. name: of the
    setting, for the message.
    """
    try:
        values = sorted({float(text) for text in texts})
    except ValueError:
        values = [math.nan]
    if not all(0 < value <= 1 for value in values):
        raise UserError(
            "must be numbers above 0 and at most 1, separated by commas",
            setting=name,
            value=",".join(texts),
        )
    return values


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndingConfig(Settings):
    """When a run stops early, and which checkpoints it keeps."""

    max_bad_steps: int = setting(
        25,
        "Steps in a row that are not finite, or whose loss is 3 nats above the mean of about 100 "
        "good steps before them, until the run counts as diverged.",
        low=1,
    )
    on_divergence: str = setting(
        "stop",
        "stop: exit with code 3. rollback: return to the last good checkpoint and "
        "continue with later data, three times at most.",
        choices=("stop", "rollback"),
    )
    early_stop_time: float | None = setting(
        None,
        "Time after which a validation loss above --early_stop_eval_loss ends the run.",
        low=0.0,
        unit="minutes",
    )
    early_stop_eval_loss: float = setting(
        6.0,
        "The validation loss that a run must have reached after --early_stop_time.",
        above=0.0,
        needs=("early_stop_time", None),
    )
    keep_checkpoint_max: int = setting(
        5,
        "How many of the newest checkpoints to keep, besides the one with the "
        "best validation (--best_metric).",
        low=1,
    )
    best_metric: str = setting(
        "loss",
        "The validation metric that makes a checkpoint the best one, such as accuracy: the "
        "highest, or of a loss the lowest.",
    )
    early_stop_patience: int | None = setting(
        None,
        "Finish the run after that many validations in a row that were no better than the best.",
        low=1,
    )
    export_best: bool = setting(
        False, "Export the best checkpoint (--best_metric) to model/ instead of the last one."
    )

    def criterion(self, values: Mapping[str, float | None], is_first: bool = False) -> float | None:
        """Return the value of --best_metric in a validation, negated unless the metric is a loss,
        so that the lowest value is the best; None where the metric is not defined.

        values: {metric: value or None} of the validation. is_first: whether no step precedes the
        validation.

        Raises UserError when the validation does not report the metric, or when the first one does
        not define it.
        """
        if self.best_metric not in values:
            raise UserError(
                f"the validation reports {', '.join(values)}",
                "name one of these",
                setting="best_metric",
                value=self.best_metric,
            )
        value = values[self.best_metric]
        if is_first and value is None:
            defined = (name for name in values if values[name] is not None)
            raise UserError(
                "is not defined on the validation data, as F1 and AUC are not where "
                "a class is missing",
                f"validate on other data, or name another metric ({', '.join(defined)})",
                setting="best_metric",
                value=self.best_metric,
            )
        return value if value is None or self.best_metric.endswith("loss") else -value

    def is_stale(self, num_worse: int) -> bool:
        """Return whether --early_stop_patience ends a run after `num_worse` validations since the
        best one.
        """
        return self.early_stop_patience is not None and num_worse >= self.early_stop_patience


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings that pretraining and fine-tuning share.

    overwrite: remove what an earlier run left in the output folder, and start again.
    recipe: name of the recipe that settings come from, for run.json.
    flexible: names of settings, set by a recipe, that may be adjusted to the data, the GPUs or an
    earlier run. unset: names of settings that neither the user nor a recipe has set.

    Raises UserError for a field that is not of its settings class.
    """

    batch: BatchConfig = BatchConfig()
    memory: MemoryConfig = MemoryConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    cadence: CadenceConfig = CadenceConfig()
    ending: EndingConfig = EndingConfig()
    monitor: MonitorConfig = MonitorConfig()
    devices: DeviceConfig = DeviceConfig()
    overwrite: bool = False
    recipe: str | None = None
    flexible: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, kind in self.kinds().items():
            if not isinstance(getattr(self, name), kind):
                raise UserError(
                    f"{name} must be a {kind.__name__}, not a {type(getattr(self, name)).__name__}",
                    where=type(self).__name__,
                )

    @classmethod
    def kinds(cls) -> dict[str, type[Settings]]:
        """Return {field: its class} for the fields whose class is a subclass of Settings."""
        return {
            name: kind
            for name, kind in {field.name: field.type for field in dataclasses.fields(cls)}.items()
            if isinstance(kind, type) and issubclass(kind, Settings)
        }

    def configs(self) -> list[Settings]:
        """Return the values of the fields that hold a Settings object, such as the BatchConfig."""
        return [getattr(self, name) for name in self.kinds()]

    def values(self) -> dict[str, object]:
        """Return {setting: value} of all Settings objects in the fields."""
        return {
            name: value for config in self.configs() for name, value in config.to_dict().items()
        }


def fit_sizes(
    batch: BatchConfig,
    flexible: Collection[str],
    num_replicas: int,
    run_json: Mapping[str, Any] | None = None,
) -> BatchConfig:
    """Return a BatchConfig whose flexible sizes are adjusted to its other sizes and the number of
    GPUs.

    The micro-batch is reduced where it does not divide the global batch. A global batch that no
    micro-batch divides is rounded, by an eighth at most where a smaller micro-batch allows that.

    Args:
      flexible: names of the sizes that may change. num_replicas: GPUs or virtual replicas.
      run_json: content of run.json of the run to resume, whose global batch takes precedence; None
        for a new run.
    """
    micro_batch = batch.train_batch_size
    global_batch = run_json["global_batch_size"] if run_json else batch.global_batch_size
    if global_batch is None:
        return batch
    if (
        "train_batch_size" in flexible
        and micro_batch != "auto"
        and global_batch % num_replicas == 0
    ):
        share = global_batch // num_replicas
        micro_batch = next(
            size for size in range(min(micro_batch, share), 0, -1) if share % size == 0
        )
        batch = dataclasses.replace(batch, train_batch_size=micro_batch)
    if "global_batch_size" not in flexible:
        return batch
    if run_json:
        return dataclasses.replace(batch, global_batch_size=None)

    def rounded(micro_batch: int) -> int:
        smallest = num_replicas * micro_batch
        return max(1, round(global_batch / smallest)) * smallest

    if micro_batch == "auto":
        return dataclasses.replace(batch, global_batch_size=rounded(1))
    if "train_batch_size" in flexible:
        sizes = range(micro_batch, 0, -1)

        def change(size: int) -> int:
            return abs(rounded(size) - global_batch)

        near = (size for size in sizes if change(size) <= global_batch / 8)
        micro_batch = next(near, min(sizes, key=change))
    return dataclasses.replace(
        batch, train_batch_size=micro_batch, global_batch_size=rounded(micro_batch)
    )
