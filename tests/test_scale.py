"""Memory does not grow with the corpus: neither that of the job that writes the data, all of its
processes together, nor that of a training that reads it.
"""

import sys

import pytest

from tests.cli.pretraining import ROOT

pytestmark = pytest.mark.long

SMALL_MEGABYTES, LARGE_MEGABYTES = 24, 144
GROWTH = LARGE_MEGABYTES - SMALL_MEGABYTES
# the data job, whose workers are threads in a job of fewer bytes than the first argument
JOB = (
    "import sys; from bert_gpu.data import workers; workers.THREADS_BYTES = int(sys.argv[1]); "
    "from bert_gpu.cli import data, flags; "
    "sys.exit(flags.exit_code(data.main, ['data', *sys.argv[2:]]))"
)


@pytest.fixture(scope="module")
def measure():
    """Of benchmarks/helpers: command -> Run, with the highest sum of its processes' memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        from helpers.measure import run
    return lambda command: run([str(part) for part in command], cwd=ROOT).peak_bytes / 1e6


@pytest.fixture(scope="module")
def texts(tmp_path_factory, sample_text):
    """{megabytes: text}, of different words each time that the sample repeats."""
    folder, found = tmp_path_factory.mktemp("texts"), {}
    with open(sample_text) as file:
        sample = file.read().strip() + "\n\n"
    for megabytes in (SMALL_MEGABYTES, LARGE_MEGABYTES):
        found[megabytes] = folder / f"{megabytes}.txt"
        with open(found[megabytes], "w") as file:
            for copy in range(megabytes * 10**6 // len(sample)):
                file.write(sample.replace(" the ", f" the {copy} "))
    return found


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory, sample_text):
    from bert_gpu.__main__ import main

    folder = tmp_path_factory.mktemp("vocab")
    files = [f"--input_file={sample_text}", f"--output_file={folder}/x.tfrecord"]
    assert main(["bert-gpu", "data", *files, "--vocab_size=2000", "--quiet"]) == 0
    return folder / "vocab.txt"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: tmp_path_factory.mktemp(str(name)) for name in (SMALL_MEGABYTES, LARGE_MEGABYTES)}


@pytest.mark.parametrize("threads_bytes", [0, 1 << 40], ids=["processes", "threads"])
def test_the_data_job(texts, vocab_file, folders, measure, threads_bytes):
    """Six times the text takes less than the difference more: neither the text nor the rows, which
    are larger, can all be in memory (with the text alone it is 200 MB).
    """
    peaks = {}
    for megabytes, text in texts.items():
        flags = [
            f"--input_file={text}",
            f"--vocab_file={vocab_file}",
            f"--output_file={folders[megabytes]}/x.tfrecord",
            *"--dupe_factor=1 --num_workers=2 --window_megabytes=2 --quiet --overwrite".split(),
        ]
        peaks[megabytes] = measure([sys.executable, "-c", JOB, threads_bytes, *flags])
        written = sum(path.stat().st_size for path in folders[megabytes].glob("x-*.tfrecord"))
        assert written > 1e6 * megabytes
    assert peaks[LARGE_MEGABYTES] - peaks[SMALL_MEGABYTES] < GROWTH, peaks


def test_a_training_that_reads_it(folders, measure, tmp_path):
    peaks = {}
    for megabytes, folder in folders.items():
        flags = "--model=tiny --num_gpus=0 --num_train_steps=20 --train_batch_size=8 --quiet"
        files = [f"--input_file={folder}/*.tfrecord", f"--output_dir={tmp_path}/{megabytes}"]
        command = [sys.executable, ROOT / "run_pretraining_gpu.py", *flags.split(), *files]
        peaks[megabytes] = measure([*command, "--max_eval_steps=2"])
    assert peaks[LARGE_MEGABYTES] - peaks[SMALL_MEGABYTES] < GROWTH / 2, peaks
