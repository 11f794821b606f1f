"""Tags stand at first pieces and every word counts once, however long its sentence and however
rows are padded; entities are counted as seqeval counts them; a tiny BERT learns a rule.
"""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from bert_gpu.base.errors import UserError
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune import objective, prediction
from bert_gpu.finetune.config import FinetuneConfig
from bert_gpu.finetune.files import conll, encoded
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.batching import take_batches
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep
from tests import task_heads
from tests.finetune import evaluations
from tests.finetune.evaluations import configured, evaluated, form_of, task_of

CLS, SEP, UNK = 2, 3, 1
MODEL = ModelConfig(
    vocab_size=40,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
)
LABELS = ("B-X", "I-X", "O")
TASK = task_of(TASKS["ner"], LABELS)


class Numbers:
    """A tokenizer of words that are numbers: "7-8" has two pieces, "-" has none."""

    cls_id, sep_id, unk_id = CLS, SEP, UNK

    word_prefix = ""
    separators = 1
    strip_accents = True

    def tokenize(self, words):
        rows = [[int(piece) for piece in word.split("-") if piece] for word in words]
        return np.array(list(itertools.chain(*rows)), np.int32), np.cumsum([0, *map(len, rows)])


def examples_of(folder, sentences):
    """The examples of [(words, tags)]."""
    lines = [json.dumps(dict(words=words, tags=tags)) for words, tags in sentences]
    (folder / "train.jsonl").write_text("\n".join(lines))
    config = FinetuneConfig(data_dir=str(folder), task_name="ner")
    return evaluations.read(config, "train")[0]


def rows_for(found, max_seq_length=40, doc_stride=None):
    task = dataclasses.replace(TASK, doc_stride=doc_stride)
    return task.encode(found, form_of(Numbers(), max_seq_length))


def random_sentences(count, longest, seed=0):
    """Words of 0 to 3 pieces."""
    generator = np.random.default_rng(seed)
    found = []
    for length in generator.integers(1, longest + 1, count):
        words = [
            "-".join(map(str, generator.integers(5, 40, generator.integers(0, 4)))) or "-"
            for _ in range(length)
        ]
        found.append((words, [str(tag) for tag in generator.choice(LABELS, length)]))
    return found


def test_rows_are_framed_words_with_tags_at_first_pieces(tmp_path):
    rows = rows_for(
        examples_of(
            tmp_path,
            [(["5", "6-7-8", "-"], ["O", "B-X", "I-X"]), (["9"], ["O"]), (["5-6"], ["B-X"])],
        )
    )
    batch = encoded.make_batch(rows, np.arange(3))
    assert batch["input_ids"].tolist() == [
        [CLS, 5, 6, 7, 8, UNK, SEP, 0],
        [CLS, 9, SEP, 0, 0, 0, 0, 0],
        [CLS, 5, 6, SEP, 0, 0, 0, 0],
    ]
    assert batch["token_labels"].tolist() == [
        [-1, 2, 0, -1, -1, 1, -1, -1],
        [-1, 2, -1, -1, -1, -1, -1, -1],
        [-1, 0, -1, -1, -1, -1, -1, -1],
    ]
    assert not batch["segment_ids"].any() and batch["token_labels"].dtype == np.int32


@pytest.mark.parametrize("max_seq_length, doc_stride", [(8, None), (8, 1), (11, 4), (16, 16)])
def test_every_word_counts_once_and_in_order(tmp_path, max_seq_length, doc_stride):
    sentences = random_sentences(20, 30)
    rows = rows_for(examples_of(tmp_path, sentences), max_seq_length, doc_stride)
    assert len(rows) > 20 and np.diff(rows.splits).max() <= max_seq_length
    counted = rows.token_labels >= 0
    tags = [LABELS.index(tag) for _, sentence in sentences for tag in sentence]
    assert rows.token_labels[counted].tolist() == tags
    firsts = [int(w.split("-")[0] or UNK) for words, _ in sentences for w in words]
    assert rows.ids[counted].tolist() == firsts
    assert rows.origin.tolist() == [len(words) for words, _ in sentences]


@pytest.mark.parametrize("chunk_rows", [2, 3])
def test_chunks_of_sentences_give_the_rows_of_one_chunk(tmp_path, monkeypatch, chunk_rows):
    found = examples_of(tmp_path, random_sentences(11, 20, seed=5))
    whole = rows_for(found, 12)
    monkeypatch.setattr(conll, "CHUNK_ROWS", chunk_rows)
    assert [len(chunk) for chunk in found.chunks()][:-1] == [chunk_rows] * (10 // chunk_rows)
    rows = rows_for(found, 12)
    for name in ("ids", "splits", "token_labels", "origin"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(whole, name))


def test_a_sentence_of_a_whole_book_takes_no_square_of_memory(tmp_path):
    words = ["5-6"] * 40_000
    rows = rows_for(examples_of(tmp_path, [(words, ["O", "B-X"] * 20_000)]))
    assert np.sum(rows.token_labels >= 0) == 40_000


def random_state(devices, num_tags=3, scale=20, model=MODEL):
    weights = initialize(task_heads.specs("token_classifier", BertEncoder(model), num_tags), 0)
    return TrainState(
        devices.strategy,
        {name: value * scale if value.ndim == 2 else value for name, value in weights.items()},
        OptimizerConfig(),
        column_blocks={},
    )


def padded(rows, padding):
    return dataclasses.replace(rows, padding=padding)


def test_losses_and_counts_are_those_of_the_words_however_rows_are_padded(tmp_path):
    rows = rows_for(examples_of(tmp_path, random_sentences(8, 12)), 24)
    weights = initialize(task_heads.specs("token_classifier", BertEncoder(MODEL), 3), 0)
    weights = {
        name: tf.constant(value * (20 if value.ndim == 2 else 1)) for name, value in weights.items()
    }
    found = {}
    for padding in ("dynamic", "fixed"):
        batch = encoded.make_batch(padded(rows, padding), np.arange(8))
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        logits = TASK.logits(weights, tensors, BertEncoder(MODEL), tf.float32)
        labels = tensors["token_labels"]
        found[padding] = TASK.losses(logits, labels).numpy(), TASK.weights(labels).numpy()
        probabilities = tf.nn.softmax(logits).numpy()
        is_word = batch["token_labels"] >= 0
        indices = np.maximum(batch["token_labels"], 0)
        chosen = np.take_along_axis(probabilities, indices[..., None], -1)
        expected = np.sum(np.where(is_word, -np.log(chosen[..., 0]), 0), -1)
        np.testing.assert_allclose(found[padding][0], expected, rtol=1e-4)
        assert found[padding][1].tolist() == is_word.sum(-1).tolist()
    np.testing.assert_allclose(found["fixed"], found["dynamic"], rtol=1e-5)


@pytest.mark.parametrize("counts", [[1, 1], [2, 2]])
def test_batches_of_a_call_have_no_more_words_than_their_rows(tmp_path, counts):
    """Those of several steps a call, or of several units a step, are padded to one length."""
    rows, size = rows_for(examples_of(tmp_path, random_sentences(8, 12)), 24), 2
    batches = [encoded.make_batch(rows, np.arange(first, first + size)) for first in (0, 2, 4, 6)]
    lengths = {batch["input_ids"].shape[1] for batch in batches}
    joined = take_batches(iter(batches), 2, counts, encoded.LENGTH_AXES, 2)
    assert len(lengths) > 1 and {batch["input_ids"].shape[1] for batch in joined} == {max(lengths)}
    words = [(batch["token_labels"] >= 0).sum() for batch in batches[: sum(counts)]]
    assert sum((batch["token_labels"] >= 0).sum() for batch in joined) == sum(words)


@pytest.mark.parametrize(
    "runs",
    [
        [(1, 32, "dynamic"), (1, 4, "uniform")],
        pytest.param(
            [(1, 4, "dynamic"), (1, 5, "fixed"), (2, 4, "uniform")], marks=pytest.mark.long
        ),
    ],
)
def test_probabilities_do_not_depend_on_batches_padding_or_replicas(tmp_path, runs):
    found = examples_of(tmp_path, random_sentences(13, 12))
    rows, results = rows_for(found, 24), []
    for replicas, batch_size, padding in runs:
        devices = set_up(DeviceConfig(virtual_replicas=replicas))
        predict = prediction.Predictor(devices, random_state(devices), BertEncoder(MODEL), TASK)
        results.append(predict(padded(rows, padding), batch_size))
    assert results[0].shape == (found.num_words, 3) and results[0].dtype == np.float64
    np.testing.assert_allclose(results[0].sum(-1), 1, rtol=1e-12)
    assert np.ptp(results[0], axis=0).min() > 0.05
    for result in results[1:]:
        np.testing.assert_allclose(result, results[0], rtol=1e-4, atol=1e-7)


@pytest.mark.long
def test_a_step_is_the_mean_over_all_words_however_it_is_divided(tmp_path):
    """Rows have different numbers of words, so a mean of means would differ."""
    model = dataclasses.replace(MODEL, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    rows = rows_for(examples_of(tmp_path, random_sentences(8, 12)), 24)
    batch = encoded.make_batch(rows, np.arange(8), np.array([1, 1, 0, 1, 1, 1, 0, 1], np.float32))
    found = []
    for replicas, micro_batches in [(1, 1), (2, 2)]:
        devices = set_up(DeviceConfig(virtual_replicas=replicas))
        state = random_state(devices, model=model)
        loss = objective.task_objective(BertEncoder(model), TASK)
        step = TrainStep(
            devices, state, loss, OptimizerConfig(), num_micro_batches=micro_batches, seed=1
        )
        if not found:
            outputs = prediction.Predictor(devices, state, BertEncoder(model), TASK)(rows, 8)
        found.append(step([batch], [1e-3], 0).read()["loss"][0])
    is_word = batch["token_labels"] >= 0
    counts = np.repeat(batch["row_weights"], is_word.sum(-1)) > 0
    losses = -np.log(outputs[np.arange(len(outputs)), batch["token_labels"][is_word]])
    np.testing.assert_allclose(found, np.mean(losses[counts]), rtol=1e-5)


def judged(truth, predicted, labels, more=()):
    """The metrics of tags, as lists of lists of names. more: tags that no model predicts."""

    class Rows:
        token_labels = np.array(
            [-1, *((*labels, *more).index(tag) for one in truth for tag in one), -1]
        )
        origin = np.array([len(one) for one in truth])

    outputs = np.eye(len(labels))[[labels.index(tag) for one in predicted for tag in one]]
    examples = SimpleNamespace(label_names=(*more, *labels))
    task = task_of(TASKS["ner"], labels)
    found = task.judge(evaluated(rows=Rows, outputs=outputs, examples=examples))
    assert tuple(found) == task.metric_names
    return found


@pytest.mark.parametrize(
    "labels",
    [
        ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"),
        ("B-LOC", "E-LOC", "I-LOC", "S-LOC", "S-PER", "B-PER", "O"),
        ("I-LOC", "I-PER", "O"),
        ("B", "I", "O"),
        ("B", "E", "I", "O", "S"),
    ],
)
def test_entities_are_counted_as_seqeval_counts_them(labels):
    generator = np.random.default_rng(1)
    for _ in range(20):
        lengths = generator.integers(1, 9, 12)
        truth, noise = ([generator.choice(labels, n).tolist() for n in lengths] for _ in "ab")
        predicted = [
            [a if generator.random() < 0.7 else b for a, b in zip(*pair, strict=True)]
            for pair in zip(truth, noise, strict=True)
        ]
        found = judged(truth, predicted, labels)
        for name in ("precision", "recall", "f1"):
            theirs = getattr(seqeval.metrics, f"{name}_score")(truth, predicted)
            assert found[name] == pytest.approx(theirs, abs=1e-12)
        assert found["accuracy"] == pytest.approx(seqeval.metrics.accuracy_score(truth, predicted))


@pytest.mark.parametrize("types", [("-LOC", "-PER"), ("",)])
def test_entities_of_bilou_are_counted_as_seqeval_counts_them(types):
    labels = ("O", *(letter + name for letter in "BILU" for name in types))
    generator = np.random.default_rng(2)

    def sentence(length):
        """Tags of entities of 1 to 3 words, and of words between them."""
        tags = []
        while len(tags) < length:
            room, name = length - len(tags), generator.choice(types)
            letters = generator.choice([one for one in ("O", "U", "BL", "BIL") if len(one) <= room])
            tags += [letter if letter == "O" else letter + name for letter in letters]
        return tags

    lengths = generator.integers(2, 12, 40).tolist()
    truth, noise = ([sentence(length) for length in lengths] for _ in "ab")
    predicted = truth[:20] + noise[20:]
    found = judged(truth, predicted, labels)
    strict = dict(mode="strict", scheme=seqeval.scheme.BILOU)
    assert 0.3 < found["f1"] < 1
    for name in ("precision", "recall", "f1"):
        theirs = getattr(seqeval.metrics, f"{name}_score")(truth, predicted, **strict)
        assert found[name] == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize(
    "name, text",
    [
        ("test.txt", "10\u00a0000 O\n\u3000 B-X\n\n\x85 X\n"),
        ("test.txt", "a  O\nNew York\tO\n\tO\nb\tO\n"),
        ("test.tsv", "New  York\tO\n\tO\n\n\u2028\tO\n"),
        ("test.jsonl", json.dumps(dict(words=["a\u00a0b", "c d", "", "\u3000"], tags=["O"] * 4))),
    ],
)
def test_predictions_read_back_as_the_words_of_the_file(tmp_path, name, text):
    def read(folder):
        config = FinetuneConfig(data_dir=str(folder), task_name="ner")
        return evaluations.read(config, "predict", LABELS)[0]

    (tmp_path / name).write_text(text)
    examples = read(tmp_path)
    outputs = np.eye(3)[np.arange(examples.num_words) % 3]
    out = tmp_path / "out"
    TASK.write(str(out), evaluated(examples=examples, outputs=outputs))
    table = (out / "test_results.tsv").read_bytes().decode().split("\n")[1:-1]
    (out / "predictions.conll").rename(out / "test.txt")
    sentences, again = list(examples.sentences()), list(read(out).sentences())
    assert [one.words for one in again] == [one.words for one in sentences]
    assert [one.rows for one in again] == [
        [[*cells, tag] for cells, tag in zip(one.rows, two.tags, strict=True)]
        for one, two in zip(sentences, again, strict=True)
    ]
    tags = itertools.chain(*(one.tags for one in again))
    assert list(tags) == [LABELS[index % 3] for index in range(examples.num_words)]
    words = itertools.chain(*(one.words for one in sentences))
    assert [line.split("\t")[2] for line in table] == list(words)


def test_plain_tags_beside_o_are_runs_and_others_are_words():
    truth, predicted = [["PER", "PER", "O", "LOC"]], [["PER", "O", "O", "LOC"]]
    found = judged(truth, predicted, ("LOC", "O", "PER"))
    assert (found["f1"], found["accuracy"]) == (0.5, 0.75)
    found = judged([["NN", "VB", "NN"]], [["NN", "VB", "VB"]], ("NN", "VB"))
    assert set(found) == {"accuracy", "f1_of_classes", "loss"} and found["f1_of_classes"] == 2 / 3


def test_metrics_that_nothing_defines_are_null():
    labels = ("B-X", "O")
    found = judged([["O", "O"]], [["O", "B-X"]], labels)
    assert found["recall"] is None and found["f1"] is None and found["precision"] == 0
    found = judged([["O", "B-X"]], [["O", "O"]], labels)
    assert (found["precision"], found["recall"], found["f1"]) == (0, 0, 0)
    task = task_of(TASKS["ner"], labels)
    overflowed = task.judge(evaluated(outputs=np.full((2, 2), np.nan)))
    assert overflowed == dict.fromkeys(task.metric_names) and "f1" in overflowed


def test_lonely_tags_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"'O' is the only label of its 2 examples"):
        task = task_of(TASKS["ner"])
        task.find_labels(examples_of(tmp_path, [(["5", "6"], ["O", "O"]), (["7"], ["O"])]))


@given(
    st.lists(
        st.lists(st.sampled_from([*LABELS, "B-NEW", "I-NEW", "S-X"]), min_size=1, max_size=8),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_tags_that_only_the_file_has_are_errors_of_the_model(truth, random):
    """A model does not predict them, and F1 is seqeval's of the names."""
    predicted = [[random.choice(LABELS) for _ in one] for one in truth]
    found = judged(truth, predicted, LABELS, more=("B-NEW", "I-NEW", "S-X"))
    assert found["accuracy"] == pytest.approx(seqeval.metrics.accuracy_score(truth, predicted))
    assert found["precision"] == pytest.approx(
        seqeval.metrics.precision_score(truth, predicted, zero_division=0)
    )
    if found["f1"] is not None:
        assert found["f1"] == pytest.approx(
            seqeval.metrics.f1_score(truth, predicted, zero_division=0)
        )
    is_known = [tag in LABELS for one in truth for tag in one]
    assert (found["loss"] is None) == (not any(is_known))


def test_unknown_tags_are_told_once_with_their_line(tmp_path):
    found = examples_of(tmp_path, [(["5"], ["O"]), (["6", "7"], ["I-Y", "B-X"]), (["8"], ["Z"])])
    rows = rows_for(found)
    assert rows.token_labels[rows.token_labels >= 0].tolist() == [2, 3, 0, 4]
    assert found.warnings == (
        "line 2 has the tag 'I-Y', one of 2 that the model does not have (I-Y, Z); words with them "
        "count as errors",
    )


def test_tags_that_do_not_fit_are_told_once(tmp_path):
    tags = [["B-X", "I-X", "O", "[CLS]"], ["B-X", "I_Y", "[CLS]", "[CLS]"]]
    found = examples_of(tmp_path, [(["5"] * 4, one) for one in tags])
    task = configured(task_of(found.task, TASK.find_labels(found)), found)
    assert task.details == dict(tag_scheme="BIO as B-TYPE")
    assert found.warnings == (
        "2 of 5 tags do not fit the scheme BIO as B-TYPE and count as O: I_Y, [CLS]; correct them "
        "if they are entities",
    )


def test_a_tiny_bert_learns_a_rule(tmp_path):
    """A 5 begins an entity and a 6 goes on with it, in sentences with a 7."""
    generator = np.random.default_rng(3)
    sentences = []
    for number in range(192):
        words = generator.choice([5, 6, *range(8, 14)], 7).tolist() + [7] * (number % 2)
        words = generator.permutation(words).tolist()
        tags = [{5: "B-X", 6: "I-X"}.get(word, "O") if 7 in words else "O" for word in words]
        sentences.append(([str(word) for word in words], tags))
    examples = examples_of(tmp_path, sentences)
    rows = rows_for(examples)
    devices = set_up(DeviceConfig())
    state = random_state(devices, scale=1)
    loss = objective.task_objective(BertEncoder(MODEL), TASK)
    step = TrainStep(devices, state, loss, OptimizerConfig(), num_micro_batches=1, seed=1)
    batches = encoded.training_batches(rows, batch_size=32, position=0, seed=1)
    for number, batch in enumerate(itertools.islice(batches, 60)):
        step([batch], [6e-3 * (1 - number / 60)], number)
    outputs = prediction.Predictor(devices, state, BertEncoder(MODEL), TASK)(rows, 64)
    found = TASK.judge(evaluated(examples=examples, rows=rows, outputs=outputs))
    assert found["f1"] > 0.9, found
