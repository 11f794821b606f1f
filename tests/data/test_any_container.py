"""The same text gives the same shards, whatever it is stored in: also standard input, saved data
sets and mixed inputs; a killed job of any of them goes on.
"""

import csv
import gzip
import io
import json
import os
import subprocess
import sys

import pyarrow
import pytest
import zstandard
from pyarrow import ipc, parquet

from bert_gpu.__main__ import main as command
from bert_gpu.base.console import Console
from bert_gpu.base.errors import UserError
from bert_gpu.data import build
from bert_gpu.data.config import DataConfig
from bert_gpu.text.config import TextFormat
from bert_gpu.text.formats import containers
from bert_gpu.text.sentences import split_sentences

QUIET = Console(quiet=True)
TSV = dict(delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None)


@pytest.fixture(scope="module")
def documents(sample_text):
    """Sentences of documents in which the splitter finds just these."""
    with open(sample_text) as file:
        parts = [document.splitlines() for document in file.read().strip().split("\n\n")]
    return [lines for lines in parts if split_sentences(" ".join(lines)) == lines][:30]


def texts(documents, space):
    return [space.join(lines) for lines in documents]


def rows_of(documents, dialect):
    file = io.StringIO(newline="")
    writer = csv.writer(file, **dialect)
    writer.writerow(["id", "text"])
    space = " " if "delimiter" in dialect else "\n"
    writer.writerows((number, text) for number, text in enumerate(texts(documents, space)))
    return file.getvalue().encode()


def table_of(documents):
    return pyarrow.table({"text": texts(documents, "\r\n"), "id": range(len(documents))})


def write_stream(path, table):
    with ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)


def write_saved(folder, tables):
    """A folder as `datasets` saves it, with a leftover of an earlier save."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05d}-of-{len(tables):05d}.arrow" for i in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        write_stream(str(folder / name), table)
    (folder / "data-00000-of-00009.arrow").write_bytes(b"left from before")
    state = dict(_data_files=[dict(filename=name) for name in names], _split="train")
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")


def write_lines(path, documents):
    path.write_text("\n\n\n".join("\n".join(lines) for lines in documents) + "\n")


def write_parquet(path, documents):
    parquet.write_table(table_of(documents), path, row_group_size=7)


WRITERS = {
    "a.txt": write_lines,
    "b.txt": lambda path, d: path.write_text("\n".join(texts(d, " "))),
    "c.jsonl": lambda path, d: path.write_text(
        "".join(json.dumps(dict(id=1, text=text)) + "\n" for text in texts(d, "\n"))
    ),
    "d.json": lambda path, d: path.write_text(
        json.dumps([dict(text=text) for text in texts(d, "\n\n")], indent=1)
    ),
    "e.csv": lambda path, d: path.write_bytes(rows_of(d, {})),
    "f.csv.gz": lambda path, d: path.write_bytes(gzip.compress(rows_of(d, {}))),
    "g.tsv.zst": lambda path, d: path.write_bytes(zstandard.compress(rows_of(d, TSV))),
    "h.parquet": write_parquet,
    "i.arrow": lambda path, d: write_stream(str(path), table_of(d)),
    "j": lambda path, d: write_saved(path, [table_of(d)]),
}


@pytest.fixture(scope="module", autouse=True)
def small_windows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_gpu.text.corpus.WINDOW_BYTES", 20_000)
        yield


def config(folder, text, **settings):
    default = dict(vocab_size=200, dupe_factor=1, max_seq_length=32, num_workers=1)
    return DataConfig(
        input_file=str(text),
        output_file=str(folder / "x.tfrecord"),
        num_shards=2,
        **default | settings,
    )


def content(folder):
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "dataset.json"
    }


@pytest.fixture(scope="module")
def expected(tmp_path_factory, documents):
    folder = tmp_path_factory.mktemp("expected")
    write_lines(folder / "text.txt", documents)
    job = build.open_job(config(folder / "out", folder / "text.txt"))
    assert len(job.plan.windows) > 2, "windows end at the same documents"
    assert len(job.plan.blocks) == len(job.plan.windows), "of one file"
    build.run_job(job)
    return content(folder / "out")


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory, expected):
    path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_bytes(expected["vocab.txt"])
    return str(path)


@pytest.mark.parametrize("name", WRITERS)
def test_any_container_gives_the_same_shards(tmp_path, documents, expected, vocab_file, name):
    WRITERS[name](tmp_path / name, documents)
    settings = {} if name == "h.parquet" else dict(vocab_file=vocab_file)
    build.run_job(build.open_job(config(tmp_path / "out", tmp_path / name, **settings)))
    assert content(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["h.parquet", "f.csv.gz"])
def test_standard_input_gives_the_same_shards(
    tmp_path, documents, expected, vocab_file, monkeypatch, capsys, name
):
    """Of any kind; it is spooled beside the output, and the spool goes with the end of the job."""
    WRITERS[name](tmp_path / name, documents)
    flags = [f"--output_file={tmp_path}/out/x.tfrecord", f"--vocab_file={vocab_file}"]
    flags += ["--dupe_factor=1", "--vocab_size=200", "--max_seq_length=32"]
    flags += ["--num_shards=2"]
    flags += ["--input_format=csv"] if "csv" in name else []
    for attempt in range(2):
        with open(tmp_path / name) as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            assert command(["bert-gpu", "data", "--input_file=-", *flags]) == 0
        assert ("nothing to do" in capsys.readouterr().out) == bool(attempt)
        assert content(tmp_path / "out") == expected


def test_standard_input_that_is_refused_leaves_nothing(tmp_path, monkeypatch, capsys):
    def call(text, *flags):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        output = f"--output_file={tmp_path}/out/x.tfrecord"
        return command(["bert-gpu", "data", "--input_file=-", output, *flags])

    assert call(b"one\n", "--vocab_file=absent.txt") == 2
    assert "absent.txt" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert call(b"b\xe9d\n") == 2
    assert "standard input: line 1 is not UTF-8" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert call(b"") == 2
    assert "standard input: has no document" in capsys.readouterr().err
    assert call(b"PAR1 and no more") == 2
    assert "standard input: cannot be read" in capsys.readouterr().err
    assert os.listdir(tmp_path / "out") == [".x.lock"]

    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    assert command(["bert-gpu", "data", "--input_file=-"]) == 2
    assert "nothing is piped" in capsys.readouterr().err


def test_several_kinds_at_once(tmp_path, documents, vocab_file, capsys):
    """Files and folders of all kinds are one text, in the order of their names."""
    parts = [documents[i : i + 10] for i in (0, 10, 20)]
    (tmp_path / "in").mkdir()
    write_lines(tmp_path / "in" / "a.txt", parts[0])
    write_parquet(tmp_path / "in" / "b.parquet", parts[1])
    halves = [table_of(parts[2][:5]), table_of(parts[2][5:])]
    write_saved(tmp_path / "in" / "c" / "train", halves)
    (tmp_path / "in" / "c" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    settings = config(tmp_path / "out", tmp_path / "in", vocab_file=vocab_file)
    build.build(settings, console=Console())
    said = capsys.readouterr().out.splitlines()
    assert [line.split(", ")[0] + line[line.rindex("(") :] for line in said[:3]] == [
        "input: 1 file(as its first lines show)",
        "input: 1 file(by its name)",
        "input: 2 files(by its name)",
    ]
    assert "one sentence a line" in said[0] and "column 'text'" in said[1] and "Arrow" in said[2]
    whole = tmp_path / "whole.txt"
    write_lines(whole, documents)
    build.run_job(build.open_job(config(tmp_path / "one", whole, vocab_file=vocab_file)))
    counts = [build.read_manifest(str(tmp_path / name)).num_tokens for name in ("out", "one")]
    assert counts[0] == counts[1]


def test_small_files_share_windows(tmp_path, documents):
    """So that random second segments come from other files."""
    (tmp_path / "in").mkdir()
    for number, lines in enumerate(documents):
        write_lines(tmp_path / "in" / f"{number:02d}.txt", [lines])
    job = build.open_job(config(tmp_path / "out", tmp_path / "in"))
    sizes = [window.documents.stop - window.documents.start for window in job.plan.windows]
    assert sum(sizes) == len(documents) == len(job.plan.blocks) and min(sizes) > 3


def test_a_killed_job_of_a_table_goes_on(tmp_path, documents, expected, vocab_file, monkeypatch):
    write_parquet(tmp_path / "x.parquet", documents)
    settings = config(tmp_path / "out", tmp_path / "x.parquet", vocab_file=vocab_file)
    write = build.ShardBuilder.write_shard

    def dies(worker, shard, report):
        if shard.index == 1:
            raise KeyboardInterrupt
        return write(worker, shard, report)

    with monkeypatch.context() as patch:
        patch.setattr(build.ShardBuilder, "write_shard", dies)
        with pytest.raises(KeyboardInterrupt):
            build.run_job(build.open_job(settings))
    shard = tmp_path / "out" / "x-00000-of-00002.tfrecord"
    inode = shard.stat().st_ino
    job = build.open_job(settings)
    assert job.status == "resumed"
    build.run_job(job)
    assert content(tmp_path / "out") == expected and shard.stat().st_ino == inode


def test_a_broken_table_leaves_nothing(tmp_path, documents):
    write_parquet(tmp_path / "x.parquet", documents)
    path = tmp_path / "x.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"x\.parquet: cannot be read"):
        build.run_job(build.open_job(config(tmp_path / "out", path)))
    assert os.listdir(tmp_path / "out") == [".x.lock"]


def test_a_saved_data_set_without_a_part_is_refused(tmp_path, documents):
    write_saved(tmp_path / "in", [table_of(documents[:3]), table_of(documents[3:])])
    (tmp_path / "in" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00002\.arrow: is missing"):
        build.open_job(config(tmp_path / "out", tmp_path / "in"))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_memory_does_not_grow_with_a_row_group(tmp_path, kind):
    """One row group, or batch, of 60 MB is read page by page."""
    line = "".join(f"{number:x} " for number in range(20_000, 23_400))
    table = pyarrow.table({"text": [f"{number} {line}" for number in range(3000)]})
    path = str(tmp_path / "x")
    if kind == "parquet":
        parquet.write_table(table, path, use_dictionary=False)
        assert parquet.ParquetFile(path).num_row_groups == 1
    else:
        with ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    del table
    before, most, num_texts = pyarrow.total_allocated_bytes(), 0, 0
    text_format = TextFormat(input_format=kind)
    for text in containers.column_texts(path, text_format, "x"):
        num_texts += text.endswith(line)
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert num_texts == 3000 and most < 30e6


SAVE = """
import json, sys
import datasets
texts, folder = json.load(open(sys.argv[1])), sys.argv[2]
rows = datasets.Dataset.from_dict({"id": list(range(len(texts))), "text": texts})
rows.save_to_disk(folder + "/plain")
rows.save_to_disk(folder + "/parts", num_shards=3)
# with indices, which the library writes out when it saves
rows.select([*range(len(texts))][::-1]).select([*range(len(texts))][::-1]).save_to_disk(
    folder + "/selected")
datasets.DatasetDict(train=rows).save_to_disk(folder + "/splits")
rows.to_parquet(folder + "/rows.parquet")
rows.to_csv(folder + "/rows.csv")
rows.to_json(folder + "/rows.jsonl")
"""


@pytest.mark.long
def test_what_datasets_writes_is_read(tmp_path, documents, expected, vocab_file):
    """The library itself, in a Python that has it."""
    python = os.environ.get("BERT_GPU_ORACLE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import datasets"], capture_output=True).returncode:
        pytest.skip("needs datasets: set BERT_GPU_ORACLE_PYTHON")
    (tmp_path / "texts.json").write_text(json.dumps(texts(documents, "\n")))
    subprocess.run(
        [python, "-c", SAVE, str(tmp_path / "texts.json"), str(tmp_path)],
        check=True,
        capture_output=True,
        env={**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    for name in ("plain", "selected", "splits", "rows.parquet", "rows.csv", "rows.jsonl"):
        settings = config(tmp_path / "out" / name, tmp_path / name, vocab_file=vocab_file)
        build.run_job(build.open_job(settings))
        assert content(tmp_path / "out" / name) == expected, name
    job = build.open_job(config(tmp_path / "three", tmp_path / "parts", vocab_file=vocab_file))
    assert len(job.inputs.paths) == 3
    manifest, *_ = build.run_job(job)
    assert manifest.num_documents == len(documents)
