"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101,
Algorithm 2).

As in BERT, epsilon is added to the root of the second moment after bias correction, and biases and
normalisation are not decayed (google-research/bert, optimization.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_gpu.optim import adam
from bert_gpu.optim.interface import Traits, is_decayed

if TYPE_CHECKING:
    import tensorflow as tf


SUMMARY = "Adam with decoupled weight decay (Loshchilov & Hutter 2019)"
Settings = adam.Settings
slots = adam.slots
corrections = adam.corrections


def traits(name: str, shape: tuple[int, ...], config: Settings) -> Traits:
    """Return the traits of the weight `name`."""
    return Traits(is_decayed(name, config))


def step(
    traits: Traits,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor,
    corrections: Sequence[tf.Tensor | float],
    config: Settings,
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return (weight, state) after one update of a weight by AdamW; arguments as for `step` in
    interface.py.
    """
    first_moment, second_moment = adam.moments(state["mean"], state["square"], gradient, config)
    update = adam.direction(traits, weight, first_moment, second_moment, corrections, config)
    return weight - learning_rate * update, {"mean": first_moment, "square": second_moment}
