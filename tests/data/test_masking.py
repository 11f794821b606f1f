"""Laws of masking, in graph mode, as both the writer and the input pipeline run it."""

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.data.chance import row_keys
from bert_gpu.data.masking import MaskingSpec, mask_rows

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000


def spec(**changes):
    settings = dict(max_predictions=20, share=0.15, vocab_size=VOCAB, cls_id=CLS, sep_id=SEP, mask_id=MASK)
    return MaskingSpec(**settings | changes)


def rows(num_rows=512, width=96, seed=0):
    """(input_ids, lengths, word_starts): rows [CLS] A [SEP] B [SEP] of random lengths, words of one to four pieces."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (num_rows, width)).astype(np.int32)
    lengths = rng.integers(5, width + 1, num_rows).astype(np.int32)
    columns = np.arange(width)
    ids[:, 0] = CLS
    ids[np.arange(num_rows), lengths // 2] = SEP
    ids[np.arange(num_rows), lengths - 1] = SEP
    ids[columns[None] >= lengths[:, None]] = 0
    return ids, lengths, rng.random((num_rows, width)) < 0.6


def run(ids, lengths, starts, keys, masking):
    function = tf.function(lambda *args: mask_rows(*args, masking))
    return {name: value.numpy() for name, value in function(ids, lengths, starts, keys).items()}


@pytest.fixture(scope="module", params=[False, True], ids=["token", "whole_word"])
def masked(request):
    ids, lengths, starts = rows()
    return ids, lengths, starts, run(ids, lengths, starts, row_keys(1, np.arange(len(ids))), spec(whole_word=request.param)), request.param


def test_counts_are_exact(masked):
    _, lengths, _, result, whole_word = masked
    counts = result["masked_lm_weights"].sum(1)
    expected = np.array([min(20, max(1, round(length * 0.15))) for length in lengths.tolist()])
    if whole_word:  # a word that would overflow is skipped, so a row may have fewer
        assert (counts <= expected).all() and counts.mean() > 0.97 * expected.mean()
    else:
        assert (counts == expected).all()


def test_no_special_token_and_no_padding_is_masked(masked):
    ids, lengths, _, result, _ = masked
    is_real = result["masked_lm_weights"] > 0
    assert not np.isin(result["masked_lm_ids"][is_real], [CLS, SEP]).any()
    assert (result["masked_lm_positions"] < lengths[:, None])[is_real].all()
    assert (result["masked_lm_positions"][~is_real] == 0).all() and (result["masked_lm_ids"][~is_real] == 0).all()


def test_labels_are_the_original_tokens_and_the_rest_is_untouched(masked):
    ids, _, _, result, _ = masked
    restored = result["input_ids"].copy()
    for row, (positions, labels, weights) in enumerate(
        zip(result["masked_lm_positions"], result["masked_lm_ids"], result["masked_lm_weights"], strict=True)
    ):
        chosen = positions[weights > 0]
        assert (np.diff(chosen) > 0).all()
        restored[row, chosen] = labels[weights > 0]
    assert (restored == ids).all()


def test_disguises(masked):
    ids, _, _, result, _ = masked
    is_real = result["masked_lm_weights"] > 0
    shown = np.take_along_axis(result["input_ids"], result["masked_lm_positions"], 1)[is_real]
    labels = result["masked_lm_ids"][is_real]
    number = is_real.sum()
    assert abs((shown == MASK).mean() - 0.8) < 4 * np.sqrt(0.16 / number)
    assert abs((shown == labels).mean() - 0.1) < 4 * np.sqrt(0.09 / number)
    replaced = shown[(shown != MASK) & (shown != labels)]
    assert replaced.min() < 50 and replaced.max() > VOCAB - 50  # of the whole vocabulary


def test_whole_words_are_masked_together():
    ids, lengths, starts = rows(seed=3)
    result = run(ids, lengths, starts, row_keys(2, np.arange(len(ids))), spec(whole_word=True))
    for row in range(len(ids)):
        chosen = np.zeros(ids.shape[1], bool)
        chosen[result["masked_lm_positions"][row][result["masked_lm_weights"][row] > 0]] = True
        special = np.isin(ids[row], [CLS, SEP]) | (np.arange(ids.shape[1]) >= lengths[row])
        for column in range(1, lengths[row]):
            if not special[column] and not special[column - 1] and not starts[row, column]:
                assert chosen[column] == chosen[column - 1]


def test_a_row_does_not_depend_on_its_batch():
    ids, lengths, starts = rows()
    keys = row_keys(1, np.arange(len(ids)))
    for whole_word in (False, True):
        together = run(ids, lengths, starts, keys, spec(whole_word=whole_word))
        alone = run(ids[7:9], lengths[7:9], starts[7:9], keys[7:9], spec(whole_word=whole_word))
        for name, value in alone.items():
            assert (value == together[name][7:9]).all()


def test_positions_are_uniform():
    ids = np.full((4000, 34), 9, np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    result = run(ids, np.full(4000, 34, np.int32), None, row_keys(5, np.arange(4000)), spec())
    hits = np.bincount(result["masked_lm_positions"][result["masked_lm_weights"] > 0], minlength=34)[1:-1]
    assert np.abs(hits / hits.mean() - 1).max() < 0.15


def test_other_key_other_masks():
    ids, lengths, starts = rows()
    first, second = (run(ids, lengths, starts, row_keys(key, np.arange(len(ids))), spec()) for key in (1, 2))
    assert (first["masked_lm_positions"] != second["masked_lm_positions"]).any(1).mean() > 0.9


def test_more_predictions_than_columns():
    ids, lengths, starts = rows(width=12)
    result = run(ids, lengths, starts, row_keys(1, np.arange(len(ids))), spec(max_predictions=20, share=0.9))
    assert result["masked_lm_positions"].shape == (len(ids), 20)
