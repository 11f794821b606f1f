"""Learning rate and batch size as functions of progress, the share of the run that is done.

A schedule is a curve (--curve) over a clock (--lr_schedule). Each curve is written once, as a
function of progress: steps out of the run's steps by the step clock, seconds out of the budget by
the time clock.
"""

import math

from bert_gpu.optim.config import ScheduleConfig

# The triangle of Geiping & Goldstein 2022 (budget-triangle2 of the released code) rises from a
# quarter of the peak, and falls over the last quarter of the run.
TRIANGLE_START = 0.25
TRIANGLE_PEAK_AT = 0.75


def learning_rate_factor(
    step: int, num_steps: int, config: ScheduleConfig, progress: float | None = None
) -> float:
    """Return the learning rate of the update after `step` finished ones, as a share of the peak,
    from 0 to 1.

    Args:
      step: finished steps. num_steps: steps of the run; not used when `progress` is given.
      progress: share of the run that is done by another clock; None = step / num_steps. Warm-up by
        share follows this clock; warm-up by steps counts steps under either clock.

    The curves at progress p, with w the end of warm-up and f the floor `min_lr_ratio`:
      linear, cosine, polynomial: f + (1 - f) s, where s is 1 - p, half a cosine, or (1 - p)^power
        over the whole run; until w a line from 0 to 1 replaces it, so the learning rate drops a
        little at w, as in google-research/bert (optimization.py).
      constant: a line from 0 to 1 until w, then 1.
      one_cycle: the same line, then a line from 1 at w to f at the end. With w = 0.5 it is
        Cramming's one-cycle; Hugging Face and 24-hour BERT call it linear.
      one_cycle_cosine: the same line, then half a cosine from 1 at w to f at the end, which Hugging
        Face calls cosine.
      triangle: a line from 1/4 to 1 at p = 3/4, then one to f.
      wsd: the same line until w, then 1, then over the last share `decay_proportion` of the run
        f + (1 - f) (1 - sqrt(x)), where x goes from 0 to 1; warm-up wins where the two overlap.
        The three stages are those of Hu et al. 2024 (MiniCPM, arXiv 2404.06395), the shape of the
        decay is that of Haegele et al. 2024 ("Scaling Laws and Compute-Optimal Training Beyond
        Fixed Training Durations", arXiv 2405.18392).
    """
    share = min(1.0, step / num_steps if progress is None else progress)
    if config.curve == "triangle":
        if share < TRIANGLE_PEAK_AT:
            return TRIANGLE_START + (1.0 - TRIANGLE_START) * share / TRIANGLE_PEAK_AT
        return _raised((1.0 - share) / (1.0 - TRIANGLE_PEAK_AT), config)
    done: float = step
    warmup: float | None = config.num_warmup_steps
    if warmup is None:
        if progress is None:
            warmup = int(num_steps * config.warmup_proportion)
        else:
            done = progress
            warmup = config.warmup_proportion
    if done < warmup:
        return done / warmup
    if config.curve == "constant":
        return 1.0
    if config.curve == "wsd":
        start = 1.0 - config.decay_proportion
        fallen = max(0.0, (share - start) / (1.0 - start)) if start < 1.0 else 0.0
        return _raised(1.0 - math.sqrt(fallen), config)
    left = 1.0 - share
    if config.curve.startswith("one_cycle"):
        peak_at = warmup / num_steps if progress is None else warmup
        left = (1.0 - share) / (1.0 - peak_at) if peak_at < 1.0 else 0.0
        share = 1.0 - left
    if config.curve.endswith("cosine"):
        return _raised(0.5 * (1.0 + math.cos(math.pi * share)), config)
    return _raised(
        left ** (config.polynomial_power if config.curve == "polynomial" else 1.0), config
    )


def _raised(curve: float, config: ScheduleConfig) -> float:
    """Return `curve`, a value of a curve that falls from 1 to 0, rescaled so that the curve falls
    from 1 to min_lr_ratio.
    """
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * curve


def num_micro_batches_at(progress: float, full: int, config: ScheduleConfig) -> int:
    """Return the number of micro-batches of the next step, from 1 to `full`, when the share
    `progress` of the run is done.

    During the ramp the number grows from 1 to `full`, and each number lasts equally long, as in
    Cramming (Geiping & Goldstein 2022).
    """
    if progress >= config.batch_ramp_proportion:
        return full
    return min(full, 1 + int(full * progress / config.batch_ramp_proportion))


def mean_batch_share(full: int, config: ScheduleConfig) -> float:
    """Return the mean number of micro-batches of a step over a run, as a share of `full`; 1 without
    a ramp.
    """
    num_points = 1000
    counts = (num_micro_batches_at(index / num_points, full, config) for index in range(num_points))
    return sum(counts) / (full * num_points)


def scale_learning_rate(learning_rate: float, num_replicas: int, scaling: str) -> float:
    """Return the peak learning rate on `num_replicas` GPUs, given the `learning_rate` on one.
    scaling: "linear" (Goyal et al. 2017), "sqrt" (with the root of the number of GPUs) or "none".
    """
    factors = {"linear": num_replicas, "sqrt": math.sqrt(num_replicas), "none": 1.0}
    return learning_rate * factors[scaling]
