"""Adam's two moments and the update direction that they give, shared by AdamW, LAMB and the 8-bit
AdamW.

Kingma & Ba 2015, Algorithm 1, with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2).
This module is not an optimizer; the functions named as in interface.py are for the modules that
are.
"""

import dataclasses

from bert_gpu.base import settings
from bert_gpu.base.environment import LazyModule
from bert_gpu.base.settings import setting
from bert_gpu.optim.interface import Slot

tf = LazyModule("tensorflow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(settings.Settings):
    """Adam's constants."""

    adam_beta1: float = setting(
        0.9, "Decay of the first moment, the mean of the gradients.", low=0.0, below=1.0
    )
    adam_beta2: float = setting(
        0.999, "Decay of the second moment, the mean of the squared gradients.", low=0.0, below=1.0
    )
    adam_epsilon: float = setting(1e-6, "Added to the root of the second moment.", above=0.0)
    adam_bias_correction: bool = setting(
        True, "Correct the bias of moments that start at 0, as Adam does; Google's BERT does not."
    )


def slots(traits, shape, config):
    """{slot: Slot} of one weight: its first moment ("mean") and its second moment ("square")."""
    return {"mean": Slot(shape), "square": Slot(shape)}


def corrections(num_updates, config):
    """The divisors that correct the bias of the two moments: (float32, float32) scalars, or 1s.

    Args:
      num_updates: int32 scalar, updates so far including this one. config: OptimizerConfig.
    """
    if not config.adam_bias_correction:
        return 1.0, 1.0
    exponent = tf.cast(num_updates, tf.float32)
    return 1.0 - tf.pow(config.adam_beta1, exponent), 1.0 - tf.pow(config.adam_beta2, exponent)


def moments(first_moment, second_moment, gradient, config):
    """(first moment, second moment), updated by a gradient; all have the same shape."""
    beta1, beta2 = config.adam_beta1, config.adam_beta2
    return beta1 * first_moment + (1.0 - beta1) * gradient, beta2 * second_moment + (
        1.0 - beta2
    ) * tf.square(gradient)


def direction(traits, weight, first_moment, second_moment, corrections, config):
    """Adam's update for a learning rate of 1, weight decay included, in the shape of the weight.

    Args:
      traits: anything with `is_decayed`. corrections: from the function of that name.
    """
    update = (first_moment / corrections[0]) / (
        tf.sqrt(second_moment / corrections[1]) + config.adam_epsilon
    )
    if traits.is_decayed:
        update += config.weight_decay_rate * weight
    return update
