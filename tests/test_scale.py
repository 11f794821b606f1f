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
    "import sys, bert_gpu.__main__; from bert_gpu.data import workers; "
    "workers.THREADS_BYTES = int(sys.argv[1]); "
    "from bert_gpu.text import corpus; corpus.WINDOW_BYTES = 2_000_000; "
    "from bert_gpu.cli import data, flags; "
    "sys.exit(flags.exit_code(data.main, ['data', *sys.argv[2:]]))"
)


@pytest.fixture(scope="module")
def measure():
    """Of benchmarks/helpers: command -> megabytes, the highest sum of what its processes allocate.
    The libraries' pages are left out: how many of them count depends on who else maps them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        from helpers.measure import run
    return lambda command: run([str(part) for part in command], cwd=ROOT).peak_anonymous_bytes / 1e6


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
            *"--dupe_factor=1 --num_workers=2 --quiet --overwrite".split(),
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


# reads and tokenizes a table of pairs as a fine-tuning does, its tokens on the disk
TABLE = (
    "import sys, bert_gpu.__main__; from bert_gpu.finetune.files import disk_array, encoded; "
    "from bert_gpu.finetune.config import FinetuneConfig, FinetuneSettings; "
    "from bert_gpu.finetune.files.splits import read_splits; "
    "from bert_gpu.finetune.tasks.opening import open_task; "
    "from bert_gpu.text.tokenizers.open import open_tokenizer; "
    "disk_array.IN_MEMORY_BYTES = 1 << 20; config = FinetuneConfig(train_file=sys.argv[1]); "
    "task = open_task(FinetuneSettings(run=config)); "
    "[found] = read_splits(task, config, ['train'])[1]['train']; "
    "chunks = ((chunk.texts_a, chunk.texts_b) for chunk in found.chunks()); "
    "rows = encoded.encode_examples(open_tokenizer(sys.argv[2], True), chunks, "
    "found.label_codes, 128); "
    "assert len(rows) == len(found) > 5e4 and type(rows.ids).__name__ == 'memmap'"
)


def test_a_table_of_pairs(vocab_file, sample_text, measure, tmp_path):
    """Neither the texts of a table nor their tokens are in memory."""
    with open(sample_text) as file:
        lines = [line.strip() for line in file if line.strip()]
    peaks, sizes = {}, {}
    for name, repeats in (("small", 60), ("large", 360)):
        path = tmp_path / f"{name}.tsv"
        with open(path, "w") as file:
            file.write("text_a\ttext_b\tlabel\n")
            for copy in range(repeats):
                rows = zip(lines, reversed(lines), strict=True)
                file.writelines(f"{a} {copy}\t{b}\t{copy % 2}\n" for a, b in rows)
        peaks[name] = measure([sys.executable, "-c", TABLE, path, vocab_file])
        sizes[name] = path.stat().st_size / 1e6
    growth = sizes["large"] - sizes["small"]
    assert growth > 60 and peaks["large"] - peaks["small"] < growth / 2, (peaks, sizes)
