"""Laws of masking."""

import zlib

import numpy as np
import pytest

from bert_gpu.data.masking import CHOICE, SPAN, MaskingSpec, mask_rows
from bert_gpu.data.random_bits import GOLDEN, mix_int, row_keys

CLS, SEP, MASK, VOCAB = 2, 3, 4, 1000


def spec(**changes):
    settings = dict(
        max_predictions=20, share=0.15, vocab_size=VOCAB, cls_id=CLS, sep_id=SEP, mask_id=MASK
    )
    return MaskingSpec(**settings | changes)


def rows(num_rows=512, width=96, seed=0):
    """(input_ids, lengths, word_starts): rows [CLS] A [SEP] B [SEP] of random lengths, words of one
    to four pieces.
    """
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, VOCAB, (num_rows, width)).astype(np.int32)
    lengths = rng.integers(5, width + 1, num_rows).astype(np.int32)
    columns = np.arange(width)
    ids[:, 0] = CLS
    ids[np.arange(num_rows), lengths // 2] = SEP
    ids[np.arange(num_rows), lengths - 1] = SEP
    ids[columns[None] >= lengths[:, None]] = 0
    return ids, lengths, rng.random((num_rows, width)) < 0.6


UNITS = dict(token=dict(), whole_word=dict(whole_word=True), span=dict(max_ngram_size=3))


@pytest.fixture(scope="module", params=UNITS)
def masked(request):
    ids, lengths, starts = rows()
    keys = row_keys(1, np.arange(len(ids)))
    return (
        ids,
        lengths,
        starts,
        mask_rows(ids, lengths, starts, keys, spec(**UNITS[request.param])),
        request.param,
    )


def test_counts_are_exact(masked):
    _, lengths, _, result, unit = masked
    counts = result["masked_lm_weights"].sum(1)
    expected = np.array([min(20, max(1, round(length * 0.15))) for length in lengths.tolist()])
    if unit != "token":  # a word that would overflow is skipped, so a row may have fewer
        assert (counts <= expected).all() and counts.mean() > 0.97 * expected.mean()
    else:
        assert (counts == expected).all()


def test_no_special_token_and_no_padding_is_masked(masked):
    ids, lengths, _, result, _ = masked
    is_real = result["masked_lm_weights"] > 0
    assert not np.isin(result["masked_lm_ids"][is_real], [CLS, SEP]).any()
    assert (result["masked_lm_positions"] < lengths[:, None])[is_real].all()
    assert (result["masked_lm_positions"][~is_real] == 0).all() and (
        result["masked_lm_ids"][~is_real] == 0
    ).all()


def test_labels_are_the_original_tokens_and_the_rest_is_untouched(masked):
    ids, _, _, result, _ = masked
    restored = result["input_ids"].copy()
    for row, (positions, labels, weights) in enumerate(
        zip(
            result["masked_lm_positions"],
            result["masked_lm_ids"],
            result["masked_lm_weights"],
            strict=True,
        )
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
    # the pieces of a span share one draw
    number = is_real.sum() / (3 if masked[4] == "span" else 1)
    assert abs((shown == MASK).mean() - 0.8) < 4 * np.sqrt(0.16 / number)
    assert abs((shown == labels).mean() - 0.1) < 4 * np.sqrt(0.09 / number)
    replaced = shown[(shown != MASK) & (shown != labels)]
    assert replaced.min() < 50 and replaced.max() > VOCAB - 50  # of the whole vocabulary


@pytest.mark.parametrize("unit", ["whole_word", "span"])
def test_whole_words_are_masked_together(unit):
    ids, lengths, starts = rows(seed=3)
    result = mask_rows(ids, lengths, starts, row_keys(2, np.arange(len(ids))), spec(**UNITS[unit]))
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
    for unit in UNITS.values():
        together = mask_rows(ids, lengths, starts, keys, spec(**unit))
        alone = mask_rows(ids[7:9], lengths[7:9], starts[7:9], keys[7:9], spec(**unit))
        for name, value in alone.items():
            assert (value == together[name][7:9]).all()


def test_positions_are_uniform():
    ids = np.full((4000, 34), 9, np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    result = mask_rows(ids, np.full(4000, 34, np.int32), None, row_keys(5, np.arange(4000)), spec())
    hits = np.bincount(
        result["masked_lm_positions"][result["masked_lm_weights"] > 0], minlength=34
    )[1:-1]
    assert np.abs(hits / hits.mean() - 1).max() < 0.15


def test_other_key_other_masks():
    ids, lengths, starts = rows()
    first, second = (
        mask_rows(ids, lengths, starts, row_keys(key, np.arange(len(ids))), spec())
        for key in (1, 2)
    )
    assert (first["masked_lm_positions"] != second["masked_lm_positions"]).any(1).mean() > 0.9


def test_more_predictions_than_columns():
    ids, lengths, starts = rows(width=12)
    result = mask_rows(
        ids, lengths, starts, row_keys(1, np.arange(len(ids))), spec(max_predictions=20, share=0.9)
    )
    assert result["masked_lm_positions"].shape == (len(ids), 20)


@pytest.mark.parametrize(
    "weights, expected",
    [("inverse", [6 / 11, 3 / 11, 2 / 11]), ("geometric", [1 / 2.44, 0.8 / 2.44, 0.64 / 2.44])],
)
def test_span_lengths(weights, expected):
    """In long rows of one-piece words with a small quota, spans that were masked together have the
    lengths of their weights.
    """
    ids = np.full((6000, 130), 9, np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    settings = spec(max_ngram_size=3, ngram_weights=weights, share=3 / 130, max_predictions=3)
    result = mask_rows(
        ids,
        np.full(6000, 130, np.int32),
        np.ones((6000, 130), bool),
        row_keys(5, np.arange(6000)),
        settings,
    )
    positions = result["masked_lm_positions"]
    assert (result["masked_lm_weights"].sum(1) == 3).all()
    # The first span taken is never cut short by the quota of three: a row with one run of three is
    # 3, or 2 and 1 side by side (rare).
    whole = (positions[:, 2] - positions[:, 0] == 2).mean()
    assert abs(whole - expected[2]) < 0.05
    separate = ((np.diff(positions) > 1).all(1)).mean()
    assert separate < expected[0] ** 2 + expected[0] * (1 - expected[0]) + 0.05


def test_spans_stay_in_their_segment_and_are_disguised_together():
    ids, lengths, starts = rows(num_rows=2000, seed=4)
    result = mask_rows(
        ids,
        lengths,
        starts,
        row_keys(7, np.arange(len(ids))),
        spec(max_ngram_size=5, ngram_weights="geometric"),
    )
    runs = agree = 0
    for row in range(len(ids)):
        real = result["masked_lm_weights"][row] > 0
        positions = result["masked_lm_positions"][row][real]
        is_mask = result["input_ids"][row][positions] == MASK
        beside = np.diff(positions) == 1
        runs += beside.sum()
        agree += (is_mask[1:] == is_mask[:-1])[beside].sum()
    assert agree / runs > 0.9  # chance alone would give 0.68


def plain_choice(ids, length, starts, key, masking):
    """The columns that are masked in a row, by plain Python: words or spans in order of their
    draws, each where it fits.
    """

    def draw(index, stream):
        return mix_int(key + (index + 1 + (stream << 32)) * GOLDEN) >> 33

    segments = [[]]
    for column in range(length):
        if ids[column] in (CLS, SEP):
            segments.append([])
        elif starts[column] or not segments[-1]:
            segments[-1].append([column])
        else:
            segments[-1][-1].append(column)
    words = [(own, place) for own in segments for place in range(len(own))]
    order = sorted(range(len(words)), key=lambda word: (-draw(word, CHOICE), word))
    quota = min(masking.max_predictions, max(1, round(length * masking.share)))
    chosen = set()
    weights = [1 / size for size in range(1, masking.max_ngram_size + 1)]
    bounds = np.cumsum(weights) / sum(weights)
    for longest in (masking.max_ngram_size, 1):
        for word in order:
            own, place = words[word]
            size = 1 + int(np.searchsorted(bounds, draw(word, SPAN) / 2**31, side="right"))
            pieces = sum(own[place : place + min(size, longest)], [])
            if len(pieces) <= quota - len(chosen) and chosen.isdisjoint(pieces):
                chosen.update(pieces)
    return sorted(chosen)


@pytest.mark.parametrize("unit", [dict(whole_word=True), *(dict(max_ngram_size=n) for n in (2, 9))])
def test_spans_are_taken_in_order_where_they_fit(unit):
    for seed, share in ((0, 0.15), (1, 0.6)):
        ids, lengths, starts = rows(num_rows=40, seed=seed)
        keys = row_keys(seed, np.arange(len(ids)))
        masking = spec(share=share, max_predictions=40, **unit)
        result = mask_rows(ids, lengths, starts, keys, masking)
        for row, weights in enumerate(result["masked_lm_weights"]):
            own = int(lengths[row]), starts[row], int(keys[row]), masking
            positions = result["masked_lm_positions"][row, weights > 0]
            assert positions.tolist() == plain_choice(ids[row].tolist(), *own)


def test_a_row_of_special_tokens_has_no_prediction():
    ids = np.array([[CLS, SEP, 0], [CLS, 9, SEP]], np.int32)
    for unit in UNITS.values():
        starts = np.ones(ids.shape, bool)
        masked = mask_rows(ids, [2, 3], starts, row_keys(1, [0, 1]), spec(**unit))
        assert masked["masked_lm_weights"].sum(1).tolist() == [0, 1]


@pytest.mark.parametrize(
    "unit, checksum",
    [
        (dict(), 0xD849DEB2),
        (dict(whole_word=True), 0x08FEE6A8),
        (dict(max_ngram_size=3), 0x53EBD431),
        (dict(max_ngram_size=3, ngram_weights="geometric"), 0x36D91ECC),
        (dict(blank_ids=(7, 9)), 0x3726813B),
    ],
)
def test_the_masks_are_those_that_tensorflows_ops_gave(unit, checksum):
    """Revision 8f8f0e6 computed these checksums with TensorFlow's ops."""
    ids, lengths, starts = rows(seed=6)
    result = mask_rows(ids, lengths, starts, row_keys(8, np.arange(len(ids))), spec(**unit))
    parts = [result[name].astype("<i4").tobytes() for name in sorted(result)]
    assert zlib.crc32(b"".join(parts)) == checksum
