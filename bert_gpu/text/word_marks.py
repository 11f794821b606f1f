"""Marks between the words of a text whose script has no spaces there, such as Chinese or Thai.

A tool of the language puts a mark, by default a zero-width space, between the words. The data job
drops the marks, so that the tokens are those of the text without them, and remembers where words
begin, for masks of whole words.

Legend: T tokens.
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np

from bert_gpu.text.tokenizers.offsets import locate_pieces
from bert_gpu.text.tokenizers.wordpiece import Tokenizer

ZERO_WIDTH_SPACE = "\u200b"
MARK = ZERO_WIDTH_SPACE.encode()
# Chinese and Japanese characters, Thai, Lao, Burmese and Khmer
WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]")
LEAST_SHARE = 0.3  # of a text's characters in such scripts, from which the marks are spoken of


def without_marks(document: Sequence[bytes], mark: bytes) -> list[bytes]:
    """Return the lines of a document without the marks."""
    return [line.replace(mark, b"") for line in document]


def word_starts(
    tokenizer: Tokenizer, lines: Sequence[bytes], mark: bytes, ids: np.ndarray, splits: np.ndarray
) -> np.ndarray | None:
    """Return whether each token begins a word, bool (T,); None where no line has a mark. In a line
    with marks, words begin at its start, after a mark and after white space; in others, where the
    tokenizer's pieces say so.

    lines: with their marks. ids, splits: the tokens of the lines without the marks.
    """
    marked = [index for index, line in enumerate(lines) if mark in line]
    if not marked:
        return None
    is_start = tokenizer.word_starts(ids)
    parts = [lines[index].decode().split(mark.decode()) for index in marked]
    located = locate_pieces(tokenizer, ["".join(of_line) for of_line in parts])
    for index, of_line, (_, begins, _) in zip(marked, parts, located, strict=True):
        words = itertools.accumulate(map(len, of_line), initial=0)
        spaces = (match.end() for match in re.finditer(r"\s+", "".join(of_line)))
        places = np.sort([*words, *spaces])
        # a piece across a mark is of the word before it
        num_words = np.searchsorted(places, begins, side="right")
        is_start[splits[index] : splits[index + 1]] = np.diff(num_words, prepend=0) > 0
    return is_start


def marks_hint(documents: Sequence[Sequence[bytes]], mark: bytes) -> list[str]:
    """Return [a line that names the marks] for documents without marks in a script without spaces,
    else [].
    """
    lines = list(itertools.chain(*documents))
    text = b"".join(lines).decode("utf-8", "ignore")
    if any(mark in line for line in lines) or (
        len(WITHOUT_SPACES.findall(text)) < LEAST_SHARE * max(1, len(text))
    ):
        return []
    return [
        "words: the script of the text has no spaces between them; to mask whole words, put "
        "zero-width spaces (U+200B) between them with a tool of the language, or another character "
        "that --word_separator names"
    ]
