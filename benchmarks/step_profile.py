#!/usr/bin/env python3
"""Where the time of a training step on the CPU goes: oneDNN's products and its reorders of their
operands, the compiled passes, and the other ops.

    python benchmarks/step_profile.py [--models=small --lengths=128,512 --precisions=bfloat16]

On one core, so that nothing runs beside anything else and the parts add up to the step. The time of
an op is its own, without what it calls, in the trace of TensorFlow's profiler; products and
reorders are what oneDNN says of itself, and lie within the ops of products. MFU: the step's model
FLOPs to the rate of a large product, all on that core. The measuring itself costs some per cent of
the step.
"""

import os

from helpers.command import benchmark_parser, names_among
from helpers.process import Peer
from helpers.report import origin, print_origin, print_table
from helpers.shapes import SHAPES, flops_per_token, shape_of

NUM_STEPS = 3
LISTED = 0.005  # share of a step from which on an op has a row of its own


def profile(model, length, rows, precision):
    """Ours.cpu_profile's dict, with "mfu"."""
    settings = dict(shape=shape_of(model), length=length, precision=precision, xla="off")
    with Peer("ours", settings, more=dict(ONEDNN_VERBOSE="profile_exec")) as peer:
        peer.ask("prepare", rows=rows)
        found = peer.ask("cpu_profile", num_steps=NUM_STEPS)
        rate = peer.ask("matrix_rate", precision=precision)
    flops = flops_per_token(model, length) * rows * length
    return found | dict(mfu=flops / found["seconds"] / rate)


def rows_of(found):
    """[(what, seconds of a step)]: the parts that add up to it, and what some consist of."""
    ops, passes, primitives = (
        largest(found[name], found) for name in ("ops", "passes", "primitives")
    )
    compiled = sum(found["passes"].values())
    rest = found["seconds"] - compiled - sum(found["ops"].values())
    return [
        *(("op " + name, seconds) for name, seconds in ops),
        ("compiled passes", compiled),
        ("between ops", rest),
        *((f"of compiled passes: {name}", seconds) for name, seconds in passes),
        *((f"of ops: oneDNN's {name}", seconds) for name, seconds in primitives),
    ]


def largest(parts, found):
    """[(name, seconds)], the longest first and the small ones as one."""
    shown = [pair for pair in parts.items() if pair[1] >= LISTED * found["seconds"]]
    shown.sort(key=lambda pair: -pair[1])
    others = sum(parts.values()) - sum(seconds for _, seconds in shown)
    return [*shown, ("others", others)] if len(shown) < len(parts) else shown


def make_parser():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--models", type=names_among(SHAPES), default=["small"], help="shapes")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step: rows x S")
    parser.add_argument(
        "--precisions", type=names_among(("float32", "bfloat16")), default=["bfloat16"]
    )
    return parser


def main():
    options = make_parser().parse_args()
    print_origin(origin())
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for model in options.models:
        for length in map(int, options.lengths.split(",")):
            for precision in options.precisions:
                rows = max(1, options.tokens // length)
                found = profile(model, length, rows, precision)
                title = f"{model}, S {length}, {rows} rows, {precision}"
                said = f"{found['seconds']:.2f} s a step, MFU {100 * found['mfu']:.0f} %"
                print(f"\n{title}: {said}\n")
                cells = [
                    [name, f"{1e3 * seconds:,.0f}", f"{100 * seconds / found['seconds']:.1f} %"]
                    for name, seconds in rows_of(found)
                ]
                print_table(["part", "ms", "share"], cells)


if __name__ == "__main__":
    main()
