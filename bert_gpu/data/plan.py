"""Makes the plan of a data job from its text: windows, documents that are held out, and shards.

The plan depends on the text and the settings alone. Only predictions of sizes and of numbers of
rows use averages of English text; they decide how many shards there are and how many documents are
held out.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from bert_gpu.base.errors import UserError
from bert_gpu.data import validation
from bert_gpu.data.config import DataConfig
from bert_gpu.data.records import shard_path
from bert_gpu.data.shards import DROPPED, PAIRS, TRAIN, VALIDATION, Shard
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat

SHARD_BYTES = 128 << 20  # target size of a training shard
# Averages of English text, used by predictions only.
TEXT_BYTES_PER_TOKEN = 5.0
STATIC_BYTES_PER_POSITION = 6.0
COMPACT_BYTES_PER_TOKEN = 2.2
REAL_SHARE = 0.86  # share of positions that are not padding


@dataclasses.dataclass(frozen=True)
class CorpusPlan:
    """The plan of a data job for a text of D documents.

    Attributes:
      windows: the windows that the whole text is cut into.
      share: share of the documents that is held out for validation.
      sizes: (D,) int64, bytes of text of each document.
      split: (D,) int8, TRAIN, VALIDATION or DROPPED for each document.
      num_shards: number of training shards.
      names: {path of a file: its name for messages}.
      repeated: the file of the sentences to drop (`clean.drop_repeated`), or None.
      text: hash of the content of the files, unpacked, in any order.
    """

    config: DataConfig
    windows: list[corpus.Window]
    share: float
    sizes: np.ndarray
    split: np.ndarray
    num_shards: int
    names: dict[str, str]
    repeated: str | None = None
    text: str = ""

    @functools.cached_property
    def blocks(self) -> list[corpus.Block]:
        return [block for window in self.windows for block in window.blocks]

    @property
    def num_documents(self) -> int:
        return len(self.split)

    @functools.cached_property
    def num_text_bytes(self) -> int:
        return sum(window.num_bytes for window in self.windows)

    def places(self, documents: np.ndarray) -> list[str]:
        """Return "file TAB number of the document in it, from 1" of the documents (P,)."""
        firsts = {block.path: block.first_document for block in reversed(self.blocks)}
        starts = [block.first_document for block in self.blocks]
        paths = [
            self.blocks[index].path for index in np.searchsorted(starts, documents, "right") - 1
        ]
        return [
            f"{' '.join(self.names[path].split())}\t{document - firsts[path] + 1}"
            for path, document in zip(paths, documents.tolist(), strict=True)
        ]

    def without(self, is_dropped: np.ndarray) -> "CorpusPlan":
        """Return the plan without the documents where is_dropped (D,) is True, with the same number
        of shards. If too few documents are left to train on or for validation, choose the
        validation documents again, among those left.
        """
        split = self.split.copy()
        split[is_dropped] = DROPPED
        least = validation.least_documents(self.config.objective)
        parts = (TRAIN, VALIDATION) if self.share else (TRAIN,)
        if not all((split == part).sum() >= least for part in parts):
            is_validation = choose_documents(self.config, self.sizes, self.share, is_dropped)
            split[~is_dropped] = is_validation[~is_dropped]
        return dataclasses.replace(self, split=split)

    def shards(self) -> list[Shard]:
        """Return the job's shards: the training shards, then the validation shard, if any."""
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
            shards.append(Shard(path, "validation", 0, (), sources=tuple(shards)))
        return shards


def plan_corpus(
    config: DataConfig,
    paths: list[str],
    formats: list[TextFormat],
    names: list[str],
    read: Callable[[str, str], Iterable[bytes]],
) -> CorpusPlan:
    """Return the CorpusPlan of unpacked text files.

    paths, formats, names, read: see `corpus.plan_windows`.

    Raise UserError when the text is bad or has too few documents for --num_shards.
    """

    def cut(
        min_windows: int,
        read: Callable[[str, str], Iterable[bytes]] | None = None,
        sizes: list[np.ndarray] | None = None,
    ) -> list[corpus.Window]:
        size = corpus.WINDOW_BYTES
        return corpus.plan_windows(paths, size, formats, names, min_windows, read, sizes)

    parts: list[np.ndarray] = []
    windows = cut(config.num_shards or 1, read, parts)
    sizes = np.concatenate(parts)
    share = config.validation_share
    if share is None:
        num_rows = predict_rows(config, int(sizes.sum()), len(sizes), validation.ROW_LENGTH)
        share = validation.default_share(num_rows)
    split = choose_documents(config, sizes, share).astype(np.int8)
    num_shards = count_shards(config, windows, split, cut)
    return CorpusPlan(
        config, windows, share, sizes, split, num_shards, dict(zip(paths, names, strict=True))
    )


def nearest_windows(
    windows: Sequence[corpus.Window], split: np.ndarray
) -> list[corpus.Window | None]:
    """Return for each window the nearest other window that holds documents to train on, or None."""
    used = [i for i, window in enumerate(windows) if (split[window.documents] == TRAIN).any()]
    nearest: list[corpus.Window | None] = []
    for index, place in enumerate(np.searchsorted(used, np.arange(len(windows))).tolist()):
        near = [(abs(i - index), i) for i in used[max(0, place - 1) : place + 2] if i != index]
        nearest.append(windows[min(near)[1]] if near else None)
    return nearest


def choose_documents(
    config: DataConfig,
    sizes: np.ndarray,
    share: float,
    is_dropped: np.ndarray | None = None,
) -> np.ndarray:
    """Return (D,) bool: whether each document is for validation; see
    `validation.choose_validation`. sizes: (D,), bytes of text of each document.
    """
    return validation.choose_validation(
        len(sizes),
        share,
        config.random_seed,
        validation.find_large(sizes, share),
        is_dropped,
        validation.least_documents(config.objective),
    )


def predict_bytes(config: DataConfig, num_text_bytes: int) -> float:
    """Return the estimated size of all shards on disk in bytes, which decides the number of
    shards.
    """
    num_tokens = num_text_bytes / TEXT_BYTES_PER_TOKEN * config.num_passes
    if config.masking == "static":
        return num_tokens / REAL_SHARE * STATIC_BYTES_PER_POSITION
    return num_tokens * COMPACT_BYTES_PER_TOKEN


def predict_rows(
    config: DataConfig, num_text_bytes: int, num_documents: int, row_length: int
) -> int:
    """Return the estimated number of rows of `row_length` tokens of one pass over the text."""
    length = row_length * (1.0 if config.objective == "packed" else REAL_SHARE)
    rows = num_text_bytes / TEXT_BYTES_PER_TOKEN / length
    if config.objective in PAIRS:
        rows = max(rows, num_documents)
    return round(rows)


def count_shards(
    config: DataConfig,
    windows: Sequence[corpus.Window],
    split: np.ndarray,
    cut: Callable[[int], list[corpus.Window]],
) -> int:
    """Return the number of training shards, which duplicates that are dropped later do not change.

    Args:
      split: (D,) TRAIN or VALIDATION.
      cut: function that gets a number and returns the text cut into at least that many windows.

    Raise UserError when --num_shards is too large.
    """
    most = num_for_training(windows, split)
    num_shards = config.num_shards
    if num_shards is None:
        num_text_bytes = sum(window.num_bytes for window in windows)
        by_size = round(predict_bytes(config, num_text_bytes) / SHARD_BYTES)
        return max(1, min(most, max(min(most, 8), by_size)))
    possible = num_shards
    while most < possible and possible > 1:
        possible = max(1, min(most, possible - 1))
        most = num_for_training(cut(possible), split)
    if possible < num_shards:
        raise UserError(
            "the text has too few documents to train on for so many",
            f"give {possible}",
            setting="num_shards",
            value=num_shards,
        )
    return num_shards


def num_for_training(windows: Sequence[corpus.Window], split: np.ndarray) -> int:
    """Return the number of windows that hold a document to train on."""
    return sum((split[window.documents] == TRAIN).any() for window in windows)
