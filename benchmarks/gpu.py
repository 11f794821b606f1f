#!/usr/bin/env python3
"""The project on one GPU: speed against PyTorch, memory, replicas, precisions and runs of record,
in parts of at most eight minutes.

    python benchmarks/gpu.py --list
    python benchmarks/gpu.py --part=base128,base512 --json=docs/data/gpu.json --torch_python=PYTHON
    python benchmarks/gpu.py --small                 # one part of each kind at a toy size, on the
                                                     # CPU where there is no GPU

Each item is measured in its own processes and written to the JSON file as soon as it is done. A
part that runs again measures only what is missing or failed. The tables name missing and failed
items.
"""

import functools
import re
import subprocess
import sys
import time

from helpers.command import Failed, add_python, benchmark_parser, names_among, work_folder
from helpers.gpu_runs import (
    attention_items,
    input_items,
    precision_items,
    record_items,
    replica_items,
)
from helpers.gpu_steps import TECHNIQUES, Clock, Setup, memory_items, speed_items
from helpers.process import clean_environment
from helpers.report import hardware, print_table, read_results, write_results

PART_SECONDS = 480
LEAST_SECONDS = 20  # no item starts with less time left
MODELS = {
    f"{model}{length}": (model, length) for model in ("base", "large") for length in (128, 512)
}
TARGETS = {128: 1.15, 512: 1.0}  # our best tokens/s divided by PyTorch's best
SPEED = {
    name: functools.partial(speed_items, model=model, length=length)
    for name, (model, length) in MODELS.items()
}
MEMORY = {
    f"memory-{name}": functools.partial(memory_items, model=model, length=length)
    for name, (model, length) in MODELS.items()
}
PARTS = SPEED | {  # {name: function of a Setup -> items}
    "input": input_items,
    "attention": attention_items,
    "memory-base128": MEMORY["memory-base128"],
    "replicas": replica_items,
    "precision": precision_items,
    **MEMORY,
    "crammed": functools.partial(record_items, recipe="crammed"),
    "bert": functools.partial(record_items, recipe="bert"),
}
SMALL = [name for name in PARTS if name == "memory-base128" or name not in MEMORY]
SMALL = [name for name in SMALL if name == "base128" or name not in SPEED]
FIELDS = {  # of the parts whose items have only a few values
    "attention": ("plain", "cudnn", "agrees", "speedup"),
    "input": ("rows", "steps", "tokens_per_second", "padded_tokens_per_second", "input_wait"),
    "replicas": ("rows", "steps", "largest_difference", "stopped_at", "seconds"),
    "precision": ("rows", "skipped_steps", "loss_scale", "tokens_per_second"),
    "crammed": ("steps", "validation", "pairs"),
    "bert": ("steps", "validation", "pairs"),
}


def find_torch(python):
    """Return a Python that has torch and transformers: the given one, or this one without
    TensorFlow's environment; None if neither has them.
    """
    for candidate in [python] if python else [sys.executable, "python3"]:
        command = [candidate, "-c", "import torch, transformers"]
        environment = clean_environment()
        try:
            subprocess.run(command, env=environment, capture_output=True, timeout=120, check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return candidate
    return None


def items_of(name, setup, options):
    """Return the items of a part whose name matches --only."""
    items = PARTS[name](setup)
    return {item: items[item] for item in items if re.search(options.only, item)}


def measure(name, setup, results, options):
    """Measure the items of a part that have no result yet, until its time is up."""
    part = results.setdefault("parts", {}).setdefault(name, dict(items={}))
    setup.items, clock = part["items"], Clock(options.part_seconds)
    for item, function in items_of(name, setup, options).items():
        before = setup.items.get(item)
        if before and not {"error", "not_reached"} & before.keys():
            continue
        result = dict(not_reached="the time of the part was over")
        if clock.left() >= LEAST_SECONDS:
            print(f"{name}: {item} ({clock.left():.0f} s left)", file=sys.stderr, flush=True)
            started = time.monotonic()
            try:
                result = function(clock) | dict(measured_seconds=time.monotonic() - started)
            except Failed as problem:
                if clock.left():
                    result = dict(error=str(problem))
                else:
                    result["not_reached"] += f" ({problem})"
        if before is None or "not_reached" not in result:
            setup.items[item] = result
        results |= dict(rates=setup.rates, versions=setup.versions)
        write_results(options.json, results)


# -- tables


def note(item):
    return f"not reached: {item['not_reached']}" if "not_reached" in item else item.get("error", "")


def cells(item, columns):
    """Return the cells of an item, or dashes and the reason. columns: functions of the item."""
    if {"error", "not_reached"} & item.keys():
        return ["-"] * len(columns) + [note(item)[:90]]
    return [*(column(item) for column in columns.values()), ""]


def outside(item):
    profile = item.get("profile") or {}
    if "idle" not in profile:
        return "not measured"
    return f"{100 * profile['outside_products']:.0f} % ({100 * profile['idle']:.0f} % idle)"


def print_speed(results):
    parts = {name: part for name, part in results["parts"].items() if name in SPEED}
    if not parts:
        return
    rates = results.get("rates", {})
    products = ", ".join(f"{name} {rate / 1e12:,.1f} TFLOP/s" for name, rate in rates.items())
    print(
        "\nSpeed, pretraining step (masked words and next sentence), 15 % masked. Measured matrix "
        f"products: {products or 'none'}; MFU is against them.\n"
    )
    columns = {
        "rows": lambda item: item["rows"],
        "tokens/s": lambda item: f"{item['tokens_per_second']:,.0f}",
        "real tokens/s": lambda item: f"{item['real_tokens_per_second']:,.0f}",
        "MFU": lambda item: f"{100 * item['flops_per_second'] / rates[item['precision']]:.0f} %",
        "peak GB": lambda item: f"{item['peak_bytes'] / 2**30:.1f}",
        "compile s": lambda item: f"{item['compile_seconds']:.0f}",
        "outside products": outside,
    }
    rows, comparisons = [], []
    for part, found in parts.items():
        items = found["items"]
        rows += [[part, name, *cells(item, columns)] for name, item in items.items()]
        for dropout in (0.1, 0.0):
            best = dict(ours=0.0, hugging_face=0.0)
            for item in items.values():
                if item.get("attention_dropout") == dropout and not item["packed"]:
                    best[item["system"]] = max(item["tokens_per_second"], best[item["system"]])
            times = "not measured"
            if all(best.values()):
                times = f"{best['ours'] / best['hugging_face']:.2f}"
            target = TARGETS[MODELS[part][1]]
            comparisons.append([part, f"{dropout:g}", times, f"{target:g}"])
    print_table(["part", "variant", *columns, "note"], rows)
    print()
    best = "ours to PyTorch, best of each, padded rows"
    print_table(["part", "attention dropout", best, "target"], comparisons)


def print_memory(results):
    parts = {name: part for name, part in results["parts"].items() if name in MEMORY}
    if not parts:
        return
    print(
        f"\nMemory: TensorFlow has {results['memory_limit']:,} MB; "
        "the micro-batch is that of --train_batch_size=auto.\n"
    )

    def or_dash(field, form, scale=1):
        return lambda item: form.format(item[field] / scale) if field in item else "-"

    columns = {
        "micro-batch": lambda item: item["micro_batch"] or "none fits",
        "accumulation": or_dash("accumulation", "{:.0f}"),
        "tokens/s": or_dash("tokens_per_second", "{:,.0f}"),
        "peak GB": or_dash("peak_bytes", "{:.2f}", 2**30),
        "search s": or_dash("search_seconds", "{:.0f}"),
    }
    rows = [
        [part.removeprefix("memory-"), name, *cells(found["items"][name], columns)]
        for part, found in parts.items()
        for name in TECHNIQUES
        if name in found["items"]
    ]
    print_table(["model, S", "technique", *columns, "note"], rows)


def in_words(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {in_words(part)}" for name, part in value.items())
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def print_others(results):
    """Print the parts whose items have only a few values."""
    for part in (name for name in FIELDS if name in results["parts"]):
        rows = []
        for name, item in results["parts"][part]["items"].items():
            values = {field: item[field] for field in FIELDS[part] if field in item}
            if "losses" in item:
                values |= dict(first_loss=item["losses"][0], last_loss=item["losses"][-1])
            if item.get("tokens"):
                values |= dict(million_tokens=item["tokens"][-1])
            rows.append([name, in_words(values) or note(item)])
        print(f"\n{part}\n")
        print_table(["item", "result"], rows)


def print_results(results):
    print(f"{in_words(results.get('hardware', {}))}\n{in_words(results.get('versions', {}))}")
    if results.get("parts"):
        print_speed(results)
        print_memory(results)
        print_others(results)
    missing = [name for name in PARTS if name not in results.get("parts", {})]
    if missing:
        print(f"\nParts not run: {', '.join(missing)}")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json", "table")
    parser.add_argument(
        "--part", type=names_among(PARTS), help="names; default: all, in the order of --list"
    )
    parser.add_argument("--only", default="", help="regular expression for the names of items")
    parser.add_argument("--list", action="store_true", help="list parts and items and exit")
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--part_seconds", type=float, default=PART_SECONDS)
    add_python(parser, "--torch_python", "torch and transformers")
    parser.add_argument("--work", help="keeps data and runs for later parts; default: temporary")
    parser.add_argument(
        "--memory_limit", type=int, default=7500, help="MB for TensorFlow in the memory parts"
    )
    parser.add_argument(
        "--record_minutes", type=float, default=6.0, help="training time of a run of record"
    )
    return parser


def make_setup(options, **fields):
    """Return a Setup. fields: those that are not flags."""
    names = ("small", "text", "memory_limit", "record_minutes")
    return Setup(**{name: getattr(options, name) for name in names}, **fields)


def run(names, options, results):
    """Measure parts."""
    machine = hardware()
    gpu = machine["gpu"] is not None
    if not gpu and not options.small:
        raise SystemExit(
            "no GPU here (nvidia-smi names none): --small runs every part at a toy size on the CPU"
        )
    results |= dict(hardware=machine, small=options.small, memory_limit=options.memory_limit)
    with work_folder(options.work) as work:
        torch_python = find_torch(options.torch_python)
        setup = make_setup(options, gpu=gpu, work=work, torch_python=torch_python)
        setup.rates, setup.versions = results.get("rates", {}), results.get("versions", {})
        for name in names:
            measure(name, setup, results, options)


def main():
    parser = make_parser()
    options = parser.parse_args()
    names = options.part or list(SMALL if options.small else PARTS)
    if options.list:
        setup = make_setup(options, gpu=False, work=None, torch_python=None)
        print(
            *(f"{name}: {item}" for name in names for item in items_of(name, setup, options)),
            sep="\n",
        )
        return
    results = read_results(options.json)
    if results.get("small", options.small) != options.small and not options.table:
        sizes = "toy" if results["small"] else "full"
        parser.error(f"--json={options.json}: holds results of {sizes} sizes; name another file")
    if not options.table:
        run(names, options, results)
    print_results(results)


if __name__ == "__main__":
    main()
