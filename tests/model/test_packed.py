"""Packed rows: each sequence has the outputs and gradients that it has alone; and the arithmetic of
sequence_ids.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.data.config import CLS_SEP, FRAMES
from bert_gpu.data.instances import make_rows
from bert_gpu.model import encoder, packed
from bert_gpu.model.encoder import BertEncoder
from tests import pretraining
from tests.model.variants import VARIANTS, as_tensors, random_weights, value_and_gradients

# Lengths of the sequences in rows of 18 tokens; the rest is padding.
ROWS = [[5, 3, 4], [18], [3, 3, 3, 3, 6], [1, 2, 7]]
LENGTH = 18
SEED = 3


def packed_rows(vocab_size=40):
    """ROWS as a batch, the same sequences as a batch with one row each, and (row, slice) of each
    sequence in the former.
    """
    generator = np.random.default_rng(SEED)
    batch = {
        name: np.zeros((len(ROWS), LENGTH), np.int32)
        for name in ("input_ids", "input_mask", "segment_ids", "sequence_ids")
    }
    sequences = []
    for row, lengths in enumerate(ROWS):
        begins = np.cumsum([0, *lengths])
        for index, (begin, size) in enumerate(zip(begins, lengths, strict=False)):
            tokens = row, slice(begin, begin + size)
            batch["input_ids"][tokens] = generator.integers(0, vocab_size, size)
            batch["segment_ids"][tokens] = generator.integers(0, 2, size)
            batch["input_mask"][tokens], batch["sequence_ids"][tokens] = 1, index + 1
            sequences.append(tokens)
    alone = {
        name: np.zeros((len(sequences), LENGTH), np.int32)
        for name in ("input_ids", "input_mask", "segment_ids")
    }
    for row, tokens in enumerate(sequences):
        for name in alone:
            values = batch[name][tokens]
            alone[name][row, : len(values)] = values
    return as_tensors(batch), as_tensors(alone), sequences


def taken_apart(values, sequences):
    """(rows, S, ...) of packed rows -> (sequences, S, ...), 0 after each sequence's end."""
    apart = np.zeros((len(sequences), *values.shape[1:]), values.dtype)
    for row, tokens in enumerate(sequences):
        apart[row, : tokens[1].stop - tokens[1].start] = values[tokens]
    return apart


@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "crammed",
        "all at once",
        "disentangled",
        pytest.param("local rotary", marks=pytest.mark.long),
    ],
)
def test_each_sequence_gets_what_it_would_get_alone(name):
    config = VARIANTS[name]
    weights = as_tensors(random_weights(config))
    batch, alone, sequences = packed_rows()
    # The loss: hidden states of all real tokens times random values.
    of_tokens = (
        np.random.default_rng(4)
        .standard_normal((*batch["input_ids"].shape, config.hidden_size))
        .astype(np.float32)
    )
    of_tokens[batch["input_mask"].numpy() == 0] = 0

    def loss_packed(weights):
        return tf.reduce_sum(encoder.encode(weights, batch, config) * of_tokens)

    def loss_alone(weights):
        return tf.reduce_sum(
            encoder.encode(weights, alone, config) * taken_apart(of_tokens, sequences)
        )

    real = alone["input_mask"].numpy() > 0
    outputs = taken_apart(encoder.encode(weights, batch, config).numpy(), sequences)
    np.testing.assert_allclose(
        outputs[real], encoder.encode(weights, alone, config).numpy()[real], rtol=0, atol=1e-5
    )
    (loss, gradients), (expected, expected_gradients) = (
        value_and_gradients(fn, weights, is_traced=name == "bert")
        for fn in (loss_packed, loss_alone)
    )
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    for key, gradient in gradients.items():
        assert (
            np.linalg.norm(gradient - expected_gradients[key])
            <= 1e-5 * np.linalg.norm(expected_gradients[key]) + 1e-5
        ), key


def test_no_token_sees_another_sequence():
    """Other ids in one sequence change nothing elsewhere, to the last bit."""
    config = VARIANTS["bert"]
    weights = as_tensors(random_weights(config))
    batch, _, sequences = packed_rows()
    before = encoder.encode(weights, batch, config).numpy()
    for tokens in sequences:
        ids = batch["input_ids"].numpy()
        ids[tokens] = (ids[tokens] + 1) % config.vocab_size
        changed = (
            encoder.encode(weights, {**batch, "input_ids": tf.constant(ids)}, config).numpy()
            != before
        ).any(-1)
        expected = np.zeros_like(changed)
        expected[tokens] = True
        np.testing.assert_array_equal(changed, expected)


def test_the_data_of_the_packed_objective_trains_each_piece_alone():
    """Rows framed by cls_sep as data/packing.py makes them: sequence_ids as the encoder
    understands them.
    """
    ids = np.arange(5, 25, dtype=np.int32)
    pieces, row_splits = np.array([[0, 4], [4, 9], [9, 18]]), np.array([0, 2, 3])
    input_ids, _, sequence_ids = make_rows(
        ids, pieces, np.ones(3, bool), row_splits, 16, 1, 2, FRAMES.index(CLS_SEP)
    )
    positions = packed.restarted_positions(tf.constant(sequence_ids)).numpy()
    begins = (positions == 0) & (sequence_ids > 0)
    np.testing.assert_array_equal(begins.sum(-1), [2, 1])
    assert (input_ids[begins] == 1).all()  # [CLS]


@pytest.mark.parametrize("jit", [False, True])
def test_positions_of_random_rows(jit):
    generator = np.random.default_rng(0)
    rows = np.zeros((50, 23), np.int32)
    for row in rows:
        at, sequence_id = 0, generator.integers(1, 5)
        while at < 23 and generator.random() > 0.1:
            size = generator.integers(1, 9)
            row[at : at + size] = sequence_id
            at, sequence_id = at + size, sequence_id + generator.integers(1, 3)
    positions = tf.function(packed.restarted_positions, jit_compile=jit)(tf.constant(rows)).numpy()
    for row, ids in enumerate(rows):
        begins = [i for i in range(23) if ids[i] and (i == 0 or ids[i] != ids[i - 1])]
        for i in np.flatnonzero(ids):
            assert positions[row, i] == i - max(begin for begin in begins if begin <= i)


def test_any_shape_and_xla_give_the_same():
    config = VARIANTS["crammed"]
    weights = as_tensors(random_weights(config))
    batch, _, _ = packed_rows()
    plain = encoder.encode(weights, batch, config)
    signature = [{name: tf.TensorSpec([None, None], tf.int32) for name in batch}]
    run = functools.partial(encoder.encode, weights, config=config)
    for function in (
        tf.function(run, input_signature=signature),
        tf.function(run, jit_compile=True),
    ):
        np.testing.assert_allclose(function(batch), plain, rtol=0, atol=1e-5)


def test_masked_words_of_packed_rows_are_those_of_the_sequences_alone():
    """One word of each sequence is masked; the packed rows have no next_sentence_labels, so this is
    their only objective.
    """
    config = VARIANTS["bert"]
    weights = as_tensors(random_weights(config))
    batch, alone, sequences = packed_rows()
    generator = np.random.default_rng(5)
    words = generator.integers(0, config.vocab_size, len(sequences), np.int32)
    positions = np.array(
        [generator.integers(where.stop - where.start) for _, where in sequences], np.int32
    )
    names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    values = positions[:, None], words[:, None], np.ones((len(words), 1), np.float32)
    expected = pretraining.losses(
        weights, alone | as_tensors(dict(zip(names, values, strict=True))), BertEncoder(config)
    )
    masks = [np.zeros((len(ROWS), max(map(len, ROWS))), value.dtype) for value in values]
    for (row, where), position, word in zip(sequences, positions, words, strict=True):
        column = int(masks[2][row].sum())
        for mask, value in zip(masks, (where.start + position, word, 1), strict=True):
            mask[row, column] = value
    losses = pretraining.losses(
        weights, batch | as_tensors(dict(zip(names, masks, strict=True))), BertEncoder(config)
    )
    assert set(losses) == {"mlm"}
    np.testing.assert_allclose(losses["mlm"], expected["mlm"], rtol=1e-5)
