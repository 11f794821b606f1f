"""LAMB (You et al. 2020, arXiv 1904.00962, Algorithm 2): Adam's direction, with a step length of
its own for every weight.

The step of a weight is as long as the weight times the learning rate, which keeps very large
batches stable. As in NVIDIA's BERT and Model Garden, the paper's phi, a bound on the norm, is the
identity, and weights of --weight_decay_exclude keep Adam's step length.
"""

import dataclasses

from bert_gpu.base.environment import LazyModule
from bert_gpu.optim import adam
from bert_gpu.optim.interface import is_decayed, is_excluded

tf = LazyModule("tensorflow")

SUMMARY = "for very large batches (You et al. 2020)"
Settings, slots, corrections = adam.Settings, adam.slots, adam.corrections


@dataclasses.dataclass(frozen=True)
class Traits:
    """is_decayed: whether weight decay applies. is_adapted: whether the step is multiplied by the
    trust ratio.
    """

    is_decayed: bool
    is_adapted: bool


def traits(name, shape, config):
    """Traits of the weight `name`."""
    is_adapted = not is_excluded(name, config.weight_decay_exclude)
    return Traits(is_decayed(name, config), is_adapted)


def trust_ratio(weight, update):
    """norm(weight) / norm(update), 1 where either is 0: float32 scalar."""
    weight_norm, update_norm = tf.norm(weight), tf.norm(update)
    return tf.where(
        (weight_norm > 0.0) & (update_norm > 0.0),
        weight_norm / tf.where(update_norm > 0.0, update_norm, 1.0),
        1.0,
    )


def step(traits, weight, gradient, state, learning_rate, corrections, config):
    """One LAMB update of one weight; arguments and results as in interface.py."""
    first_moment, second_moment = adam.moments(state["mean"], state["square"], gradient, config)
    update = adam.direction(traits, weight, first_moment, second_moment, corrections, config)
    if traits.is_adapted:
        learning_rate = learning_rate * trust_ratio(weight, update)
    return weight - learning_rate * update, {"mean": first_moment, "square": second_moment}
