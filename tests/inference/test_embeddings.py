"""embed writes what the encoder computes for each line alone, in the lines' order, whatever the
batches; a file appears when it is whole.
"""

import gzip
import io
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import bert_gpu
from bert_gpu.__main__ import main as command
from bert_gpu.cli import embed, flags
from bert_gpu.inference import arrays, embeddings, lines, masked_words, opened
from bert_gpu.interop import huggingface
from bert_gpu.interop.models import tokenizer_files
from bert_gpu.model import encoder
from bert_gpu.model.config import ModelConfig
from bert_gpu.model.encoder import BertEncoder
from bert_gpu.model.weights import initialize
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests import pretraining

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "##b", "."]
MODEL = ModelConfig(
    vocab_size=len(VOCAB),
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=40,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(model folder, its weights, its tokenizer)."""
    folder = tmp_path_factory.mktemp("embed")
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    tokenizer = WordPieceTokenizer(str(folder / "vocab.txt"))
    weights = {
        name: value * 10 if value.ndim == 2 else value
        for name, value in initialize(pretraining.weights(BertEncoder(MODEL)), 1).items()
    }
    files = tokenizer_files(tokenizer, MODEL)
    huggingface.write_model(str(folder / "model"), MODEL, weights, files=files)
    return str(folder / "model"), weights, tokenizer


@pytest.fixture(scope="module")
def texts():
    """40 lines of different lengths, empty ones and one that is cut among them."""
    generator = np.random.default_rng(3)
    found = [" ".join(generator.choice(list("abcdefgh"), n)) for n in generator.integers(0, 30, 38)]
    return [*found, "", "a" * 3 + " b" * 90]


@pytest.fixture(scope="module")
def alone(trained, texts):
    """[hidden states (S, H) of each text, computed by itself]."""
    _, weights, tokenizer = trained

    @tf.function(autograph=False)
    def run(ids, mask):
        batch = dict(input_ids=ids, input_mask=mask, segment_ids=tf.zeros_like(ids))
        return encoder.encode(weights, batch, MODEL)

    rows = []
    for text in texts:
        ids = [tokenizer.cls_id, *tokenizer.tokenize([text])[0][:38], tokenizer.sep_id]
        row = np.zeros((2, 1, 40), np.int32)  # one shape, so that one program serves all
        row[:, 0, : len(ids)] = ids, np.ones(len(ids))
        rows.append(run(*map(tf.constant, row))[0, : len(ids)].numpy())
    return rows


def call(capsys, *arguments):
    code = flags.exit_code(embed.main, ["embed", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("pooling", ["cls", "mean", "none"])
def test_each_line_gets_what_the_encoder_gives_it_alone(
    trained, texts, alone, tmp_path, capsys, pooling, monkeypatch
):
    monkeypatch.setattr(lines, "WINDOW_LINES", 16)  # three windows
    monkeypatch.setitem(opened.BATCH_TOKENS, "CPU", 160)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    output = tmp_path / "new" / "texts.npy"
    code, out, err = call(
        capsys,
        f"--model={trained[0]}",
        f"--input={tmp_path / 'texts.txt'}",
        f"--output={output}",
        f"--pooling={pooling}",
    )
    assert code == 0 and "40 texts" in out and "cut to --max_seq_length: 1 texts" in out, err
    found = np.load(output, mmap_mode="r")
    assert found.dtype == np.float32
    close = lambda ours, expected: np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)  # noqa: E731
    if pooling == "cls":
        close(found, [row[0] for row in alone])
    elif pooling == "mean":
        close(found, [row.mean(0) for row in alone])
    else:
        offsets = np.load(output.with_name("texts.offsets.npy"))
        assert np.diff(offsets).tolist() == [len(row) for row in alone]
        close(found, np.concatenate(alone))
    expected = ["texts.npy"] + ["texts.offsets.npy"] * (pooling == "none")
    assert sorted(os.listdir(output.parent)) == sorted(expected)


def test_the_library_gives_the_same_arrays(trained, texts, alone):
    embedder = bert_gpu.Embedder(bert_gpu.EmbedConfig(model=trained[0], pooling="none"))
    hidden, offsets = embedder(texts)
    assert hidden.shape == (offsets[-1], 16) and len(offsets) == 41
    np.testing.assert_allclose(hidden, np.concatenate(alone), rtol=0, atol=1e-5)
    assert embedder([])[0].shape == (0, 16)


def test_the_librarys_functions_may_be_called_again(trained, tmp_path):
    """Modules of the room do not take their names."""
    (tmp_path / "x.txt").write_text("a b\n")
    for turn in range(2):
        output = str(tmp_path / f"{turn}.npy")
        done = bert_gpu.embed(model=trained[0], input=tmp_path / "x.txt", output=output)
        assert done.files == (output,) and np.load(output).shape == (1, 16)
        ((words,),) = bert_gpu.fill_mask(["a [MASK]"], model=trained[0], top_k=2)
        assert len(words) == 2


class Stdin(io.BytesIO):
    @property
    def buffer(self):
        return self

    def isatty(self):
        return False


@pytest.mark.parametrize("kind", ["gzip", "stdin"])
def test_text_comes_compressed_and_by_standard_input(trained, tmp_path, capsys, monkeypatch, kind):
    text = b"a b\r\n\nc"
    (tmp_path / "x.gz").write_bytes(gzip.compress(text))
    monkeypatch.setattr("sys.stdin", Stdin(text))
    source = f"--input={tmp_path / 'x.gz'}" if kind == "gzip" else "--input=-"
    code, _, err = call(
        capsys, f"--model={trained[0]}", source, f"--output={tmp_path}/x.npy", "--quiet"
    )
    assert code == 0, err
    expected = bert_gpu.Embedder(bert_gpu.EmbedConfig(model=trained[0]))(["a b", "", "c"])
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, rtol=0, atol=1e-6)


def test_batches_hold_rows_of_like_length_once_each(trained, monkeypatch):
    monkeypatch.setitem(opened.BATCH_TOKENS, "CPU", 64)
    embedder = bert_gpu.Embedder(bert_gpu.EmbedConfig(model=trained[0], max_seq_length=20))
    lengths = np.array([3, 20, 8, 9, 17, 2, 2, 16])
    found = list(embedder.opened.batches(lengths, 20))
    assert [(length, size) for _, length, size in found] == [(20, 3), (16, 4), (8, 8)]
    assert sorted(np.concatenate([rows for rows, _, _ in found])) == list(range(8))
    assert all(lengths[rows].max() <= length for rows, length, _ in found)


def test_many_models_of_one_process_are_traced_once_each(trained, caplog, monkeypatch):
    """TensorFlow warns of functions that are traced again and again, and prints their weights."""
    traces = []
    pooled = bert_gpu.Embedder._pooled
    monkeypatch.setattr(
        bert_gpu.Embedder, "_pooled", lambda *values: traces.append(1) or pooled(*values)
    )
    for count in range(1, 6):
        embedder = bert_gpu.Embedder(bert_gpu.EmbedConfig(model=trained[0]))
        embedder(["a", "a " * 30])
        assert len(traces) == count
    assert not caplog.records


def test_bfloat16_agrees_to_two_digits(trained):
    texts = ["a b c", "d"]
    exact, rough = (
        bert_gpu.Embedder(bert_gpu.EmbedConfig(model=trained[0], precision=precision))(texts)
        for precision in ("float32", "bfloat16")
    )
    assert rough.dtype == np.float32
    assert 0 < np.abs(exact - rough).max() < 0.1


@pytest.mark.parametrize(
    "arguments, part",
    [
        (["--output=x.txt"], "--output=x.txt: must be named NAME.npy"),
        (["--output=x.offsets.npy"], "must be named NAME.npy"),
        ([], "--output: a file for the results is needed"),
        (["--output=old.npy"], "--output=old.npy: exists; name another file, or give --overwrite"),
        (["--output=x.npy", "--input=nowhere.txt"], "nowhere.txt: no such file"),
        (["--output=x.npy", "--input=empty.txt"], "--input=empty.txt: is empty"),
        (["--output=x.npy", "--input=broken.gz"], "broken.gz: the archive is corrupt"),
        (["--output=x.npy", "--input=short.gz"], "short.gz: the archive is truncated"),
        (["--output=x.npy", "--input=."], "a folder"),
        (["--output=x.npy", "--max_seq_length=41"], "40 positions"),
        (["--output=old.npy/x.npy"], "--output=old.npy/x.npy: cannot be written"),
        (["--output=x.npy", "--pooling=max"], "--pooling=max"),
        (["--output=gs://x/x.npy"], "mounted file system"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    trained, tmp_path, capsys, monkeypatch, arguments, part
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("a b\nc\n")
    (tmp_path / "old.npy").write_text("old")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "broken.gz").write_bytes(b"no archive")
    (tmp_path / "short.gz").write_bytes(gzip.compress(b"a b c" * 99)[:-9])
    before = sorted(os.listdir())
    code, _, err = call(capsys, f"--model={trained[0]}", "--input=text.txt", *arguments)
    assert code == 2 and part in err and err.count("\n") == 1 and len(err) <= 301, err
    assert sorted(os.listdir()) == before and (tmp_path / "old.npy").read_text() == "old"


def test_a_full_disk_is_one_line_and_leaves_nothing(trained, tmp_path, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(arrays.os, "fsync", full)
    (tmp_path / "text.txt").write_text("a b\n")
    code, _, err = call(
        capsys,
        f"--model={trained[0]}",
        f"--input={tmp_path}/text.txt",
        f"--output={tmp_path}/x.npy",
    )
    assert code == 2 and "x.npy: cannot be written (No space left on device)" in err
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.mark.parametrize("name", ["embed", "fill-mask"])
def test_sigterm_leaves_nothing_and_ends_the_command(trained, tmp_path, monkeypatch, name):
    def told_to_stop(*_, **__):
        assert len(os.listdir(tmp_path)) == 1
        signal.raise_signal(signal.SIGTERM)
        yield [b"a [MASK]"]

    for module in (embeddings, masked_words):
        monkeypatch.setattr(module, "windows", told_to_stop)
    given = [f"--model={trained[0]}", "--input=-", f"--output={tmp_path}/x.npy"]
    with pytest.raises(SystemExit) as raised:
        command(["bert-gpu", name, *given])
    assert raised.value.code == 128 + signal.SIGTERM and os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_what_killed_processes_have_left_goes(tmp_path):
    """Of the same file alone, and not what a running process writes."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    stay = {f".x.npy.{os.getppid()}.partial", f".y.npy.{ended.pid}.partial", ".x.npy.partial"}
    for name in (*stay, f".x.npy.{ended.pid}.partial"):
        (tmp_path / name).touch()
    with arrays.PartialFile(str(tmp_path / "x.npy")):
        pass
    assert set(os.listdir(tmp_path)) == {*stay, "x.npy"}


@pytest.mark.parametrize("name", ["embed", "fill-mask"])
@pytest.mark.parametrize("length, is_refused", [(40, False), (41, True)])
def test_a_line_that_is_too_long_is_named(
    trained, tmp_path, capsys, monkeypatch, name, length, is_refused
):
    """It is refused before it is tokenized; in the middle of a file, and without an end."""
    monkeypatch.setattr(lines, "LINE_BYTES", 40)
    monkeypatch.setattr(lines.archives, "READ_BYTES", 16)
    for end in ("", "\nb\n"):
        (tmp_path / "x.txt").write_text("a\n" * 17 + "\n" + "a" * length + end)
        given = [f"--model={trained[0]}", f"--input={tmp_path}/x.txt", f"--output={tmp_path}/x.npy"]
        code = command(["bert-gpu", name, *given, "--overwrite"])
        told = capsys.readouterr().err
        assert code == (2 if is_refused else 0)
        assert told.count("x.txt: line 19 has more than 0 MB; write one text a line") == is_refused


def test_pieces_of_any_size_make_the_same_lines():
    text = b"a\r\n\nbb\ncc c"
    for size in range(1, len(text) + 1):
        pieces = [text[first : first + size] for first in range(0, len(text), size)]
        assert list(lines.plain_lines(pieces, "x")) == [b"a", b"", b"bb", b"cc c"]
