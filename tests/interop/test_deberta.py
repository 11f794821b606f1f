"""DeBERTas of transformers, which is an independent implementation, compute the same here: hidden
states, scores, losses and gradients, whether texts are padded or packed.
"""

import json
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.interop import huggingface, relatives
from bert_gpu.model import encoder, heads
from tests.interop.test_huggingface import (
    file_tensors,
    needs_oracle,
    oracle_environment,
    oracle_python,
)

NAMES = ("buckets", "no buckets", "far", "long")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """(folder of saved models, {name: arrays}), as deberta_oracle.py says."""
    folder = tmp_path_factory.mktemp("deberta")
    script = str(pathlib.Path(__file__).parent / "deberta_oracle.py")
    done = subprocess.run(
        [oracle_python(), script, str(folder)],
        env=oracle_environment(folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, {name: dict(np.load(folder / f"{name}.npz")) for name in NAMES}


def batch_of(arrays, is_packed):
    """(batch, [(row, column of its first token, index) of each text])."""
    texts = [arrays[f"ids/{index}"] for index in range(sum(key[:4] == "ids/" for key in arrays))]
    lengths = [len(text) for text in texts]
    rows = [(0, sum(lengths[:index]), index) for index in range(len(texts))]
    shape = (1, sum(lengths) + 2)
    if not is_packed:
        rows = [(index, 0, index) for index in range(len(texts))]
        shape = (len(texts), max(lengths))
    batch = {
        name: np.zeros(shape, np.int32)
        for name in ("input_ids", "input_mask", "segment_ids", "sequence_ids")
    }
    for row, first, index in rows:
        place = (row, slice(first, first + lengths[index]))
        batch["input_ids"][place] = texts[index]
        batch["segment_ids"][place] = arrays[f"segments/{index}"]
        batch["input_mask"][place] = 1
        batch["sequence_ids"][place] = index + 1
    if not is_packed:
        del batch["sequence_ids"]
    return {name: tf.constant(values) for name, values in batch.items()}, rows


def assert_close(ours, theirs, name, least=0.0):
    atol = max(least, 1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=name)


@needs_oracle
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_packed", [False, True])
def test_states_scores_losses_and_gradients_are_those_of_transformers(oracle, name, is_packed):
    folder, arrays = oracle[0], oracle[1][name]
    config, weights, notes = huggingface.read_model(str(folder / name))
    assert (notes.missing, notes.unused, notes.architecture) == ([], [], "BertForMaskedLM")
    batch, texts = batch_of(arrays, is_packed)
    tensors = {key: tf.constant(value) for key, value in weights.items()}
    labels = np.full(batch["input_ids"].shape, -100)
    for row, first, index in texts:
        labels[row, first : first + len(arrays[f"ids/{index}"])] = arrays[f"labels/{index}"]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        # rows that are packed have more tokens than the model has positions
        states = encoder.encode(tensors, batch, config)
        scores = heads.chosen_mlm_logits(tensors, states, config)
        loss, _ = heads.summed_loss(scores, np.maximum(labels, 0), labels >= 0)
    gradients = tape.gradient(loss, tensors)
    for row, first, index in texts:
        place = (row, slice(first, first + len(arrays[f"ids/{index}"])))
        assert_close(states[place], arrays[f"hidden/{index}"], "states")
        assert_close(scores[place], arrays[f"logits/{index}"], "scores")
    assert float(loss) == pytest.approx(float(arrays["loss"]), rel=1e-5)
    family = relatives.relative_of(config, notes.architecture).family
    # what softmax ignores, such as a bias of all keys, has no gradient but what is rounded
    least = 1e-7 * max(np.abs(gradient).max() for gradient in gradients.values())
    for key, gradient in gradients.items():
        theirs = [arrays[f"gradients/{their}"] for their in family.names(key)]
        assert_close(gradient, family.to_ours(key, theirs), key, least)


@needs_oracle
@pytest.mark.parametrize("name", NAMES)
def test_a_deberta_leaves_as_it_came(oracle, name, tmp_path):
    """The class, all tensors bit by bit, and what the config.json says."""
    model = huggingface.read(str(oracle[0] / name))
    line = huggingface.write(model, str(tmp_path / "there"))
    assert "DebertaV2ForMaskedLM of transformers" in line
    before, after = (file_tensors(path) for path in (oracle[0] / name, tmp_path / "there"))
    assert after.keys() == before.keys()
    assert all(after[key].tobytes() == before[key].tobytes() for key in before)
    said, says = (
        json.loads((path / "config.json").read_text())
        for path in (oracle[0] / name, tmp_path / "there")
    )
    same = said.keys() & says.keys()
    assert {"legacy", "pos_att_type", "max_relative_positions", "share_att_key"} <= same
    assert {key: says[key] for key in same} == {key: said[key] for key in same}
    assert huggingface.read(str(tmp_path / "there")).config == model.config
