"""The time of a data-parallel step by an alpha-beta model: a message of b bytes takes alpha seconds
and b / bandwidth.

    step = accumulation x micro-batch + all-reduce that is not hidden + update

A ring of n sums b bytes in 2 (n - 1) messages of b / n each (Patarasuk & Yuan 2009): a
reduce-scatter and an all-gather. Machines of several GPUs either form one ring, or sum in three
stages, one after the other: reduce-scatter inside each machine, a ring between machines for every
part, all-gather inside. The quicker of the two counts, as NCCL chooses.
"""

import dataclasses
import math

BACKWARD_SHARE = 2 / 3  # of a micro-batch's time: two products for each one of the forward pass
# What NCCL reaches of a link's rate in one direction: "protocol overhead (~20%)", 370 of NVLink 4's
# 450 GB/s (github.com/NVIDIA/nccl-tests issue 212); 600 of 800 Gbit/s between two machines with
# eight adapters (github.com/NVIDIA/nccl issue 495).
REACHED = 0.8
# Seconds of a message, NCCL's own figures for rings (tuning.cc, Simple protocol).
NVLINK_SECONDS, PCIE_SECONDS, NETWORK_SECONDS = 3.4e-6, 5.7e-6, 14e-6


@dataclasses.dataclass(frozen=True)
class Link:
    """bytes_per_second: in one direction, as all-reduces reach it. seconds: of a message."""

    bytes_per_second: float
    seconds: float


# Between the GPUs of a machine: data sheets' rates in one direction. PCIe 4.0 as measured between
# GPUs of different roots (github.com/NVIDIA/nccl-tests issue 178: 20 GB/s), 5.0 twice that.
INSIDE = {
    "nvlink4": Link(REACHED * 450e9, NVLINK_SECONDS),
    "nvlink3": Link(REACHED * 300e9, NVLINK_SECONDS),
    "nvlink2": Link(REACHED * 150e9, NVLINK_SECONDS),
    "pcie5": Link(40e9, PCIE_SECONDS),
    "pcie4": Link(20e9, PCIE_SECONDS),
}


def network(gbits):
    """Return the Link of a machine to the others, for the sum of its adapters' rates in Gbit/s."""
    return Link(REACHED * gbits * 1e9 / 8, NETWORK_SECONDS)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """num_machines of num_gpus each. inside: Link of a GPU. between: Link of a machine."""

    num_machines: int
    num_gpus: int
    inside: Link
    between: Link

    @property
    def size(self):
        return self.num_machines * self.num_gpus


def ring(num_bytes, size, link, num_passes=2):
    """Return the seconds of a ring of `size`: an all-reduce, or half of it with num_passes=1."""
    part = num_bytes / max(1, size) / link.bytes_per_second
    return num_passes * (size - 1) * (link.seconds + part)


def flat_ring(num_bytes, cluster):
    """Return the seconds of an all-reduce in one ring through all GPUs, as slow as its slowest
    link.
    """
    links = [cluster.inside] if cluster.num_gpus > 1 else []
    links += [cluster.between] if cluster.num_machines > 1 else []
    if not links:
        return 0.0
    slowest = Link(
        min(link.bytes_per_second for link in links), max(link.seconds for link in links)
    )
    return ring(num_bytes, cluster.size, slowest)


def hierarchical(num_bytes, cluster):
    """Return the seconds of an all-reduce in three stages. A machine's GPUs share its link to the
    others, each with its part of the bytes.
    """
    inside = ring(num_bytes, cluster.num_gpus, cluster.inside)
    return inside + ring(num_bytes, cluster.num_machines, cluster.between)


def all_reduce(num_bytes, cluster):
    """Return the seconds of the quicker of the two ways."""
    return min(flat_ring(num_bytes, cluster), hierarchical(num_bytes, cluster))


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of a GPU in a step, besides the all-reduce.

    micro_batch_seconds: forward and backward pass of a micro-batch. update_seconds: of the
    optimizer. gradient_bytes: as they are sent. bucket_bytes: that an overlapping all-reduce sends
    at once. rows: of a micro-batch.
    """

    micro_batch_seconds: float
    update_seconds: float
    gradient_bytes: float
    rows: int = 1
    bucket_bytes: float = 25e6


def exposed_seconds(work, cluster, overlap=False):
    """Return the seconds of the all-reduce that a step waits for. With overlap it runs beside the
    backward pass of the last micro-batch, but for the last bucket, whose gradients come at its end.
    """
    whole = all_reduce(work.gradient_bytes, cluster)
    if not overlap:
        return whole
    last = all_reduce(min(work.bucket_bytes, work.gradient_bytes), cluster)
    hidden = BACKWARD_SHARE * work.micro_batch_seconds
    return min(whole, max(last, whole - hidden))


def step_seconds(work, cluster, accumulation=1, overlap=False):
    compute = accumulation * work.micro_batch_seconds + work.update_seconds
    return compute + exposed_seconds(work, cluster, overlap)


def efficiency(work, cluster, accumulation=1, overlap=False):
    """Return the speed for each GPU, relative to one GPU with the same micro-batch and
    accumulation.
    """
    alone = accumulation * work.micro_batch_seconds + work.update_seconds
    return alone / step_seconds(work, cluster, accumulation, overlap)


def least_accumulation(work, cluster, goal, overlap=False):
    """Return the smallest accumulation with which the efficiency is at least `goal`, below 1."""
    exposed = exposed_seconds(work, cluster, overlap)
    # exposed <= alone x (1 / goal - 1)
    alone = exposed / (1 / goal - 1)
    count = math.ceil((alone - work.update_seconds) / work.micro_batch_seconds - 1e-9)
    return max(1, count)


def shared_seconds(whole_seconds, num_bytes, cluster):
    """Return the seconds of an optimizer's joint work, divided over the GPUs of a machine or
    cluster and gathered.
    """
    gathered = min(
        ring(num_bytes, cluster.num_gpus, cluster.inside, num_passes=1)
        + ring(num_bytes, cluster.num_machines, cluster.between, num_passes=1),
        flat_ring(num_bytes, cluster) / 2,
    )
    return whole_seconds / cluster.size + gathered


def fitted(times):
    """Return (seconds at 0 bytes, bytes/s) of the line through {bytes: seconds} whose relative
    errors are least.
    """
    sizes = list(times)
    weights = [1 / times[size] ** 2 for size in sizes]
    total = sum(weights)
    mean_x = sum(w * x for w, x in zip(weights, sizes, strict=True)) / total
    mean_y = sum(w * times[x] for w, x in zip(weights, sizes, strict=True)) / total
    slope = sum(
        w * (x - mean_x) * (times[x] - mean_y) for w, x in zip(weights, sizes, strict=True)
    ) / sum(w * (x - mean_x) ** 2 for w, x in zip(weights, sizes, strict=True))
    return max(0.0, mean_y - slope * mean_x), 1 / slope
