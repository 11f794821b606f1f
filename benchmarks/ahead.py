#!/usr/bin/env python3
"""Compiles the training step for an H200 without having one, and counts kernels, the bytes that
they move, FLOPs of products, and memory.

    python -m venv xla && xla/bin/pip install 'jax[cuda12]==0.7.0'
    python benchmarks/ahead.py --jax_python=xla/bin/python [--part=kernels,techniques,memory]
        [--json=docs/data/ahead.json]
    python benchmarks/ahead.py --list       # what would be compiled

Nothing runs on a GPU, and no time is measured. `kernels` counts what a step computes and moves,
which shows what a change of the model's code does to the compiled step; the times beside it assume
a GPU that reaches the throughput of its data sheet. `techniques` prints the memory of a step with
each way to save it, `memory` the largest micro-batch whose buffers fit into a limit. TensorFlow
lowers the programs, and JAX's XLA compiles them (helpers/ahead_compiler.py). Products are cuBLAS
calls, because without a GPU XLA cannot try others.
"""

import contextlib
import functools
import itertools
import pathlib
import subprocess
import sys
import tempfile

from helpers import ahead_hlo
from helpers.command import Failed, benchmark_parser, names_among, numbers
from helpers.process import Peer
from helpers.report import hardware, print_table, read_results, write_results
from helpers.shapes import flops_per_token, shape_of

from bert_gpu.base.environment import LazyModule

throughput = LazyModule("bert_gpu.monitor.throughput")

BANDWIDTH = 4.8e12  # bytes/s of an H200's memory, by NVIDIA's data sheet
TOKENS = {"base": 32768, "large": 16384, "deberta-v3-small": 32768}  # of a step
FLOAT32, EIGHT_BIT = dict(precision="float32"), dict(optimizer="adamw8bit")
CUDNN, PACKED = dict(attention="cudnn"), dict(packed=True)
RECOMPUTE, FOUR = dict(recompute_every=1), dict(micro_batches=4)
HALF_FROZEN = dict(freeze=["embeddings", "layers:HALF"])
NO_DROPOUT = dict(attention_dropout=0.0)
VARIANTS = {  # of `kernels`: settings of ahead_lowering.Lowering, dropout of attention
    "plain": {},
    "plain, attention dropout 0": NO_DROPOUT,
    "cuDNN, attention dropout 0": CUDNN | NO_DROPOUT,
    "plain, packed": PACKED,
    "cuDNN, packed": CUDNN | PACKED,
    "plain, recompute": RECOMPUTE,
    "plain, Muon": dict(optimizer="muon"),
}
TECHNIQUES = {  # of `techniques`
    "nothing (float32)": FLOAT32,
    "bfloat16": {},
    "bfloat16, accumulation 4": FOUR,
    "bfloat16, embeddings frozen": dict(freeze=["embeddings"]),
    "bfloat16, embeddings and half of the layers frozen": HALF_FROZEN,
    "bfloat16, recompute": RECOMPUTE,
    "bfloat16, recompute every 3rd": dict(recompute_every=3),
    "bfloat16, adamw8bit": EIGHT_BIT,
    "bfloat16, recompute, adamw8bit, accumulation 4": EIGHT_BIT | RECOMPUTE | FOUR,
}
LIMITED = {  # of `memory`
    "nothing (float32)": FLOAT32,
    "bfloat16": {},
    "bfloat16, recompute": RECOMPUTE,
    "bfloat16, adamw8bit": EIGHT_BIT,
    "bfloat16, recompute, adamw8bit": EIGHT_BIT | RECOMPUTE,
    "the same, accumulation": EIGHT_BIT | RECOMPUTE | FOUR,
}
TECHNIQUE_TOKENS = 4096  # of a step


def peak_flops():
    """Return the FLOP/s of an H200 in bfloat16, by NVIDIA's data sheet."""
    return throughput.peak_flops("NVIDIA H200", "bfloat16")


def summary(compiled):
    """Return counts of a compiled program: kernels, and by kind their FLOPs, bytes, and seconds at
    the throughput of the data sheet.
    """
    kernels = ahead_hlo.kernels(pathlib.Path(compiled["text"]).read_text())
    products = [kernel for kernel in kernels if kernel.kind != "other"]
    others = [kernel for kernel in kernels if kernel.kind == "other"]
    peak = peak_flops()
    product_seconds = (
        kernel.times * max(kernel.flops / peak, kernel.num_bytes / BANDWIDTH) for kernel in products
    )
    other_bytes = sum(kernel.num_bytes * kernel.times for kernel in others)
    return dict(
        kernels=sum(kernel.times for kernel in kernels),
        product_flops=sum(kernel.flops * kernel.times for kernel in products),
        product_seconds=sum(product_seconds),
        other_bytes=other_bytes,
        other_seconds=other_bytes / BANDWIDTH,
        temporaries=compiled["temporaries"],
        compile_seconds=compiled["seconds"],
    )


@contextlib.contextmanager
def programs(options, model, length, settings):
    """Yield (process that lowers, function that compiles one of its programs) of a case."""
    settings = dict(settings)
    shape = shape_of(model)
    if "attention_dropout" in settings:
        shape |= dict(attention_probs_dropout_prob=settings.pop("attention_dropout"))
    settings |= dict(shape=shape, length=length)
    with (
        tempfile.TemporaryDirectory() as folder,
        Peer("ahead_lowering", settings) as lowering,
        Peer(
            "ahead_compiler", dict(folder=folder, flags=options.flags), options.jax_python
        ) as compiler,
    ):

        def compile_program(name, **arguments):
            path = str(pathlib.Path(folder) / "program.pb")
            lowering.ask(name, path=path, **arguments)
            return compiler.ask("compile", path=path)

        yield lowering, compile_program


def count_kernels(options, model, length, settings):
    """Return summaries of the programs of one step, "gradients" and "update", and its number of
    rows.
    """
    rows = TOKENS[model] // length
    with programs(options, model, length, settings) as (_, compile_program):
        step = summary(compile_program("gradients", rows=rows))
        return dict(rows=rows, gradients=step, update=summary(compile_program("update")))


def buffers(options, model, length, settings):
    """Return the bytes that a step of TECHNIQUE_TOKENS holds."""
    rows = TECHNIQUE_TOKENS // length // settings.get("micro_batches", 1)
    with programs(options, model, length, settings) as (lowering, compile_program):
        compiled = compile_program("gradients", rows=rows)
        sizes = dict(gradients=compiled["results"], temporaries=compiled["temporaries"])
        return lowering.ask("sizes") | sizes


def most_rows(bytes_of, limit):
    """Return the largest number of rows, within 3 %, for which bytes_of(rows) is at most `limit`; 0
    when even one row is too many. bytes_of must rise with rows. It is almost linear, so the next
    try is where a line through the two nearest ones reaches the limit.
    """
    low, high, rows, tries = 0, None, 8, []  # low fits, high does not
    while high is None or high - low > max(1, low // 32):
        tries.append((rows, bytes_of(rows)))
        low, high = (rows, high) if tries[-1][1] <= limit else (low, rows)
        guess = 2 * rows
        nearest = sorted(sorted(tries, key=lambda each: abs(each[1] - limit))[:2])
        if len(nearest) == 2 and nearest[0][1] < nearest[1][1]:
            (first, less), (second, more) = nearest
            guess = first + int((limit - less) * (second - first) / (more - less))
        if high is None:
            rows = min(max(guess, low + max(1, low // 32)), 16 * low)
        else:
            margin = max(1, (high - low) // 8)  # in case the line does not rise
            rows = min(max(guess, low + margin), high - margin) if low else high // 2
    return low


def largest_micro_batch(options, model, length, settings):
    """Return the rows of the largest micro-batch whose step fits into the limit, found by
    compiling, and the bytes of that step.

    A step holds weights, optimizer state, gradients, and the temporaries of the larger of its two
    programs: that of gradients, and that of the update, which writes weights and state in place.
    Memory of CUDA and TensorFlow themselves does not count.
    """
    limit = options.limit * 1e9
    with programs(options, model, length, settings) as (lowering, compile_program):
        held = sum(lowering.ask("sizes").values())
        least = compile_program("update")["temporaries"]

        @functools.cache
        def bytes_of(rows):
            compiled = compile_program("gradients", rows=rows)
            return held + compiled["results"] + max(compiled["temporaries"], least)

        rows = most_rows(bytes_of, limit)
        num_bytes = bytes_of(rows) if rows else None
    return dict(micro_batch=rows, bytes=num_bytes, held_bytes=held, limit=limit)


def print_cases(results, header, cells_of):
    """Print a table of the cases of a part. cells_of: (model and S, name, result) -> cells."""
    rows = []
    for case, result in results.items():
        part, name = case.split(": ")
        cells = ["-"] * (len(header) - 1) + [result.get("error", "")[:60]]
        rows.append([part, name, *(cells if "error" in result else cells_of(part, name, result))])
    print_table(["model, S", "variant", *header], rows)


def print_kernels(results):
    steps = ", ".join(f"{count:,} tokens of {model}" for model, count in TOKENS.items())
    print(
        f"\nA step of {steps}, bfloat16, AdamW but where named. Milliseconds at an H200's "
        f"{peak_flops() / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e12:.1f} TB/s\n(data sheet), and the "
        "MFU if a step took them all.\n"
    )

    def cells(part, variant, result):
        model, length = part.split()
        step, update = result["gradients"], result["update"]
        update_seconds = update["product_seconds"] + update["other_seconds"]
        seconds = step["product_seconds"] + step["other_seconds"] + update_seconds
        flops = TOKENS[model] * flops_per_token(model, int(length), packed="packed" in variant)
        return [
            f"{step['kernels'] + update['kernels']:,}",
            f"{step['product_flops'] / 1e12:.1f}",
            f"{step['product_seconds'] * 1e3:.1f}",
            f"{step['other_bytes'] / 1e9:.1f}",
            f"{step['other_seconds'] * 1e3:.1f}",
            f"{update_seconds * 1e3:.1f}",
            f"{flops / seconds / peak_flops():.2f}",
            f"{step['temporaries'] / 1e9:.2f}",
        ]

    header = ["kernels", "TFLOP", "products ms", "others GB", "others ms", "update ms"]
    print_cases(results, [*header, "MFU", "GB of temporaries"], cells)


def print_techniques(results):
    print(
        f"\nBytes that a step of {TECHNIQUE_TOKENS:,} tokens holds, MB. Temporaries: activations, "
        "weights in the compute type, scratch.\n"
    )
    header = ["weights", "optimizer", "gradients", "temporaries"]
    first = {}

    def cells(part, _, result):
        sizes = [result[field] / 1e6 for field in header]
        share = sum(sizes) / first.setdefault(part, sum(sizes))
        return [*(f"{size:,.0f}" for size in (*sizes, sum(sizes))), f"{share:.2f}"]

    print_cases(results, [*header, "sum", "share"], cells)


def print_memory(results):
    print(
        "\nThe largest micro-batch whose step fits into a limit, by the compiler's buffers, within "
        "3 %.\n"
    )

    def cells(_, __, result):
        size = f"{result['bytes'] / 1e9:.2f}" if result["bytes"] else "-"
        return [f"{result['limit'] / 1e9:g}", result["micro_batch"] or "none", size]

    print_cases(results, ["limit GB", "micro-batch", "GB"], cells)


PARTS = {  # its cases, the function that measures one, the function that prints all
    "kernels": (VARIANTS, count_kernels, print_kernels),
    "techniques": (TECHNIQUES, buffers, print_techniques),
    "memory": (LIMITED, largest_micro_batch, print_memory),
}


def make_parser():
    parser = benchmark_parser(__doc__, "json")
    parser.add_argument("--jax_python", help="Python with jax[cuda12]==0.7.0")
    parser.add_argument("--part", type=names_among(PARTS), default=list(PARTS))
    parser.add_argument("--model", type=names_among(TOKENS), default=["base", "large"])
    parser.add_argument("--length", type=numbers(int), default=[128, 512], help="of rows: S")
    parser.add_argument("--variant", help="measure only variants with this text in their name")
    parser.add_argument(
        "--flags",
        default="--xla_allow_excess_precision=false",
        help="XLA flags; default: those that bert_gpu.base.environment sets",
    )
    parser.add_argument("--limit", type=float, default=7.5, help="memory limit of `memory`, GB")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    return parser


def main():
    parser = make_parser()
    options = parser.parse_args()
    cases = [
        (part, model, length, name)
        for part in options.part
        for model, length in itertools.product(options.model, options.length)
        for name in PARTS[part][0]
        if not options.variant or options.variant in name
    ]
    if options.list:
        print(
            *(f"{part}: {model} {length}: {name}" for part, model, length, name in cases), sep="\n"
        )
        return
    if not options.jax_python:
        parser.error("--jax_python: needed; --help says how to make one")
    command = [options.jax_python, "-c", "import jax_plugins.xla_cuda12"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        parser.error(
            f"--jax_python={options.jax_python}: cannot import jax_plugins.xla_cuda12; --help says "
            "how to make one"
        )
    results = read_results(options.json)
    source = dict(revision=hardware()["revision"], flags=options.flags)
    for part, model, length, name in cases:
        print(f"{part}: {model} {length}: {name}", file=sys.stderr, flush=True)
        settings, measure, _ = PARTS[part]
        try:
            result = measure(options, model, length, settings[name])
        except Failed as problem:
            result = dict(error=str(problem))
        results.setdefault(part, {})[f"{model} {length}: {name}"] = result | source
        write_results(options.json, results)
    for part, (_, _, print_part) in PARTS.items():
        if part in results:
            print_part(results[part])


if __name__ == "__main__":
    main()
