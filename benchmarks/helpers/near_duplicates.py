"""Finds the near duplicates of a text with one of several libraries, for the benchmark of data:

    python near_duplicates.py ours|datasketch|rensa TEXT THRESHOLD

One process on one core: signatures of 125 values over shingles of five words, in 25 bands of 5;
each document is compared with the earlier ones of its bands that stay, by its shingles. Documents
end at blank lines. Prints JSON: the seconds of the processor, reading included and compiling left
out, and the number of documents dropped. rensa gives digests, whose values make the bands.
"""

import collections
import json
import sys
import tempfile
import time

NUM_HASHES, NUM_BANDS, NUM_ROWS = 125, 25, 5


def ours(threshold):
    from bert_gpu.text.config import LINES
    from bert_gpu.text.corpus import plan_windows
    from bert_gpu.text.near_duplicates import find_near_duplicates
    from bert_gpu.text.parallel import Workers

    def search(path):
        windows = plan_windows([path], 8_000_000, LINES)
        blocks = [block for window in windows for block in window.blocks]
        with tempfile.TemporaryDirectory() as folder:
            return len(find_near_duplicates(blocks, folder, threshold, workers=Workers(1)))

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("a b\n\na b\n")
        file.flush()
        search(file.name)  # compiles
    return search


def shingles(document):
    words = document.lower().split()
    return {" ".join(words[start : start + 5]) for start in range(max(1, len(words) - 4))}


def greedy(path, threshold, bands_of):
    """Return the number of documents that are similar to an earlier one that stays. bands_of:
    shingles -> a key for each band.
    """
    with open(path, encoding="utf-8") as file:
        documents = [document for document in file.read().split("\n\n") if document.strip()]
    buckets, kept, dropped = collections.defaultdict(list), {}, 0
    for index, document in enumerate(documents):
        own = shingles(document)
        keys = list(enumerate(bands_of(own)))
        near = {first for key in keys for first in buckets[key]}
        if any(len(own & kept[one]) >= threshold * len(own | kept[one]) for one in near):
            dropped += 1
            continue
        kept[index] = own
        for key in keys:
            buckets[key].append(index)
    return dropped


def bands(values):
    return [tuple(values[band * NUM_ROWS : (band + 1) * NUM_ROWS]) for band in range(NUM_BANDS)]


def datasketch(threshold):
    from datasketch import MinHash

    def bands_of(own):
        signature = MinHash(num_perm=NUM_HASHES, seed=1)
        signature.update_batch([shingle.encode() for shingle in own])
        return bands(signature.hashvalues.tolist())

    return lambda path: greedy(path, threshold, bands_of)


def rensa(threshold):
    from rensa import RMinHash

    def bands_of(own):
        signature = RMinHash(num_perm=NUM_HASHES, seed=1)
        signature.update(list(own))
        return bands(signature.digest())

    return lambda path: greedy(path, threshold, bands_of)


def main(kind, path, threshold):
    search = dict(ours=ours, datasketch=datasketch, rensa=rensa)[kind](float(threshold))
    started = time.process_time()
    dropped = search(path)
    print(json.dumps(dict(seconds=time.process_time() - started, dropped=dropped)))


if __name__ == "__main__":
    main(*sys.argv[1:])
