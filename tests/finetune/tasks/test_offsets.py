"""Pieces are those of the whole text; their places are the characters that they are made of."""

import numpy as np
import pytest

from bert_gpu.finetune.tasks.offsets import locate_pieces
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
