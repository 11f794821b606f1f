"""The data job with other input than plain lines: formats, archives, SentencePiece, cleaning,
order, through the command.
"""

import gzip
import json
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf
import zstandard

from bert_gpu.__main__ import main as command
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.inputs import expand_globs
from bert_gpu.data.manifest import read_manifest
from bert_gpu.data.pipeline import training_batches
from bert_gpu.text.sentences import split_sentences
from bert_gpu.text.tokenizers.open import open_tokenizer
from tests.cli.pretraining import SMALL

BASE = [
    "--max_seq_length=32",
    "--validation_share=0",
    "--vocab_size=400",
    "--quiet",
    "--masking=dynamic",
    "--objective=full_sentences",
]


def build(folder, text, *flags):
    return command(
        [
            "bert-gpu",
            "data",
            f"--input_file={text}",
            f"--output_file={folder}/x.tfrecord",
            *BASE,
            *flags,
        ]
    )


def rows(folder, epoch=0, shuffle=False):
    """The rows of a data set as token ids without padding, in the order of training
    without shuffling.
    """
    data = Dataset(InputConfig(input_file=f"{folder}/*.tfrecord", shuffle=shuffle))
    reader = data.reader("train", open_tokenizer(f"{folder}/{data.info.vocab_file}", True), 1)
    batch = next(training_batches(reader, batch_size=len(reader), position=0, shuffle=shuffle))
    ids = batch["input_ids"].copy()
    places, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    ids[places, batch["masked_lm_positions"][places, columns]] = batch["masked_lm_ids"][
        places, columns
    ]
    return [
        row[:length].tolist() for row, length in zip(ids, batch["input_mask"].sum(1), strict=True)
    ]


@pytest.fixture(scope="module")
def documents(sample_text):
    with open(sample_text) as file:
        return [document.splitlines() for document in file.read().strip().split("\n\n")][:20]


@pytest.fixture(scope="module")
def lines_file(tmp_path_factory, documents):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory, lines_file):
    folder = tmp_path_factory.mktemp("plain")
    assert build(folder, lines_file, "--order=as_is") == 0
    return folder


def test_archives_give_the_same_records(tmp_path, lines_file, plain):
    content = lines_file.read_bytes()
    packed = dict(gz=gzip.compress(content), zst=zstandard.compress(content))
    for ending, archive in packed.items():
        path = tmp_path / f"text.txt.{ending}"
        path.write_bytes(archive)
        assert build(tmp_path / ending, path, "--order=as_is") == 0
        assert rows(tmp_path / ending) == rows(plain)
        assert [
            name.name for name in (tmp_path / ending).iterdir() if name.name.startswith(".")
        ] == [".x.lock"]


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_text_and_vocabulary_with_a_scheme_give_the_same_records(tmp_path, lines_file, plain, name):
    content = lines_file.read_bytes()
    folder = f"ram://scheme-{name}"
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(f"{folder}/{name}", "wb") as file:
        file.write(gzip.compress(content) if name.endswith(".gz") else content)
    tf.io.gfile.copy(f"{plain}/vocab.txt", f"{folder}/vocab")
    vocabulary = f"--vocab_file={folder}/vocab"
    assert build(tmp_path / "out", f"{folder}/{name}", "--order=as_is", vocabulary) == 0
    assert rows(tmp_path / "out") == rows(plain)


def test_jsonl_in_a_folder(tmp_path, documents):
    """One JSON object a document, its sentences one paragraph, in a compressed file in a folder:
    exactly the rows of the sentences, one a line.
    """
    # in one document the splitter takes two sentences for one
    documents = [lines for lines in documents if split_sentences(" ".join(lines)) == lines]
    assert len(documents) == 19
    lines_file = tmp_path / "text.txt"
    lines_file.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n")
    assert build(tmp_path / "lines", lines_file, "--order=as_is") == 0
    folder = tmp_path / "in"
    folder.mkdir()
    content = "".join(json.dumps({"body": " ".join(document)}) + "\n" for document in documents)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    assert (
        build(
            tmp_path / "out", folder, "--input_format=jsonl", "--text_field=body", "--order=as_is"
        )
        == 0
    )
    assert rows(tmp_path / "out") == rows(tmp_path / "lines")


def test_broken_input_leaves_nothing(tmp_path, lines_file, capsys):
    broken = tmp_path / "text.txt.gz"
    broken.write_bytes(gzip.compress(lines_file.read_bytes())[:-20])
    assert build(tmp_path / "out", broken) == 2
    assert "text.txt.gz" in capsys.readouterr().err and os.listdir(tmp_path / "out") == [".x.lock"]
    bad = tmp_path / "x.jsonl"
    bad.write_text('{"text": "one"}\n{"text": 5}\n')
    assert build(tmp_path / "new", bad, "--input_format=jsonl") == 2
    error = capsys.readouterr().err
    assert "x.jsonl" in error and "line 2" in error and not (tmp_path / "new").exists()
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(bad.read_bytes()))
    assert build(tmp_path / "out", packed, "--input_format=jsonl") == 2
    assert "x.jsonl.gz" in capsys.readouterr().err and os.listdir(tmp_path / "out") == [".x.lock"]


def test_sentencepiece(tmp_path, lines_file):
    """Learnt, used, and used again by its file; whole words too."""
    assert (
        build(tmp_path / "a", lines_file, "--tokenization=SentencePiece", "--do_whole_word_mask")
        == 0
    )
    manifest = read_manifest(str(tmp_path / "a"))
    assert (
        manifest.vocab_file == "sentencepiece.model" and not (tmp_path / "a" / "vocab.txt").exists()
    )
    tokenizer = open_tokenizer(f"{tmp_path}/a/sentencepiece.model", True)
    assert tokenizer.decode(rows(tmp_path / "a")[0]).strip()
    flags = [
        "--tokenization=SentencePiece",
        "--do_whole_word_mask",
        f"--sp_model_file={tmp_path}/a/sentencepiece.model",
    ]
    assert build(tmp_path / "b", lines_file, *flags) == 0
    assert rows(tmp_path / "a") == rows(tmp_path / "b")
    train = [
        f"--input_file={tmp_path}/a/*.tfrecord",
        f"--output_dir={tmp_path}/run",
        "--num_train_steps=2",
        "--quiet",
    ]
    assert command(["bert-gpu", "pretrain", *train, *SMALL]) == 0
    assert (tmp_path / "run/model/sentencepiece.model").read_bytes() == (
        tmp_path / "a/sentencepiece.model"
    ).read_bytes()
    assert (
        command(["bert-gpu", "fill-mask", f"--model={tmp_path}/run/model", "the [MASK] is here"])
        == 0
    )
    for number, place in enumerate(("run/model", "a/sentencepiece.model")):
        flags = [f"--vocab_file={tmp_path}/{place}", "--do_whole_word_mask"]
        assert build(tmp_path / str(number), lines_file, *flags) == 0
        assert rows(tmp_path / "a") == rows(tmp_path / str(number))
    assert build(tmp_path / "c", lines_file, *flags, "--tokenization=WordPiece") == 2


def test_duplicates_are_dropped(tmp_path, lines_file, documents, plain, capsys):
    text = tmp_path / "repeated.txt"
    text.write_text(
        lines_file.read_text()
        + "\n"
        + "\n".join(documents[3])
        + "\n\n"
        + "\n".join(documents[0])
        + "\n"
    )
    vocab = f"--vocab_file={plain}/vocab.txt"
    flags = [flag for flag in BASE if flag != "--quiet"]
    shared = ["bert-gpu", "data", f"--input_file={text}", *flags, vocab, "--order=as_is"]
    assert command([*shared, f"--output_file={tmp_path}/out/x.tfrecord", "--drop_duplicates"]) == 0
    assert "dropped: 2 duplicates" in capsys.readouterr().out
    assert rows(tmp_path / "out") == rows(plain)


def test_the_filter_drops_noise(tmp_path, lines_file, plain, capsys):
    text = tmp_path / "noise.txt"
    text.write_text("x9@ #q7 zz$ &k2 %%\n!! ?? ## 0x3f 7b1c\n\n" + lines_file.read_text())
    vocab = f"--vocab_file={plain}/vocab.txt"
    flags = [flag for flag in BASE if flag != "--quiet"]
    shared = ["bert-gpu", "data", f"--input_file={text}", *flags, vocab, "--order=as_is"]
    assert (
        command(
            [*shared, f"--output_file={tmp_path}/out/x.tfrecord", "--max_tokens_per_character=0.5"]
        )
        == 0
    )
    assert "dropped: 1 with too many tokens per character" in capsys.readouterr().out
    assert rows(tmp_path / "out") == rows(plain)


def test_orders(tmp_path, lines_file, plain):
    vocab = f"--vocab_file={plain}/vocab.txt"
    made = {}
    # The frequencies of words are those of a window of text, so one window makes the order
    # by them exact.
    for order, num_shards in (("shuffled", 2), ("length", 2), ("common", 1)):
        assert (
            build(
                tmp_path / order,
                lines_file,
                vocab,
                f"--order={order}",
                f"--num_shards={num_shards}",
            )
            == 0
        )
        made[order] = rows(tmp_path / order)
    text, shuffled = (
        [token for row in found for token in row if token > 4]
        for found in (rows(plain), made["shuffled"])
    )
    assert sorted(shuffled) == sorted(text) and shuffled != text
    lengths = [len(row) for row in made["length"]]
    assert lengths == sorted(lengths) and lengths[0] < lengths[-1]
    frames = (2, 3)  # [CLS], [SEP]
    text = [token for row in rows(plain) for token in row if token not in frames]
    counts = np.bincount(text, minlength=400) / len(text)
    common = [
        np.mean(np.log(counts[[token for token in row if token not in frames]]))
        for row in made["common"]
    ]
    assert (np.diff(common) < 1e-6).all()
    assert rows(tmp_path / "length", shuffle=True) != made["length"]


def test_an_order_of_other_rows_is_refused(tmp_path, lines_file, plain):
    vocab = f"--vocab_file={plain}/vocab.txt"
    assert build(tmp_path / "out", lines_file, vocab, "--order=length", "--num_shards=2") == 0
    data = Dataset(InputConfig(input_file=f"{tmp_path}/out/x-00000*.tfrecord", shuffle=False))
    with pytest.raises(Exception, match="is not the order of the"):
        data.reader("train", open_tokenizer(f"{tmp_path}/out/vocab.txt", True), 1)


def test_a_full_disk_is_seen_before_it_is(tmp_path, lines_file, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    assert build(tmp_path / "out", lines_file) == 2
    assert "only 1 bytes are free" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_killed_while_unpacked(tmp_path, lines_file, plain, monkeypatch):
    """Killed after unpacking: the next call unpacks nothing again and writes the same."""
    from bert_gpu.data import build as job

    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(lines_file.read_bytes()))
    with monkeypatch.context() as patch:
        patch.setattr(
            job.ShardBuilder, "write_shard", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert build(tmp_path / "out", path, "--order=as_is") == 130
    assert (tmp_path / "out" / ".x.spool").exists()
    assert build(tmp_path / "out", path, "--order=as_is") == 0
    assert rows(tmp_path / "out") == rows(plain) and not (tmp_path / "out" / ".x.spool").exists()


def test_a_glob_names_the_records_of_a_data_set_and_nothing_beside_them(tmp_path):
    """What --input_files_dir=FOLDER is, FOLDER/*; a glob that says more is taken at its word."""
    text = tmp_path / "a.txt"
    text.write_text("one two three four five six. seven eight nine ten.\n\nmore of the same.\n")
    folder = tmp_path / "made"
    assert build(folder, text, "--order=length") == 0
    beside = sorted(path.name for path in folder.iterdir() if path.suffix != ".tfrecord")
    assert {"dataset.json", "vocab.txt", "x.order"} < set(beside)
    (folder / ".x.lock").touch()
    (folder / "logs").mkdir()
    records = sorted(map(str, folder.glob("*.tfrecord")))
    for pattern in ("*", "*.tfrecord"):
        assert expand_globs(f"{folder}/{pattern}", "input_file") == records
    (tmp_path / "plain").mkdir()
    for name in ("part-0", "part-1.gz", "notes.txt"):
        (tmp_path / "plain" / name).touch()
    plain = [f"{tmp_path}/plain/{name}" for name in ("part-0", "part-1.gz")]
    assert expand_globs(f"{tmp_path}/plai?/*", "input_file") == plain
    assert expand_globs(f"{tmp_path}/plain/*.txt", "input_file") == [f"{tmp_path}/plain/notes.txt"]
