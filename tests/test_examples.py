"""The bundled text and the pairs are what sample_text.md says they are."""

import hashlib
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
SPLITS = ("train", "dev", "test")


def documents(path):
    return (ROOT / path).read_text().strip("\n").split("\n\n")


def rows(split):
    lines = (ROOT / "examples" / "pairs" / f"{split}.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines[1:]]


def test_the_pairs_are_made_from_the_held_out_text(tmp_path):
    call = [sys.executable, ROOT / "examples" / "make_pairs.py", f"--output_dir={tmp_path}"]
    subprocess.run([*call, f"--text={ROOT}/examples/held_out.txt"], check=True)
    for split in SPLITS:
        made, committed = (
            hashlib.sha256((folder / f"{split}.tsv").read_bytes()).hexdigest()
            for folder in (tmp_path, ROOT / "examples" / "pairs")
        )
        assert made == committed, split


def test_no_sentence_is_in_both():
    bundled = set((ROOT / "sample_text.txt").read_text().split("\n")) - {""}
    held_out = set((ROOT / "examples" / "held_out.txt").read_text().split("\n")) - {""}
    assert len(held_out) > 4000 and not held_out & bundled


def test_labels_say_whether_passages_are_of_one_document():
    whole = [" ".join(document.split()) for document in documents("examples/held_out.txt")]
    of_split = {}
    for split in SPLITS:
        used = set()
        for _, first, second, label in rows(split):
            homes = [
                {i for i, text in enumerate(whole) if part in text} for part in (first, second)
            ]
            assert bool(homes[0] & homes[1]) == (label == "1") and all(homes)
            used |= homes[0] | homes[1]
        of_split[split] = used
        labels = [label for *_, label in rows(split)]
        assert labels.count("1") == labels.count("0") == len(labels) / 2
    assert not of_split["train"] & (of_split["dev"] | of_split["test"])
    assert not of_split["dev"] & of_split["test"]


def test_the_table_of_sources_adds_up():
    table = (ROOT / "sample_text.md").read_text()
    lines = [line.split("|")[2:5] for line in table.splitlines() if line.startswith("| ")][1:]
    numbers = [[float(cell.replace(",", "")) for cell in line] for line in lines]
    bundled, held_out, megabytes = map(sum, zip(*numbers, strict=True))
    assert bundled == len(documents("sample_text.txt"))
    assert held_out == len(documents("examples/held_out.txt"))
    assert abs(megabytes - (ROOT / "sample_text.txt").stat().st_size / 1e6) < 0.03
