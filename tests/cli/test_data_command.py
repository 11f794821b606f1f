"""create_pretraining_data.py as a user sees it: a kill and a resume, the summary, bad input."""

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base import files
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.cli.pretraining import HANG_SECONDS, ROOT, wait_until


@pytest.fixture(scope="module")
def text(tmp_path_factory, sample_text):
    """The sample twice."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    with open(sample_text) as file:
        content = file.read().strip() + "\n\n"
    path.write_text("".join(content.replace("the", f"the {word}") for word in ("x", "y")))
    return path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "most",
    [pytest.param(0, marks=pytest.mark.long, id="processes"), pytest.param(1 << 40, id="threads")],
)
def test_resumes_after_sigkill(tmp_path, text, most):
    def flags(folder):
        settings = [
            "--num_shards=6",
            "--num_workers=2",
            "--vocab_size=300",
            "--dupe_factor=3",
            "--order=length",
        ]
        return [f"--input_file={text}", f"--output_file={folder}/x.tfrecord", "--quiet", *settings]

    assert command(["bert-gpu", "data", *flags(tmp_path / "whole")]) == 0
    job = [sys.executable, "-m", "tests.cli.held_data_job", str(most), *flags(tmp_path / "killed")]
    with subprocess.Popen(job, cwd=ROOT) as process:
        try:
            # two shards are complete, and each of the two workers is in the middle of another
            wait_until(process, lambda: len(list(tmp_path.glob("killed/.x-*.stats"))) == 2)
            wait_until(process, lambda: len(list(tmp_path.glob("killed/.x-*.partial"))) == 2)
            children = psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGKILL and bool(children) == (most == 0)
    psutil.wait_procs(children, timeout=HANG_SECONDS)
    assert not any(map(is_alive, children)), "workers end, too"
    assert not (tmp_path / "killed" / "dataset.json").exists()
    whole = {path: path.stat().st_ino for path in tmp_path.glob("killed/x-*.tfrecord")}
    assert sorted(path.name[2:7] for path in whole) == ["00000", "00001"]
    assert command(["bert-gpu", "data", *flags(tmp_path / "killed")]) == 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert all(path.stat().st_ino == inode for path, inode in whole.items()), (
        "what was whole was not written again"
    )


@pytest.mark.parametrize("overwrite", [False, pytest.param(True, marks=pytest.mark.long)])
def test_killed_between_any_two_changes_of_the_folder(tmp_path, text, monkeypatch, overwrite):
    """Every removal and renaming in turn is the last thing that happens; the next call ends with
    what an undisturbed one has.
    """
    from bert_gpu.data import output_folder

    flags = [
        "--vocab_size=300",
        "--dupe_factor=1",
        "--objective=packed",
        "--masking=dynamic",
        "--num_shards=1",
        "--quiet",
    ]
    old = [flag for flag in flags if "shards" not in flag] + ["--num_shards=3"]

    few = tmp_path / "few.txt"
    few.write_text("\n\n".join(text.read_text().split("\n\n")[:8]))

    def call(folder, *more):
        return command(
            ["bert-gpu", "data", f"--input_file={few}", f"--output_file={folder}/x.tfrecord", *more]
        )

    if overwrite:
        assert call(tmp_path / "old", *old) == 0
    assert call(tmp_path / "whole", *flags) == 0
    expected, again = content(tmp_path / "whole"), ["--overwrite"] if overwrite else []
    for most in range(100):
        folder, count = tmp_path / str(most), 0
        if overwrite:
            folder.mkdir()
            for name, data in content(tmp_path / "old").items():
                (folder / name).write_bytes(data)

        def counted(function, folder=folder, most=most):
            def does(*args, **settings):
                nonlocal count
                if str(folder) in str(args[0]) and not str(args[0]).endswith(".lock"):
                    if count == most:
                        raise KeyboardInterrupt
                    count += 1
                return function(*args, **settings)

            return does

        with monkeypatch.context() as patch:
            patch.setattr(output_folder.os, "remove", counted(os.remove))
            patch.setattr(output_folder.os, "replace", counted(os.replace))
            code = call(folder, *flags, *again)
        if code == 0:
            break
        assert code == 130
        assert call(folder, *flags, *(again if (folder / "dataset.json").exists() else [])) == 0
        assert content(folder) == expected, f"ended before change {most}"
    assert most > (8 if overwrite else 3)


def test_the_summary_says_what_was_written(tmp_path, sample_text, capsys):
    flags = ["--vocab_size=300", "--dupe_factor=2", "--max_seq_length=64"]
    assert (
        command(
            [
                "bert-gpu",
                "data",
                f"--input_file={sample_text}",
                f"--output_file={tmp_path}/x.tfrecord",
                *flags,
            ]
        )
        == 0
    )
    summary = {
        name.strip(): value
        for name, value in re.findall(r"^  (\S.{13})(.+)$", capsys.readouterr().out, re.M)
    }
    with open(sample_text) as file:
        lines = file.read().split("\n")
    tokenizer = WordPieceTokenizer(f"{tmp_path}/vocab.txt")
    ids, _ = tokenizer.tokenize([line for line in lines if line])
    data = Dataset(InputConfig(input_file=f"{tmp_path}/*.tfrecord"))
    total = collections.Counter()
    for split, records in (("train", data.train), ("validation", data.validation)):
        batch = data.reader(split, tokenizer, 1).read(
            np.arange(len(records)), np.zeros(len(records), int)
        )
        total += collections.Counter(
            rows=len(records),
            random=int(batch["next_sentence_labels"].sum()),
            real=int(batch["input_mask"].sum()),
        )
    num_bytes = sum(path.stat().st_size for path in tmp_path.glob("*.tfrecord"))
    assert summary["documents"] == "64" and summary["sentences"] == f"{sum(map(bool, lines)):,}"
    assert (
        summary["tokens"] == f"{len(ids):,}, of which [UNK] {(ids == tokenizer.unk_id).mean():.2%}"
    )
    assert (
        summary["records"] == f"{len(data.train):,} training, {len(data.validation):,} validation"
    )
    assert summary["random next"] == f"{total['random'] / total['rows']:.1%}"
    assert summary["padding"] == f"{1 - total['real'] / total['rows'] / 64:.1%} of all positions"
    assert re.fullmatch(
        rf"{num_bytes / 1e6:.1f} MB in 2 shards to {tmp_path}/ in \d+:\d\d", summary["written"]
    )


@pytest.mark.parametrize(
    "name, written, part",
    [
        ("binary.txt", bytes(range(128, 256)) * 40, "line 1 is not UTF-8"),
        ("latin.txt", b"good\nna\xefve\n", "line 2 is not UTF-8"),
        ("empty.txt", b"", "has no document"),
        ("nothing", None, "is a folder with none of"),
        ("missing.txt", ..., "no such file"),
    ],
)
def test_bad_text_is_one_line_and_exit_code_2(tmp_path, capsys, name, written, part):
    path = tmp_path / name
    if written is None:
        path.mkdir()
    elif written is not ...:
        path.write_bytes(written)
    assert (
        command(
            ["bert-gpu", "data", f"--input_file={path}", f"--output_file={tmp_path}/out/x.tfrecord"]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert (
        name in error
        and part in error
        and error.count("\n") == 1
        and not (tmp_path / "out").exists()
    )


def test_flags_without_effect_are_named(capsys):
    def warnings(*flags):
        assert command(["bert-gpu", "data", "--show_config", *flags]) == 0
        return capsys.readouterr().err.splitlines()

    assert warnings("--vocab_file=v.txt", "--vocab_size=5000") == [
        "warning: --vocab_size has no effect beside --vocab_file, which is not learnt"
    ]
    assert warnings("--vocab_file=v.txt") == warnings("--vocab_size=5000") == []


def test_text_that_is_deleted_while_it_is_read(tmp_path, text, monkeypatch, capsys):
    """What was whole stays, since the text may come back."""
    from bert_gpu.data import build

    source = tmp_path / "text.txt"
    source.write_bytes(text.read_bytes())
    flags = ["--num_shards=3", "--num_workers=1", "--vocab_size=300", "--dupe_factor=1", "--quiet"]
    call = [
        "bert-gpu",
        "data",
        f"--input_file={source}",
        f"--output_file={tmp_path}/out/x.tfrecord",
        *flags,
    ]
    write = build.ShardBuilder.write_shard

    def writes_and_deletes(worker, shard, report):
        write(worker, shard, report)
        os.remove(source)

    with monkeypatch.context() as patch:
        patch.setattr(build.ShardBuilder, "write_shard", writes_and_deletes)
        assert command(call) == 2
    error = capsys.readouterr().err
    assert "text.txt: changed while it was being read" in error and error.count("\n") == 1
    assert len(list(tmp_path.glob("out/x-*.tfrecord"))) == 1
    source.write_bytes(text.read_bytes())
    assert command(call) == 0


def test_a_disk_that_fills_up_is_one_line_and_leaves_no_part(
    tmp_path, sample_text, monkeypatch, capsys
):
    @contextlib.contextmanager
    def full(path, mode, partial):
        with local_file(path, mode, partial) as file, open("/dev/full", mode) as no_room:
            yield no_room if path.endswith(".tfrecord") else file

    local_file = files.local_file
    monkeypatch.setattr(files, "local_file", full)
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={tmp_path}/out/x.tfrecord",
        "--vocab_size=300",
        "--dupe_factor=1",
        "--quiet",
    ]
    assert command(["bert-gpu", "data", *flags]) == 2
    error = capsys.readouterr().err
    assert "No space left on device" in error and error.count("\n") == 1
    assert not list(tmp_path.glob("out/.*partial*"))
