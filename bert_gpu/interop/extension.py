"""Adds words to the vocabulary of a trained model: takes them from a text or a list, and gives each
a row in the model's tables.

From a text, the words are taken that shorten it most, by count x (pieces - 1), where a word of
which [UNK] is a part counts as a piece for each letter and one more. The row of a new word begins
as the mean of the rows of the pieces that the word was split into before, in the word embeddings
and in the output bias. A word becomes a line of a vocab.txt; in a tokenizer of another kind it
becomes an added token, which stays whole where it stands alone.
"""

import dataclasses
import itertools
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
from bert_gpu.text import corpus
from bert_gpu.text.config import TextFormat
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.tokenizers import basic
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.rules import replace
from bert_gpu.text.tokenizers.sentence_piece import SPACE, SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import Tokenizer, WordPieceTokenizer
from bert_gpu.text.vocabulary import counting, learning
from bert_gpu.text.vocabulary.file import pieces_of_lines, read_file
from bert_gpu.text.vocabulary.wordpiece_learner import file_content

TABLES = ("embeddings/word", "mlm/bias")  # weights that have a row for each token id
MIN_COUNT = 2  # a single occurrence in a text would train the word's row too little
MAX_WORD_CHARACTERS = 100  # transformers reads a longer word as [UNK]
NUM_LINES = 10_000  # sentences of a text whose pieces are counted
NUM_NAMES = 10  # maximum number of words that a message lists
# normalizers that leave one space in place of white space, and none at the end
WHITE_SPACE = (replace(dict(Regex=r"\s+"), " "), replace(dict(Regex=" $"), ""))
BLANKS = dict(ByteLevel=" ", Metaspace=SPACE)  # {pre-tokenizer: a blank, for its decoder}


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
    counts, lines = (
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
            "has no word that is several pieces or [UNK] and can be added",
            "name another text",
            where=config.tokens_file or config.input_file,
        )
    new = with_words(tokenizer, words, model.config.type_vocab_size)
    new.settings = tokenizer.settings
    split = basic.split_words(lines, **letter_rules(tokenizer))
    pieces_before, pieces_after = (each.tokenize(lines) for each in (tokenizer, new))
    rates = [len(ids) / sum(map(len, split)) for ids, _ in (pieces_before, pieces_after)]
    added = {*words}
    if cut := [
        line.strip()
        for word, line, length in zip(counts, lines, np.diff(pieces_after[1]), strict=False)
        if config.tokens_file and word in added and length > 1
    ]:
        console.warn(
            f"{config.tokens_file}: added, but still several pieces as they are spelled there, "
            f"because the tokenizer changes letters in a way of its own: {name_some(cut)}"
        )
    console.say(
        f"already one piece: {name_some([word for word in counts if before[word] == 1])}\n"
        f"added: {name_some(words)}\n"
        "left as they are, because they occur once, have more than "
        f"{MAX_WORD_CHARACTERS} letters, are pieces inside words or come after --num_tokens: "
        f"{name_some([word for word in counts if before[word] > 1 and word not in added])}\n"
        f"pieces per word: {rates[0]:.3f} before, {rates[1]:.3f} after"
    )
    return model._replace(
        config=dataclasses.replace(
            model.config, vocab_size=max(model.config.vocab_size, new.vocab_size)
        ),
        weights=with_rows(model.weights, tokenizer, words),
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
) -> tuple[dict[str, int], list[str]]:
    """Return ({word: count} of a text, or of a sample of a long one, most frequent word first and
    equal counts in alphabetical order; its first NUM_LINES sentences). A word ends at spaces and
    punctuation.
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
        documents = itertools.chain.from_iterable(map(corpus.read_block, blocks))
        lines = [*itertools.islice(itertools.chain.from_iterable(documents), NUM_LINES)]
    return (
        dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        [line.decode("utf-8", "ignore") for line in lines],
    )


def read_words(
    tokenizer: Tokenizer, path: str, console: Console
) -> tuple[dict[str, int], list[str]]:
    """Return ({word: 1}, [line of the word, after a space]) for each word, lower-cased as the
    tokenizer does, in a file with one word a line. Warn of lines that the tokenizer does not read
    as one word, and of words that are too long. Raises UserError for a file that is missing, empty
    or not UTF-8.
    """
    content = read_file(path, "list of words", "text file", "a text editor")
    lines = pieces_of_lines(content, path)
    rows = dict(zip(lines, basic.split_words(lines, **letter_rules(tokenizer)), strict=True))
    words = {
        row[0]: f" {line.strip()}"
        for line, row in rows.items()
        if len(row) == 1 and len(row[0]) <= MAX_WORD_CHARACTERS
    }
    if others := [line for line, row in rows.items() if row and (row[1:] or row[0] not in words)]:
        console.warn(
            f"{path}: left out, because the tokenizer cuts them into several words, or they have "
            f"more than {MAX_WORD_CHARACTERS} letters: {name_some(others)}"
        )
    return dict.fromkeys(words, 1), [*words.values()]


def name_some(words: Sequence[str]) -> str:
    """Return a text with the number of words and the first NUM_NAMES of them."""
    return f"{len(words):,} words" + (f", {', '.join(words[:NUM_NAMES])}" if words else "")


def num_pieces(tokenizer: Tokenizer, words: Collection[str]) -> dict[str, int]:
    """Return {word: number of pieces that the tokenizer splits it into after a space}. A word of
    which [UNK] is a part counts as a piece for each letter, which the tokenizer loses, and one.
    """
    ids, row_splits = tokenizer.tokenize([f" {word}" for word in words])
    num_unknown = np.diff(np.append(0, np.cumsum(ids == tokenizer.unk_id))[row_splits])
    return {
        word: len(word) + 1 if lost else number
        for word, number, lost in zip(words, np.diff(row_splits).tolist(), num_unknown, strict=True)
    }


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
    weights: Mapping[str, np.ndarray], tokenizer: Tokenizer, words: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return a copy of `weights` in which each of TABLES has a row for each word after those of the
    tokenizer's pieces: the mean of the rows of the word's pieces.
    """
    size = tokenizer.vocab_size + len(words)
    flat, row_splits = tokenizer.tokenize([f" {word}" for word in words])
    extended = dict(weights)
    for name in (name for name in TABLES if name in weights):
        table = weights[name]  # word embeddings (V, E) or output bias (V,)
        sums = np.add.reduceat(table[flat], row_splits[:-1], axis=0, dtype=np.float64)
        num_new = max(0, size - len(table))
        extended[name] = np.pad(table, [(0, num_new)] + [(0, 0)] * (table.ndim - 1))
        extended[name][tokenizer.vocab_size : size] = (sums.T / np.diff(row_splits)).T
    return extended


def with_words(tokenizer: Tokenizer, words: Sequence[str], num_segments: int) -> Tokenizer:
    """Return a tokenizer to which the words are added, in their order, after its pieces.
    num_segments: as for `tokenizer_json`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "vocab.txt")
        if isinstance(tokenizer, WordPieceTokenizer):
            path.write_bytes(file_content([*tokenizer.vocab, *words]))
            return open_tokenizer(str(path), tokenizer.do_lower_case, tokenizer.strip_accents)
        settings = json.loads(tokenizer_json(tokenizer, num_segments))
        set_blanks(settings, words)
        flags = dict(single_word=True, lstrip=True, rstrip=False, normalized=True, special=False)
        settings["added_tokens"] += [
            dict(id=index, content=word) | flags
            for index, word in enumerate(words, tokenizer.vocab_size)
        ]
        path.with_name("tokenizer.json").write_text(json.dumps(settings))
        return HuggingFaceTokenizer(str(path.with_name("tokenizer.json")))


def set_blanks(settings: dict[str, Any], words: Sequence[str]) -> None:
    """Change the content of a tokenizer.json to which words will be added, where it puts a blank
    before a text that has none: only before the beginning, no longer also before what follows an
    added word or a special piece. Decoding puts a blank before each added word, which the word has
    taken; so no blank is lost, and one too many stands where there was none, as after "(".
    """
    splitter = settings.get("pre_tokenizer") or dict(pretokenizers=[])
    parts = splitter.get("pretokenizers", [splitter])
    kinds = [part["type"] for part in parts]
    is_white = kinds == ["WhitespaceSplit", "Metaspace"]  # as WHITE_SPACE before a Metaspace
    if kinds == ["ByteLevel"] and parts[0]["add_prefix_space"]:
        parts = [
            dict(type="Metaspace", replacement=" ", prepend_scheme="first", split=False),
            parts[0] | dict(add_prefix_space=False),
        ]
    elif (is_white or kinds == ["Metaspace"]) and parts[-1].get("prepend_scheme") != "never":
        split = is_white or parts[0].get("split", True)
        parts = [parts[-1] | dict(prepend_scheme="first", split=split)]
        settings["normalizer"] = dict(
            type="Sequence",
            normalizers=[
                *filter(None, [settings.get("normalizer")]),
                *(WHITE_SPACE if is_white else ()),
            ],
        )
    settings["pre_tokenizer"] = dict(type="Sequence", pretokenizers=parts)
    if settings.get("decoder") and (blank := BLANKS.get("".join(kinds[-1:]))):
        settings["decoder"] = dict(
            type="Sequence",
            decoders=[
                replace(dict(Regex=f"^(?=({'|'.join(map(re.escape, words))})$)"), blank),
                settings["decoder"],
            ],
        )
