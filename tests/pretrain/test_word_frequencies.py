"""The loss that word frequencies alone give, in dataset.json, and the line of the log with it."""

import json

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.data import build
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.pretrain.validation import unigram_loss
from tests import pretraining
from tests.cli.pretraining import pretrain

SIZES = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("vocabulary")
    make(folder, sample_text, vocab_size=500)
    return str(folder / "vocab.txt")


def make(folder, text, **settings):
    defaults = dict(max_seq_length=32, dupe_factor=1, validation_share=0.3)
    target = dict(input_file=str(text), output_file=str(folder / "x.tfrecord"))
    return build.run_job(build.open_job(DataConfig(**target | defaults | settings)))[0]


def batches(reader, epochs):
    indices = np.arange(len(reader))
    return (reader.read(indices, np.full_like(indices, epoch)) for epoch in range(epochs))


def blind_loss(dataset, tokenizer, epochs):
    """The mlm_loss of a model whose weights are 0 and whose output bias is the log frequency of
    each piece among the labels of training, on the validation records as they are masked in some
    epochs.
    """
    size = dataset.info.vocab_size
    counts = np.ones(size)
    for batch in batches(dataset.reader("train", tokenizer, 3), epochs):
        labels, is_real = batch["masked_lm_ids"], batch["masked_lm_weights"]
        counts += np.bincount(labels.ravel(), is_real.ravel(), minlength=size)
    config = ModelConfig(vocab_size=size, max_position_embeddings=32, **SIZES)
    encoder = BertEncoder(config)
    specs = pretraining.weights(encoder)
    weights = {name: tf.zeros(spec.shape) for name, spec in specs.items()}
    weights["mlm/bias"] = tf.constant(np.log(counts / counts.sum()), tf.float32)
    sums = np.zeros(2)
    for batch in batches(dataset.reader("validation", tokenizer, 3), epochs):
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        sums += np.array(pretraining.metrics(weights, tensors, encoder)["mlm_loss"])
    return sums[0] / sums[1]


@pytest.mark.parametrize(
    "masking, epochs, settings",
    [
        ("static", 1, {}),
        ("static", 1, dict(do_whole_word_mask=True, objective="packed")),
        ("dynamic", 7, {}),
    ],
)
def test_a_model_of_word_frequencies_has_this_validation_loss(
    tmp_path, sample_text, vocab_file, masking, epochs, settings
):
    made = make(tmp_path, sample_text, vocab_file=vocab_file, masking=masking, **settings)
    dataset = Dataset(InputConfig(input_file=f"{tmp_path}/*.tfrecord"))
    tokenizer = build.open_tokenizer(f"{tmp_path}/vocab.txt", True)
    loss = blind_loss(dataset, tokenizer, epochs)
    assert 4 < made.unigram_loss < np.log(500)
    assert abs(loss - made.unigram_loss) < (1e-3 if masking == "static" else 0.02)


def test_a_data_set_without_it_leaves_it_out(tmp_path, sample_text, vocab_file):
    """It is null where no word is masked, and records of other tools have no dataset.json."""
    a, b = (make(tmp_path / name, sample_text, vocab_file=vocab_file) for name in "ab")
    path = tmp_path / "a" / "dataset.json"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "crc32c"}
    mean = (1 + b.unigram_loss) / 2
    for first, loss in ((a.unigram_loss, b.unigram_loss), (1.0, mean), (None, None)):
        path.write_text(json.dumps(content | dict(unigram_loss=first)))
        both = Dataset(InputConfig(input_file=f"{tmp_path}/a/*.tfrecord,{tmp_path}/b/*.tfrecord"))
        assert unigram_loss(both.validation) == pytest.approx(loss)
    path.unlink()
    files = f"{tmp_path}/a/*-validation-*.tfrecord"
    one = Dataset(InputConfig(input_file=f"{tmp_path}/b/*.tfrecord", eval_input_file=files))
    assert unigram_loss(one.validation) is None


def test_the_log_says_so_while_a_model_has_only_learnt_this(
    tmp_path, sample_text, vocab_file, capfd
):
    make(tmp_path / "data", sample_text, vocab_file=vocab_file)
    path = tmp_path / "data" / "dataset.json"
    content = {k: v for k, v in json.loads(path.read_text()).items() if k != "crc32c"}

    def log(name, **change):
        path.write_text(json.dumps(content | change))
        assert pretrain(tmp_path / "data", tmp_path / name, "--noquiet", steps=2) == 0
        return capfd.readouterr().out

    line = f"; word frequencies alone give {content['unigram_loss']:.2f}\n"
    said = log("one")
    assert said.count(line) == 2 and "masked words: loss 6." in said  # before and after its steps
    assert "word frequencies" not in log("two", unigram_loss=7.0)
