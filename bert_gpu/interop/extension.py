"""Adds words to the vocabulary of a trained model: takes them from a text or a list, and gives each
a row in the model's tables.

From a text, the words are taken that shorten it most, by count x (pieces - 1). The row of a new
word begins as the mean of the rows of the pieces that the word was split into before, in the word
embeddings and in the output bias. A word becomes a line of a vocab.txt; in a tokenizer of another
kind it becomes an added token, which stays whole where it stands alone.
"""

import dataclasses
import json
import pathlib
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.interop.config import ExtendConfig
from bert_gpu.interop.formats import Model
from bert_gpu.interop.tokenizer_json import tokenizer_json
from bert_gpu.text.config import TextFormat
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer
from bert_gpu.text.vocabulary import counting, learning
from bert_gpu.text.vocabulary.file import read_file
from bert_gpu.text.vocabulary.wordpiece_learner import file_content

TABLES = ("embeddings/word", "mlm/bias")  # weights that have a row for each token id
MIN_COUNT = 2  # a single occurrence in a text would train the word's row too little
MAX_WORD_CHARACTERS = 100  # transformers reads a longer word as [UNK]
NUM_NAMES = 10  # maximum number of words that a message lists
UNUSED = re.compile(r"\[unused\d+\]")


def extend(
    model: Model,
    config: ExtendConfig,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool],
) -> Model:
    """Return `model` with words added to its vocabulary and tables, and print how they shorten the
    text. text_format, console, is_own: as for `learning.open_text`. Raise UserError when there is
    no word to add, or the model cannot take any.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not model.config.has_own_encoder:
        raise UserError(
            f"has {'no vocabulary' if tokenizer is None else 'an encoder of Model Garden'}",
            "name another model",
            setting="from",
            value=config.source,
        )
    counts = (
        count_words(tokenizer, config, text_format, console, is_own)
        if config.tokens_file is None
        else read_words(tokenizer, config.tokens_file, console)
    )
    before = num_pieces(tokenizer, counts)
    # `tokenizers` adds no word that is a piece already, even a piece that only continues words
    pieces = {*tokenizer.vocab}
    candidates = {word: count for word, count in counts.items() if word not in pieces}
    words = choose(candidates, before, None if config.tokens_file else config.num_tokens)
    if not words:
        raise UserError(
            "has no word that is several pieces",
            "name another text",
            where=config.tokens_file or config.input_file,
        )
    takes = config.use_unused and isinstance(tokenizer, WordPieceTokenizer)
    unused = [i for i, piece in enumerate(tokenizer.vocab) if takes and UNUSED.fullmatch(piece)]
    size = tokenizer.vocab_size
    ids = [*unused, *range(size, size + len(words))][: len(words)]
    new = with_words(tokenizer, words, ids, model.config.type_vocab_size)
    rates = [
        sum(counts[word] * number for word, number in lengths.items()) / sum(counts.values())
        for lengths in (before, num_pieces(new, counts))
    ]
    console.say(
        f"already one piece: {name_some([word for word in counts if before[word] == 1])}\n"
        f"added, {sum(index < size for index in ids):,} in [unused] rows: {name_some(words)}\n"
        f"pieces per word: {rates[0]:.3f} before, {rates[1]:.3f} after"
    )
    return model._replace(
        config=dataclasses.replace(
            model.config, vocab_size=max(model.config.vocab_size, max(ids) + 1)
        ),
        weights=with_rows(model.weights, tokenizer, words, ids),
        tokenizer=new,
    )


def letter_rules(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the arguments with which `basic.split_words` treats letters as a tokenizer does."""
    strips = tokenizer.strip_accents and not isinstance(tokenizer, SentencePieceTokenizer)
    return dict(do_lower_case=tokenizer.do_lower_case, strip_accents=strips)


def count_words(
    tokenizer: Tokenizer,
    config: ExtendConfig,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool],
) -> dict[str, int]:
    """Return {word: count} of a text, or of a sample of a long one, most frequent word first and
    equal counts in alphabetical order. A word ends at spaces and punctuation.
    """
    letters = letter_rules(tokenizer)
    spool = f"{config.to}.unpacked"
    with learning.open_text(config, text_format, console, is_own, spool) as (blocks, _, workers):
        blocks = counting.sample_blocks(blocks, counting.SAMPLE_BYTES, seed=0)
        num_bytes = sum(block.num_bytes for block in blocks)
        with ByteProgress(console, num_bytes, "counting words") as progress:
            counts = counting.count_words_of_blocks(
                blocks, workers=workers, report=progress.add, **letters
            )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def read_words(tokenizer: Tokenizer, path: str, console: Console) -> dict[str, int]:
    """Return {word: 1} for the words in a file with one word a line, lower-cased as the tokenizer
    does. Warn of lines that the tokenizer does not read as one word, and of words that are too
    long.
    """
    content = read_file(path, "list of words", "text file", "a text editor")
    lines = content.decode("utf-8-sig", "ignore").splitlines()
    rows = dict(zip(lines, basic.split_words(lines, **letter_rules(tokenizer)), strict=True))
    words = {
        line: row[0]
        for line, row in rows.items()
        if len(row) == 1 and len(row[0]) <= MAX_WORD_CHARACTERS
    }
    if others := [line for line, row in rows.items() if row and line not in words]:
        console.warn(
            f"{path}: left out, because the tokenizer cuts them into several words, or they have "
            f"more than {MAX_WORD_CHARACTERS} letters: {name_some(others)}"
        )
    return dict.fromkeys(words.values(), 1)


def name_some(words: Sequence[str]) -> str:
    """Return a text with the number of words and the first NUM_NAMES of them."""
    return f"{len(words):,} words" + (f", {', '.join(words[:NUM_NAMES])}" if words else "")


def num_pieces(tokenizer: Tokenizer, words: Collection[str]) -> dict[str, int]:
    """Return {word: number of pieces that the tokenizer splits it into after a space}."""
    _, row_splits = tokenizer.tokenize([f" {word}" for word in words])
    return dict(zip(words, np.diff(row_splits).tolist(), strict=True))


def choose(
    counts: Mapping[str, int], lengths: Mapping[str, int], num_tokens: int | None
) -> list[str]:
    """Return at most num_tokens words to add, sorted by how much each shortens the text,
    counts[word] * (lengths[word] - 1), and then alphabetically. lengths: {word: number of its
    pieces}. num_tokens: None = all words of several pieces, in the order of `counts`.
    """
    several = [word for word in counts if lengths[word] > 1]
    if num_tokens is None:
        return several
    gains = {
        word: counts[word] * (lengths[word] - 1)
        for word in several
        if counts[word] >= MIN_COUNT and len(word) <= MAX_WORD_CHARACTERS
    }
    return sorted(gains, key=lambda word: (-gains[word], word))[:num_tokens]


def with_rows(
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    words: Sequence[str],
    ids: Sequence[int],
) -> dict[str, np.ndarray]:
    """Return a copy of `weights` in which row ids[i] of each of TABLES is the mean of the rows of
    the pieces of words[i].
    """
    flat, row_splits = tokenizer.tokenize([f" {word}" for word in words])
    extended = dict(weights)
    for name in (name for name in TABLES if name in weights):
        table = weights[name]  # word embeddings (V, E) or output bias (V,)
        sums = np.add.reduceat(table[flat], row_splits[:-1], axis=0, dtype=np.float64)
        num_new = max(0, max(ids) + 1 - len(table))
        extended[name] = np.pad(table, [(0, num_new)] + [(0, 0)] * (table.ndim - 1))
        extended[name][list(ids)] = (sums.T / np.diff(row_splits)).T
    return extended


def with_words(
    tokenizer: Tokenizer, words: Sequence[str], ids: Sequence[int], num_segments: int
) -> Tokenizer:
    """Return a tokenizer to which the words are added, words[i] with the id ids[i]. num_segments:
    as for `tokenizer_json`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "vocab.txt")
        if isinstance(tokenizer, WordPieceTokenizer):
            pieces = dict(enumerate(tokenizer.vocab)) | dict(zip(ids, words, strict=True))
            path.write_bytes(file_content(pieces[index] for index in range(len(pieces))))
            return open_tokenizer(str(path), tokenizer.do_lower_case, tokenizer.strip_accents)
        settings = json.loads(tokenizer_json(tokenizer, num_segments))
        flags = dict(single_word=True, lstrip=True, rstrip=False, normalized=True, special=False)
        settings["added_tokens"] += [
            dict(id=index, content=word) | flags for index, word in zip(ids, words, strict=True)
        ]
        path.with_name("tokenizer.json").write_text(json.dumps(settings))
        return HuggingFaceTokenizer(str(path.with_name("tokenizer.json")))
