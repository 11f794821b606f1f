"""Text in, the plan of a data job out: windows, which documents are held out, and the shards.

The plan depends on the text and the settings alone. Only predictions of sizes and of numbers of
rows use averages of English text; they decide how many shards there are and how many documents are
held out.
"""

import dataclasses
import functools
import os

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data import validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.records import shard_path
from bert_gpu.data.shards import DROPPED, PAIRS, TRAIN, VALIDATION, Shard
from bert_gpu.text import corpus

SHARD_BYTES = 128 << 20  # target
# Averages of English text. Only the predicted size, and so the number of shards, uses them.
TEXT_BYTES_PER_TOKEN, STATIC_BYTES_PER_POSITION, COMPACT_BYTES_PER_TOKEN, REAL_SHARE = (
    5.0,
    6.0,
    2.2,
    0.86,
)


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
    """What a job makes of a text of D documents.

    Attributes:
      config: of the job. windows: list of corpus.Window, the whole text.
      share: of the documents, that is held out for validation.
      split: (D,) int8, TRAIN, VALIDATION or DROPPED. num_shards: to train on.
    """

    config: DataConfig
    windows: list
    share: float
    split: np.ndarray
    num_shards: int

    @functools.cached_property
    def blocks(self):
        return [block for window in self.windows for block in window.blocks]

    @property
    def num_documents(self):
        return len(self.split)

    @functools.cached_property
    def num_text_bytes(self):
        return sum(window.num_bytes for window in self.windows)

    def check_documents(self) -> None:
        """Raise UserError when there are too few documents for next-sentence pairs."""
        if self.config.objective != "nsp":
            return
        num_documents = int((self.split != DROPPED).sum())
        remedy = "--objective=sop, full_sentences or packed"
        if num_documents == 1:
            raise UserError(
                "is one document, and nsp draws random second segments from others",
                "put blank lines between documents, give --input_format=documents if "
                f"each line is one, or {remedy}",
                where=self.config.input_file,
            )
        if self.config.validation_share and num_documents < 4:
            raise UserError(
                "nsp needs two documents each for training and validation, and the "
                f"text has {num_documents}",
                f"give --validation_share=0 or {remedy}",
                setting="validation_share",
                value=self.config.validation_share,
            )

    def without(self, is_dropped):
        """The plan without some documents, (D,) bool, in as many shards. If none to train on or
        none for validation is left, chooses again among the others.
        """
        split = self.split.copy()
        split[is_dropped] = DROPPED
        least = validation.least_documents(self.config.objective)
        wanted = (TRAIN, VALIDATION) if self.share else (TRAIN,)
        if not all((split == part).sum() >= least for part in wanted):
            chosen = choose(self.config, self.windows, self.share, is_dropped)
            split[~is_dropped] = chosen[~is_dropped]
        return dataclasses.replace(self, split=split)

    def shards(self):
        """The shards of the job, training first."""
        prefix = os.path.join(self.config.folder, self.config.name)
        groups = np.array_split(np.arange(len(self.windows)), self.num_shards)
        lenders = nearest_windows(self.windows, self.split)
        shards = [
            Shard(
                shard_path(prefix, i, self.num_shards),
                "train",
                i,
                tuple(self.windows[index] for index in group),
                tuple(lenders[index] for index in group),
            )
            for i, group in enumerate(groups)
        ]
        if (self.split == VALIDATION).any():
            path = shard_path(prefix, 0, 1, "validation")
            shards.append(Shard(path, "validation", 0, tuple(self.windows)))
        return shards


def plan_corpus(config, paths, formats, names, read):
    """The CorpusPlan of plain files.

    Args:
      config: DataConfig. paths, formats, names, read: see `corpus.plan_windows`.

    Raises UserError: the text is bad, or has too few documents for --num_shards.
    """

    def cut(min_windows, read=None):
        window_bytes = max(1, round(config.window_megabytes * 1e6))
        return corpus.plan_windows(paths, window_bytes, formats, names, min_windows, read)

    windows = cut(config.num_shards or 1, read)
    num_bytes = sum(window.num_bytes for window in windows)
    share = config.validation_share
    if share is None:
        num_rows = predict_rows(config, num_bytes, windows[-1].documents.stop)
        share = validation.default_share(num_rows)
    split = choose(config, windows, share).astype(np.int8)
    return CorpusPlan(config, windows, share, split, count_shards(config, windows, split, cut))


def nearest_windows(windows: list, split: np.ndarray) -> list:
    """Return for each window the nearest other one with documents to train on, or None."""
    used = [i for i, window in enumerate(windows) if (split[window.documents] == TRAIN).any()]
    nearest = []
    for index, place in enumerate(np.searchsorted(used, np.arange(len(windows))).tolist()):
        near = [(abs(i - index), i) for i in used[max(0, place - 1) : place + 2] if i != index]
        nearest.append(windows[min(near)[1]] if near else None)
    return nearest


def choose(config, windows, share, is_dropped=None):
    """(D,) bool, the documents for validation; see `validation.choose_validation`."""
    blocks, is_large = [block for window in windows for block in window.blocks], None
    if share:
        is_large = validation.find_large(blocks, validation.most_bytes(blocks, share))
    num_documents, seed = windows[-1].documents.stop, config.random_seed
    least = validation.least_documents(config.objective)
    return validation.choose_validation(num_documents, share, seed, is_large, is_dropped, least)


def predict_bytes(config, num_text_bytes):
    """Estimated size of the shards on disk; it decides their number."""
    num_tokens = num_text_bytes / TEXT_BYTES_PER_TOKEN * config.num_passes
    if config.masking == "static":
        return num_tokens / REAL_SHARE * STATIC_BYTES_PER_POSITION
    return num_tokens * COMPACT_BYTES_PER_TOKEN


def predict_rows(config, num_text_bytes, num_documents):
    """Estimated number of rows of one pass over the whole text."""
    length = config.max_seq_length * (1.0 if config.objective == "packed" else REAL_SHARE)
    rows = num_text_bytes / TEXT_BYTES_PER_TOKEN / length
    if config.objective in PAIRS:
        rows = max(rows, num_documents)
    return round(rows)


def count_shards(config, windows, split, cut):
    """The number of training shards, which duplicates that are dropped later do not change.

    Args:
      split: (D,) TRAIN or VALIDATION. cut: function of a number of windows, that cuts the text into
        as many or more.

    Raises UserError: --num_shards is too large.
    """
    most, wanted = num_for_training(windows, split), config.num_shards
    if wanted is None:
        num_text_bytes = sum(window.num_bytes for window in windows)
        by_size = round(predict_bytes(config, num_text_bytes) / SHARD_BYTES)
        return max(1, min(most, max(min(most, 8), by_size)))
    possible = wanted
    while most < possible and possible > 1:
        possible = max(1, min(most, possible - 1))
        most = num_for_training(cut(possible), split)
    if possible < wanted:
        raise UserError(
            "the text has too few documents to train on for so many",
            f"give {possible}",
            setting="num_shards",
            value=wanted,
        )
    return wanted


def num_for_training(windows, split):
    """The number of windows that hold a document to train on."""
    return sum((split[window.documents] == TRAIN).any() for window in windows)
