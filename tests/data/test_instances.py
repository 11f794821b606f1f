"""Laws of next-sentence instances. The comparison with Model Garden's own code is in
test_parity.py.
"""

import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from bert_gpu.data.instances import Documents, PairRows, pair_instances

CLS, SEP = 2, 3


def corpus(lengths):
    """Documents from lists of the lengths of sentences in tokens. Token t has the id 10 + t, so
    that positions can be read off.
    """
    flat = [length for document in lengths for length in document]
    splits = np.concatenate([[0], np.cumsum(flat)]).astype(np.int64)
    return Documents.from_sentences(
        np.arange(10, 10 + splits[-1], dtype=np.int32),
        splits,
        [len(document) for document in lengths],
    )


def random_corpus(seed, num_documents=40):
    rng = np.random.default_rng(seed)
    return corpus([rng.integers(1, 40, rng.integers(1, 30)).tolist() for _ in range(num_documents)])


def instances_of(documents, key=1, max_seq_length=64, short_seq_prob=0.1, swaps=False):
    everything = np.arange(len(documents))
    return pair_instances(
        documents,
        everything,
        everything,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
        key=key,
        swaps=swaps,
    )


def document_of(documents, token):
    starts = documents.sentence_splits[documents.document_splits]
    return np.searchsorted(starts, token, side="right") - 1


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    st.lists(st.lists(st.integers(0, 300), max_size=8), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.booleans(),
)
def test_labels_of_any_corpus(lengths, key, swaps, is_split):
    documents = corpus(lengths)
    if not len(documents):
        return
    if is_split:
        documents = documents.split_long(29)
    rows = instances_of(documents, key, max_seq_length=32, swaps=swaps)
    a_start, a_end, b_start, b_end, label, is_single = rows.T
    assert (a_end > a_start).all() and (b_end > b_start).all()
    assert (a_end - a_start + b_end - b_start <= 29).all()
    assert (document_of(documents, a_start) == document_of(documents, a_end - 1)).all()
    assert (document_of(documents, b_start) == document_of(documents, b_end - 1)).all()
    same = document_of(documents, a_start) == document_of(documents, b_start)
    assert (same == (swaps | (label == 0))).all()
    assert (a_end <= b_start)[label == 0].all()
    if swaps:
        assert (b_end <= a_start)[label == 1].all()
    else:
        assert (label[is_single == 1] == 1).all()
        assert len(rows) >= len(documents) or len(documents) == 1


@pytest.mark.parametrize("swaps", [False, True])
def test_one_document_alone_has_no_pair_across_documents(swaps):
    rows = instances_of(corpus([[5, 6, 7, 8, 9] * 20]), swaps=swaps)
    assert len(rows) > 5 and (swaps or (rows[:, 4] == 0).all())
    assert len(instances_of(corpus([[9]]), swaps=False)) == 0
    assert len(instances_of(corpus([[1]]), swaps=True)) == 0
    assert len(instances_of(corpus([[2]]), swaps=True)) == 1


@pytest.mark.parametrize("max_tokens", [29, 61, 125, 509])
def test_pieces_of_long_sentences(max_tokens):
    """A fifth of a row each, but for the last; others stay whole."""
    lengths = [[3, max_tokens, max_tokens + 1, 1], [10 * max_tokens], [7]]
    documents = corpus(lengths).split_long(max_tokens)
    piece = -(-max_tokens // 5)
    expected = []
    for document in lengths:
        pieces = []
        for length in document:
            step = piece if length > max_tokens else length
            pieces += [min(step, length - start) for start in range(0, length, step)]
        expected.append(pieces)
    assert np.diff(documents.sentence_splits).tolist() == sum(expected, [])
    assert np.diff(documents.document_splits).tolist() == list(map(len, expected))


@pytest.mark.parametrize("max_seq_length, least_used", [(64, 0.91), (128, 0.95), (512, 0.95)])
def test_long_lines_use_their_tokens_and_have_both_labels(max_seq_length, least_used):
    rng = np.random.default_rng(1)
    lengths = [rng.integers(max_seq_length, 8 * max_seq_length, 20).tolist() for _ in range(200)]
    documents = corpus(lengths).split_long(max_seq_length - 3)
    rows = PairRows(instances_of(documents, max_seq_length=max_seq_length))
    assert 0.5 < rows.pairs[:, 4].mean() < 0.57
    assert rows.num_used(is_random=True) > least_used * len(documents.ids)


def test_real_next_segments_follow_and_random_ones_come_from_elsewhere():
    documents = random_corpus(0)
    rows = np.concatenate([instances_of(documents, key) for key in range(20)])
    real, random = rows[rows[:, 4] == 0], rows[rows[:, 4] == 1]
    untouched = real[(real[:, 1] - real[:, 0] + real[:, 3] - real[:, 2]) < 61]  # not truncated
    assert (untouched[:, 1] == untouched[:, 2]).all()
    same = document_of(documents, random[:, 0]) == document_of(documents, random[:, 2])
    assert not same.any()
    assert 0.5 < len(random) / len(rows) < 0.7  # one half, and all chunks of a single sentence


def test_every_sentence_begins_or_continues_an_instance():
    """Nothing is left out: without truncation the A and real B segments, and what was put back,
    cover the corpus.
    """
    documents = corpus([[3, 4, 5, 3, 2, 4, 6] * 3, [5, 5, 4, 4]])
    rows = instances_of(documents, max_seq_length=24, short_seq_prob=0.0)
    covered = np.zeros(len(documents.ids), bool)
    for a_start, a_end, b_start, b_end, is_random, _ in rows:
        covered[a_start:a_end] = True
        if not is_random:
            covered[b_start:b_end] = True
    assert covered.mean() > 0.9  # truncation may drop a few


def test_same_key_same_instances():
    documents = random_corpus(1)
    assert (instances_of(documents, 5) == instances_of(documents, 5)).all()
    assert not np.array_equal(instances_of(documents, 5), instances_of(documents, 6))


def test_chosen_documents_only():
    documents = random_corpus(2)
    rows = pair_instances(
        documents, [3, 4], [10, 11, 12], max_seq_length=64, short_seq_prob=0.1, key=1
    )
    assert set(document_of(documents, rows[:, 0])) == {3, 4}
    assert set(document_of(documents, rows[rows[:, 4] == 1][:, 2])) <= {10, 11, 12}


def test_rows_hold_the_segments():
    documents = random_corpus(3)
    rows = instances_of(documents)
    tokens = PairRows(rows).tokens(documents, 64, types.SimpleNamespace(cls_id=CLS, sep_id=SEP))
    for ids, length, numbers, (a_start, a_end, b_start, b_end, _, _) in zip(
        tokens.input_ids, tokens.lengths, tokens.sequence_ids, rows, strict=True
    ):
        expected = [CLS, *documents.ids[a_start:a_end], SEP, *documents.ids[b_start:b_end], SEP]
        assert ids.tolist() == expected + [0] * (64 - len(expected))
        assert length == len(expected) and (numbers == 1).sum() == a_end - a_start + 2


def test_short_sequences():
    documents = corpus([[5] * 200] * 50)
    full, short = (
        instances_of(documents, short_seq_prob=0.0),
        instances_of(documents, short_seq_prob=1.0),
    )
    assert np.diff(full[:, [0, 1]]).mean() > 1.5 * np.diff(short[:, [0, 1]]).mean()


def test_sentence_order():
    """Both segments are consecutive parts of one document, and half of the pairs are swapped."""
    documents = random_corpus(4)
    rows = np.concatenate([instances_of(documents, key, swaps=True) for key in range(20)])
    same = document_of(documents, rows[:, 0]) == document_of(documents, rows[:, 2])
    assert same.all()
    is_swapped = rows[:, 4] == 1
    assert (rows[is_swapped][:, 3] <= rows[is_swapped][:, 0]).all()
    assert (rows[~is_swapped][:, 1] <= rows[~is_swapped][:, 2]).all()
    assert abs(is_swapped.mean() - 0.5) < 0.03


def test_tokens_number_their_segments():
    documents = random_corpus(5)
    rows = PairRows(instances_of(documents)).take([3, 1])
    tokens = rows.tokens(documents, 64, types.SimpleNamespace(cls_id=CLS, sep_id=SEP))
    for ids, length, numbers in zip(
        tokens.input_ids, tokens.lengths, tokens.sequence_ids, strict=True
    ):
        first = ids.tolist().index(SEP) + 1
        assert numbers.tolist() == [1] * first + [2] * (length - first) + [0] * (64 - length)


@pytest.mark.parametrize("lengths", [[[0]], [[0, 0], []], [[]]])
def test_empty_documents_vanish(lengths):
    assert len(corpus(lengths)) == 0
