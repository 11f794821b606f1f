"""Tokenizers as TensorFlow ops give the ids of those in Python, for every character of Unicode."""

import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.text.tokenizers import ops
from bert_gpu.text.tokenizers.sentence_piece import (
    SentencePieceTokenizer,
    count_words,
    learn_sentencepiece,
)
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCσςßﬁ中.", "ss", "ij"]
CHARACTERS = [
    chr(code)
    for code in range(0x110000)
    if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")
]
ODD = [
    "",
    " \t ",
    "Straße ﬁne ﬂoor ĳ Ⅷ ŉ",
    "ᏣᎳᎩ ꮳꮃꭹ",  # Cherokee, whose small letters are newer
    "ΟΔΥΣΣΕΥΣ ΣΑΣ Σ ΑΣ'Α ΑΣ. ΑΣ\u00ad ΑΣ\u0301Α",
    "Ǆ İstanbul \u0130\u0307 Å \u212b",
    "中文 and 한국어, ｆｕｌｌ　ｗｉｄｔｈ",
    "a\0b\x07c\ufffdd\u200de\u2028f\u00a0g",
    "x" * 200,
    "x" * 201,
    "ß" * 200 + " " + "ß" * 201,
    "[MASK] [CLS] don't e.g. $5^2",
]
BROKEN = [b"a\xffb", b"\xe2\x82", b"a\xe2\x82b\xf0\x9f", b"\xc0\x80a", b"\xed\xa0\x80b"]


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
    path.write_text("\n".join(pieces) + "\n")
    return str(path)


def assert_same(tokenizer, texts):
    texts = [text.encode() if isinstance(text, str) else text for text in texts]
    run = tf.function(
        ops.open_ops(tokenizer).tokenize,
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    found = run(tf.constant(texts))
    ids, splits = tokenizer.tokenize(texts)
    assert found.dtype == tf.int32 and np.array_equal(found.row_splits, splits)
    wrong = np.flatnonzero(found.values.numpy() != ids)
    rows = np.searchsorted(splits, wrong, side="right") - 1
    assert not len(wrong), texts[rows[0]]
    assert len(run(tf.constant([], tf.string)).values) == 0


def test_odd_text_becomes_the_same_ids(vocab_file):
    assert_same(WordPieceTokenizer(vocab_file, False), [*ODD, *BROKEN])


@pytest.mark.long
@pytest.mark.parametrize("do_lower_case", [True, False])
def test_every_character_becomes_the_same_ids(vocab_file, do_lower_case):
    chance = random.Random(1)
    mixed = ["".join(chance.choices(CHARACTERS, k=20)) for _ in range(3000)]
    sigmas = ["".join(chance.choices("aΣσ 'ʹ.\u0301\u00ad:Ab中", k=8)) for _ in range(3000)]
    alone = [f"a{character}b" for character in CHARACTERS]
    tokenizer = WordPieceTokenizer(vocab_file, do_lower_case)
    assert_same(tokenizer, [*alone, *mixed, *sigmas, *ODD, *BROKEN])


@pytest.mark.long
@pytest.mark.parametrize("lowers_first", [False, True])
def test_sentencepiece_gives_the_same_ids(tmp_path, sample_text, lowers_first):
    with open(sample_text, encoding="utf-8") as file:
        lines = [line.strip() for line in file][:400]
    content = learn_sentencepiece(count_words([lines]), 300, do_lower_case=not lowers_first)
    (tmp_path / "pieces.model").write_bytes(content)
    tokenizer = SentencePieceTokenizer(str(tmp_path / "pieces.model"), True)
    assert tokenizer.lowers_first == lowers_first
    assert_same(tokenizer, [*lines, *ODD, "[CLS] [SEP]"])
