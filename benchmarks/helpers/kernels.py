"""Shares of a GPU's time in a step: matrix products, other kernels, or idle, from the kernels in a
profile.

An attention kernel counts wholly as a product, with its softmax. Kernels of several streams may
overlap, so times are lengths of unions.
"""

import pathlib
import re

PRODUCTS = re.compile(
    r"gemm|cutlass|xmma|nvjet|cublas|matmul|fmha|sdpa|flash|fused_dot|_dot_", re.IGNORECASE
)
# PyTorch's compiler names a fused kernel after all fused ops, products included
GENERATED = re.compile(r"^triton_(poi|per|red)_")


def is_product(kernel):
    return bool(PRODUCTS.search(kernel)) and not GENERATED.match(kernel)


def union(intervals):
    """Return the length of the union of (begin, end)."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def shares(kernels, seconds):
    """Return {"outside_products", "idle"} as shares of `seconds`, and the longest of the other
    kernels; None without any kernel.

    kernels: [(name, begin, end)] in seconds.
    """
    if not kernels:
        return None
    products = union([(begin, end) for name, begin, end in kernels if is_product(name)])
    busy = union([(begin, end) for _, begin, end in kernels])
    others = {}
    for name, begin, end in kernels:
        if not is_product(name):
            others[name[:60]] = others.get(name[:60], 0.0) + (end - begin) / seconds
    longest = sorted(others.items(), key=lambda item: -item[1])[:8]
    return dict(outside_products=1 - products / seconds, idle=1 - busy / seconds, longest=longest)


def kernels_of_trace(folder):
    """Return [(name, begin, end)] in seconds of the GPU's streams in a trace that tf.profiler wrote
    into a folder.
    """
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    paths = pathlib.Path(folder).rglob("*.xplane.pb")
    spaces = [xplane_pb2.XSpace.FromString(path.read_bytes()) for path in paths]
    planes = [plane for space in spaces for plane in space.planes]
    kernels = []
    for plane in (plane for plane in planes if plane.name.startswith("/device:GPU")):
        # the other lines repeat it, grouped by op and by step
        for line in (line for line in plane.lines if line.name.startswith("Stream")):
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                begin = line.timestamp_ns * 1e-9 + event.offset_ps * 1e-12
                kernels.append((name, begin, begin + event.duration_ps * 1e-12))
    return kernels
