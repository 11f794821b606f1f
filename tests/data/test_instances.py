"""Laws of next-sentence instances. The comparison with Model Garden's own code is in
test_parity.py.
"""

import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from bert_gpu.data.instances import Documents, PairRows, make_rows, pair_instances

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


def instances_of(documents, key=1, max_seq_length=64, short_seq_prob=0.1):
    everything = np.arange(len(documents))
    return pair_instances(
        documents,
        everything,
        everything,
        max_seq_length=max_seq_length,
        short_seq_prob=short_seq_prob,
        key=key,
    )


def document_of(documents, token):
    starts = documents.sentence_splits[documents.document_splits]
    return np.searchsorted(starts, token, side="right") - 1


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    st.lists(st.lists(st.integers(0, 300), max_size=8), min_size=1, max_size=8),
    st.integers(0, 2**64 - 1),
)
def test_any_corpus(lengths, key):
    documents = corpus(lengths)
    if not len(documents):
        return
    rows = instances_of(documents, key, max_seq_length=32)
    a_start, a_end, b_start, b_end, is_random = rows.T
    assert len(rows) >= len(documents)
    assert (a_end > a_start).all() and (b_end > b_start).all()
    assert (a_end - a_start + b_end - b_start <= 29).all()
    assert (document_of(documents, a_start) == document_of(documents, a_end - 1)).all()
    assert (document_of(documents, b_start) == document_of(documents, b_end - 1)).all()
    real = is_random == 0
    assert (document_of(documents, a_start)[real] == document_of(documents, b_start)[real]).all()
    assert (a_end <= b_start)[real].all()


def test_real_next_segments_follow_and_random_ones_come_from_elsewhere():
    documents = random_corpus(0)
    rows = np.concatenate([instances_of(documents, key) for key in range(20)])
    real, random = rows[rows[:, 4] == 0], rows[rows[:, 4] == 1]
    untouched = real[(real[:, 1] - real[:, 0] + real[:, 3] - real[:, 2]) < 61]  # not truncated
    assert (untouched[:, 1] == untouched[:, 2]).all()
    same = document_of(documents, random[:, 0]) == document_of(documents, random[:, 2])
    assert same.mean() < 0.001
    assert 0.5 < len(random) / len(rows) < 0.7  # one half, and all chunks of a single sentence


def test_every_sentence_begins_or_continues_an_instance():
    """Nothing is left out: without truncation the A and real B segments, and what was put back,
    cover the corpus.
    """
    documents = corpus([[3, 4, 5, 3, 2, 4, 6] * 3, [5, 5, 4, 4]])
    rows = instances_of(documents, max_seq_length=24, short_seq_prob=0.0)
    covered = np.zeros(len(documents.ids), bool)
    for a_start, a_end, b_start, b_end, is_random in rows:
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
    input_ids, lengths, first_lengths = make_rows(documents.ids, rows, 64, CLS, SEP)
    for ids, length, first, (a_start, a_end, b_start, b_end, _) in zip(
        input_ids, lengths, first_lengths, rows, strict=True
    ):
        expected = [CLS, *documents.ids[a_start:a_end], SEP, *documents.ids[b_start:b_end], SEP]
        assert ids.tolist() == expected + [0] * (64 - len(expected))
        assert length == len(expected) and first == a_end - a_start + 2


def test_short_sequences():
    documents = corpus([[5] * 200] * 50)
    full, short = (
        instances_of(documents, short_seq_prob=0.0),
        instances_of(documents, short_seq_prob=1.0),
    )
    assert np.diff(full[:, [0, 1]]).mean() > 1.5 * np.diff(short[:, [0, 1]]).mean()


def test_sentence_order():
    """Both segments are consecutive; half of the real pairs are swapped; single sentences get a
    random second half.
    """
    documents = random_corpus(4)
    every = np.arange(len(documents))
    rows = np.concatenate(
        [
            pair_instances(
                documents, every, every, max_seq_length=64, short_seq_prob=0.1, key=key, swaps=True
            )
            for key in range(20)
        ]
    )
    same = document_of(documents, rows[:, 0]) == document_of(documents, rows[:, 2])
    swapped = rows[same & (rows[:, 4] == 1)]
    assert (swapped[:, 3] <= swapped[:, 0]).all()
    kept = rows[rows[:, 4] == 0]
    assert (kept[:, 1] <= kept[:, 2]).all()
    assert abs(len(swapped) / (len(swapped) + len(kept)) - 0.5) < 0.03
    assert (rows[~same][:, 4] == 1).all()


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
