"""Texts with [MASK] -> the words that a pretrained model predicts there.

Scores of the whole vocabulary are computed at the masked positions alone, and only the best few
leave the device.

Legend: N texts, T tokens of all texts, B batch, S sequence, H hidden, M masked positions, K words
for each masked position, V vocabulary.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import LOG, Console
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.inference.arrays import PartialFile
from bert_gpu.inference.config import FillMaskConfig, ModelSource
from bert_gpu.inference.embeddings import check_output
from bert_gpu.inference.lines import empty_input, windows
from bert_gpu.inference.opened import ROWS, OpenedModel, open_model
from bert_gpu.model.heads import best_words, mlm_logits, mlm_weights
from bert_gpu.text.framing import frame, ranges
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer
from bert_gpu.text.vocabulary.file import has_piece

MASK = "[MASK]"
# Most positions that are scored at once, float32 (M, V); M is rounded up to a power of 2.
MAX_POSITIONS = 256
UNLIMITED = 1 << 40  # maximum tokens of rows that are not to be cut
NUM_NAMED = 3  # lines of a file that a warning names; the others are counted
Words = list[tuple[float, str]]  # (probability, piece) of the best words for a mask, the best first


class MaskFiller:
    """A model that guesses words. config: its input and output are not used.

    A call with texts returns a list for each text, which has for each [MASK] a list of
    (probability, piece), the best first. The list of a text without [MASK] is empty.
    """

    def __init__(self, config: FillMaskConfig) -> None:
        self.top_k = config.top_k
        self.opened = open_masked(config)
        self.max_seq_length = self.opened.config.num_positions
        hidden = tf.TensorSpec([None, None, self.opened.config.hidden_size], self.opened.dtype)
        self.encode = self.opened.compile(self.opened.hidden, *ROWS)
        self.score = self.opened.compile(self._score, hidden, tf.TensorSpec([None], tf.int32))

    def __call__(self, texts: Sequence[str]) -> list[list[Words]]:
        ids, splits = frame_masked(self.opened.tokenizer, texts)
        lengths = np.diff(splits)
        if (longest := int(lengths.max(initial=0))) > self.max_seq_length:
            number = f" {int(lengths.argmax()) + 1}" if len(texts) > 1 else ""
            raise UserError(
                f"the text{number} has {longest} tokens, the model {self.max_seq_length} positions",
                "shorten it",
            )
        return self.answers(ids, splits)

    def answers(self, ids: np.ndarray, splits: np.ndarray) -> list[list[Words]]:
        """Return a list for each row of `frame_masked`, with the Words for each of its masks. The
        list of a row of more than max_seq_length tokens is empty.
        """
        tokenizer = self.opened.tokenizer
        lengths = np.diff(splits)
        words: list[list[Words]] = [[] for _ in lengths]
        has_mask = mask_counts(ids, splits, tokenizer.mask_id) > 0
        candidates = np.flatnonzero(has_mask & (lengths <= self.max_seq_length))
        for indices, length, num_rows in self.opened.batches(
            lengths[candidates], self.max_seq_length
        ):
            rows = candidates[indices]
            input_ids, num_tokens = self.opened.pad(ids, splits, rows, length, num_rows)
            positions = np.flatnonzero(input_ids == tokenizer.mask_id)  # row by row
            answers = self._best(self.encode(input_ids, num_tokens), positions)
            for row, answer in zip(rows[positions // length], answers, strict=True):
                words[row].append(answer)
        return words

    def _best(self, hidden: tf.Tensor, positions: np.ndarray) -> Iterator[Words]:
        """Yield the Words for each of M positions, indices (M,) into the B * S positions of hidden,
        (B, S, H).
        """
        for scored in in_parts(self.score, hidden, positions):
            for probabilities, pieces in zip(*scored, strict=True):
                yield [
                    (float(probability), self.opened.tokenizer.vocab[piece])
                    for probability, piece in zip(probabilities, pieces, strict=True)
                ]

    def _score(self, hidden: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the best words at M positions: probabilities float32 (M, K), ids int32 (M, K).
        hidden: (B, S, H). positions: (M,), indices into its B * S positions.
        """
        opened = self.opened
        flat = tf.reshape(hidden, [1, -1, opened.config.hidden_size])
        logits = mlm_logits(opened.weights, flat, positions[None], opened.config, opened.dtype)[0]
        are_words = has_piece(opened.tokenizer.vocab, opened.config.vocab_size)
        return best_words(logits, are_words, self.top_k)


def open_masked(source: ModelSource) -> OpenedModel:
    """Open the model that --model names. Raises UserError when there is none, or it has no head of
    masked words.
    """
    return open_model(
        source,
        "model",
        needs=mlm_weights,
        consequence=", so it cannot guess words; name a pretrained model, not a classifier",
    )


def in_parts(
    function: Callable[..., Sequence[tf.Tensor]], hidden: tf.Tensor, *columns: np.ndarray
) -> Iterator[list[np.ndarray]]:
    """Yield the results, arrays (m, ...), of function(hidden, *parts), for parts of m <=
    MAX_POSITIONS entries of the columns (M,), which the function gets as int32, padded.
    """
    for first in range(0, len(columns[0]), MAX_POSITIONS):
        parts = [column[first : first + MAX_POSITIONS].astype(np.int32) for column in columns]
        count = len(parts[0])
        missing = (1 << (count - 1).bit_length()) - count
        results = function(hidden, *(np.pad(part, (0, missing)) for part in parts))
        yield [values.numpy()[:count] for values in results]


def check_masks(texts: Sequence[str], tokenizer: Tokenizer) -> None:
    """Raise UserError for the first text without [MASK], under this name or the tokenizer's."""
    own = tokenizer.vocab[tokenizer.mask_id]
    for text in texts:
        if MASK not in text and own not in text:
            raise UserError(
                f"has no {MASK}" + f" and no {own}" * (own != MASK),
                f"write {MASK}, in capitals, for each word to guess",
                where=f"{text[:100]!r}",
            )


def frame_masked(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows [CLS] text [SEP] of texts: ids int32 (T,), and int64 (N + 1,), where each row
    begins. The literal [MASK], which a tokenizer would split, becomes the special piece; so does
    the name that the tokenizer has for this piece, such as <mask>.
    """
    own = tokenizer.vocab[tokenizer.mask_id]
    if isinstance(tokenizer, HuggingFaceTokenizer):
        # The library recognises the mask by its own name for it, such as <mask>, and drops the
        # space before that name.
        framed = frame(tokenizer, [text.replace(MASK, own) for text in texts], None, UNLIMITED)
        return framed.ids, framed.splits
    parts = [text.replace(own, MASK).split(MASK) for text in texts]
    piece_ids, piece_splits = tokenizer.tokenize([part for row in parts for part in row])
    # [MASK] or [SEP] follows every part
    part_lengths = np.diff(piece_splits) + 1
    row_ends = np.cumsum([len(row) for row in parts])
    splits = np.concatenate([[0], np.cumsum(part_lengths)])[[0, *row_ends]]
    splits += np.arange(len(splits))  # and every row begins with [CLS]
    ids = np.full(splits[-1], tokenizer.mask_id, np.int32)
    ids[splits[:-1]] = tokenizer.cls_id
    ids[splits[1:] - 1] = tokenizer.sep_id
    rows = np.repeat(np.arange(len(parts)), [len(row) for row in parts])
    begins = np.cumsum(part_lengths) - part_lengths + rows + 1
    ids[ranges(begins, part_lengths - 1)] = piece_ids
    return ids, splits


def mask_counts(ids: np.ndarray, splits: np.ndarray, mask_id: int) -> np.ndarray:
    """Return the number of masks in each row, (N,)."""
    before = np.concatenate([[0], np.cumsum(ids == mask_id)])
    return np.diff(before[splits])


def fill_file(
    config: FillMaskConfig,
    console: Console = LOG,
    say: Callable[[str, list[Words]], object] = print,
) -> int:
    """Write the words for each line of --input to --output, or pass them to `say`, and return the
    number of texts. Lines without [MASK] and lines that are too long get no words, and a warning.
    Raises UserError when there is no line; then no file is left.
    """
    assert config.input is not None
    if config.output is not None:
        check_output(config.output, config.overwrite)
    filler = MaskFiller(config)
    num_texts = 0
    tokenizer = filler.opened.tokenizer
    without_mask: list[int] = []  # numbers of lines
    too_long: list[int] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        file = stack.enter_context(PartialFile(config.output)) if config.output else None
        for window in windows(config.input, console):
            texts = [line.decode() for line in window]
            ids, splits = frame_masked(tokenizer, texts)
            for text, masks in zip(texts, filler.answers(ids, splits), strict=True):
                file.append(as_json(text, masks)) if file else say(text, masks)
            has_mask = mask_counts(ids, splits, tokenizer.mask_id) > 0
            is_too_long = has_mask & (np.diff(splits) > filler.max_seq_length)
            without_mask += (np.flatnonzero(~has_mask) + num_texts + 1).tolist()
            too_long += (np.flatnonzero(is_too_long) + num_texts + 1).tolist()
            num_texts += len(texts)
        if not num_texts:
            raise empty_input(config.input)

    for numbers, problem in (
        (without_mask, f"without {MASK}; write {MASK}, in capitals, for each word to guess"),
        (
            too_long,
            f"longer than the {filler.max_seq_length} tokens that the model takes, which get no "
            "words; shorten them",
        ),
    ):
        if numbers:
            console.warn(
                f"--input={config.input[-100:]}: of {num_texts:,} texts {describe_lines(numbers)} "
                f"{problem}"
            )
    return num_texts


def describe_lines(numbers: Sequence[int]) -> str:
    """Return how many lines these are, with the numbers of the first NUM_NAMED, such as "7 (lines
    1, 2, 3 and 4 more)".
    """
    more = len(numbers) - NUM_NAMED
    named = ", ".join(f"{number:,}" for number in numbers[:NUM_NAMED])
    ending = f" and {more:,} more" if more > 0 else ""
    return f"{len(numbers):,} (line{'s' * (len(numbers) > 1)} {named}{ending})"


def as_json(text: str, masks: list[Words]) -> bytes:
    """Return the line of --output for a text, as bytes of JSON. masks: the Words for each
    [MASK].
    """
    words = [
        [dict(word=word, probability=round(probability, 6)) for probability, word in mask]
        for mask in masks
    ]
    return json.dumps(dict(text=text, masks=words), ensure_ascii=False).encode() + b"\n"
