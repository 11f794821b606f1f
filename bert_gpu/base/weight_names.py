"""Finds, by a weight's name, the part of the network that has the weight: a layer, or the
embeddings.

Names are bert-gpu's, such as "layer_0/attention/qkv/kernel", or TensorFlow Model Garden's, which
begin with "encoder/". In Model Garden's names a layer without an index counts as layer 0: it may be
the one layer that ALBERT repeats.
"""

import re
from collections.abc import Iterable

EMBEDDINGS = r"^(embeddings|encoder/\w*embedding\w*)/"
LAYER = re.compile(
    r"^(?:encoder/(?:transformer[/_])?)?layer_(\d+)/"
    r"|^encoder/(?:reuse_transformer|transformer_scaffold)_(\d+)/|^encoder/\w*transformer"
)


def layer_of(name: str) -> int | None:
    """Return the index of the layer to which a weight belongs; None for a weight outside the
    layers.
    """
    match = LAYER.match(name)
    return match and int(match[1] or match[2] or 0)


def layers_of(names: Iterable[str]) -> dict[str, int]:
    """Return {name of a weight: index of its layer}; weights outside the layers are left out."""
    layers = {name: layer_of(name) for name in names}
    return {name: layer for name, layer in layers.items() if layer is not None}
