"""Checks of a data job that need its tokenizer and filters, unlike those in text/quality.py: the
vocabulary must fit the text, and cleaning must leave enough documents.
"""

from collections.abc import Sequence

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data import validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.plan import CorpusPlan
from bert_gpu.data.shards import (
    LEAST_RANDOM,
    MOST_RANDOM,
    PAIRS,
    TRAIN,
    Counts,
    is_usual,
    read_documents,
    tokenize,
)
from bert_gpu.text import corpus
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary import learning

MOST_DROPPED = 0.5  # a warning is printed when a filter drops a larger share of the documents
MOST_SINGLE = 0.3  # a larger share of pairs that are made from a single sentence gives a warning
# {DataConfig.copies: (flag, verb for several documents, verb for none)}
COPIES = {
    "duplicates": ("drop_duplicates", "equal", "equals"),
    "near duplicates": ("near_duplicates", "resemble", "resembles"),
}
LARGEST = 0.9  # a larger share of the text in one document gives a warning


def drop_warnings(config: DataConfig, num_dropped: int, num_documents: int) -> list[str]:
    """Return a list with a warning if --max_tokens_per_character drops most documents, else []."""
    if num_dropped <= MOST_DROPPED * num_documents:
        return []
    return [
        f"--max_tokens_per_character={config.max_tokens_per_character}: drops "
        f"{num_dropped / num_documents:.0%} of the documents; give a larger value, or a "
        "vocabulary that fits the text"
    ]


def describe_copies(num_dropped: int, num_documents: int, copies: str) -> str:
    """Return one line on how many documents are dropped as copies; see DataConfig.copies."""
    _, many, one = COPIES[copies]
    number, verb = (f"{num_dropped:,}", many) if num_dropped else ("none", one)
    return f"{copies}: {number} of {num_documents:,} documents {verb} an earlier one"


def copy_warnings(num_dropped: int, num_documents: int, copies: str) -> list[str]:
    """Return a list with a warning if most documents are dropped as copies, else []."""
    if num_dropped <= MOST_DROPPED * num_documents:
        return []
    flag, verb, _ = COPIES[copies]
    return [
        f"--{flag}: {num_dropped:,} of {num_documents:,} documents {verb} "
        "an earlier one and are dropped; check whether the text contains copies"
    ]


def describe_pairs(config: DataConfig, counts: Counts) -> str:
    """Return one line on the pairs that a sample of the text makes."""
    random, single, used = counts.pair_shares().values()
    kind = "a random second segment" if config.objective == "nsp" else "swapped segments"
    return (
        f"pairs: about {random:.0%} with {kind}, {single:.0%} from a single sentence; "
        f"{used:.0%} of the tokens are used in a pass"
    )


def pair_warnings(config: DataConfig, counts: Counts) -> list[str]:
    """Return a list with a warning if the labels of the pairs teach little, because too many pairs
    are made from one sentence or the share of random second segments (nsp) is unusual; else [].
    """
    if config.objective not in PAIRS or not counts.num_instances:
        return []
    random, single, _ = counts.pair_shares().values()
    if single > MOST_SINGLE:
        effect = "are random" if config.objective == "nsp" else "begin within a sentence"
        return [
            f"{single:.0%} of the pairs come from a single sentence, so that their second segments "
            f"{effect}; end documents, not sentences, with blank lines, give "
            "--input_format=documents if lines hold several sentences, or "
            "--objective=full_sentences"
        ]
    if config.objective == "nsp" and not is_usual(random, counts.num_instances):
        return [
            f"{random:.0%} of the second segments are random, where {LEAST_RANDOM:.0%} to "
            f"{MOST_RANDOM:.0%} are usual; give more documents with several sentences each, or "
            "--objective=full_sentences"
        ]
    return []


def size_warnings(sizes: np.ndarray) -> list[str]:
    """Return a list with a warning if one document has nearly all of the text, so that the random
    second segments of its pairs come from the small rest; else []. sizes: (D,), bytes of text of
    each document.
    """
    if sizes.max() <= LARGEST * sizes.sum():
        return []
    return [
        f"one document has more than {LARGEST:.0%} of the text, and random second segments of its "
        "pairs come from the rest; divide it, as by chapters, or give --objective=full_sentences"
    ]


def check_words(config: DataConfig, blocks: Sequence[corpus.Block], tokenizer: Tokenizer) -> None:
    """Raise UserError when no word of the text is in the vocabulary that the user named."""
    for block in blocks:
        lines = [line for document in corpus.read_block(block) for line in document]
        if any(
            len(tokenizer.tokenize(lines[start : start + 1000])[0])
            for start in range(0, len(lines), 1000)
        ):
            return
    raise learning.no_words(config.input_file)


def check_left(config: DataConfig, plan: CorpusPlan, tokenizer: Tokenizer) -> None:
    """Raise UserError when cleaning leaves too few documents to train on. Reading stops as soon as
    there are enough.
    """
    num_left = 0
    for block in plan.blocks:
        window = corpus.Window((block,))
        documents = read_documents(window, plan.split, plan.repeated)[TRAIN]
        for start in range(0, len(documents), 100):
            tokenized = tokenize(config, tokenizer, documents[start : start + 100])
            num_left += len(tokenized.documents) if len(tokenized.ids) else 0
            if num_left >= validation.least_documents(config.objective):
                return
    raise nothing_left(config)


def nothing_left(config: DataConfig) -> UserError:
    limit = config.max_tokens_per_character
    remedy = "" if limit is None else f", or a larger --max_tokens_per_character than {limit}"
    if config.drop_repeated_lines is not None:
        remedy += f", or a larger --drop_repeated_lines than {config.drop_repeated_lines}"
    what = "no document is"
    if config.objective == "nsp":
        what = "fewer than two documents are"
        remedy += ", or --objective=full_sentences"
    return UserError(
        f"{what} left to train on after cleaning",
        f"give other text{remedy}",
        setting="input_file",
        value=config.input_file[:100],
    )
