"""The peers of the benchmark of sentence vectors, in the environment of the oracles.

vectors_peers.py TF-IDF|BM25 TABLE RESULT.npy
vectors_peers.py sentence-transformers MODEL FOLDER FILES STEPS BATCH RATE SEED TABLE...
"""

import csv
import json
import os
import pathlib
import random
import re
import sys
import time

import numpy as np

NEAREST = 10
WORD = re.compile(r"\w+")
CROP_SHARES = (0.1, 0.5)  # a crop's part of the words of its text, as in Contriever


def read_table(path):
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text_a"] for row in rows], [row["text_b"] for row in rows]


def tf_idf(queries, texts):
    """Return the scores of all texts for each query, (N, N): the cosine of TF-IDF vectors."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    matrix = vectorizer.fit_transform(texts)
    return (vectorizer.transform(queries) @ matrix.T).toarray()


def bm25(queries, texts):
    """Return the scores of all texts for each query, (N, N)."""
    import bm25s

    retriever = bm25s.BM25()
    words = [WORD.findall(text.lower()) for text in texts]
    retriever.index(words, show_progress=False)
    return np.stack([retriever.get_scores(WORD.findall(text.lower())) for text in queries])


def write_nearest(score, table, path):
    """Write the indices of the nearest texts of each query of a table, (N, K)."""
    scores = score(*read_table(table))
    np.save(path, np.argsort(-scores, axis=1, kind="stable")[:, :NEAREST])


def crops_of(text, draws):
    """Return two crops of a text, contiguous words of it."""
    words = text.split()
    crops = []
    for _ in range(2):
        length = max(1, round(len(words) * draws.uniform(*CROP_SHARES)))
        start = draws.randrange(len(words) - length + 1)
        crops.append(" ".join(words[start : start + length]))
    return crops


def pairs_of(path, count, seed):
    """Return `count` pairs (text, text): rows of a table, or crops of the lines of a text."""
    draws = random.Random(seed)
    if path.endswith(".tsv"):
        rows = list(zip(*read_table(path), strict=True))
        make = tuple
    else:
        rows = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
        make = lambda text: tuple(crops_of(text, draws))  # noqa: E731
    pairs = []
    while len(pairs) < count:
        draws.shuffle(rows)
        pairs += [make(row) for row in rows[: count - len(pairs)]]
    return pairs


def train(model, folder, path, steps, batch, rate, seed):
    """Train a model with sentence-transformers' trainer."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    pairs = pairs_of(path, steps * batch, seed)
    columns = dict(zip(("anchor", "positive"), map(list, zip(*pairs, strict=True)), strict=True))
    loss = MultipleNegativesRankingLoss(
        model, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    args = SentenceTransformerTrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=rate,
        warmup_steps=steps // 10,
        weight_decay=0.01,
        seed=seed,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    dataset = Dataset.from_dict(columns)
    SentenceTransformerTrainer(model, args, train_dataset=dataset, loss=loss).train()


def sentence_transformers(source, folder, files, steps, batch, rate, seed, *tables):
    """Train on each file in turn; write the seconds, and the vectors of each table, (2, N, H)."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kinds = ("model_kwargs", "processor_kwargs", "config_kwargs")
    trusted = {kind: dict(trust_remote_code=True) for kind in kinds}
    config = json.loads((pathlib.Path(source) / "config.json").read_text())
    length = min(128, config["max_position_embeddings"])
    encoder = Transformer(source, max_seq_length=length, **trusted)
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[encoder, pooling], device="cpu")
    folder = pathlib.Path(folder)
    started = time.monotonic()
    for path, number in zip(files.split(","), steps.split(","), strict=True):
        train(model, folder, path, int(number), int(batch), float(rate), int(seed))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seconds.txt").write_text(str(time.monotonic() - started))
    for table in map(pathlib.Path, tables):
        vectors = np.stack([model.encode(texts) for texts in read_table(table)])
        np.save(folder / f"{table.stem}.npy", vectors)


def main(kind, *words):
    if kind == "sentence-transformers":
        sentence_transformers(*words)
    else:
        write_nearest(dict({"TF-IDF": tf_idf, "BM25": bm25})[kind], *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
