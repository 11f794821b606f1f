"""Searches with sentence vectors: of a model without more training, trained on crops of plain text,
on pairs, and on both; beside TF-IDF, BM25 and sentence-transformers' trainer.

    python benchmarks/sentence_vectors.py --model=RUN --text=corpus.txt --pairs=FOLDER
        [--oracle_python=PYTHON --seeds=3 --crop_steps=400 --pair_steps=300 --folder=WORK
        --json=vectors.json]
    python benchmarks/sentence_vectors.py --table --json=vectors.json

Two searches, each for one right answer among all texts_b. Passages: find the last passage of a
held-out document by its first one. Pairs: find text_b of a row of FOLDER/test.tsv by its text_a.
Crops are of the passages of the other documents, pairs are the rows of FOLDER/train.tsv. The
peer trains the same weights with the same loss for as many steps of the same batches; its crops are
drawn by the same function. Prints MRR@10 and the share found at once, mean and standard error over
the seeds, and the seconds of training on one core.
"""

import functools
import statistics
import sys

from helpers import command, vectors
from helpers.report import Rows, digest, opened_rows, pairs_digest, print_table

PHASES = {"none": (), "crops": ("crops",), "pairs": ("pairs",), "both": ("crops", "pairs")}
STARTS = ("pretrained", "untrained")
PARTS = ("ours", "peers", "words")
WORDS = ("TF-IDF", "BM25")
MEASURES = ("passages mrr@10", "passages recall@1", "pairs mrr@10", "pairs recall@1")
SIZES = dict(crop_steps=400, pair_steps=300, batch_size=128, max_passages=2000)


def make_parser():
    parser = command.benchmark_parser(__doc__, "text", "pairs", "json", "folder", "cores", "table")
    parser.add_argument("--model", default="runs/pretrain", help="model to begin with")
    parser.add_argument("--pretrained_on", default=command.SHARED_FLAGS["text"]["default"])
    parser.add_argument("--part", type=command.names_among(PARTS), default=list(PARTS))
    parser.add_argument("--only", type=command.names_among(PHASES), default=list(PHASES))
    for name, value in (SIZES | dict(seeds=3)).items():
        parser.add_argument(f"--{name}", type=command.at_least_one, default=value)
    parser.add_argument("--learning_rate", type=float, default=2e-3)
    packages = "sentence-transformers, scikit-learn and bm25s"
    command.add_python(parser, "--oracle_python", packages)
    return parser


def measure_ours(options, scratch, start, phases, seed, core):
    """Return the row of one model: what it finds, and the seconds of its training."""
    model, seconds = vectors.begin(options, scratch, start, seed), 0.0
    for phase in phases:
        model, more = vectors.train(options, scratch, model, phase, seed, core)
        seconds += more
    return vectors.search(scratch, model) | dict(seconds=seconds)


def run_all(options, rows: Rows):
    """Measure the rows that are missing."""
    seeds = range(1, options.seeds + 1)
    cases = [(start, name) for start in STARTS for name in options.only]
    items = []
    if "ours" in options.part:
        items += [("ours", *case, seed) for seed in seeds for case in cases if varies(*case, seed)]
    if "peers" in options.part:
        names = [name for name in options.only if name != "none"]
        items += [("peers", "pretrained", name, seed) for seed in seeds for name in names]

    items.sort(key=lambda item: STARTS.index(item[1]))  # those of the table's first lines first

    with command.work_folder(options.folder) as scratch:
        vectors.write_texts(options, scratch)
        for seed in seeds:
            vectors.begin(options, scratch, "untrained", seed)

        def row(item, core):
            part, start, name, seed = item
            measure = measure_ours if part == "ours" else vectors.measure_peer
            make = functools.partial(measure, options, scratch, start, PHASES[name], seed, core)
            rows.row(part, f"{start}, {name}, seed {seed}", make)

        if "words" in options.part:
            for name in ("TF-IDF", "BM25"):
                rows.row(
                    "words",
                    f"{name}, seed 1",
                    lambda name=name: vectors.measure_words(options, scratch, name),
                )
        command.run_on_cores(row, items, options.cores)


def varies(start, name, seed):
    """Return whether a seed makes a difference: a pretrained model without training is one."""
    return seed == 1 or (start, name) != ("pretrained", "none")


def with_error(values):
    """Return the mean of some values, with its standard error where there are several."""
    mean = f"{statistics.mean(values):.3f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def lines_of(rows):
    """Return the lines of the table."""
    names = {"ours": "", "peers": "sentence-transformers, "}
    lines = [
        [f"{names[part]}{start}, {name}", runs]
        for part in names
        for start in STARTS
        for name in PHASES
        if (runs := rows.of(part, f"{start}, {name}"))
    ]
    lines += [[name, runs] for name in WORDS if (runs := rows.of("words", name))]
    for label, runs in lines:
        seconds = statistics.mean(run["seconds"] for run in runs)
        found = [with_error([run[name] for run in runs]) for name in MEASURES]
        yield [label, *found, f"{seconds:.0f}"]


def settings_of(options):
    """Return what the rows of a JSON file have in common."""
    sizes = {name: getattr(options, name) for name in (*SIZES, "learning_rate")}
    return sizes | dict(text=digest(options.text), pairs=pairs_digest(options.pairs))


def main():
    options = make_parser().parse_args()
    try:
        rows = opened_rows(options, settings_of, PARTS)
        if not options.table:
            run_all(options, rows)
    except command.Failed as failed:
        sys.exit(f"error: {failed}")
    print_table(["training", *MEASURES, "seconds"], list(lines_of(rows)))


if __name__ == "__main__":
    main()
