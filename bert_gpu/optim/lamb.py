"""LAMB (You et al. 2020, arXiv 1904.00962, Algorithm 2): Adam's direction, with a step length of
its own for every weight.

The step of a weight is as long as the weight times the learning rate, which keeps very large
batches stable. As in NVIDIA's BERT and Model Garden, the paper's phi, a bound on the norm, is the
identity, and weights of --weight_decay_exclude keep Adam's step length.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_gpu.base.environment import LazyModule
from bert_gpu.optim import adam, interface
from bert_gpu.optim.interface import is_decayed, is_excluded

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow")

SUMMARY = "for very large batches (You et al. 2020)"
Settings = adam.Settings
slots = adam.slots
corrections = adam.corrections


@dataclasses.dataclass(frozen=True)
class Traits(interface.Traits):
    """The traits of a weight. is_adapted: whether its step is multiplied by the trust ratio."""

    is_adapted: bool


def traits(name: str, shape: tuple[int, ...], config: Settings) -> Traits:
    """Return the traits of the weight `name`."""
    return Traits(is_decayed(name, config), not is_excluded(name, config.weight_decay_exclude))


def trust_ratio(weight: tf.Tensor, update: tf.Tensor) -> tf.Tensor:
    """Return norm(weight) / norm(update), or 1 if either norm is 0: a float32 scalar."""
    weight_norm = tf.norm(weight)
    update_norm = tf.norm(update)
    return tf.where(
        (weight_norm > 0.0) & (update_norm > 0.0),
        weight_norm / tf.where(update_norm > 0.0, update_norm, 1.0),
        1.0,
    )


def step(
    traits: Traits,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor,
    corrections: Sequence[tf.Tensor | float],
    config: Settings,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return (weight, state) after one update of a weight by LAMB; arguments as for `step` in
    interface.py.
    """
    first_moment, second_moment = adam.moments(state["mean"], state["square"], gradient, config)
    update = adam.direction(traits, weight, first_moment, second_moment, corrections, config)
    if traits.is_adapted:
        learning_rate = learning_rate * trust_ratio(weight, update)
    return weight - learning_rate * update, {"mean": first_moment, "square": second_moment}
