"""Laws of rows without pairs, with random documents: no token is lost or repeated, rows
are full.
"""

import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from bert_gpu.data.config import FRAMES
from bert_gpu.data.instances import Documents
from bert_gpu.data.packing import full_sentence_rows, packed_rows

CLS, SEP, LENGTH = 2, 3, 16
TOKENIZER = types.SimpleNamespace(cls_id=CLS, sep_id=SEP)


def corpus(lengths):
    """Token t has the id 10 + t."""
    flat = [length for document in lengths for length in document]
    splits = np.concatenate([[0], np.cumsum(flat)]).astype(np.int64)
    return Documents.from_sentences(
        np.arange(10, 10 + splits[-1], dtype=np.int32),
        splits,
        [len(document) for document in lengths],
    )


CORPORA = st.lists(st.lists(st.integers(0, 40), max_size=6), min_size=1, max_size=10).map(corpus)


def text_of(tokens):
    """The tokens of all rows in order, without frames and padding."""
    return [
        int(token)
        for row, length in zip(tokens.input_ids, tokens.lengths, strict=True)
        for token in row[:length]
        if token >= 10
    ]


@pytest.mark.parametrize("separator", FRAMES)
@hypothesis.settings(max_examples=60)
@hypothesis.given(CORPORA, st.randoms(use_true_random=False))
def test_packed(separator, documents, rng):
    chosen = list(range(len(documents)))
    rng.shuffle(chosen)
    rows = packed_rows(documents, chosen, max_seq_length=LENGTH, separator=separator)
    tokens = rows.tokens(documents, LENGTH, TOKENIZER)
    starts = documents.sentence_splits[documents.document_splits]
    expected = [
        int(token)
        for document in chosen
        for token in documents.ids[starts[document] : starts[document + 1]]
    ]
    assert text_of(tokens) == expected
    slack = {"cls_sep": 2, "sep": 0, "none": 0}[separator]
    assert (tokens.lengths[:-1] >= LENGTH - slack).all() and (tokens.lengths <= LENGTH).all()
    for ids, length, numbers in zip(
        tokens.input_ids, tokens.lengths, tokens.sequence_ids, strict=True
    ):
        assert (
            (numbers[:length] > 0).all()
            and (numbers[length:] == 0).all()
            and (ids[length:] == 0).all()
        )
        for number in range(1, numbers.max() + 1):
            sequence = ids[numbers == number]
            inner = sequence
            if separator == "cls_sep":
                assert sequence[0] == CLS and sequence[-1] == SEP
                inner = sequence[1:-1]
            elif separator == "sep" and sequence[-1] == SEP:
                inner = sequence[:-1]
            assert len(inner) and (np.diff(inner) == 1).all()
            ends = np.searchsorted(starts, inner[[0, -1]] - 10, side="right")
            assert ends[0] == ends[1], "a sequence is of one document"


@hypothesis.settings(max_examples=60)
@hypothesis.given(CORPORA)
def test_full_sentences(documents):
    rows = full_sentence_rows(documents, np.arange(len(documents)), max_seq_length=LENGTH)
    tokens = rows.tokens(documents, LENGTH, TOKENIZER)
    assert text_of(tokens) == documents.ids.tolist()
    starts = documents.sentence_splits[documents.document_splits]
    sentence_ends = set((documents.sentence_splits[1:] + 9).tolist())
    for ids, length, numbers in zip(
        tokens.input_ids, tokens.lengths, tokens.sequence_ids, strict=True
    ):
        assert ids[0] == CLS and ids[length - 1] == SEP and (numbers[:length] == 1).all()
        inner = ids[1 : length - 1]
        for token, following in zip(inner[:-1], inner[1:], strict=True):
            if following == SEP:
                assert int(token) - 9 in starts, "an inner [SEP] stands between documents"
        last = int(inner[-1])
        assert last in sentence_ends or length == LENGTH, "only a sentence longer than a row is cut"


def test_rows_are_full_on_real_lengths():
    rng = np.random.default_rng(0)
    documents = corpus([rng.integers(5, 40, rng.integers(1, 40)).tolist() for _ in range(300)])
    rows = packed_rows(documents, np.arange(300), max_seq_length=128, separator="cls_sep")
    assert rows.tokens(documents, 128, TOKENIZER).lengths.sum() / (len(rows) * 128) > 0.99


def test_take():
    documents = corpus([[7, 9], [30], [5, 5, 5]])
    rows = packed_rows(documents, [0, 1, 2], max_seq_length=LENGTH, separator="cls_sep")
    whole, part = (
        chosen.tokens(documents, LENGTH, TOKENIZER)
        for chosen in (rows, rows.take(np.array([2, 0])))
    )
    assert (part.input_ids == whole.input_ids[[2, 0]]).all() and (
        part.sequence_ids == whole.sequence_ids[[2, 0]]
    ).all()
