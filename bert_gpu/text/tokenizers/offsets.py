"""Finds the characters of a text that each of its pieces stands for.

A tokenizer's cleaning may change the length of a text. SentencePiece and the tokenizers of Hugging
Face's library report offsets themselves. For WordPiece the text is first cut into Google's words
(white space, punctuation, Chinese characters; text/tokenizers/basic.py), whose characters are
known; inside a word of several pieces, the characters of the pieces are counted. The pieces
themselves come from tokenizing the whole text: where cutting at punctuation would change the pieces
(a sigma before an apostrophe), `places_between_spaces` finds their characters. In the end
`whole_characters` moves each place to where a reader sees a character begin and end, because a
tokenizer that composes letters (NFC, NFKC) reports the letter without its marks.

Legend: T pieces of a text.
"""

import re
from collections.abc import Sequence

import numpy as np
import tokenizers

from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

Locating = HuggingFaceTokenizer | SentencePieceTokenizer  # those that report offsets

SPACE, SINGLE, LETTER = " ", ".", "a"  # each kind of characters is written as one character
WORD = "a+|[.]"  # matches the kinds of a word's characters
# Matches what a reader sees as one character: a space, or a grapheme cluster of Unicode 16. The
# library's own \X is older: it does not join the consonants of Indic scripts at a virama.
CHARACTERS = tokenizers.pre_tokenizers.Split(
    tokenizers.Regex(
        r"\s|\X(?:(?<=[\u094d\u09cd\u0acd\u0b4d\u0c4d\u0d4d\u200d])(?=[\u0915-\u0d39])\X)*"
    ),
    "isolated",
)


def kind_of(code: int) -> str:
    """Return the kind of the character with a code point: SPACE, SINGLE (a word of its own) or
    LETTER (also for a character that cleaning removes).
    """
    cleaned = basic.clean(code)
    if cleaned == " ":
        return SPACE
    is_single = isinstance(cleaned, str) or basic.is_punctuation(chr(code))
    return SINGLE if is_single and cleaned is not None else LETTER


KINDS = basic.Table(kind_of)


def spans_of(text: str, pattern: str) -> list[tuple[int, int]]:
    """Return (begin, end) of each part of a text whose characters' kinds match a regular
    expression.
    """
    return [match.span() for match in re.finditer(pattern, text.translate(KINDS))]


def whole_characters(
    text: str, begins: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begins, ends), moved outwards to the nearest ends of characters as a reader sees
    them.
    """
    if text.isascii():
        return begins, ends
    parts = CHARACTERS.pre_tokenize_str(re.sub("[\ud800-\udfff]", " ", text))
    bounds = np.array([*(begin for _, (begin, _) in parts), len(text)], np.int32)
    begins = bounds[np.searchsorted(bounds, begins, side="right") - 1]
    return begins, bounds[np.searchsorted(bounds, ends)]


def locate_pieces(
    tokenizer: Tokenizer, texts: list[str]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return (ids, begins, ends), int32 (T,), of each text: its pieces and the characters, from
    `begin` to before `end`, that each piece stands for, with all of their marks.
    """
    whole, whole_splits = tokenizer.tokenize(texts)
    if isinstance(tokenizer, Locating):
        pairs = zip(texts, np.split(whole, whole_splits[1:-1]), strict=True)
        return [located_by_tokenizer(tokenizer, text, ids) for text, ids in pairs]
    words = [spans_of(text, WORD) for text in texts]
    parts = [text[a:b] for text, spans in zip(texts, words, strict=True) for a, b in spans]
    ids, splits = tokenizer.tokenize(parts)
    located = []
    first = 0
    for text, spans, start, end in zip(
        texts, words, whole_splits[:-1], whole_splits[1:], strict=True
    ):
        bounds = splits[first : first + len(spans) + 1]
        first += len(spans)
        pieces = whole[start:end]
        if np.array_equal(ids[bounds[0] : bounds[-1]], pieces):
            begins, ends = places_of(tokenizer, text, spans, pieces, bounds - bounds[0])
        else:
            begins, ends = places_between_spaces(tokenizer, text, pieces)
        located.append((pieces, *whole_characters(text, begins, ends)))
    return located


def located_by_tokenizer(
    tokenizer: Locating, text: str, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (ids, begins, ends) of a text with the offsets that the tokenizer itself reports."""
    places = tokenizer.locate(text)
    if places is None or len(places[0]) != len(ids):
        places = places_between_spaces(tokenizer, text, ids)
    return ids, *whole_characters(text, *places)


def places_of(
    tokenizer: Tokenizer,
    text: str,
    spans: Sequence[tuple[int, int]],
    ids: np.ndarray,
    bounds: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begins, ends): the characters of a text that each piece of its words stands for.
    spans: (begin, end) of each word in the text. bounds: indices of each word's first piece, then
    the number of pieces.
    """
    counts = np.diff(bounds)
    limits = np.array(spans, np.int32).reshape(-1, 2)
    begins, ends = (np.repeat(limits[:, side], counts) for side in (0, 1))
    for word in np.flatnonzero(counts > 1).tolist():
        first = bounds[word]
        last = bounds[word + 1]
        begin, end = spans[word]
        inner = places_in_word(tokenizer, text[begin:end], ids[first:last])
        if inner is not None:
            begins[first:last] = inner[0] + begin
            ends[first:last] = inner[1] + begin
    return begins, ends


def places_in_word(
    tokenizer: Tokenizer, word: str, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return (begins, ends): the characters of one word that each of its pieces stands for; None
    when the pieces do not spell the word, as [UNK] does not.
    """
    casing = (tokenizer.do_lower_case, tokenizer.strip_accents)
    letters = ["".join(parts) for parts in basic.split_words(list(word), *casing)]
    pieces = [piece.removeprefix("##") for piece in tokenizer.pieces(ids)]
    if "".join(letters) != "".join(pieces):
        return None
    owners = np.repeat(np.arange(len(word)), [len(letter) for letter in letters])
    lasts = np.cumsum([len(piece) for piece in pieces])
    begins = owners[np.append(0, lasts[:-1])]
    # a character that cleaning removes, such as an accent, belongs to the letter before it
    return begins, np.maximum(owners[lasts - 1] + 1, np.append(begins[1:], len(word)))


def places_between_spaces(
    tokenizer: Tokenizer, text: str, ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return (begins, ends): the characters of a text that each piece stands for, where its words,
    tokenized alone, give other pieces. Each stretch between two spaces is tokenized alone, too.
    Where its words give its pieces, these have their own characters; else each has the whole
    stretch. Where even the stretches give other pieces than the text, each piece has the whole
    text.
    """
    limits = spans_of(text, "[a.]+")
    parted, splits = tokenizer.tokenize([text[begin:end] for begin, end in limits])
    begins = np.zeros(len(ids), np.int32)
    ends = np.full(len(ids), len(text), np.int32)
    if not np.array_equal(parted, ids):
        return begins, ends
    for (begin, end), first, last in zip(limits, splits[:-1], splits[1:], strict=True):
        part = text[begin:end]
        here = slice(first, last)
        spans = spans_of(part, WORD)
        inner, bounds = tokenizer.tokenize([part[a:b] for a, b in spans])
        begins[here] = 0
        ends[here] = end - begin
        if np.array_equal(inner, ids[here]):
            begins[here], ends[here] = places_of(tokenizer, part, spans, inner, bounds)
        begins[here] += begin
        ends[here] += begin
    return begins, ends
