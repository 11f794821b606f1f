"""A task with three texts per example, written here alone: anchor, positive, negative, through the
encoder to vectors of which the first two shall be closer than the first and the third. Its loss
does not depend on padding, accumulation, replicas or calls of several steps.

Legend: N examples, B batch, S sequence, H width of a vector.
"""

import functools
import io
import itertools
import json
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.console import Console
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings, StartConfig
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.files.examples import Examples
from bert_gpu.finetune.objective import TaskObjective
from bert_gpu.finetune.prediction import Predictor
from bert_gpu.finetune.run import finetune
from bert_gpu.finetune.tasks import table
from bert_gpu.finetune.tasks.interface import TaskType
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.heads import sentence_positions, sentence_vector
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.auto_batch import try_size
from bert_gpu.train.batching import pad_rows, take_batches
from bert_gpu.train.config import BatchConfig, CadenceConfig
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep
from tests import task_heads
from tests.finetune.test_classifier import Numbers, random_texts
from tests.train.tiny import distance

PADDINGS, COLUMNS = ("fixed", "dynamic", "uniform"), ("anchor", "positive", "negative")
MARGIN, NUM_EXAMPLES, GLOBAL_BATCH, LENGTH, NUM_STEPS = 0.5, 37, 8, 24, 6
MODEL = ModelConfig(
    vocab_size=40,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)


# The task: its scores, its loss, its files.


class TripletExamples(Examples):
    rows_per_example = 3

    def __init__(self, task, source):
        super().__init__(task, source, needs_label=False)
        self.has_labels = True

    def texts(self):
        """The texts of each chunk, those of an example after each other."""
        columns = [self.header.index(name) for name in COLUMNS]
        for chunk in self.chunks():
            yield [cells[column] for cells in chunk.cells for column in columns], None


class Triplets(TaskType):
    """The loss is that of FaceNet (Schroff et al. 2015, equation 3), on squared distances."""

    head, architecture = "classifier", "BertForSequenceClassification"
    config_name, target, has_classes = "regression", "row_weights", False
    metrics = ("accuracy", "loss")

    def read(self, source, needs_label):
        return TripletExamples(self.spec, source)

    def find_labels(self, examples):
        return ("score",)

    def encode(self, examples, form):
        return encoded.encode_examples(
            form.tokenizer,
            examples.texts(),
            None,
            form.max_seq_length,
            form.padding,
            folder=form.folder,
            rows_per_example=examples.rows_per_example,
        )

    def describe(self, examples, rows):
        return f"{len(rows)} triplets"

    def logits(self, weights, batch, encoder, dtype, seed=None):
        """(B, 3, H): the sentence vectors of the texts of each example."""
        config, names = encoder.config, ("input_ids", "input_mask", "segment_ids")
        rows = {name: tf.reshape(batch[name], [-1, tf.shape(batch[name])[-1]]) for name in names}
        positions = sentence_positions(rows, config)
        hidden = encoder.encode(weights, rows, dtype=dtype, seed=seed, positions=positions)
        vectors = sentence_vector(weights, hidden, rows["input_mask"], config)
        return tf.reshape(vectors, [-1, 3, vectors.shape[-1]])

    def losses(self, logits, targets):
        """(B, 3, H) -> float32 (B,)."""
        anchor, positive, negative = tf.unstack(tf.cast(logits, tf.float32), axis=1)
        near = tf.reduce_sum(tf.square(anchor - positive), -1)
        far = tf.reduce_sum(tf.square(anchor - negative), -1)
        return tf.nn.relu(near - far + MARGIN)

    def row_outputs(self, logits, batch):
        return list(logits)

    def join_rows(self, rows):
        return np.stack(rows).astype(np.float64)

    def judge(self, evaluated):
        anchor, positive, negative = np.moveaxis(evaluated.outputs, 1, 0)
        near, far = (np.sum((anchor - other) ** 2, -1) for other in (positive, negative))
        losses = np.maximum(near - far + MARGIN, 0)
        return dict(accuracy=float(np.mean(near < far)), loss=float(losses.mean()))

    def write(self, output_dir, evaluated):
        raise NotImplementedError("the tests predict nothing")


SPEC = table.TaskSpec(name="triplets", kind="triplets", text_a=COLUMNS[0], text_b=None)
TASK = Triplets(spec=SPEC)


# Its laws.


def triplets(count=NUM_EXAMPLES):
    """Texts of numbers, of which most are short, so that batches differ in their longest row: one
    list for each column.
    """
    longest = [5 if row % 7 else 12 if row % 14 else LENGTH for row in range(count)]
    return [
        [random_texts(1, length, seed=3 * row + column)[0] for row, length in enumerate(longest)]
        for column in range(3)
    ]


@functools.cache
def encoded_triplets(padding):
    texts = list(itertools.chain(*zip(*triplets(), strict=True)))
    return encoded.encode_examples(
        Numbers(), [(texts[:30], None), (texts[30:], None)], None, LENGTH, padding,
        rows_per_example=3,
    )  # fmt: skip


def rows_of_texts():
    """The ids of the three rows of each example, one tuple each, by a plain reading."""
    return [
        tuple((2, *map(int, text.split()[: LENGTH - 2]), 3) for text in texts)
        for texts in zip(*triplets(), strict=True)
    ]


def rows_in(batch):
    """The ids of the three rows of each example in a batch."""
    return [
        tuple(tuple(ids[mask > 0].tolist()) for ids, mask in zip(rows, masks, strict=True))
        for rows, masks in zip(batch["input_ids"], batch["input_mask"], strict=True)
    ]


@pytest.mark.parametrize("padding", PADDINGS)
def test_batches_hold_the_three_texts_of_each_example_once_an_epoch(padding):
    rows, expected = encoded_triplets(padding), rows_of_texts()
    assert len(rows) == NUM_EXAMPLES
    batches = encoded.training_batches(rows, batch_size=GLOBAL_BATCH, position=0, seed=3)
    epoch = list(itertools.islice(batches, NUM_EXAMPLES))  # 8 epochs
    found = [example for batch in epoch for example in rows_in(batch)]
    for start in range(0, len(found), NUM_EXAMPLES):
        assert sorted(found[start : start + NUM_EXAMPLES]) == sorted(expected)
    for batch in epoch:
        longest = int(batch["input_mask"].sum(-1).max())
        length = LENGTH if padding == "fixed" else -(-longest // 8) * 8
        for name in ("input_ids", "input_mask", "segment_ids"):
            assert batch[name].shape == (GLOBAL_BATCH, 3, length) and batch[name].dtype == np.int32
        assert batch["row_weights"].shape == (GLOBAL_BATCH,)
    order = encoded.evaluation_order(rows)
    evaluated = encoded.evaluation_batches(rows, batch_size=GLOBAL_BATCH)
    real = [row for batch in evaluated for row in rows_in(batch)][:NUM_EXAMPLES]
    assert real == [expected[place] for place in order]


def first_weights():
    """Weights large enough that the distances of the triplets differ."""
    weights = initialize(task_heads.specs("classifier", BertEncoder(MODEL)), 0)
    return {name: value * 20 if value.ndim == 2 else value for name, value in weights.items()}


@functools.cache
def traced(replicas, micro_batches, xla):
    """(TrainStep, its TrainState, the lengths of the rows that it was traced with)."""
    devices = set_up(DeviceConfig(virtual_replicas=replicas, xla=xla))
    state = TrainState(devices.strategy, first_weights(), OptimizerConfig(), column_blocks={})
    lengths = []

    class Watched(TaskObjective):
        def sums(self, weights, batch, dtype, seed):
            lengths.append(batch["input_ids"].shape[-1])
            return super().sums(weights, batch, dtype, seed)

    step = TrainStep(
        devices,
        state,
        Watched(BertEncoder(MODEL), TASK),
        OptimizerConfig(),
        num_micro_batches=micro_batches,
        seed=1,
        length_axes=encoded.LENGTH_AXES,
    )
    return step, state, lengths


def batches_of(padding):
    return encoded.training_batches(
        encoded_triplets(padding), batch_size=GLOBAL_BATCH, position=0, seed=3
    )


def train(padding, learning_rate=1e-3, replicas=1, micro_batches=1, steps_per_call=1, xla="off"):
    """(the loss of each of 6 steps, the last weights) of a training as the loop runs it."""
    step, state, _ = traced(replicas, micro_batches, xla)
    state.assign(TrainState(state.strategy, first_weights(), OptimizerConfig(), (), {}).read())
    units, losses = batches_of(padding), []
    for first in range(0, NUM_STEPS, steps_per_call):
        batches = take_batches(units, steps_per_call, None, encoded.LENGTH_AXES, GLOBAL_BATCH)
        metrics = step(batches, [learning_rate] * steps_per_call, first).read()
        losses += metrics["loss"].tolist()
    return np.array(losses), state.read_weights()


@functools.cache
def plain_vectors():
    """{ids of a text: its vector (H,) at the first weights}, each text encoded alone."""
    encode, weights, vectors = BertEncoder(MODEL).encode, first_weights(), {}
    tensors = {name: tf.constant(value) for name, value in weights.items()}
    for ids in itertools.chain(*rows_of_texts()):
        alone = dict(input_ids=[ids], input_mask=[[1] * len(ids)], segment_ids=[[0] * len(ids)])
        alone = {name: tf.constant(value, tf.int32) for name, value in alone.items()}
        hidden = encode(tensors, alone, dtype=tf.float32).numpy()[0, 0].astype(np.float64)
        vectors[ids] = np.tanh(hidden @ weights["pooler/kernel"] + weights["pooler/bias"])
    return vectors


def plain_loss(example):
    """The loss of the ids of three texts at the first weights."""
    anchor, positive, negative = map(plain_vectors().get, example)
    near, far = np.sum((anchor - positive) ** 2), np.sum((anchor - negative) ** 2)
    return max(0.0, near - far + MARGIN)


DIVIDED = dict(replicas=2, micro_batches=2, steps_per_call=3)


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_loss_is_that_of_each_text_alone(padding):
    batches = list(itertools.islice(batches_of(padding), NUM_STEPS))
    expected = [np.mean([plain_loss(example) for example in rows_in(one)]) for one in batches]
    losses, _ = train(padding, 0.0, **DIVIDED)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    lengths = {batch["input_ids"].shape[-1] for batch in batches}
    assert np.ptp(expected) > 0.1 and len(lengths) > (padding != "fixed")


def check_equal(trained, expected):
    np.testing.assert_allclose(trained[0], expected[0], rtol=1e-4)
    assert distance(expected[1], trained[1]) < 1e-5


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_training_is_the_same_however_its_batches_are_divided(padding):
    check_equal(train(padding, **DIVIDED), train(padding))


@pytest.mark.long
@pytest.mark.parametrize(
    "division",
    [dict(micro_batches=4), dict(replicas=2, steps_per_call=2), DIVIDED | dict(xla="on")],
    ids=str,
)
def test_other_divisions_change_nothing(division):
    check_equal(train("dynamic", **division), train("dynamic"))


def test_a_training_is_the_same_however_its_rows_are_padded():
    fixed = train("fixed")
    check_equal(train("dynamic"), fixed)
    assert not np.allclose(train("uniform")[0], fixed[0])  # of another order


def test_one_program_serves_all_lengths():
    """Without XLA; whose lengths differ, as the first test says."""
    train("uniform")
    assert set(traced(1, 1, "off")[2]) == {None}


def test_a_trial_of_a_micro_batch_repeats_examples_of_full_length(monkeypatch):
    """As --train_batch_size=auto makes it: 2 replicas x 2 micro-batches x 5."""
    batch, steps = encoded.make_batch(encoded_triplets("dynamic"), np.arange(1, 4)), []
    accounts = tf.config.experimental
    monkeypatch.setattr(accounts, "reset_memory_stats", lambda device: None)
    monkeypatch.setattr(accounts, "get_memory_info", lambda device: dict(peak=0))

    def step(batches, learning_rates, first):
        steps.extend(batches)
        return types.SimpleNamespace(read=lambda: None)

    step.devices = types.SimpleNamespace(num_replicas=2, replica_bytes=None)
    step.num_micro_batches = 2
    rows = pad_rows(batch, LENGTH, encoded.LENGTH_AXES)
    try_size(lambda: step, rows, print, 5)
    assert batch["input_ids"].shape == (3, 3, 8) and rows["input_ids"].shape == (3, 3, LENGTH)
    assert rows_in(steps[0]) == [rows_in(batch)[index % 3] for index in range(20)]
    assert steps[0]["input_ids"].dtype == np.int32 and steps[0]["row_weights"].shape == (20,)


def test_outputs_are_those_of_each_text_alone():
    devices = set_up(DeviceConfig(virtual_replicas=2))
    state = TrainState(devices.strategy, first_weights())
    predict = Predictor(devices, state, BertEncoder(MODEL), TASK)
    expected = [[plain_vectors()[ids] for ids in example] for example in rows_of_texts()]
    for padding, batch_size in itertools.product(PADDINGS, (4, 64)):
        outputs = predict(encoded_triplets(padding), batch_size)
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)


@pytest.fixture
def task(tmp_path, monkeypatch):
    """The folder of the task's files, of its vocabulary and its model's shape. The task is a row of
    the table of tasks, and one of their types.
    """
    monkeypatch.setitem(table.TASKS, SPEC.name, SPEC)
    monkeypatch.setitem(table.KINDS, SPEC.kind, table.Kind("triplets.Triplets"))
    monkeypatch.setitem(sys.modules, "bert_gpu.finetune.tasks.triplets", sys.modules[__name__])
    words = [f"w{index}" for index in range(5, 40)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "model.json").write_text(json.dumps(MODEL.to_dict()))
    for split, count in (("train", 29), ("dev", 11)):
        rows = zip(*triplets(count), strict=True)
        named = [[" ".join(f"w{word}" for word in text.split()) for text in row] for row in rows]
        lines = ["\t".join(row) for row in [COLUMNS, *named]]
        (tmp_path / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def fine_tuned(folder, name, *, replicas=1, micro_batches=1, padding="dynamic", **more):
    """(Result, lines of metrics.jsonl with a loss, what was said)."""
    stream = io.StringIO()
    settings = FinetuneSettings(
        run=FinetuneConfig(
            task_name="triplets",
            data_dir=str(folder),
            output_dir=str(folder / name),
            max_seq_length=LENGTH,
            padding=padding,
        ),
        start=StartConfig(
            init_checkpoint="none",
            bert_config_file=str(folder / "model.json"),
            vocab_file=str(folder / "vocab.txt"),
        ),
        devices=DeviceConfig(num_gpus=0, virtual_replicas=replicas),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        batch=BatchConfig(
            train_batch_size=GLOBAL_BATCH // replicas // micro_batches,
            gradient_accumulation_steps=micro_batches,
            lr_scaling="none",
        ),
        cadence=CadenceConfig(num_train_steps=6, log_steps=2, **more),
    )
    result = finetune(settings, Console(stream=stream))
    text = (folder / name / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    return result, [line for line in lines if "loss" in line], stream.getvalue()


def test_it_trains_from_its_files_to_its_metrics(task):
    result, lines, text = fine_tuned(task, "run", micro_batches=2, steps_per_loop=2)
    assert "global batch 8 examples of up to 3 sequences" in text and "up to 576 a step" in text
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert result.outcome.progress.records == 6 * GLOBAL_BATCH
    assert set(result.metrics["dev"]) == {"accuracy", "loss"}
    for line in lines[1:]:
        rates = [line[f"{name}_per_second"] for name in ("sequences", "padded_tokens", "steps")]
        assert rates[0] / rates[2] == pytest.approx(3 * GLOBAL_BATCH)
        assert 8 <= round(rates[1] / rates[0], 6) <= LENGTH
        assert line["global_batch_size"] == GLOBAL_BATCH


@pytest.mark.long
def test_its_runs_are_the_same_however_divided_and_padded(task):
    (plain, plain_lines, _), (divided, lines, _) = (
        fine_tuned(task, "plain", padding="fixed"),
        fine_tuned(task, "divided", replicas=2, micro_batches=2, steps_per_loop=2),
    )
    for one, other in zip(plain_lines, lines, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert divided.metrics["dev"] == pytest.approx(plain.metrics["dev"], rel=1e-3)
