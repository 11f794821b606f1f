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

import itertools
import pathlib
import subprocess
import sys
import tempfile

from helpers import ahead_hlo
from helpers.command import Failed, benchmark_parser, names_among
from helpers.process import Peer
from helpers.report import hardware, print_table, read_results, write_results
from helpers.shapes import flops_per_token, shape_of

from bert_gpu.base.environment import LazyModule

throughput = LazyModule("bert_gpu.monitor.throughput")

BANDWIDTH = 4.8e12  # bytes/s of an H200's memory, by NVIDIA's data sheet
TOKENS = dict(base=32768, large=16384)  # of a step
VARIANTS = {  # of `kernels`: settings of lowering.Lowering, attention's dropout
    "plain": ({}, 0.1),
    "plain, attention dropout 0": ({}, 0.0),
    "cuDNN, attention dropout 0": (dict(attention="cudnn"), 0.0),
    "plain, packed": (dict(packed=True), 0.1),
    "cuDNN, packed": (dict(attention="cudnn", packed=True), 0.0),
    "plain, recompute": (dict(recompute_every=1), 0.1),
    "plain, Muon": (dict(optimizer="muon"), 0.1),
}
EIGHT_BIT = dict(optimizer="adamw8bit")
TECHNIQUES = {  # of `techniques`
    "nothing (float32)": dict(precision="float32"),
    "bfloat16": {},
    "bfloat16, accumulation 4": dict(micro_batches=4),
    "bfloat16, embeddings frozen": dict(freeze=["embeddings"]),
    "bfloat16, embeddings and half of the layers frozen": dict(
        freeze=["embeddings", "layers:HALF"]
    ),
    "bfloat16, recompute": dict(recompute_every=1),
    "bfloat16, recompute every 3rd": dict(recompute_every=3),
    "bfloat16, adamw8bit": EIGHT_BIT,
    "bfloat16, recompute, adamw8bit, accumulation 4": EIGHT_BIT
    | dict(recompute_every=1, micro_batches=4),
}
LIMITED = {  # of `memory`
    "nothing (float32)": dict(precision="float32"),
    "bfloat16": {},
    "bfloat16, recompute": dict(recompute_every=1),
    "bfloat16, adamw8bit": EIGHT_BIT,
    "bfloat16, recompute, adamw8bit": EIGHT_BIT | dict(recompute_every=1),
    "the same, accumulation": EIGHT_BIT | dict(recompute_every=1, micro_batches=4),
}
TECHNIQUE_TOKENS = 4096  # of a step


def peak_flops():
    """FLOP/s of an H200 in bfloat16, by NVIDIA's data sheet."""
    return throughput.peak_flops("NVIDIA H200", "bfloat16")


def settings_of(model, length, settings, dropout=0.1):
    return dict(
        shape=shape_of(model) | dict(attention_probs_dropout_prob=dropout),
        length=length,
        **settings,
    )


def summary(compiled):
    """Counts of a compiled program: kernels, and by kind their FLOPs, bytes, and seconds at the
    throughput of the data sheet.
    """
    found = ahead_hlo.kernels(pathlib.Path(compiled["text"]).read_text())
    products = [kernel for kernel in found if kernel.kind != "other"]
    others = [kernel for kernel in found if kernel.kind == "other"]
    total = lambda kernels, field: sum(getattr(kernel, field) * kernel.times for kernel in kernels)  # noqa: E731
    return dict(
        kernels=sum(kernel.times for kernel in found),
        product_flops=total(products, "flops"),
        product_seconds=sum(
            kernel.times * max(kernel.flops / peak_flops(), kernel.num_bytes / BANDWIDTH)
            for kernel in products
        ),
        other_bytes=total(others, "num_bytes"),
        other_seconds=total(others, "num_bytes") / BANDWIDTH,
        temporaries=compiled["temporaries"],
        compile_seconds=compiled["seconds"],
    )


class Programs:
    """The programs of one case, lowered by TensorFlow and compiled by XLA in separate processes."""

    def __init__(self, options, model, length, settings, dropout=0.1):
        self.folder = tempfile.TemporaryDirectory()
        self.lowering = self.compiler = None
        try:
            compiler = dict(folder=self.folder.name, flags=options.flags)
            self.lowering = Peer("ahead_lowering", settings_of(model, length, settings, dropout))
            self.compiler = Peer("ahead_compiler", compiler, options.jax_python)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.lowering, self.compiler):
            if process:
                process.close()
        self.folder.cleanup()

    def compile(self, name, **arguments):
        path = str(pathlib.Path(self.folder.name) / "program.pb")
        self.lowering.ask(name, path=path, **arguments)
        return self.compiler.ask("compile", path=path)

    def sizes(self):
        return self.lowering.ask("sizes")


def count_kernels(options, model, length, variant):
    """Summaries of the programs of one step, "gradients" and "update", and its number of rows."""
    rows = TOKENS[model] // length
    with Programs(options, model, length, *variant) as programs:
        step, update = (
            summary(programs.compile("gradients", rows=rows)),
            summary(programs.compile("update")),
        )
    return dict(rows=rows, gradients=step, update=update)


def buffers(options, model, length, settings):
    """Bytes that a step of TECHNIQUE_TOKENS holds."""
    with Programs(options, model, length, settings) as programs:
        compiled = programs.compile(
            "gradients", rows=TECHNIQUE_TOKENS // length // settings.get("micro_batches", 1)
        )
        return programs.sizes() | dict(
            gradients=compiled["results"], temporaries=compiled["temporaries"]
        )


def most_rows(bytes_of, limit):
    """Largest number of rows, within 3 %, for which bytes_of(rows) is at most `limit`; 0 when even
    one row is too many. bytes_of must rise with rows. It is almost linear, so the next try is where
    a line through the two nearest ones reaches the limit.
    """
    low, high, rows, tried = 0, None, 8, []  # what fits, what does not
    while high is None or high - low > max(1, low // 32):
        tried.append((rows, bytes_of(rows)))
        low, high = (rows, high) if tried[-1][1] <= limit else (low, rows)
        guess = 2 * rows
        if len(tried) > 1:
            (first, less), (second, more) = sorted(
                sorted(tried, key=lambda one: abs(one[1] - limit))[:2]
            )
            guess = (
                first + int((limit - less) * (second - first) / (more - less))
                if more > less
                else guess
            )
        if high is None:
            rows = min(max(guess, low + max(1, low // 32)), 16 * low)
        else:
            margin = max(1, (high - low) // 8)  # in case the line does not rise
            rows = min(max(guess, low + margin), high - margin) if low else high // 2
    return low


def largest_micro_batch(options, model, length, settings):
    """Rows of the largest micro-batch whose step fits into the limit, found by compiling, and the
    bytes of that step.

    A step holds weights, optimizer state, gradients, and the temporaries of the larger of its two
    programs: that of gradients, and that of the update, which writes weights and state in place.
    Memory of CUDA and TensorFlow themselves does not count.
    """
    with Programs(options, model, length, settings) as programs:
        held, tried = sum(programs.sizes().values()), {}
        least = programs.compile("update")["temporaries"]

        def bytes_of(rows):
            if rows not in tried:
                compiled = programs.compile("gradients", rows=rows)
                tried[rows] = held + compiled["results"] + max(compiled["temporaries"], least)
            return tried[rows]

        rows = most_rows(bytes_of, options.limit * 1e9)
    return dict(
        micro_batch=rows,
        bytes=tried.get(rows),
        held_bytes=held,
        limit=options.limit * 1e9,
        tried=tried,
    )


def print_kernels(results):
    steps = ", ".join(f"{count:,} tokens of {model}" for model, count in TOKENS.items())
    print(
        f"\nA step of {steps}, bfloat16, AdamW but where named. Milliseconds at an H200's "
        f"{peak_flops() / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e12:.1f} TB/s"
    )
    print("(data sheet), and the MFU if a step took them all.\n")
    rows = []
    for name, found in results.items():
        part, variant = name.split(": ")
        if "error" in found:
            rows.append([part, variant, *["-"] * 7, found["error"][:60]])
            continue
        model, length = part.split()
        step, update = found["gradients"], found["update"]
        update_seconds = update["product_seconds"] + update["other_seconds"]
        seconds = step["product_seconds"] + step["other_seconds"] + update_seconds
        flops = TOKENS[model] * flops_per_token(model, int(length), packed="packed" in variant)
        cells = [
            f"{step['kernels'] + update['kernels']:,}",
            f"{step['product_flops'] / 1e12:.1f}",
            f"{step['product_seconds'] * 1e3:.1f}",
            f"{step['other_bytes'] / 1e9:.1f}",
            f"{step['other_seconds'] * 1e3:.1f}",
            f"{update_seconds * 1e3:.1f}",
            f"{flops / seconds / peak_flops():.2f}",
            f"{step['temporaries'] / 1e9:.2f}",
        ]
        rows.append([part, variant, *cells])
    header = [
        "model, S",
        "variant",
        "kernels",
        "TFLOP",
        "products ms",
        "others GB",
        "others ms",
        "update ms",
        "MFU",
        "GB of temporaries",
    ]
    print_table(header, rows)


def print_techniques(results):
    print(
        f"\nWhat a step of {TECHNIQUE_TOKENS:,} tokens holds, MB. "
        "Temporaries: activations, weights in the compute type, scratch.\n"
    )
    rows, first = [], {}
    for name, found in results.items():
        part, technique = name.split(": ")
        if "error" in found:
            rows.append([part, technique, *["-"] * 5, found["error"][:60]])
            continue
        total = sum(found[field] for field in ("weights", "optimizer", "gradients", "temporaries"))
        first.setdefault(part, total)
        cells = [
            f"{found[field] / 1e6:,.0f}"
            for field in ("weights", "optimizer", "gradients", "temporaries")
        ]
        rows.append([part, technique, *cells, f"{total / 1e6:,.0f}", f"{total / first[part]:.2f}"])
    print_table(
        [
            "model, S",
            "technique",
            "weights",
            "optimizer",
            "gradients",
            "temporaries",
            "sum",
            "share",
        ],
        rows,
    )


def print_memory(results):
    print(
        "\nThe largest micro-batch whose step fits into "
        "a limit, by the compiler's buffers, within 3 %.\n"
    )
    rows = []
    for name, found in results.items():
        part, technique = name.split(": ")
        if "error" in found:
            rows.append([part, technique, "-", "-", found["error"][:60]])
        else:
            taken = f"{found['bytes'] / 1e9:.2f}" if found["bytes"] else "-"
            rows.append(
                [
                    part,
                    technique,
                    f"{found['limit'] / 1e9:g}",
                    found["micro_batch"] or "none",
                    taken,
                ]
            )
    print_table(["model, S", "technique", "limit GB", "micro-batch", "GB"], rows)


PARTS = {  # its cases, what measures one, what prints all
    "kernels": (VARIANTS, count_kernels, print_kernels),
    "techniques": (TECHNIQUES, buffers, print_techniques),
    "memory": (LIMITED, largest_micro_batch, print_memory),
}


def make_parser():
    parser = benchmark_parser(__doc__, "json")
    parser.add_argument("--jax_python", help="Python with jax[cuda12]==0.7.0")
    parser.add_argument("--part", type=names_among(PARTS), default=list(PARTS))
    parser.add_argument("--model", type=names_among(TOKENS), default=list(TOKENS))
    parser.add_argument("--length", default="128,512", help="sequence lengths S")
    parser.add_argument("--variant", help="measure only variants with this text in their name")
    parser.add_argument(
        "--flags",
        default="--xla_allow_excess_precision=false",
        help="XLA flags; default: those that bert_gpu.base.environment sets",
    )
    parser.add_argument("--limit", type=float, default=7.5, help="memory limit of `memory`, GB")
    parser.add_argument("--list", action="store_true", help="list the cases and exit")
    return parser


def cases(options):
    """[(part, model, S, name)] of the cases to measure."""
    return [
        (part, model, int(length), name)
        for part in options.part
        for model, length in itertools.product(options.model, options.length.split(","))
        for name in PARTS[part][0]
        if not options.variant or options.variant in name
    ]


def main():
    options = make_parser().parse_args()
    if options.list:
        print(
            *(f"{part}: {model} {length}: {name}" for part, model, length, name in cases(options)),
            sep="\n",
        )
        return
    if not options.jax_python:
        make_parser().error("--jax_python: needed; --help says how to make one")
    try:
        subprocess.run(
            [options.jax_python, "-c", "import jax_plugins.xla_cuda12"],
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.CalledProcessError):
        make_parser().error(
            f"--jax_python={options.jax_python}: cannot import "
            "jax_plugins.xla_cuda12; --help says how to make one"
        )
    results, machine = read_results(options.json), hardware()
    for part, model, length, name in cases(options):
        print(f"{part}: {model} {length}: {name}", file=sys.stderr, flush=True)
        settings, measure, _ = PARTS[part]
        try:
            result = measure(options, model, length, settings[name])
        except Failed as problem:
            result = dict(error=str(problem))
        found = results.setdefault(part, {})
        found[f"{model} {length}: {name}"] = result | dict(
            revision=machine["revision"], flags=options.flags
        )
        write_results(options.json, results)
    for part, (_, _, show) in PARTS.items():
        if part in results:
            show(results[part])


if __name__ == "__main__":
    main()
