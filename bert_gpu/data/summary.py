"""Describes a finished data set as text: a table of counts, and decoded records."""

import itertools
from collections.abc import Iterator, Mapping

import numpy as np

from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.manifest import Manifest, read_manifest
from bert_gpu.data.pipeline import evaluation_batches
from bert_gpu.data.shards import PAIRS, Counts
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

# {objective: (name of a row's label, (words for label 0, words for label 1))}
LABELS = dict(
    nsp=("next sentence", ("the real one", "random")), sop=("order", ("as in the text", "swapped"))
)


def summary(
    manifest: Manifest, counts: Counts, num_duplicates: int, config: DataConfig, duration: str
) -> str:
    """Return the counts of a data job as lines of text. manifest, counts, num_duplicates: from
    build.run_job. duration: of the job, as text.
    """
    num_shards = len(manifest.train_shards) + len(manifest.validation_shards)
    padding = 1 - counts.num_row_tokens / max(1, counts.num_instances * config.max_seq_length)
    reasons = [
        (config.copies, num_duplicates, config.copies),
        (counts.num_dropped > 0, counts.num_dropped, "with too many tokens per character"),
    ]
    dropped = ", ".join(f"{count:,} {reason}" for is_listed, count, reason in reasons if is_listed)
    rows = [
        ("documents", f"{counts.num_documents:,}" + (f"; dropped: {dropped}" if dropped else "")),
        ("sentences", f"{counts.num_sentences:,}"),
        (
            "tokens",
            (
                f"{counts.num_tokens:,}, of which [UNK] "
                f"{counts.num_unknown / max(1, counts.num_tokens):.2%}"
            ),
        ),
        ("vocabulary", f"{manifest.vocab_size:,} pieces in {config.folder}/{manifest.vocab_file}"),
        (
            "records",
            (
                f"{manifest.num_train_instances:,} training, "
                f"{manifest.num_validation_instances:,} validation"
            ),
        ),
        *pair_rows(counts, config.objective),
        ("padding", f"{padding:.1%} of all positions"),
        (
            "written",
            (
                f"{counts.num_bytes / 1e6:.1f} MB in {num_shards} "
                f"shards to {config.folder}/ in {duration}"
            ),
        ),
    ]
    return "\n".join(f"  {name:<14}{text}" for name, text in rows)


def pair_rows(counts: Counts, objective: str) -> list[tuple[str, str]]:
    """Return (heading, text) of each line of the summary on pairs; [] for an objective without
    pairs.
    """
    if objective not in PAIRS:
        return []
    random, single, used = counts.pair_shares().values()
    return [
        ("random next" if objective == "nsp" else "swapped", f"{random:.1%}"),
        ("one sentence", f"{single:.1%} of the pairs"),
        ("tokens used", f"{used:.1%} in each pass"),
    ]


def decode_instances(config: DataConfig, num_instances: int) -> Iterator[str]:
    """Yield the first records of a finished data set as text: their pieces and the tokens to
    predict.
    """
    manifest = read_manifest(config.folder)
    assert manifest is not None
    tokenizer = open_tokenizer(
        f"{config.folder}/{manifest.vocab_file}", manifest.do_lower_case, manifest.strip_accents
    )
    data = Dataset(InputConfig(), paths=manifest.paths(config.folder, "train"))
    reader = data.reader("train", tokenizer, config.random_seed)
    rows = (
        {name: feature[row] for name, feature in batch.items()}
        for batch in evaluation_batches(reader, batch_size=min(num_instances, 64))
        for row in range(len(batch["input_ids"]))
    )
    for row in itertools.islice(rows, min(num_instances, len(data.train))):
        yield decode_row(row, tokenizer, manifest.objective)


def decode_row(row: Mapping[str, np.ndarray], tokenizer: Tokenizer, objective: str) -> str:
    """Return one row of a batch as text. row: {feature: array} without the batch axis."""
    is_real = row["masked_lm_weights"] > 0
    predictions = zip(
        row["masked_lm_positions"][is_real], row["masked_lm_ids"][is_real], strict=True
    )
    lines = [
        " ".join(tokenizer.pieces(row["input_ids"][: int(row["input_mask"].sum())])),
        "  predict: "
        + ", ".join(f"{position} {tokenizer.vocab[piece]}" for position, piece in predictions),
    ]
    if "next_sentence_labels" in row:
        question, answers = LABELS[objective]
        lines.append(f"  {question}: {answers[int(row['next_sentence_labels'])]}\n")
    return "\n".join(lines)
