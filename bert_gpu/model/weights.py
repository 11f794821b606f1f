"""Specifications of a model's weights, by name, and their first values.

A model's weights are one flat dict {name: tensor}, with slashes in the names. Each block specifies
the weights that it reads, beside its code, as {name: WeightSpec}; `initialize` draws the first
values.
"""

import hashlib
import typing
from collections.abc import Mapping

import numpy as np

from bert_gpu.model.config import ModelConfig

# {head: its dense layer and normalisation before the scores}; the head of a task has them, in place
# of the pooler, if config.head_transform
TRANSFORMS = {
    "mlm": ("mlm/transform", "mlm/norm"),
    "classifier": ("pooler", "pooler/norm"),
    "token_classifier": ("token_classifier/transform", "token_classifier/norm"),
    "span": ("span/transform", "span/norm"),
}


class WeightSpec(typing.NamedTuple):
    """Shape and initializer of a weight: "normal" (truncated, with standard deviation `value`),
    "constant" (`value`), "zeros" or "ones".

    num_blocks: how many matrices of equal size the weight holds side by side, each with its own
    columns, such as 3 for query, key and value.
    """

    shape: tuple[int, ...]
    initializer: str
    value: float = 0.0
    num_blocks: int = 1


def dense_weights(
    config: ModelConfig,
    name: str,
    num_inputs: int,
    num_outputs: int,
    use_bias: bool = True,
    num_blocks: int = 1,
) -> dict[str, WeightSpec]:
    """Return the specifications of a dense layer: kernel (in, out) and bias (out,)."""
    kernel = WeightSpec((num_inputs, num_outputs), "normal", config.initializer_range, num_blocks)
    bias = {f"{name}/bias": WeightSpec((num_outputs,), "zeros")} if use_bias else {}
    return {f"{name}/kernel": kernel} | bias


def column_blocks(specs: Mapping[str, WeightSpec]) -> dict[str, int]:
    """Return {name: number of matrices side by side} of the weights that hold several."""
    return {name: spec.num_blocks for name, spec in specs.items() if spec.num_blocks > 1}


def dense_products(specs: Mapping[str, WeightSpec]) -> int:
    """Return the number of multiply-adds of all dense layers in `specs` for one input vector: the
    number of elements of their kernels.
    """
    return sum(int(np.prod(spec.shape)) for name, spec in specs.items() if name.endswith("/kernel"))


def norm_weights(config: ModelConfig, name: str, size: int) -> dict[str, WeightSpec]:
    """Return the specifications of a normalisation: scale and, unless it is RMSNorm or the config
    excludes it, bias, (size,) each.
    """
    scale = {f"{name}/scale": WeightSpec((size,), "ones")}
    if config.norm_type == "rms_norm" or not config.norm_bias:
        return scale
    return scale | {f"{name}/bias": WeightSpec((size,), "zeros")}


def initialize(specs: Mapping[str, WeightSpec], seed: int) -> dict[str, np.ndarray]:
    """Return the first values of weights, {name: float32 array}. The values of a weight depend only
    on the seed and the weight's name, so that adding a head changes no other weight.

    The normal distribution is truncated at two standard deviations, not rescaled, as in Google's
    BERT.
    """

    def draw(name: str, spec: WeightSpec) -> np.ndarray:
        if spec.initializer != "normal":
            return np.full(
                spec.shape,
                {"zeros": 0, "ones": 1, "constant": spec.value}[spec.initializer],
                np.float32,
            )
        key = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:16], "little")
        generator = np.random.Generator(np.random.Philox(key=key))
        values = generator.standard_normal(int(np.prod(spec.shape)), dtype=np.float32)
        while len(outside := np.flatnonzero(np.abs(values) > 2)):
            values[outside] = generator.standard_normal(len(outside), dtype=np.float32)
        return (values * np.float32(spec.value)).reshape(spec.shape)

    return {name: draw(name, spec) for name, spec in specs.items()}
