#!/usr/bin/env python3
"""Compares the training step with its peers, in one run on the CPU: Model Garden's
BertPretrainerV2, Hugging Face's BertForPreTraining.

    BERT_GPU_ORACLE_PYTHON=PYTHON python benchmarks/training.py [--json=docs/data/training.json]

All have the same shape, batch, masked positions, dropout, clipping and AdamW. Every variant has its
own process, which stays warm, and they take turns. A variant that is --drop times slower than the
best of its own system and precision in its first turn gets no other: its row has 1 turn. The
values of the others are medians of the later turns. PYTHON is an environment with torch and
transformers.
"""

import os
import pathlib
import re
import statistics
import sys

import numpy as np
from helpers.command import (
    Failed,
    add_python,
    benchmark_parser,
    names_among,
    numbers,
    run_script,
    work_folder,
)
from helpers.process import Peer, Race, median_step
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import SHAPES, flops_per_token, shape_of

PEERS = ("Model Garden", "Hugging Face", "as shipped")
TARGETS = {"float32": 1.0, "bfloat16": 2.0}  # our best tokens/s divided by that of each peer
MFU_TARGETS = {"float32": 0.8}
# the model whose layers are global or local: mini with more layers, and without dropout
LOCAL_SHAPE = dict(
    num_hidden_layers=6,
    max_position_embeddings=8192,
    position_embedding_type="rotary",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
LOCAL_WINDOW = 128
PACKED_TARGET = 1.5  # real tokens/s of packed rows divided by those of padded sentence pairs
PRECISIONS = ("float32", "bfloat16")
# {system: (script, {variant: settings})}; likely fastest first, because slower ones are dropped
SETTINGS = {
    "ours": (
        "ours",
        {
            "": dict(xla="off"),
            ", not deterministic": dict(xla="off", deterministic=False),
            ", XLA": dict(xla="on"),
        },
    ),
    "Model Garden": ("model_garden", {"": {}, ", XLA": dict(xla=True)}),
    "Hugging Face": (
        "hugging_face",
        {
            ", torch.compile": dict(compiled=True),
            ", eager": {},
            ", eager, plain attention": dict(attention="eager"),
        },
    ),
    "as shipped": (
        "hugging_face",
        {
            ", torch.compile": dict(compiled=True, gathered=False),
            ", eager": dict(gathered=False),
        },
    ),
}


def variants(pattern=""):
    """Return {name: (system, script, settings)} of the variants whose name matches the pattern."""
    return {
        name: (system, script, settings | dict(precision=precision))
        for precision in reversed(PRECISIONS)
        for system, (script, entries) in SETTINGS.items()
        for variant, settings in entries.items()
        if re.search(pattern, name := f"{system} {precision}{variant}")
    }


def group(result):
    """Return (system, precision) of a result: what a variant is compared within."""
    return result["system"], result["settings"]["precision"]


def first_turn(peer, rows, seconds):
    """Return the report of the first steps of a process, and one turn."""
    ready = peer.ask("prepare", rows=rows)
    if not ready.pop("fits"):
        raise Failed(f"out of memory: {ready['error']}")
    return ready | dict(turns=[peer.ask("turn", seconds=seconds)])


def measure(options, entries, rows, drop):
    """Return {name: result}: a result has step_seconds, turns, peak_bytes and the report of the
    first steps, or "error". entries: {name: (system, script, settings)}.
    """

    def turn(name, peer, result):
        result["turns"].append(peer.ask("turn", seconds=options.seconds))
        result["peak_bytes"] = peer.ask("peak_bytes")
        result["took_turns"] = True

    with Race(options.oracle_python) as race:
        for name, (system, script, settings) in entries.items():
            facts = dict(system=system, settings=settings)
            race.start(
                name,
                script,
                settings,
                lambda peer, facts=facts: (
                    facts
                    | first_turn(peer, rows, options.seconds)
                    | dict(peak_bytes=peer.ask("peak_bytes"))
                ),
            )
            drop_slow(race, drop)
            print(f"  {name}", file=sys.stderr, flush=True)
        for _ in range(options.turns):
            race.turn(turn)
    for result in race.results.values():
        if "error" not in result:
            result["turns"] = result["turns"][1:] or result["turns"]
            result["step_seconds"] = median_step(result["turns"])
    return race.results


def drop_slow(race, drop):
    """End the processes of variants `drop` times slower than the best of their group."""
    first = {name: race.results[name]["turns"][0]["step_seconds"] for name in race.peers}
    groups = {name: group(race.results[name]) for name in first}
    for name, seconds in first.items():
        best = min(first[other] for other in first if groups[other] == groups[name])
        if seconds > drop * best:
            race.drop(name)


def matrix_rates(python, seconds):
    """Return {precision: FLOP/s of a large matrix product}: the faster of TensorFlow's and, if
    installed, PyTorch's.
    """
    rates = dict.fromkeys(PRECISIONS, 0.0)
    for system in ("ours", "hugging_face") if python else ("ours",):
        settings = dict(shape=shape_of("tiny"), length=32)
        with Peer(system, settings, python if system == "hugging_face" else None) as peer:
            for name in PRECISIONS:
                rate = peer.ask("matrix_rate", precision=name, seconds=min(2.0, seconds))
                rates[name] = max(rates[name], rate)
    return rates


def race_rows(options, rates):
    """Yield the rows of the comparison: dicts with a model, S and the variants' results."""
    for model in options.models:
        for length in options.lengths:
            batch = max(1, options.tokens // length)
            common = dict(shape=shape_of(model), length=length)
            entries = {
                name: (system, script, common | settings)
                for name, (system, script, settings) in variants(options.only).items()
            }
            print(f"{model}, S {length}, {batch} rows", file=sys.stderr, flush=True)
            results = measure(options, entries, batch, options.drop)
            flops = flops_per_token(model, length)
            for result in results.values():
                if "error" not in result:
                    speed = batch * length / result["step_seconds"]
                    mfu = speed * flops / rates[group(result)[1]]
                    result |= dict(tokens_per_second=speed, mfu=mfu)
            yield dict(model=model, length=length, rows=batch, variants=results)


def best_of(row, system, precision):
    """Return (name, result) of the fastest of a system's variants of this precision that took
    turns; (None, None) when none did.
    """
    candidates = [
        (result["tokens_per_second"], name, result)
        for name, result in row["variants"].items()
        if result.get("took_turns") and group(result) == (system, precision)
    ]
    return max(candidates)[1:] if candidates else (None, None)


def format_best(name, result, precision):
    """Return the tokens/s, and how the variant differs from others of its system and precision."""
    if name is None:
        return "not measured"
    detail = name.partition(f" {precision}")[2].lstrip(", ")
    return f"{result['tokens_per_second']:,.0f}" + (f" ({detail})" if detail else "")


def missed(value, target):
    return ", missed" if target is not None and value < target else ""


def print_race(rows, rates):
    measured = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in rates.items())
    print(
        f"\nMatrix products reach {measured}; MFU is against the rate of the variant's precision. "
        "* = the fastest of its system.\n"
    )
    table = []
    for row in rows:
        fastest = {best_of(row, system, name)[0] for system in SETTINGS for name in PRECISIONS}
        for name, result in row["variants"].items():
            mark = " *" if name in fastest else ""
            start = [row["model"], row["length"], row["rows"], name + mark]
            if "error" in result:
                table.append([*start, "-", "-", "-", "-", result["error"][:60]])
                continue
            cells = [
                f"{1e3 * result['step_seconds']:,.0f}",
                f"{result['tokens_per_second']:,.0f}",
                f"{100 * result['mfu']:.0f} %",
                f"{result['peak_bytes'] / 2**20:,.0f}",
                len(result["turns"]),
            ]
            table.append([*start, *cells])
    header = ["model", "S", "rows", "variant", "ms a step", "tokens/s", "MFU", "peak MB", "turns"]
    print_table(header, table)
    for precision in PRECISIONS:
        if any(best_of(row, system, precision)[0] for row in rows for system in SETTINGS):
            print_bests(rows, precision)
    print(
        "\nHugging Face's masked positions are gathered before its head; as shipped, the class "
        "computes the scores of all S positions.\nAll have the exact GELU; peak MB is the largest "
        "resident set of the process, its libraries included. tokens/s counts all\npositions of "
        "the rows; a tenth of the rows, at least one, is short.\n"
    )


def print_bests(rows, precision):
    """Print the best of each system in one precision."""
    target, mfu_target = TARGETS[precision], MFU_TARGETS.get(precision)
    table = []
    for row in rows:
        name, ours = best_of(row, "ours", precision)
        mfu = "-"
        if name is not None:
            mfu = f"{100 * ours['mfu']:.0f} %{missed(ours['mfu'], mfu_target)}"
        cells = [row["model"], row["length"], format_best(name, ours, precision), mfu]
        for system in PEERS:
            their_name, theirs = best_of(row, system, precision)
            times = "-"
            if None not in (name, their_name):
                value = ours["tokens_per_second"] / theirs["tokens_per_second"]
                times = f"{value:.2f}{missed(value, target)}"
            cells += [format_best(their_name, theirs, precision), times]
        table.append(cells)
    goals = f"target: {target:g} x each peer" + (f", MFU {mfu_target:g}" if mfu_target else "")
    print(f"\n{precision}, tokens/s of each system's best ({goals}):\n")
    heads = [head for system in PEERS for head in (system, "ours to it")]
    print_table(["model", "S", "ours", "MFU", *heads], table)


def short_documents(text, target, seed=0):
    """Split the documents of a text into short ones of one to four sentences."""
    rng = np.random.default_rng(seed)
    lines = []
    for document in pathlib.Path(text).read_text(encoding="utf-8").split("\n\n"):
        sentences = [line for line in document.splitlines() if line.strip()]
        while sentences:
            count = int(rng.integers(1, 5))
            lines += [*sentences[:count], ""]
            sentences = sentences[count:]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def packed_comparison(options):
    """Return the results of packed and of padded rows, made of the same short documents and
    measured through reading, masking and training.
    """
    length = options.packed_length
    batch = max(1, options.tokens // length)
    with work_folder() as work:
        short_documents(options.text, work / "short.txt")
        common = dict(input_file=work / "short.txt", validation_share=0, dupe_factor=1)
        common |= dict(masking="dynamic", max_seq_length=length)
        kinds = dict(
            padded=dict(objective="nsp"),
            packed=dict(objective="packed", vocab_file=f"{work}/padded/vocab.txt"),
        )
        for kind, flags in kinds.items():
            output = f"{work}/{kind}/x.tfrecord"
            run_script("create_pretraining_data.py", output_file=output, **common, **flags)
        settings = dict(shape=shape_of(options.packed_model), length=length, xla="off")
        entries = {
            f"{kind} {precision}": (
                "ours",
                "ours",
                settings | dict(precision=precision, data=str(work / kind)),
            )
            for precision in PRECISIONS
            for kind in ("packed", "padded")
            if re.search(options.only, f"{kind} {precision}")
        }
        results = measure(options, entries, batch, float("inf"))
    for result in results.values():
        if "error" not in result:
            turns = result["turns"]
            speeds = [turn["real_tokens"] / turn["step_seconds"] for turn in turns]
            real_tokens = statistics.mean(turn["real_tokens"] for turn in turns)
            result["real_tokens_per_second"] = statistics.median(speeds)
            result["real_share"] = real_tokens / (batch * length)
    return dict(model=options.packed_model, length=length, rows=batch, variants=results)


def local_comparison(options):
    """Yield the results of a model whose layers all have global attention, and of one in which two
    of three are local, for rows of each length.
    """
    shape = shape_of("mini") | LOCAL_SHAPE
    kinds = {"global": {}, "local": dict(local_attention=LOCAL_WINDOW)}
    for length in options.local_lengths:
        batch = max(1, options.tokens // length)
        entries = {
            f"{kind} {precision}": (
                "ours",
                "ours",
                dict(shape=shape | more, length=length, xla="off", precision=precision),
            )
            for precision in PRECISIONS
            for kind, more in kinds.items()
            if re.search(options.only, f"{kind} {precision}")
        }
        print(f"local attention, S {length}, {batch} rows", file=sys.stderr, flush=True)
        results = measure(options, entries, batch, float("inf"))
        for result in results.values():
            if "error" not in result:
                result["tokens_per_second"] = batch * length / result["step_seconds"]
        yield dict(length=length, rows=batch, variants=results)


def print_local(rows):
    layers = LOCAL_SHAPE["num_hidden_layers"]
    print(
        f"\nGlobal attention in all of {layers} layers x 256, and a window of {LOCAL_WINDOW} "
        "tokens in two of three:\n"
    )
    table = []
    for row in rows:
        for name, result in row["variants"].items():
            start = [row["length"], row["rows"], name]
            if "error" in result:
                table.append([*start, "-", "-", "-", result["error"][:60]])
                continue
            speed, times = result["tokens_per_second"], ""
            plain = row["variants"].get(name.replace("local", "global"), {})
            if name.startswith("local") and "tokens_per_second" in plain:
                times = f"{speed / plain['tokens_per_second']:.2f}"
            peak = f"{result['peak_bytes'] / 2**20:,.0f}"
            milliseconds = f"{1e3 * result['step_seconds']:,.0f}"
            table.append([*start, milliseconds, f"{speed:,.0f}", peak, times])
    header = ["S", "rows", "layers", "ms a step", "tokens/s", "peak MB", "local to global"]
    print_table(header, table)


def print_packed(results):
    print(
        f"Short documents (one to four sentences), {results['model']}, S {results['length']}, "
        f"{results['rows']} rows, whole step and input:\n"
    )
    table = []
    for name, result in results["variants"].items():
        if "error" in result:
            table.append([name, "-", "-", "-", result["error"][:80]])
            continue
        speed, times = result["real_tokens_per_second"], ""
        padded = results["variants"].get(name.replace("packed", "padded"), {})
        if name.startswith("packed") and "real_tokens_per_second" in padded:
            times = f"{speed / padded['real_tokens_per_second']:.2f}"
        milliseconds = f"{1e3 * result['step_seconds']:,.0f}"
        table.append([name, milliseconds, f"{100 * result['real_share']:.0f} %", f"{speed:,.0f}"])
        table[-1].append(times)
    last = f"packed to padded (target {PACKED_TARGET:g})"
    print_table(["rows", "ms a step", "real tokens", "real tokens/s", last], table)


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json")
    parser.add_argument("--models", type=names_among(SHAPES), default=["mini", "small", "6x512"])
    parser.add_argument("--lengths", type=numbers(int), default=[128, 512])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step: rows x S")
    parser.add_argument("--turns", type=int, default=5, help="turns of a variant after its first")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn; at least one step")
    parser.add_argument(
        "--drop",
        type=float,
        default=1.3,
        help="drop a variant this many times slower than its system's best in the first turn",
    )
    parser.add_argument("--only", default="", help="regular expression for names of variants")
    parser.add_argument("--list", action="store_true", help="list the variants and exit")
    parts = ["race", "packed", "local"]
    parser.add_argument("--part", type=names_among(parts), default=parts)
    parser.add_argument("--local_lengths", type=numbers(int), default=[512, 2048, 8192])
    parser.add_argument("--packed_model", default="small")
    parser.add_argument("--packed_length", type=int, default=128)
    add_python(parser, "--oracle_python", "torch and transformers")
    return parser


def main():
    options = make_parser().parse_args()
    if options.list:
        print(*variants(options.only), sep="\n")
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    source = origin()
    results = read_results(options.json) | source
    print_origin(source)
    if "race" in options.part:
        rates = matrix_rates(options.oracle_python, options.seconds)
        results |= dict(matrix_rates=rates, race=[])
        for row in race_rows(options, rates):
            results["race"].append(row)
            write_results(options.json, results)
        print_race(results["race"], rates)
    if "packed" in options.part:
        results["packed"] = packed_comparison(options)
        write_results(options.json, results)
        print_packed(results["packed"])
    if "local" in options.part:
        results["local"] = []
        for row in local_comparison(options):
            results["local"].append(row)
            write_results(options.json, results)
        print_local(results["local"])


if __name__ == "__main__":
    main()
