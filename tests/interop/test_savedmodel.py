"""A SavedModel gives raw strings what our own code gives them: in a process without ours, for text
that our tokenizer sends another way, and for [MASK].
"""

import io
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import bert_gpu
from bert_gpu.base.errors import UserError
from bert_gpu.finetune.files import encoded
from bert_gpu.finetune.tasks.table import TASKS
from bert_gpu.inference import masked_words
from bert_gpu.interop import models, onnx, savedmodel
from bert_gpu.interop.formats import Model, Notes
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary.file import SPECIAL_PIECES
from tests import pretraining, task_heads
from tests.finetune.evaluations import task_of
from tests.interop.test_leaving import model_of
from tests.model.variants import SMALL, random_batch
from tests.text.tokenizers.test_tokenizer_ops import ODD

HERE = pathlib.Path(__file__).parent
CLASSIFIER = task_of(TASKS["pairs"])
LABELS = ("no", "yes", "ß")


@pytest.fixture(scope="module")
def texts(sample_text):
    """1,000 pairs: lines of the sample, odd ones among them, some with [MASK], some too long, some
    without a second text.
    """
    lines = [line for line in pathlib.Path(sample_text).read_text().splitlines() if line]
    firsts = [*ODD[:-1], "un[MASK] [MASK].", "[MASK]", "x [MASK] " * 3, *lines]
    seconds = ["", *lines[::-1]]
    pairs = [[firsts[i % len(firsts)], seconds[i % len(seconds)]] for i in range(1000)]
    for index in range(15, 1000, 10):
        first, _, rest = pairs[index][0].partition(" ")
        pairs[index][0] = f"{first} [MASK] {rest}"
    pairs[40] = [" ".join(lines[:9]), " ".join(lines[9:18])]
    return pairs


@pytest.fixture(scope="module")
def served(tmp_path_factory, texts):
    """A Model with masked-word head and classifier, uncased."""
    folder = tmp_path_factory.mktemp("served")
    characters = sorted({c for pair in texts for text in pair for c in text.lower() if c.strip()})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]
    pieces += [f"##{character}" for character in characters if character.isprintable()]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    tokenizer = WordPieceTokenizer(str(folder / "vocab.txt"))
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=128,
    )
    generator = np.random.default_rng(3)
    encoder = BertEncoder(config)
    specs = pretraining.weights(encoder) | task_heads.specs("classifier", encoder, 3)
    weights = {
        name: (0.3 * generator.standard_normal(spec.shape)).astype(np.float32)
        for name, spec in specs.items()
    }
    weights["classifier/kernel"] *= 10  # so that probabilities differ
    notes = Notes([], [], "BertForPreTraining", LABELS)
    return Model(config, weights, notes, tokenizer)


def in_order(rows, found):
    """Results of `evaluation_batches` in the order of the texts."""
    ordered = np.concatenate(found)[: len(rows)]
    return ordered[np.argsort(encoded.evaluation_order(rows))]


def probabilities(model, texts_a, texts_b):
    """Those of the classifier as fine-tuning computes them."""
    rows = encoded.encode_examples(model.tokenizer, [(texts_a, texts_b)], None, 128)
    encoder = BertEncoder(model.config)
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    run = tf.function(
        lambda batch: tf.nn.softmax(CLASSIFIER.logits(weights, batch, encoder, tf.float32)),
        autograph=False,
        reduce_retracing=True,
    )
    found = []
    for batch in encoded.evaluation_batches(rows, batch_size=100):
        names = ("input_ids", "input_mask", "segment_ids")
        found.append(run({name: tf.constant(batch[name]) for name in names}).numpy())
    return in_order(rows, found)


@pytest.mark.long
def test_onnx_gives_the_same_for_the_same_strings(served, texts, tmp_path):
    """Its inputs are token ids: those that our tokenizer makes of the strings."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("tf2onnx")
    notes = Notes([], [], "BertForSequenceClassification", LABELS)
    onnx.write(served._replace(notes=notes), str(tmp_path / "out"), None)
    session = onnxruntime.InferenceSession(str(tmp_path / "out" / "onnx" / "model.onnx"))
    texts_a, texts_b = zip(*texts, strict=True)
    rows = encoded.encode_examples(served.tokenizer, [(texts_a, texts_b)], None, 128)
    found = []
    for batch in encoded.evaluation_batches(rows, batch_size=100):
        names = ("input_ids", "input_mask", "segment_ids")
        inputs = [batch[name].astype(np.int64) for name in names]
        feed = dict(zip(("input_ids", "attention_mask", "token_type_ids"), inputs, strict=True))
        found.append(tf.nn.softmax(session.run(["logits"], feed)[0]).numpy())
    found = in_order(rows, found)
    np.testing.assert_allclose(found, probabilities(served, texts_a, texts_b), rtol=0, atol=1e-4)


@pytest.mark.long
def test_a_fresh_process_gives_our_results(served, texts, tmp_path):
    line = savedmodel.write(served, str(tmp_path / "model"))
    assert "embed, fill_mask, classify, classify_pairs" in line
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    command = [sys.executable, str(HERE / "saved_model_process.py"), str(tmp_path / "model")]
    command += [str(tmp_path / "texts.json"), str(tmp_path / "found.npz")]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    found = dict(np.load(tmp_path / "found.npz"))
    close = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)  # noqa: E731
    texts_a, texts_b = zip(*texts, strict=True)
    single, pairs = probabilities(served, texts_a, None), probabilities(served, texts_a, texts_b)
    assert np.ptp(single, 0).max() > 0.05  # not a constant
    close(found["classify/probabilities"], single)
    close(found["serving_default/probabilities"], single)
    close(found["classify_pairs/probabilities"], pairs)
    labels = [LABELS[index] for index in pairs.argmax(-1)]
    assert found["classify_pairs/label"].tolist() == labels

    models.write_model(
        str(tmp_path / "ours"),
        served.config,
        served.weights,
        files=models.tokenizer_files(served.tokenizer),
    )
    for pooling in ("cls", "mean"):
        config = bert_gpu.EmbedConfig(
            model=str(tmp_path / "ours"), pooling=pooling, max_seq_length=128
        )
        close(found[f"embed/{pooling}"], bert_gpu.Embedder(config)(list(texts_a)))
    asked = [index for index, text in enumerate(texts_a) if "[MASK]" in text]
    answers = bert_gpu.fill_mask([texts_a[index] for index in asked], model=tmp_path / "ours")
    rows = [index for index, masks in zip(asked, answers, strict=True) for _ in masks]
    assert found["fill_mask/text"].tolist() == rows and len(rows) > 50
    words = [mask for masks in answers for mask in masks]
    close(found["fill_mask/probabilities"], [[share for share, _ in mask] for mask in words])
    assert found["fill_mask/words"].tolist() == [[word for _, word in mask] for mask in words]


@pytest.mark.long
def test_bfloat16_agrees_to_two_digits_and_nothing_is_warned_of(served, tmp_path, caplog):
    model = served._replace(
        weights={name: v for name, v in served.weights.items() if not name.startswith("mlm/")}
    )
    line = savedmodel.write(model, str(tmp_path / "model"), "bfloat16")
    assert "bfloat16, with embed, classify, classify_pairs;" in line
    signature = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    texts = ["a line of text", "another"]
    found = signature(text=tf.constant(texts))["probabilities"]
    assert found.dtype == tf.float32 and not caplog.records
    np.testing.assert_allclose(found, probabilities(served, texts, None), rtol=0, atol=0.05)


@pytest.mark.long
def test_other_tasks_have_their_own_results(served):
    """Any number of labels, and numbers: the functions that are saved, without saving them."""
    texts = ["a line", "another"]

    def meaning(problem_type):
        notes = served.notes._replace(problem_type=problem_type)
        return savedmodel.Served(served._replace(notes=notes))

    model = meaning("multi_label_classification")
    found = model.classify(tf.constant(texts))
    assert [name.decode() for name in found["labels"].numpy()] == list(LABELS)
    shares, logits = found["probabilities"].numpy(), np.log(probabilities(served, texts, None))
    theirs = np.log(shares / (1 - shares))  # the logits, which softmax gives but for a constant
    np.testing.assert_allclose(theirs - theirs[:, :1], logits - logits[:, :1], rtol=1e-3, atol=1e-3)
    model = meaning("regression")
    for name in ("classifier/kernel", "classifier/bias"):
        first = tf.Variable(served.weights[name][..., :1])
        model.variables_[model.names.index(name)] = first
    found = model.classify(tf.constant(texts))
    assert found.keys() == {"score"}
    np.testing.assert_allclose(found["score"], theirs[:, 0], rtol=1e-3, atol=1e-3)


class FromJson(WordPieceTokenizer):
    """A tokenizer of a tokenizer.json, which TensorFlow has no ops for."""

    def files(self):
        return {"tokenizer.json": b"{}"}


@pytest.mark.parametrize(
    "architecture, switches, inputs",
    [
        pytest.param(
            "BertForSequenceClassification",
            {},
            {"input_ids", "input_mask", "segment_ids"},
            marks=pytest.mark.long,
        ),
        pytest.param(
            "BertForSequenceClassification",
            dict(model_family="electra", pooler_act="gelu", embedding_size=6),
            {"input_ids", "input_mask", "segment_ids"},
            marks=pytest.mark.long,
        ),
        (
            "BertForMaskedLM",
            dict(model_family="roberta", first_position=2, type_vocab_size=1),
            {"input_ids", "input_mask"},
        ),
    ],
)
def test_without_ops_it_takes_ids(tmp_path, architecture, switches, inputs):
    """Rows with padding give what our own functions give; the log and the card say so."""
    pieces = "".join(f"{piece}\n" for piece in [*SPECIAL_PIECES, *"abcdefgh"])
    (tmp_path / "vocab.txt").write_text(pieces)
    config = ModelConfig(**SMALL | switches)
    model = model_of(config, architecture)
    own = {name: x for name, x in model.weights.items() if not name.startswith("nsp/")}
    model = model._replace(tokenizer=FromJson(str(tmp_path / "vocab.txt")), weights=own)
    line = savedmodel.write(model, str(tmp_path / "out"))
    assert f"token ids ({', '.join(sorted(inputs))})" in line and "\n" not in line
    assert "input_mask=input_mask" in (tmp_path / "out" / "README.md").read_text()
    signatures = tf.saved_model.load(str(tmp_path / "out")).signatures
    batch = random_batch(config, [22, 6, 3], 22)
    batch = {name: tf.constant(batch[name]) for name in ("input_ids", "input_mask", "segment_ids")}
    rows = {name: batch[name] for name in inputs}
    weights = {name: tf.constant(value) for name, value in model.weights.items()}
    hidden = BertEncoder(config).encode(weights, batch)
    found = signatures["embed"](**rows)
    np.testing.assert_allclose(found["cls"], hidden[:, 0], atol=1e-5)
    np.testing.assert_allclose(found["mean"][2], np.mean(hidden[2, :3], 0), atol=1e-5)
    names = {"embed", "fill_mask", "serving_default"}
    if architecture == "BertForSequenceClassification":
        scores = CLASSIFIER.logits(weights, batch, BertEncoder(config), tf.float32)
        shares = signatures["classify"](**rows)["probabilities"]
        np.testing.assert_allclose(shares, tf.nn.softmax(scores), atol=1e-5)
        names |= {"classify"}
    assert set(signatures) == names
    masked = tf.where(tf.range(22) == 1, 4, batch["input_ids"]) * batch["input_mask"]
    masks = tf.reduce_sum(tf.cast(masked == 4, tf.int32))
    answers = signatures["fill_mask"](**rows | dict(input_ids=masked))
    assert answers["words"].shape == (masks, savedmodel.TOP_K)
    assert answers["text"].numpy().tolist() == sorted(np.argwhere(masked.numpy() == 4)[:, 0])


def test_the_mask_has_its_own_name_too(served, tmp_path):
    """As in a SentencePiece model of another trainer."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on a mat"] * 9),
        model_writer=model,
        control_symbols=["[CLS]", "[SEP]", "<mask>"],
        **dict(pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, vocab_size=16, minloglevel=2),
    )
    (tmp_path / "a.model").write_bytes(model.getvalue())
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"))
    module = savedmodel.Served(served._replace(tokenizer=tokenizer))
    text = ["the <mask> sat [MASK]", "a<mask>", "<mask> <mask>at"]
    found = module.tokenize_masked(tf.constant(text))
    ids, splits = masked_words.frame_masked(tokenizer, text)
    assert found.to_list() == [row[1:-1].tolist() for row in np.split(ids, splits[1:-1])]
    assert np.sum(ids == tokenizer.mask_id) == 5


def test_it_needs_a_vocabulary_and_leaves_nothing(served, tmp_path):
    with pytest.raises(UserError, match="the model has no vocabulary; give --vocab_file"):
        savedmodel.write(served._replace(tokenizer=None), str(tmp_path / "x"))
    assert os.listdir(tmp_path) == []
