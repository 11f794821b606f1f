"""Counts the words of a corpus, from which vocabularies are learnt: on all cores, and from a sample
of a large corpus.

The sample consists of whole blocks, chosen by a hash of seed and block index, so that it depends on
the plan and the seed alone. The counts do not depend on the number of processes.
"""

import collections
import functools
import hashlib

from bert_gpu.text import clean, corpus
from bert_gpu.text.parallel import LOCAL, map_blocks
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.vocabulary import wordpiece_learner

# of text; a larger corpus is sampled. Words that a gigabyte lacks would get no piece anyway
SAMPLE_BYTES = 1 << 30


def sample_blocks(blocks, max_bytes, seed):
    """All blocks if they have at most max_bytes; else a sample of about max_bytes, at least one
    block, in their order.
    """
    if sum(block.num_bytes for block in blocks) <= max_bytes:
        return list(blocks)
    digests = [
        hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
        for index in range(len(blocks))
    ]
    chosen, num_bytes = [], 0
    for index in sorted(range(len(blocks)), key=digests.__getitem__):
        num_bytes += blocks[index].num_bytes
        if chosen and num_bytes > max_bytes:
            break
        chosen.append(index)
    return [blocks[index] for index in sorted(chosen)]


def count_words_of_blocks(
    blocks,
    do_lower_case,
    workers=LOCAL,
    *,
    tokenization="WordPiece",
    normalization="none",
    report=None,
):
    """Counts words for `vocab.learn_wordpiece` or `sentence_piece.learn_sentencepiece`.

    Args:
      blocks: list of Block.
      do_lower_case: as in the tokenizer; ignored for SentencePiece.
      workers: parallel.Workers.
      tokenization: WordPiece or SentencePiece, which define words differently.
      normalization: form for `clean.normalize`.
      report: called with (bytes of text, tokens = 0) done since the last call.

    Returns:
      collections.Counter of str; it does not depend on the workers.
    """
    function = functools.partial(
        count_group,
        do_lower_case=do_lower_case,
        tokenization=tokenization,
        normalization=normalization,
    )
    counts = collections.Counter()
    for part in map_blocks(function, blocks, workers, report):
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
    return wordpiece_learner.count_words(documents, do_lower_case)
