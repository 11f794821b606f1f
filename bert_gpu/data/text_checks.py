"""What a data job checks of its text by the tokenizer and the filters, beside text/quality.py: that
words are found, and that cleaning leaves something.
"""

from bert_gpu.data.shards import TRAIN
from bert_gpu.settings import UserError
from bert_gpu.text import clean, corpus, learning

MOST_DROPPED = 0.5  # the share of documents from which a filter is warned of


def drop_warnings(config, num_dropped, num_documents):
    """Warns when --max_tokens_per_character drops most documents."""
    if num_dropped <= MOST_DROPPED * num_documents:
        return []
    return [
        f"--max_tokens_per_character={config.max_tokens_per_character}: drops "
        f"{num_dropped / num_documents:.0%} of the documents; give a larger value, or a "
        "vocabulary that fits the text"
    ]


def describe_copies(num_dropped: int, num_documents: int) -> str:
    """A line on what --drop_duplicates drops."""
    number, verb = (f"{num_dropped:,}", "equal") if num_dropped else ("none", "equals")
    return f"duplicates: {number} of {num_documents:,} documents {verb} an earlier one"


def copy_warnings(num_dropped, num_documents):
    """Warns when --drop_duplicates drops most documents."""
    if num_dropped <= MOST_DROPPED * num_documents:
        return []
    return [
        f"--drop_duplicates: {num_dropped:,} of {num_documents:,} documents equal "
        "an earlier one and are dropped; check whether the text contains copies"
    ]


def check_words(config, blocks, tokenizer):
    """UserError when the given vocabulary finds no word in any block."""
    for block in blocks:
        lines = [line for document in corpus.read_block(block) for line in document]
        if any(
            len(tokenizer.tokenize(lines[start : start + 1000])[0])
            for start in range(0, len(lines), 1000)
        ):
            return
    raise learning.no_words(config.input_file)


def check_left(config, plan, builder):
    """UserError when cleaning leaves no document to train on; the first that it leaves ends the
    search. plan: CorpusPlan. builder: ShardBuilder.
    """
    for block in plan.blocks:
        fates = plan.fate[corpus.Window((block,)).documents]
        documents = [
            clean.normalize(document, config.normalization)
            for document, fate in zip(corpus.read_block(block), fates, strict=True)
            if fate == TRAIN
        ]
        for start in range(0, len(documents), 100):
            if len(builder.tokenize(documents[start : start + 100]).ids):
                return
    raise nothing_left(config)


def nothing_left(config):
    limit = config.max_tokens_per_character
    remedy = "" if limit is None else f", or a larger --max_tokens_per_character than {limit}"
    return UserError(
        f"--input_file={config.input_file[:100]}: nothing is left of the text "
        f"after cleaning; give other text{remedy}"
    )
