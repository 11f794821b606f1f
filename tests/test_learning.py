"""The law that everything else serves: pretraining helps. A tiny BERT reads stories of a small
invented world; pairs of words that it has no labels for are then right, which the same model
without pretraining only guesses.
"""

import collections
import json
import os
import random
import subprocess
import sys

import pytest

import bert_gpu
from bert_gpu.optim.config import OptimizerConfig
from bert_gpu.train.config import BatchConfig, CadenceConfig
from tests.cli.pretraining import ROOT

CONSONANTS, VOWELS = "bdfgklmnprst", "aeiou"
NUM_TOPICS, WORDS_OF_A_TOPIC = 6, 12
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]
FORMS = ("the {} {} the {} today", "a {} of the {} was {}", "they {} and {} near the {}")
LENGTH, BATCH, STEPS = 32, 32, 500


def make_topics(draws):
    """Invented words of two syllables, WORDS_OF_A_TOPIC for each topic, all different."""
    words = draws.sample([a + b for a in SYLLABLES for b in SYLLABLES], NUM_TOPICS * 12)
    return [words[start : start + 12] for start in range(0, len(words), 12)]


def sentence(draws, words):
    return draws.choice(FORMS).format(*draws.sample(words, 3))


def write_stories(path, topics, draws, number=600):
    """Each is about one topic."""
    stories = (
        "\n".join(sentence(draws, topic) for _ in range(draws.randrange(6, 12)))
        for topic in (draws.choice(topics) for _ in range(number))
    )
    path.write_text("\n\n".join(stories) + "\n")


def write_pairs(path, topics, draws, number, words):
    """Are both sentences about one topic? `words`: the slice of a topic's words that occur."""
    lines = ["text_a\ttext_b\tlabel"]
    for index in range(number):
        first, other = draws.sample(topics, 2)
        second = first if index % 2 else other
        texts = (sentence(draws, topic[words]) for topic in (first, second))
        lines.append("\t".join([*texts, str(index % 2)]))
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A folder with stories.txt, pairs/ (no word of dev.tsv occurs in train.tsv), and run/ of the
    model that has read the stories.
    """
    folder, draws = tmp_path_factory.mktemp("world"), random.Random(1)
    topics = make_topics(draws)
    write_stories(folder / "stories.txt", topics, draws)
    (folder / "pairs").mkdir()
    write_pairs(folder / "pairs" / "train.tsv", topics, draws, 200, slice(0, 6))
    write_pairs(folder / "pairs" / "dev.tsv", topics, draws, 400, slice(6, 12))
    bert_gpu.create_pretraining_data(
        bert_gpu.DataConfig(
            input_file=str(folder / "stories.txt"),
            output_file=f"{folder}/data/x.tfrecord",
            vocab_size=200,
            max_seq_length=LENGTH,
            dupe_factor=2,
        )
    )
    flags = dict(
        input_file=f"{folder}/data/*.tfrecord",
        output_dir=f"{folder}/run",
        model="tiny",
        norm_first="true",
        hidden_size=64,
        intermediate_size=256,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
        train_batch_size=BATCH,
        optimizer="muon",
        learning_rate=5e-3,
        num_train_steps=STEPS,
        steps_per_loop=50,
        num_gpus=0,
    )
    # as a process, so that it does not compile as hastily as the tests
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    call = [sys.executable, ROOT / "run_pretraining_gpu.py", "--quiet"]
    call += [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run(call, env=environment, check=True)
    return folder


def accuracy(world, name, **start):
    """On dev.tsv, of a model fine-tuned on train.tsv."""
    settings = bert_gpu.FinetuneSettings(
        run=bert_gpu.FinetuneConfig(
            data_dir=f"{world}/pairs", output_dir=f"{world}/{name}", max_seq_length=LENGTH
        ),
        start=bert_gpu.StartConfig(**start),
        optimizer=OptimizerConfig(learning_rate=1e-3),
        batch=BatchConfig(train_batch_size=32),
        cadence=CadenceConfig(num_train_steps=60, steps_per_loop=20),
    )
    return bert_gpu.run_classifier(settings).metrics["dev"]["accuracy"]


def test_masked_words_are_known_from_their_neighbours(world):
    """Where word frequencies alone say no more than the commonest word's share."""
    lines = [
        json.loads(line) for line in (world / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    last = [line for line in lines if "eval_loss" in line][-1]
    counts = collections.Counter((world / "stories.txt").read_text().split())
    commonest = max(counts.values()) / counts.total()
    assert last["eval_mlm_accuracy"] > commonest + 0.2
    assert last["eval_nsp_accuracy"] > 0.7  # at most .92: a sixth of other stories has the topic


def test_pretraining_helps_with_pairs_of_words_without_labels(world):
    model = world / "run" / "model"
    files = dict(bert_config_file=f"{model}/config.json", vocab_file=f"{model}/vocab.txt")
    pretrained = accuracy(world, "pretrained", init_checkpoint=str(model))
    untrained = accuracy(world, "untrained", init_checkpoint="none", **files)
    assert pretrained > untrained + 0.2
    assert untrained < 0.65
