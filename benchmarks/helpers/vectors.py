"""Texts, trainings and searches of the benchmark of sentence vectors.

A search has N queries and N texts; query i has one right answer, text i. Its result is int64
(N, K), the indices of the K nearest texts of each query, the nearest first.
"""

import collections
import csv
import pathlib
import subprocess
import threading
import time

import numpy as np

from . import ROOT, text_tasks
from .command import Failed, read_metrics, run_script

PASSAGE_WORDS = 50  # a passage ends with the sentence that reaches this number
SEARCHES = ("passages", "pairs")
NEAREST = 10
locks = collections.defaultdict(threading.Lock)  # of trainings, which two rows may share


# -- texts


def passages_of(document):
    """Return the passages of a document, groups of consecutive sentences of about PASSAGE_WORDS."""
    passages, sentences, num_words = [], [], 0
    for sentence in document:
        sentences.append(sentence)
        num_words += len(sentence.split())
        if num_words >= PASSAGE_WORDS:
            passages.append(" ".join(sentences))
            sentences, num_words = [], 0
    return passages


def write_table(path, rows):
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)
        writer.writerows([("text_a", "text_b"), *rows])


def read_table(path):
    """Return the columns text_a and text_b of a table."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text_a"] for row in rows], [row["text_b"] for row in rows]


def write_texts(options, scratch):
    """Write crops.txt, the passages to train on; pairs.tsv, the pairs to train on; and a table for
    each search, NAME-test.tsv. Documents with a sentence that the model was pretrained on are left
    out.
    """
    known = {line for lines in text_tasks.read_documents(options.pretrained_on) for line in lines}
    documents = [
        lines for lines in text_tasks.read_documents(options.text) if not known.intersection(lines)
    ]
    fitting = [
        passages
        for lines in documents
        if len(passages := passages_of([line.replace("\t", " ") for line in lines])) >= 3
    ]
    if len(fitting) < 10:
        raise Failed(f"{options.text}: has fewer than 10 documents of three passages")
    share = min(options.max_passages / len(fitting), 0.5)
    others, held_out = text_tasks.hold_out(fitting, share)
    texts = [passage for passages in others for passage in passages]
    (scratch / "crops.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    found = {passages[0]: passages[-1] for passages in held_out if passages[0] != passages[-1]}
    write_table(scratch / "passages-test.tsv", {b: a for a, b in found.items()}.items())
    for split, name in (("train", "pairs"), ("test", "pairs-test")):
        rows = zip(*read_table(pathlib.Path(options.pairs) / f"{split}.tsv"), strict=True)
        write_table(scratch / f"{name}.tsv", {b: (a, b) for a, b in rows}.values())


# -- results


def measures(search, nearest):
    """Return {measure: value} of a search's result (N, K)."""
    is_right = nearest == np.arange(len(nearest))[:, None]
    reciprocal = (is_right / np.arange(1, nearest.shape[1] + 1)).sum(1)
    return {
        f"{search} mrr@10": float(reciprocal.mean()),
        f"{search} recall@1": float(is_right[:, 0].mean()),
    }


def nearest_vectors(queries, texts):
    """Return the result of a search by cosine. queries, texts: (N, H)."""
    from bert_gpu.base.nearest import nearest

    def unit(vectors):
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

    return nearest(unit(queries), unit(texts), NEAREST)[1]


# -- our trainings


def begin(options, scratch, start, seed):
    """Return the path of the model to begin with: the one of --model, or random weights of its
    shape.
    """
    if start == "pretrained":
        return options.model
    from bert_gpu.interop import models
    from bert_gpu.model.encoders import open_encoder
    from bert_gpu.model.weights import initialize

    folder = scratch / f"untrained-{seed}"
    if not folder.exists():
        _, model = models.open_model(options.model, "model")
        encoder = open_encoder(model.config)
        weights = {**model.weights, **initialize(encoder.weights(), seed)}  # heads are not used
        models.write_own(model._replace(weights=weights), str(folder))
    return str(folder)


def train(options, scratch, model, phase, seed, core):
    """Train a model on crops or pairs; return its path and the seconds of its steps."""
    run = scratch / f"run-{pathlib.Path(model).parent.name}-{phase}-{seed}"
    with locks[run]:
        run_script(
            "run_classifier.py",
            "--nodo_eval",
            task_name="similarity",
            train_file=scratch / ("crops.txt" if phase == "crops" else "pairs.tsv"),
            init_checkpoint=model,
            output_dir=run,
            num_train_steps=getattr(options, f"{phase.removesuffix('s')}_steps"),
            train_batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            lr_scaling="none",
            num_gpus=0,
            seed=seed,
            core=core,
        )
    lines, _ = read_metrics(run)
    return str(run / "model"), lines[-1]["seconds"]


def search(scratch, model):
    """Return {measure: value} of both searches with a model's vectors."""
    from bert_gpu.inference.config import EmbedConfig
    from bert_gpu.inference.embeddings import Embedder

    is_trained = (pathlib.Path(model) / "modules.json").exists()
    embedder = Embedder(EmbedConfig(model=model, pooling=None if is_trained else "mean"))
    values = {}
    for name in SEARCHES:
        queries, texts = read_table(scratch / f"{name}-test.tsv")
        values |= measures(name, nearest_vectors(embedder(queries), embedder(texts)))
    return values


# -- peers, in the environment of the oracles


def run_peer(options, core, *words):
    """Run vectors_peers.py to its end on one core, None = any; return its seconds."""
    script = ROOT / "benchmarks" / "helpers" / "vectors_peers.py"
    affinity = [] if core is None else ["taskset", "--cpu-list", str(core)]
    started = time.monotonic()
    call = [*affinity, options.oracle_python, str(script), *map(str, words)]
    result = subprocess.run(call, capture_output=True, text=True)
    if result.returncode:
        raise Failed(f"{words[0]}: {result.stderr.strip().splitlines()[-1][:300]}")
    return time.monotonic() - started


def measure_words(options, scratch, name):
    """Return the row of TF-IDF or BM25, which need no training."""
    values = {}
    seconds = 0.0
    for search_name in SEARCHES:
        result = scratch / f"{name}-{search_name}.npy"
        seconds += run_peer(options, None, name, scratch / f"{search_name}-test.tsv", result)
        values |= measures(search_name, np.load(result))
    return values | dict(seconds=seconds)


def measure_peer(options, scratch, start, phases, seed, core):
    """Return the row of sentence-transformers' trainer, from the same weights."""
    name = "-".join(("peer", *phases, str(seed)))
    folder = scratch / name
    files = [scratch / ("crops.txt" if phase == "crops" else "pairs.tsv") for phase in phases]
    steps = [getattr(options, f"{phase.removesuffix('s')}_steps") for phase in phases]
    run_peer(
        options,
        core,
        "sentence-transformers",
        begin(options, scratch, start, seed),
        folder,
        ",".join(map(str, files)),
        ",".join(map(str, steps)),
        options.batch_size,
        options.learning_rate,
        seed,
        *(scratch / f"{search_name}-test.tsv" for search_name in SEARCHES),
    )
    values = dict(seconds=float((folder / "seconds.txt").read_text()))
    for search_name in SEARCHES:
        queries, texts = np.load(folder / f"{search_name}-test.npy")
        values |= measures(search_name, nearest_vectors(queries, texts))
    return values
