"""AdamW: Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101,
Algorithm 2).

As in BERT, epsilon is added to the root of the second moment after bias correction, and biases and
normalisation are not decayed (google-research/bert, optimization.py).
"""

import dataclasses

from bert_gpu.optim import adam
from bert_gpu.optim.interface import is_decayed

SUMMARY = "Adam with decoupled weight decay (Loshchilov & Hutter 2019)"
Settings, slots, corrections = adam.Settings, adam.slots, adam.corrections


@dataclasses.dataclass(frozen=True)
class Traits:
    """is_decayed: whether weight decay applies."""

    is_decayed: bool


def traits(name, shape, config):
    """Traits of the weight `name`."""
    return Traits(is_decayed(name, config))


def step(traits, weight, gradient, state, learning_rate, corrections, config):
    """One AdamW update of one weight; arguments and results as in interface.py. traits: anything
    with `is_decayed`.
    """
    first_moment, second_moment = adam.moments(state["mean"], state["square"], gradient, config)
    update = adam.direction(traits, weight, first_moment, second_moment, corrections, config)
    return weight - learning_rate * update, {"mean": first_moment, "square": second_moment}
