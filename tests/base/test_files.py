"""Files are written as a whole or not at all; inputs that are no files are refused, and archives do
not fill a disk.
"""

import errno
import gzip
import json
import os
import shutil
import socket
import stat

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.base import files
from bert_gpu.base.errors import UserError
from bert_gpu.data.records import RecordFile, ShardWriter
from bert_gpu.finetune import results
from bert_gpu.text.config import LINES
from bert_gpu.text.formats import archives
from bert_gpu.text.vocabulary.wordpiece_learner import write_vocab

KINDS = {"fifo": "a pipe (FIFO)", "socket": "a socket", "device": "a device"}


@pytest.fixture
def odd_files(tmp_path):
    """{kind: path} of what is no file; a link leads to the device."""
    paths = {kind: str(tmp_path / kind) for kind in KINDS}
    os.mkfifo(paths["fifo"])
    os.symlink("/dev/zero", paths["device"])
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(paths["socket"])
        yield paths


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "call",
    [
        ["data", "--input_file={}"],
        ["data", "--vocab_file={}"],
        ["data", "--tokenization=SentencePiece", "--sp_model_file={}"],
        ["vocab", "--input_file={}"],
        ["pretrain", "--input_file={}"],
        ["pretrain", "--bert_config_file={}"],
    ],
    ids=" ".join,
)
def test_what_is_no_file_is_refused(odd_files, tmp_path, monkeypatch, capsys, kind, call):
    monkeypatch.chdir(tmp_path)
    assert command(["bert-gpu", *(flag.format(odd_files[kind]) for flag in call)]) == 2
    error = capsys.readouterr().err
    assert f"{odd_files[kind]}: is {KINDS[kind]}, not a file" in error and error.count("\n") == 1
    assert set(os.listdir()) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_or_a_description_that_is_no_file(odd_files, tmp_path, capsys, kind):
    for name in ("train.tsv", "run.json"):
        os.symlink(odd_files[kind], tmp_path / name)
    with pytest.raises(UserError, match="not a file"):
        files.read_json(str(tmp_path / "run.json"), "a run's settings")
    assert command(["bert-gpu", "classify", f"--data_dir={tmp_path}"]) == 2
    assert "train.tsv: is" in capsys.readouterr().err


def test_an_archive_larger_than_the_disk_is_refused(tmp_path, monkeypatch):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(1 << 22)))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(total=1 << 30, free=(1 << 29) // 10)
    )
    with pytest.raises(UserError, match="bomb.gz: .* would fill the disk"):
        archives.unpack([str(tmp_path / "bomb.gz")], [LINES], str(tmp_path / "spool"))
    assert os.listdir(tmp_path) == ["bomb.gz"]
    with pytest.raises(UserError, match="bomb.gz: .* would fill the disk"):
        RecordFile(str(tmp_path / "bomb.gz"))
    with pytest.raises(OSError) as full:
        list(files.within_free_space([b"x"], tmp_path))
    assert full.value.errno == errno.ENOSPC


def test_free_space_is_asked_for_again(tmp_path, monkeypatch):
    """What others write meanwhile counts, too."""
    frees = iter([1 << 40, 1 << 20])
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage._replace(total=1 << 40, free=next(frees))
    )
    passed = files.within_free_space([bytes(1 << 20)] * 100, tmp_path)
    written = []
    with pytest.raises(OSError):
        written.extend(passed)
    assert len(written) == files.LOOK_AGAIN_BYTES >> 20


def write_shard(path):
    with ShardWriter(path) as writer:
        writer.write(np.arange(9, dtype=np.uint8), np.array([0, 4, 9]))


WRITERS = {
    "x.json": lambda path: files.write_json(path, {"a": 1}),
    "vocab.txt": lambda path: write_vocab(path, ["a", "##b"]),
    "x-00000-of-00001.tfrecord": write_shard,
    "spool": lambda path: archives.write_spool([b"a", b"b"], path, "x.gz"),
    "x.tsv": lambda path: results.write(*os.path.split(path), ["a\n", "b\n"]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_has_a_name_is_on_the_disk(tmp_path, monkeypatch, name):
    """A power cut leaves no name of a file whose content is lost."""
    synced, sync = set(), os.fsync

    def fsync(descriptor):
        state = os.fstat(descriptor)
        assert name not in os.listdir(tmp_path) or stat.S_ISDIR(state.st_mode)
        synced.add((state.st_ino, state.st_size))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    WRITERS[name](str(tmp_path / name))
    assert name in os.listdir(tmp_path)
    for state in map(os.stat, (tmp_path, *tmp_path.iterdir())):
        assert state.st_size > 0 and (state.st_ino, state.st_size) in synced


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_that_cannot_be_written_whole_leaves_the_old_one(tmp_path, monkeypatch, name):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / name).write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises((OSError, UserError)):
        WRITERS[name](str(tmp_path / name))
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_text() == "old"


def test_a_file_with_a_scheme_is_replaced_as_a_whole():
    path = "ram://files/a.txt"
    tf.io.gfile.makedirs("ram://files")
    for text in ("old", "new"):
        files.write_text(path, text)
        with pytest.raises(ZeroDivisionError), files.atomic_file(path) as file:
            file.write("part")
            raise ZeroDivisionError
        assert tf.io.gfile.listdir("ram://files") == ["a.txt"]
        with tf.io.gfile.GFile(path) as file:
            assert file.read() == text


def test_a_config_of_many_labels_is_read(tmp_path):
    """With a search through all keys for each, this would not end."""
    names = {str(number): f"label {number}" for number in range(200_000)}
    (tmp_path / "config.json").write_text(json.dumps(dict(id2label=names)))
    assert files.read_json(str(tmp_path / "config.json"), "labels") == dict(id2label=names)
