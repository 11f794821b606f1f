"""Counts the words of a corpus, from which vocabularies are learnt: on all cores, and from a sample
of a large corpus.

The sample consists of whole blocks, chosen by a hash of seed and block index, so that it depends on
the blocks and the seed alone. The counts do not depend on the number of processes.
"""

import collections
import functools
import hashlib
from collections.abc import Sequence

from bert_gpu.text import corpus
from bert_gpu.text.corpus import Block
from bert_gpu.text.parallel import LOCAL, Report, Workers, map_blocks
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.vocabulary import wordpiece_learner
from bert_gpu.text.word_marks import MARK, without_marks

# Most bytes of text that are read; a larger corpus is sampled. Words that do not occur in a
# gigabyte would get no piece.
SAMPLE_BYTES = 1 << 30


def sample_blocks(blocks: Sequence[Block], max_bytes: int, seed: int) -> list[Block]:
    """Return all blocks if they have at most max_bytes of text; else a random sample of blocks with
    about max_bytes in all, at least one, in the order of the corpus.
    """
    if sum(block.num_bytes for block in blocks) <= max_bytes:
        return list(blocks)
    digests = [
        hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
        for index in range(len(blocks))
    ]
    indices: list[int] = []
    num_bytes = 0
    for index in sorted(range(len(blocks)), key=digests.__getitem__):
        num_bytes += blocks[index].num_bytes
        if indices and num_bytes > max_bytes:
            break
        indices.append(index)
    return [blocks[index] for index in sorted(indices)]


def count_words_of_blocks(
    blocks: Sequence[Block],
    do_lower_case: bool,
    workers: Workers = LOCAL,
    *,
    tokenization: str = "WordPiece",
    strip_accents: bool = True,
    mark: bytes = MARK,
    report: Report | None = None,
) -> collections.Counter[str]:
    """Count the words of blocks of text, from which a vocabulary can be learnt.

    Args:
      do_lower_case, strip_accents: as in the tokenizer; only for WordPiece.
      mark: between words of scripts without spaces; it is no part of the text.
      tokenization: kind of vocabulary. Only WordPiece also divides text at punctuation.
      report: called with the bytes of text done since its last call, and 0 tokens.

    Returns:
      Counts that do not depend on the workers.
    """
    function = functools.partial(
        count_group,
        do_lower_case=do_lower_case,
        tokenization=tokenization,
        strip_accents=strip_accents,
        mark=mark,
    )
    counts: collections.Counter[str] = collections.Counter()
    for part in map_blocks(function, blocks, workers, report):
        counts.update(part)
    return counts


def count_group(
    blocks: Sequence[Block],
    do_lower_case: bool,
    tokenization: str,
    strip_accents: bool,
    mark: bytes,
) -> collections.Counter[str]:
    documents = (
        without_marks(document, mark) for block in blocks for document in corpus.read_block(block)
    )
    if tokenization != "WordPiece":
        return sentence_piece.count_words(documents)
    return wordpiece_learner.count_words(documents, do_lower_case, strip_accents)
