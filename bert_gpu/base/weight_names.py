"""Finds the part of the network to which a weight belongs, by its name: a layer, or the embeddings.

Names are ours, such as "layer_0/attention/qkv/kernel", or Model Garden's, which begin with
"encoder/". A layer of Model Garden's without an index is layer 0, which all layers may share
(ALBERT).
"""

import re
from collections.abc import Iterable

EMBEDDINGS = r"^(embeddings|encoder/\w*embedding\w*)/"
LAYER = re.compile(
    r"^(?:encoder/(?:transformer[/_])?)?layer_(\d+)/"
    r"|^encoder/(?:reuse_transformer|transformer_scaffold)_(\d+)/|^encoder/\w*transformer"
)


def layer_of(name: str) -> int | None:
    """Return the index of the layer to which a weight belongs; None for weights of no layer."""
    match = LAYER.match(name)
    return match and int(match[1] or match[2] or 0)


def layers_of(names: Iterable[str]) -> dict[str, int]:
    """Return {name of the weight: index of its layer}, without the weights of no layer."""
    layers = {name: layer_of(name) for name in names}
    return {name: layer for name, layer in layers.items() if layer is not None}
