"""Counts of blocks are those of the whole text, for any number of processes; a sample depends on
plan and seed alone.
"""

import collections
import os
import signal
import subprocess
import sys

import psutil
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.text import parallel
from bert_gpu.text.corpus import plan_blocks, read_block
from bert_gpu.text.parallel import Processes, Workers
from bert_gpu.text.tokenizers import sentence_piece
from bert_gpu.text.vocabulary import wordpiece_learner
from bert_gpu.text.vocabulary.counting import count_words_of_blocks, sample_blocks


@pytest.fixture(scope="module")
def blocks(tmp_path_factory):
    path = tmp_path_factory.mktemp("counting") / "text.txt"
    texts = [
        f"Sentence {number} of {number % 7} ﬁne words, naïve.\nAnd another.\n\n" * (number % 3 + 1)
        for number in range(300)
    ]
    path.write_text("".join(texts))
    return plan_blocks([str(path)], 500)


def test_counts_are_those_of_the_whole_text(blocks):
    documents = [document for block in blocks for document in read_block(block)]
    for do_lower_case in (True, False):
        assert count_words_of_blocks(blocks, do_lower_case) == wordpiece_learner.count_words(
            documents, do_lower_case
        )
    assert count_words_of_blocks(
        blocks, True, tokenization="SentencePiece"
    ) == sentence_piece.count_words(documents)


def test_two_processes_give_what_one_gives(blocks, monkeypatch):
    alone = count_words_of_blocks(blocks, True, Workers(1))
    monkeypatch.setattr(parallel, "IN_PROCESS_BYTES", 0)
    reported = []
    counts = count_words_of_blocks(
        blocks, True, Workers(2), report=lambda num_bytes, _: reported.append(num_bytes)
    )
    assert counts == alone and sum(reported) == sum(block.num_bytes for block in blocks)
    with pytest.raises(UserError, match="a worker process was killed.*--num_workers"):
        list(Processes(1).run(die, [None], lambda *_: None))


def die(task, report):
    os.kill(os.getpid(), 9)


HANGS = """
import sys, time
from bert_gpu.cli import flags
from bert_gpu.text import parallel

class Block:
    start, end, num_bytes = 0, 1, 1

def hang(blocks):
    time.sleep(600)

def run(argv):
    parallel.IN_PROCESS_BYTES = 0
    list(parallel.map_blocks(hang, [Block(), Block()], parallel.Workers(2)))

if __name__ == "__main__":
    sys.exit(flags.exit_code(run, sys.argv))
"""


def is_worker(process):
    """Whether a process is a worker of multiprocessing that has started; False when it is gone."""
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:  # ended since it was listed, waited for or not
        return False


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_their_parent(tmp_path, signum):
    """Quietly on Ctrl-C, which all processes of a terminal hear; here it comes while they start."""
    (tmp_path / "hangs.py").write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "hangs.py"],
        start_new_session=True,
        stderr=subprocess.PIPE,
        # a job in the background of a shell would ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    workers = []
    while len(workers) < 2:
        assert process.poll() is None
        found = psutil.Process(process.pid).children(recursive=True)
        workers = [child for child in found if is_worker(child)]
    if signum == signal.SIGINT:
        os.killpg(process.pid, signum)
    else:
        process.kill()
    said = process.communicate(timeout=600)[1]
    assert said == b"" or signum == signal.SIGKILL  # then Python counts its semaphores
    assert process.returncode == (130 if signum == signal.SIGINT else -signum)
    assert not psutil.wait_procs(workers, timeout=600)[1]


def test_a_sample_is_whole_blocks_of_about_the_size(blocks):
    size = sum(block.num_bytes for block in blocks)
    assert sample_blocks(blocks, size, 1) == blocks
    sample = sample_blocks(blocks, size // 3, 1)
    assert sample == sorted(sample, key=blocks.index) and len(set(sample)) == len(sample)
    assert size // 3 - 1200 < sum(block.num_bytes for block in sample) <= size // 3
    assert (
        sample == sample_blocks(list(blocks), size // 3, 1) != sample_blocks(blocks, size // 3, 2)
    )
    assert len(sample_blocks(blocks, 1, 1)) == 1
    assert sample_blocks(sample, size // 3, 1) == sample


def test_every_block_is_drawn_about_as_often(blocks):
    size = sum(block.num_bytes for block in blocks)
    drawn = collections.Counter(
        block for seed in range(200) for block in sample_blocks(blocks, size // 2, seed)
    )
    assert set(drawn) == set(blocks) and all(60 < drawn[block] < 140 for block in blocks)
