"""Optimizers as functions on state: tensors in, tensors out; the training step owns the variables.

State is a flat dict of tensors named "SLOT/WEIGHT". Every optimizer treats each weight by itself,
so the update is a loop over weights. The module of the chosen optimizer updates each weight; this
module knows only its interface (interface.py).
"""

import functools
import math

import numpy as np
import tensorflow as tf

from bert_gpu.fused import fused


def slot_specs(weights, config):
    """{"SLOT/WEIGHT": Slot} for weights {name: object with a shape}."""
    specs = {}
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        slots = config.module.slots(config.module.traits(name, shape, config), shape, config)
        specs |= {f"{slot}/{name}": spec for slot, spec in slots.items()}
    return specs


def initial_slots(weights, config):
    """State of an optimizer before its first update: {"SLOT/WEIGHT": NumPy array, float32 or
    uint8}.

    Args:
      weights: {name: object with a shape} of the trained weights. config: OptimizerConfig.
    """
    return {
        name: np.full(spec.shape, spec.start, spec.dtype)
        for name, spec in slot_specs(weights, config).items()
    }


def state_bytes(weights, config):
    """Bytes of an optimizer's state, from the shapes alone; arguments as for `initial_slots`."""
    return sum(
        math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        for spec in slot_specs(weights, config).values()
    )


def update(weights, gradients, slots, learning_rate, num_updates, config, gradient_factor=1.0):
    """Updates all weights once by the optimizer of `config`; the update of each weight is one
    compiled pass over it.

    Args:
      weights: {name: float32 tensor} of the trained weights. gradients: the same names, any float
        type; they are cast to float32.
      slots: state, as from `initial_slots`.
      learning_rate: float32 scalar. num_updates: int32 scalar, updates so far including this one.
      config: OptimizerConfig. gradient_factor: scalar that multiplies the gradients first, such as
        that of `clip_factor`.

    Returns: (weights, slots) after the update.
    """
    corrections = config.module.corrections(num_updates, config)
    scalars = [
        tf.cast(value, tf.float32) for value in (learning_rate, gradient_factor, *corrections)
    ]
    new_weights, new_slots = {}, {}
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        traits = config.module.traits(name, shape, config)
        state = {
            slot: slots[f"{slot}/{name}"] for slot in config.module.slots(traits, shape, config)
        }
        new_weights[name], state = compiled_step(traits, config)(
            weight, gradients[name], state, *scalars
        )
        new_slots |= {f"{slot}/{name}": value for slot, value in state.items()}
    return new_weights, new_slots


@functools.cache
def compiled_step(traits, config):
    """The step of all weights with these traits, compiled once for each shape.

    Args:
      traits: from the chosen optimizer's `traits`. config: OptimizerConfig.

    Returns: (weight, gradient of any float type, state, learning_rate, gradient_factor,
      *corrections) -> (weight, state).
    """
    return fused(functools.partial(_step, traits, config), reduce_retracing=False)


def _step(traits, config, weight, gradient, state, learning_rate, gradient_factor, *corrections):
    gradient = tf.cast(gradient, tf.float32) * gradient_factor
    return config.module.step(traits, weight, gradient, state, learning_rate, corrections, config)


def clip_factor(gradients, clip_norm, scale=1.0):
    """(factor that clips the gradients, their global norm); both float32 scalars.

    Args:
      gradients: {name: tensor}, each `scale` times too large. clip_norm: the largest global norm
        left unclipped; 0 = never clip.

    If the norm is not finite, the clipped gradients are not finite either.
    """
    norm = (
        tf.linalg.global_norm([tf.cast(gradient, tf.float32) for gradient in gradients.values()])
        / scale
    )
    return (clip_norm / tf.maximum(norm, clip_norm) if clip_norm else 1.0) / scale, norm
