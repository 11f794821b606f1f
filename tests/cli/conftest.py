"""Data and a finished run of pretraining, made once."""

import pytest

from bert_gpu.__main__ import main as command
from tests.cli.pretraining import pretrain


@pytest.fixture(scope="session")
def data(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("data")
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={folder}/x.tfrecord",
        "--vocab_size=500",
        "--dupe_factor=1",
    ]
    assert command(["bert-gpu", "data", *flags, "--max_seq_length=32", "--quiet"]) == 0
    return folder


@pytest.fixture(scope="session")
def finished(data, tmp_path_factory):
    """A run of 12 steps without interruptions."""
    output = tmp_path_factory.mktemp("run") / "run"
    assert pretrain(data, output, "--save_checkpoints_steps=5") == 0
    return output
