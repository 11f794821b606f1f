#!/usr/bin/env python3
"""Compares the training step with its peers, in one run on the CPU: Model Garden's
BertPretrainerV2, Hugging Face's BertForPreTraining.

    BERT_GPU_ORACLE_PYTHON=PYTHON python benchmarks/training.py [--json=docs/data/training.json]

All have the same shape, batch, masked positions, dropout, clipping and AdamW. Every variant has its
own process, which stays warm, and they take turns. A variant that is --drop times slower than the
best of its own system and precision in its first turn gets no other: its row says 1 turn. The
values of the others are medians of the later turns. PYTHON is an environment with torch and
transformers.
"""

import itertools
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
    run_script,
    work_folder,
)
from helpers.process import Peer, median_step
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import flops_per_token, shape_of

SYSTEMS = {
    "ours": "bert-gpu",
    "garden": "Model Garden",
    "hugging_face": "Hugging Face",
    "as_shipped": "Hugging Face as shipped",
}
TORCH = ("hugging_face", "as_shipped")
PEERS = ("garden", "hugging_face", "as_shipped")
TARGETS = {"float32": 1.0, "bfloat16": 2.0}  # tokens/s of our best to that of each peer
MFU_TARGETS = {"float32": 0.8}
PACKED_TARGET = 1.5  # real tokens/s of packed rows to those of padded sentence pairs
PRECISIONS = ("float32", "bfloat16")


def variants():
    """{name: (system, settings)}; likely fastest first, so that slower ones are dropped early."""
    found = {}
    for precision in reversed(PRECISIONS):
        found[f"ours {precision}"] = ("ours", dict(precision=precision, xla="off"))
        found[f"ours {precision}, not deterministic"] = (
            "ours",
            dict(precision=precision, xla="off", deterministic=False),
        )
        found[f"ours {precision}, XLA"] = ("ours", dict(precision=precision, xla="on"))
        found[f"Model Garden {precision}"] = ("garden", dict(precision=precision))
        found[f"Model Garden {precision}, XLA"] = ("garden", dict(precision=precision, xla=True))
        found[f"Hugging Face {precision}, torch.compile"] = (
            "hugging_face",
            dict(precision=precision, compiled=True),
        )
        found[f"Hugging Face {precision}, eager"] = ("hugging_face", dict(precision=precision))
        found[f"Hugging Face {precision}, eager, plain attention"] = (
            "hugging_face",
            dict(precision=precision, attention="eager"),
        )
        found[f"as shipped {precision}, torch.compile"] = (
            "as_shipped",
            dict(precision=precision, compiled=True, gathered=False),
        )
        found[f"as shipped {precision}, eager"] = (
            "as_shipped",
            dict(precision=precision, gathered=False),
        )
    return found


def group(result):
    """(system, precision) of a result: what a variant is compared within."""
    return result["system"], result["settings"]["precision"]


class Contest:
    """Variants of one row of the table. python: of the Hugging Face peers, or None."""

    def __init__(self, python, drop, turns, seconds):
        self.python, self.drop, self.num_turns, self.seconds = python, drop, turns, seconds

    def run(self, entries, rows):
        """{name: result}: a result has step_seconds, turns, peak_bytes and the report of the first
        steps; or "error".

        entries: {name: (system, settings)}.
        """
        results, peers, best = {}, {}, {}
        try:
            for name, (system, settings) in entries.items():
                if system in TORCH and self.python is None:
                    results[name] = dict(
                        system=system, error="no environment with torch: give --oracle_python"
                    )
                    continue
                try:
                    results[name] = dict(system=system, settings=settings) | self.start(
                        peers, name, rows, system, settings
                    )
                except Failed as problem:
                    results[name] = dict(system=system, error=str(problem))
                    if name in peers:
                        peers.pop(name).close()
                    continue
                first = results[name]["turns"][0]["step_seconds"]
                best[group(results[name])] = min(first, best.get(group(results[name]), first))
                slow = [
                    other
                    for other in peers
                    if results[other]["turns"][0]["step_seconds"]
                    > self.drop * best[group(results[other])]
                ]
                for other in slow:
                    peers.pop(other).close()
                print(f"  {name}: {1e3 * first:,.0f} ms", file=sys.stderr, flush=True)
            for _ in range(self.num_turns):
                for name in list(peers):
                    try:
                        results[name]["turns"].append(peers[name].ask("turn", seconds=self.seconds))
                        results[name]["peak_bytes"] = peers[name].ask("peak_bytes")
                    except Failed as problem:
                        results[name] = dict(system=results[name]["system"], error=str(problem))
                        peers.pop(name).close()
            for name in peers:
                results[name] |= dict(
                    turns=results[name]["turns"][1:] or results[name]["turns"], took_turns=True
                )
        finally:
            for peer in peers.values():
                peer.close()
        for result in results.values():
            if "error" not in result:
                result["step_seconds"] = median_step(result["turns"])
        return results

    def start(self, peers, name, rows, system, settings):
        """Starts a variant's process and gives it its first turn."""
        peers[name] = Peer(
            "hugging_face" if system in TORCH else system,
            settings,
            self.python if system in TORCH else None,
        )
        ready = peers[name].ask("prepare", rows=rows)
        if not ready.pop("fits"):
            raise Failed(f"out of memory: {ready['error']}")
        turn = peers[name].ask("turn", seconds=self.seconds)
        return ready | dict(turns=[turn], peak_bytes=peers[name].ask("peak_bytes"))


def matrix_rates(python, seconds):
    """{precision: FLOP/s of a large matrix product}: the faster of TensorFlow's and, if installed,
    PyTorch's.
    """
    shape, rates = shape_of("tiny"), dict.fromkeys(PRECISIONS, 0.0)
    for system, own in (("ours", None), ("hugging_face", python)):
        if system == "hugging_face" and python is None:
            continue
        with Peer(system, dict(shape=shape, length=32), own) as peer:
            for precision in PRECISIONS:
                rates[precision] = max(
                    rates[precision],
                    peer.ask("matrix_rate", precision=precision, seconds=min(2.0, seconds)),
                )
    return rates


def race(options, rates):
    """The rows of the comparison: [dict with a model, S and the variants' results]."""
    contest, rows = Contest(options.oracle_python, options.drop, options.turns, options.seconds), []
    for model in options.models.split(","):
        for length in map(int, options.lengths.split(",")):
            batch = max(1, options.tokens // length)
            common = dict(shape=shape_of(model), length=length)
            chosen = {
                name: entry for name, entry in variants().items() if re.search(options.only, name)
            }
            entries = {
                name: (system, common | settings) for name, (system, settings) in chosen.items()
            }
            print(f"{model}, S {length}, {batch} rows", file=sys.stderr, flush=True)
            results = contest.run(entries, batch)
            for result in results.values():
                if "error" not in result:
                    result["tokens_per_second"] = batch * length / result["step_seconds"]
                    rate = rates[group(result)[1]]
                    result["mfu"] = (
                        result["tokens_per_second"] * flops_per_token(model, length) / rate
                    )
            rows.append(dict(model=model, length=length, rows=batch, variants=results))
            yield rows[-1]


def best_of(row, system, precision):
    """(name, result) of the fastest of a system's variants of this precision that took turns;
    (None, None) when none did.
    """
    measured = [
        (result["tokens_per_second"], name, result)
        for name, result in row["variants"].items()
        if result.get("took_turns") and group(result) == (system, precision)
    ]
    return max(measured)[1:] if measured else (None, None)


def show_best(name, result, precision):
    """The tokens/s, and what the variant has beside its system and precision."""
    if name is None:
        return "not measured"
    detail = name.partition(f" {precision}")[2].lstrip(", ")
    return f"{result['tokens_per_second']:,.0f}" + (f" ({detail})" if detail else "")


def reached(value, target, shown):
    """`shown`, with a word where it misses the target."""
    return shown if target is None else f"{shown}{', missed' if value < target else ''}"


def print_race(rows, rates):
    measured = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in rates.items())
    print(
        f"\nMatrix products reach {measured}; MFU is against the rate "
        "of the variant's precision. * = the fastest of its system.\n"
    )
    cells = []
    for row in rows:
        fastest = {best_of(row, *each)[0] for each in itertools.product(SYSTEMS, PRECISIONS)}
        for name, result in row["variants"].items():
            start = [
                row["model"],
                row["length"],
                row["rows"],
                name + (" *" if name in fastest else ""),
            ]
            if "error" in result:
                cells.append([*start, "-", "-", "-", "-", result["error"][:60]])
                continue
            measured = [
                f"{1e3 * result['step_seconds']:,.0f}",
                f"{result['tokens_per_second']:,.0f}",
                f"{100 * result['mfu']:.0f} %",
            ]
            cells.append(
                [*start, *measured, f"{result['peak_bytes'] / 2**20:,.0f}", len(result["turns"])]
            )
    print_table(
        ["model", "S", "rows", "variant", "ms a step", "tokens/s", "MFU", "peak MB", "turns"], cells
    )
    for precision in PRECISIONS:
        print_bests(rows, precision)
    print(
        "\nHugging Face's masked positions are gathered before its head; "
        "as shipped, the class computes the scores of all S positions.\n"
        "All have the exact GELU; peak MB is the largest resident set "
        "of the process, its libraries included. tokens/s counts all\n"
        "positions of the rows; a tenth of the rows, at least one, is short.\n"
    )


def print_bests(rows, precision):
    """The best of each system in one precision; nothing when none was measured in it."""
    target, mfu_target, cells = TARGETS[precision], MFU_TARGETS.get(precision), []
    for row in rows:
        name, mine = best_of(row, "ours", precision)
        mfu = (
            "-" if name is None else reached(mine["mfu"], mfu_target, f"{100 * mine['mfu']:.0f} %")
        )
        line = [row["model"], row["length"], show_best(name, mine, precision), mfu]
        for system in PEERS:
            theirs_name, theirs = best_of(row, system, precision)
            line.append(show_best(theirs_name, theirs, precision))
            if None in (name, theirs_name):
                line.append("-")
                continue
            ratio = mine["tokens_per_second"] / theirs["tokens_per_second"]
            line.append(reached(ratio, target, f"{ratio:.2f}"))
        cells.append(line)
    if all(best_of(row, system, precision)[0] is None for row in rows for system in SYSTEMS):
        return
    goals = f"target: {target:g} x each peer" + (f", MFU {mfu_target:g}" if mfu_target else "")
    print(f"\n{precision}, tokens/s of each system's best ({goals}):\n")
    heads = [head for system in PEERS for head in (SYSTEMS[system], "ours to it")]
    print_table(["model", "S", "ours", "MFU", *heads], cells)


def short_documents(text, target, seed=0):
    """Splits the documents of a text into short ones of one to four sentences."""
    rng, lines = np.random.default_rng(seed), []
    for document in pathlib.Path(text).read_text(encoding="utf-8").split("\n\n"):
        sentences = [line for line in document.splitlines() if line.strip()]
        while sentences:
            count = int(rng.integers(1, 5))
            lines += [*sentences[:count], ""]
            sentences = sentences[count:]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def build(text, folder, **flags):
    common = dict(
        input_file=text,
        output_file=f"{folder}/x.tfrecord",
        validation_share=0,
        dupe_factor=1,
        masking="dynamic",
    )
    run_script("create_pretraining_data.py", **common, **flags)


def packed_comparison(options):
    """{"packed" | "padded": result} for both kinds of rows, made of the same short documents and
    measured through reading, masking and training.
    """
    with work_folder() as work:
        short_documents(options.text, work / "short.txt")
        length = dict(max_seq_length=options.packed_length)
        build(work / "short.txt", work / "padded", objective="nsp", **length)
        build(
            work / "short.txt",
            work / "packed",
            objective="packed",
            vocab_file=f"{work}/padded/vocab.txt",
            **length,
        )
        common = dict(shape=shape_of(options.packed_model), length=options.packed_length, xla="off")
        contest = Contest(None, float("inf"), options.turns, options.seconds)
        batch = max(1, options.tokens // options.packed_length)
        entries = {
            f"{kind} {precision}": (
                "ours",
                common | dict(precision=precision, data=str(work / kind)),
            )
            for precision in PRECISIONS
            for kind in ("packed", "padded")
        }
        results = contest.run(entries, batch)
    for result in results.values():
        if "error" not in result:
            result["real_tokens_per_second"] = statistics.median(
                t["real_tokens"] / t["step_seconds"] for t in result["turns"]
            )
            num_positions = batch * options.packed_length
            result["real_share"] = (
                statistics.mean(turn["real_tokens"] for turn in result["turns"]) / num_positions
            )
    return dict(
        model=options.packed_model, length=options.packed_length, rows=batch, variants=results
    )


def print_packed(found):
    print(
        f"Short documents (one to four sentences), {found['model']}, "
        f"S {found['length']}, {found['rows']} rows, whole step and input:\n"
    )
    cells = []
    for name, result in found["variants"].items():
        if "error" in result:
            cells.append([name, "-", "-", "-", result["error"][:80]])
            continue
        partner = (
            found["variants"]
            .get(name.replace("packed", "padded"), {})
            .get("real_tokens_per_second")
        )
        ratio = (
            ""
            if not name.startswith("packed") or not partner
            else f"{result['real_tokens_per_second'] / partner:.2f}"
        )
        tokens_per_second, share = result["real_tokens_per_second"], result["real_share"]
        cells.append(
            [
                name,
                f"{1e3 * result['step_seconds']:,.0f}",
                f"{100 * share:.0f} %",
                f"{tokens_per_second:,.0f}",
                ratio,
            ]
        )
    print_table(
        [
            "rows",
            "ms a step",
            "real tokens",
            "real tokens/s",
            f"packed to padded (target {PACKED_TARGET:g})",
        ],
        cells,
    )


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json")
    parser.add_argument("--models", default="mini,small,6x512")
    parser.add_argument("--lengths", default="128,512")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step: rows x S")
    parser.add_argument(
        "--turns", type=int, default=5, help="turns of each variant after its first"
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="length of a turn, which has at least one step"
    )
    parser.add_argument(
        "--drop",
        type=float,
        default=1.3,
        help="drop a variant this many times slower than its system's best in the first turn",
    )
    parser.add_argument(
        "--only", default="", help="regular expression for the names of the variants to run"
    )
    parser.add_argument(
        "--list", action="store_true", help="list the variants of the race and exit"
    )
    parser.add_argument("--part", type=names_among(("race", "packed")), default=["race", "packed"])
    parser.add_argument("--packed_model", default="small")
    parser.add_argument("--packed_length", type=int, default=128)
    add_python(parser, "--oracle_python", "torch and transformers")
    return parser


def main():
    options = make_parser().parse_args()
    if options.list:
        print(*(name for name in variants() if re.search(options.only, name)), sep="\n")
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    source = origin()
    results = read_results(options.json) | source
    print_origin(source)

    def keep(**parts):
        results.update(parts)
        write_results(options.json, results)

    if "race" in options.part:
        rates, rows = matrix_rates(options.oracle_python, options.seconds), []
        for row in race(options, rates):
            rows.append(row)
            keep(matrix_rates=rates, race=rows)
        print_race(rows, rates)
    if "packed" in options.part:
        found = packed_comparison(options)
        keep(packed=found)
        print_packed(found)


if __name__ == "__main__":
    main()
