"""Optimizers as functions on state: tensors in, tensors out; the training step owns the variables.

State is a flat dict of float32 tensors named "SLOT/WEIGHT". Decoupled weight decay leaves out biases and normalisation, as BERT does
(google-research/bert, optimization.py).
"""

import dataclasses

import tensorflow as tf

from bert_gpu.settings import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Settings):
    """The optimizer and its constants."""

    learning_rate: float = setting(1e-4, "Peak learning rate of a batch of --lr_reference_batch_size sequences.", above=0.0, high=1e32)
    adam_beta1: float = setting(0.9, "Decay of the mean of gradients.", low=0.0, below=1.0)
    adam_beta2: float = setting(0.999, "Decay of the mean of squared gradients.", low=0.0, below=1.0)
    adam_epsilon: float = setting(1e-6, "Added to the root of the mean square.", above=0.0)
    adam_bias_correction: bool = setting(True, "Correct the moments' start from 0, as Adam does. Google's BERT does not.")
    weight_decay_rate: float = setting(0.01, "Decoupled weight decay; none on biases and normalisation.", low=0.0)
    clip_norm: float = setting(1.0, "Clip gradients to this global norm after the all-reduce; 0 = never.", low=0.0)


def is_decayed(name):
    """Whether weight decay applies to the weight `name`."""
    return "bias" not in name and "norm" not in name


def slot_names(weight_names):
    """Names of the state that AdamW keeps for these weights."""
    return [f"{slot}/{name}" for slot in ("mean", "square") for name in weight_names]


def clip(gradients, clip_norm):
    """(clipped gradients, their global norm before). A norm that is not finite leaves them not finite."""
    norm = tf.linalg.global_norm(list(gradients.values()))
    if not clip_norm:
        return gradients, norm
    factor = clip_norm / tf.maximum(norm, clip_norm)
    return {name: gradient * factor for name, gradient in gradients.items()}, norm


def adamw(weights, gradients, slots, rate, num_updates, config):
    """One AdamW update (Loshchilov & Hutter 2019, Algorithm 2, with the rate as the schedule multiplier).

    Args:
      weights, gradients: dict name -> float32 tensor. slots: dict as `slot_names`.
      rate: float32 scalar. num_updates: int, this update's number, from 1.
      config: OptimizerConfig.

    Returns: (weights, slots) after the update.
    """
    beta1, beta2 = config.adam_beta1, config.adam_beta2
    first_correction = second_correction = 1.0
    if config.adam_bias_correction:
        time = tf.cast(num_updates, tf.float32)
        first_correction, second_correction = 1.0 - tf.pow(beta1, time), 1.0 - tf.pow(beta2, time)
    new_weights, new_slots = {}, {}
    for name, weight in weights.items():
        gradient = gradients[name]
        mean = beta1 * slots[f"mean/{name}"] + (1.0 - beta1) * gradient
        square = beta2 * slots[f"square/{name}"] + (1.0 - beta2) * tf.square(gradient)
        update = (mean / first_correction) / (tf.sqrt(square / second_correction) + config.adam_epsilon)
        if config.weight_decay_rate and is_decayed(name):
            update += config.weight_decay_rate * weight
        new_weights[name] = weight - rate * update
        new_slots |= {f"mean/{name}": mean, f"square/{name}": square}
    return new_weights, new_slots
