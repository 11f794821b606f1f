"""Inputs that are no files are refused, and archives do not fill a disk."""

import errno
import gzip
import json
import os
import shutil
import socket

import pytest

from bert_gpu import files
from bert_gpu.__main__ import main as command
from bert_gpu.data.records import RecordFile
from bert_gpu.settings import UserError
from bert_gpu.text import archives
from bert_gpu.text.config import LINES

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


def test_a_config_of_many_labels_is_read(tmp_path):
    """With a search through all keys for each, this would not end."""
    names = {str(number): f"label {number}" for number in range(200_000)}
    (tmp_path / "config.json").write_text(json.dumps(dict(id2label=names)))
    assert files.read_json(str(tmp_path / "config.json"), "labels") == dict(id2label=names)
