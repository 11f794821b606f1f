"""fill-mask prints the best words for each [MASK], as the model's own probabilities say; what it
cannot do is refused in one line.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from bert_gpu.cli import fill_mask, flags
from bert_gpu.inference import lines, masked_words
from bert_gpu.inference.config import FillMaskConfig
from bert_gpu.interop import huggingface
from bert_gpu.interop.models import tokenizer_files
from bert_gpu.model import heads
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder, encode
from bert_gpu.model.weights import initialize
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.tokenizers.hugging_face import learn_bpe
from bert_gpu.text.tokenizers.open import open_tokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import pretraining, task_heads

VOCAB = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "cat",
    "sat",
    "un",
    "##able",
    "mask",
    "[",
    "]",
    ".",
]
MODEL = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=12,
)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """(folder of a run with model/, its weights)."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    weights = {
        n: v * 20 if v.ndim == 2 else v
        for n, v in initialize(pretraining.weights(BertEncoder(MODEL)), 1).items()
    }
    vocab = WordPieceTokenizer(str(folder / "vocab.txt"))
    huggingface.write_model(
        str(folder / "model"),
        MODEL,
        weights,
        "BertForPreTraining",
        files=tokenizer_files(vocab, MODEL),
    )
    return folder, weights


def call(capsys, *arguments):
    code = flags.exit_code(fill_mask.main, ["fill-mask", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_five_words_for_each_mask_are_the_models_best(pretrained, capsys):
    folder, weights = pretrained
    code, out, _ = call(capsys, "The [MASK] un[MASK].", f"--model={folder / 'model'}")
    lines = [line.split() for line in out.splitlines()]
    assert (
        code == 0
        and len(lines) == 12
        and lines[0] == ["[MASK]", "1"]
        and lines[6] == ["[MASK]", "2"]
    )
    ids = np.array([[2, 5, 4, 8, 4, 13, 3]], np.int32)  # [CLS] the [MASK] un [MASK] . [SEP]
    batch = dict(input_ids=ids, input_mask=np.ones_like(ids), segment_ids=np.zeros_like(ids))
    batch = {name: tf.constant(value) for name, value in batch.items()}
    logits = heads.mlm_logits(weights, encode(weights, batch, MODEL), tf.constant([[2, 4]]), MODEL)
    for position, shown in enumerate([lines[1:6], lines[7:]]):
        probabilities = tf.nn.softmax(logits[0, position]).numpy()
        best = np.argsort(-probabilities)[:5]
        assert [word for _, word in shown] == [VOCAB[piece] for piece in best]
        np.testing.assert_allclose(
            [float(share) for share, _ in shown], probabilities[best], atol=1e-4
        )


def test_the_models_own_name_of_the_mask_is_as_good_as_ours(tmp_path, capsys):
    """As users of RoBERTa type it; a text with neither is refused with both names."""
    texts = ["the [MASK] sat [MASK].", "the <mask> sat <mask>."]
    content = sentence_piece.learn_sentencepiece({"the": 9, "cat": 9, "sat": 5}, 20)
    model = sentencepiece_model_pb2.ModelProto.FromString(content)
    next(one for one in model.pieces if one.piece == "[MASK]").piece = "<mask>"
    (tmp_path / "x.model").write_bytes(model.SerializeToString())
    pieces = open_tokenizer(str(tmp_path / "x.model"), None)
    ids, splits = masked_words.frame_masked(pieces, texts)
    assert ids[: splits[1]].tolist() == ids[splits[1] :].tolist()
    assert masked_words.mask_counts(ids, splits, pieces.mask_id).tolist() == [2, 2]

    words = sentence_piece.count_words([["the cat sat on the mat"] * 9])
    (tmp_path / "tokenizer.json").write_bytes(learn_bpe(words, 270, False))
    vocab = open_tokenizer(str(tmp_path / "tokenizer.json"), None)
    config = dataclasses.replace(MODEL, vocab_size=vocab.vocab_size)
    weights = initialize(pretraining.weights(BertEncoder(config)), 1)
    files = tokenizer_files(vocab, config)
    folder = tmp_path / "model"
    huggingface.write_model(str(folder), config, weights, "BertForPreTraining", files=files)
    answers = fill_mask.main(["x", f"--model={folder}", *texts, "a <mask>"], in_program=True)
    assert answers[0] == answers[1] and list(map(len, answers)) == [2, 2, 1]
    code, _, err = call(capsys, f"--model={folder}", "the mask")
    assert code == 2 and "has no [MASK] and no <mask>; write" in err


def test_a_runs_folder_and_flags_on_either_side(pretrained, capsys):
    code, out, _ = call(capsys, f"--model={pretrained[0]}", "[MASK]", "--top_k=99")
    assert code == 0 and len(out.splitlines()) == 1 + len(VOCAB)


def test_lines_of_a_file_get_the_answers_that_each_gets_alone(pretrained, capsys, tmp_path):
    texts = ["the [MASK]", "no mask", "[MASK] un[MASK] . the cat [MASK]", "the cat sat [MASK] ."]
    alone = [call(capsys, f"--model={pretrained[0]}", text)[1] for text in texts if "[" in text]
    model = f"--model={pretrained[0]}"
    code, out, err = call(capsys, model, *(text for text in texts if "[" in text))
    asked = iter(alone)
    together = "".join(f"{text}\n{next(asked)}" for text in texts if "[" in text)
    assert code == 0 and out == together, err
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    source = [model, f"--input={tmp_path / 'texts.txt'}"]
    assert call(capsys, *source)[1].replace("no mask\n", "") == together
    target = f"--output={tmp_path / 'answers.jsonl'}"
    code, out, err = call(capsys, *source, target, "--top_k=1")
    assert code == 0 and "answers for 4 texts" in out, err
    found = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [line["text"] for line in found] == texts
    assert [len(line["masks"]) for line in found] == [1, 0, 3, 1]
    best = [words.split()[1:3] for words in together.split("[MASK] ") if words[0].isdigit()]
    masks = [mask for line in found for mask in line["masks"]]
    assert [[f"{mask[0]['probability']:.4f}", mask[0]["word"]] for mask in masks] == best
    assert call(capsys, *source, target)[0] == 2  # it exists
    (tmp_path / "texts.txt").write_text("the [MASK]\n" + "cat " * 9 + "the [MASK]\n")
    code, _, err = call(capsys, *source, target, "--overwrite")
    problem = "of 2 texts 1 (line 2) longer than the 12 tokens that the model takes, which get no"
    assert code == 0 and problem in err and err.count("\n") == 1
    found = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [len(line["masks"]) for line in found] == [1, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "texts.txt"]


def test_an_empty_file_is_refused_as_embed_does(pretrained, capsys, tmp_path):
    (tmp_path / "texts.txt").touch()
    given = [f"--model={pretrained[0]}", f"--input={tmp_path}/texts.txt"]
    for more in ([], [f"--output={tmp_path}/answers.jsonl"]):
        code, out, err = call(capsys, *given, *more)
        assert (code, out) == (2, "") and "texts.txt: is empty; it needs a text a line" in err
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["the cat sat"], ["has no [MASK]"]),
        (["the [mask]"], ["has no [MASK]", "capitals"]),
        ([], ["a text is needed, in quotes", "--input=FILE"]),
        (["the", "[MASK]"], ["'the': has no [MASK]"]),
        (["[MASK]", "--input=x"], ["--input=x", "not both"]),
        (["[MASK]", "--output=x"], ["--output=x: has no effect without --input"]),
        (["--input=nowhere"], ["nowhere: no such file"]),
        (["the [MASK] " + "cat " * 9], ["13 tokens", "12 positions"]),
        (["[MASK]", "--model=nowhere"], ["--model=nowhere"]),
        (["[MASK]", "--top_k=0"], ["--top_k=0"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(pretrained, capsys, arguments, parts):
    code, out, err = call(capsys, f"--model={pretrained[0]}", *arguments)
    assert code == 2 and not out and err.count("\n") == 1 and all(part in err for part in parts), (
        err
    )


@pytest.mark.parametrize(
    "name, content, part",
    [
        ("model.safetensors", b"\0" * 40, "not a complete safetensors file"),
        ("model.safetensors", None, "model.safetensors: cannot be read"),
        ("config.json", b"[]", "JSON object"),
        ("config.json", b'{"vocab_size": -1}', "vocab_size=-1"),
        ("vocab.txt", b"", "is empty; one piece"),
        ("vocab.txt", b"\xff\n", "not UTF-8"),
        ("vocab.txt", None, "vocab.txt: is a folder"),
        ("tokenizer_config.json", b'{"do_lower_case": 5}', "do_lower_case=5"),
    ],
)
def test_garbage_in_the_models_folder_is_named(pretrained, capsys, tmp_path, name, content, part):
    """content None puts a folder in the file's place."""
    shutil.copytree(pretrained[0] / "model", tmp_path / "model")
    path = tmp_path / "model" / name
    path.unlink()
    path.mkdir() if content is None else path.write_bytes(content)
    code, out, err = call(capsys, f"--model={tmp_path / 'model'}", "[MASK]")
    assert (
        code == 2 and not out and err.count("\n") == 1 and part in err and str(tmp_path) in err
    ), err


@pytest.mark.parametrize(
    "text", ["[MASK]", "  \n[MASK]\t ", "x" * 100_000 + "[MASK]", "\udcff\0[MASK]"]
)
def test_odd_texts_are_answered(pretrained, capsys, text):
    code, out, _ = call(capsys, f"--model={pretrained[0]}", text)
    assert code == 0 and len(out.splitlines()) == 6


def test_a_model_whose_writing_was_killed_is_found_by_the_message(pretrained, capsys, tmp_path):
    shutil.copytree(pretrained[0] / "model", tmp_path / ".model.99.old")
    for model in (tmp_path / "model", tmp_path):
        code, _, err = call(capsys, f"--model={model}", "[MASK]")
        assert code == 2 and err.count("\n") == 1 and str(tmp_path / ".model.99.old") in err


def test_a_classifier_cannot_guess_words(pretrained, capsys, tmp_path):
    weights = initialize(task_heads.specs("classifier", BertEncoder(MODEL), 2), 1)
    vocab = WordPieceTokenizer(str(pretrained[0] / "vocab.txt"))
    huggingface.write_model(
        str(tmp_path),
        MODEL,
        weights,
        "BertForSequenceClassification",
        ("no", "yes"),
        tokenizer_files(vocab, MODEL),
    )
    code, _, err = call(capsys, f"--model={tmp_path}", "[MASK]")
    assert code == 2 and "cannot guess words" in err


def test_lines_without_words_are_counted_and_named(pretrained, capsys, tmp_path, monkeypatch):
    """Lines without [MASK], also those that mean one, and lines with more tokens than positions;
    the others are answered as if they were alone.
    """
    filler = masked_words.MaskFiller(FillMaskConfig(model=str(pretrained[0]), top_k=1))
    monkeypatch.setattr(masked_words, "MaskFiller", lambda config: filler)
    monkeypatch.setattr(lines, "WINDOW_LINES", 3)
    source, target = tmp_path / "texts.txt", tmp_path / "answers.jsonl"
    words = st.sampled_from(["the", "cat", "[MASK]"])  # a token each
    texts = st.lists(words, max_size=4) | st.lists(words, min_size=9, max_size=12)
    texts = texts.map(" ".join) | st.sampled_from(["[mask]", "<mask>", "[ MASK]", "MASK", "_"])

    def named(numbers):
        more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
        plural = "s" if len(numbers) > 1 else ""
        return f" {len(numbers)} (line{plural} {', '.join(map(str, numbers[:3]))}{more}) "

    @settings(max_examples=30)
    @given(st.lists(texts, min_size=1, max_size=9).filter(any))
    def check(texts):
        source.write_text("".join(f"{text}\n" for text in texts))
        code, _, err = call(capsys, f"--input={source}", f"--output={target}", "--overwrite")
        assert code == 0
        without, too_long = [], []
        for number, text in enumerate(texts, 1):
            if "[MASK]" not in text:
                without.append(number)
            elif len(text.split()) + 2 > MODEL.max_position_embeddings:
                too_long.append(number)
        warnings = err.splitlines()
        assert len(warnings) == bool(without) + bool(too_long)
        assert not without or f"{named(without)}without [MASK]" in warnings[0]
        assert not too_long or f"{named(too_long)}longer than the 12 tokens" in warnings[-1]
        answers = [json.loads(line) for line in target.read_text().splitlines()]
        assert [answer["text"] for answer in answers] == texts
        for number, answer in enumerate(answers, 1):
            expected = 0 if number in too_long else answer["text"].count("[MASK]")
            assert len(answer["masks"]) == expected

    check()
