"""evaluate scores texts and minimal pairs as one masked copy at a time does."""

import collections
import dataclasses
import gzip
import json
import pathlib
import re
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.base.console import Console
from bert_gpu.data import masking
from bert_gpu.data.random_bits import derive_key, row_keys
from bert_gpu.inference import evaluation
from bert_gpu.inference.config import EvaluateConfig
from bert_gpu.inference.evaluation import SHARE, Scorer, evaluate, score_texts
from bert_gpu.interop import huggingface
from bert_gpu.interop.models import tokenizer_files
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, encode
from bert_gpu.model.weights import initialize
from bert_gpu.text.framing import frame
from bert_gpu.text.tokenizers.hugging_face import learn_bpe
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import pretraining
from tests.interop.test_huggingface import needs_oracle, oracle_environment, oracle_python

QUIET = Console(quiet=True)
VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sat ran on un ##able ##s ##ly . ,".split()
MODEL = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=20,
)
TEXTS = [
    "the cat sat on the dog .",
    "cats",
    "",
    "a dog ran , unablely , on unablesly cats",
    "the",
    "unknown dog " * 7,
    "the cat sat on the dog , the cat sat on the dog , the cat sat on a dog , cats .",  # too long
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(folder of a model, its weights, which are large, so that words differ)."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    vocab = WordPieceTokenizer(str(folder / "vocab.txt"))
    weights = {
        name: value * 20 if value.ndim == 2 else value
        for name, value in initialize(pretraining.weights(BertEncoder(MODEL)), 1).items()
    }
    files = tokenizer_files(vocab, MODEL)
    huggingface.write_model(str(folder / "own"), MODEL, weights, "BertForPreTraining", files=files)
    return folder / "own", weights, vocab


@pytest.fixture(scope="module")
def scorer(model):
    return Scorer(EvaluateConfig(), str(model[0]))


def log_probabilities(weights, copies, positions):
    """log softmax (C, V) of copies of one row (C, S), without padding, each at its position."""
    ids = tf.constant(copies, tf.int32)
    batch = dict(input_ids=ids, input_mask=tf.ones_like(ids), segment_ids=tf.zeros_like(ids))
    hidden = encode(weights, batch, MODEL)
    positions = tf.constant(positions, tf.int32)[:, None]
    return tf.nn.log_softmax(heads.mlm_logits(weights, hidden, positions, MODEL)[:, 0]).numpy()


def likelihoods(weights, vocab, text):
    """Both pseudo-log-likelihoods of a text, from all its masked copies."""
    ids = frame(vocab, [text], None, 20).ids.tolist()
    inner = range(1, len(ids) - 1)
    copies = []
    for position in inner:
        end = position + 1
        while VOCAB[ids[end]].startswith("##"):
            end += 1
        for last in (position + 1, end):
            copies.append([4 if position <= at < last else piece for at, piece in enumerate(ids)])
    if not copies:
        return [0.0, 0.0]
    found = log_probabilities(weights, copies, np.repeat(inner, 2))
    values = found[np.arange(len(copies)), np.repeat([ids[position] for position in inner], 2)]
    return values.reshape(-1, 2).sum(0)


def write_pairs(path, pairs, **more):
    lines = [json.dumps(dict(sentence_good=good, sentence_bad=bad) | more) for good, bad in pairs]
    path.write_text("\n".join(lines) + "\n")


def test_likelihoods_are_those_of_one_masked_copy_at_a_time(model, scorer):
    _, weights, vocab = model
    rows, is_cut = scorer.frame(TEXTS)
    values = scorer.pseudo_log_likelihoods(rows)
    expected = np.array([likelihoods(weights, vocab, text) for text in TEXTS]).T
    np.testing.assert_allclose(values, expected, atol=1e-4)
    assert is_cut.tolist() == [False] * 6 + [True] and rows.lengths[-1] == 20
    of_one_piece = [0, 2, 4, 5]  # texts whose words are single pieces
    assert (values[0, of_one_piece] == values[1, of_one_piece]).all()
    assert (values[0, [1, 3]] != values[1, [1, 3]]).all() and values[0, 2] == 0
    alone = log_probabilities(weights, [[2, 4, 3]], [1])[0, VOCAB.index("the")]
    assert values[0, 4] == pytest.approx(alone, abs=1e-5)


def test_the_size_of_batches_does_not_matter(scorer):
    rows, _ = scorer.frame(TEXTS * 3)
    first = scorer.pseudo_log_likelihoods(rows), scorer.masked_words(rows, 0)
    other = Scorer(EvaluateConfig(), scorer.opened.path)
    other.opened = dataclasses.replace(other.opened, batch_tokens=60)
    second = other.pseudo_log_likelihoods(rows), other.masked_words(rows, 0)
    for one, two in zip(first, second, strict=True):
        np.testing.assert_allclose(one, two, atol=2e-4)


def test_masks_follow_from_seed_and_line(model, scorer):
    _, weights, vocab = model
    spec = masking.MaskingSpec(
        max_predictions=4, share=SHARE, vocab_size=len(VOCAB), cls_id=2, sep_id=3, mask_id=4
    )
    totals = np.zeros(3)
    for line, text in enumerate(TEXTS, 5):
        ids = frame(vocab, [text], None, 20).ids[None]
        keys = row_keys(derive_key(0, "evaluate"), [line])
        masked = masking.mask_rows(ids, [ids.size], None, keys, spec)
        is_real = masked["masked_lm_weights"][0] > 0
        positions = masked["masked_lm_positions"][0][is_real]
        labels = masked["masked_lm_ids"][0][is_real]
        if len(labels):
            copies = np.repeat(masked["input_ids"], len(labels), 0)
            found = log_probabilities(weights, copies, positions)
            losses = found[np.arange(len(labels)), labels]
            totals += [-losses.sum(), (found.argmax(1) == labels).sum(), len(labels)]
    rows, _ = scorer.frame(TEXTS)
    np.testing.assert_allclose(scorer.masked_words(rows, 5), totals, atol=1e-4)
    other = Scorer(EvaluateConfig(seed=1), scorer.opened.path).masked_words(rows, 5)
    assert other[2] == totals[2] == 11 and abs(other[0] - totals[0]) > 1e-3


def test_a_text_is_scored_per_token_and_per_character(model, scorer, tmp_path):
    _, weights, vocab = model
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    scores = score_texts(scorer, str(tmp_path / "texts.txt"), QUIET)
    expected = np.array([likelihoods(weights, vocab, text) for text in TEXTS])
    num_tokens = sum(len(frame(vocab, [text], None, 20).ids) - 2 for text in TEXTS)
    assert (scores["texts"], scores["tokens"], scores["cut"]) == (6, num_tokens, 1)
    for kind, name in enumerate(("pll", "word_pll")):
        total = expected[:, kind].sum()
        assert scores[f"{name}_per_token"] == pytest.approx(total / num_tokens, abs=1e-5)
        whole = expected[:-1, kind].sum() / sum(map(len, TEXTS[:-1]))
        assert scores[f"{name}_per_character"] == pytest.approx(whole, abs=1e-5)
    masked = scorer.masked_words(scorer.frame(TEXTS)[0], 0)
    assert scores["mlm_loss"] == pytest.approx(masked[0] / masked[2])


def test_pairs_of_the_better_sentence_and_ties(model, scorer, tmp_path):
    """Twenty pairs: ten, and the same with the sentences swapped, so that chance is 50 %."""
    _, weights, vocab = model
    words = "cat dog cats dogs unable".split()
    pairs = [(f"the {a} sat on a {b} .", f"a {a} the sat on {b} .") for a in words for b in words][
        :10
    ]
    write_pairs(tmp_path / "order.jsonl", pairs)
    write_pairs(tmp_path / "swapped.jsonl", [pair[::-1] for pair in pairs])
    write_pairs(tmp_path / "same.jsonl", [(good, good) for good, _ in pairs], UID="equal")
    for name in ("order", "swapped"):
        path = tmp_path / f"{name}.jsonl"
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    (result,) = evaluate(EvaluateConfig(model=str(model[0]), input=str(tmp_path)), QUIET)
    found = result["phenomena"]
    assert list(found) == ["order", "equal", "swapped"]
    assert result["pairs"] == 30 and result["ties"] == 10 and result["cut"] == 0
    for kind, name in enumerate(("pll_accuracy", "word_pll_accuracy")):
        right = [
            likelihoods(weights, vocab, good)[kind] > likelihoods(weights, vocab, bad)[kind]
            for good, bad in pairs
        ]
        assert found["order"][name] == np.mean(right) and 0 < np.mean(right) < 1
        assert found["swapped"][name] == pytest.approx(1 - np.mean(right))
        assert found["equal"][name] == 0.5 and result[name] == pytest.approx(0.5)


def test_models_at_marks_stand_side_by_side(model, tmp_path, capsys, monkeypatch):
    for mark in ("0.1", "1"):
        (tmp_path / "run" / "marks" / mark).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / "marks" / mark).symlink_to(model[0])
    lines = [dict(step=1, progress=0.1, seconds=1800.0), dict(step=9, progress=1.0, seconds=7200.0)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    (tmp_path / "texts.txt").write_text("the cat sat\n")
    write_pairs(tmp_path / "x.jsonl", [("the cat", "cat the")])
    models = f"--model={tmp_path}/run/marks,{model[0]}"
    output = f"--output={tmp_path}/scores.json"
    arguments = ["bert-gpu", "evaluate", models, output, "--quiet"]
    assert command([*arguments, f"--input={tmp_path}/texts.txt"]) == 0
    heading, _, *lines = capsys.readouterr().out.splitlines()
    table = {cells[0]: cells[1:] for cells in (line.split("|")[1:-1] for line in lines)}
    table = {name.strip(): [*map(str.strip, cells)] for name, cells in table.items()}
    assert heading.split()[:2] == ["|", "model"]
    assert list(table)[:3] == ["mark", "hours", "texts"] and len(table) == 11
    assert table["mark"] == ["0.1000", "1.0000", "-"] and table["hours"] == [
        "0.5000",
        "2.0000",
        "-",
    ]
    assert all(len(set(row)) == 1 for name, row in list(table.items())[2:])
    content = json.loads((tmp_path / "scores.json").read_text())
    assert [row.get("hours") for row in content["models"]] == [0.5, 2.0, None]
    assert table["pll_per_token"][0] == f"{content['models'][0]['pll_per_token']:.4f}"
    assert command([*arguments, f"--input={tmp_path}/x.jsonl"]) == 2  # the output exists
    assert command([*arguments, f"--input={tmp_path}/x.jsonl", "--overwrite"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| pll_accuracy x ")
    monkeypatch.setattr(evaluation, "Scorer", pytest.fail)  # a wrong name is found before scoring
    arguments = ["bert-gpu", "evaluate", f"--model={model[0]},", f"--input={tmp_path}/texts.txt"]
    assert command(arguments) == 2
    assert "--model=: no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, content, parts",
    [
        (None, None, ["--input: a file or a folder is needed"]),
        ("-", None, ["a file or a folder is needed"]),
        ("texts.txt", "", ["texts.txt: is empty"]),
        ("texts.txt", "\n\n", ["texts.txt: is empty"]),
        ("missing.txt", None, ["missing.txt"]),
        ("x.jsonl", "", ["x.jsonl: is empty"]),
        ("x.jsonl", '{"sentence_good": "a"}\n', ["x.jsonl, line 1: is no minimal pair"]),
        ("x.jsonl", '{"sentence_good": "a", "sentence_bad": 1}\n', ["line 1: is no minimal pair"]),
        (
            "x.jsonl",
            '{"sentence_good": "a", "sentence_bad": "b"}\nthe cat\n',
            ["line 2: is no minimal pair; write an object of JSON", '"sentence_bad": "..."'],
        ),
        ("x.jsonl", "[1]\n", ["line 1: is no minimal pair"]),
        ("", None, ["has no file NAME.jsonl of pairs"]),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(model, tmp_path, capsys, name, content, parts):
    folder = tmp_path / "folder"
    folder.mkdir()
    if content is not None:
        (folder / name).write_text(content)
    arguments = [f"--model={model[0]}", f"--output={tmp_path}/scores.json", "--quiet"]
    if name is not None:
        arguments.append(f"--input={'-' if name == '-' else folder / name}")
    assert command(["bert-gpu", "evaluate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and captured.out == ""
    for part in parts:
        assert part in captured.err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_model_without_masked_words_is_refused_as_fill_mask_does(model, tmp_path, capsys):
    _, weights, vocab = model
    body = {name: value for name, value in weights.items() if not name.startswith("mlm")}
    files = tokenizer_files(vocab, MODEL)
    huggingface.write_model(str(tmp_path / "body"), MODEL, body, "BertModel", files=files)
    (tmp_path / "texts.txt").write_text("the cat\n")
    arguments = [f"--model={tmp_path}/body", f"--input={tmp_path}/texts.txt"]
    assert command(["bert-gpu", "evaluate", *arguments]) == 2
    assert "so it cannot guess words; name a pretrained model" in capsys.readouterr().err


@needs_oracle
def test_likelihoods_of_500_pairs_equal_those_of_minicons(tmp_path, sample_text):
    """On WordPiece and on a byte-level BPE, with pairs of two neighbouring words in both orders;
    the words are the pre-tokenizer's.
    """
    lines = pathlib.Path(sample_text).read_text().splitlines()
    starts = (re.match(r"([A-Za-z]+,? ){8}", line) for line in lines)
    lines = [start[0].strip() for start in starts if start][:500]
    texts = [text for line in lines for text in (line, re.sub(r"^(\S+) (\S+)", r"\2 \1", line))]
    counts = collections.Counter(" ".join(lines).split())
    letters = "abcdefghijklmnopqrstuvwxyz,."
    words = [word for word, _ in counts.most_common(800) if word.isalpha() and word.islower()]
    pieces = [*VOCAB[:5], *letters, *(f"##{letter}" for letter in letters[:-2]), *words]
    (tmp_path / "vocab.txt").write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    (tmp_path / "tokenizer.json").write_bytes(learn_bpe(counts, 1000, False))
    models = {}
    for file in ("vocab.txt", "tokenizer.json"):
        tokenizer = open_tokenizer(str(tmp_path / file), file == "vocab.txt")
        config = dataclasses.replace(
            MODEL, vocab_size=tokenizer.vocab_size, max_position_embeddings=80
        )
        weights = initialize(pretraining.weights(BertEncoder(config)), 1)
        weights = {name: value * 5 if value.ndim == 2 else value for name, value in weights.items()}
        path = str(tmp_path / file.split(".")[0])
        files = tokenizer_files(tokenizer, config)
        huggingface.write_model(path, config, weights, "BertForPreTraining", files=files)
        scorer = Scorer(EvaluateConfig(), path)
        models[path] = scorer.pseudo_log_likelihoods(scorer.frame(texts)[0]).T
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    script = pathlib.Path(__file__).with_name("likelihood_oracle.py")
    subprocess.run(
        [oracle_python(), script, tmp_path / "texts.json", tmp_path / "out.json", *models],
        env=oracle_environment(tmp_path),
        check=True,
    )
    theirs = json.loads((tmp_path / "out.json").read_text())
    assert len(texts) == 1000
    for path, ours in models.items():
        np.testing.assert_allclose(ours, theirs[path], atol=1e-4)
        assert np.abs(ours[:, 0] - ours[:, 1]).max() > 0.01  # within words is another number
