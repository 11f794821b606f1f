"""LAMB (You et al. 2020, arXiv 1904.00962, Algorithm 2): Adam's direction, with the length of its step set anew for every weight.

The step of a weight is as long as the weight itself times the rate, which keeps very large batches stable. As in NVIDIA's BERT and
Model Garden the paper's bound on the norm is the identity, and what is not decayed keeps Adam's length, unless told otherwise.
"""

import re

from bert_gpu.environment import Later
from bert_gpu.optim import adam
from bert_gpu.optim.adam import slots  # noqa: F401  (the same state as AdamW's)

tf = Later("tensorflow")


def is_adapted(name, config):
    """Whether the weight `name` gets a trust ratio."""
    exclude = config.weight_decay_exclude if config.layer_adaptation_exclude is None else config.layer_adaptation_exclude
    return not re.search(exclude, name) if exclude else True


def trust_ratio(weight, update):
    """norm(weight) / norm(update), 1 where either is 0: float32 scalar."""
    weight_norm, update_norm = tf.norm(weight), tf.norm(update)
    return tf.where((weight_norm > 0.0) & (update_norm > 0.0), weight_norm / tf.where(update_norm > 0.0, update_norm, 1.0), 1.0)


def step(name, weight, gradient, state, rate, corrections, config):
    """One LAMB update of one weight; arguments and results of `adam.step`."""
    mean, square = adam.moments(state["mean"], state["square"], gradient, config)
    update = adam.direction(name, weight, mean, square, corrections, config)
    if is_adapted(name, config):
        rate = rate * trust_ratio(weight, update)
    return weight - rate * update, {"mean": mean, "square": square}
