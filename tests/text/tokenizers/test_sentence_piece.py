"""Pieces are those of the sentencepiece library, decoding undoes encoding, the model depends on the
text alone, bad models are refused.
"""

import collections
import io
import random

import numpy as np
import pytest
import sentencepiece
import tensorflow_text as tf_text
from hypothesis import given
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.tokenizers.sentence_piece import (
    SentencePieceTokenizer,
    count_words,
    learn_sentencepiece,
)
from bert_gpu.text.tokenizers.wordpiece import SPECIAL_PIECES

WORDS = [
    stem + end
    for stem in "walk talk jump paint build read teach".split()
    for end in ["", "s", "ed", "ing", "er", "able"]
]
ODD = [
    "Ärger…",
    "don't",
    "中国人",
    "3.5%",
    "naïve",
    "[MASK]",
    "UPPER",
    "ｗｉｄｅ",
    "a\u3000b",
    "x\xa0y",
    "(A)",
    "ΣΑΣ",
    "Straße",
]


@pytest.fixture(scope="module")
def documents():
    draw = random.Random(0)
    return [
        [(" ".join(draw.choices(WORDS, k=8)) + " " + draw.choice(ODD)).encode() for _ in range(4)]
        for _ in range(200)
    ]


@pytest.fixture(scope="module", params=[True, False], ids=["uncased", "cased"])
def tokenizer(request, documents, tmp_path_factory):
    path = save(
        tmp_path_factory.mktemp("model"),
        learn_sentencepiece(count_words(documents), 300, request.param),
    )
    result = SentencePieceTokenizer(path, request.param)
    result.path = path
    return result


def train(**settings):
    """A foreign model, as bytes."""
    model = io.BytesIO()
    settings = (
        dict(vocab_size=40, hard_vocab_limit=False, minloglevel=2, input_format="tsv") | settings
    )
    words = iter([f"{word}\t9" for word in WORDS])
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=words, model_writer=model, **settings
    )
    return model.getvalue()


def save(tmp_path, content):
    path = tmp_path / "a.model"
    path.write_bytes(content)
    return str(path)


ALBERT = dict(
    pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]", "[MASK]"]
)


def test_words_are_counted_as_they_stand(documents):
    expected = collections.Counter(
        word.decode() for document in documents for line in document for word in line.split()
    )
    assert count_words(iter(documents)) == expected
    assert count_words([[line.decode() for line in document] for document in documents]) == expected


def test_special_pieces_come_first_and_size_is_met(tokenizer):
    assert (
        tokenizer.vocab[:5] == list(SPECIAL_PIECES)
        and len(tokenizer.vocab) == tokenizer.vocab_size <= 300
    )
    ids = [
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    ]
    assert ids == [0, 1, 2, 3, 4]


def test_pieces_are_those_of_the_library_and_of_tensorflow_text(tokenizer, documents):
    lines = [line for document in documents for line in document] + [
        b"",
        b"  ",
        "…中国".encode(),
        b"[MASK] [CLS]",
        b"a\xffb",
        b"a\x00b\n c",
    ]
    ids, splits = tokenizer.tokenize(lines)
    assert (
        ids.dtype == np.int32
        and splits.dtype == np.int64
        and len(splits) == len(lines) + 1
        and splits[-1] == len(ids)
    )
    library = sentencepiece.SentencePieceProcessor(model_file=tokenizer.path)
    assert [ids[a:b].tolist() for a, b in zip(splits[:-1], splits[1:], strict=True)] == [
        library.encode(line) for line in lines
    ]
    with open(tokenizer.path, "rb") as file:
        oracle = tf_text.SentencepieceTokenizer(file.read()).tokenize(lines).to_list()
    # That op has an older SentencePiece in it, which breaks ties in another way ("..." as ". .." or
    # ".. ."): the best score is the same.
    for line, first, last, row in zip(lines, splits[:-1], splits[1:], oracle, strict=True):
        scores = [
            sum(map(library.get_score, of_line)) for of_line in (ids[first:last].tolist(), row)
        ]
        assert scores[0] == pytest.approx(scores[1], rel=1e-6), line


def test_no_sentences_and_str(tokenizer):
    ids, splits = tokenizer.tokenize([])
    assert (
        ids.dtype == np.int32
        and ids.size == 0
        and splits.tolist() == [0]
        and splits.dtype == np.int64
    )
    assert (
        tokenizer.tokenize(["walking", "x\ud800y"])[0].tolist()
        == tokenizer.tokenize([b"walking", "x\U0010ffffy".encode()])[0].tolist()
    )


def test_the_text_never_gives_special_pieces(tokenizer):
    ids, _ = tokenizer.tokenize(["[PAD] [CLS] [SEP] [MASK] walk[MASK] <pad> ▁[CLS]"])
    assert not np.isin(
        ids, [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    ).any()


def test_decoding_undoes_encoding_of_normalised_text(tokenizer):
    library = sentencepiece.SentencePieceProcessor(model_file=tokenizer.path)
    letters = sorted(
        {letter for piece in tokenizer.vocab[5:] for letter in piece.replace("▁", " ")}
    )

    @given(st.text(alphabet=[*letters, *"AÄ", "\u3000", "\xa0", "\t"], max_size=30))
    def check(text):
        ids, _ = tokenizer.tokenize([text])
        normal = library.normalize(text).replace("▁", " ").strip()
        if tokenizer.unk_id not in ids:
            assert tokenizer.decode(ids) == normal
            assert tokenizer.tokenize([normal])[0].tolist() == ids.tolist()
        else:
            assert tokenizer.do_lower_case is False and {"A", "Ä"} & set(normal)

    check()


def test_decoding_sets_special_pieces_apart(tokenizer):
    ids, _ = tokenizer.tokenize(["walked talked"])
    row = [tokenizer.cls_id, *ids, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id]
    assert tokenizer.decode(row) == "[CLS] walked talked [SEP] [MASK] [PAD]"
    assert tokenizer.pieces(row)[0] == "[CLS]"


def test_words_start_at_spaces_and_at_what_stands_alone(tokenizer):
    ids, _ = tokenizer.tokenize(["walking teachable", "don't 中国人"])
    pieces, starts = tokenizer.pieces(ids), tokenizer.word_starts(ids)
    for piece, start in zip(pieces, starts, strict=True):
        assert start == (piece[0] in "▁'中国人")
    assert tokenizer.word_starts(ids.reshape(1, -1)).shape == (1, len(ids))
    assert tokenizer.word_starts(np.arange(5)).tolist() == [True, False, True, True, True]


@pytest.mark.parametrize("do_lower_case", [True, False])
def test_a_model_is_a_function_of_the_text(documents, tmp_path, do_lower_case):
    items = list(count_words(documents).items())
    models = []
    for seed in (1, 2):
        random.Random(seed).shuffle(items)
        models.append(learn_sentencepiece(dict(items), 100, do_lower_case))
    assert models[0] == models[1]
    assert SentencePieceTokenizer(save(tmp_path, models[0])).do_lower_case == do_lower_case


def test_casing(documents, tmp_path):
    path = save(tmp_path, learn_sentencepiece(count_words(documents), 300, False))
    as_it_is, lowered = SentencePieceTokenizer(path), SentencePieceTokenizer(path, True)
    assert (
        as_it_is.decode(as_it_is.tokenize(["UPPER"])[0]) == "UPPER" and not as_it_is.do_lower_case
    )
    assert (
        lowered.decode(lowered.tokenize(["READING", "naÏve"])[0]) == "reading naïve"
        and lowered.do_lower_case
    )
    assert (
        as_it_is.identity == SentencePieceTokenizer(path, False).identity != lowered.identity
        and len(lowered.identity) == 64
    )
    save(tmp_path, learn_sentencepiece(count_words(documents), 300, True))
    assert (
        SentencePieceTokenizer(path).identity
        == SentencePieceTokenizer(path, True).identity
        != as_it_is.identity
    )
    with pytest.raises(UserError, match="lower-cases the text"):
        SentencePieceTokenizer(path, False)


def test_ascii_is_covered_however_rare(tmp_path):
    content = learn_sentencepiece({"common": 1_000_000, "50%": 2, "∂x": 2}, 100)
    vocab = SentencePieceTokenizer(save(tmp_path, content)).vocab
    assert {"5", "0", "%"} <= set("".join(vocab)) and "∂" not in "".join(vocab)


def test_of_words_that_occur_once_some_from_all_over_are_learnt_from(tmp_path, monkeypatch):
    monkeypatch.setattr(sentence_piece, "MAX_WORDS", 300)
    draw = random.Random(0)
    ranges = [[chr(first + index) for index in range(20)] for first in (0x4E00, 0x9000)]
    lines = {"".join(draw.choices(draw.choice(ranges), k=6)): 1 for _ in range(1000)}
    words = sentence_piece.most_frequent_words(lines | {"often": 2})
    assert words[0] == ("often", 2) and len(words) == 300
    high = sum(word >= "\u9000" for word, _ in words)
    assert 100 < high < 200
    assert words == sentence_piece.most_frequent_words({"often": 2} | dict(reversed(lines.items())))
    pieces = set(SentencePieceTokenizer(save(tmp_path, learn_sentencepiece(lines, 100))).vocab)
    assert pieces.issuperset(ranges[0] + ranges[1])


def test_alberts_names_are_accepted(tmp_path):
    tokenizer = SentencePieceTokenizer(save(tmp_path, train(**ALBERT)))
    assert tokenizer.vocab[:2] == ["<pad>", "<unk>"] and (tokenizer.pad_id, tokenizer.unk_id) == (
        0,
        1,
    )
    assert tokenizer.word_starts(np.arange(5)).tolist() == [True, False, True, True, True]


def test_symbols_that_the_text_may_give_become_unknown(tmp_path):
    settings = ALBERT | dict(control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"])
    tokenizer = SentencePieceTokenizer(save(tmp_path, train(**settings)))
    ids, _ = tokenizer.tokenize(["walk [MASK] talk"])
    assert tokenizer.mask_id not in ids and tokenizer.unk_id in ids


@pytest.mark.parametrize(
    "content, parts",
    [
        (b"", ["is not a SentencePiece model"]),
        (b"[PAD]\n[UNK]\n", ["is not a SentencePiece model"]),
        (dict(), ["[PAD], [MASK] missing", "python -m bert_gpu vocab"]),
        (ALBERT | dict(control_symbols=["[CLS]"]), ["[SEP], [MASK] missing"]),
        (ALBERT | dict(pad_id=1, unk_id=0), ["[PAD] has id 1", "--pad_id=0"]),
    ],
)
def test_bad_models_are_refused(tmp_path, capfd, content, parts):
    path = save(tmp_path, train(**content) if isinstance(content, dict) else content)
    with pytest.raises(UserError) as error:
        SentencePieceTokenizer(path)
    message = str(error.value)
    assert (
        message.startswith(path)
        and all(part in message for part in parts)
        and "\n" not in message
        and len(message) <= 300
    )
    assert capfd.readouterr().err == ""  # of the library, in C++


@pytest.mark.parametrize("name", ["absent.model", "."])
def test_missing_models_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="SentencePiece model"):
        SentencePieceTokenizer(str(tmp_path / name))


@pytest.mark.parametrize(
    "counts, vocab_size, problem",
    [
        ({}, 100, "no words"),
        ({"x" * 5000: 3}, 100, "no words"),
        ({"\u3000": 3}, 100, "no words"),
        ({"walk": 9}, 7, "--vocab_size=7: must be at"),
    ],
)
def test_what_gives_no_model_is_refused(counts, vocab_size, problem):
    with pytest.raises(UserError, match=problem):
        learn_sentencepiece(counts, vocab_size)


def test_pieces_are_located_in_their_text(tokenizer):
    """Also where a piece begins with a space, or a character becomes several."""
    texts = [
        " ".join(WORDS[:6]),
        f"  {WORDS[0]}  ({WORDS[1]}-{WORDS[2]})\n{WORDS[3].upper()}. ",
        "\ufb01n \u00bdx \u200b 12",
        "",
        "  ",
    ]
    for text in texts:
        ids, _ = tokenizer.tokenize([text])
        begins, ends = tokenizer.locate(text)
        assert len(begins) == len(ends) == len(ids) and begins.dtype == ends.dtype == np.int32
        assert (begins < ends).all() and (np.diff(begins) >= 0).all() and (np.diff(ends) >= 0).all()
        covered = np.zeros(len(text), bool)
        for begin, end in zip(begins, ends, strict=True):
            covered[begin:end] = True
        assert all(covered[i] for i, letter in enumerate(text) if letter.strip("\u200b \n"))
    pieces = tokenizer.pieces(tokenizer.tokenize(texts[:1])[0])
    spans = zip(*tokenizer.locate(texts[0]), strict=True)
    for piece, (begin, end) in zip(pieces, spans, strict=True):
        if piece.strip("\u2581") and not piece.startswith("["):
            assert texts[0][begin:end] == piece.strip("\u2581")
    assert tokenizer.locate("\ud800") is None
