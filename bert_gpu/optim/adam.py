"""What AdamW, LAMB and the 8-bit AdamW share: Adam's moments, the direction that they give, and AdamW itself.

An optimizer is two functions on one weight. `slots` says what state the weight needs; `step` takes (weight, gradient, that state) to
(weight, state). `optimizers.update` calls them for every weight.
"""

import re
from typing import NamedTuple

import numpy as np

from bert_gpu.environment import Later

tf = Later("tensorflow")


class Slot(NamedTuple):
    """One array of an optimizer's state: its shape, type, and the value that it starts with everywhere."""

    shape: tuple
    dtype: type = np.float32
    start: int = 0


def is_decayed(name, config):
    """Whether weight decay applies to the weight `name`."""
    return not re.search(config.weight_decay_exclude, name) if config.weight_decay_exclude else True


def bias_corrections(num_updates, config):
    """What the two moments of update number `num_updates` (int32, from 1) are divided by: (float32, float32) scalars, or 1s."""
    if not config.adam_bias_correction:
        return 1.0, 1.0
    time = tf.cast(num_updates, tf.float32)
    return 1.0 - tf.pow(config.adam_beta1, time), 1.0 - tf.pow(config.adam_beta2, time)


def moments(mean, square, gradient, config):
    """The moments with one more gradient; all of one shape."""
    beta1, beta2 = config.adam_beta1, config.adam_beta2
    return beta1 * mean + (1.0 - beta1) * gradient, beta2 * square + (1.0 - beta2) * tf.square(gradient)


def direction(name, weight, mean, square, corrections, config):
    """Where Adam goes for a rate of 1, weight decay included (Loshchilov & Hutter 2019, Algorithm 2); the shape of the weight."""
    update = (mean / corrections[0]) / (tf.sqrt(square / corrections[1]) + config.adam_epsilon)
    if config.weight_decay_rate and is_decayed(name, config):
        update += config.weight_decay_rate * weight
    return update


def slots(name, shape, config):
    """{slot: Slot} of one weight."""
    return {"mean": Slot(shape), "square": Slot(shape)}


def step(name, weight, gradient, state, rate, corrections, config):
    """One AdamW update of one weight, with the rate as the schedule's multiplier.

    Args:
      weight, gradient: float32 tensors of one shape. state: {slot: tensor}, as `slots`.
      rate: float32 scalar. corrections: of `bias_corrections`. config: OptimizerConfig.

    Returns: (weight, state) after the update.
    """
    mean, square = moments(state["mean"], state["square"], gradient, config)
    return weight - rate * direction(name, weight, mean, square, corrections, config), {"mean": mean, "square": square}
