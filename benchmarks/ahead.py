#!/usr/bin/env python3
"""What XLA makes of the training step for an H200, compiled without one: kernels, bytes that they move, FLOPs of products, memory.

    python -m venv xla && xla/bin/pip install 'jax[cuda12]==0.7.0'
    python benchmarks/ahead.py --jax_python=xla/bin/python [--part=kernels,techniques,memory] [--json=docs/data/ahead.json]

Nothing runs on a GPU, and no time is measured. `kernels` gives, for a step, what must at least be computed and moved: a bound, and a way to
see what a change of the model's code does to the compiled step. `techniques` gives what a step holds with each way to save memory, `memory`
the largest micro-batch whose buffers fit into a limit. Lowered by TensorFlow, compiled by the XLA of JAX (peers/gpu_compiler.py); products
are cuBLAS calls, because there is no GPU to try others on.
"""

import argparse
import pathlib
import sys
import tempfile

from measure import print_table
from peers import hlo
from peers.process import Failed, Peer
from peers.report import flops_per_token, hardware, read_results, shape_of, write_results

RATE, BANDWIDTH = 790e12, 4.8e12  # an H200's: FLOP/s that its bfloat16 products reach; bytes/s of its memory (NVIDIA's data sheet)
TOKENS = dict(base=32768, large=16384)  # of a step
VARIANTS = {  # of `kernels`: settings of lowering.Lowering, attention's dropout
    "plain": ({}, 0.1),
    "plain, attention dropout 0": ({}, 0.0),
    "cuDNN, attention dropout 0": (dict(attention="cudnn"), 0.0),
    "plain, packed": (dict(packed=True), 0.1),
    "cuDNN, packed": (dict(attention="cudnn", packed=True), 0.0),
    "plain, recompute": (dict(recompute_every=1), 0.1),
}
EIGHT_BIT = dict(optimizer="adamw8bit")
TECHNIQUES = {  # of `techniques`
    "nothing (float32)": dict(precision="float32"),
    "bfloat16": {},
    "bfloat16, accumulation 4": dict(micro_batches=4),
    "bfloat16, embeddings frozen": dict(freeze=["embeddings"]),
    "bfloat16, embeddings and half of the layers frozen": dict(freeze=["embeddings", "layers:HALF"]),
    "bfloat16, recompute": dict(recompute_every=1),
    "bfloat16, recompute every 3rd": dict(recompute_every=3),
    "bfloat16, adamw8bit": EIGHT_BIT,
    "bfloat16, recompute, adamw8bit, accumulation 4": EIGHT_BIT | dict(recompute_every=1, micro_batches=4),
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


def settings_of(model, length, settings, dropout=0.1):
    return dict(shape=shape_of(model) | dict(attention_probs_dropout_prob=dropout), length=length, **settings)


def summary(compiled):
    """Counts of a compiled program: kernels, and by kind their FLOPs, bytes and least seconds."""
    found = hlo.kernels(pathlib.Path(compiled["text"]).read_text())
    products = [kernel for kernel in found if kernel.kind != "other"]
    others = [kernel for kernel in found if kernel.kind == "other"]
    total = lambda kernels, field: sum(getattr(kernel, field) * kernel.times for kernel in kernels)  # noqa: E731
    return dict(
        kernels=sum(kernel.times for kernel in found),
        product_flops=total(products, "flops"),
        product_seconds=sum(kernel.times * max(kernel.flops / RATE, kernel.num_bytes / BANDWIDTH) for kernel in products),
        other_bytes=total(others, "num_bytes"),
        other_seconds=total(others, "num_bytes") / BANDWIDTH,
        temporaries=compiled["temporaries"],
        compile_seconds=compiled["seconds"],
    )


def count_kernels(compiler, folder, model, length, settings, dropout):
    """Summaries of the programs of one step, "gradients" and "update", and how many rows it has."""
    rows = TOKENS[model] // length
    with Peer("lowering", settings_of(model, length, settings, dropout)) as lowering:
        found = dict(rows=rows)
        for name, arguments in (("gradients", dict(rows=rows)), ("update", {})):
            path = str(folder / "program.pb")
            lowering.ask(name, path=path, **arguments)
            found[name] = summary(compiler.ask("compile", path=path))
    return found


def buffers(compiler, folder, model, length, settings):
    """Bytes that a step of TECHNIQUE_TOKENS holds."""
    with Peer("lowering", settings_of(model, length, settings)) as lowering:
        path = str(folder / "program.pb")
        lowering.ask("gradients", rows=TECHNIQUE_TOKENS // length // settings.get("micro_batches", 1), path=path)
        compiled = compiler.ask("compile", path=path)
        return lowering.ask("sizes") | dict(gradients=compiled["results"], temporaries=compiled["temporaries"])


def largest_micro_batch(compiler, folder, model, length, settings, limit):
    """The most rows of a micro-batch whose step fits into `limit` bytes, found by compiling, and the bytes of that step.

    A step holds weights, optimizer state and the larger of its two programs: gradients and activations, or gradients and the update, which
    writes weights and state in place.
    """
    with Peer("lowering", settings_of(model, length, settings)) as lowering:
        sizes = lowering.ask("sizes")
        held, tried = sizes["weights"] + sizes["optimizer"], {}

        def bytes_of(rows):
            if rows not in tried:
                path = str(folder / "program.pb")
                lowering.ask("gradients", rows=rows, path=path)
                compiled = compiler.ask("compile", path=path)
                tried[rows] = held + compiled["results"] + compiled["temporaries"]
            return tried[rows]

        low, high = 0, 8  # what fits, what does not
        while bytes_of(high) <= limit:
            low, high = high, 2 * high
        while high - low > max(1, low // 32):
            if low:  # bytes grow by almost the same with every row
                slope = (bytes_of(high) - bytes_of(low)) / (high - low)
                guess = low + int((limit - bytes_of(low)) / slope)
            else:
                guess = high // 2
            middle = min(max(guess, low + 1), high - 1)
            low, high = (middle, high) if bytes_of(middle) <= limit else (low, middle)
    return dict(micro_batch=low, bytes=tried.get(low), held_bytes=held, tried=tried)


def print_kernels(results):
    print(f"\nA step of {', '.join(f'{count:,} tokens of {model}' for model, count in TOKENS.items())}, bfloat16, AdamW. Least times of an")
    print(f"H200 at {RATE / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e12:.1f} TB/s; MFU at most: model FLOPs against both together.\n")
    rows = []
    for name, found in results.items():
        part, variant = name.split(": ")
        if "error" in found:
            rows.append([part, variant, *["-"] * 8, found["error"][:60]])
            continue
        model, length = part.split()
        step, update = found["gradients"], found["update"]
        seconds = step["product_seconds"] + step["other_seconds"] + update["other_seconds"]
        flops = TOKENS[model] * flops_per_token(model, int(length), packed="packed" in variant)
        rows.append(
            [
                part,
                variant,
                f"{step['kernels'] + update['kernels']:,}",
                f"{step['product_flops'] / 1e12:.1f}",
                f"{step['product_seconds'] * 1e3:.1f}",
                f"{step['other_bytes'] / 1e9:.1f}",
                f"{step['other_seconds'] * 1e3:.1f}",
                f"{update['other_seconds'] * 1e3:.1f}",
                f"{flops / seconds / RATE:.2f}",
                f"{step['temporaries'] / 2**30:.2f}",
            ]
        )
    header = [
        "model, S",
        "variant",
        "kernels",
        "TFLOP",
        "products ms",
        "others GB",
        "others ms",
        "update ms",
        "MFU at most",
        "GiB temporaries",
    ]
    print_table(header, rows)


def print_techniques(results):
    print(f"\nWhat a step of {TECHNIQUE_TOKENS:,} tokens holds, MB. Temporaries: activations, weights in the compute type, scratch.\n")
    rows, first = [], {}
    for name, found in results.items():
        part, technique = name.split(": ")
        if "error" in found:
            rows.append([part, technique, *["-"] * 5, found["error"][:60]])
            continue
        total = sum(found.values())
        first.setdefault(part, total)
        cells = [f"{found[field] / 2**20:,.0f}" for field in ("weights", "optimizer", "gradients", "temporaries")]
        rows.append([part, technique, *cells, f"{total / 2**20:,.0f}", f"{total / first[part]:.2f}"])
    print_table(["model, S", "technique", "weights", "optimizer", "gradients", "temporaries", "sum", "share"], rows)


def print_memory(results, limit):
    print(f"\nThe largest micro-batch whose step fits into {limit / 1e9:.1f} GB, by the compiler's buffers.\n")
    rows = []
    for name, found in results.items():
        part, technique = name.split(": ")
        cells = [found["error"][:60], "-"] if "error" in found else [found["micro_batch"] or "none", f"{(found['bytes'] or 0) / 1e9:.2f}"]
        rows.append([part, technique, *cells])
    print_table(["model, S", "technique", "micro-batch", "GB"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax_python", required=True, help="Python with jax[cuda12]==0.7.0")
    parser.add_argument("--part", default="kernels,techniques,memory")
    parser.add_argument("--model", default="base,large")
    parser.add_argument("--length", default="128,512", help="S")
    parser.add_argument("--variant", help="part of a name, to measure fewer")
    parser.add_argument("--flags", default="--xla_allow_excess_precision=false", help="of XLA; default: what bert_gpu.fused sets")
    parser.add_argument("--limit", type=float, default=7.5, help="GB of `memory`")
    parser.add_argument("--json", help="file that results are merged into")
    options = parser.parse_args()
    results = read_results(options.json) | dict(hardware=hardware(), limit=options.limit * 1e9)
    with Peer("gpu_compiler", dict(flags=options.flags), options.jax_python) as compiler, tempfile.TemporaryDirectory() as folder:
        results["versions"] = compiler.ask("versions")
        measures = {
            "kernels": (VARIANTS, lambda *where, chosen: count_kernels(compiler, pathlib.Path(folder), *where, *chosen)),
            "techniques": (TECHNIQUES, lambda *where, chosen: buffers(compiler, pathlib.Path(folder), *where, chosen)),
            "memory": (
                LIMITED,
                lambda *where, chosen: largest_micro_batch(compiler, pathlib.Path(folder), *where, chosen, options.limit * 1e9),
            ),
        }
        for part in options.part.split(","):
            cases, function = measures[part]
            found = results.setdefault(part, {})
            for model in options.model.split(","):
                for length in options.length.split(","):
                    for name in (name for name in cases if not options.variant or options.variant in name):
                        print(f"{part}: {model} {length}: {name}", file=sys.stderr, flush=True)
                        try:
                            found[f"{model} {length}: {name}"] = function(model, int(length), chosen=cases[name])
                        except Failed as problem:
                            found[f"{model} {length}: {name}"] = dict(error=str(problem))
                        if options.json:
                            write_results(options.json, results)
    if "kernels" in results:
        print_kernels(results["kernels"])
    if "techniques" in results:
        print_techniques(results["techniques"])
    if "memory" in results:
        print_memory(results["memory"], results["limit"])


if __name__ == "__main__":
    main()
