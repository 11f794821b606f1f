"""Crops are spans of their text, new ones in every epoch, and the same ones after a resume."""

import types

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.finetune.files import crops, encoded
from tests.finetune.test_classifier import Numbers

LENGTH = 24


def texts():
    """Texts whose tokens are all different: 1,000 n, 1,000 n + 1 and so on."""
    sizes = [8, 9, 40, 7, 300, 20, 0, 64]
    return [" ".join(str(1000 * (row + 1) + i) for i in range(n)) for row, n in enumerate(sizes)]


def cropped(padding="dynamic", seed=3, prefixes=("5 6", "")):
    examples = types.SimpleNamespace(path="x.txt", num_skipped=1, num_examples=8)
    chunks = [texts()[:3], texts()[3:]]
    return examples, crops.encode_crops(
        examples, chunks, Numbers(), prefixes, LENGTH, padding, seed, "."
    )


def rows_of(batch):
    return [
        [tuple(row[mask > 0].tolist()) for row, mask in zip(*pair, strict=True)]
        for pair in zip(batch["input_ids"], batch["input_mask"], strict=True)
    ]


def test_crops_are_spans_of_their_text_behind_the_prefix():
    examples, rows = cropped()
    is_long = [True, True, True, False, True, True, False, True]
    assert (examples.num_examples, examples.num_skipped) == (6, 3) and len(rows) == 6
    whole = [
        list(map(int, text.split())) for text, own in zip(texts(), is_long, strict=True) if own
    ]
    sizes, starts = [set() for _ in whole], set()
    batches = encoded.training_batches(rows, batch_size=6, position=0, seed=3)
    for _ in range(200):
        batch = next(batches)
        assert batch["labels"].tolist() == [1] * 6 and not batch["segment_ids"].any()
        for pair in rows_of(batch):
            place = pair[0][3] // 1000 - 1  # [CLS], two tokens of the prefix, the crop
            text = whole[[0, 1, 2, None, 3, 4, None, 5][place]]
            for row, prefix in zip(pair, [(5, 6), ()], strict=True):
                assert row[0] == 2 and row[-1] == 3 and row[1 : 1 + len(prefix)] == prefix
                crop = list(row[1 + len(prefix) : -1])
                first = crop[0] % 1000
                assert crop == text[first : first + len(crop)]
                sizes[whole.index(text)].add(len(crop))
                starts.add((whole.index(text), first))
    # at least 5 %, at most half and at most a row; 22 tokens, or 20 behind a prefix
    expected = [(4, 4), (4, 4), (4, 20), (15, 22), (4, 10), (4, 22)]
    assert [(min(own), max(own)) for own in sizes] == expected
    assert {first for row, first in starts if row == 0} == {0, 1, 2, 3, 4}


def test_every_epoch_has_new_crops_and_a_resume_the_same():
    _, rows = cropped()

    def first_batches(position, seed=3):
        _, own = cropped(seed=seed)
        batches = encoded.training_batches(own, batch_size=2, position=position, seed=3)
        return [rows_of(next(batches)) for _ in range(6)]

    batches = first_batches(0)
    assert batches[2:] == first_batches(4)[:4] != first_batches(4, seed=4)[:4]
    epochs = [{tuple(pair) for pair in sum(batches[n : n + 3], [])} for n in (0, 3)]
    # the crops of a text of 8 tokens, 5 x 5 pairs, may be equal by chance
    assert len(epochs[0]) == len(epochs[1]) == 6 and len(epochs[0] & epochs[1]) <= 1
    evaluated = [list(encoded.evaluation_batches(rows, batch_size=n)) for n in (2, 6)]
    first, second = (sum(map(rows_of, one), []) for one in evaluated)
    assert first == second and all(len({tuple(x) for x in first} & own) <= 1 for own in epochs)


@pytest.mark.parametrize("padding, width", [("fixed", LENGTH), ("uniform", 16)])
def test_batches_are_padded_as_those_of_other_tasks(padding, width):
    _, rows = cropped(padding)
    batch = encoded.make_batch(rows, np.array([0, 4]), epochs=np.array([0, 1]))
    assert batch["input_ids"].shape == (2, 2, width)
    assert (rows.lengths <= LENGTH).all()
    drawn = rows.drawn(np.arange(6), np.zeros(6, int))[0]
    assert (drawn.lengths <= rows.lengths).all()


def test_a_long_prefix_leaves_half_a_row_and_short_texts_are_refused():
    _, rows = cropped(prefixes=(" ".join(["5"] * 40), ""))
    for pair in rows_of(encoded.make_batch(rows, np.arange(6))):
        assert pair[0][1:13] == (5,) * 12 and 1 <= len(pair[0]) - 14 <= 10
    examples = types.SimpleNamespace(path="x.txt", num_skipped=0, num_examples=1)
    with pytest.raises(UserError, match="fewer than 8 tokens"):
        crops.encode_crops(examples, [["1 2 3"]], Numbers(), ("", ""), LENGTH, "fixed", 0, ".")
