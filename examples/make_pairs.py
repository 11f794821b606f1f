#!/usr/bin/env python3
"""Makes a labelled task from text: do two passages come from the same document?

    python examples/make_pairs.py --text=examples/held_out.txt --output_dir=examples/pairs

The text has one sentence a line and blank lines between documents. Half of the pairs (label 1) are
two passages of one document that do not overlap, half (label 0) passages of two. A document is used
for one of train.tsv, dev.tsv and test.tsv only. The same text and seed give the same files.
"""

import argparse
import pathlib
import random

SHARES = {"train": 0.4, "dev": 0.3, "test": 0.3}  # of the documents


def read_documents(path, words):
    """[[sentence, ...], ...] of the documents that hold two passages."""
    parts = pathlib.Path(path).read_text(encoding="utf-8").split("\n\n")
    documents = [[line for line in part.split("\n") if line.strip()] for part in parts]
    return [document for document in documents if places(document, words)]


def places(document, words):
    """[(first, end), ...]: sentences `first` to `end` have at least `words` words, and so have
    those behind them.
    """
    lengths = [len(line.split()) for line in document]
    found, end = [], 0
    for first in range(len(document)):
        while end < len(document) and sum(lengths[first:end]) < words:
            end += 1
        if sum(lengths[first:end]) >= words and sum(lengths[end:]) >= words:
            found.append((first, end))
    return found


def passage(sentences, words):
    """The first `words` words of consecutive sentences."""
    return " ".join(" ".join(sentences).replace("\t", " ").split()[:words])


def any_passage(draws, document, words):
    first, end = draws.choice(places(document, words))
    return passage(document[first:end], words)


def two_passages(draws, document, words):
    """Two passages of a document, in either order, that have no sentence in common."""
    first, end = draws.choice(places(document, words))
    behind = [i for i in range(end, len(document)) if len(" ".join(document[i:]).split()) >= words]
    second = draws.choice(behind)
    pair = [passage(document[first:end], words), passage(document[second:], words)]
    draws.shuffle(pair)
    return pair


def make_pairs(documents, number, words, draws):
    """[(text_a, text_b, label), ...], both labels in turn."""
    pairs = []
    for index in range(number):
        one, other = draws.sample(documents, 2)
        if index % 2:
            texts = two_passages(draws, one, words)
        else:
            texts = [any_passage(draws, document, words) for document in (one, other)]
        pairs.append((*texts, index % 2))
    return pairs


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", required=True, help="the text, a file")
    parser.add_argument("--output_dir", required=True, help="where train, dev and test.tsv go")
    parser.add_argument("--train", type=int, default=400, help="pairs in train.tsv (400)")
    parser.add_argument("--dev", type=int, default=600, help="pairs in dev.tsv (600)")
    parser.add_argument("--test", type=int, default=600, help="pairs in test.tsv (600)")
    parser.add_argument("--words", type=int, default=24, help="at most, of a passage (24)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("train", "dev", "test", "words"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}={getattr(options, name)}: must be at least 1")
    try:
        documents, draws = read_documents(options.text, options.words), random.Random(options.seed)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--text={options.text}: cannot be read ({error})")
    if len(documents) < 10:
        parser.error(
            f"--text={options.text}: has {len(documents)} documents that hold two passages; "
            "10 are needed, so give more text or a smaller --words"
        )
    draws.shuffle(documents)
    folder = pathlib.Path(options.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for split, share in SHARES.items():
        end = start + round(share * len(documents))
        rows = make_pairs(documents[start:end], getattr(options, split), options.words, draws)
        lines = ["id\ttext_a\ttext_b\tlabel"]
        lines += [f"{split}-{n}\t{a}\t{b}\t{label}" for n, (a, b, label) in enumerate(rows, 1)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        start = end


if __name__ == "__main__":
    main()
