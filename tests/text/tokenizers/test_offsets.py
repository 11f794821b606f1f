"""Pieces are those of the whole text; their places are the characters that they are made of, with
all marks of each.
"""

import functools
import unicodedata

import numpy as np
import pytest
import regex
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_gpu.finetune.files.squad import Question
from bert_gpu.finetune.tasks.question_answering import answer_pieces
from bert_gpu.interop.tokenizer_json import tokenizer_json
from bert_gpu.text.tokenizers.hugging_face import HuggingFaceTokenizer
from bert_gpu.text.tokenizers.offsets import locate_pieces
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer, learn_sentencepiece
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

VOCAB = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] steve smith ' s ( ) - . 18 ##95 ##43 19 nee japan ##ese the a "
    "##b ##c fi ##n strasse α ##σ ##ς ##α 中 国 ; e ##tc"
).split()
TEXTS = [
    "Steve Smith's (1895-1943).",
    "  The\u00a0Japanese \tnée\n",
    "ne\u0301e, a\u200bbc! \u200b \x01",
    "中国a 中\u3000国",
    "ﬁn Straße \ufffd x\u0301",
    "ΑΣ'Α ΑΣΑΣ ΑΣ.",
    "Αἰ\u037e etc...ABC",
    "",
    " \n ",
    "unknown" * 40,
]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("places") / "vocab.txt"
    words = VOCAB + ([] if request.param else ["Steve", "Smith", "Japan", "The", "A", "##B", "##C"])
    path.write_text("\n".join(words) + "\n")
    return WordPieceTokenizer(str(path), request.param)


def shown(tokenizer, text):
    """[(piece, its characters)] of a text."""
    [(ids, begins, ends)] = locate_pieces(tokenizer, [text])
    places = zip(begins.tolist(), ends.tolist(), strict=True)
    return [
        (piece, text[begin:end])
        for piece, (begin, end) in zip(tokenizer.pieces(ids), places, strict=True)
    ]


def test_pieces_are_those_of_the_whole_text_in_order(tokenizer):
    generator = np.random.default_rng(0)
    letters = list("aAbc1.,'-( \t中éΣσﬁ\u0301\u200b\u037e\x00ßİ")
    texts = TEXTS + ["".join(generator.choice(letters, 30)) for _ in range(100)]
    whole, splits = tokenizer.tokenize(texts)
    located = locate_pieces(tokenizer, texts)
    assert len(located) == len(texts)
    for text, (ids, begins, ends), start, end in zip(
        texts, located, splits[:-1], splits[1:], strict=True
    ):
        assert ids.tolist() == whole[start:end].tolist() and begins.dtype == ends.dtype == np.int32
        assert (begins < ends).all() and (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
        assert not len(ends) or ends[-1] <= len(text)
        # a piece that is a word by itself has the characters of that word
        alone, bounds = tokenizer.tokenize(
            [text[a:b] for a, b in zip(begins, ends, strict=True)] or [""]
        )
        shared = np.isin(begins, begins[1:][np.diff(begins) == 0])
        for place in np.flatnonzero(~shared & tokenizer.word_starts(ids)):
            found = alone[bounds[place] : bounds[place + 1]]
            if len(found) == 1 and tokenizer.unk_id not in (found[0], ids[place]):
                assert found[0] == ids[place]


def test_each_piece_has_its_own_characters(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer = WordPieceTokenizer(str(tmp_path / "vocab.txt"), True)
    expected = {
        0: "Steve Smith ' s ( 18 95 - 19 43 ) .".split(),
        1: ["The", "Japan", "ese", "née"],
        2: ["ne\u0301e", ",", "a\u200b", "b", "c", "!"],
        3: ["中", "国", "a", "中", "国"],
        # a last sigma is another letter: places are those of the word, or of what holds it
        5: [*["ΑΣ'Α"] * 4, *["ΑΣΑΣ"] * 4, "ΑΣ", "ΑΣ", "."],
    }
    for index, parts in expected.items():
        found = shown(tokenizer, TEXTS[index])
        assert [characters for _, characters in found] == parts, found
    pieces = [piece for piece, _ in shown(tokenizer, TEXTS[0])]
    assert pieces == "steve smith ' s ( 18 ##95 - 19 ##43 ) .".split()
    assert shown(tokenizer, "x" * 9 + " the") == [("[UNK]", "x" * 9), ("the", "the")]


def test_pieces_of_no_known_place_have_that_of_the_whole_text():
    class Spaced:
        """Its pieces of a text are not those of its words."""

        do_lower_case = True

        def tokenize(self, texts):
            rows = [[len(word) for word in text.split()] + [len(text)] for text in texts]
            return (
                np.array([value for row in rows for value in row], np.int32),
                np.cumsum([0, *map(len, rows)]),
            )

    [(ids, begins, ends)] = locate_pieces(Spaced(), ["(a b"])
    assert len(ids) == 3 and begins.tolist() == [0] * 3 and ends.tolist() == [4] * 3


# -- characters as a reader sees them

# words of several scripts, each a sequence of clusters: letters with marks, conjuncts, jamo,
# half-width voiced kana, emoji of several code points, flags, keycaps
CLUSTERS = [
    *("e\u0301", "o\u0323\u0302", "a\u0308", "n\u0303", "c\u0327", "A\u030a", "x\u0336", "s"),
    *("\u03b1\u0301", "\u03b9\u0308\u0301", "\u03c9", "\u0438\u0306", "\u0435\u0308", "\u0436"),
    *("\u0627\u0653", "\u0628\u064e", "\u0644\u0651\u0650", "\u05e9\u05c1\u05b8", "\u05dc\u05b9"),
    *("\u0915\u093f", "\u0928\u093c", "\u0915\u094d\u0937\u093e", "\u0995\u09cb", "\u0bae\u0bbe"),
    *(
        "\u1112\u1161\u11ab",
        "\u1100\u1173\u11af",
        "\u1109\u1165",
        "\u0e01\u0e33",
        "\u0e17\u0e35\u0e48",
    ),
    *("\u304b\u3099", "\uff76\uff9e", "\u2764\ufe0f", "\U0001f44d\U0001f3fd", "1\ufe0f\u20e3"),
    *("\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\ufb01", "\u212b", "b", "d"),
]
WORDS = st.lists(st.sampled_from(CLUSTERS), min_size=1, max_size=4).map("".join)
FORMS = st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"])
LINES = [" ".join("".join(CLUSTERS[i:] + CLUSTERS[:i])[:40]) for i in range(len(CLUSTERS))]


def library(model, trainer, normalizer, splitter, decoder):
    """The tokenizer.json of a model of letters, learnt from LINES in all forms."""
    first = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, splitter, decoder
    lines = [unicodedata.normalize(form, line) for form in ("NFC", "NFD") for line in LINES]
    tokenizer.train_from_iterator(lines, trainer(special_tokens=first, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer.to_str()


def unigram(normalizer):
    trainer = functools.partial(trainers.UnigramTrainer, vocab_size=300, unk_token="<unk>")
    spaces = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return library(models.Unigram(), trainer, normalizer, *spaces)


def bpe(normalizer):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = functools.partial(trainers.BpeTrainer, vocab_size=400, initial_alphabet=letters)
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return library(models.BPE(), trainer, normalizer, splitter, decoders.ByteLevel())


NORMALIZERS = dict(
    none=normalizers.Sequence([]),
    nfc=normalizers.NFC(),
    nfkc=normalizers.NFKC(),
    lower=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    stripped=normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
)


@functools.lru_cache
def sentence_pieces():
    words = {letter: 9 for line in LINES for letter in line.split()}
    return learn_sentencepiece(words, 200, do_lower_case=False)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """{name: tokenizer}, of every kind that is read."""
    folder = tmp_path_factory.mktemp("characters")
    (folder / "x.model").write_bytes(sentence_pieces())
    pieces = SentencePieceTokenizer(str(folder / "x.model"), None)
    letters = sorted({letter for line in LINES for letter in unicodedata.normalize("NFD", line)})
    words = [*VOCAB[:5], *letters, *(f"##{letter}" for letter in letters if letter.strip())]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words if word.strip()))
    contents = {f"unigram {name}": unigram(rule) for name, rule in NORMALIZERS.items()}
    contents |= {f"bpe {name}": bpe(rule) for name, rule in NORMALIZERS.items()}
    contents["precompiled"] = tokenizer_json(pieces, 2).decode()
    found = dict(sentence_piece=pieces)
    for name, content in contents.items():
        path = folder / f"{name}.json"
        path.write_text(content)
        found[name] = HuggingFaceTokenizer(str(path))
    for name, lowers, strips in (("cased", 0, 1), ("uncased", 1, 1), ("accents", 1, 0)):
        file = str(folder / "vocab.txt")
        found[name] = WordPieceTokenizer(file, bool(lowers), bool(strips))
    return found


KINDS = ["sentence_piece", "precompiled", "cased", "uncased", "accents"]
KINDS += [f"{kind} {name}" for kind in ("unigram", "bpe") for name in NORMALIZERS]


def characters(text):
    """The ends of the characters of a text, by `regex`."""
    return {0, *(found.end() for found in regex.finditer(r"\s|\X", text))}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(words=st.lists(WORDS, min_size=1, max_size=5), form=FORMS, data=st.data())
def test_an_answer_ends_where_a_character_ends(opened, name, words, form, data):
    """An answer of whole words comes back as it was, in every normal form. Every piece has whole
    characters, and all that the library reports.
    """
    tokenizer = opened[name]
    words = [unicodedata.normalize(form, word) for word in words]
    text = " ".join(words)
    [(ids, begins, ends)] = locate_pieces(tokenizer, [text])
    assert {*begins.tolist(), *ends.tolist()} <= characters(text)
    assert (begins < ends).all() and (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
    if hasattr(tokenizer, "locate"):
        own = tokenizer.locate(text)
        assert (begins <= own[0]).all() and (ends >= own[1]).all()
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    answer = " ".join(words[first : last + 1])
    start = len(" ".join(words[:first])) + (first > 0)
    # a tool may have cut the last character of an answer
    cut = data.draw(st.sampled_from([answer, answer[:-1].rstrip() or answer]))
    span = answer_pieces(Question("q", "?", 0, (cut,), start), begins, ends)
    assert span is not None
    found = text[begins[span[0]] : ends[span[1]]]
    assert found == answer if cut == answer else found.startswith(cut) and answer.startswith(found)
