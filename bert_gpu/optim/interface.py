"""What an optimizer is: one module, known to the rest by one row of the table in config.py.

The module of an optimizer has, for weights of any shape and a config of `config.OptimizerConfig`:

  SUMMARY: what it is, for the help of --optimizer.
  Settings: a subclass of settings.Settings with the settings that it reads beside the common ones
    of config.py. Optimizers share settings by inheriting them, and no two may be named alike.
  traits(name, shape, config) -> a frozen dataclass with all that a weight's name decides about its
    update. Weights of equal traits and shape share one compiled step.
  slots(traits, shape, config) -> {slot: Slot}: the state that the weight needs.
  corrections(num_updates, config) -> tuple of float32 scalars that are the same for all weights, so
    that an update computes them once. num_updates: this update's number, from 1, an int32 scalar.
  step(traits, weight, gradient, state, learning_rate, corrections, config) -> (weight, state) after
    the update. weight, gradient: float32 tensors of one shape; state: {slot: tensor}, as `slots`;
    learning_rate: float32 scalar, the peak times the schedule's factor.

Only `traits` sees names. An optimizer leaves some weights to another one by answering with the
other's traits for them, which `slots` and `step` pass on to the other's functions. Traits are
dataclasses and no tuples because tuples of different classes can be equal.
"""

import re
from typing import NamedTuple

import numpy as np

from bert_gpu.settings import UserError


class Slot(NamedTuple):
    """One array of an optimizer's state: its shape, type, and the value that all
    elements start with.
    """

    shape: tuple
    dtype: type = np.float32
    start: int = 0


def is_excluded(name, expression):
    """Whether a regular expression is found in a weight's name; the empty one excludes nothing."""
    return bool(expression and re.search(expression, name))


def is_decayed(name, config):
    """Whether weight decay applies to the weight `name`."""
    return config.weight_decay_rate > 0.0 and not is_excluded(name, config.weight_decay_exclude)


def check_expression(settings, field):
    """Raises UserError where a field of the settings is no regular expression; None passes."""
    expression = getattr(settings, field) or ""
    try:
        re.compile(expression)
    except re.error as error:
        raise UserError(
            f"--{field}={expression[:150]}: not a regular expression: {error}"
        ) from error
