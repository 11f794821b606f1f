"""Learning calls the learners on a sample of the text; the command and the data job learn the same
vocabulary.
"""

import gzip
import os
import subprocess
import sys

import pytest

from bert_gpu.__main__ import main as command
from bert_gpu.base.errors import UserError
from bert_gpu.text.config import LINES, VocabConfig
from bert_gpu.text.corpus import plan_blocks, read_block
from bert_gpu.text.progress import ByteProgress
from bert_gpu.text.vocabulary import counting, learning, wordpiece_learner


class Console:
    """Remembers what was said and shown: [(what, total, megabytes done last)]."""

    def __init__(self):
        self.said, self.bars = [], []

    def say(self, text):
        self.said.append(text)

    def warn(self, text):
        assert "are copies" in text  # the text here repeats itself

    def progress(self, total, start, what, unit):
        assert start == 0 and unit == "MB"
        self.bars.append([what, total, 0])
        return Bar(self.bars[-1])


class Bar:
    def __init__(self, row):
        self.row = row

    def update(self, done, text):
        self.row[2] = done

    def close(self):
        self.row.append("closed")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "".join(
            f"The painter paints painting {number}.\nAnd walks on.\n\n" for number in range(300)
        )
    )
    return path


def test_only_the_sample_is_learnt_from(text, monkeypatch):
    config, blocks = VocabConfig(vocab_size=60, random_seed=5), plan_blocks([str(text)], 500)
    size = sum(block.num_bytes for block in blocks)
    monkeypatch.setattr(counting, "SAMPLE_BYTES", size // 3)
    content, num_bytes = learning.learn(blocks, config, Console())
    sample = counting.sample_blocks(blocks, size // 3, 5)
    counts = wordpiece_learner.count_words(
        [document for block in sample for document in read_block(block)], True
    )
    assert wordpiece_learner.learn_wordpiece(counts, 60) == content.decode().splitlines()
    assert num_bytes == sum(block.num_bytes for block in sample) < size


@pytest.mark.parametrize(
    "tokenization, name", [("WordPiece", "vocab.txt"), ("SentencePiece", "sentencepiece.model")]
)
def test_the_command_and_the_data_job_learn_the_same(
    tmp_path, sample_text, monkeypatch, tokenization, name
):
    sample_text = os.path.abspath(sample_text)
    monkeypatch.chdir(tmp_path)
    flags = [
        f"--input_file={sample_text}",
        f"--tokenization={tokenization}",
        "--vocab_size=300",
        "--quiet",
    ]
    assert command(["bert-gpu", "vocab", *flags]) == 0
    assert (
        command(["bert-gpu", "data", *flags, "--output_file=out/x.tfrecord", "--dupe_factor=1"])
        == 0
    )
    assert (tmp_path / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_progress_is_that_of_bytes(tmp_path, text):
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(text.read_bytes() * 100, 1))
    packed_size, size = (
        round(num_bytes / 1e6, 1)
        for num_bytes in (packed.stat().st_size, 100 * text.stat().st_size)
    )
    console = Console()
    config = VocabConfig(
        input_file=str(packed), vocab_size=60, vocab_file=str(tmp_path / "out.txt")
    )
    learning.learn_files(config, LINES, console)
    assert console.bars == [
        ["unpacking", packed_size, packed_size, "closed"],
        ["counting words", size, size, "closed"],
    ]
    assert [line for line in console.said if "learning" in line] == [
        f"learning a WordPiece vocabulary of 60 pieces from {size} MB of text"
    ]


def test_progress_that_fails_does_not_end_at_its_total():
    console = Console()
    with pytest.raises(ZeroDivisionError), ByteProgress(console, 8_000_000, "work") as progress:
        progress.add(1_000_000)
        progress.add(2_000_000, 5)
        raise ZeroDivisionError
    assert console.bars == [["work", 8.0, 3.0, "closed"]]


def test_a_folder_of_the_users_is_left_alone(tmp_path, text):
    spool = tmp_path / "out.txt.unpacked"
    spool.mkdir()
    learning.learn_files(
        VocabConfig(input_file=str(text), vocab_size=60, vocab_file=str(tmp_path / "out.txt")),
        LINES,
        Console(),
    )
    assert spool.is_dir()


def test_text_without_words_is_named(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u200b\n")
    with pytest.raises(UserError, match=f"--input_file={path}: has no word"):
        learning.learn_files(
            VocabConfig(input_file=str(path), vocab_file=str(tmp_path / "out.txt")),
            LINES,
            Console(),
        )
    assert os.listdir(tmp_path) == ["text.txt"]


@pytest.mark.long
def test_the_command_names_what_text_without_spaces_needs(tmp_path):
    (tmp_path / "dna.txt").write_text("\n".join("acgt" * (40 + n) for n in range(20)) + "\n")
    flags = ["--input_file=dna.txt", "--vocab_size=20", "--vocab_file=v.txt"]
    command = [sys.executable, "-m", "bert_gpu", "vocab", *flags]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 2 and len(last) <= 300 and os.listdir(tmp_path) == ["dna.txt"]
    assert "200" in last and last.endswith("needs --tokenization=SentencePiece")
