#!/usr/bin/env python3
"""Predicts the time of a step on 1 to 8 GPUs and on 1 to 64 machines, and when to accumulate.

    python benchmarks/scaling.py [--part=predict,accumulate,muon,published,here]
        [--model=base,large] [--length=128] [--inside=nvlink4] [--gbits=400] [--plots=docs/pictures]
    python benchmarks/scaling.py --part=predict --model=base --rows=256 --step_seconds=0.042
    python benchmarks/scaling.py --part=here --json=scaling.json

An alpha-beta model (helpers/scaling_model.py) of a step: accumulation x micro-batch, all-reduce,
update. It assumes:

- The compute of a GPU does not depend on the others: no stragglers, no waiting for data.
- A micro-batch takes what benchmarks/ahead.py counted for an H200 (docs/data/ahead.json): products
  at 75 % of the data sheet's rate, all else at 85 % of the memory's; or --step_seconds, measured.
- Links reach 80 % of their rate, and messages take NCCL's own figures (helpers/scaling_model.py).
- Gradients are sent once a step, all at its end, as the engine does; "overlapped" is what buckets
  beside the last backward pass would give, which it does not do.

`published` compares the model with NVIDIA's figures, `here` with the step of this machine: virtual
replicas, and workers on loopback; the all-reduce is fitted on smaller gradients. --plots draws the
efficiency.
"""

import argparse
import math
import sys

from helpers import ROOT, scaling_published
from helpers.command import benchmark_parser, load_json, names_among
from helpers.process import Peer, Workers
from helpers.report import origin, print_origin, print_table, save_plot, write_results
from helpers.scaling_model import (
    INSIDE,
    Cluster,
    Work,
    efficiency,
    fitted,
    flat_ring,
    hierarchical,
    least_accumulation,
    network,
    shared_seconds,
    step_seconds,
)
from helpers.shapes import SHAPES, shape_of

from bert_gpu.base.environment import LazyModule

throughput = LazyModule("bert_gpu.monitor.throughput")

GPU = "NVIDIA H200"
PRODUCTS_REACHED, OTHERS_REACHED = 0.75, 0.85  # of the data sheet's rates
WIRES = dict(float32=4, bfloat16=2)  # bytes
SIZES = [(1, 1), (1, 2), (1, 4), *((machines, 8) for machines in (1, 2, 4, 8, 16, 32, 64))]
WANTED = 0.95  # of perfect scaling, for `accumulate`
NETWORKS = (25, 100, 400, 3200)  # Gbit/s of a machine
WAYS = {  # {column of `predict`: type of the gradients sent, accumulation, overlap}
    "float32": ("float32", 1, False),
    "overlapped": ("float32", 1, True),
    "bfloat16": ("bfloat16", 1, False),
    "both": ("bfloat16", 1, True),
    "accumulation 4": ("float32", 4, False),
    "16": ("float32", 16, False),
}
STYLES = {"float32": "-", "bfloat16": "--", "overlapped": ":", "accumulation 4": "-."}
ACCUMULATIONS = (1, 2, 4)  # of `here`
SHARES = (0.125, 0.25, 0.5)  # shares of the gradients that the all-reduce here is fitted on


def specs_of(model):
    """Return the specifications of the weights of a named BERT, with the default vocabulary."""
    from bert_gpu.data.config import DataConfig
    from bert_gpu.model.config import ModelConfig
    from bert_gpu.model.encoder import BertEncoder
    from bert_gpu.pretrain.objectives.joint import open_objective

    config = ModelConfig(vocab_size=DataConfig().vocab_size, **shape_of(model))
    return open_objective(("mlm", "nsp"), BertEncoder(config)).weights()


def num_parameters(model):
    return sum(math.prod(spec.shape) for spec in specs_of(model).values())


def work_of(model, options, wire="float32"):
    """Return the Work of a named BERT: as measured (--step_seconds), or as ahead.py counted it."""
    num_bytes = num_parameters(model) * WIRES[wire]
    if options.step_seconds is not None:
        compute = options.step_seconds - options.update_seconds
        return Work(compute, options.update_seconds, num_bytes, options.rows)
    counts = load_json(options.ahead)["kernels"].get(f"{model} {options.length}: plain")
    if counts is None:
        make_parser().error(
            f"--model={model} --length={options.length}: is not in {options.ahead}; give "
            "--step_seconds and --rows"
        )

    def seconds(part):
        return part["product_seconds"] / PRODUCTS_REACHED + part["other_seconds"] / OTHERS_REACHED

    return Work(seconds(counts["gradients"]), seconds(counts["update"]), num_bytes, counts["rows"])


def cluster_of(options, num_machines, num_gpus, gbits=None):
    between = network(options.gbits if gbits is None else gbits)
    return Cluster(num_machines, num_gpus, INSIDE[options.inside], between)


def predict(options):
    for model in options.model:
        works = {wire: work_of(model, options, wire) for wire in WIRES}
        plain = works["float32"]
        print(
            f"\n{model}, S {options.length}, micro-batches of {plain.rows}: "
            f"{plain.micro_batch_seconds * 1e3:.1f} ms, update {plain.update_seconds * 1e3:.1f} ms,"
            f" {plain.gradient_bytes / 1e6:,.0f} MB of float32 gradients; {options.inside} inside "
            f"a machine, {options.gbits:g} Gbit/s between. Efficiency in %.\n"
        )
        rows = []
        for size in SIZES:
            cluster = cluster_of(options, *size)
            seconds = [way(plain.gradient_bytes, cluster) for way in (flat_ring, hierarchical)]
            cells = [f"{1e3 * value:.2f}" for value in (*seconds, step_seconds(plain, cluster))]
            for wire, accumulation, overlap in WAYS.values():
                share = efficiency(works[wire], cluster, accumulation, overlap)
                cells.append(f"{100 * share:.1f}")
            rows.append([f"{size[0]} x {size[1]}", *cells])
        print_table(["machines x GPUs", "ring ms", "hierarchical ms", "step ms", *WAYS], rows)
    if options.plots:
        draw(options)


def accumulate(options):
    print(
        f"\nSequences of {options.length} tokens for each GPU and step, micro-batch x "
        f"accumulation, from which on the efficiency is at least {WANTED:.0%} (micro-batches as "
        "above).\n"
    )
    places = {}
    for inside in ("nvlink4", "pcie4"):
        for count in (2, 8):
            cluster = Cluster(1, count, INSIDE[inside], network(1))
            places[f"one machine, {count} GPUs, {inside}"] = cluster
    for gbits in NETWORKS:
        for machines in (2, 64):
            cluster = cluster_of(options, machines, 8, gbits)
            places[f"{machines} machines x 8, {gbits:g} Gbit/s"] = cluster
    works = {
        f"{model}, {wire}": work_of(model, options, wire)
        for model in options.model
        for wire in WIRES
    }
    rows = []
    for name, cluster in places.items():
        cells = []
        for work in works.values():
            count = least_accumulation(work, cluster, WANTED)
            cells.append(f"{work.rows * count:,} ({count} x)")
        rows.append([name, *cells])
    print_table(["", *works], rows)


def muon(options):
    """Print the time of the whole update on each GPU, and of a share of it with a gather."""
    import tensorflow as tf

    from bert_gpu.model.weights import column_blocks
    from bert_gpu.optim.config import OptimizerConfig
    from bert_gpu.optim.optimizers import joint_parts
    from bert_gpu.train.shared_update import PRODUCT_EFFICIENCY, joint_cost

    print(f"\nMuon's products on {GPU}s, ms a step: all of them on each GPU, or shared.\n")
    config = OptimizerConfig(optimizer="muon")
    peak = throughput.peak_flops(GPU, "bfloat16")
    clusters = {
        "8, nvlink4": Cluster(1, 8, INSIDE["nvlink4"], network(1)),
        "8, pcie4": Cluster(1, 8, INSIDE["pcie4"], network(1)),
        f"8 x 8, {options.gbits:g} Gbit/s": cluster_of(options, 8, 8),
    }
    rows = []
    for model in options.model:
        specs = specs_of(model)
        parts = joint_parts(specs, config, column_blocks(specs))
        flops, num_bytes = joint_cost(parts, config, tf.bfloat16)
        whole = flops / (PRODUCT_EFFICIENCY * peak)
        shared = [shared_seconds(whole, num_bytes, cluster) for cluster in clusters.values()]
        rows.append([model, *(f"{1e3 * seconds:.2f}" for seconds in (whole, *shared))])
    print_table(["model", "whole", *clusters], rows)


def published(options):
    print(
        "\nBERT-large, sequences/s, NVIDIA's TensorFlow 2 (helpers/scaling_published.py). Each row "
        "is predicted from the first one of its group; perfect: n times that.\n"
    )
    rows, errors = [], []
    for (name, length, precision), (base, *others) in scaling_published.read_figures().items():
        for row in others:
            predicted = scaling_published.predicted(name, precision, base, row)
            perfect = base.throughput * row.size / base.size
            errors.append([100 * (value / row.throughput - 1) for value in (predicted, perfect)])
            cells = [f"{name}, S {length}, {precision}", f"{row.num_machines} x {row.num_gpus}"]
            cells += [row.accumulation, f"{row.throughput:,.0f}", f"{predicted:,.0f}"]
            rows.append([*cells, *(f"{error:+.1f}" for error in errors[-1])])
    header = ["system", "machines x GPUs", "accumulation", "published", "predicted"]
    print_table([*header, "error %", "perfect, error %"], rows)
    model, perfect = (sum(map(abs, each)) / len(errors) for each in zip(*errors, strict=True))
    print(f"\nmean error: {model:.1f} %, of perfect scaling {perfect:.1f} %")


def here(options):
    """Measure the step with and without its all-reduce, in turns, and predict the first from the
    second and from all-reduces of smaller gradients.
    """
    settings = dict(shape=shape_of(options.here_model), length=options.here_length)
    rows, results = [], {}

    def measure(name, opened):
        with opened as peer:
            peer.ask("prepare_steps", rows=options.here_rows, most=max(ACCUMULATIONS))
            turns = [
                peer.ask("measure", accumulations=ACCUMULATIONS, shares=SHARES)
                for _ in range(options.turns)
            ]
        # others work on this machine, too; the least is what it takes when they do not
        least = {name: min(turn[name] for turn in turns) for name in turns[0]}
        latency, rate = fitted({share: least[f"all-reduce {share}"] for share in SHARES})
        whole = latency + 1 / rate
        for accumulation in ACCUMULATIONS:
            alone, step = least[f"alone {accumulation}"], least[f"step {accumulation}"]
            cells = [f"{1e3 * seconds:.1f}" for seconds in (alone, whole, alone + whole, step)]
            rows.append([name, accumulation, *cells, f"{100 * ((alone + whole) / step - 1):+.1f}"])
        results[name] = least

    for count in options.replicas:
        peer = Peer("scaling_ours", settings | dict(virtual_replicas=count))
        measure(f"{count} virtual replicas", peer)
    for count in options.workers:
        measure(f"{count} workers", Workers("scaling_ours", settings, count))
    print(
        f"\nThis machine: {options.here_model}, S {options.here_length}, micro-batches of "
        f"{options.here_rows}, float32; workers are processes on loopback; ms, the least of "
        f"{options.turns} turns.\n"
    )
    header = ["", "accumulation", "without all-reduce", "all-reduce, fitted", "predicted"]
    print_table([*header, "measured", "error %"], rows)
    write_results(options.json, dict(here=results, **origin()))


def draw(options):
    """Write a PNG of the efficiency by the number of GPUs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4))
    all_axes = figure.subplots(1, len(options.model), sharey=True, squeeze=False)[0]
    sizes = [machines * gpus for machines, gpus in SIZES]
    for model, axes in zip(options.model, all_axes, strict=True):
        works = {wire: work_of(model, options, wire) for wire in WIRES}
        for color, gbits in enumerate(NETWORKS):
            clusters = [cluster_of(options, *size, gbits) for size in SIZES]
            for name, style in STYLES.items():
                wire, *way = WAYS[name]
                shares = [efficiency(works[wire], cluster, *way) for cluster in clusters]
                label = f"{gbits} Gbit/s" if name == "float32" else None if color else name
                axes.plot(sizes, shares, style, color=f"C{color}", label=label, linewidth=1.3)
        axes.set(title=f"{model}, S {options.length}", xlabel="GPUs", xscale="log", ylim=(0, 1.02))
        axes.set_xticks(sizes, sizes)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.supylabel("efficiency")
    save_plot(figure, options.plots, "scaling")


PARTS = dict(predict=predict, accumulate=accumulate, muon=muon, published=published, here=here)


def counts(text):
    """Read comma-separated numbers of at least two, for argparse; "" = none."""
    values = [int(part) for part in text.split(",") if part]
    if any(count < 2 for count in values):
        raise argparse.ArgumentTypeError(f"{text}: must be 2 or more, which have something to sum")
    return values


def make_parser():
    parser = benchmark_parser(__doc__, "json")
    parser.add_argument("--part", type=names_among(PARTS), default=list(PARTS))
    parser.add_argument("--model", type=names_among(SHAPES), default=["base", "large"])
    parser.add_argument("--length", type=int, default=128, help="sequence length S")
    parser.add_argument("--inside", choices=INSIDE, default="nvlink4", help="links of a machine")
    parser.add_argument("--gbits", type=float, default=400, help="of a machine's network, Gbit/s")
    parser.add_argument("--ahead", default=str(ROOT / "docs" / "data" / "ahead.json"))
    parser.add_argument(
        "--step_seconds", type=float, help="a measured step of one GPU without accumulation"
    )
    parser.add_argument(
        "--update_seconds", type=float, default=0.0, help="of that, the optimizer's; default: 0"
    )
    parser.add_argument("--rows", type=int, default=1, help="of that step's micro-batch")
    parser.add_argument("--plots", help="folder for a PNG (needs matplotlib)")
    parser.add_argument("--here_model", type=str, default="mini", help="of `here`")
    parser.add_argument("--here_length", type=int, default=16, help="of `here`: S")
    parser.add_argument("--here_rows", type=int, default=1, help="of `here`: of a micro-batch")
    parser.add_argument("--replicas", type=counts, default=[2], help="of `here`: virtual")
    parser.add_argument("--workers", type=counts, default=[2], help="of `here`: processes")
    parser.add_argument("--turns", type=int, default=30, help="of `here`")
    return parser


def main():
    options = make_parser().parse_args()
    if options.step_seconds is not None and options.step_seconds <= options.update_seconds:
        make_parser().error("--step_seconds: must be more than --update_seconds")
    print_origin(origin())
    for name in options.part:
        PARTS[name](options)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
