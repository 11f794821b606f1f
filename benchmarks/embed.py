#!/usr/bin/env python3
"""Compares embeddings ([CLS]) and words behind [MASK] with Hugging Face's on PyTorch, same weights,
in one run on the CPU in float32.

    BERT_GPU_ORACLE_PYTHON=PYTHON python benchmarks/embed.py [--model=mini] [--lines=10000]

The texts are sentences of the sample; in each, one word is [MASK] for the second task. A system
has its own process and is first run on a part of the texts with several batch sizes; with the best
it takes turns with the others on all of them. Values are medians of the turns; compiling and
loading are not counted. "Hugging Face sorted" is the same loop over lines sorted by length.
--threads=1 is for a machine that does other work, too: PyTorch's threads wait for each other, and
lose more than TensorFlow's where one has no core. PYTHON is an environment with torch and
transformers.
"""

import json
import os
import statistics
import sys

import numpy as np
from helpers.command import Failed, add_python, benchmark_parser, work_folder
from helpers.models import make_model
from helpers.process import Peer
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import SHAPES

SYSTEMS = {
    "ours": ("inference_ours", {}, (1024, 2048, 4096)),  # batches in tokens
    "Hugging Face": ("inference_hugging_face", dict(is_sorted=False), (8, 32, 128)),  # in lines
    "Hugging Face sorted": ("inference_hugging_face", dict(is_sorted=True), (8, 32, 128)),
}
TASKS = ("embed", "fill_mask")


def read_texts(path, count):
    """(lines, the same with one word masked) of a text: sentences of at least two words."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if len(line.split()) > 1][:count]
    generator, masked = np.random.default_rng(0), []
    for line in lines:
        words = line.split()
        words[generator.integers(len(words))] = "[MASK]"
        masked.append(" ".join(words))
    return lines, masked


def best_batch(peer, task, batches, count):
    """The batch of most lines/s on the first `count` texts."""
    seconds = {}
    for batch in batches:
        peer.ask("open", task=task, batch=batch)
        seconds[batch] = peer.ask("run", task=task, count=count)
    return min(seconds, key=seconds.get)


def race(options, folder, task, num_lines):
    """{system: dict of batch, seconds of each turn, largest difference from ours}."""
    results, peers, python = {}, {}, options.oracle_python
    try:
        for name, (script, settings, batches) in SYSTEMS.items():
            theirs = name != "ours"
            if theirs and python is None:
                results[name] = dict(error="no environment with torch: give --oracle_python")
                continue
            try:
                given = dict(model=str(folder / "model"), texts=str(folder / "texts.json"))
                peers[name] = Peer(script, given | settings, python if theirs else None)
                batch = best_batch(peers[name], task, batches, min(num_lines, options.tuning))
                peers[name].ask("open", task=task, batch=batch)
                results[name] = dict(batch=batch, seconds=[])
            except Failed as problem:
                results[name] = dict(error=str(problem))
                if name in peers:
                    peers.pop(name).close()
        for turn in range(options.turns):
            for name, peer in peers.items():
                output = str(folder / f"{task}-{name}.npy") if turn == 0 else None
                seconds = peer.ask("run", patience=3600, task=task, count=num_lines, output=output)
                results[name]["seconds"].append(seconds)
                print(f"  {task}, {name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    finally:
        for peer in peers.values():
            peer.close()
    ours = np.load(folder / f"{task}-ours.npy")
    for name in peers:
        found = np.load(folder / f"{task}-{name}.npy")
        results[name]["difference"] = float(np.abs(found - ours).max())
    return results


def rows_of(task, results, num_lines):
    """Rows of the table."""
    ours = statistics.median(results["ours"]["seconds"])
    for name, result in results.items():
        if "error" in result:
            yield [task, name, "", "", "", result["error"]]
            continue
        seconds = statistics.median(result["seconds"])
        unit = "tokens" if name == "ours" else "lines"
        yield [
            task,
            name,
            f"{result['batch']} {unit}",
            f"{num_lines / seconds:,.0f}",
            f"{seconds / ours:.2f}",
            f"{result['difference']:.0e}",
        ]


def make_parser():
    parser = benchmark_parser(__doc__, "text", "json")
    parser.add_argument("--model", default="mini", choices=sorted(SHAPES), help="shape")
    parser.add_argument("--lines", type=int, default=10_000, help="texts")
    parser.add_argument("--tuning", type=int, default=500, help="texts that batches are chosen on")
    parser.add_argument("--turns", type=int, default=3, help="turns of each system")
    parser.add_argument("--threads", type=int, help="of each system; default: its own choice")
    add_python(parser, "--oracle_python", "torch and transformers")
    return parser


def main():
    options = make_parser().parse_args()
    if options.threads:
        names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        os.environ |= dict.fromkeys(names, str(options.threads))
    found = origin()
    print_origin(found)
    lines, masked = read_texts(options.text, options.lines)
    with work_folder() as folder:
        make_model(folder, options.text, options.model)
        texts = dict(embed=lines, fill_mask=masked)
        (folder / "texts.json").write_text(json.dumps(texts))
        results = {task: race(options, folder, task, len(lines)) for task in TASKS}
    print(f"{options.model}, {len(lines):,} lines, float32\n")
    print_table(
        ("task", "system", "batch", "lines/s", "time to ours", "largest difference"),
        [row for task in TASKS for row in rows_of(task, results[task], len(lines))],
    )
    stored = read_results(options.json)
    key = f"{options.model}, {len(lines)} lines"
    write_results(options.json, stored | {key: found | dict(results=results)})


if __name__ == "__main__":
    main()
