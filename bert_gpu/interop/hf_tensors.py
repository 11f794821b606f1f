"""Normalises tensors read from a folder of transformers: canonical names, no duplicates."""

import re

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.interop.families import Family


def rename_tensors(
    family: Family, tensors: dict[str, np.ndarray], folder: str
) -> dict[str, np.ndarray]:
    """Return a folder's tensors, {name: tensor}, under the names that a family's classes with heads
    use. The decoder, which repeats the word embeddings, and tensors that must be 0 are left out;
    raise UserError where one of them has other values.
    """
    if family.parts is None:
        return tensors
    tensors = {canonical(name, family): tensor for name, tensor in tensors.items()}
    pop_decoder(folder, family, tensors)
    for name in family.zeros:
        if np.any(tensors.pop(name, 0)):
            raise UserError(f"{name} is not 0", "a model with it is not supported", where=folder)
    return tensors


def pop_decoder(folder: str, family: Family, tensors: dict[str, np.ndarray]) -> None:
    """Remove the decoder of masked words from `tensors`: its weight repeats the word embeddings,
    and its bias the output bias. The bias takes the place of the output bias where that is missing.
    Raise UserError where the weight differs from the word embeddings.
    """
    (words_name,) = family.names("embeddings/word")
    (bias_name,) = family.names("mlm/bias")
    decoder = tensors.pop(f"{family.decoder}.weight", None)
    bias = tensors.pop(f"{family.decoder}.bias", None)
    if bias is not None:
        tensors.setdefault(bias_name, bias)
    words = tensors.get(words_name)
    if decoder is not None and words is not None and not np.array_equal(decoder, words):
        raise UserError(
            f"{family.decoder}.weight differs from the word embeddings",
            "an untied decoder is not supported",
            where=folder,
        )


def canonical(name: str, family: Family) -> str:
    """Return the name of a tensor as a family's classes with heads use it: old files call the
    weight and bias of a norm gamma and beta, and names in a bare encoder lack the prefix.
    """
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return family.with_prefix(re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
