#!/usr/bin/env python3
"""Counts the labels of next-sentence pairs over ten shapes of corpora, from the records themselves.

    python benchmarks/pair_labels.py --before=FOLDER

FOLDER is another checkout, whose shares stand before the arrows. Each token occurs once in a
corpus, so a record's tokens say which document they are from. The texts are small, and so are the
windows: 0.02 MB stand for the 8 MB of real corpora. Used tokens are those of a document that occur
in its own rows, in one pass.
"""

import itertools
import pathlib
import random
import shutil
import sys

import numpy as np
from helpers import ROOT
from helpers.command import benchmark_parser, work_folder
from helpers.measure import run
from helpers.process import tensorflow_environment
from helpers.report import origin, print_origin, print_table

SEED, NUM_WORDS, FIRST_WORD, PASSES = 1, 30_000, 5, 10


def prose(draws, num_sentences):
    """Lengths of sentences in tokens, as in ordinary prose."""
    return [draws.randint(8, 30) for _ in range(num_sentences)]


def shapes():
    """{name: (documents, each a list of lengths of sentences, row length)}."""
    draws = random.Random(SEED)
    many = [prose(draws, 20) for _ in range(60)]
    giant = [prose(draws, 500)]
    long = [[300] * 8 for _ in range(12)]
    return {
        "60 documents of 20 sentences": (many, 128),
        "two documents": ([prose(draws, 600) for _ in range(2)], 128),
        "three documents, each a window": ([prose(draws, 200) for _ in range(3)], 128),
        "seven documents, each two windows": ([prose(draws, 220) for _ in range(7)], 128),
        "one long document and 30 short ones": (many[:15] + giant + many[15:30], 128),
        "documents of one sentence": ([prose(draws, 1) for _ in range(1000)], 128),
        "short and long lines mixed": ([[*prose(draws, 8), 400] for _ in range(40)], 128),
        "lines of 300 tokens, rows of 64": (long, 64),
        "lines of 300 tokens, rows of 128": (long, 128),
        "lines of 900 tokens, rows of 512": ([[900] * 6 for _ in range(5)], 512),
    }


def write_text(path, documents):
    number, lines = 0, []
    for document in documents:
        for length in document:
            lines.append(" ".join(f"w{number + i}" for i in range(length)))
            number += length
        lines.append("")
    assert number <= NUM_WORDS
    path.write_text("\n".join(lines))


def count(folder, documents):
    """Shares of random pairs, of random pairs within one document, and of used tokens."""
    from tensorflow.train import Example

    from bert_gpu.data.records import RecordSet

    document_of = np.repeat(np.arange(len(documents)), [sum(each) for each in documents])
    records = RecordSet(sorted(map(str, folder.glob("x-0*.tfrecord"))))
    labels, same, used, seen = [], 0, 0, set()
    for serialized in records.read(np.arange(len(records))):
        feature = Example.FromString(serialized).features.feature
        ids = np.array(feature["input_ids"].int64_list.value)
        start = feature["starts"].int64_list.value[1]
        first, second = (part[part >= FIRST_WORD] for part in (ids[:start], ids[start:]))
        labels.append(feature["next_sentence_labels"].int64_list.value[0])
        is_same = document_of[first[0] - FIRST_WORD] == document_of[second[0] - FIRST_WORD]
        same += labels[-1] and is_same
        used += len(first) + (0 if labels[-1] else len(second))
        seen.add(document_of[first[0] - FIRST_WORD])
    num_tokens = PASSES * sum(sum(documents[index]) for index in seen)
    return np.mean(labels), same / max(1, sum(labels)), used / num_tokens


def measure(work, code, documents, length):
    """The cells of a corpus's row, for the checkout `code`."""
    folder = work / "out"
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(code / "create_pretraining_data.py"), "--quiet"]
    files = dict(input_file=work / "in.txt", vocab_file=work / "vocab.txt")
    flags = dict(output_file=folder / "x.tfrecord", max_seq_length=length, dupe_factor=PASSES)
    flags |= files | dict(masking="dynamic", window_megabytes=0.02)
    command += [f"--{flag}={value}" for flag, value in flags.items()]
    run(command, watch=False, env=tensorflow_environment() | dict(PYTHONPATH=str(code)))
    return [f"{share:.1%}" for share in count(folder, documents)]


def make_parser():
    parser = benchmark_parser(__doc__)
    parser.add_argument("--before", help="folder of another checkout to compare with")
    parser.add_argument("--shapes", type=int, default=10, help="only the first so many shapes")
    return parser


def main():
    options = make_parser().parse_args()
    codes = [pathlib.Path(options.before).resolve()] if options.before else []
    rows = []
    with work_folder() as work:
        work = pathlib.Path(work)
        pieces = [
            "[PAD]",
            "[UNK]",
            "[CLS]",
            "[SEP]",
            "[MASK]",
            *(f"w{i}" for i in range(NUM_WORDS)),
        ]
        (work / "vocab.txt").write_text("\n".join(pieces))
        for name, (documents, length) in itertools.islice(shapes().items(), options.shapes):
            write_text(work / "in.txt", documents)
            both = [measure(work, code, documents, length) for code in (*codes, ROOT)]
            rows.append([name, *(" -> ".join(cells) for cells in zip(*both, strict=True))])
    print_origin(origin())
    print_table(["corpus", "random", "random of one document", "tokens used"], rows)


if __name__ == "__main__":
    sys.exit(main())
