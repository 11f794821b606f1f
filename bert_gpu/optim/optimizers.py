"""Optimizers as functions on state: tensors in, tensors out; the training step owns the variables.

State is a flat dict of tensors named "SLOT/WEIGHT". The update is a loop over weights, after the
work that an optimizer does for many weights together. The module of the selected optimizer updates
each weight, through the functions of interface.py.
"""

import collections
import functools
import math
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from bert_gpu.base.fused import fused, has_gpu, hide_from_xla
from bert_gpu.base.weight_names import EMBEDDINGS, layers_of
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.optim.interface import Slot, Traits


class Shaped(Protocol):
    """An array, a tensor, or the specification of a weight."""

    @property
    def shape(self) -> Sequence[int]: ...


def slot_specs(weights: Mapping[str, Shaped], config: OptimizerConfig) -> dict[str, Slot]:
    """Return {"SLOT/WEIGHT": Slot}, the state that the optimizer keeps for `weights`, {name: object
    with a shape}.
    """
    specs: dict[str, Slot] = {}
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        slots = config.module.slots(config.module.traits(name, shape, config), shape, config)
        specs |= {f"{slot}/{name}": spec for slot, spec in slots.items()}
    return specs


def initial_slots(weights: Mapping[str, Shaped], config: OptimizerConfig) -> dict[str, np.ndarray]:
    """Return the state of an optimizer before its first update: {"SLOT/WEIGHT": array, float32 or
    uint8}.

    weights: {name: object with a shape} of the trained weights.
    """
    return {
        name: np.full(spec.shape, spec.start, spec.dtype)
        for name, spec in slot_specs(weights, config).items()
    }


def state_bytes(weights: Mapping[str, Shaped], config: OptimizerConfig) -> int:
    """Return the size of an optimizer's state in bytes, from the shapes alone; arguments as for
    `initial_slots`.
    """
    return sum(
        math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
        for spec in slot_specs(weights, config).values()
    )


def update(
    weights: Mapping[str, tf.Tensor],
    gradients: Mapping[str, tf.Tensor],
    slots: Mapping[str, tf.Tensor],
    learning_rate: tf.Tensor | float,
    num_updates: tf.Tensor | int,
    config: OptimizerConfig,
    gradient_factor: tf.Tensor | float = 1.0,
    *,
    parts: "Mapping[str, JointPart]" = types.MappingProxyType({}),
    dtype: tf.DType = tf.float32,
    joint_results: Mapping[tuple[int, ...], tf.Tensor] | None = None,
    only_if: tf.Tensor | None = None,
    all_names: Collection[str] | None = None,
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """Update all weights once by the optimizer of `config`; the update of each weight is one
    compiled pass over it.

    Args:
      weights: float32, the trained weights. gradients: the same names, any float type; they are
        cast to float32.
      slots: state, as from `initial_slots`.
      learning_rate: float32 scalar. num_updates: int64 scalar, updates so far including this one.
      gradient_factor: scalar that multiplies the gradients first, such as that of `clip_factor`.
      parts: from `joint_parts`; not needed for an optimizer without joint work. dtype: as for
        `joint_inputs`.
      joint_results: {shape: tensor}, the results of `joint_work` for `joint_inputs`, where replicas
        have divided the work. Default: the results are computed here.
      only_if: bool scalar tensor; where it is false, weights and slots are returned as they were.
      all_names: names of all weights, including frozen ones, for --layer_lr_decay. Default: those
        of `weights`.

    Returns: (weights, slots) after the update.
    """
    corrections = config.module.corrections(num_updates, config)
    scalars = [
        tf.cast(value, tf.float32) for value in (learning_rate, gradient_factor, *corrections)
    ]
    if joint_results is None:
        inputs = joint_inputs(parts, gradients, slots, config, gradient_factor, dtype)
        joint_results = {key: config.module.joint_work(value) for key, value in inputs.items()}
    joint = divide_joint(joint_results, parts)
    factors = layer_factors(all_names or weights, config.layer_lr_decay)
    new_weights = {}
    new_slots: dict[str, tf.Tensor] = {}
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        traits = config.module.traits(name, shape, config)
        rate = scalars[0] if factors[name] == 1.0 else scalars[0] * factors[name]
        new_weights[name], state = compiled_step(traits, config)(
            weight,
            gradients[name],
            state_of(slots, name, traits, shape, config),
            [rate, *scalars[1:]],
            [joint[name]] if name in joint else [],
        )
        new_slots |= {f"{slot}/{name}": value for slot, value in state.items()}
    if only_if is None:
        return new_weights, new_slots
    return _where(only_if, new_weights, weights), _where(only_if, new_slots, slots)


def _where(
    condition: tf.Tensor, new: Mapping[str, tf.Tensor], old: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    return {name: tf.where(condition, value, old[name]) for name, value in new.items()}


def layer_factors(names: Collection[str], decay: float) -> dict[str, float]:
    """Return {name of the weight: factor of its learning rate} by --layer_lr_decay, which ULMFiT
    introduced (Howard and Ruder 2018, arXiv 1801.06146, section 3.2): decay ** d for a weight d
    layers below the heads.
    """
    layers = layers_of(names)
    num_layers = 1 + max(layers.values(), default=-1)
    depths = {name: num_layers + 1 for name in names if re.match(EMBEDDINGS, name)}
    depths |= {name: num_layers - layer for name, layer in layers.items()}
    return {name: decay ** depths.get(name, 0) for name in names}


def state_of(
    slots: Mapping[str, tf.Tensor],
    name: str,
    traits: Traits,
    shape: tuple[int, ...],
    config: OptimizerConfig,
) -> dict[str, tf.Tensor]:
    """Return the state of the weight `name`, {slot: tensor}, out of `slots`, that of all weights,
    {"SLOT/WEIGHT": tensor}.
    """
    return {slot: slots[f"{slot}/{name}"] for slot in config.module.slots(traits, shape, config)}


@functools.cache
def compiled_step(
    traits: Traits, config: OptimizerConfig
) -> Callable[..., tuple[tf.Tensor, dict[str, tf.Tensor]]]:
    """Return the optimizer's step for weights with these traits, compiled once for each shape: a
    function (weight, gradient of any float type, state, [learning_rate, gradient_factor,
    *corrections], [joint result] or []) -> (weight, state).
    """
    return fused(functools.partial(_step, traits, config), reduce_retracing=False)


def _step(
    traits: Traits,
    config: OptimizerConfig,
    weight: tf.Tensor,
    gradient: tf.Tensor,
    state: Mapping[str, tf.Tensor],
    scalars: Sequence[tf.Tensor],
    joint_result: Sequence[tf.Tensor],
) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    learning_rate, gradient_factor, *corrections = scalars
    gradient = tf.cast(gradient, tf.float32) * gradient_factor
    return config.module.step(
        traits, weight, gradient, state, learning_rate, corrections, config, *joint_result
    )


class JointPart(NamedTuple):
    """A weight's part in the optimizer's joint work (interface.py): the weight's traits, and the
    shape, (num_blocks, ...), of its input to that work.
    """

    traits: Traits
    shape: tuple[int, ...]


def joint_parts(
    weights: Mapping[str, Shaped], config: OptimizerConfig, column_blocks: Mapping[str, int]
) -> dict[str, JointPart]:
    """Return {name: JointPart} of the weights that take part in the optimizer's joint work
    (interface.py).

    Args:
      weights: {name: object with a shape} of the trained weights.
      column_blocks: {name: number of matrices that the weight holds side by side} of the weights
        that hold several (model.weights.column_blocks).
    """
    if not hasattr(config.module, "joint_work"):
        return {}
    parts = {}
    for name, weight in weights.items():
        shape = tuple(weight.shape)
        traits = config.module.traits(name, shape, config)
        joint_shape = config.module.joint_shape(traits, shape, column_blocks.get(name, 1))
        if joint_shape is not None:
            parts[name] = JointPart(traits, joint_shape)
    return parts


def joint_inputs(
    parts: Mapping[str, JointPart],
    gradients: Mapping[str, tf.Tensor],
    slots: Mapping[str, tf.Tensor],
    config: OptimizerConfig,
    gradient_factor: tf.Tensor | float,
    dtype: tf.DType,
) -> dict[tuple[int, ...], tf.Tensor]:
    """Return the inputs of the optimizer's `joint_work` (interface.py): {shape: (K, *shape)
    tensor}, each with the inputs of all weights of that shape, in the order of `parts`.

    Args:
      gradients, slots, config, gradient_factor: as for `update`. dtype: compute type.
    """
    inputs: dict[tuple[int, ...], list[tf.Tensor]] = {}
    factor = tf.cast(gradient_factor, tf.float32)
    for name, part in parts.items():
        state = state_of(slots, name, part.traits, tuple(gradients[name].shape), config)
        compiled = compiled_joint_input(part.traits, part.shape[0], config, tf.as_dtype(dtype))
        value = compiled(gradients[name], state, factor)
        inputs.setdefault(part.shape[1:], []).append(value)
    return {shape: tf.concat(values, 0) for shape, values in inputs.items()}


def divide_joint(
    results: Mapping[tuple[int, ...], tf.Tensor], parts: Mapping[str, JointPart]
) -> dict[str, tf.Tensor]:
    """Return {name of the weight: its part, (num_blocks, ...)} of the results of `joint_work`,
    {shape: (K, *shape) tensor}, which hold the weights in the order of `parts`.
    """
    starts: collections.Counter[tuple[int, ...]] = collections.Counter()
    divided = {}
    for name, part in parts.items():
        key = part.shape[1:]
        start = starts[key]
        divided[name] = tf.reshape(results[key][start : start + part.shape[0]], part.shape)
        starts[key] += part.shape[0]
    return divided


@functools.cache
def compiled_joint_input(
    traits: Traits, num_blocks: int, config: OptimizerConfig, dtype: tf.DType
) -> Callable[..., tf.Tensor]:
    """Return the optimizer's `joint_input` (interface.py), compiled once for each shape: a function
    (gradient of any float type, state, gradient_factor) -> tensor.
    """

    def joint_input(
        gradient: tf.Tensor, state: Mapping[str, tf.Tensor], gradient_factor: tf.Tensor
    ) -> tf.Tensor:
        gradient = tf.cast(gradient, tf.float32) * gradient_factor
        return config.module.joint_input(traits, gradient, state, num_blocks, config, dtype)

    return fused(joint_input, reduce_retracing=False)


def clip_factor(
    gradients: Mapping[str, tf.Tensor], clip_norm: float, scale: tf.Tensor | float = 1.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (factor by which the gradients must be multiplied to be clipped and divided by
    `scale`, their global norm before clipping, divided by `scale`); both are float32 scalars.

    Args:
      gradients: {name: tensor}, `scale` times the true gradients. clip_norm: the largest global
        norm that is not clipped; 0 = never clip.

    If the norm is not finite, the clipped gradients are not finite either.
    """
    wide = [tf.cast(gradient, tf.float32) for gradient in gradients.values()]
    if has_gpu():  # sums of rows are joined: a kernel for each matrix, not two for each gradient
        sums = [tf.reduce_sum(tf.square(x), -1) if x.shape.rank > 1 else x**2 for x in wide]
        joined = hide_from_xla(tf.concat([tf.reshape(x, [-1]) for x in sums], 0))
        norm = tf.sqrt(tf.reduce_sum(joined)) / scale
    else:
        norm = tf.linalg.global_norm(wide) / scale
    return (clip_norm / tf.maximum(norm, clip_norm) if clip_norm else 1.0) / scale, norm
