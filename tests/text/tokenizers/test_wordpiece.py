"""The tokenizer equals Google's own code, piece for piece, on hard text and on random text; bad
vocabularies are refused in one line.
"""

import json
import random
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from official.nlp.tools import tokenization as google

from bert_gpu.base.errors import UserError
from bert_gpu.interop.tokenizer_json import tokenizer_json as json_of
from bert_gpu.text.tokenizers import basic, wordpiece
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = """
    the a b c ab ##b ##c un ##aff ##able ##s n x ##x xx ##xx strasse straße ß ##ß ss ##ss é e ##e è
    naïve naive ##ï cafe café ##é i ı i̇ İ ##İ ##i σ ς Σ ##σ ##ς ##Σ ὀδυσσευς 中 国 ##中 ##国 ！ ! .
    , ... … ' don don't t ##'s [ ] mask MASK [unused0] fi ﬁ ##ﬁ 한 국 ##국 ᄒ ##ᅡ ##ᆫ क ##ि ##न ##् द
    ر ##ح ##ب م Ａ ａ ##ａ 🎉 ##🎉 😀 ​ ## # ### ### 1 2 3 ## ª º ² ##² ½ ´ ¨ ῾ ##\u1b44\u302e
    ##\u302e\u1b44 \ue000 ##\ue000 ͸ Ꭰ ꭰ и й ##й ##и й
""".split()
BLOCKS = [
    (0x00, 0x7F), (0x80, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F),
    (0x590, 0x6FF), (0x700, 0x8FF), (0x900, 0xDFF), (0xE00, 0x10FF), (0x1100, 0x11FF),
    (0x13A0, 0x1CFF), (0x1D00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x2BFF), (0x2C00, 0x2FFF),
    (0x3000, 0x33FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xF8FF),
    (0xF900, 0xFFFF), (0x10000, 0x11FFF), (0x12000, 0x1FFFF), (0x20000, 0x2FFFF),
    (0x30000, 0x3FFFF), (0xE0000, 0xE01FF), (0x10FF00, 0x10FFFF),
]  # fmt: skip
HARD = [
    "", "   ", "\t\r\n", "The unaffable cats", "naïve café CAFÉ cafe\u0301", "中国人 in 中国!",
    "a\x00b a\x07b a\ufffdb a\x7fb \x85", "a\u200bb a\u200db a\ufeffb a\xadb",
    "a\xa0b a\u2003b a\u3000b a\u2028b a\u2029b a\u1680b a\u202fb", "ｆｕｌｌ Ａａ！",
    "İstanbul ıİiI", "Straße STRASSE ẞ", "ΟΔΥΣΣΕΥΣ Σ ΑΣ ΑΣ. Α'Σ ΑΣ' Σ́", "한국 한국어 조선",
    "हिन्दी क्षत्रिय", "مُحَمَّد مرحبا", "\ue000 \uf8ff x\ue000", "\u0378 a\u0378b",
    "🎉😀 a🎉b 👩‍👩‍👧 🏳️‍🌈", "...!!!??? ''' don't, (a)[b]{c}", "[MASK] [UNK] [unused0] [mask]",
    "… ‥ ″ ﬁ ﬂ ½ ² ª º ´ ¨ ™ №", "e\u0301\u0327 a\u0327\u0301",
    "\U0001d165\U0001d16d a\u302e\U0001d165b \u1b44\u302f", "a\u302e\u1b44 a\u1b44\u302e",
    "\u1fef \u037e \u0387 \u212a \u2126 \uf951", "ไทยไทย กำ", "`~^$+=<>|", "##s ## #",
    *(
        " ".join(["a", "x" * n, "b"])
        for n in (99, 100, 101, 150, 199, 200, 201, 250, 799, 801, 3000)
    ),
    *("é" * n for n in (99, 100, 101, 199, 200, 201, 250)),
    *("х" * n for n in (100, 101, 200, 201)), *("中" * n for n in (150, 250)),
    *("한" * n for n in (22, 23, 66, 67, 68, 100, 101)), *("🎉" * n for n in (50, 51, 200, 201)),
    *("ß" * n for n in (100, 200, 201)), "x" * 150 + "." + "x" * 150, "x" * 150 + "\u0301" * 150,
    "é" * 199 + "x", "é" * 120 + " " + "é" * 120, "ก" * 200, "ก" * 201,
]  # fmt: skip


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def pair(request, tmp_path_factory):
    """(ours, Google's), over the same vocabulary, which holds pieces that only careful code
    tells apart.
    """
    alphabet = [
        chr(code) for low, high in BLOCKS for code in random.Random(0).sample(range(low, high), 24)
    ]
    alphabet = [char for char in alphabet if char.strip() and not 0xD800 <= ord(char) <= 0xDFFF]
    vocab = list(
        dict.fromkeys(
            [
                *SPECIAL,
                *PIECES,
                *"abcdefghijklmnopqrstuvwxyz",
                *alphabet,
                *("##" + char for char in alphabet),
            ]
        )
    )
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(vocab) + "\n", encoding="utf-8")
    oracle = google.FullTokenizer(str(path), do_lower_case=request.param)
    # google-research/bert; the fork in Model Garden says 400
    oracle.wordpiece_tokenizer.max_input_chars_per_word = 200
    return WordPieceTokenizer(str(path), do_lower_case=request.param), oracle, alphabet


def assert_equal(ours, oracle, texts):
    ids, splits = ours.tokenize(texts)
    assert (
        ids.dtype == np.int32
        and splits.dtype == np.int64
        and len(splits) == len(texts) + 1
        and splits[-1] == len(ids)
    )
    for text, first, last in zip(texts, splits[:-1], splits[1:], strict=True):
        assert ours.pieces(ids[first:last]) == oracle.tokenize(text), ascii(text)


def test_hard_text_equals_google(pair):
    ours, oracle, _ = pair
    assert_equal(ours, oracle, HARD)
    assert_equal(ours, oracle, [text.encode() for text in HARD])


def test_random_text_equals_google(pair):
    ours, oracle, alphabet = pair
    draw = random.Random(1)
    texts = []
    for _ in range(2500):
        blocks = draw.choices(BLOCKS, k=draw.randint(1, 3))
        chars = [chr(draw.randint(*draw.choice(blocks))) for _ in range(draw.randint(1, 12))]
        chars += draw.choices(
            [" ", "a", "S", "Σ", "é", "\u0301", ".", *alphabet, *PIECES], k=draw.randint(0, 12)
        )
        draw.shuffle(chars)
        texts.append("".join(chars).encode("utf-8", "ignore").decode())
    assert_equal(ours, oracle, texts)


def test_long_random_words_equal_google(pair):
    ours, oracle, _ = pair
    draw = random.Random(2)
    letters = ["a", "é", "х", "한", "ก", "中", ".", "b", "क", "ß", "𐐀", "\u0301"]
    texts = [
        "".join(draw.choices(draw.sample(letters, 2), (50, 1), k=draw.randint(40, 500)))
        for _ in range(300)
    ]
    assert_equal(ours, oracle, texts)


def test_every_character_between_letters_splits_as_google_does(pair):
    ours, oracle, _ = pair
    texts = [
        f"a{chr(code)}b {chr(code)}"
        for code in (*range(0xD800), *range(0xE000, 0x11000), *range(0x1F000, 0x1FC00))
    ]
    expected = [oracle.basic_tokenizer.tokenize(text) for text in texts]
    assert basic.split_words(texts, ours.do_lower_case) == expected
    # Where the checked quick way is taken, the op must split in as many words as Google: seen
    # through the pieces of known letters.
    assert_equal(ours, oracle, texts[::7])


def test_result_does_not_depend_on_the_company_of_a_line(pair):
    ours, _, _ = pair
    texts = random.Random(3).sample(HARD * 80, 60 * 80)
    ids, splits = ours.tokenize(texts)
    alone = {text: ours.tokenize([text])[0].tolist() for text in HARD}
    assert all(
        ids[splits[i] : splits[i + 1]].tolist() == alone[text] for i, text in enumerate(texts)
    )


def test_the_caller_keeps_its_list(pair):
    texts = ["…".encode(), b"a"]
    pair[0].tokenize(texts)
    assert texts == ["…".encode(), b"a"]


def test_no_sentences(pair):
    ids, splits = pair[0].tokenize([])
    assert ids.dtype == np.int32 and ids.size == 0 and splits.tolist() == [0]


def test_broken_encodings_are_dropped_as_google_does(pair):
    ours, oracle, _ = pair
    for broken in (b"a\xffb", b"the \xe4\xb8", b"\xc3 x", b"a\xed\xa0\x80b"):
        ids, _ = ours.tokenize([broken, b"a"])
        assert ours.pieces(ids) == [*oracle.tokenize(broken), "a"]
    assert (
        ours.pieces(ours.tokenize(["a\ud800b c"])[0])
        == oracle.tokenize("a\ud800b c")
        == ["[UNK]", "c"]
    )


def test_word_starts_and_decoding(pair):
    ours, _, _ = pair
    ids, _ = ours.tokenize(["unaffable the abc"])
    assert ours.pieces(ids) == ["un", "##aff", "##able", "the", "ab", "##c"]
    assert ours.word_starts(ids).tolist() == [True, False, False, True, True, False]
    assert ours.word_starts(ids.reshape(2, 3)).shape == (2, 3)
    assert ours.decode(ids) == "unaffable the abc"
    assert [ours.vocab.index(piece) for piece in SPECIAL] == [
        ours.pad_id,
        ours.unk_id,
        ours.cls_id,
        ours.sep_id,
        ours.mask_id,
    ]
    assert ours.pad_id == 0 and ours.vocab_size == len(ours.vocab)


def write(tmp_path, text):
    path = tmp_path / "vocab.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_identity_changes_with_content_and_casing_only(tmp_path):
    lines = [*SPECIAL, "the"]
    one = WordPieceTokenizer(write(tmp_path, "\n".join(lines)))
    windows = WordPieceTokenizer(write(tmp_path, "\r\n".join([*lines, ""])))
    assert windows.vocab == lines and windows.identity == one.identity and len(one.identity) == 64
    assert (
        WordPieceTokenizer(write(tmp_path, "\n".join(lines)), do_lower_case=False).identity
        != one.identity
    )
    assert WordPieceTokenizer(write(tmp_path, "\n".join([*lines, "a"]))).identity != one.identity


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "empty"),
        ("\n", "empty"),
        (b"[PAD]\n[UNK]\n\xff\n", "line 3 is not UTF-8"),
        ("\n".join([*SPECIAL, "a", "[PAD]"]), "[PAD] is on line 7; it must be on line 1 alone"),
        ("\n".join(SPECIAL[:3] + ["a"]), "[SEP], [MASK] missing"),
        ("\n".join([*SPECIAL[1:], "[PAD]"]), "[PAD] is on line 5"),
    ],
)
def test_bad_vocabulary_is_refused(tmp_path, text, problem):
    path = write(tmp_path, text)
    with pytest.raises(UserError) as error:
        WordPieceTokenizer(path)
    message = str(error.value)
    assert path in message and problem in message and "\n" not in message and len(message) <= 300


LINE = st.sampled_from([*"abc", "##a", "##b", "", " ", "a ", "[unused1]", "ab", "é", "\x1f"])


@hypothesis.settings(max_examples=20)
@hypothesis.given(st.lists(LINE, max_size=12), st.lists(LINE, max_size=6), st.booleans())
def test_repeated_and_blank_lines_keep_the_ids_of_googles_code(above, below, is_windows):
    """Also from what is written of such a vocabulary, as lines and as a tokenizer.json."""
    end = "\r\n" if is_windows else "\n"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "vocab.txt"
        path.write_bytes(
            "".join(
                f"{line}{end}" for line in ["[PAD]", *above, *SPECIAL[1:], "z", *below]
            ).encode()
        )
        theirs = google.FullTokenizer(str(path), do_lower_case=True)
        ours = WordPieceTokenizer(str(path))
        pieces = {piece: index for index, piece in enumerate(ours.vocab) if piece.strip()}
        assert pieces == {piece: index for piece, index in theirs.vocab.items() if piece}
        text = "a b ab aab abab bab é c ca [unused1]"
        ids, _ = ours.tokenize([text])
        assert ids.tolist() == theirs.convert_tokens_to_ids(theirs.tokenize(text))
        for file, content in ours.files().items():
            (Path(name) / file).write_bytes(content)
        (Path(name) / "tokenizer.json").write_bytes(json_of(ours, 2))
        assert wordpiece.read_vocab(str(path)) == ours.vocab
        if all(piece == piece.strip() for piece in ours.vocab):
            assert wordpiece.read_vocab(f"{name}/tokenizer.json") == ours.vocab


@pytest.mark.parametrize("name", ["absent.txt", "."])
def test_missing_vocabulary_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="vocabulary file"):
        wordpiece.read_vocab(str(tmp_path / name))


def tokenizer_json(**model):
    vocab = {piece: index for index, piece in reversed([*enumerate([*SPECIAL, "the", "cat"])])}
    return json.dumps(dict(model=dict(vocab=vocab) | model))


def test_a_tokenizer_json_is_the_vocabulary_in_it(tmp_path):
    """The order of its entries means nothing; added tokens go by their ids."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "the", "cat", "dog"]) + "\n")
    stored = json.loads(tokenizer_json(type="WordPiece", continuing_subword_prefix="##"))
    stored["added_tokens"] = [dict(id=7, content="dog"), dict(id=0, content="[PAD]")]
    (tmp_path / "tokenizer.json").write_text(json.dumps(stored))
    ours, theirs = (
        WordPieceTokenizer(str(tmp_path / name)) for name in ("vocab.txt", "tokenizer.json")
    )
    assert theirs.vocab == ours.vocab and theirs.identity == ours.identity


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[PAD]", "is not a tokenizer.json with a vocabulary"),
        ("{}", "is not a tokenizer.json with a vocabulary"),
        (tokenizer_json(type="Unigram", vocab=[["a", -1.0]]), "has a Unigram tokenizer"),
        (tokenizer_json(type="BPE"), "has a BPE tokenizer, not BERT's WordPiece"),
        (tokenizer_json(merges=[]), "has a BPE tokenizer, not BERT's WordPiece"),
        (tokenizer_json(vocab={"[PAD]": 0, "a": 10**12}), "its ids are not 0, 1, 2 and so on"),
        (tokenizer_json(vocab={"[PAD]": 0, "a": 1, "b": 1}), "its ids are not 0, 1, 2 and so on"),
        (tokenizer_json(vocab={"[PAD]": 0, "a": -1}), "its ids are not 0, 1, 2 and so on"),
        (tokenizer_json(vocab={"[PAD]": 0, "a\nb": 1}), "piece 1 is 'a\\nb'"),
        (tokenizer_json(vocab={"[PAD]": 0, "\ud800": 1}), "piece 1 is"),
        (tokenizer_json(vocab={"[PAD]": 0, "a": 1}), "[UNK], [CLS], [SEP], [MASK] missing"),
    ],
)
def test_a_tokenizer_json_that_is_none_of_berts_is_refused(tmp_path, text, problem):
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        wordpiece.read_vocab(str(path))
    assert str(caught.value).startswith(f"{path}: ") and problem in str(caught.value)
