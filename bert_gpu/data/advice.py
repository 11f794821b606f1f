"""Checks and warnings of a data job that need its settings, its tokenizer or its filters, unlike
those in text/quality.py: the vocabulary must fit the text, cleaning must leave enough documents,
and the disk must have room.
"""

import shutil
from collections.abc import Mapping

from bert_gpu.base.console import format_bytes
from bert_gpu.base.errors import UserError
from bert_gpu.base.files import existing_parent
from bert_gpu.data import validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.job import Job
from bert_gpu.data.plan import CorpusPlan, predict_bytes, predict_rows
from bert_gpu.data.shards import (
    DROPPED,
    PAIRS,
    TRAIN,
    VALIDATION,
    Counts,
    Shard,
    count_pairs,
    drop_dense,
    read_documents,
    tokenize,
)
from bert_gpu.text import corpus, quality, word_marks
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary import learning, letters

MOST_DROPPED = 0.5  # a warning is printed when a filter drops a larger share of the documents
MOST_SINGLE = 0.3  # a larger share of pairs that are made from a single sentence gives a warning
# {DataConfig.copies: (flag, verb for several documents, verb for none)}
COPIES = {
    "duplicates": ("drop_duplicates", "equal", "equals"),
    "near duplicates": ("near_duplicates", "resemble", "resembles"),
}
# range of the usual share of pairs with a random second segment; prose has .5 to .6
LEAST_RANDOM, MOST_RANDOM = 0.48, 0.70
LARGEST = 0.9  # a larger share of the text in one document gives a warning


def check_text(job: Job, plan: CorpusPlan) -> list[list[bytes]]:
    """Warn of a text that would make a poor data set, and return a sample of it (quality.sample).
    Raise UserError when it has too few documents, or the disk has no room for a new data set.
    """
    config, blocks = job.config, plan.blocks
    if job.status == "new":
        check_space(config, predict_bytes(config, plan.num_text_bytes))
    sample = quality.sample(blocks, bool(config.copies))
    for line in word_marks.marks_hint(sample, config.word_mark):
        job.console.say(line)
    sample = [word_marks.without_marks(document, config.word_mark) for document in sample]
    for line in quality.describe_empty(blocks):
        job.console.say(line)
    drops_lines = config.drop_repeated_lines is not None
    job.warn(job.inputs.warnings)
    job.warn(quality.shape_warnings(blocks, sample, config.objective, drops_lines))
    check_documents(config, plan)
    if config.objective == "nsp" and plan.sizes.max() > LARGEST * plan.sizes.sum():
        job.warn(
            [
                f"one document has more than {LARGEST:.0%} of the text, and random second segments "
                "of its pairs come from the rest; divide it, as by chapters, or give "
                "--objective=full_sentences"
            ]
        )
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
    if tokenized.num_dropped > MOST_DROPPED * len(sample):
        job.warn(
            [
                f"--max_tokens_per_character={config.max_tokens_per_character}: drops "
                f"{tokenized.num_dropped / len(sample):.0%} of the documents; give a larger value, "
                "or a vocabulary that fits the text"
            ]
        )
    if config.objective in PAIRS and len(tokenized.documents) > 1:
        check_labels(job, count_pairs(config, tokenizer, tokenized))


def check_labels(job: Job, counts: Counts) -> None:
    """Print the shares of the pairs that a sample of the text makes, and warn if their labels teach
    little, because too many pairs are made from one sentence or the share of random second segments
    (nsp) is unusual.
    """
    random, single, used = counts.pair_shares().values()
    is_nsp = job.config.objective == "nsp"
    noise = max(1, counts.num_instances) ** -0.5  # two standard errors
    is_usual = LEAST_RANDOM - noise <= random <= MOST_RANDOM + noise
    kind = "a random second segment" if is_nsp else "swapped segments"
    job.console.say(
        f"pairs: about {random:.0%} with {kind}, {single:.0%} from a single sentence; "
        f"{used:.0%} of the tokens are used in a pass"
    )
    if single > MOST_SINGLE:
        effect = "are random" if is_nsp else "begin within a sentence"
        job.warn(
            [
                f"{single:.0%} of the pairs come from a single sentence, so that their second "
                f"segments {effect}; end documents, not sentences, with blank lines, give "
                "--input_format=documents if lines hold several sentences, or "
                "--objective=full_sentences"
            ]
        )
    elif is_nsp and counts.num_instances and not is_usual:
        job.warn(
            [
                f"{random:.0%} of the second segments are random, where {LEAST_RANDOM:.0%} to "
                f"{MOST_RANDOM:.0%} are usual; give more documents with several sentences each, or "
                "--objective=full_sentences"
            ]
        )


def check_cleaned(job: Job, plan: CorpusPlan, num_dropped: int, tokenizer: Tokenizer) -> None:
    """Print how many documents are copies and how many are held out for validation, and warn of
    too many. Raise UserError when cleaning leaves too few documents, before an earlier data set is
    removed. num_dropped: of the copies.
    """
    config = job.config
    if config.copies:
        flag, many, one = COPIES[config.copies]
        number, verb = (f"{num_dropped:,}", many) if num_dropped else ("none", one)
        dropped = f"{number} of {plan.num_documents:,} documents {verb} an earlier one"
        job.console.say(f"{config.copies}: {dropped}")
        if num_dropped > MOST_DROPPED * plan.num_documents:
            remedy = "check whether the text contains copies"
            job.warn([f"--{flag}: {dropped} and are dropped; {remedy}"])
        check_documents(config, plan)
    check_validation(job, plan)
    if job.overwrite:
        check_left(config, plan, tokenizer)


def check_validation(job: Job, plan: CorpusPlan) -> None:
    """Print how many documents are held out for validation, and warn if their share of the text is
    much larger than intended.
    """
    config = job.config
    is_used = plan.split != DROPPED
    is_validation = plan.split[is_used] == VALIDATION
    num_held_out, num_documents = int(is_validation.sum()), len(is_validation)
    sizes = plan.sizes[is_used]
    share = sizes[is_validation].sum() / sizes.sum()
    length = config.max_seq_length
    rows_of_text = predict_rows(config, plan.num_text_bytes, plan.num_documents, length)
    rows = round(rows_of_text * sizes[is_validation].sum() / plan.num_text_bytes)
    text = (
        f"{num_held_out:,} of {num_documents:,} documents ({share:.1%} of the text), about "
        f"{rows:,} row{'s' * (rows != 1)}"
    )
    if config.validation_share == 0:
        text = "none, because of --validation_share=0"
    elif not num_held_out:
        few = "is one document"
        if num_documents > 1:
            few = (
                f"has {num_documents} documents, and nsp needs two each for training and validation"
            )
        text = (
            f"none, because the text {few}; training will have no eval_loss unless you give it "
            "other data"
        )
    elif rows * length < validation.NUM_ROWS * validation.ROW_LENGTH:
        text += ": too few for a steady eval_loss; " + (
            "more text makes more"
            if config.validation_share is None
            else "give a larger --validation_share"
        )
    job.console.say(f"validation: {text}")
    if share > validation.FAR_MORE * max(plan.share, 1 / num_documents, is_validation.mean()):
        job.warn(
            [
                f"validation takes {share:.0%} of the text, as {num_held_out:,} of "
                f"{num_documents:,} documents, because some are long; cut those into several, or "
                "give another --random_seed"
            ]
        )


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
    others: str = ", or take a smaller --dupe_factor or --masking=dynamic",
) -> None:
    """Raise UserError when the disk of the output folder has less than num_bytes free. others: the
    remedies beside room and another disk.
    """
    parent = existing_parent(config.folder)
    place = dict(setting="output_file", value=config.output_file)
    usage = shutil.disk_usage(parent)
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
