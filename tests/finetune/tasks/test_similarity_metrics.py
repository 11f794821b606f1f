"""Metrics of sentence vectors equal values worked out by hand, and those of the evaluators of
sentence-transformers on files with ties, queries with two right answers, and duplicates.
"""

import json
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.finetune.tasks.metrics import compute_metrics
from bert_gpu.finetune.tasks.similarity_metrics import (
    METRICS,
    SCORED,
    cosines,
    decision_metrics,
    retrieval_metrics,
)
from bert_gpu.finetune.tasks.table import TASKS
from tests.finetune.evaluations import task_of
from tests.interop.test_huggingface import HERE, needs_oracle, oracle_environment, oracle_python


def test_the_best_threshold_decides_equal_cosines_alike():
    similarities = np.float32([0.9, 0.8, 0.8, 0.5, 0.2])
    values = decision_metrics(similarities, np.bool_([1, 1, 0, 1, 0]))
    # of the thresholds above .9, .8, .5, .2 and of none: 2, 3, 3, 4 and 3 of 5 are right
    assert values["accuracy"] == 4 / 5 and values["threshold"] == pytest.approx(0.35)


def test_no_pair_may_be_positive():
    values = decision_metrics(np.float32([0.5, 0.25]), np.bool_([0, 0]))
    assert values["accuracy"] == 1 and values["threshold"] == np.nextafter(np.float32(0.5), 1)
    values = decision_metrics(np.float32([0.5, 0.5]), np.bool_([1, 1]))
    assert values["accuracy"] == 1 and values["threshold"] == 0.5


def test_answers_are_found_among_the_distinct_documents_of_the_file():
    # text: vector; two queries, of which "a" has two right answers, one of them in two rows
    angles = dict(a=0, b=90, near=10, mid=40, far=80, negative=50)
    vectors = {
        name: (np.cos(np.radians(one)), np.sin(np.radians(one))) for name, one in angles.items()
    }
    rows = [("a", "mid", "negative"), ("b", "near", ""), ("a", "far", "mid"), ("a", "mid", "near")]
    ids = {name: index for index, name in enumerate(["a", "mid", "negative", "b", "near", "far"])}
    text_ids = np.int32([[ids.get(name, -1) for name in row] for row in rows])
    outputs = np.float32([[vectors.get(name, (7, 7)) for name in row] for row in rows])
    values = retrieval_metrics(outputs, text_ids)
    # a: near, mid (right), negative, far (right); b: far, negative, mid, near (right)
    assert values["mrr@10"] == pytest.approx((1 / 2 + 1 / 4) / 2)
    assert values["recall@1"] == 0 and values["recall@10"] == 1
    gains = 1 / np.log2([2, 3, 4, 5])
    expected = ((gains[1] + gains[3]) / (gains[0] + gains[1]) + gains[3] / gains[0]) / 2
    assert values["ndcg@10"] == pytest.approx(expected)


def example_file(count=120):
    """(vectors float32 (N, 2, H), text_ids (N, 2), labels, scores): queries and documents occur
    several times, and many cosines are equal. (Cosines that are equal but for their rounding are
    ties or not as the library computes them.)
    """
    generator = np.random.default_rng(5)
    text_ids = np.stack([generator.integers(0, 60, count), generator.integers(60, 130, count)], 1)
    _, first, text_ids = np.unique(text_ids, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    text_ids = order[text_ids].reshape(count, 2).astype(np.int32)
    # four of eight numbers are 1 or -1, so that all cosines are exact, and many are equal
    number = text_ids.max() + 1
    table = np.where(generator.random((number, 8)) < 0.4, -1, 1).astype(np.float32)
    table *= generator.permuted(np.tile([1, 0], (number, 4)), axis=1)
    labels = generator.integers(0, 2, count)
    scores = generator.integers(0, 11, count) / 2
    return table[text_ids], text_ids, labels, scores


@needs_oracle
def test_metrics_and_the_loss_are_those_of_sentence_transformers(tmp_path):
    vectors, text_ids, labels, scores = example_file()
    np.savez(tmp_path / "in.npz", vectors=vectors, text_ids=text_ids, labels=labels, scores=scores)
    script = [oracle_python(), str(HERE.parent / "finetune" / "tasks" / "evaluators_oracle.py")]
    done = subprocess.run(
        [*script, str(tmp_path)], env=oracle_environment(tmp_path), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    expected = json.loads((tmp_path / "out.json").read_text())
    targets = (scores / 5).astype(np.float32)
    found = retrieval_metrics(vectors, text_ids)
    found |= decision_metrics(cosines(vectors), labels > 0)
    found |= compute_metrics(cosines(vectors)[:, None], targets, METRICS[SCORED])
    assert found == pytest.approx(expected, rel=1e-5)
    tensor = tf.constant(vectors)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        losses = task_of(TASKS["similarity"]).losses(tensor, tf.constant(targets))
        loss = tf.reduce_mean(losses)
    assert float(loss) == pytest.approx(expected["loss"], rel=1e-5)
    gradient = np.load(tmp_path / "gradient.npy")
    np.testing.assert_allclose(tape.gradient(loss, tensor), gradient, rtol=1e-4, atol=1e-8)
