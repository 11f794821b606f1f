"""Texts longer than a row: the rows that are read of them, and their scores, losses and gradients,
which are those of texts, however rows are padded and divided.
"""

import dataclasses
import functools
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as some

from bert_gpu.base.console import Console
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune.config import FinetuneSettings
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.objective import task_objective
from bert_gpu.finetune.prediction import Predictor
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.interop import savedmodel
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.text.framing import frame
from bert_gpu.text.long_texts import LongTexts
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.train import run
from bert_gpu.train.auto_batch import try_size
from bert_gpu.train.batching import TrainingData, gather_windows, take_batches
from bert_gpu.train.config import BatchConfig
from bert_gpu.train.state import ModelState, TrainState
from bert_gpu.train.step import TrainStep
from tests import task_heads
from tests.finetune.evaluations import task_of
from tests.finetune.test_classifier import Numbers, google_row, random_texts
from tests.train.tiny import distance

LENGTH, NUM_TEXTS, GLOBAL_BATCH, NUM_STEPS = 12, 29, 8, 6
SEPARATOR = [Numbers.sep_id]
MODEL = ModelConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=64,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
WINDOWS = LongTexts("windows", max_windows=5)
TASK = dataclasses.replace(task_of(TASKS["pairs"]), labels=("x", "y", "z"), long_texts=WINDOWS)


def text_of(start, length):
    return " ".join(map(str, range(start, start + length)))


lengths = some.integers(0, 70)


@settings(max_examples=300)
@given(lengths, lengths, some.booleans(), some.integers(5, 24), some.none() | lengths)
@pytest.mark.parametrize("rule", ["windows", "head_tail"])
def test_rows_are_the_cut_row_with_other_parts_of_its_last_text(
    rule, a, b, has_pairs, size, stride
):
    """Each token of a text is another number."""
    most = 1 + (a + b) % 7
    rows = LongTexts(rule, stride or None, most)
    texts_a, texts_b = [text_of(100, 3), text_of(100, a)], ["900", text_of(300, b)]
    framed = frame(Numbers(), texts_a, texts_b if has_pairs else None, size, rows)
    first, *found = np.split(framed.ids, framed.splits[1:-1])
    assert framed.counts.tolist() == [1, len(found)]
    b = b * has_pairs
    ids, segments = google_row(range(100, 100 + a), range(300, 300 + b), size)
    begin, total = (len(ids) - sum(segments), b) if b else (1, a)
    room = len(ids) - begin - 1
    places = [row[begin:-1] - (300 if b else 100) for row in found]
    for row, part in zip(found, places, strict=True):
        assert [*row[:begin], *row[-1:]] == [*ids[:begin], *SEPARATOR] and len(part) == room
    assert framed.first_lengths[1:].tolist() == [len(ids) - sum(segments)] * len(found)
    read = {number for row, _ in zip(found, places, strict=True) for number in row[1:-1].tolist()}
    numbers = {*range(100, 100 + a), *range(300, 300 + b)}
    is_short = size < (3 + 1 + 3 if has_pairs else 3 + 2)  # for the first text or pair
    assert framed.num_truncated == is_short + bool(numbers - read)
    assert framed.num_long == int(total > room) + (is_short and not has_pairs)
    if rule == "head_tail":
        head = room // 4
        assert places[0].tolist() == [*range(head), *range(total - room + head, total)]
        return
    starts = [part[0] for part in places if room]
    assert all(part.tolist() == list(range(part[0], part[0] + room)) for part in places if room)
    gaps, step = np.diff(starts), min(room, stride or room)
    assert len(found) <= most and (not gaps.size or np.ptp(gaps) <= 1)
    if room and len(found) > 1:
        assert (starts[0], starts[-1]) == (0, total - room)
        assert max(gaps) <= step or len(found) == most  # all of it is read, unless that is too much
        assert (len(found) - 2) * step < total - room  # and by no more rows than needed
    else:
        assert starts in ([0], []) and (total == room or most == 1)


def texts(seed=0):
    """A fifth of these texts of numbers is longer than a row."""
    longest = [5 if row % 5 else 12 if row % 10 else 90 for row in range(NUM_TEXTS)]
    return [random_texts(1, length, seed + row)[0] for row, length in enumerate(longest)]


LABELS = np.arange(NUM_TEXTS, dtype=np.int32) % 3


def rows_of(padding, long_texts=WINDOWS, some_texts=None):
    lines = texts() if some_texts is None else some_texts
    chunks = [(lines[:10], None), (lines[10:], None)]
    return encoded.encode_examples(
        Numbers(), chunks, LABELS[: len(lines)], LENGTH, padding, long_texts=long_texts
    )


def first_weights():
    specs = task_heads.specs("classifier", BertEncoder(MODEL), 3)
    weights = initialize(specs, 0)
    return {name: value * 20 if value.ndim == 2 else value for name, value in weights.items()}


@functools.cache
def traced(replicas, micro_batches, xla, is_ramped):
    devices = set_up(DeviceConfig(virtual_replicas=replicas, xla=xla))
    state = TrainState(devices.strategy, first_weights(), OptimizerConfig(), column_blocks={})
    step = TrainStep(
        devices,
        state,
        task_objective(BertEncoder(MODEL), TASK),
        OptimizerConfig(),
        num_micro_batches=micro_batches,
        is_ramped=is_ramped,
        seed=1,
        length_axes=encoded.LENGTH_AXES,
    )
    return step, state


def train(
    padding,
    learning_rate=1e-3,
    replicas=1,
    micro_batches=1,
    steps_per_call=1,
    xla="off",
    ramp=False,
):
    """(the loss of each step, the last weights). ramp: whether steps take 1, 2, 2, ... units of
    data, each a micro-batch of every replica.
    """
    step, state = traced(replicas, micro_batches, xla, ramp)
    state.assign(TrainState(state.strategy, first_weights(), OptimizerConfig(), (), {}).read())
    size = GLOBAL_BATCH // replicas // micro_batches
    unit = size * replicas if ramp else GLOBAL_BATCH
    units = encoded.training_batches(rows_of(padding), batch_size=unit, position=0, seed=3)
    losses = []
    for first in range(0, NUM_STEPS, steps_per_call):
        counts = (
            [min(1 + first + i, micro_batches) for i in range(steps_per_call)] if ramp else None
        )
        batches = take_batches(units, steps_per_call, counts, encoded.LENGTH_AXES, size)
        metrics = step(batches, [learning_rate] * steps_per_call, first, counts).read()
        losses += metrics["loss"].tolist()
    return np.array(losses), state.read_weights()


@functools.cache
def plain_scores():
    """float64 (N, 3): the mean of the scores of each text's rows, each row encoded alone."""
    weights = first_weights()
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    scores = []
    for line in texts():
        framed = frame(Numbers(), [line], None, LENGTH, WINDOWS)
        of_rows = []
        for ids in np.split(framed.ids, framed.splits[1:-1]):
            row = dict(input_ids=ids[None], input_mask=np.ones((1, len(ids)), np.int32))
            row["segment_ids"] = np.zeros_like(row["input_mask"])
            row = {name: tf.constant(value) for name, value in row.items()}
            hidden = BertEncoder(MODEL).encode(tensors, row, dtype=tf.float32).numpy()[0, 0]
            vector = np.tanh(hidden.astype(np.float64) @ weights["pooler/kernel"])
            of_rows.append(vector @ weights["classifier/kernel"])
        scores.append(np.mean(of_rows, 0))
    return np.array(scores)


DIVIDED = dict(replicas=2, micro_batches=2, steps_per_call=3)


@pytest.mark.parametrize("padding", ["dynamic", "uniform"])
def test_the_loss_is_that_of_the_mean_of_the_scores(padding):
    units = encoded.training_batches(rows_of(padding), batch_size=GLOBAL_BATCH, position=0, seed=3)
    batches, shares = itertools.islice(units, NUM_STEPS), log_shares()
    expected = [-np.mean(shares[numbers_in(batch), batch["labels"]]) for batch in batches]
    losses, _ = train(padding, 0.0, **DIVIDED)
    np.testing.assert_allclose(losses, expected, rtol=2e-5)
    assert np.ptp(expected) > 0.1


def log_shares():
    """float64 (N, 3): the logarithms of the probabilities."""
    scores = plain_scores()
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def numbers_in(batch):
    """The numbers of a batch's texts; of equal texts, of one of them."""
    whole = encoded.make_batch(rows_of("dynamic"), np.arange(NUM_TEXTS))
    owners = {tuple(ids): number for number, ids in enumerate(ids_in(whole))}
    return [owners[tuple(ids)] for ids in ids_in(batch)]


def ids_in(batch):
    return [
        ids[mask > 0].tolist()
        for ids, mask in zip(batch["input_ids"], batch["input_mask"], strict=True)
    ]


@pytest.mark.parametrize("padding", ["dynamic", "uniform"])
def test_a_training_is_the_same_however_its_batches_are_divided(padding):
    losses, weights = train(padding)
    for division in (DIVIDED, dict(micro_batches=4)):
        trained = train(padding, **division)
        np.testing.assert_allclose(trained[0], losses, rtol=1e-4)
        assert distance(weights, trained[1]) < 1e-5


@pytest.mark.long
def test_other_paddings_and_a_growing_batch_change_nothing():
    """The growing batch has 4 texts in its first step, and 8 in later ones."""
    assert distance(train("dynamic")[1], train("fixed")[1]) < 1e-5
    ramped, whole = (train("dynamic", 0.0, micro_batches=2, ramp=ramp)[0] for ramp in (True, False))
    units = encoded.training_batches(rows_of("dynamic"), batch_size=4, position=0, seed=3)
    shares = log_shares()
    expected = [
        -np.mean(shares[numbers_in(unit), unit["labels"]]) for unit in itertools.islice(units, 5)
    ]
    np.testing.assert_allclose(ramped[0], expected[0], rtol=2e-5)
    later = [np.mean(expected[1:3]), np.mean(expected[3:])]
    np.testing.assert_allclose(ramped[1:3], later, rtol=2e-5)
    np.testing.assert_allclose(whole[0], np.mean(expected[:2]), rtol=2e-5)


@pytest.mark.long
def test_xla_changes_nothing():
    losses, _ = train("dynamic", **DIVIDED)
    np.testing.assert_allclose(train("dynamic", xla="on", **DIVIDED)[0], losses, rtol=1e-4)


def test_texts_that_fit_are_read_as_ever():
    short = [line for line in texts() if len(line.split()) <= LENGTH - 2]
    plain = encoded.make_batch(rows_of("dynamic", LongTexts(), short), np.arange(8))
    same = encoded.make_batch(rows_of("dynamic", WINDOWS, short), np.arange(8))
    assert plain.keys() == same.keys()
    assert all((plain[name] == same[name]).all() for name in plain)


@pytest.mark.parametrize(
    "long_texts, last, said",
    [
        (LongTexts(), 6, "; 6 cut to 12 tokens (--long_texts=windows reads more)"),
        (LongTexts(), 2, "; 2 cut to 12 tokens"),
        (LongTexts("head_tail"), 6, "; 6 read at both ends; 6 cut to 12 tokens"),
        (LongTexts("windows"), 6, "; 6 in 2 to 4 rows"),
        (LongTexts("windows", None, 3), 6, "; 6 in 2 to 3 rows; 6 cut to 12 tokens"),
    ],
)
def test_the_log_says_what_is_read(long_texts, last, said):
    class Texts(list):
        has_pairs = False

    lines = Texts([text_of(5, 10)] * (30 - last) + [text_of(5, 35)] * last)
    rows = rows_of("dynamic", long_texts, lines)
    task = dataclasses.replace(TASK, long_texts=long_texts)
    assert task.describe(lines, rows).partition("each")[2] == said


def test_few_empty_rows_and_few_shapes():
    """One text of 20,000 tokens among short ones."""
    lines = [*random_texts(31, 8), text_of(5, 5) + " 7" * 19995]
    shapes = set()
    for most in range(2, 60):
        rows = encoded.encode_examples(
            Numbers(), [(lines, None)], None, LENGTH, long_texts=LongTexts("windows", 4, most)
        )
        (batch,) = gather_windows([encoded.make_batch(rows, np.arange(24, 32))], 8)
        assert rows.lengths.argmax() == 31 and batch["num_windows"].tolist() == [1] * 7 + [most]
        assert batch["window_texts"].tolist() == [
            *range(7), *[7] * most, *[-1] * (len(batch["input_ids"]) - 7 - most)
        ]  # fmt: skip
        assert len(batch["input_ids"]) <= max(16, 1.5 * (7 + most))
        assert batch["input_mask"].any(1).all()
        shapes.add(len(batch["input_ids"]))
    assert shapes == {12, 16, 24, 32, 48, 64, 96}


def test_the_largest_batch_is_tried_with_all_windows(monkeypatch):
    """As --train_batch_size=auto does it."""
    tried = []
    monkeypatch.setattr(run, "find_micro_batch", lambda _, rows, *more: tried.append(rows) or 8)
    monkeypatch.setattr(run, "plan_training", lambda *_: types.SimpleNamespace(is_ramped=False))
    rows = rows_of("dynamic")
    data = TrainingData(
        open_batches=functools.partial(encoded.training_batches, rows, seed=1),
        num_records=NUM_TEXTS,
        max_seq_length=LENGTH,
        length_axes=encoded.LENGTH_AXES,
        rows_per_example=rows.rows_per_example,
    )
    settings = FinetuneSettings(batch=BatchConfig(train_batch_size="auto"))
    of_run = types.SimpleNamespace(settings=settings, run_json=None, console=Console(quiet=True))
    run.plan_run(of_run, data, types.SimpleNamespace(num_replicas=1), None)
    assert tried[0]["num_windows"].tolist() == [5] * 8
    assert tried[0]["input_ids"].shape == (8, 5, LENGTH)
    accounts, steps = tf.config.experimental, []
    monkeypatch.setattr(accounts, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(accounts, "get_memory_info", lambda device: dict(peak=0))

    def step(batches, learning_rates, first):
        steps.extend(batches)
        return types.SimpleNamespace(read=lambda: None)

    step.devices = types.SimpleNamespace(num_replicas=2, replica_bytes=None)
    step.num_micro_batches = 2
    try_size(lambda: step, tried[0], print, 3)
    assert steps[0]["input_ids"].shape == (4 * 3 * 5, LENGTH)
    assert steps[0]["window_texts"].tolist() == [*[0] * 5, *[1] * 5, *[2] * 5] * 4


@pytest.mark.parametrize("kind", ["regression", "multilabel"])
def test_other_tasks_take_the_same_scores(kind):
    """Their losses of the mean scores, from the functions of the cut rows."""
    spec = dataclasses.replace(TASKS["pairs"], kind=kind)
    task = dataclasses.replace(task_of(spec), labels=("x", "y", "z"), long_texts=WINDOWS)
    (batch,) = gather_windows(
        [encoded.make_batch(rows_of("dynamic"), np.arange(NUM_TEXTS))], NUM_TEXTS
    )
    weights = {name: tf.constant(value) for name, value in first_weights().items()}
    features = {name: tf.constant(value) for name, value in batch.items()}
    logits = task.logits(weights, features, BertEncoder(MODEL), tf.float32)
    np.testing.assert_allclose(logits, plain_scores(), rtol=1e-4, atol=1e-5)
    targets = np.eye(3, dtype=np.float32)[LABELS] if kind == "multilabel" else LABELS.astype("f")
    expected = task.losses(tf.constant(plain_scores(), tf.float32), targets)
    np.testing.assert_allclose(task.losses(logits, targets), expected, rtol=1e-3, atol=1e-5)


def test_outputs_are_those_of_each_text_alone():
    devices = set_up(DeviceConfig(virtual_replicas=2))
    state = ModelState(devices.strategy, first_weights())
    predict = Predictor(devices, state, BertEncoder(MODEL), TASK)
    expected = np.exp(plain_scores())
    expected /= expected.sum(-1, keepdims=True)
    for padding, batch_size in itertools.product(("fixed", "dynamic"), (4, 64)):
        np.testing.assert_allclose(predict(rows_of(padding), batch_size), expected, rtol=2e-5)


@pytest.mark.parametrize(
    "rule", [LongTexts("windows", 4, 3), LongTexts("head_tail")], ids=lambda rule: rule.rule
)
def test_a_savedmodel_of_strings_gives_the_same(rule, tmp_path):
    words = [f"w{number}" for number in range(35)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    tokenizer = WordPieceTokenizer(str(tmp_path / "vocab.txt"))
    notes = Notes([], [], "BertForSequenceClassification", TASK.labels, max_seq_length=LENGTH)
    model = Model(MODEL, first_weights(), notes._replace(long_texts=rule), tokenizer)
    signatures = savedmodel.Served(model).signatures()
    devices = set_up(DeviceConfig())
    state = ModelState(devices.strategy, first_weights())
    predict = Predictor(devices, state, BertEncoder(MODEL), TASK)
    firsts, seconds = (
        [" ".join(f"w{int(x) - 5}" for x in line.split()) for line in texts(seed)]
        for seed in (0, 10)
    )
    seconds = [seconds[7 * row % NUM_TEXTS] for row in range(NUM_TEXTS)]  # "" among them
    for name, asked in dict(
        classify=dict(text=firsts), classify_pairs=dict(text_a=firsts, text_b=seconds)
    ).items():
        chunk = (firsts, seconds if len(asked) > 1 else None)
        rows = encoded.encode_examples(tokenizer, [chunk], None, LENGTH, long_texts=rule)
        found = signatures[name](**{key: tf.constant(value) for key, value in asked.items()})
        np.testing.assert_allclose(found["probabilities"], predict(rows, 32), rtol=1e-5)
        none = signatures[name](**{key: tf.zeros([0], tf.string) for key in asked})
        assert none["probabilities"].shape == (0, 3)
