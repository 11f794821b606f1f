"""Encodes texts, or pairs of texts, as rows of tokens, and makes batches of the rows for a training
or an evaluation.

All text is tokenized once, in advance, into flat arrays; the arrays of large files lie on the disk.
A batch is padded only to its longest row, unless the encoder has a fixed length. As in pretraining,
the order of the examples is a function of (seed, epoch) alone, and the position of a run is the
number of examples consumed.

Legend: N examples, R rows of an example, T tokens of all rows, B batch, S sequence, C classes.
"""

import dataclasses
import typing
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from bert_gpu.data.pipeline import LengthAxis, bucketed, consume, epoch_order
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.finetune.files.disk_array import DiskArray
from bert_gpu.text.framing import frame, padded, ranges
from bert_gpu.text.long_texts import FIRST_TOKENS, LongTexts
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

NO_LABEL = -1  # the label of a token without a prediction
# {feature of shape (B, S) or (B, R, S): its axis of tokens, S}
LENGTH_AXES = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), LengthAxis())
LENGTH_AXES["token_labels"] = LengthAxis(fill=NO_LABEL)
LENGTH_MULTIPLE = 8  # matrix units like multiples of 8, and fewer lengths mean fewer compilations


@dataclasses.dataclass(frozen=True)
class EncodedExamples:
    """Encoded examples of R rows: [CLS] A [SEP] B [SEP], or [CLS] A [SEP] where there is no second
    text.

    Attributes:
      ids: int32 (T,), all rows concatenated. splits: int64 (N R + 1,), where each row begins in
        `ids`, and the end of the last.
      first_lengths: int32 (N R,), tokens of [CLS] A [SEP], which is segment 0.
      labels: targets of a TaskType, (N,) or (N, C), or None. max_seq_length: maximum tokens of a
        row. num_truncated: number of examples that have tokens in no row. num_long: number of
        texts, of pairs second texts, that do not fit into a row.
      padding: as --padding, "fixed" for an encoder with a fixed length.
      token_labels: int32 (T,), the target of each token, NO_LABEL for a token without one; None for
        tasks without targets of tokens.
      origin: data with which a task type traces rows back to its examples.
      rows_per_example: R; the rows of an example follow each other. text_ids: int32 (N, R), the
        numbers of the rows' texts, equal for equal texts, -1 for an empty one; None for tasks that
        do not compare texts.
      has_windows: whether the rows of an example are windows of a text, and each example has rows
        of its own number, followed by empty ones.
      text_hashes: uint64 (2, N, R), or (2, N, 1) for tasks whose rows are windows: hashes of the
        texts of each row or example, equal where a model cannot tell them apart, because their
        tokens are the same (of long texts that are not cut all tokens count); and the same of the
        texts before they were cut to a row.
    """

    ids: np.ndarray
    splits: np.ndarray
    first_lengths: np.ndarray
    labels: np.ndarray | None
    max_seq_length: int
    num_truncated: int = 0
    num_long: int = 0
    padding: str = "dynamic"
    token_labels: np.ndarray | None = None
    origin: typing.Any = None
    rows_per_example: int = 1
    text_ids: np.ndarray | None = None
    has_windows: bool = False
    text_hashes: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.uint64))

    def __len__(self) -> int:
        return len(self.first_lengths) // self.rows_per_example

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest row of each example or, with windows, of all its rows, (N,)."""
        lengths = np.diff(self.splits).reshape(-1, self.rows_per_example)
        return lengths.sum(1) if self.has_windows else lengths.max(1)

    @property
    def numbers(self) -> np.ndarray:
        """The numbers of the texts as they are cut, by first occurrence, int32 (N, R) or (N, 1)."""
        hashes = self.text_hashes[0]
        _, firsts, places = np.unique(hashes, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(firsts)).astype(np.int32)[places].reshape(hashes.shape)

    @property
    def num_alike(self) -> int:
        """The number of different texts that are the same as others only because they were cut."""
        texts = np.unique(self.text_hashes.reshape(2, -1), axis=1)
        counts = np.unique(texts[0], return_counts=True)[1]
        return int(counts[counts > 1].sum())

    def drawn(
        self, indices: np.ndarray, epochs: np.ndarray | None
    ) -> tuple["EncodedExamples", np.ndarray]:
        """Return encoded examples, and the indices (B,) in them of the examples that have the given
        indices, (B,), in these epochs, (B,) or None for an evaluation: by default the same in all.
        """
        return self, indices


def encode_examples(
    tokenizer: Tokenizer,
    chunks: Iterable[tuple[list[str], list[str] | None]],
    labels: np.ndarray | None,
    max_seq_length: int,
    padding: str = "dynamic",
    folder: str = ".",
    rows_per_example: int = 1,
    num_before: Sequence[int] = (0,),
    long_texts: LongTexts = FIRST_TOKENS,
) -> EncodedExamples:
    """Tokenize and truncate texts or pairs of texts; return them as encoded rows.

    Args:
      chunks: (texts_a, texts_b) of consecutive examples, with None as texts_b for single texts;
        each text or pair becomes one row.
      labels: targets of a TaskType for all examples, or None. max_seq_length: S, at least 5, so
        that each text of a pair keeps a token. padding: as in EncodedExamples.
      folder: as for DiskArray. rows_per_example: as in EncodedExamples. num_before: number
        of tokens of the prefix of each row of an example, which is no part of the text.
      long_texts: with it, rows_per_example is the largest number of windows of an example.
    """
    ids = DiskArray(folder)
    hashes: list[Any] = []  # arrays (2, rows) of the texts as they are cut, and as they were
    num_long = num_truncated = 0
    sizes: list[np.ndarray] = []  # (2, rows), their lengths and first lengths
    counts: list[np.ndarray] = []
    for texts_a, texts_b in chunks:
        rows = frame(tokenizer, texts_a, texts_b, max_seq_length, long_texts)
        ids.append(rows.ids)
        sizes.append(np.stack([rows.lengths, rows.first_lengths]).astype(np.int32))
        counts.append(rows.counts.astype(np.int32))
        num_long += rows.num_long
        num_truncated += rows.num_truncated
        before = np.resize(num_before, len(rows.counts)), 0
        hashes.append(
            sum(
                np.stack(
                    [
                        hash_texts(tokens, starts[:-1] + num_skipped, ends)
                        for ends in (starts[:-1] + kept, starts[1:])
                    ]
                )
                for (tokens, starts, kept), num_skipped in zip(rows.texts, before, strict=True)
            )
        )
    num_windows = np.concatenate(counts)
    most = int(num_windows.max())
    is_row = (np.arange(most) < num_windows[:, None]).ravel()
    all_sizes = np.zeros((2, len(is_row)), np.int32)
    all_sizes[:, is_row] = np.concatenate(sizes, 1)
    return EncodedExamples(
        ids=ids.finish(),
        splits=splits_of([all_sizes[0]]),
        first_lengths=all_sizes[1],
        has_windows=most > 1,
        labels=None if labels is None else np.asarray(labels),
        max_seq_length=max_seq_length,
        num_truncated=num_truncated,
        num_long=num_long,
        padding=padding,
        rows_per_example=max(most, rows_per_example),
        text_hashes=np.concatenate(hashes, 1).reshape(2, -1, rows_per_example),
    )


def hash_texts(ids: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return a hash of the tokens of each text, uint64 (N,). A text has the `ids` from index
    `begins` to before `ends`.
    """
    lengths = np.maximum(ends - begins, 0)
    stops = np.cumsum(lengths)
    positions = np.arange(lengths.sum()) - np.repeat(stops - lengths, lengths)
    tokens = ids[ranges(begins, lengths)].astype(np.int64)
    sums = np.append(
        np.uint64(0), np.cumsum(row_keys(derive_key("tokens"), (tokens << 32) + positions))
    )
    return row_keys(derive_key("texts"), sums[stops] - sums[stops - lengths])


def splits_of(lengths: list[np.ndarray]) -> np.ndarray:
    """Return the offset at which each row begins when rows are concatenated, and the end of the
    last, int64 (number of rows + 1,). lengths: arrays of the rows' lengths, in order.
    """
    return np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))


def make_batch(
    examples: EncodedExamples,
    indices: np.ndarray,
    row_weights: np.ndarray | None = None,
    epochs: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Return the examples with the given indices, (B,), as a batch, padded to its longest row,
    rounded up to a multiple of LENGTH_MULTIPLE; with fixed padding, to the maximum length. epochs:
    as for EncodedExamples.drawn.

    Returns:
      dict of input_ids, input_mask, segment_ids int32 (B, S), row_weights float32 (B,); if texts
        have windows, num_windows int32 (B,), of the R rows of an example those that are not empty;
        if the examples have labels, labels (B,) or (B, C); if their tokens have labels,
        token_labels (B, S); if their texts have numbers, text_ids (B, R). With several rows an
        example, (B, S) is (B, R, S).
    """
    examples, indices = examples.drawn(indices, epochs)
    rows = indices
    if examples.rows_per_example > 1:
        rows = indices[:, None] * examples.rows_per_example + np.arange(examples.rows_per_example)
    lengths = examples.splits[rows + 1] - examples.splits[rows]
    multiple = examples.max_seq_length if examples.padding == "fixed" else LENGTH_MULTIPLE
    longest = min(examples.max_seq_length, -(-int(lengths.max()) // multiple) * multiple)
    input_ids, is_token = padded(examples.ids, examples.splits, rows, longest)
    is_second = is_token & (np.arange(longest) >= examples.first_lengths[rows][..., None])
    weights = np.ones(len(indices), np.float32) if row_weights is None else row_weights
    batch = dict(
        input_ids=input_ids,
        input_mask=is_token.astype(np.int32),
        segment_ids=is_second.astype(np.int32),
        row_weights=weights,
    )
    if examples.has_windows:
        batch["num_windows"] = np.sum(lengths > 0, 1, dtype=np.int32)
    if examples.token_labels is not None:
        labels, _ = padded(examples.token_labels, examples.splits, rows, longest)
        batch["token_labels"] = np.where(is_token, labels, np.int32(NO_LABEL))
    if examples.text_ids is not None:
        batch["text_ids"] = examples.text_ids[indices]
    return batch if examples.labels is None else batch | dict(labels=examples.labels[indices])


def training_batches(
    examples: EncodedExamples, *, batch_size: int, position: int, seed: int
) -> Generator[dict[str, np.ndarray], None, None]:
    """Yield batches of `batch_size` examples without end, after the first `position` examples of
    the training, in a new order each epoch; with uniform padding, examples of similar length share
    a batch.
    """

    def order_of(epoch: int) -> np.ndarray:
        order = epoch_order(len(examples), seed, epoch)
        if examples.padding != "uniform":
            return order
        return bucketed(order, examples.lengths, seed, epoch, batch_size)

    for indices, epochs in consume(len(examples), batch_size, position, order_of):
        yield make_batch(examples, indices, epochs=epochs)


def evaluation_order(examples: EncodedExamples) -> np.ndarray:
    """Return the order (N,) in which examples are evaluated: the longest first, which needs little
    padding and shows at once whether they fit in memory; with fixed padding, the order of the file.
    """
    if examples.padding == "fixed":
        return np.arange(len(examples))
    return np.argsort(-examples.lengths, kind="stable")


def evaluation_batches(
    examples: EncodedExamples, *, batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yield all examples once, in `evaluation_order`. The last batch is padded with examples whose
    "row_weights" (B,) are 0.
    """
    order = evaluation_order(examples)
    for start in range(0, len(examples), batch_size):
        places = np.arange(start, start + batch_size)
        is_real = places < len(examples)
        indices = order[np.where(is_real, places, start)]
        yield make_batch(examples, indices, is_real.astype(np.float32))
