"""Encoding equals Google's rules done naively; probabilities do not depend on how rows are divided;
a tiny BERT learns an easy task.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune import objective, prediction
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.files.disk_array import DiskArray
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, encode
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep
from tests import task_heads
from tests.finetune.evaluations import task_of

CLS, SEP = 2, 3
TASK = task_of(TASKS["pairs"])
MODEL = ModelConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
)


class Numbers:
    """A tokenizer of texts that are numbers."""

    cls_id, sep_id, mask_id = CLS, SEP, 4

    separators = 1

    def tokenize(self, sentences):
        rows = [[int(word) for word in sentence.split()] for sentence in sentences]
        return np.array(list(itertools.chain(*rows)), np.int32), np.cumsum([0, *map(len, rows)])


def google_row(a, b, max_seq_length):
    """(ids, segments) as run_classifier.py's convert_single_example makes them."""
    a, b = list(a), list(b)
    if b:
        while len(a) + len(b) > max_seq_length - 3:
            (a if len(a) > len(b) else b).pop()
    else:
        a = a[: max_seq_length - 2]
    first = [CLS, *a, SEP]
    second = [*b, SEP] if b else []
    return first + second, [0] * len(first) + [1] * len(second)


def random_texts(count, longest, seed=0, words=(5, 40)):
    generator = np.random.default_rng(seed)
    return [
        " ".join(map(str, generator.integers(*words, generator.integers(0, longest + 1))))
        for _ in range(count)
    ]


@pytest.mark.parametrize("max_seq_length", [5, 8, 13, 16, 24])
@pytest.mark.parametrize("has_pairs", [True, False])
def test_rows_equal_the_naive_reference(max_seq_length, has_pairs):
    lengths = list(itertools.product(range(0, 25, 2), range(0, 26, 3)))
    texts_a = [" ".join(str(5 + i) for i in range(a)) for a, _ in lengths]
    texts_b = [" ".join(str(39 - i) for i in range(b)) for _, b in lengths]

    def part_b(first, end):
        return texts_b[first:end] if has_pairs else None

    rows = encoded.encode_examples(
        Numbers(),
        [(texts_a[:50], part_b(0, 50)), (texts_a[50:], part_b(50, None))],
        np.arange(len(lengths), dtype=np.int32),
        max_seq_length,
    )
    batch = encoded.make_batch(rows, np.arange(len(lengths)))
    num_truncated = 0
    for row, (a, b) in enumerate(zip(texts_a, texts_b, strict=True)):
        a, b = [int(n) for n in a.split()], [int(n) for n in b.split()] if has_pairs else []
        ids, segments = google_row(a, b, max_seq_length)
        padding = [0] * (batch["input_ids"].shape[1] - len(ids))
        assert batch["input_ids"][row].tolist() == ids + padding
        assert batch["segment_ids"][row].tolist() == segments + padding
        assert batch["input_mask"][row].tolist() == [1] * len(ids) + padding
        num_truncated += len(ids) < len(a) + len(b) + (3 if b else 2)
    assert rows.num_truncated == num_truncated
    assert {name: value.dtype for name, value in batch.items()} == dict(
        input_ids=np.int32,
        input_mask=np.int32,
        segment_ids=np.int32,
        labels=np.int32,
        row_weights=np.float32,
    )


def test_a_batch_is_padded_to_its_longest_row_rounded_up():
    rows = encoded.encode_examples(Numbers(), [(["5", "5 " * 9, "5 " * 90], None)], None, 30)
    widths = [
        encoded.make_batch(rows, np.array(numbers))["input_ids"].shape[1]
        for numbers in ([0], [0, 1], [2, 0])
    ]
    assert widths == [8, 16, 30] and "labels" not in encoded.make_batch(rows, np.array([0]))


def test_what_outgrows_memory_is_the_same_in_a_file(tmp_path):
    parts = [np.arange(number, dtype=np.int32) for number in (3, 0, 700, 1)]
    small, large = DiskArray(tmp_path), DiskArray(tmp_path / "not" / "made", 1024)
    for part in parts:
        small.append(part)
        large.append(part)
    small, large = small.finish(), large.finish()
    assert isinstance(large, np.memmap) and not isinstance(small, np.memmap)
    assert small.tolist() == large.tolist() == np.concatenate(parts).tolist()
    assert not list(tmp_path.iterdir()) and not len(DiskArray(tmp_path).finish())


def test_rows_of_an_encoder_made_for_one_length_are_all_full():
    rows = encoded.encode_examples(Numbers(), [(["5", "5 " * 9], None)], None, 30, "fixed")
    assert encoded.make_batch(rows, np.array([0]))["input_mask"].tolist() == [[1] * 3 + [0] * 27]


def test_every_epoch_has_each_row_once_and_the_position_is_all_there_is_to_resume():
    rows = encoded.encode_examples(Numbers(), [([str(5 + i) for i in range(7)], None)], range(7), 8)

    def stream(position, batch_size, count, seed=1):
        batches = encoded.training_batches(
            rows, batch_size=batch_size, position=position, seed=seed
        )
        return np.concatenate(
            [batch["labels"] for batch in itertools.islice(batches, count)]
        ).tolist()

    whole = stream(0, 5, 7)
    assert all(sorted(whole[start : start + 7]) == list(range(7)) for start in range(0, 35, 7))
    assert whole[:7] != whole[7:14] and whole != stream(0, 5, 7, seed=2)
    assert stream(10, 5, 5) == whole[10:] and stream(12, 1, 23) == whole[12:]


def test_evaluation_has_each_row_once_in_order():
    rows = encoded.encode_examples(Numbers(), [([str(5 + i) for i in range(7)], None)], range(7), 8)
    batches = list(encoded.evaluation_batches(rows, batch_size=3))
    assert [batch["row_weights"].tolist() for batch in batches] == [[1, 1, 1], [1, 1, 1], [1, 0, 0]]
    labels = [batch["labels"][batch["row_weights"] > 0] for batch in batches]
    assert np.concatenate(labels).tolist() == list(range(7))


def thirteen_rows():
    texts = random_texts(13, 20), random_texts(13, 15, seed=1)
    return encoded.encode_examples(Numbers(), [texts], np.arange(13, dtype=np.int32) % 3, 40)


@pytest.fixture(scope="module")
def rows():
    return thirteen_rows()


def random_state(devices, num_classes=3, seed=0, model=MODEL):
    """Weights large enough that probabilities differ between rows."""
    weights = initialize(task_heads.specs("classifier", BertEncoder(model), num_classes), seed)
    return TrainState(
        devices.strategy,
        {name: value * 20 if value.ndim == 2 else value for name, value in weights.items()},
        OptimizerConfig(),
        column_blocks={},
    )


def test_probabilities_do_not_depend_on_batches_padding_or_replicas(rows):
    results = []
    for replicas, batch_sizes in {1: (1, 4, 32), 2: (2, 8)}.items():
        devices = set_up(DeviceConfig(virtual_replicas=replicas))
        predict = prediction.Predictor(devices, random_state(devices), BertEncoder(MODEL), TASK)
        results += [predict(rows, batch_size) for batch_size in batch_sizes]
    assert results[0].shape == (13, 3) and results[0].dtype == np.float64
    np.testing.assert_allclose(results[0].sum(-1), 1, rtol=1e-12)
    assert np.ptp(results[0], axis=0).min() > 0.05
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-7)


def test_outputs_do_not_depend_on_how_rows_are_padded(rows):
    devices = set_up(DeviceConfig())
    predict = prediction.Predictor(devices, random_state(devices), BertEncoder(MODEL), TASK)
    dynamic, widths = predict(rows, 4), {}
    for padding in ("fixed", "dynamic", "uniform"):
        padded = dataclasses.replace(rows, padding=padding)
        np.testing.assert_allclose(predict(padded, 4), dynamic, rtol=1e-4, atol=1e-7)
        batches = list(encoded.evaluation_batches(padded, batch_size=4))
        widths[padding] = [batch["input_ids"].shape[1] for batch in batches]
    assert widths["fixed"] == [40] * 4 and widths["uniform"] == sorted(widths["uniform"])[::-1]
    assert widths["dynamic"] == widths["uniform"] and sum(widths["uniform"]) < sum(widths["fixed"])


def test_uniform_batches_have_each_example_once_an_epoch_and_resume_anywhere():
    texts = random_texts(60, 30)
    rows = encoded.encode_examples(
        Numbers(), [(texts, None)], np.arange(60, dtype=np.int32), 40, "uniform"
    )

    def labels(position, count):
        batches = encoded.training_batches(rows, batch_size=4, position=position, seed=3)
        return [batch["labels"].tolist() for batch in itertools.islice(batches, count)]

    found = labels(0, 30)
    assert labels(44, 19) == found[11:]
    epochs = [sum(found[:15], []), sum(found[15:], [])]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs) and epochs[0] != epochs[1]
    lengths = np.diff(rows.splits)
    spread = [np.ptp(lengths[batch]) for batch in found]
    assert np.mean(spread) < 4 < np.mean([np.ptp(lengths[i : i + 4]) for i in range(0, 60, 4)])
    shortest = [lengths[batch].min() for batch in found[:15]]
    assert shortest != sorted(shortest)  # the order of the batches is shuffled


@pytest.mark.parametrize("pooling, pooler_size", [("first", None), ("mean", 12)])
def test_logits_are_those_of_each_row_alone_whatever_is_padded(rows, pooling, pooler_size):
    """Against the head written out in NumPy, over the tokens of one row at a time; also with
    rubbish in a longer padding.
    """
    model = dataclasses.replace(MODEL, pooling=pooling, pooler_size=pooler_size)
    generator = np.random.default_rng(3)
    weights = {
        name: value * 20 if value.ndim == 2 else value
        for name, value in initialize(
            task_heads.specs("classifier", BertEncoder(model), 3), 0
        ).items()
    }
    weights |= {
        name: generator.standard_normal(weights[name].shape).astype(np.float32)
        for name in ("pooler/bias", "classifier/bias")
    }
    assert weights["pooler/kernel"].shape == (32, pooler_size or 32) and weights[
        "classifier/kernel"
    ].shape == (pooler_size or 32, 3)
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    expected = []
    for number in range(len(rows)):
        batch = encoded.make_batch(rows, np.array([number]))
        alone = {
            name: tf.constant(value[:, : batch["input_mask"].sum()])
            for name, value in batch.items()
            if value.ndim == 2
        }
        hidden = encode(tensors, alone, model)[0].numpy()
        pooled = hidden[0] if pooling == "first" else hidden.mean(0)
        sentence = np.tanh(pooled @ weights["pooler/kernel"] + weights["pooler/bias"])
        expected.append(sentence @ weights["classifier/kernel"] + weights["classifier/bias"])
    padded = encoded.make_batch(dataclasses.replace(rows, padding="fixed"), np.arange(len(rows)))
    rubbish = generator.integers(5, 40, padded["input_ids"].shape)
    padded["input_ids"] = np.where(padded["input_mask"] > 0, padded["input_ids"], rubbish).astype(
        np.int32
    )
    for batch in (encoded.make_batch(rows, np.arange(len(rows))), padded):
        batch = {name: tf.constant(value) for name, value in batch.items()}
        for run in (
            TASK.logits,
            tf.function(TASK.logits, jit_compile=True),
        ):
            np.testing.assert_allclose(
                run(tensors, batch, BertEncoder(model), tf.float32), expected, rtol=1e-4, atol=2e-5
            )
    assert padded["input_ids"].shape[1] == 40 and np.ptp(expected, axis=0).min() > 0.1


@functools.cache
def one_step(replicas, micro_batches, weights_of_rows):
    """(metrics, weights) after a step without dropout on the first 12 of `thirteen_rows`."""
    model = ModelConfig(
        **MODEL.to_dict() | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
    devices = set_up(DeviceConfig(virtual_replicas=replicas))
    state = random_state(devices, model=model)
    loss = objective.task_objective(BertEncoder(model), TASK)
    step = TrainStep(
        devices, state, loss, OptimizerConfig(), num_micro_batches=micro_batches, seed=1
    )
    weights_of_rows = np.array(weights_of_rows, np.float32)
    batch = encoded.make_batch(thirteen_rows(), np.arange(12), weights_of_rows)
    metrics = step([batch], [1e-3], 0).read()
    return {name: float(value[0]) for name, value in metrics.items()}, state.read_weights()


@pytest.mark.parametrize("division", [(1, 3), (2, 2)])
def test_a_step_is_the_same_however_its_batch_is_divided(division):
    weights_of_rows = (1, 1, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1)  # uneven shares
    whole, whole_weights = one_step(1, 1, weights_of_rows)
    parts, part_weights = one_step(*division, weights_of_rows)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-5)
    assert parts["gradient_norm"] == pytest.approx(whole["gradient_norm"], rel=1e-4)
    change = np.sqrt(
        sum(np.sum((part_weights[name] - whole_weights[name]) ** 2) for name in whole_weights)
    )
    assert change <= 1e-5 * np.sqrt(sum(np.sum(value**2) for value in whole_weights.values()))


def test_the_loss_is_the_cross_entropy_of_the_rows_that_count(rows):
    weights_of_rows = (1, 0) * 6
    metrics, _ = one_step(1, 1, weights_of_rows)
    devices = set_up(DeviceConfig())
    probabilities = prediction.Predictor(devices, random_state(devices), BertEncoder(MODEL), TASK)(
        rows, 13
    )[:12]
    losses = -np.log(probabilities[np.arange(12), rows.labels[:12]])
    assert (
        metrics["loss"]
        == metrics["classifier"]
        == pytest.approx(np.sum(losses * np.array(weights_of_rows)) / 6, rel=1e-5)
    )


def test_a_tiny_bert_learns_an_easy_task():
    """The label is whether word 5 is in the second text; random weights reach more than 95 % in a
    few seconds.
    """
    texts_a, texts_b = (
        random_texts(256, 6, words=(6, 40)),
        random_texts(256, 6, seed=1, words=(6, 40)),
    )
    labels = np.arange(256, dtype=np.int32) % 2
    texts_b = [
        text + " 5" if label else text + " 6" for text, label in zip(texts_b, labels, strict=True)
    ]
    rows = encoded.encode_examples(Numbers(), [(texts_a, texts_b)], labels, 24)
    devices = set_up(DeviceConfig())
    state = TrainState(
        devices.strategy,
        initialize(task_heads.specs("classifier", BertEncoder(MODEL), 2), 1),
        OptimizerConfig(),
        column_blocks={},
    )
    loss = objective.task_objective(BertEncoder(MODEL), TASK)
    step = TrainStep(devices, state, loss, OptimizerConfig(), num_micro_batches=1, seed=1)
    batches = encoded.training_batches(rows, batch_size=32, position=0, seed=1)
    for number, batch in enumerate(itertools.islice(batches, 80)):
        step([batch], [2e-3 * (1 - number / 80)], number)
    probabilities = prediction.Predictor(devices, state, BertEncoder(MODEL), TASK)(rows, 64)
    assert np.mean(np.argmax(probabilities, -1) == labels) > 0.95
