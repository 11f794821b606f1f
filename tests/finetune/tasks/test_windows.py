"""Windows and the context of tokens equal Google's run_squad, written out token by token."""

import itertools

import numpy as np
import pytest

from bert_gpu.finetune.tasks.windows import best_windows, cut_windows


def google_spans(num_tokens, room, stride):
    """[(start, length)] as convert_examples_to_features cuts a document."""
    found, start = [], 0
    while True:
        length = min(num_tokens - start, room)
        found.append((start, length))
        if start + length >= num_tokens:
            return found
        start += min(length, stride)


def google_best(spans, token):
    """The first of the spans with the highest score of _check_is_max_context."""
    scores = {
        index: min(token - start, start + length - 1 - token) + 0.01 * length
        for index, (start, length) in enumerate(spans)
        if start <= token < start + length
    }
    return max(scores, key=scores.get)


@pytest.mark.parametrize("room, stride", [(5, 1), (5, 2), (5, 5), (5, 9), (1, 1), (8, 3), (64, 16)])
def test_windows_are_googles(room, stride):
    for num_tokens in itertools.chain(range(30), (63, 64, 65, 200)):
        starts, lengths = cut_windows(num_tokens, room, stride)
        spans = google_spans(num_tokens, room, stride)
        assert list(zip(starts.tolist(), lengths.tolist(), strict=True)) == spans
        best = best_windows(starts, lengths, num_tokens)
        assert best.tolist() == [google_best(spans, token) for token in range(num_tokens)]
        assert (np.diff(best) >= 0).all()
