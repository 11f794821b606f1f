"""The vocabulary depends on the text alone and has at most the size asked for; its tokenizer knows
all words of the text.
"""

import collections
import os
import random

import pytest
from official.nlp.tools import tokenization as google

from bert_gpu.base.errors import UserError
from bert_gpu.text.tokenizers.wordpiece import SPECIAL_PIECES, WordPieceTokenizer
from bert_gpu.text.vocabulary import wordpiece_learner
from bert_gpu.text.vocabulary.wordpiece_learner import count_words, learn_wordpiece, write_vocab

STEMS = "walk talk jump paint build read teach learn sail climb whisper gather".split()
ENDINGS = ["", "s", "ed", "ing", "er", "ers", "able", "less"]
ODD = [
    "Ärger…",
    "don't",
    "中国 x",
    "a\x00b\x07",
    "tab\there",
    "[MASK]",
    "ß ΣΑΣ",
    "e\u0301",
    "\x7f",
    "3.5%",
    "a\u2028b",
    "x\xa0y",
    "(A)\r",
    "UPPER",
]


@pytest.fixture(scope="module")
def documents():
    draw = random.Random(0)
    words = [stem + ending for stem in STEMS for ending in ENDINGS]
    return [
        [
            (" ".join(draw.choices(words, k=8)) + " " + draw.choice(ODD)).encode()
            for _ in range(draw.randint(1, 6))
        ]
        for _ in range(150)
    ]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_words_are_those_that_google_splits(documents, do_lower_case):
    oracle = google.BasicTokenizer(do_lower_case=do_lower_case)
    expected = collections.Counter(
        word
        for document in documents
        for sentence in document
        for word in oracle.tokenize(sentence)
    )
    assert count_words(documents, do_lower_case) == expected
    assert (
        count_words(iter([[s.decode() for s in document] for document in documents]), do_lower_case)
        == expected
    )


def test_every_ascii_character_counts_as_google_counts_it():
    lines = [f"a{chr(code)}b{chr(code)}" for code in range(128) if chr(code) not in "\n"] + ["a\nb"]
    for do_lower_case in (True, False):
        oracle = google.BasicTokenizer(do_lower_case=do_lower_case)
        assert count_words([lines], do_lower_case) == collections.Counter(
            word for line in lines for word in oracle.tokenize(line)
        )


def test_vocabulary_does_not_depend_on_chunks(documents, monkeypatch):
    whole = count_words(documents, True)
    monkeypatch.setattr(wordpiece_learner, "LINES_PER_BATCH", 7)
    parts = sum(
        (count_words(documents[first : first + 31], True) for first in reversed(range(0, 150, 31))),
        collections.Counter(),
    )
    assert whole == parts
    items = list(parts.items())
    random.Random(1).shuffle(items)
    assert learn_wordpiece(dict(items), 90) == learn_wordpiece(whole, 90)


@pytest.mark.parametrize("vocab_size", [40, 75, 90, 120, 151, 10_000])
def test_size_is_met_and_characters_are_in(documents, vocab_size):
    counts = count_words(documents, True)
    pieces = learn_wordpiece(counts, vocab_size)
    assert pieces[:5] == list(SPECIAL_PIECES) and len(set(pieces)) == len(pieces) <= vocab_size
    assert len(pieces) == vocab_size or vocab_size == 10_000  # the text has not so many
    letters = sorted({letter for stem in STEMS for letter in stem})[: (vocab_size - 5) // 2]
    assert vocab_size < 75 or set(letters) <= set(pieces)
    assert not {"##中", "##.", "##("} & set(pieces)  # what stands alone needs no such piece


def test_the_tokenizer_knows_the_words_it_was_learnt_from(documents, tmp_path):
    path = str(tmp_path / "vocab.txt")
    write_vocab(path, learn_wordpiece(count_words(documents, True), 200))
    tokenizer = WordPieceTokenizer(path)
    sentences = [sentence for document in documents for sentence in document]
    ids, _ = tokenizer.tokenize(sentences)
    assert tokenizer.unk_id not in ids
    assert tokenizer.pieces(tokenizer.tokenize(["walking"])[0]) in (["walking"], ["walk", "##ing"])


def test_rare_characters_stay_out_but_ascii():
    counts = {"common": 1_000_000, "a∂b": 3, "x%": 3, "%": 3}
    pieces = learn_wordpiece(counts, 100)
    assert "∂" not in pieces and "%" in pieces and "common" in pieces


@pytest.mark.parametrize(
    "counts, vocab_size, problem",
    [
        ({}, 100, "no words"),
        ({"a": 1}, 6, "--vocab_size=6"),
        ({"x" * 99: 3}, 50, "no words"),
        ({"the": 9, "end": 3}, 7, "--vocab_size=7: is too small; .* room for 1 of"),
    ],
)
def test_what_gives_no_vocabulary_is_refused(counts, vocab_size, problem):
    with pytest.raises(UserError, match=problem):
        learn_wordpiece(counts, vocab_size)


def test_writing_replaces_whole_files_only(tmp_path, monkeypatch):
    path = tmp_path / "vocab.txt"
    write_vocab(str(path), ["one", "é"])
    assert path.read_bytes() == "one\né\n".encode()

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(UserError, match="cannot be written"):
        write_vocab(str(path), ["two"])
    assert [entry.name for entry in tmp_path.iterdir()] == [
        "vocab.txt"
    ] and path.read_bytes() == "one\né\n".encode()


def test_unwritable_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        write_vocab(str(tmp_path / "absent" / "vocab.txt"), ["one"])
