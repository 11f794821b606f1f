"""Words of one's own in the vocabulary of a trained model: text or a list -> words -> rows.

The words are those that shorten the text most: count x (pieces - 1). The row of a word begins as
the mean of the rows of the pieces that it has been so far, in the word embeddings and in the output
bias, so that the model reads nearly what it read before. A word becomes a line of a vocab.txt; in
tokenizers of other kinds it becomes an added token, which stays whole where it stands alone.
"""

import collections
import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer
from bert_gpu.text.vocabulary import counting, learning
from bert_gpu.text.vocabulary.file import read_file
from bert_gpu.text.vocabulary.wordpiece_learner import file_content

TABLES = ("embeddings/word", "mlm/bias")  # weights with a row for each id
MIN_COUNT = 2  # a word that occurs once in a text teaches its row little
MAX_WORD_CHARACTERS = 100  # the limit of transformers; a longer word is [UNK] there
NUM_NAMES = 10  # words that a message names


def extend(
    model: Model,
    config: ExtendConfig,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool],
) -> Model:
    """Return a model with further words. Prints what they change. Arguments as for
    `learning.open_text`. Raises UserError when no word would be added, or the model has no
    vocabulary.
    """
    tokenizer = model.tokenizer
    if tokenizer is None or not model.config.has_own_encoder:
        lack = "no vocabulary" if tokenizer is None else "an encoder of Model Garden"
        raise UserError(f"has {lack}", "name another model", setting="from", value=config.source)
    if config.tokens_file is None:
        counts = count_words(tokenizer, config, text_format, console, is_own)
    else:
        counts = read_words(tokenizer, config.tokens_file, console)
    before = num_pieces(tokenizer, counts)
    console.say(f"already one piece: {name_some([word for word in counts if before[word] == 1])}")
    words = choose(counts, before, None if config.tokens_file else config.num_tokens)
    if not words:
        where = config.tokens_file or config.input_file
        raise UserError("has no word that is several pieces", "name another text", where=where)
    ids = ids_of(tokenizer, len(words), config.use_unused)
    extended = model._replace(
        config=dataclasses.replace(
            model.config, vocab_size=max(model.config.vocab_size, max(ids) + 1)
        ),
        weights=with_rows(model.weights, tokenizer, words, ids),
        tokenizer=with_words(tokenizer, words, ids, model.config.type_vocab_size),
    )
    after = num_pieces(extended.tokenizer, counts)
    num_unused = sum(index < tokenizer.vocab_size for index in ids)
    console.say(f"added, {num_unused:,} in [unused] rows: {name_some(words)}")
    lengths = [sum(counts[word] * num[word] for word in counts) for num in (before, after)]
    shorter, longer = (f"{length / sum(counts.values()):.3f}" for length in lengths[::-1])
    console.say(f"pieces per word: {longer} before, {shorter} after")
    return extended


def count_words(
    tokenizer: Tokenizer,
    config: ExtendConfig,
    text_format: TextFormat,
    console: Console,
    is_own: Callable[[str], bool],
) -> dict[str, int]:
    """Return {word: count} of the text, most frequent first, and in the order of the letters where
    counts are equal. A word ends at spaces and punctuation.
    """
    lowers = tokenizer.do_lower_case
    is_word_piece = isinstance(tokenizer, WordPieceTokenizer)
    spool = f"{config.to}.unpacked"
    with learning.open_text(config, text_format, console, is_own, spool) as (blocks, _, workers):
        blocks = counting.sample_blocks(blocks, counting.SAMPLE_BYTES, seed=0)
        num_bytes = sum(block.num_bytes for block in blocks)
        with ByteProgress(console, num_bytes, "counting words") as progress:
            counts = counting.count_words_of_blocks(
                blocks, lowers and is_word_piece, workers, report=progress.add
            )
    folded: collections.Counter[str] = collections.Counter()
    for word, count in counts.items():
        folded[word if is_word_piece or not lowers else word.lower()] += count
    if not folded:
        raise learning.no_words(str(config.input_file))
    return dict(sorted(folded.items(), key=lambda item: (-item[1], item[0])))


def read_words(tokenizer: Tokenizer, path: str, console: Console) -> dict[str, int]:
    """Return {word: 1} of a file with one word a line, as the tokenizer reads them. Warns of lines
    that are several words.
    """
    content = read_file(path, "list of words", "text file", "a text editor")
    lines = content.decode("utf-8-sig", "ignore").splitlines()
    lowers = tokenizer.do_lower_case
    if isinstance(tokenizer, WordPieceTokenizer):
        rows = basic.split_words(lines, lowers)
    else:
        rows = [(line.lower() if lowers else line).split() for line in lines]
    several = [
        line
        for line, row in zip(lines, rows, strict=True)
        if len(row) > 1 or any(len(word) > MAX_WORD_CHARACTERS for word in row)
    ]
    if several:
        console.warn(
            f"{path}: left out, because the tokenizer cuts them into several words, or they have "
            f"more than {MAX_WORD_CHARACTERS} letters: {name_some(several)}"
        )
    left_out = {*several}
    return {
        word: 1
        for line, row in zip(lines, rows, strict=True)
        for word in row
        if line not in left_out
    }


def name_some(words: Sequence[str]) -> str:
    """Return the number of words and the first of them."""
    return f"{len(words):,} words" + (f", {', '.join(words[:NUM_NAMES])}" if words else "")


def tokenize(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the pieces of words that stand after a space; results as of Tokenizer.tokenize."""
    return tokenizer.tokenize([f" {word}" for word in words])


def num_pieces(tokenizer: Tokenizer, words: Iterable[str]) -> dict[str, int]:
    """Return {word: number of its pieces}."""
    words = list(words)
    _, row_splits = tokenize(tokenizer, words)
    return dict(zip(words, np.diff(row_splits).tolist(), strict=True))


def choose(
    counts: Mapping[str, int], lengths: Mapping[str, int], num_tokens: int | None
) -> list[str]:
    """Return at most num_tokens words whose addition shortens the text most, that first; equal ones
    in the order of their letters. num_tokens: None = all words of a list, in its order.
    """
    several = [word for word in counts if lengths[word] > 1]
    if num_tokens is None:
        return several
    frequent = [
        word for word in several if counts[word] >= MIN_COUNT and len(word) <= MAX_WORD_CHARACTERS
    ]
    gains = {word: counts[word] * (lengths[word] - 1) for word in frequent}
    return sorted(frequent, key=lambda word: (-gains[word], word))[:num_tokens]


def ids_of(tokenizer: Tokenizer, num_words: int, use_unused: bool) -> list[int]:
    """Return ids for new words: those of the [unused] lines of a vocab.txt, if wanted, and then the
    ones after the last piece.
    """
    is_unused = re.compile(r"\[unused\d+\]").fullmatch
    takes = use_unused and isinstance(tokenizer, WordPieceTokenizer)
    unused = [index for index, piece in enumerate(tokenizer.vocab) if takes and is_unused(piece)]
    return [*unused, *range(tokenizer.vocab_size, tokenizer.vocab_size + num_words)][:num_words]


def with_rows(
    weights: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    words: Sequence[str],
    ids: Sequence[int],
) -> dict[str, np.ndarray]:
    """Return weights whose rows `ids` are, for each word, the mean of the rows of its pieces."""
    flat, row_splits = tokenize(tokenizer, words)
    extended = dict(weights)
    for name in (name for name in TABLES if name in weights):
        table = weights[name]  # (V, E) or (V,)
        sums = np.add.reduceat(table[flat], row_splits[:-1], axis=0, dtype=np.float64)
        lengths = np.diff(row_splits).reshape(-1, *[1] * (table.ndim - 1))
        new = np.zeros((max(len(table), max(ids) + 1), *table.shape[1:]), table.dtype)
        new[: len(table)] = table
        new[list(ids)] = sums / lengths
        extended[name] = new
    return extended


def with_words(
    tokenizer: Tokenizer, words: Sequence[str], ids: Sequence[int], num_segments: int
) -> Tokenizer:
    """Return a tokenizer with further words, whose ids are given. num_segments: as for
    `tokenizer_json`.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        pieces = dict(enumerate(tokenizer.vocab)) | dict(zip(ids, words, strict=True))
        content = file_content(pieces[index] for index in range(len(pieces)))
        return opened(
            "vocab.txt", content, lambda path: open_tokenizer(path, tokenizer.do_lower_case)
        )
    is_library = isinstance(tokenizer, HuggingFaceTokenizer)
    settings = json.loads(
        tokenizer.files()["tokenizer.json"]
        if is_library
        else tokenizer_json(tokenizer, num_segments)
    )
    flags = dict(single_word=True, lstrip=True, rstrip=False, normalized=True, special=False)
    settings["added_tokens"] += [
        dict(id=index, content=word) | flags for index, word in zip(ids, words, strict=True)
    ]
    content = json.dumps(settings, ensure_ascii=False).encode()
    return opened("tokenizer.json", content, HuggingFaceTokenizer)


def opened(name: str, content: bytes, open_file: Callable[[str], Tokenizer]) -> Tokenizer:
    """Return the tokenizer of a file that has this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(content)
        return open_file(path)
