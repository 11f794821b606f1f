#!/usr/bin/env python3
"""The project on one GPU: speed against PyTorch, memory, replicas, precisions and runs of record,
in parts of at most eight minutes.

    python benchmarks/gpu.py --list
    python benchmarks/gpu.py --part=base128,base512 --json=docs/data/gpu.json --torch_python=PYTHON
    python benchmarks/gpu.py --small                 # one part of each kind at a toy size, on the
                                                     # CPU where there is no GPU

Each item is measured in its own processes and written to the JSON file as soon as it is done. A
part that runs again measures only what is missing (--again measures everything). The tables name
missing and failed items. --plots draws curves as PNG; with --table, from the JSON file alone.
"""

import subprocess
import sys
import time

from helpers import gpu_plots
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
# left out by --small
LIKE_OTHERS = (
    "base512",
    "large128",
    "large512",
    "memory-large128",
    "memory-base512",
    "memory-large512",
)
TARGETS = {128: 1.15, 512: 1.0}  # tokens/s of our best to PyTorch's best


PARTS = {
    **{
        f"{model}{length}": lambda setup, model=model, length=length: speed_items(
            setup, model, length
        )
        for model in ("base", "large")
        for length in (128, 512)
    },
    "input": input_items,
    "attention": attention_items,
    "memory-base128": lambda setup: memory_items(setup, "base", 128),
    "replicas": replica_items,
    "precision": precision_items,
    **{
        f"memory-{model}{length}": lambda setup, model=model, length=length: memory_items(
            setup, model, length
        )
        for model, length in (("large", 128), ("base", 512), ("large", 512))
    },
    "crammed": lambda setup: record_items(setup, "crammed"),
    "bert": lambda setup: record_items(setup, "bert"),
}


def find_torch(python):
    """A Python that has torch and transformers: the given one, or this one without TensorFlow's
    environment; None if neither has them.
    """
    for candidate in [python] if python else [sys.executable, "python3"]:
        try:
            command = [candidate, "-c", "import torch, transformers"]
            found = subprocess.run(
                command, env=clean_environment(), capture_output=True, timeout=120
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if found.returncode == 0:
            return candidate
    return None


def measure(name, setup, results, options, keep):
    """Measures the items of a part that have no result yet, until its time is up."""
    part = results.setdefault("parts", {}).setdefault(name, dict(items={}))
    setup.found, clock = part["items"], Clock(options.part_seconds)
    for item, function in PARTS[name](setup):
        before = setup.found.get(item)
        if before and not options.again and not {"error", "not_reached"} & before.keys():
            continue
        if clock.left() < LEAST_SECONDS:
            found = dict(not_reached="the time of the part was over")
        else:
            print(f"{name}: {item} ({clock.left():.0f} s left)", file=sys.stderr, flush=True)
            started = time.monotonic()
            try:
                found = function(clock) | dict(measured_seconds=time.monotonic() - started)
            except Failed as problem:
                found = (
                    dict(error=str(problem))
                    if clock.left()
                    else dict(not_reached=f"the time of the part was over ({problem})")
                )
        if before is None or "not_reached" not in found:
            setup.found[item] = found
        results["rates"] = setup.rates
        results["versions"] = setup.versions
        keep()


# -- tables


def note(item):
    return f"not reached: {item['not_reached']}" if "not_reached" in item else item.get("error", "")


def cells(item, columns):
    """The cells of an item, or dashes and the reason; a column is a function of the item."""
    if {"error", "not_reached"} & item.keys():
        return ["-"] * len(columns) + [note(item)[:90]]
    return [*(column(item) for column in columns), ""]


def outside(item):
    profile = item.get("profile") or {}
    return (
        f"{100 * profile['outside_products']:.0f} % ({100 * profile['idle']:.0f} % idle)"
        if "idle" in profile
        else "not measured"
    )


def print_speed(results):
    names = [
        part
        for part in results["parts"]
        if part.removeprefix("base").removeprefix("large").isdigit()
    ]
    if not names:
        return
    rates = results.get("rates", {})
    print(
        "\nSpeed, pretraining step (masked words and next "
        "sentence), 15 % masked. Measured matrix products:",
        end=" ",
    )
    print(
        ", ".join(f"{name} {rate / 1e12:,.1f} TFLOP/s" for name, rate in rates.items()) or "none",
        end="; MFU is against them.\n\n",
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
    rows, ratios = [], []
    for part in names:
        items = results["parts"][part]["items"]
        rows += [[part, name, *cells(item, list(columns.values()))] for name, item in items.items()]
        target = TARGETS[128 if part.endswith("128") else 512]
        for dropout in (0.1, 0.0):
            rate = {}
            for item in items.values():
                if item.get("attention_dropout") == dropout and not item["packed"]:
                    rate[item["system"]] = max(
                        item["tokens_per_second"], rate.get(item["system"], 0.0)
                    )
            ratio = (
                f"{rate['ours'] / rate['hugging_face']:.2f}" if len(rate) == 2 else "not measured"
            )
            ratios.append([part, f"{dropout:g}", ratio, f"{target:g}"])
    print_table(["part", "variant", *columns, "note"], rows)
    print()
    print_table(
        ["part", "attention dropout", "ours to PyTorch, best of each, padded rows", "target"],
        ratios,
    )


def print_memory(results):
    names = [part for part in results["parts"] if part.startswith("memory-")]
    if not names:
        return
    print(
        f"\nMemory: TensorFlow has {results['memory_limit']:,} MB; "
        "the micro-batch is what --train_batch_size=auto found.\n"
    )
    columns = {
        "micro-batch": lambda item: item["micro_batch"] or "none fits",
        "accumulation": lambda item: item.get("accumulation", "-"),
        "tokens/s": lambda item: (
            f"{item['tokens_per_second']:,.0f}" if "tokens_per_second" in item else "-"
        ),
        "peak GB": lambda item: (
            f"{item['peak_bytes'] / 2**30:.2f}" if "peak_bytes" in item else "-"
        ),
        "search s": lambda item: f"{item['search_seconds']:.0f}",
    }
    rows = []
    for part in names:
        items = results["parts"][part]["items"]
        rows += [
            [part.removeprefix("memory-"), name, *cells(items[name], list(columns.values()))]
            for name in TECHNIQUES
            if name in items
        ]
    print_table(["model, S", "technique", *columns, "note"], rows)


def show(value):
    if isinstance(value, dict):
        return ", ".join(f"{name} {show(part)}" for name, part in value.items())
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def print_others(results):
    """Prints the parts whose items have only a few values."""
    chosen = {
        "attention": ("plain", "cudnn", "agrees", "speedup"),
        "input": ("rows", "steps", "tokens_per_second", "padded_tokens_per_second", "input_wait"),
        "replicas": ("rows", "steps", "largest_difference", "stopped_at", "seconds"),
        "precision": ("rows", "skipped_steps", "loss_scale", "tokens_per_second"),
        "crammed": ("steps", "validation", "pairs"),
        "bert": ("steps", "validation", "pairs"),
    }
    for part in (name for name in chosen if name in results["parts"]):
        rows = []
        for name, item in results["parts"][part]["items"].items():
            values = {field: item[field] for field in chosen[part] if field in item}
            if "losses" in item:
                values |= dict(first_loss=item["losses"][0], last_loss=item["losses"][-1])
            if item.get("tokens"):
                values |= dict(million_tokens=item["tokens"][-1])
            rows.append([name, show(values) or note(item)])
        print(f"\n{part}\n")
        print_table(["item", "result"], rows)


def print_results(results):
    print(f"{show(results.get('hardware', {}))}\n{show(results.get('versions', {}))}")
    if results.get("parts"):
        print_speed(results)
        print_memory(results)
        print_others(results)
    missing = [name for name in PARTS if name not in results.get("parts", {})]
    if missing:
        print(f"\nParts not run: {', '.join(missing)}")


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json")
    parser.add_argument(
        "--part",
        type=names_among(PARTS),
        help="comma-separated names; default: all, in the order of --list",
    )
    parser.add_argument(
        "--list", action="store_true", help="list the parts and their items and exit"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the tables of the JSON file and exit"
    )
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--plots", help="folder for PNGs")
    parser.add_argument(
        "--again", action="store_true", help="measure again items that have a result"
    )
    parser.add_argument("--part_seconds", type=float, default=PART_SECONDS)
    add_python(parser, "--torch_python", "torch and transformers")
    parser.add_argument(
        "--work", help="folder of data and runs, kept for later parts; default: a temporary one"
    )
    parser.add_argument(
        "--memory_limit",
        type=int,
        default=7500,
        help="MB that TensorFlow may take in the memory parts",
    )
    parser.add_argument(
        "--record_minutes", type=float, default=6.0, help="training time of a run of record"
    )
    parser.add_argument(
        "--record_flag",
        action="append",
        default=[],
        help="an extra flag for the training of a run of record",
    )
    return parser


def main():
    options = make_parser().parse_args()
    names = options.part or [name for name in PARTS if not options.small or name not in LIKE_OTHERS]
    if options.list:
        setup = make_setup(options, gpu=False, work=None, torch_python=None)
        print(*(f"{name}: {item}" for name in names for item, _ in PARTS[name](setup)), sep="\n")
        return
    results = read_results(options.json)
    if results.get("small", options.small) != options.small and not options.table:
        make_parser().error(
            f"--json={options.json}: holds results of "
            f"{'toy' if results['small'] else 'full'} sizes; name another file"
        )
    if not options.table:
        run(names, options, results)
    print_results(results)
    if options.plots:
        written = gpu_plots.draw(results, options.plots)
        print(
            "\n"
            + (
                "\n".join(map(str, written))
                or "no curves drawn: none measured, or matplotlib is not installed"
            )
        )


def make_setup(options, **found):
    """found: the fields that are not flags."""
    fields = ("small", "text", "memory_limit", "record_minutes")
    return Setup(
        **{name: getattr(options, name) for name in fields},
        record_flags=options.record_flag,
        **found,
    )


def run(names, options, results):
    machine = hardware()
    if machine["gpu"] is None and not options.small:
        raise SystemExit(
            "no GPU here (nvidia-smi names none): --small runs every part at a toy size on the CPU"
        )
    results |= dict(hardware=machine, small=options.small, memory_limit=options.memory_limit)
    with work_folder(options.work) as work:
        setup = make_setup(
            options,
            gpu=machine["gpu"] is not None,
            work=work,
            torch_python=find_torch(options.torch_python),
            rates=results.get("rates", {}),
            versions=results.get("versions", {}),
        )
        for name in names:
            measure(name, setup, results, options, lambda: write_results(options.json, results))


if __name__ == "__main__":
    main()
