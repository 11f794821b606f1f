"""The command writes what the learners give for the text, in one file or two, and refuses bad input
before it writes a file.
"""

import gzip
import json
import os
import re
import sys

import pyarrow
import pytest
from pyarrow import parquet

from bert_gpu.base.console import format_bytes
from bert_gpu.cli import flags
from bert_gpu.cli import vocab as command
from bert_gpu.text import quality
from bert_gpu.text.corpus import plan_blocks
from bert_gpu.text.tokenizers.sentence_piece import SentencePieceTokenizer
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from bert_gpu.text.vocabulary import counting, learning, wordpiece_learner

TEXT = (
    "The painter paints a painting.\nThe walker walked to ﬁve walls.\n\n"
    "Teachers teach, and readers read.\n\n"
) * 20


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.setattr(quality, "COPIES_SHARE", 1)  # of which the text has more
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(capsys, *arguments):
    code = flags.exit_code(command.main, ["vocab", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_wordpiece_is_what_the_learner_gives(folder, capsys):
    code, out, _ = call(capsys, "--input_file=text.txt", "--vocab_size=60", "--vocab_file=out.txt")
    counts = counting.count_words_of_blocks(plan_blocks(["text.txt"], 1 << 20), True)
    expected = wordpiece_learner.learn_wordpiece(counts, 60)
    assert code == 0 and WordPieceTokenizer("out.txt").vocab == expected
    size = format_bytes(sum(block.num_bytes for block in plan_blocks(["text.txt"], 1 << 20)))
    assert out.splitlines()[-1].startswith(
        f"out.txt: {len(expected)} pieces from {size} of text in "
    )
    assert sorted(os.listdir()) == ["out.txt", "text.txt"]


def test_the_sample_text_is_the_default_and_cased_is_cased(folder, capsys):
    assert call(capsys, "--nodo_lower_case", "--quiet") == (0, "", "")
    pieces = WordPieceTokenizer("vocab.txt", do_lower_case=False).vocab
    assert any(piece.istitle() for piece in pieces) and len(pieces) > 1000


def test_sentencepiece_writes_a_model_and_its_pieces_when_named(folder, capsys):
    arguments = ["--input_file=text.txt", "--tokenization=SentencePiece", "--vocab_size=60"]
    code, out, _ = call(capsys, *arguments)
    tokenizer = SentencePieceTokenizer("sentencepiece.model")
    assert code == 0 and "sentencepiece.model: " in out and tokenizer.do_lower_case
    code, out, _ = call(capsys, *arguments, "--sp_model_file=b.model", "--vocab_file=b.txt")
    assert code == 0 and "b.model and b.txt: " in out
    assert (folder / "b.txt").read_text().splitlines() == tokenizer.vocab
    assert (folder / "b.model").read_bytes() == (folder / "sentencepiece.model").read_bytes()
    assert sorted(os.listdir()) == ["b.model", "b.txt", "sentencepiece.model", "text.txt"]


def test_compressed_json_gives_the_vocabulary_of_its_text(folder, capsys):
    lines = "".join(
        json.dumps({"body": document}) + "\n" for document in TEXT.split("\n\n") if document
    )
    (folder / "data").mkdir()
    (folder / "data" / "text.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    arguments = ["--vocab_size=60", "--quiet"]
    assert call(capsys, "--input_file=text.txt", "--vocab_file=a.txt", *arguments)[0] == 0
    json_flags = ["--input_format=jsonl", "--text_field=body", "--input_file=data"]
    assert call(capsys, "--vocab_file=b.txt", *json_flags, *arguments)[0] == 0
    assert (folder / "a.txt").read_bytes() == (folder / "b.txt").read_bytes()
    assert sorted(os.listdir()) == ["a.txt", "b.txt", "data", "text.txt"] and os.listdir(
        "data"
    ) == ["text.jsonl.gz"]
    code, _, err = call(capsys, "--vocab_file=c.txt", "--input_format=jsonl", "--input_file=data")
    assert code == 2 and err.startswith("data/text.jsonl.gz: line 1 has no field 'text'")
    assert sorted(os.listdir()) == ["a.txt", "b.txt", "data", "text.txt"]


def test_a_large_corpus_is_sampled(folder, capsys, monkeypatch):
    monkeypatch.setattr(counting, "SAMPLE_BYTES", 600)
    monkeypatch.setattr(learning, "BLOCK_BYTES", 200)
    code, out, _ = call(capsys, "--input_file=text.txt", "--vocab_file=a.txt", "--vocab_size=60")
    assert code == 0 and re.search(r"from a sample of [\d.]+ (bytes|kB) of [\d.]+ kB of text", out)


def test_a_file_that_is_there_is_kept(folder, capsys):
    (folder / "out.txt").write_text("mine")
    code, out, err = call(capsys, "--input_file=text.txt", "--vocab_file=out.txt")
    assert (
        code == 2
        and not out
        and "out.txt: exists already" in err
        and "--overwrite" in err
        and (folder / "out.txt").read_text() == "mine"
    )
    assert (
        call(
            capsys,
            "--input_file=text.txt",
            "--vocab_file=out.txt",
            "--overwrite",
            "--vocab_size=60",
        )[0]
        == 0
    )
    assert len(WordPieceTokenizer("out.txt").vocab) <= 60


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--input_file=absent.txt"], ["absent.txt: no such file"]),
        (["--input_file=broken.gz"], ["broken.gz: the archive is corrupt"]),
        (["--vocab_size=6"], ["--vocab_size=6"]),
        (["--vocab_file=nowhere/out.txt"], ["nowhere/out.txt", "make it first"]),
        (["--vocab_file=."], [".: is a folder"]),
        (["--vocab_file="], ["--vocab_file=: is empty"]),
        (["--sp_model_file=a.model"], ["--sp_model_file=a.model", "--tokenization=SentencePiece"]),
        (
            ["--tokenization=SentencePiece", "--sp_model_file="],
            ["--sp_model_file=: is empty"],
        ),
        (["--tokenization=SentencePiece", "--vocab_size=9"], ["--vocab_size=9: must be at least"]),
        (["--tokenization=bpe"], ["--tokenization=bpe"]),
        (["--language=english"], ["--language=english"]),
        (["text.txt"], ["not a flag"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, capsys, arguments, parts):
    (folder / "broken.gz").write_bytes(b"not compressed")
    code, _, err = call(capsys, "--input_file=text.txt", *arguments)
    assert code == 2 and err.count("\n") == 1 and all(part in err for part in parts), err
    assert sorted(os.listdir()) == ["broken.gz", "text.txt"]


def test_tables_and_standard_input_give_the_vocabulary_of_their_text(folder, capsys, monkeypatch):
    documents = [" ".join(text.split("\n")) for text in TEXT.split("\n\n") if text.strip()]
    parquet.write_table(pyarrow.table({"body": documents}), "text.parquet")
    arguments = ["--vocab_size=60"]
    assert call(capsys, "--input_file=text.txt", "--vocab_file=a.txt", *arguments)[0] == 0
    table = ["--input_file=text.parquet", "--vocab_file=b.txt", *arguments]
    code, out, _ = call(capsys, "--text_column=body", *table)
    assert code == 0 and out.startswith("input: 1 file, ") and "column 'body' (by its name)" in out
    with open("text.parquet") as file, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        stdin = ["--input_file=-", "--vocab_file=c.txt", "--text_column=body"]
        assert call(capsys, *stdin, *arguments)[0] == 0
    expected = (folder / "a.txt").read_bytes()
    assert (folder / "b.txt").read_bytes() == (folder / "c.txt").read_bytes() == expected
    code, _, err = call(capsys, *table, "--overwrite")
    assert code == 2 and err.startswith("text.parquet: has no column 'text'; give --text_column")
    assert sorted(os.listdir()) == ["a.txt", "b.txt", "c.txt", "text.parquet", "text.txt"]
    (folder / "page.txt").write_text("<p>One.</p>\n" * 9)
    page = ["--input_file=page.txt", "--vocab_file=d.txt", *arguments]
    code, _, err = call(capsys, *page, "--strict")
    assert code == 2 and err.startswith("--strict: ") and "markup" in err
    assert "warning: " in call(capsys, *page)[2]
