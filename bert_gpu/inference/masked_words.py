"""Texts with [MASK] -> the words that a pretrained model predicts there.

Scores of the whole vocabulary are computed at the masked positions alone, and only the best few
leave the device.

Legend: N texts, B batch, S sequence, M masked positions, K words for each, V vocabulary.
"""

import contextlib
import json

import numpy as np
import tensorflow as tf

from bert_gpu.base.console import LOG
from bert_gpu.base.errors import UserError
from bert_gpu.base.signals import sigterm_unwinds
from bert_gpu.inference.arrays import PartialFile
from bert_gpu.inference.embeddings import check_output
from bert_gpu.inference.lines import empty, windows
from bert_gpu.inference.opened import ROWS, open_model
from bert_gpu.model.heads import best_words, mlm_logits, mlm_weights
from bert_gpu.text.framing import ranges
from bert_gpu.text.vocabulary.file import has_piece

MASK = "[MASK]"
# Positions that are scored at once, (M, V) float32; they are padded to the next power of 2.
MOST_POSITIONS = 256
NUM_NAMED = 3  # lines of a file that a warning names; the others are counted


class MaskFiller:
    """A model that guesses words; config: FillMaskConfig, whose input and output are not used.

    Calling it with a list of N str gives, for each text, for each [MASK] of it, [(probability,
    piece), ...], the best first. A text without [MASK] gets an empty list.
    """

    def __init__(self, config):
        self.top_k = config.top_k
        self.opened = open_model(
            config,
            "model",
            needs=mlm_weights,
            lacks=", so it cannot guess words; name a pretrained model, not a classifier",
        )
        self.max_seq_length = self.opened.config.max_position_embeddings
        hidden = tf.TensorSpec([None, None, self.opened.config.hidden_size], self.opened.dtype)
        self.encode = self.opened.compile(self.opened.hidden, *ROWS)
        self.score = self.opened.compile(self._score, hidden, tf.TensorSpec([None], tf.int32))

    def __call__(self, texts):
        ids, splits = frame_masked(self.opened.tokenizer, texts)
        lengths = np.diff(splits)
        if (longest := int(lengths.max(initial=0))) > self.max_seq_length:
            number = f" {int(lengths.argmax()) + 1}" if len(texts) > 1 else ""
            raise UserError(
                f"the text{number} has {longest} tokens, the model {self.max_seq_length} positions",
                "shorten it",
            )
        return self.answers(ids, splits)

    def answers(self, ids, splits):
        """The words for the rows of `frame_masked`, as for a call. A row of more than
        max_seq_length tokens gets an empty list.
        """
        tokenizer, lengths = self.opened.tokenizer, np.diff(splits)
        found = [[] for _ in lengths]
        has_mask = mask_counts(ids, splits, tokenizer.mask_id) > 0
        asked = np.flatnonzero(has_mask & (lengths <= self.max_seq_length))
        for chosen, length, num_rows in self.opened.batches(lengths[asked], self.max_seq_length):
            rows = asked[chosen]
            input_ids, num_tokens = self.opened.pad(ids, splits, rows, length, num_rows)
            positions = np.flatnonzero(input_ids == tokenizer.mask_id)  # in order of rows
            hidden = self.encode(input_ids, num_tokens)
            answers = self._best(hidden, positions)
            for row, answer in zip(rows[positions // length], answers, strict=True):
                found[row].append(answer)
        return found

    def _best(self, hidden, positions):
        """[(probability, piece), ...] for each of the flat positions (M,) in hidden (B, S, H)."""
        vocab = self.opened.tokenizer.vocab
        for first in range(0, len(positions), MOST_POSITIONS):
            part = positions[first : first + MOST_POSITIONS]
            size = 1 << (len(part) - 1).bit_length()
            scored = self.score(hidden, np.pad(part, (0, size - len(part))).astype(np.int32))
            for shares, pieces in zip(
                *(values.numpy()[: len(part)] for values in scored), strict=True
            ):
                yield [
                    (float(share), vocab[piece])
                    for share, piece in zip(shares, pieces, strict=True)
                ]

    def _score(self, hidden, positions):
        """The best words at flat positions: (B, S, H), (M,) -> float32 (M, K), int32 (M, K)."""
        opened = self.opened
        flat = tf.reshape(hidden, [1, -1, opened.config.hidden_size])
        logits = mlm_logits(opened.weights, flat, positions[None], opened.config, opened.dtype)[0]
        are_words = has_piece(opened.tokenizer.vocab, opened.config.vocab_size)
        return best_words(logits, are_words, self.top_k)


def check_masks(texts):
    """UserError for the first text without [MASK]."""
    for text in texts:
        if MASK not in text:
            raise UserError(
                f"has no {MASK}",
                f"write {MASK}, in capitals, for each word to guess",
                where=f"{text[:100]!r}",
            )


def frame_masked(tokenizer, texts):
    """[CLS] text [SEP] of each text: (ids int32 (T,), splits int64 (N + 1,)). The literal [MASK],
    which a tokenizer would split, is the special piece.
    """
    parts = [text.split(MASK) for text in texts]
    piece_ids, piece_splits = tokenizer.tokenize([part for row in parts for part in row])
    # every part is followed by one more piece, [MASK] or [SEP]
    part_lengths = np.diff(piece_splits) + 1
    row_ends = np.cumsum([len(row) for row in parts])
    splits = np.concatenate([[0], np.cumsum(part_lengths)])[[0, *row_ends]]
    splits += np.arange(len(splits))  # and every row begins with [CLS]
    ids = np.full(splits[-1], tokenizer.mask_id, np.int32)
    ids[splits[:-1]], ids[splits[1:] - 1] = tokenizer.cls_id, tokenizer.sep_id
    rows = np.repeat(np.arange(len(parts)), [len(row) for row in parts])
    begins = np.cumsum(part_lengths) - part_lengths + rows + 1
    ids[ranges(begins, part_lengths - 1)] = piece_ids
    return ids, splits


def mask_counts(ids, splits, mask_id):
    """Number of masks in each row, (N,)."""
    before = np.concatenate([[0], np.cumsum(ids == mask_id)])
    return np.diff(before[splits])


def fill_file(config, console=LOG, say=print):
    """Answers each line of --input, to --output or by `say` (text, words of its masks), and warns
    of lines without [MASK] and of lines that are too long, which get no words. Returns the number
    of texts. UserError when there is none; then no file is left.
    """
    if config.output is not None:
        check_output(config.output, config.overwrite)
    filler, num_texts = MaskFiller(config), 0
    mask_id, without_mask, too_long = filler.opened.tokenizer.mask_id, Tally(), Tally()
    with contextlib.ExitStack() as stack:
        stack.enter_context(sigterm_unwinds())
        file = config.output and stack.enter_context(PartialFile(config.output))
        for window in windows(config.input, console):
            texts = [line.decode() for line in window]
            ids, splits = frame_masked(filler.opened.tokenizer, texts)
            for text, masks in zip(texts, filler.answers(ids, splits), strict=True):
                file.append(as_json(text, masks)) if file else say(text, masks)
            has_mask = mask_counts(ids, splits, mask_id) > 0
            without_mask.add(~has_mask, num_texts)
            too_long.add(has_mask & (np.diff(splits) > filler.max_seq_length), num_texts)
            num_texts += len(texts)
        if not num_texts:
            raise empty(config.input)
    most = f"the {filler.max_seq_length} tokens that the model takes"
    for tally, problem in (
        (without_mask, f"without {MASK}; write {MASK}, in capitals, for each word to guess"),
        (too_long, f"longer than {most}, which get no words; shorten them"),
    ):
        if tally.count:
            console.warn(f"--input={config.input[-100:]}: of {num_texts:,} texts {tally} {problem}")
    return num_texts


class Tally:
    """Counts lines of a file, and keeps the numbers of the first NUM_NAMED."""

    def __init__(self):
        self.count, self.numbers = 0, []

    def add(self, is_counted, num_lines_before):
        """Counts lines (n,) bool that stand behind others."""
        found = np.flatnonzero(is_counted)
        self.count += len(found)
        self.numbers += (found + num_lines_before + 1)[: NUM_NAMED - len(self.numbers)].tolist()

    def __str__(self):
        """Such as "7 (lines 1, 2, 3 and 4 more)"."""
        more = self.count - len(self.numbers)
        numbers = ", ".join(f"{number:,}" for number in self.numbers)
        numbers += f" and {more:,} more" if more else ""
        return f"{self.count:,} (line{'s' * (self.count > 1)} {numbers})"


def as_json(text, masks):
    """A line of JSON, bytes."""
    words = [
        [dict(word=word, probability=round(share, 6)) for share, word in mask] for mask in masks
    ]
    return json.dumps(dict(text=text, masks=words), ensure_ascii=False).encode() + b"\n"
