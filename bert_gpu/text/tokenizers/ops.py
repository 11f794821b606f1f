"""Tokenizers as TensorFlow ops, for models that are served from a graph: strings -> ids.

They give the same ids as wordpiece.py and sentence_piece.py, which use Python for some lines; but a
graph has no Python. Here one table replaces each character (by Google's rules: cleaned, in lower
case, decomposed, without accents, spaces around punctuation), and FastWordpieceTokenizer splits the
words. Only marks that are no accents and whose order Unicode's decomposition changes (in musical
symbols) may come out in another order.

Legend: N texts, C characters of all of them, W words.
"""

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import (
    MAX_WORD_BYTES,
    MAX_WORD_CHARACTERS,
    Tokenizer,
    matchable,
)

SIGMA = 0x3A3  # capital
FINAL_SIGMA = 0x3C2  # small, at the end of a word


def open_ops(tokenizer: Tokenizer) -> tf.Module:
    """Return a tf.Module with tokenize(strings (N,)) -> RaggedTensor int32 (N, ids of each), the
    ids that the tokenizer gives.
    """
    return (
        SentencePieceOps(tokenizer)
        if isinstance(tokenizer, SentencePieceTokenizer)
        else WordPieceOps(tokenizer)
    )


class WordPieceOps(tf.Module):
    """A WordPieceTokenizer as ops."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        lowers = tokenizer.do_lower_case
        self.characters = CharacterMap(  # basic.split_words does the same to whole lines
            lambda character: basic.spaced(
                character.translate(basic.CLEAN), lowers, tokenizer.strip_accents
            ),
            has_sigma=lowers,
        )
        self.words = tf_text.FastWordpieceTokenizer(
            matchable(tokenizer.vocab),
            max_bytes_per_word=MAX_WORD_BYTES,
            token_out_type=tf.int32,
            no_pretokenization=True,
        )

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        words = tf.strings.split(self.characters(texts))  # (N, W of each)
        # Google's limit is in characters, the op's in bytes: a word that is too long for Google is
        # replaced by one that is too long for the op.
        is_long = tf.strings.length(words.values, unit="UTF8_CHAR") > MAX_WORD_CHARACTERS
        flat = tf.where(is_long, "x" * (MAX_WORD_BYTES + 1), words.values)
        ids = self.words.tokenize(flat)  # (W, ids of each)
        return tf.RaggedTensor.from_row_splits(
            ids.values, tf.gather(ids.row_splits, words.row_splits)
        )


class SentencePieceOps(tf.Module):
    """A SentencePieceTokenizer as ops."""

    def __init__(self, tokenizer: SentencePieceTokenizer) -> None:
        super().__init__()
        content = tokenizer.files()["sentencepiece.model"]
        self.pieces = tf_text.SentencepieceTokenizer(content, out_type=tf.int32)
        self.lowers = CharacterMap(str.lower, has_sigma=True) if tokenizer.lowers_first else None
        self.is_special = tf.constant(tokenizer.is_special)
        self.unk_id = tokenizer.unk_id

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids = self.pieces.tokenize(texts if self.lowers is None else self.lowers(texts))
        known = tf.where(tf.gather(self.is_special, ids.values), self.unk_id, ids.values)
        return ids.with_values(known)


class CharacterMap(tf.Module):
    """Replaces each character of texts: strings (N,) -> strings (N,). Bytes that are not UTF-8 are
    dropped.

    rule: returns the text that replaces a character; called once for every character of Unicode.
    has_sigma: whether the rule lower-cases; a capital sigma then depends on its neighbours.
    """

    def __init__(self, rule: Callable[[str], str], has_sigma: bool) -> None:
        super().__init__()
        codes = []
        replacements = []
        for character in assigned_characters():
            if (result := rule(character)) != character:
                codes.append(ord(character))
                replacements.append(result)
        lengths = list(map(len, replacements))
        self.codes = variable(codes)  # sorted; other characters stay as they are
        self.lengths = variable(lengths)
        self.starts = variable(np.cumsum(lengths) - lengths)
        self.pool = variable(np.frombuffer("".join(replacements).encode("utf-32-le"), np.int32))
        self.sigma = FinalSigma(rule) if has_sigma else None

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        codes = tf.strings.unicode_decode(texts, "UTF-8", errors="ignore")  # (N, C of each)
        flat = codes.values if self.sigma is None else self.sigma(codes)
        entries = tf.minimum(tf.searchsorted(self.codes, flat), tf.size(self.codes) - 1)
        is_listed = tf.gather(self.codes, entries) == flat
        lengths = tf.where(is_listed, tf.gather(self.lengths, entries), 1)
        ends = tf.concat([[0], tf.cumsum(lengths)], 0)
        # for each new character, the index of the old character that it comes from
        sources = tf.repeat(tf.range(tf.size(flat)), lengths)
        offsets = tf.range(tf.size(sources)) - tf.gather(ends, sources)
        starts = tf.where(is_listed, tf.gather(self.starts, entries), 0)
        replaced = tf.gather(self.pool, tf.gather(starts, sources) + offsets)
        new = tf.where(tf.gather(is_listed, sources), replaced, tf.gather(flat, sources))
        splits = tf.gather(tf.cast(ends, tf.int64), codes.row_splits)
        return tf.strings.unicode_encode(tf.RaggedTensor.from_row_splits(new, splits), "UTF-8")


class FinalSigma(tf.Module):
    """Replaces a capital sigma by a small final one where str.lower does (Unicode 3.13,
    Final_Sigma): after a cased letter and not before one. Characters that are ignorable, or that
    the rule deletes, do not count.
    """

    def __init__(self, rule: Callable[[str], str]) -> None:
        super().__init__()
        is_cased = []
        is_ignored = []
        for character in assigned_characters():
            stops = f"AΣ{character}".lower()[1] == "σ"  # cased, and not ignorable
            passes = not stops and f"AΣ{character}A".lower()[1] == "σ"
            if passes or rule(character) == "" and not stops:
                is_ignored.append(ord(character))
            elif stops:
                is_cased.append(ord(character))
        self.is_cased = variable(is_cased)
        self.is_ignored = variable(is_ignored)

    def __call__(self, codes: tf.RaggedTensor) -> tf.Tensor:
        """Return the character codes of texts as int32 (C,), with each final capital sigma
        replaced. codes: int32 (N, C of each).
        """
        places = tf.where(~contains(self.is_ignored, codes.values))[:, 0]
        flat = tf.gather(codes.values, places)
        rows = tf.gather(codes.value_rowids(), places)
        cased = contains(self.is_cased, flat)
        same = rows[1:] == rows[:-1]
        nothing = tf.zeros([tf.minimum(tf.size(flat), 1)], tf.bool)
        before = tf.concat([nothing, cased[:-1] & same], 0)
        behind = tf.concat([cased[1:] & same, nothing], 0)
        new = tf.where((flat == SIGMA) & before & ~behind, FINAL_SIGMA, flat)
        return tf.tensor_scatter_nd_update(codes.values, places[:, None], new)


def assigned_characters() -> Iterator[str]:
    """Yield the characters that a rule may change: those that Unicode assigns, and the CJK
    ranges.
    """
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs") or basic.is_cjk(code):
            yield chr(code)


def contains(table: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return, for each value, whether it is in a sorted table: bool, of the shape of values."""
    entries = tf.minimum(tf.searchsorted(table, values), tf.size(table) - 1)
    return tf.gather(table, entries) == values


def variable(values: Sequence[int] | np.ndarray) -> tf.Variable:
    """Return a table as a variable, which a SavedModel keeps outside of its graph."""
    return tf.Variable(np.asarray(values, np.int32), trainable=False)
