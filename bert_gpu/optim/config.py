"""The settings of the learning rate's schedule and of the optimizer."""

import dataclasses
import re

from bert_gpu.optim import adam, adamw8bit, lamb
from bert_gpu.settings import Settings, UserError, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Settings):
    """How the learning rate moves over a run."""

    curve: str = setting(
        "linear",
        "Shape of the learning rate. linear, cosine and polynomial fall over the whole run, and warm-up replaces their start, as in "
        "Google's BERT. constant stays. one_cycle rises during warm-up and falls in a line from there (Smith & Topin 2018). triangle is "
        "Cramming's: from 1/4 of the peak up to it at 3/4 of the run, with no warm-up.",
        choices=("linear", "cosine", "polynomial", "constant", "one_cycle", "triangle"),
    )
    num_warmup_steps: int | None = setting(None, "Steps of linear warm-up from 0. Wins over --warmup_proportion.", low=0)
    warmup_proportion: float = setting(0.1, "Share of the run that is linear warm-up from 0.", low=0.0, below=1.0)
    polynomial_power: float = setting(2.0, "Power of --curve=polynomial; 1 is linear.", above=0.0, needs=("curve", ("polynomial",)))
    min_lr_ratio: float = setting(0.0, "Share of the peak rate that the decay ends at.", low=0.0, high=1.0)
    lr_schedule: str = setting(
        "step", "What measures a run's progress: steps, or time out of --total_training_time.", choices=("step", "time")
    )
    total_training_time: float | None = setting(
        None, "Hours that a run may train, all sessions together; it ends then also when steps are left. Default: no limit.", above=0.0
    )
    batch_ramp_proportion: float = setting(
        0.0, "Share of the run over which accumulation grows from one micro-batch to all; 0 = all from the start.", low=0.0, high=1.0
    )

    def __post_init__(self):
        super().__post_init__()
        warmup = f"--num_warmup_steps={self.num_warmup_steps}"
        if self.lr_schedule == "time" and self.total_training_time is None:
            raise UserError("--lr_schedule=time: there is no budget to measure progress by; add --total_training_time=HOURS")
        if self.min_lr_ratio and self.curve == "constant":
            raise UserError(f"--min_lr_ratio={self.min_lr_ratio}: --curve=constant does not decay; drop one of the two")
        if self.num_warmup_steps and self.curve == "triangle":
            raise UserError(f"{warmup}: --curve=triangle has a rise of its own; drop one of the two")
        if self.num_warmup_steps is not None and self.curve == "one_cycle" and self.lr_schedule == "time":
            raise UserError(f"{warmup}: --curve=one_cycle by --lr_schedule=time peaks at a share of the time; use --warmup_proportion")


OPTIMIZERS = {"adamw": adam, "lamb": lamb, "adamw8bit": adamw8bit}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """The optimizer and its constants."""

    optimizer: str = setting(
        "adamw",
        "adamw; lamb, for very large batches (You et al. 2020); adamw8bit: both moments in 8 bits, a quarter of AdamW's memory.",
        choices=tuple(OPTIMIZERS),
    )
    learning_rate: float = setting(1e-4, "Peak learning rate of a batch of --lr_reference_batch_size sequences.", above=0.0, high=1e32)
    adam_beta1: float = setting(0.9, "Decay of the mean of gradients.", low=0.0, below=1.0)
    adam_beta2: float = setting(0.999, "Decay of the mean of squared gradients.", low=0.0, below=1.0)
    adam_epsilon: float = setting(1e-6, "Added to the root of the mean square.", above=0.0)
    adam_bias_correction: bool = setting(True, "Correct the moments' start from 0, as Adam does. Google's BERT does not.")
    weight_decay_rate: float = setting(0.01, "Decoupled weight decay.", low=0.0)
    weight_decay_exclude: str = setting(
        "bias|norm", "Weights without decay: a regular expression searched in their names. Default: biases and normalisation."
    )
    layer_adaptation_exclude: str | None = setting(
        None,
        "Weights without LAMB's trust ratio: a regular expression searched in their names. Default: --weight_decay_exclude.",
        needs=("optimizer", ("lamb",)),
    )
    quantization_block_size: int = setting(
        2048,
        "Elements of a weight that share one scale in adamw8bit; Dettmers et al. 2022 use 2048.",
        low=64,
        high=2**24,
        needs=("optimizer", ("adamw8bit",)),
    )
    clip_norm: float = setting(1.0, "Clip gradients to this global norm after the all-reduce; 0 = never.", low=0.0)

    def __post_init__(self):
        super().__post_init__()
        for name in ("weight_decay_exclude", "layer_adaptation_exclude"):
            try:
                re.compile(getattr(self, name) or "")
            except re.error as error:
                raise UserError(f"--{name}={getattr(self, name)[:150]}: not a regular expression: {error}") from error
