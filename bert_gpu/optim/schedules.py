"""Learning rate as a function of progress: the share of the run that is behind, whatever clock measures it."""

import dataclasses
import math

from bert_gpu.settings import Settings, UserError, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Settings):
    """How the learning rate moves over a run."""

    curve: str = setting("linear", "Shape of the learning rate after warm-up.", choices=("linear", "cosine", "constant"))
    num_warmup_steps: int | None = setting(None, "Steps of linear warm-up from 0. Wins over --warmup_proportion.", low=0)
    warmup_proportion: float = setting(0.1, "Share of the run that is linear warm-up from 0.", low=0.0, below=1.0)


def rate_factor(step, num_steps, config):
    """The factor on the peak rate for the update that follows `step` finished ones (0-based) out of `num_steps`.

    Warm-up is linear from 0; then linear falls to 0 at the end, cosine likewise along half a cosine, constant stays at 1.
    """
    num_warmup = config.num_warmup_steps
    if num_warmup is None:
        num_warmup = int(num_steps * config.warmup_proportion)
    if step < num_warmup:
        return step / num_warmup
    if config.curve == "constant":
        return 1.0
    # As in Google's BERT, the decay is a line over the whole run that warm-up replaces at its start.
    progress = min(1.0, step / num_steps)
    if config.curve == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * progress))
    return 1.0 - progress


def scale_rate(learning_rate, global_batch_size, reference_batch_size, scaling):
    """The peak rate for a global batch when `learning_rate` belongs to the reference batch (Goyal et al. 2017 for linear)."""
    ratio = global_batch_size / reference_batch_size
    if scaling == "linear":
        return learning_rate * ratio
    if scaling == "sqrt":
        return learning_rate * math.sqrt(ratio)
    if scaling == "none":
        return learning_rate
    raise UserError(f"--lr_scaling={scaling}: must be one of linear, sqrt, none")
