"""Counts the words of a corpus for the learners of vocabularies: on all cores, and from a sample
where the corpus is large.

The sample is whole blocks, chosen by a hash of seed and number, so that it is a function of the
plan and the seed and the counts do not depend on the number of processes.
"""

import collections
import functools
import hashlib

from bert_gpu.text import clean, corpus, sentence_piece, vocab
from bert_gpu.text.parallel import map_blocks

# of text; a larger corpus is sampled. What a gigabyte does not show, a vocabulary has no room for
SAMPLE_BYTES = 1 << 30


def sample_blocks(blocks, max_bytes, seed):
    """The blocks, if they have max_bytes at most; else some of them, in their order, that have
    about so many (at least one).
    """
    if sum(block.end - block.start for block in blocks) <= max_bytes:
        return list(blocks)
    digests = [
        hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
        for number in range(len(blocks))
    ]
    chosen, num_bytes = [], 0
    for number in sorted(range(len(blocks)), key=digests.__getitem__):
        num_bytes += blocks[number].end - blocks[number].start
        if chosen and num_bytes > max_bytes:
            break
        chosen.append(number)
    return [blocks[number] for number in sorted(chosen)]


def count_words_of_blocks(
    blocks,
    do_lower_case,
    num_workers=None,
    *,
    tokenization="WordPiece",
    normalization="none",
    report=None,
):
    """Counts words for `vocab.learn_wordpiece` or `sentence_piece.learn_sentencepiece`.

    Args:
      blocks: list of Block.
      do_lower_case: as of the tokenizer. For SentencePiece it does not matter here.
      num_workers: processes; None = one for each core.
      tokenization: WordPiece or SentencePiece, which differ in what is a word.
      normalization: as of `clean.normalize`.
      report: called with the bytes of text that are done since the last call.

    Returns:
      collections.Counter of str: a function of the blocks and what defines a word.
    """
    function = functools.partial(
        count_group,
        do_lower_case=do_lower_case,
        tokenization=tokenization,
        normalization=normalization,
    )
    counts = collections.Counter()
    for part in map_blocks(function, blocks, num_workers, report):
        counts.update(part)
    return counts


def count_group(blocks, do_lower_case, tokenization, normalization):
    documents = (
        clean.normalize(document, normalization)
        for block in blocks
        for document in corpus.read_block(block)
    )
    if tokenization == "SentencePiece":
        return sentence_piece.count_words(documents)
    return vocab.count_words(documents, do_lower_case)
