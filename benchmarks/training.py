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
import re
import sys

from helpers.command import (
    Failed,
    add_python,
    benchmark_parser,
    names_among,
    numbers,
)
from helpers.process import Peer, Race, median_step
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import SHAPES, flops_per_token, shape_of

PEERS = ("Model Garden", "Hugging Face", "as shipped")
TARGETS = {"float32": 1.0, "bfloat16": 2.0}  # our best tokens/s divided by that of each peer
MFU_TARGETS = {"float32": 0.8}
DEBERTA = dict(
    relative_attention=True, position_biased_input=False, share_att_key=True, type_vocab_size=0,
    norm_rel_ebd="layer_norm", position_buckets=256, pos_att_type=["p2c", "c2p"],
)  # fmt: skip
LONG = dict(max_position_embeddings=8192, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
EIGHT_BIT, RECOMPUTE = dict(optimizer="adamw8bit"), dict(recompute_every=1)
FOUR, DISTANCES = dict(micro_batches=4), dict(position_embedding_type="disentangled")
# {part: (shape, {kind of model or training: (script, changes of the shape, settings)})}; all kinds
# are compared with the first
COMPARED = {
    "local": (
        shape_of("mini") | LONG | dict(num_hidden_layers=6, position_embedding_type="rotary"),
        {"global": ("ours", {}, {}), "local": ("ours", dict(local_attention=128), {})},
    ),
    "disentangled": (
        shape_of("base") | dict(num_hidden_layers=6, vocab_size=32768),
        {
            "BERT": ("ours", {}, {}),
            "DeBERTa": ("ours", DISTANCES | dict(type_vocab_size=0), {}),
            "transformers' BERT": ("hugging_face", {}, {}),
            "transformers' DeBERTa": ("hugging_face", DEBERTA, {}),
        },
    ),
    "techniques": (
        shape_of("deberta-v3-small"),
        {
            "nothing": ("ours", {}, {}),
            "accumulation 4": ("ours", {}, FOUR),
            "embeddings frozen": ("ours", {}, dict(freeze=("embeddings",))),
            "embeddings and half of the layers frozen": (
                "ours", {}, dict(freeze=("embeddings", "layers:3")),
            ),
            "recompute": ("ours", {}, RECOMPUTE),
            "adamw8bit": ("ours", {}, EIGHT_BIT),
            "recompute, adamw8bit, accumulation 4": ("ours", {}, EIGHT_BIT | RECOMPUTE | FOUR),
        },
    ),
}  # fmt: skip
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


def comparison(options, part, lengths):
    """Yield the results of a part of COMPARED for rows of each length."""
    shape, kinds = COMPARED[part]
    for length in lengths:
        batch = max(1, options.tokens // length)
        common = dict(length=length)
        entries = {
            name: (script, script, common | how | dict(shape=shape | more, precision=precision))
            for precision in PRECISIONS
            for kind, (script, more, how) in kinds.items()
            if re.search(options.only, name := f"{kind}, {precision}")
        }
        print(f"{part}, S {length}, {batch} rows", file=sys.stderr, flush=True)
        # large models take turns of their own, because a machine's memory does not hold all of them
        groups = [{name: entries[name]} for name in entries] if part == "techniques" else [entries]
        results = {}
        for some in groups:
            results |= measure(options, some, batch, float("inf"))
        for result in results.values():
            if "error" not in result:
                result["tokens_per_second"] = batch * length / result["step_seconds"]
        yield dict(length=length, rows=batch, variants=results)


def print_comparison(part, rows):
    shape, kinds = COMPARED[part]
    first = next(iter(kinds))
    print(f"\n{shape['num_hidden_layers']} layers x {shape['hidden_size']}, {part}:\n")
    table = []
    for row in rows:
        for name, result in row["variants"].items():
            start = [row["length"], row["rows"], name]
            if "error" in result:
                table.append([*start, "-", "-", "-", result["error"][:60]])
                continue
            plain = row["variants"].get(f"{first}, {name.rpartition(', ')[2]}", {})
            times = f"{result['step_seconds'] / plain.get('step_seconds', float('nan')):.2f}"
            peak = f"{result['peak_bytes'] / 2**20:,.0f}"
            speed = f"{result['tokens_per_second']:,.0f}"
            table.append([*start, f"{1e3 * result['step_seconds']:,.0f}", speed, peak, times])
    header = ["S", "rows", "variant", "ms a step", "tokens/s", "peak MB", f"to {first}"]
    print_table(header, table)


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
    parts = ["race", *COMPARED]
    parser.add_argument("--part", type=names_among(parts), default=parts)
    parser.add_argument("--local_lengths", type=numbers(int), default=[512, 2048, 8192])
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
    for part in [part for part in COMPARED if part in options.part]:
        results[part] = []
        lengths = options.local_lengths if part == "local" else options.lengths
        for row in comparison(options, part, lengths):
            results[part].append(row)
            write_results(options.json, results)
        print_comparison(part, results[part])


if __name__ == "__main__":
    main()
