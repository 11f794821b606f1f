"""`make docs-check`: every command of every document is run, as it is written, with flags behind it
that make it small, in a folder that holds what it reads.

Those of the README and docs/first-day.md run in tests/test_documents.py, and --ray_address in
tests/data/test_ray_job.py.
"""

import json
import os
import pathlib
import shutil

import pyarrow
import pyarrow.parquet
import pytest

from bert_gpu.__main__ import main
from bert_gpu.doctor import checks
from tests.cli.pretraining import SMALL
from tests.data.test_wikipedia import write_dumps
from tests.documents import DOCUMENTS
from tests.finetune.test_glue import FORMS
from tests.golden.files import write_files
from tests.test_architecture import ROOT
from tests.test_documents import SCRIPTS, commands

PAGES = {
    path.stem: commands(path) for path in DOCUMENTS if path.stem not in ("README", "first-day")
}
PLACEHOLDERS = {
    "FOLDER": "runs",
    "--flagfile=FILE": "--flagfile=flags.txt",
    "--model=UNTRAINED,RUN/marks,BERT": "--model=runs/pretrain,runs/pretrain/marks",
    "--input=TEXT": "--input=held_out.txt",
    "--input_file=data/web,data/books": "--input_file=sets/web,sets/books",
}
PAIRS = ("text_a", "text_b", "label"), ("question1", "question2", "is_duplicate")
TABLES = dict(
    my_pairs=PAIRS, questions=PAIRS[:1], mypairs=[("premise", "hypothesis", "gold_label")]
)


def small(command, arguments):
    """Flags behind those of a document, which win."""
    given = {argument.partition("=")[0] for argument in arguments}
    if command == "data":
        learns = not given & {"--vocab_file", "--init_checkpoint"}
        vocabulary = ["--vocab_size=500"] if learns else []
        # with so small a vocabulary all text has many tokens, which crammed would drop
        keeps = ["--max_tokens_per_character=2"] if "--recipe=crammed" in arguments else []
        return [*vocabulary, *keeps, "--dupe_factor=1", "--overwrite", "--quiet"]
    if command == "pretrain":
        shape = [] if "--init_checkpoint" in given else [*SMALL, "--num_attention_heads=2"]
        sizes = ["--train_batch_size=8", "--global_batch_size=8", "--num_train_steps=1"]
        cells = ["--grid=learning_rate=1e-3,2e-3"] if "--grid" in given else []
        return ["--num_gpus=0", *shape, *sizes, *cells, "--overwrite", "--quiet"]
    if command == "classify":
        trains = [] if "--do_predict" in given else ["--num_train_epochs=1", "--overwrite"]
        asks = (
            ["--max_query_length=8", "--doc_stride=8"] if "--task_name=squad" in arguments else []
        )
        return ["--num_gpus=0", "--max_seq_length=32", *asks, *trains, "--quiet"]
    if command == "launch":  # of what stands behind --, by two workers
        name, *more = arguments[arguments.index("--") + 1 :]
        name = SCRIPTS.get(name, name)
        batch = ["--global_batch_size=16"] if name == "pretrain" else []
        return small(name, more) + batch
    return []


def run(command, arguments):
    return main(["bert-gpu", command, *(PLACEHOLDERS.get(part, part) for part in arguments)])


@pytest.fixture(scope="module")
def world(tmp_path_factory, sample_text):
    """A folder with all that the documents' commands read."""
    folder = tmp_path_factory.mktemp("world") / "world"
    text = pathlib.Path(sample_text).read_text()
    for name in ("text", "mytext", "notes", "pages", "more", "glue/MNLI", "blimp/data", *TABLES):
        (folder / name).mkdir(parents=True)
    for name in ("text", "mytext", "notes", "pages"):
        (folder / name / "one.txt").write_text(text)
    documents = [" ".join(part.split("\n")) for part in text.split("\n\n")[:40]]
    table = pyarrow.table(dict(body=documents))
    pyarrow.parquet.write_table(table, folder / "wiki.parquet")
    pyarrow.parquet.write_table(table, folder / "more" / "more.parquet")
    quoted = ['"' + part.replace('"', "'") + '"' for part in documents]
    (folder / "notes.csv").write_text("\n".join(["body", *quoted]) + "\n")
    write_dumps(folder)
    (folder / "lines.txt").write_text("\n".join(documents[:5]) + "\n")
    (folder / "sample_text.txt").write_text(text)
    (folder / "held_out.txt").write_text("\n".join(text.splitlines()[:3]) + "\n")
    pair = dict(sentence_good="The old man sat.", sentence_bad="The old man sats.", UID="verbs")
    (folder / "blimp" / "data" / "verbs.jsonl").write_text(json.dumps(pair) + "\n")
    (folder / "flags.txt").write_text("--seed=3\n")
    for name, lines in FORMS["MNLI"].items():
        (folder / "glue" / "MNLI" / name).write_text("\n".join(lines) + "\n")
    quora = [
        FORMS["QQP"]["train.tsv"][0],
        *(f"{i}\t1\t2\twho {i}\twhy {i}\t{i % 2}" for i in range(60)),
    ]
    (folder / "quora.tsv").write_text("\n".join(quora) + "\n")
    (folder / "new.csv").write_text("sentence1,sentence2\nwho,why\n")
    for name, heads in TABLES.items():
        rows = [f"a {i}\tb {i}\t{i % 2}" for i in range(12)]
        lines = [
            "\t".join("\t".join(head) for head in heads),
            *("\t".join([row] * len(heads)) for row in rows),
        ]
        for split in ("train", "dev", "test"):
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    write_files(folder / "tasks")
    shutil.copytree(folder / "tasks" / "ner", folder / "conll2003")
    shutil.copytree(folder / "tasks" / "squad", folder / "squad")
    shutil.copy(folder / "tasks" / "ner" / "test.txt", folder / "new.txt")
    shutil.copy(folder / "tasks" / "squad" / "test-v2.0.json", folder / "questions.json")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for command in ("data", "pretrain", "classify"):
            assert run(command, small(command, [])) == 0
    finally:
        os.chdir(before)
    for copy in ("bert-base-uncased", "runs/pretrain/marks/0.5"):
        shutil.copytree(folder / "runs" / "pretrain" / "model", folder / copy)
    for copy in ("web", "books"):
        shutil.copytree(folder / "data", folder / "sets" / copy)
    shutil.copy(folder / "lines.txt", folder / "raw.txt")
    shutil.copy(folder / "my_pairs" / "dev.tsv", folder / "pairs.tsv")
    return folder


@pytest.mark.docs
@pytest.mark.long
@pytest.mark.parametrize("page", [name for name, found in PAGES.items() if found])
def test_commands_of_a_document_run(page, world, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(checks, "examine", lambda say: [])  # tests/doctor has its trials
    if page == "watching":
        shutil.copytree("runs/pretrain", "runs/other")
    for command, arguments in PAGES[page]:
        if "--output_file=data/crammed.tfrecord" in arguments:
            shutil.rmtree("data")  # one data set a folder
        if "--ray_address=auto" not in arguments:
            is_several = any(part.startswith(("--grid=", "--task_name=all")) for part in arguments)
            place = ["--output_dir=runs/several"] if is_several else []  # runs/pretrain has a run
            code = run(command, [*place, *arguments, *small(command, arguments)])
            assert code == 0, (command, arguments, capsys.readouterr().err)


def test_there_are_commands_to_run():
    assert sum(map(len, PAGES.values())) > 30 and ROOT / "docs" / "text.md" in DOCUMENTS
