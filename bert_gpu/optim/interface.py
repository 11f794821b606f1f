"""The interface of optimizers: each is one module, registered by one row of the table in config.py.

The module of an optimizer has these names, for weights of any shape; config has its Settings:

  SUMMARY: a description for the help of --optimizer.
  Settings: a subclass of CommonSettings with the further settings that it reads. Optimizers share
    settings by inheritance; one that not all of them read says so by `needs`.
  traits(name, shape, config) -> Traits, or a frozen dataclass that extends them, with all that a
    weight's name decides about its update. Weights of equal traits and shape share one compiled
    step.
  slots(traits, shape, config) -> {slot: Slot}: the state that the weight needs.
  corrections(num_updates, config) -> tuple of float32 scalars that are the same for all weights, so
    that an update computes them once. num_updates: int64 scalar, updates so far including this one.
  step(traits, weight, gradient, state, learning_rate, corrections, config) -> (weight, state) after
    the update. weight, gradient: float32 tensors of one shape; state: {slot: tensor}, with the
    slots that `slots` returns; learning_rate: float32 scalar, the peak times the factor of the
    schedule.

A module may compute a part of its update for many weights together, in matrix products: work too
heavy for each replica to repeat, or for one compiled pass. It then also has:

  joint_shape(traits, shape, num_blocks) -> (num_blocks, ...), the shape of the weight's part in the
    joint work, None for weights that take no part. num_blocks: how many matrices of equal size the
    weight holds side by side (model.weights.WeightSpec).
  joint_input(traits, gradient, state, num_blocks, config, dtype) -> the weight's input to the joint
    work, a tensor of the shape that joint_shape returns and of `dtype`, the compute type. gradient:
    float32.
  joint_work(inputs) -> tensor of the same shape. Inputs of equal shape are concatenated over all
    weights, (K, ...); each of the K results depends on its own input alone, so that replicas can
    divide them.
  joint_flops(shape, dtype) -> FLOPs of joint_work for inputs of this shape.
  `step` then takes the weight's part of the results, (num_blocks, ...), as its last argument.

Only `traits` sees names. To leave some weights to another optimizer, it returns that optimizer's
traits for them, and its `slots` and `step` call that optimizer's functions. Traits are dataclasses,
not tuples, because tuples of different classes can be equal.
"""

import dataclasses
import re
from typing import NamedTuple, TypeVar

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.base.settings import Settings, setting

CommonSettingsType = TypeVar("CommonSettingsType", bound="CommonSettings")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings(Settings):
    """Settings that every optimizer reads."""

    optimizer: str = setting("adamw", "")  # OptimizerConfig has its help and choices
    learning_rate: float = setting(
        1e-4,
        "Peak learning rate of one GPU's share of a step; see --lr_scaling. Fine-tuning's default "
        "is for a hidden_size of 768; others have it times (768 / hidden_size)^2, at most 1e-3.",
        above=0.0,
        high=1e32,
    )
    weight_decay_rate: float = setting(0.01, "Decoupled weight decay.", low=0.0)
    weight_decay_exclude: str = setting(
        "bias|norm",
        "Weights without decay: a regular expression searched "
        "in their names; empty = none. Default: biases and normalisation.",
        words=("",),
    )
    layer_lr_decay: float = setting(
        1.0,
        "Learning rate of a layer as a share of that of the layer above it: the heads have the "
        "whole rate, the top layer this share, the embeddings the lowest. 1 = all alike.",
        above=0.0,
        high=1.0,
    )
    clip_norm: float = setting(
        1.0, "Clip gradients to this global norm after the all-reduce; 0 = never.", low=0.0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            re.compile(self.weight_decay_exclude)
        except re.error as error:
            raise UserError(
                f"not a regular expression: {error}",
                setting="weight_decay_exclude",
                value=self.weight_decay_exclude[:150],
            ) from error

    def keeping_rows(self: CommonSettingsType, num_unused: int) -> CommonSettingsType:
        """Return a copy that leaves the first `num_unused` rows of the table of positions, which no
        token uses, as they are: with any such rows, the table is not decayed.
        """
        names = "|".join(filter(None, (self.weight_decay_exclude, "embeddings/position")))
        return dataclasses.replace(self, weight_decay_exclude=names) if num_unused else self


@dataclasses.dataclass(frozen=True)
class Traits:
    """The traits of a weight, which decide how it is updated. is_decayed: whether weight decay
    applies.
    """

    is_decayed: bool


class Slot(NamedTuple):
    """One array of an optimizer's state: shape, type, and the first value of all elements."""

    shape: tuple[int, ...]
    dtype: type[np.generic] = np.float32
    start: int = 0


def is_excluded(name: str, expression: str) -> bool:
    """Return whether a regular expression, such as --weight_decay_exclude, matches anywhere in a
    weight's name; an empty expression excludes no weight.
    """
    return bool(expression and re.search(expression, name))


def is_decayed(name: str, config: CommonSettings) -> bool:
    """Return whether weight decay applies to the weight `name`."""
    return config.weight_decay_rate > 0.0 and not is_excluded(name, config.weight_decay_exclude)
