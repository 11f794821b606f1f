"""Word embeddings that begin as vectors of their neighbours' counts (--first_words=neighbours)."""

import numpy as np
import pytest
from scipy import sparse

from bert_gpu.data import build
from bert_gpu.data.config import DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.model.weights import WeightSpec, initialize
from bert_gpu.pretrain import start, word_vectors
from bert_gpu.train.step import TrainStep
from tests.cli.pretraining import pretrain, same, weights

WORDS = "embeddings/word"


def make(folder, text, **settings):
    sizes = dict(max_seq_length=32, dupe_factor=1, vocab_size=500)
    files = dict(input_file=str(text), output_file=str(folder / "x.tfrecord"))
    build.run_job(build.open_job(DataConfig(**files | sizes | settings)))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory, sample_text):
    return make(tmp_path_factory.mktemp("data"), sample_text)


def opened(folder):
    dataset = Dataset(InputConfig(input_file=f"{folder}/*.tfrecord"))
    tokenizer = build.open_tokenizer(f"{folder}/vocab.txt", True)
    return dataset.reader("train", tokenizer, 3), tokenizer


def test_masked_words_are_put_back(tmp_path, sample_text, data):
    """Whatever the masks of an epoch are; those of static records, too."""
    make(tmp_path, sample_text, masking="dynamic", objective="packed")
    reader, tokenizer = opened(tmp_path)
    rows = np.arange(len(reader))
    one, other = (reader.read(rows, np.full_like(rows, epoch)) for epoch in (0, 1))
    assert not np.array_equal(one["input_ids"], other["input_ids"])
    found = word_vectors.original_ids(one)
    assert np.array_equal(found, word_vectors.original_ids(other))
    assert not (found == tokenizer.mask_id).any()
    reader, tokenizer = opened(data)
    batch = reader.read(np.arange(len(reader)), np.zeros(len(reader), int))
    changed = word_vectors.original_ids(batch) != batch["input_ids"]
    assert np.isin(batch["input_ids"], tokenizer.mask_id)[changed].mean() > 0.8
    assert changed.sum() < batch["masked_lm_weights"].sum()


def test_neighbours_are_counted_and_weighted_as_in_a_plain_loop():
    ids = np.random.default_rng(1).integers(0, 9, (6, 14))
    is_word = np.arange(9) > 1
    expected = np.zeros((9, 9))
    for row in ids:
        for left in range(14):
            for right in range(left + 1, min(14, left + 1 + word_vectors.WINDOW)):
                if is_word[row[left]] and is_word[row[right]]:
                    expected[row[left], row[right]] += 1 / (right - left)
                    expected[row[right], row[left]] += 1 / (right - left)
    counts = word_vectors.count_neighbours(iter([ids[:4], ids[4:]]), is_word)
    np.testing.assert_allclose(counts.toarray(), expected, rtol=1e-5)


def test_information_is_that_of_the_formula():
    counts = np.random.default_rng(2).integers(0, 4, (8, 8)).astype(np.float32)
    counts += counts.T
    counts[3] = counts[:, 3] = 0
    sums = counts.sum(1).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = sums**word_vectors.SMOOTHING / (sums**word_vectors.SMOOTHING).sum()
        expected = np.log(counts / (sums[:, None] * share))
    expected = np.where(counts > 0, np.maximum(expected, 0), 0)
    found = word_vectors.information(sparse.csr_matrix(counts)).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size, width", [(60, 12), (10, 16)])
def test_products_of_the_vectors_give_the_matrix(size, width):
    """Of a symmetric positive matrix of lower rank, up to the scale of the vectors."""
    factors = np.random.default_rng(3).standard_normal((size, 5)).astype(np.float32)
    matrix = factors @ factors.T
    vectors = word_vectors.factorise(sparse.csr_matrix(matrix), width, 1)
    assert vectors.shape == (size, width)
    assert vectors.std() == pytest.approx(word_vectors.DEVIATION, rel=1e-4)
    products = vectors @ vectors.T
    scale = np.trace(matrix) / np.trace(products)
    np.testing.assert_allclose(products * scale, matrix, atol=1e-3 * np.abs(matrix).max())


def test_words_used_alike_begin_alike(tmp_path):
    """dogs and cats, but not oaks; the special pieces keep their random values."""
    draw = np.random.default_rng(4)
    animals, plants = ("dogs", "cats", "cows"), ("oaks", "ferns", "pines")
    text = [
        " ".join([draw.choice(animals), "run and eat", draw.choice(("meat", "grass"))])
        if index % 2
        else " ".join([draw.choice(plants), "grow in soil with", draw.choice(("sun", "rain"))])
        for index in range(4000)
    ]
    (tmp_path / "text.txt").write_text("\n".join(text[:2000]) + "\n\n" + "\n".join(text[2000:]))
    reader, tokenizer = opened(make(tmp_path / "data", tmp_path / "text.txt", vocab_size=100))
    first = initialize({WORDS: WeightSpec((tokenizer.vocab_size, 16), "normal", 0.02)}, 1)[WORDS]
    vectors = word_vectors.word_vectors(reader, tokenizer, first, 1)
    assert np.array_equal(vectors[tokenizer.cls_id], first[tokenizer.cls_id])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    like = unit @ unit.T
    where = [tokenizer.vocab.index(word) for word in (*animals, *plants)]
    like = like[np.ix_(where, where)]
    same_kind = np.kron(np.eye(2), np.ones((3, 3))) > 0
    assert like[same_kind].min() > like[~same_kind].max() + 0.3


def test_a_run_begins_with_them_and_resumes_without_counting_again(data, tmp_path, monkeypatch):
    flags = ("--seed=5", "--first_words=neighbours", "--save_checkpoints_steps=2")
    assert pretrain(data, tmp_path / "whole", *flags, steps=4) == 0
    call = TrainStep.__call__

    def broken(step, batches, rates, number, *rest):
        if number == 3:
            raise MemoryError("stop here")
        return call(step, batches, rates, number, *rest)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(TrainStep, "__call__", broken)
        pretrain(data, tmp_path / "parts", *flags, steps=4)
    monkeypatch.setattr(start, "word_vectors", None)  # fails if it is called
    assert pretrain(data, tmp_path / "parts", *flags, steps=4) == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    words = weights(tmp_path / "whole")["bert.embeddings.word_embeddings.weight"]
    assert words.std() > 0.5 * word_vectors.DEVIATION


def test_they_need_a_vocabulary(data, tmp_path, capfd):
    for path in data.glob("*.tfrecord"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert pretrain(tmp_path, tmp_path / "run", "--first_words=neighbours", steps=2) == 2
    assert "--first_words=neighbours: needs" in capfd.readouterr().err
    sizes = ("--recipe=quick", "--max_seq_length=32", "--max_predictions_per_seq=5")
    assert pretrain(tmp_path, tmp_path / "run", *sizes, steps=2) == 0  # the recipe only prefers it
