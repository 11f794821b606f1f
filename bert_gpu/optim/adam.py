"""Computes Adam's two moments and the direction of the update that they give, for AdamW, LAMB and
the 8-bit AdamW.

Kingma & Ba 2015, Algorithm 1, with decoupled weight decay (Loshchilov & Hutter 2019, Algorithm 2).
This module is not an optimizer; optimizers take from it the functions that interface.py names.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bert_gpu.base.environment import LazyModule
from bert_gpu.base.settings import setting
from bert_gpu.optim.interface import CommonSettings, Slot, Traits

if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
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


def slots(traits: Traits, shape: tuple[int, ...], config: Settings) -> dict[str, Slot]:
    """Return {slot: Slot} of one weight: its first moment ("mean") and its second moment
    ("square").
    """
    return {"mean": Slot(shape), "square": Slot(shape)}


def corrections(
    num_updates: "tf.Tensor", config: Settings
) -> "tuple[tf.Tensor | float, tf.Tensor | float]":
    """Return the two divisors that correct the bias of the first and the second moment: float32
    scalars, or 1.0 without --adam_bias_correction.

    num_updates: int64 scalar, updates so far including this one.
    """
    if not config.adam_bias_correction:
        return 1.0, 1.0
    exponent = tf.cast(num_updates, tf.float32)
    return 1.0 - tf.pow(config.adam_beta1, exponent), 1.0 - tf.pow(config.adam_beta2, exponent)


def moments(
    first_moment: "tf.Tensor",
    second_moment: "tf.Tensor",
    gradient: "tf.Tensor",
    config: Settings,
) -> "tuple[tf.Tensor, tf.Tensor]":
    """Return the first and the second moment, updated by a gradient; all tensors have the shape of
    the weight.
    """
    return (
        config.adam_beta1 * first_moment + (1.0 - config.adam_beta1) * gradient,
        config.adam_beta2 * second_moment + (1.0 - config.adam_beta2) * tf.square(gradient),
    )


def direction(
    traits: Traits,
    weight: "tf.Tensor",
    first_moment: "tf.Tensor",
    second_moment: "tf.Tensor",
    corrections: "Sequence[tf.Tensor | float]",
    config: Settings,
) -> "tf.Tensor":
    """Return the tensor that Adam, with weight decay, subtracts from the weight at a learning rate
    of 1.

    corrections: the result of the function `corrections`.
    """
    update = (first_moment / corrections[0]) / (
        tf.sqrt(second_moment / corrections[1]) + config.adam_epsilon
    )
    if traits.is_decayed:
        update += config.weight_decay_rate * weight
    return update
