"""Learning rate and batch size as functions of progress: the share of the run that is done, by
steps or by time.

A schedule is a shape (--curve) over a clock (--lr_schedule). The shapes are written once: the step
clock hands them steps out of steps, the time clock seconds out of the budget.
"""

import math

from bert_gpu.settings import UserError

# Geiping & Goldstein 2022 (budget-triangle2 of the released code): from a quarter of the peak up,
# and down over the last quarter.
TRIANGLE_START, TRIANGLE_PEAK_AT = 0.25, 0.75


def learning_rate_factor(step, num_steps, config, progress=None):
    """The factor, from 0 to 1, on the peak learning rate for the update after `step` finished ones.

    Args:
      step: finished steps. num_steps: steps of the run; unused when `progress` is given.
      config: ScheduleConfig.
      progress: share of the run that is done by another clock; None: step / num_steps. Warm-up by
        share follows this clock, warm-up by steps counts steps under either.

    The shapes, at progress p, w being the end of warm-up, f the floor `min_lr_ratio`:
      linear, cosine, polynomial: f + (1 - f) s, where s is 1 - p, half a cosine, or (1 - p)^power
        over the whole run; until w a line from 0 to 1 replaces it, so that the learning rate drops
        a little at w, as in google-research/bert (optimization.py).
      constant: a line from 0 to 1 until w, then 1.
      one_cycle: the same line, then one from 1 at w to f at the end. It is Cramming's one-cycle for
        w = 0.5, and what Hugging Face and 24-hour BERT call linear.
      triangle: a line from 1/4 to 1 at p = 3/4, then one to f.
    """
    share = min(1.0, step / num_steps if progress is None else progress)
    if config.curve == "triangle":
        if share < TRIANGLE_PEAK_AT:
            return TRIANGLE_START + (1.0 - TRIANGLE_START) * share / TRIANGLE_PEAK_AT
        return _raised((1.0 - share) / (1.0 - TRIANGLE_PEAK_AT), config)
    done, warmup = step, config.num_warmup_steps
    if warmup is None and progress is None:
        warmup = int(num_steps * config.warmup_proportion)
    elif warmup is None:
        done, warmup = progress, config.warmup_proportion
    if done < warmup:
        return done / warmup
    if config.curve == "constant":
        return 1.0
    if config.curve == "one_cycle":
        peak_at = warmup / num_steps if progress is None else warmup
        return _raised((1.0 - share) / (1.0 - peak_at) if peak_at < 1.0 else 0.0, config)
    if config.curve == "cosine":
        return _raised(0.5 * (1.0 + math.cos(math.pi * share)), config)
    return _raised(
        (1.0 - share) ** (config.polynomial_power if config.curve == "polynomial" else 1.0), config
    )


def _raised(shape, config):
    """A shape that falls from 1 to 0, made to fall to the floor."""
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * shape


def num_micro_batches_at(progress, full, config):
    """Micro-batches of the next step, 1 to `full`, when the share `progress` of the run is done.

    Each count has the same share of the ramp, as in Cramming (Geiping & Goldstein 2022).
    """
    if progress >= config.batch_ramp_proportion:
        return full
    return min(full, 1 + int(full * progress / config.batch_ramp_proportion))


def mean_batch_share(full, config):
    """The mean over a run of num_micro_batches / `full`; 1 without a ramp."""
    points = range(1000)
    return sum(num_micro_batches_at(point / len(points), full, config) for point in points) / (
        full * len(points)
    )


def scale_learning_rate(learning_rate, global_batch_size, reference_batch_size, scaling):
    """The peak learning rate for a global batch when `learning_rate` belongs to the reference batch
    (Goyal et al. 2017 for linear).
    """
    ratio = global_batch_size / reference_batch_size
    if scaling == "linear":
        return learning_rate * ratio
    if scaling == "sqrt":
        return learning_rate * math.sqrt(ratio)
    if scaling == "none":
        return learning_rate
    raise UserError(f"--lr_scaling={scaling}: must be one of linear, sqrt, none")
