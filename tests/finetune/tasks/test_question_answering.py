"""Rows and answers are those of Google's run_squad (in TF Model Garden's version), metrics those of
the official evaluations; a tiny BERT learns a form of question.
"""

import dataclasses
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
from official.nlp.data import squad_lib
from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0, tokenization

from bert_gpu.base.errors import UserError
from bert_gpu.devices.config import DeviceConfig
from bert_gpu.devices.devices import set_up
from bert_gpu.finetune import objective, prediction
from bert_gpu.finetune.config import FinetuneConfig, TokenConfig
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.tasks import squad_metrics
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.train.state import TrainState
from bert_gpu.train.step import TrainStep
from tests import task_heads
from tests.finetune import evaluations
from tests.finetune.evaluations import configured, evaluated, form_of, task_of

WORDS = "the a cat dog bird sat ran mat tree in on of who where japan steve smith".split()
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"'s().,-?", "18", "##95", "##ese"]
MODEL = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
FORMS = ["{}", "{}", "{}", "{}.", "({})", "{}'s", "1895-{}", "Japanese", "{},"]


@pytest.fixture(scope="module")
def vocab(tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return str(path)


def random_data(count, has_impossible, seed=0, longest=60):
    """Contexts of words in odd forms, with three questions each; answers are whole words."""
    generator, paragraphs = np.random.default_rng(seed), []
    for number in range(count):
        words = [
            str(generator.choice(FORMS)).format(str(generator.choice(WORDS)).capitalize())
            for _ in range(generator.integers(8, longest))
        ]
        context, qas = " ".join(words), []
        for asked in range(3):
            first = int(generator.integers(0, len(words) - 3))
            text = " ".join(words[first : first + int(generator.integers(1, 4))])
            entry = dict(
                id=f"{number}-{asked}",
                question=" ".join(generator.choice(WORDS, generator.integers(2, 9))) + "?",
                answers=[dict(text=text, answer_start=len(" ".join(words[:first])) + (first > 0))],
            )
            if has_impossible:
                entry["is_impossible"] = asked == 1
                entry["answers"] = [] if asked == 1 else entry["answers"]
            qas.append(entry)
        paragraphs.append(dict(context=context, qas=qas))
    return [dict(paragraphs=paragraphs)]


def read(folder, data, split="train"):
    path = folder / f"{split}.json"
    path.write_text(json.dumps(dict(data=data)))
    config = FinetuneConfig(data_dir=str(folder), task_name="squad")
    return str(path), evaluations.read(config, dict(train="train", dev="eval")[split])[0]


def rows_for(examples, vocab, max_seq_length=32, **tokens):
    """(task, rows) of examples. tokens: fields of TokenConfig."""
    tokens = dict(doc_stride=8, max_query_length=6, version_2_with_negative=False) | tokens
    task = configured(task_of(examples.task), examples, tokens=TokenConfig(**tokens))
    return task, task.encode(examples, form_of(WordPieceTokenizer(vocab), max_seq_length))


def their_features(path, vocab, is_training, has_impossible):
    """(examples, features) of run_squad for the same file."""
    examples = squad_lib.read_squad_examples(path, is_training, has_impossible)
    features = []
    squad_lib.convert_examples_to_features(
        examples,
        tokenization.FullTokenizer(vocab, do_lower_case=True),
        max_seq_length=32,
        doc_stride=8,
        max_query_length=6,
        is_training=is_training,
        output_fn=lambda feature, is_padding=False: is_padding or features.append(feature),
        batch_size=1,
    )
    return examples, features


@pytest.mark.parametrize("has_impossible", [False, True])
def test_rows_are_those_of_run_squad(tmp_path, vocab, has_impossible):
    path, examples = read(tmp_path, random_data(12, has_impossible))
    _, rows = rows_for(examples, vocab)
    _, features = their_features(path, vocab, True, has_impossible)
    assert len(rows) == len(features) > 60
    padded = dataclasses.replace(rows, padding="fixed")
    batch = encoded.make_batch(padded, np.arange(len(rows)))
    for name in ("input_ids", "input_mask", "segment_ids"):
        assert batch[name].tolist() == [getattr(feature, name) for feature in features]
    theirs = [[feature.start_position, feature.end_position] for feature in features]
    assert batch["labels"].tolist() == theirs and batch["labels"].dtype == np.int32
    assert (np.array(theirs) > 0).all(-1).sum() > 20


@pytest.mark.parametrize("has_impossible", [False, True])
@pytest.mark.parametrize("num_words", [1, 4, 8, 20])
def test_the_log_counts_the_answers_that_no_row_of_run_squad_holds(
    tmp_path, vocab, has_impossible, num_words
):
    data = random_data(20, has_impossible, seed=num_words)
    for paragraph in data[0]["paragraphs"]:
        for answer in (one for entry in paragraph["qas"] for one in entry["answers"]):
            words = paragraph["context"][answer["answer_start"] :].split(" ")
            answer["text"] = " ".join(words[:num_words])
    path, examples = read(tmp_path, data)
    task, rows = rows_for(examples, vocab, version_2_with_negative=has_impossible)
    theirs, features = their_features(path, vocab, True, has_impossible)
    held = {one.example_index for one in features if one.start_position > 0}
    answered = {index for index, one in enumerate(theirs) if not one.is_impossible}
    message = task.describe(examples, rows)
    assert ("fit whole into no row" in message) == bool(answered - held)
    assert (f"; {len(answered - held)} answers fit" in message) == bool(answered - held)


@pytest.mark.parametrize("has_impossible", [False, True])
def test_answers_are_those_of_run_squad(tmp_path, vocab, has_impossible):
    path, examples = read(tmp_path, random_data(12, has_impossible, seed=1), "dev")
    task, rows = rows_for(
        examples,
        vocab,
        version_2_with_negative=has_impossible,
        max_answer_length=5,
        null_score_diff_threshold=0.5,
    )
    # of more, some of theirs have the letter case of an earlier occurrence of the same text
    task = dataclasses.replace(task, rules=task.rules._replace(n_best_size=7))
    theirs, features = their_features(path, vocab, False, has_impossible)
    generator = np.random.default_rng(2)
    lengths = np.diff(rows.splits)
    scores = generator.standard_normal((len(rows), 32, 2)).astype(np.float32) * 3
    scores[:, 0] += 8
    scores[np.arange(32) >= lengths[:, None]] = -1e9
    results = [
        squad_lib_result(feature.unique_id, *row.T.tolist())
        for feature, row in zip(features, scores, strict=True)
    ]
    expected = squad_lib.postprocess_output(
        theirs, features, results, 7, 5, True, has_impossible, 0.5
    )
    outputs = task.join_rows(
        task.row_outputs(scores, dict(input_mask=np.arange(32) < lengths[:, None]))
    )
    found = task.predict(evaluated(examples=examples, rows=rows, outputs=outputs))
    assert found.answers == dict(expected[0]) and len(set(found.answers.values())) > 12
    assert has_impossible is ("" in found.answers.values())
    for name, entries in expected[1].items():
        assert [one["text"] for one in found.n_best[name]] == [one["text"] for one in entries]
        for field in ("probability", "start_logit", "end_logit"):
            ours = [one[field] for one in found.n_best[name]]
            np.testing.assert_allclose(ours, [one[field] for one in entries], rtol=1e-9)
    assert found.null_odds == (pytest.approx(dict(expected[2])) if has_impossible else None)


def squad_lib_result(unique_id, start_logits, end_logits):
    class Result:
        pass

    result = Result()
    result.unique_id = unique_id
    result.start_logits, result.end_logits = start_logits, end_logits
    return result


def noisy(data, seed):
    """{id: a prediction: right, near, wrong or none}."""
    generator, found = np.random.default_rng(seed), {}
    for paragraph in data[0]["paragraphs"]:
        for entry in paragraph["qas"]:
            texts = [answer["text"] for answer in entry["answers"]] or ["The cat"]
            choice = generator.integers(5)
            words = texts[0].split()
            found[entry["id"]] = [
                texts[0],
                "the " + texts[0].upper() + "!",
                " ".join([*words[1:], "mat"]),
                "tree of",
                "",
            ][choice]
    return found


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_the_official_evaluations(seed):
    data = random_data(20, False, seed)
    for entry in data[0]["paragraphs"][0]["qas"]:
        entry["answers"] += [dict(text="the", answer_start=0), dict(text="Mat", answer_start=0)]
    predictions = noisy(data, seed)
    truth = truth_of(data)
    theirs = squad_evaluate_v1_1.evaluate(data, predictions)
    ours = squad_metrics.score(predictions, truth)
    assert ours == pytest.approx(dict(f1=theirs["final_f1"], exact_match=theirs["exact_match"]))
    data = random_data(20, True, seed)
    predictions = noisy(data, seed)
    theirs = squad_evaluate_v2_0.evaluate(data, predictions)  # with no threshold
    ours = squad_metrics.score(predictions, truth_of(data), True)
    assert set(ours) == {*squad_metrics.PLAIN, *squad_metrics.OF_IMPOSSIBLE}
    for name, title in dict(
        f1="f1",
        exact_match="exact",
        HasAns_f1="HasAns_f1",
        HasAns_exact="HasAns_exact",
        NoAns_f1="NoAns_f1",
        NoAns_exact="NoAns_exact",
    ).items():
        assert ours[name] == pytest.approx(theirs[title] / 100), name


def truth_of(data):
    return {
        entry["id"]: tuple(answer["text"] for answer in entry["answers"])
        for paragraph in data[0]["paragraphs"]
        for entry in paragraph["qas"]
    }


def test_metrics_of_what_is_not_there_are_null():
    ours = squad_metrics.score(dict(a="cat"), dict(a=("the cat",)), True)
    assert ours["NoAns_f1"] is None and ours["HasAns_exact"] == 1


def random_state(devices, scale=20, model=MODEL):
    weights = initialize(task_heads.specs("span", BertEncoder(model)), 0)
    return TrainState(
        devices.strategy,
        {name: value * scale if value.ndim == 2 else value for name, value in weights.items()},
        OptimizerConfig(),
        column_blocks={},
    )


def padded(rows, padding):
    return dataclasses.replace(rows, padding=padding)


def test_losses_do_not_depend_on_padding(tmp_path, vocab):
    """They are the mean of two cross-entropies over the tokens of the row alone."""
    _, examples = read(tmp_path, random_data(3, False, longest=20))
    task, rows = rows_for(examples, vocab)
    weights = initialize(task_heads.specs("span", BertEncoder(MODEL)), 0)
    weights = {
        name: tf.constant(value * (20 if value.ndim == 2 else 1)) for name, value in weights.items()
    }
    for padding in ("dynamic", "fixed"):
        batch = encoded.make_batch(padded(rows, padding), np.arange(6))
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        logits = task.logits(weights, tensors, BertEncoder(MODEL), tf.float32)
        found = task.losses(logits, tensors["labels"]).numpy()
        for row, length in enumerate(batch["input_mask"].sum(-1)):
            shares = tf.nn.softmax(logits[row, :length], axis=0).numpy()
            first, last = batch["labels"][row]
            expected = -(np.log(shares[first, 0]) + np.log(shares[last, 1])) / 2
            assert found[row] == pytest.approx(expected, rel=1e-4)
    assert task.weights(tensors["labels"]).numpy().tolist() == [1] * 6


@pytest.mark.long
def test_answers_do_not_depend_on_batches_padding_or_replicas(tmp_path, vocab):
    _, examples = read(tmp_path, random_data(3, False, longest=20))
    task, rows = rows_for(examples, vocab)
    found = []
    for replicas, batch_size, padding in [(1, 32, "dynamic"), (2, 4, "uniform"), (1, 5, "fixed")]:
        devices = set_up(DeviceConfig(virtual_replicas=replicas))
        predict = prediction.Predictor(devices, random_state(devices), BertEncoder(MODEL), task)
        outputs = predict(padded(rows, padding), batch_size)
        found.append(task.predict(evaluated(examples=examples, rows=rows, outputs=outputs)))
    for other in found[1:]:
        assert other.answers == found[0].answers
        for name, entries in other.n_best.items():
            shares = [[one["probability"] for one in e] for e in (entries, found[0].n_best[name])]
            np.testing.assert_allclose(*shares, rtol=1e-3)


def test_a_length_without_room_is_refused(tmp_path, vocab):
    _, examples = read(tmp_path, random_data(2, False))
    with pytest.raises(UserError, match=r"--max_seq_length=9: leaves no room .*_length=6 tokens"):
        rows_for(examples, vocab, 9)


def test_a_model_that_has_overflowed_has_no_metrics(tmp_path, vocab):
    _, examples = read(tmp_path, random_data(2, False), "dev")
    task, rows = rows_for(examples, vocab)
    batch = encoded.make_batch(rows, np.arange(len(rows)))
    outputs = task.row_outputs(np.full((len(rows), 32, 2), np.nan), batch)
    found = task.judge(evaluated(examples=examples, rows=rows, outputs=outputs))
    assert found == dict(f1=None, exact_match=None)


def test_a_tiny_bert_learns_a_form_of_question(tmp_path, vocab):
    """Who? Steve or Smith; in a context with neither there is no answer."""
    generator, paragraphs = np.random.default_rng(4), []
    for number in range(128):
        words = generator.choice(["of", "in", "cat", "dog", "mat"], 6).tolist()
        name = str(generator.choice(["Steve", "Smith", "tree"]))
        words[int(generator.integers(6))] = name
        context = " ".join(words)
        found = [] if name == "tree" else [dict(text=name, answer_start=context.index(name))]
        qas = [dict(id=str(number), question="Who ?", answers=found, is_impossible=not found)]
        paragraphs.append(dict(context=context, qas=qas))
    _, examples = read(tmp_path, [dict(paragraphs=paragraphs)])
    task, rows = rows_for(examples, vocab, version_2_with_negative=True)
    devices = set_up(DeviceConfig())
    state, encoder = random_state(devices, scale=1), BertEncoder(MODEL)
    loss = objective.task_objective(encoder, task)
    step = TrainStep(devices, state, loss, OptimizerConfig(), num_micro_batches=1, seed=1)
    batches = encoded.training_batches(rows, batch_size=32, position=0, seed=1)
    for number, batch in enumerate(itertools.islice(batches, 80)):
        step([batch], [6e-3 * (1 - number / 80)], number)
    outputs = prediction.Predictor(devices, state, encoder, task)(rows, 64)
    found = task.judge(evaluated(examples=examples, rows=rows, outputs=outputs))
    assert found["exact_match"] > 0.95, found
