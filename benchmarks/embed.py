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
from helpers.command import add_python, benchmark_parser, work_folder
from helpers.models import make_model
from helpers.process import Race
from helpers.report import origin, print_origin, print_table, read_results, write_results
from helpers.shapes import SHAPES

SYSTEMS = {
    "ours": ("inference_ours", {}, (1024, 2048, 4096)),  # batches in tokens
    "Hugging Face": ("inference_hugging_face", dict(is_sorted=False), (8, 32, 128)),  # in lines
    "Hugging Face sorted": ("inference_hugging_face", dict(is_sorted=True), (8, 32, 128)),
}
TASKS = ("embed", "fill_mask")


def read_texts(path, count):
    """Return sentences of at least two words of a text, and the same with one word masked."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if len(line.split()) > 1][:count]
    generator = np.random.default_rng(0)
    masked = []
    for line in lines:
        words = line.split()
        words[generator.integers(len(words))] = "[MASK]"
        masked.append(" ".join(words))
    return dict(embed=lines, fill_mask=masked)


def open_best(peer, task, batches, count):
    """Open a task with the batch of most lines/s on the first `count` texts; return its result."""
    seconds = {}
    for batch in batches:
        peer.ask("open", task=task, batch=batch)
        seconds[batch] = peer.ask("run", task=task, count=count)
    best = min(seconds, key=seconds.get)
    peer.ask("open", task=task, batch=best)
    return dict(batch=best, seconds=[])


def compare(options, folder, num_lines):
    """Return {task: {system: {"batch", "seconds" of each turn, "difference" from ours}}}."""

    def open_task(name, peer, result):
        result[task] = open_best(peer, task, SYSTEMS[name][2], count)

    def turn(name, peer, result):
        output = None if result[task]["seconds"] else str(folder / f"{task}-{name}.npy")
        seconds = peer.ask("run", patience=3600, task=task, count=num_lines, output=output)
        result[task]["seconds"].append(seconds)
        print(f"  {task}, {name}: {seconds:.1f} s", file=sys.stderr, flush=True)

    count = min(num_lines, options.tuning)
    files = dict(model=str(folder / "model"), texts=str(folder / "texts.json"))
    with Race(options.oracle_python) as race:
        for name, (system, settings, _) in SYSTEMS.items():
            race.start(name, system, files | settings, lambda peer: {})
        for task in TASKS:
            race.turn(open_task)
            for _ in range(options.turns):
                race.turn(turn)
            ours = np.load(folder / f"{task}-ours.npy")
            for name in race.peers:
                difference = np.abs(np.load(folder / f"{task}-{name}.npy") - ours).max()
                race.results[name][task]["difference"] = float(difference)
    return {
        task: {name: result.get(task, result) for name, result in race.results.items()}
        for task in TASKS
    }


def rows_of(task, results, num_lines):
    """Yield the rows of the table of a task."""
    ours = statistics.median(results["ours"]["seconds"])
    for name, result in results.items():
        if "error" in result:
            yield [task, name, "", "", "", result["error"]]
            continue
        seconds = statistics.median(result["seconds"])
        batch = f"{result['batch']} {'tokens' if name == 'ours' else 'lines'}"
        speeds = [f"{num_lines / seconds:,.0f}", f"{seconds / ours:.2f}"]
        yield [task, name, batch, *speeds, f"{result['difference']:.0e}"]


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
    source = origin()
    print_origin(source)
    texts = read_texts(options.text, options.lines)
    count = len(texts["embed"])
    with work_folder() as folder:
        make_model(folder, options.text, options.model)
        (folder / "texts.json").write_text(json.dumps(texts))
        results = compare(options, folder, count)
    print(f"{options.model}, {count:,} lines, float32\n")
    header = ("task", "system", "batch", "lines/s", "time to ours", "largest difference")
    print_table(header, [row for task in TASKS for row in rows_of(task, results[task], count)])
    key = f"{options.model}, {count} lines"
    stored = read_results(options.json)
    write_results(options.json, stored | {key: source | dict(results=results)})


if __name__ == "__main__":
    main()
