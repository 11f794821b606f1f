"""The parts of the network that a weight's name stands for: its layer, or the embeddings.

Names are ours, such as "layer_0/attention/qkv/kernel", or Model Garden's, which begin with
"encoder/". A layer of theirs without an index is layer 0, which all layers may share (albert).
"""

import re

EMBEDDINGS = r"^(embeddings|encoder/\w*embedding\w*)/"
LAYER = re.compile(
    r"^(?:encoder/(?:transformer[/_])?)?layer_(\d+)/"
    r"|^encoder/(?:reuse_transformer|transformer_scaffold)_(\d+)/|^encoder/\w*transformer"
)


def layer_of(name: str) -> int | None:
    """Return the index of the layer that a weight belongs to, None for weights outside of them."""
    found = LAYER.match(name)
    return found and int(found[1] or found[2] or 0)


def layers_of(names) -> dict[str, int]:
    """Return {name: index of its layer} of those weights that belong to one."""
    layers = {name: layer_of(name) for name in names}
    return {name: layer for name, layer in layers.items() if layer is not None}
