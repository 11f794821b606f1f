"""Checks and warnings of a data job that need its settings, its tokenizer or its filters, unlike
those in text/quality.py: the vocabulary must fit the text, cleaning must leave enough documents,
and the disk must have room.
"""

import shutil
from collections.abc import Mapping

import numpy as np

from bert_gpu.base.console import format_bytes
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import existing_parent
from bert_gpu.data import validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.job import Job
from bert_gpu.data.plan import CorpusPlan, predict_bytes, predict_rows
from bert_gpu.data.shards import (
    DROPPED,
    LEAST_RANDOM,
    MOST_RANDOM,
    PAIRS,
    TRAIN,
    VALIDATION,
    Counts,
    Shard,
    count_pairs,
    drop_dense,
    is_usual,
    read_documents,
    tokenize,
)
from bert_gpu.text import corpus, quality
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary import learning, letters

MOST_DROPPED = 0.5  # a warning is printed when a filter drops a larger share of the documents
MOST_SINGLE = 0.3  # a larger share of pairs that are made from a single sentence gives a warning
# {DataConfig.copies: (flag, verb for several documents, verb for none)}
COPIES = {
    "duplicates": ("drop_duplicates", "equal", "equals"),
    "near duplicates": ("near_duplicates", "resemble", "resembles"),
}
LARGEST = 0.9  # a larger share of the text in one document gives a warning


def check_text(job: Job, plan: CorpusPlan) -> list[list[bytes]]:
    """Warn of a text that would make a poor data set, and return a sample of it (quality.sample).
    Raise UserError when it has too few documents, or the disk has no room for a new data set.
    """
    config, blocks = job.config, plan.blocks
    if job.status == "new" and not config.gzip_compress:  # how much gzip compresses is not known
        check_space(config, predict_bytes(config, plan.num_text_bytes))
    sample = quality.sample(blocks, config.normalization, bool(config.copies))
    for line in quality.describe_empty(blocks):
        job.console.say(line)
    drops_lines = config.drop_repeated_lines is not None
    job.warn(job.inputs.warnings)
    job.warn(quality.shape_warnings(blocks, sample, config.objective, drops_lines))
    check_documents(config, plan)
    if config.objective == "nsp":
        job.warn(size_warnings(plan.sizes))
    job.warn(letters.lower_case_warnings(sample, config))
    return sample


def check_vocabulary(job: Job, sample: list[list[bytes]], tokenizer: Tokenizer) -> None:
    """Warn of a vocabulary that does not fit a sample of the text, of documents that will be
    dropped, and of pairs whose labels teach little; print the share of pairs with a random or
    swapped segment. Raise UserError when the sample has no word.
    """
    config = job.config
    tokens = tokenizer.tokenize([line for document in sample for line in document])
    if not len(tokens[0]):
        raise learning.no_words(config.input_file)
    is_named = config.vocabulary_path is not None
    job.warn(
        quality.vocabulary_warnings(tokenizer, sample, tokens[0], config.do_lower_case, is_named)
    )
    tokenized = drop_dense(sample, *tokens, config.max_tokens_per_character)
    job.warn(drop_warnings(config, tokenized.num_dropped, len(sample)))
    if config.objective in PAIRS:
        counts = count_pairs(config, tokenizer, tokenized)
        if counts.num_documents > 1:
            job.console.say(describe_pairs(config, counts))
            job.warn(pair_warnings(config, counts))


def check_cleaned(job: Job, plan: CorpusPlan, num_dropped: int, tokenizer: Tokenizer) -> None:
    """Print how many documents are copies and how many are held out for validation, and warn of
    too many. Raise UserError when cleaning leaves too few documents, before an earlier data set is
    removed. num_dropped: of the copies.
    """
    config = job.config
    if config.copies:
        counts = num_dropped, plan.num_documents, config.copies
        job.console.say(describe_copies(*counts))
        job.warn(copy_warnings(*counts))
        check_documents(config, plan)
    is_validation = plan.split == VALIDATION
    is_used = plan.split != DROPPED
    used_bytes = int(plan.sizes[is_used].sum())
    share = plan.sizes[is_validation].sum() / used_bytes
    is_validation = is_validation[is_used]
    length = config.max_seq_length
    num_rows = predict_rows(config, plan.num_text_bytes, plan.num_documents, length)
    rows = num_rows * used_bytes / plan.num_text_bytes
    given = config.validation_share
    job.console.say(describe_validation(is_validation, share, rows, length, given))
    job.warn(validation_warnings(is_validation, share, plan.share))
    if job.overwrite:
        check_left(config, plan, tokenizer)


def are_enough(config: DataConfig, counts: Mapping[Shard, Counts]) -> bool:
    """Return whether there are enough documents and rows to train on. counts: of each shard."""
    total = sum((counts[shard] for shard in counts if shard.split == "train"), Counts())
    least = validation.least_documents(config.objective)
    return total.num_instances > 0 and total.num_documents >= least


def check_documents(config: DataConfig, plan: CorpusPlan) -> None:
    """Raise UserError when there are too few documents for next-sentence pairs."""
    if config.objective != "nsp":
        return
    num_documents = int((plan.split != DROPPED).sum())
    remedy = "--objective=sop, full_sentences or packed"
    if num_documents == 1:
        raise UserError(
            "is one document, and nsp draws random second segments from others",
            "put blank lines between documents, give --input_format=documents if "
            f"each line is one, or {remedy}",
            where=config.input_file,
        )
    if config.validation_share and num_documents < 4:
        raise UserError(
            "nsp needs two documents each for training and validation, and the "
            f"text has {num_documents}",
            f"give --validation_share=0 or {remedy}",
            setting="validation_share",
            value=config.validation_share,
        )


def check_space(
    config: DataConfig,
    num_bytes: float,
    others: str = ", or take a smaller --dupe_factor, --gzip_compress or --masking=dynamic",
) -> None:
    """Raise UserError when the disk of the output folder has less than num_bytes free. others: the
    remedies beside room and another disk.
    """
    parent = existing_parent(config.folder)
    place = dict(setting="output_file", value=config.output_file)
    usage = shutil.disk_usage(parent)
    if not usage.total:  # a file system without storage, such as /proc
        raise UserError(f"files cannot be stored in {parent}", "choose another folder", **place)
    if num_bytes > usage.free:
        raise UserError(
            f"about {format_bytes(num_bytes)} will be written, but only "
            f"{format_bytes(usage.free)} are free",
            f"make room, choose another disk{others}",
            **place,
        )


def check_pairs(config: DataConfig, separators: int) -> None:
    """Raise UserError if the objective makes pairs of segments, but the tokenizer puts more than
    one [SEP] between the two. separators: its number of [SEP].
    """
    if config.objective in PAIRS and separators > 1:
        raise UserError(
            "makes pairs with one [SEP] between them, but this tokenizer's pairs have two, as "
            "RoBERTa's",
            "give --objective=full_sentences, which RoBERTa was trained with",
            setting="objective",
            value=config.objective,
        )


def check_left(config: DataConfig, plan: CorpusPlan, tokenizer: Tokenizer) -> None:
    """Raise UserError when cleaning leaves too few documents to train on. Reading stops as soon as
    there are enough.
    """
    num_left = 0
    for block in plan.blocks:
        window = corpus.Window((block,))
        documents = read_documents(config, window, plan.split, plan.repeated)[TRAIN]
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


def describe_validation(
    is_validation: np.ndarray,
    text_share: float,
    num_rows: float,
    row_length: int,
    share: float | None,
) -> str:
    """Return one line on the documents that are held out for validation.

    Args:
      is_validation: (D,) bool. text_share: the share of the text in bytes that these documents
        have.
      num_rows: estimated number of rows of the whole text. row_length: their number of tokens.
      share: --validation_share.
    """
    num_documents = len(is_validation)
    if share == 0:
        return "validation: none, because of --validation_share=0"
    if not is_validation.any():
        few = "is one document"
        if num_documents > 1:
            few = (
                f"has {num_documents} documents, and nsp needs two each for training and validation"
            )
        return (
            f"validation: none, because the text {few}; "
            "training will have no eval_loss unless you give it other data"
        )
    rows = round(num_rows * text_share)
    text = (
        f"validation: {int(is_validation.sum()):,} of {num_documents:,} documents "
        f"({text_share:.1%} of the text), about {rows:,} row{'s' * (rows != 1)}"
    )
    if rows * row_length >= validation.NUM_ROWS * validation.ROW_LENGTH:
        return text
    remedy = "give a larger --validation_share" if share is not None else "more text makes more"
    return f"{text}: too few for a steady eval_loss; {remedy}"


def validation_warnings(is_validation: np.ndarray, text_share: float, share: float) -> list[str]:
    """Return a list with a warning if the validation documents have far more of the text than their
    intended share; otherwise [].

    Args:
      is_validation: (D,) bool. text_share: the share of the text in bytes that these documents
        have.
      share: the intended share of the documents.
    """
    if text_share <= validation.FAR_MORE * max(share, 1 / len(is_validation), is_validation.mean()):
        return []
    return [
        f"validation takes {text_share:.0%} of the text, as {int(is_validation.sum()):,} of "
        f"{len(is_validation):,} documents, because some are long; cut those into several, or give "
        "another --random_seed"
    ]
