"""The data job without near duplicates and repeated sentences: what is left, the list of what was
dropped, and that neither workers nor a kill change it.
"""

import gzip
import os
import random

import pytest

from bert_gpu.__main__ import main
from bert_gpu.base.errors import UserError
from bert_gpu.data import build
from bert_gpu.data.config import DataConfig
from bert_gpu.data.shards import TRAIN, VALIDATION, read_documents
from bert_gpu.text import clean, near_duplicates, parallel
from tests.data.test_build import content

WORDS = "sea wind ship night day storm sail port wave moon star rope deck calm cold north".split()
MENU = "Menu and search, {} items"
FLAGS = ["--near_duplicates=.8", "--drop_repeated_lines=12", "--objective=full_sentences"]


def documents(seed, number):
    """Return documents of six sentences of random words and of one that only a number changes."""
    draw = random.Random(seed)
    return [
        [" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(6)] + [MENU.format(index)]
        for index in range(number)
    ]


def write(path, parts):
    path.write_text("\n\n".join(map("\n".join, parts)) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of vocab.txt and of text/ with 20 documents in a.txt and 13 in b.txt.gz, of which the
    last 10 have one other word than the first 10 of a.txt, from back to front.
    """
    folder = tmp_path_factory.mktemp("repeats")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *WORDS]
    pieces += "other menu and search items first short 0 1 2 3 4 5 6 7 8 9".split()
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (folder / "text").mkdir()
    first = documents(1, 20)
    copies = [["other " + part[0].partition(" ")[2], *part[1:]] for part in first[9::-1]]
    write(folder / "text" / "a.txt", first)
    write(folder / "text" / "b.txt", [["short"], *documents(2, 2), *copies])
    packed = gzip.compress((folder / "text" / "b.txt").read_bytes())
    (folder / "text" / "b.txt.gz").write_bytes(packed)
    (folder / "text" / "b.txt").unlink()
    return folder


def config(folder, output, **settings):
    own = dict(objective="full_sentences", max_seq_length=32, dupe_factor=1, num_shards=2)
    own |= dict(near_duplicates=0.8, drop_repeated_lines=12, validation_share=0.2)
    own |= dict(input_file=f"{folder}/text", vocab_file=f"{folder}/vocab.txt")
    return DataConfig(output_file=f"{output}/x.tfrecord", **own | settings)


def run(config, overwrite=False, **arguments):
    return build.run_job(build.open_job(config, overwrite, **arguments))


def sample(folder):
    """Return the path of a text of 30 documents, of which the last 10 are copies of the first."""
    parts = documents(4, 20)
    write(folder / "sample.txt", parts + parts[:10])
    return f"{folder}/sample.txt"


def listed(output):
    """Return the rows of a list of near duplicates, without its header."""
    header, *rows = (output / "x.duplicates.tsv").read_text().splitlines()
    assert header == build.LIST_HEADER
    return [row.split("\t") for row in rows]


def test_the_list_says_which_documents_are_dropped_because_of_which(folder, tmp_path):
    made, counts, num_dropped = run(config(folder, tmp_path / "out"))
    rows = listed(tmp_path / "out")
    assert num_dropped == len(rows) == 10
    for index, (name, number, first, first_number, similarity) in enumerate(rows):
        assert (os.path.basename(name), int(number)) == ("b.txt.gz", 4 + index)
        assert (os.path.basename(first), int(first_number)) == ("a.txt", 10 - index)
        assert 0.8 <= float(similarity) < 1
    assert made.num_documents == counts.num_documents == 23
    assert counts.num_sentences == 22 * 6 + 1 and made.num_validation_instances > 0
    assert made.settings["near_duplicates"] == 0.8 and made.settings["drop_repeated_lines"] == 12


def test_no_near_copy_of_a_validation_document_is_trained_on(folder, tmp_path):
    """Held-out documents are chosen as without the flag; a copy of one is dropped, or the one."""
    for seed in range(4):
        job = build.open_job(config(folder, tmp_path / str(seed), random_seed=seed))
        before = job.plan or build.unpacked_plan(job)
        plan = build.drop_repeats(job, before)[0]
        left = plan.split < 2
        assert (plan.split[left] == before.split[left]).all() and left.sum() == 23
        parts = {
            part: {
                document[1]
                for window in plan.windows
                for document in read_documents(window, plan.split, plan.repeated)[part]
                if len(document) > 1
            }
            for part in (TRAIN, VALIDATION)
        }
        assert parts[TRAIN].isdisjoint(parts[VALIDATION])
        assert len(parts[TRAIN] | parts[VALIDATION]) == 22


def test_a_killed_job_has_the_same_bytes(folder, tmp_path, monkeypatch):
    """Killed in each search and before the first shard."""
    run(config(folder, tmp_path / "whole"))
    whole = content(tmp_path / "whole")
    assert "x.duplicates.tsv" in whole
    killed = config(folder, tmp_path / "killed")

    def kill(*_):
        raise KeyboardInterrupt

    for module, name in (
        (near_duplicates, "write_shingles"),
        (clean, "sort_on_disk"),
        (build, "find_repeated"),
        (build, "write_shards"),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, kill)
            run(killed)
    assert (tmp_path / "killed" / ".x.building.json").exists()
    assert build.open_job(killed).status == "resumed"
    run(killed)
    assert content(tmp_path / "killed") == whole
    assert build.open_job(killed).status == "finished"


@pytest.mark.long
def test_worker_processes_find_the_same(folder, tmp_path, monkeypatch):
    plan = build.open_job(config(folder, tmp_path / "out", input_file=sample(folder))).plan
    spool = str(tmp_path / "spool")
    rows = near_duplicates.find_near_duplicates(plan.blocks, spool, 0.8)
    assert len(rows) == 10
    monkeypatch.setattr(parallel, "IN_PROCESS_BYTES", 0)
    workers = parallel.Workers(2)
    found = near_duplicates.find_near_duplicates(plan.blocks, spool, 0.8, workers=workers)
    assert (found == rows).all()


def test_the_list_belongs_to_the_data_set(folder, tmp_path):
    """Another job with --overwrite removes it; a file of that name in a foreign folder stays."""
    out = tmp_path / "out"
    run(config(folder, out, drop_repeated_lines=None))
    with pytest.raises(UserError, match=r"--near_duplicates: 0\.8 -> 0\.9"):
        build.open_job(config(folder, out, near_duplicates=0.9, drop_repeated_lines=None))
    run(config(folder, out, near_duplicates=None, drop_repeated_lines=None), overwrite=True)
    assert not (out / "x.duplicates.tsv").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.duplicates.tsv").write_text("mine")
    with pytest.raises(UserError, match="was not written by this script"):
        build.open_job(config(folder, tmp_path / "other"))


def test_data_sets_without_these_flags_store_nothing_about_them():
    assert {"near_duplicates", "drop_repeated_lines"}.isdisjoint(DataConfig().fixed())
    fixed = DataConfig(near_duplicates=0.8, drop_repeated_lines=3).fixed()
    assert (fixed["near_duplicates"], fixed["drop_repeated_lines"]) == (0.8, 3)


@pytest.mark.parametrize("is_built", [False, True])
def test_a_dry_run_prints_what_is_dropped_and_writes_nothing(folder, tmp_path, capsys, is_built):
    out = tmp_path / "out"
    if is_built:
        run(config(folder, out, near_duplicates=None, drop_repeated_lines=None))
    before = content(tmp_path / "out") if is_built else None
    flags = [f"--input_file={folder}/text", f"--vocab_file={folder}/vocab.txt", *FLAGS]
    assert main(["bert-gpu", "data", *flags, f"--output_file={out}/x.tfrecord", "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert "near duplicates: 10 of 33 documents resemble an earlier one\n" in said
    assert "repeated lines: 1 are in more than 12 documents each and are dropped, 22 times" in said
    assert "such as 'Menu and search, " in said and said.count("b.txt.gz\t") == 10
    assert said.endswith("dry run: no data set is written\n")
    assert os.listdir(tmp_path) == ["out"] * is_built
    assert not is_built or content(out) == before


def test_repeated_sentences_do_not_stop_a_strict_job_that_drops_them(folder, tmp_path, capsys):
    parts = [[*part[:3], "Menu items.", "Search 7."] for part in documents(3, 60)]
    write(tmp_path / "text.txt", parts)
    flags = [f"--vocab_file={folder}/vocab.txt", f"--output_dir={tmp_path}/out", "--strict"]
    flags += [f"--input_file={tmp_path}/text.txt", "--objective=full_sentences", "--dry_run"]
    flags += ["--validation_share=0"]
    assert main(["bert-gpu", "data", *flags]) == 2
    assert "as --drop_repeated_lines does" in capsys.readouterr().err
    assert main(["bert-gpu", "data", *flags, "--drop_repeated_lines=3"]) == 0
    assert "repeated lines: 2 are in more than 3 documents" in capsys.readouterr().out


def test_nothing_left_is_an_error_that_names_the_flag(folder, tmp_path):
    write(tmp_path / "text.txt", [["Menu 1"], ["Menu 2"], ["Menu 3"]])
    text = dict(input_file=f"{tmp_path}/text.txt", num_shards=1)
    changes = dict(near_duplicates=None, drop_repeated_lines=2)
    with pytest.raises(UserError, match="a larger --drop_repeated_lines than 2"):
        run(config(folder, tmp_path / "out", **text, **changes))
    assert set(os.listdir(tmp_path / "out")) <= {".x.lock"}


def test_a_full_disk_is_found_before_the_search(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "disk_bytes", lambda *_: 10**18)
    with pytest.raises(UserError, match="leave out --near_duplicates"):
        run(config(folder, tmp_path / "out"))
    assert set(os.listdir(tmp_path / "out")) <= {".x.lock"}
