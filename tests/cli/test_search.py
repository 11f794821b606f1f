"""search finds the lines that the whole product of vectors says; its index follows a text that
grows, and is used for no other text or model.
"""

import copy
import dataclasses
import functools
import gzip
import json
import os
import types

import numpy as np
import pytest
import tensorflow as tf

import bert_gpu
from bert_gpu.base.files import only_writer
from bert_gpu.base.nearest import units
from bert_gpu.cli import flags
from bert_gpu.cli import search as command
from bert_gpu.inference import lines, search
from bert_gpu.inference.config import EmbedConfig
from bert_gpu.inference.embeddings import Embedder
from bert_gpu.interop import models
from tests.interop.test_sentence_models import RULES, WORDS, sentence_model, tokenizer

__all__ = ["tokenizer"]  # a fixture
QUERIES = ["ba", "fo fu", "gi ki ga"]


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory):
    """The folder of a sentence model with prefixes."""
    folder = str(tmp_path_factory.mktemp("search") / "model")
    models.write_own(sentence_model(tokenizer, RULES["mean"]), folder)
    return folder


@pytest.fixture(scope="module")
def embedder(model):
    return open_once(model, None, None)


@pytest.fixture
def text(tmp_path):
    """60 different lines, some of them blank, with line ends of two kinds."""
    generator = np.random.default_rng(5)
    rows = [" ".join(generator.choice(WORDS, n, False)) for n in generator.integers(3, 7, 60)]
    rows[3] = rows[40] = "  "
    assert len(set(rows)) == 59
    path = tmp_path / "text.txt"
    text = "".join([*(f"{row}\r\n" for row in rows[:9]), "\n".join(rows[9:])])
    path.write_bytes(text.encode("utf-8-sig"))
    return path


@pytest.fixture(autouse=True)
def one_embedder(monkeypatch):
    """Models are opened once, because that takes half a second."""
    monkeypatch.setattr(search, "Embedder", opened)


def opened(config):
    names = ("model", "pooling", "max_seq_length")
    return open_once(*(getattr(config, name) for name in names))


@functools.cache
def open_once(model, pooling, max_seq_length):
    return Embedder(EmbedConfig(model=model, pooling=pooling, max_seq_length=max_seq_length))


def rows_of(path):
    """[(number, line)] of the lines that are not blank."""
    decoded = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    return [(number, line) for number, line in enumerate(decoded, 1) if line.strip()]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def expected(embedder, path, k, queries=QUERIES):
    rows = rows_of(path)
    passages = unit(embedder([line for _, line in rows], "passage"))
    scores = unit(embedder(queries, "query")).astype(np.float64) @ passages.T
    best = np.argsort(-scores, 1, kind="stable")[:, :k]
    return [[(score[i], *rows[i]) for i in row] for row, score in zip(best, scores, strict=True)]


def check(found, wanted):
    places = [[[match[1:] for match in row] for row in part] for part in (found, wanted)]
    assert places[0] == places[1]
    scores = [[[match[0] for match in row] for row in part] for part in (found, wanted)]
    np.testing.assert_allclose(*scores, rtol=0, atol=1e-6)


def ask(model, path, **more):
    (path.parent / "queries.txt").write_text("\n".join(QUERIES))
    return bert_gpu.search(
        **dict(model=model, input=path, index=path.parent / "index", quiet=True)
        | dict(query_file=path.parent / "queries.txt")
        | more
    )


def fails(capsys, model, path, *more):
    """The line of an error with exit code 2, after which the index has the same files."""
    index = path.parent / "index"
    before = contents(index)
    arguments = [f"--model={model}", f"--input={path}", f"--index={index}", "--quiet", *more]
    assert flags.exit_code(command.main, ["search", *arguments]) == 2
    assert contents(index) == before
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == "" and len(line) <= 300
    return line


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*") if path.name[0] != "."}


def test_the_nearest_lines_are_those_of_the_whole_product(model, embedder, text):
    check(ask(model, text, top_k=4), expected(embedder, text, 4))
    check(ask(model, text, top_k=99), expected(embedder, text, 99))
    assert len(rows_of(text)) == 58 and list(contents(text.parent / "index")) != []
    packed = text.parent / "text.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes()))
    check(ask(model, packed), expected(embedder, text, 5))


@pytest.mark.parametrize("size", [1, 40, 200])
def test_the_size_of_windows_does_not_matter(size, model, embedder, text, monkeypatch):
    monkeypatch.setattr(lines, "WINDOW_BYTES", size)
    monkeypatch.setattr(lines, "WINDOW_LINES", 1 + size // 40)
    check(ask(model, text), expected(embedder, text, 5))


@pytest.mark.parametrize("more", ["\nba gu\n\nfo", "\n", "\n \nku\r\n"])
def test_lines_that_are_added_to_the_text_are_added_to_the_index(more, model, embedder, text):
    ask(model, text)
    vectors = text.parent / "index" / "vectors.f32"
    before = vectors.read_bytes()
    with text.open("a", newline="") as file:
        file.write(more)
    check(ask(model, text), expected(embedder, text, 5))
    after = vectors.read_bytes()
    assert len(after) == len(rows_of(text)) * embedder.width * 4
    assert after.startswith(before)
    stamp = vectors.stat().st_mtime_ns
    check(ask(model, text), expected(embedder, text, 5))  # and nothing is left to add
    assert vectors.stat().st_mtime_ns == stamp


CHANGES = {
    "changed": lambda data: data.replace(b"b", b"d", 1),
    "shorter": lambda data: data[:-8],
    "grown": lambda data: data + b"ba\n",  # its last line
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_text_is_an_error_until_the_index_is_made_anew(name, model, embedder, text, capsys):
    ask(model, text)
    text.write_bytes(CHANGES[name](text.read_bytes()))
    line = fails(capsys, model, text)
    assert "no longer begins with the 60 lines of the index; give --overwrite" in line
    check(ask(model, text, overwrite=True), expected(embedder, text, 5))
    check(ask(model, text), expected(embedder, text, 5))


OTHERS = {
    "model": dict(prefixes=dict(query="", passage="du ")),
    "pooling": dict(pooling="cls"),
    "max_seq_length": dict(max_seq_length=5),
}


def half(embedder):
    """A change to an Embedder: the weights of its matrices, and its products, in bfloat16."""
    weights = {
        name: tf.cast(weight, tf.bfloat16) if weight.shape.rank > 1 else weight
        for name, weight in embedder.opened.weights.items()
    }
    return dict(opened=dataclasses.replace(embedder.opened, dtype=tf.bfloat16, weights=weights))


@pytest.mark.parametrize("name", [*OTHERS, "precision"])
def test_vectors_of_another_origin_are_an_error(name, model, embedder, text, capsys, monkeypatch):
    ask(model, text)
    other = copy.copy(embedder)
    vars(other).update(OTHERS.get(name) or half(embedder))
    monkeypatch.setattr(search, "Embedder", lambda config: other)
    message = f"was made with another --{name}; name that, or another folder, or give --overwrite"
    assert message in fails(capsys, model, text)


def test_other_weights_are_another_model_and_a_prefix_of_queries_is_not(
    model, tokenizer, text, tmp_path, capsys
):
    ask(model, text)
    other = sentence_model(tokenizer, RULES["mean"])
    other.weights["embeddings/word"][7] += 1e-3
    models.write_own(other, str(tmp_path / "weights"))
    assert "was made with another --model" in fails(capsys, tmp_path / "weights", text)
    same = sentence_model(tokenizer, RULES["mean"]._replace(query_prefix=""))
    models.write_own(same, str(tmp_path / "query"))
    ask(tmp_path / "query", text)


def write(name):
    return lambda folder: (folder / name).write_text("{}")


WRONG = {
    "no text": (lambda folder: os.remove(folder / "text.txt"), "text.txt: no such file"),
    "empty": (lambda folder: (folder / "text.txt").write_text(""), "is empty; it needs a text a"),
    "blank": (lambda folder: (folder / "text.txt").write_text("\n \n"), "is empty; it needs a"),
    "bytes": (lambda folder: (folder / "text.txt").write_bytes(b"a\nb\xff\n"), "line 2"),
    "pipe": (
        lambda folder: os.remove(folder / "text.txt") or os.mkfifo(folder / "text.txt"),
        "is a pipe (FIFO), not a file",
    ),
    "gzip": (lambda folder: (folder / "text.txt").write_bytes(b"\x1f\x8b\x08ab"), "gzip archive"),
    "file": (write("index"), "index: "),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_text_or_folder_is_one_line(name, model, text, capsys):
    change, message = WRONG[name]
    change(text.parent)
    assert message in fails(capsys, model, text, "--query=ba", "--overwrite")


DAMAGES = {
    "has no": lambda data: b"{}",
    "not valid JSON": lambda data: data[:50],
    "does not match its checksum": lambda data: data.replace(b'"num_lines": 60', b'"num_lines": 9'),
}


@pytest.mark.parametrize("problem", DAMAGES)
def test_a_damaged_index_is_one_line_and_is_made_anew(problem, model, embedder, text, capsys):
    ask(model, text)
    notes = text.parent / "index" / "index.json"
    notes.write_bytes(DAMAGES[problem](notes.read_bytes()))
    line = fails(capsys, model, text)
    assert f"index.json: {problem}" in line and "give --overwrite to make the index anew" in line
    check(ask(model, text, overwrite=True), expected(embedder, text, 5))


def test_wrong_queries_are_one_line(model, text, tmp_path, capsys):
    ask(model, text)
    assert "--query= : is empty; write what to find" in fails(capsys, model, text, "--query= ")
    assert "no such file" in fails(capsys, model, text, f"--query_file={tmp_path}/x.txt")
    assert "needs two names, such as" in fails(capsys, model, text, "--input=-")


def test_an_index_that_another_process_writes_is_left_to_it(model, text, capsys):
    with only_writer(str(text.parent / "index"), "index", "index"):
        assert "another process" in fails(capsys, model, text)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_failure_while_indexing_leaves_the_old_index(
    is_new, model, embedder, text, capsys, monkeypatch
):
    whole = text.read_bytes()
    if not is_new:
        text.write_bytes(whole[: whole.index(b"\n", 100) + 1])
        ask(model, text)
    text.write_bytes(whole)
    index = text.parent / "index"
    before = contents(index)
    monkeypatch.setattr(lines, "WINDOW_BYTES", 40)

    def broken(vectors):
        if next(left) == 0:
            raise OSError(28, "No space left on device")
        return units(vectors)

    left = iter(range(3, -1, -1))
    monkeypatch.setattr(search, "units", broken)
    arguments = ["search", f"--model={model}", f"--input={text}", f"--index={index}", "--quiet"]
    assert flags.exit_code(command.main, arguments) == 2
    assert "No space left" in capsys.readouterr().err
    after = contents(index)
    assert after.pop("vectors.f32").startswith(before.pop("vectors.f32", b""))
    assert after == before
    monkeypatch.setattr(search, "units", units)
    check(ask(model, text), expected(embedder, text, 5))


def test_what_a_kill_leaves_does_no_harm(model, embedder, text):
    """Before any of: the rows of vectors.f32, index.json."""
    index, whole = text.parent / "index", text.read_bytes()
    part = whole[: whole.index(b"\n", 200) + 1]
    index.mkdir()
    (index / "vectors.f32").write_bytes(b"part of a row")
    text.write_bytes(part)
    ask(model, text)
    old = (index / "index.json").read_bytes()
    text.write_bytes(whole)
    ask(model, text)
    (index / "index.json").write_bytes(old)  # killed while vectors.f32 got its new rows
    with (index / "vectors.f32").open("ab") as file:
        file.truncate(file.tell() - 9)
    check(ask(model, text), expected(embedder, text, 5))
    (index / "index.json").unlink()
    check(ask(model, text), expected(embedder, text, 5))


def damaged(data, generator):
    """Yield bytes with one damage each: of some of them, of a block, or of a row."""
    size, row = len(data), 64
    for place in [0, size - 1, *generator.integers(0, size, 12)]:
        yield data[:place] + bytes([data[place] ^ 1 << generator.integers(8)]) + data[place + 1 :]
        yield data[:place]
    for start in generator.integers(0, size - 2 * row, 8):
        length = int(generator.integers(4, row))
        for byte in (b"\0", b"\xff"):
            yield data[:start] + byte * length + data[start + length :]
    for first, second in generator.choice(size // row, (8, 2), replace=False):
        rows = [data[place : place + row] for place in range(0, size, row)]
        rows[first], rows[second] = rows[second], rows[first]
        yield b"".join(rows)
    yield data[row:] + data[:row]
    yield b""


@pytest.mark.parametrize("block", [64, 100, 1 << 20])
def test_vectors_that_are_not_those_that_were_written_are_one_line(
    block, model, embedder, text, capsys, monkeypatch
):
    monkeypatch.setattr(search, "BLOCK_BYTES", block)
    whole = text.read_bytes()
    text.write_bytes(whole[: whole.index(b"\n", 600) + 1])
    ask(model, text)
    text.write_bytes(whole)
    ask(model, text)  # in the middle of a block
    vectors = text.parent / "index" / "vectors.f32"
    data = vectors.read_bytes()
    message = "index: its vectors.f32 is damaged or missing; give --overwrite"
    cases = list(damaged(data, np.random.default_rng(1)))
    for case in cases:
        assert case != data
        vectors.write_bytes(case)
        assert message in fails(capsys, model, text)
    vectors.write_bytes(data + b"rows of a search that was killed")
    check(ask(model, text), expected(embedder, text, 5))
    vectors.unlink()
    assert message in fails(capsys, model, text)
    check(ask(model, text, overwrite=True), expected(embedder, text, 5))
    assert vectors.read_bytes() == data and len(cases) == 54


def test_an_index_that_lacks_an_entry_is_made_anew(model, embedder, text, capsys):
    ask(model, text)
    path = text.parent / "index" / "index.json"
    notes = json.loads(path.read_text())
    del notes["checksums"], notes["crc32c"]
    path.write_text(json.dumps(notes))
    assert "index.json: has no 'checksums'; give --overwrite" in fails(capsys, model, text)
    check(ask(model, text, overwrite=True), expected(embedder, text, 5))


def test_standard_input_is_answered_line_by_line(model, embedder, text, capsys, monkeypatch):
    printed = []

    def arriving():
        for query in QUERIES:
            yield f"{query}\r\n".encode()
            printed.append(capsys.readouterr().out)
        yield b"\n"
        yield b""

    stream = types.SimpleNamespace(readline=arriving().__next__)
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=stream))
    arguments = [f"--model={model}", f"--input={text}", f"--index={text.parent}/index"]
    call = ["search", *arguments, "--query_file=-", "--json", "--top_k=2", "--quiet"]
    assert flags.exit_code(command.main, call) == 0
    answers = [json.loads(line) for line in printed]
    assert [answer["query"] for answer in answers] == QUERIES
    keys = ("score", "number", "text")
    found = [[tuple(line[key] for key in keys) for line in a["lines"]] for a in answers]
    check(found, expected(embedder, text, 2))


def test_a_command_line_prints_score_number_and_line(model, embedder, text, capsys):
    arguments = [f"--model={model}", f"--input={text}", f"--index={text.parent}/index"]
    assert flags.exit_code(command.main, ["search", *arguments, "--query=ba", "--top_k=2"]) == 0
    (wanted,) = expected(embedder, text, 2, ["ba"])
    out = capsys.readouterr().out
    shown = [line for line in out.splitlines() if line.startswith("  ")]
    assert shown == [f"  {score:.4f}  {number}  {line}" for score, number, line in wanted]
    assert "58 of 58 lines are new; cut to --max_seq_length: 0" in out
