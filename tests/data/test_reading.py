"""How often a data job reads its text."""

import os

import pytest

from bert_gpu.data import build
from bert_gpu.data.config import DataConfig
from bert_gpu.text import corpus, quality
from bert_gpu.text.formats import archives, inputs


class CountedFile:
    """A file that appends the number of bytes of each read to a list."""

    def __init__(self, file, counts):
        self.file, self.counts = file, counts
        self.seek = file.seek

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.file.close()

    def read(self, *size):
        content = self.file.read(*size)
        self.counts.append(len(content))
        return content


@pytest.mark.parametrize("window_bytes", [8_000_000, 50_000])
def test_uncompressed_text_is_read_for_the_plan_the_words_and_the_shards(
    tmp_path, sample_text, monkeypatch, window_bytes
):
    """With default flags. Samples are as small beside this text as they are beside a large one."""
    for module, name, num_bytes in (
        (inputs, "HEAD_BYTES", 500),
        (archives, "PIECE_BYTES", 500),
        (quality, "SAMPLE_BYTES", 100),
        (corpus, "WINDOW_BYTES", window_bytes),
    ):
        monkeypatch.setattr(module, name, num_bytes)
    counts = []
    open_binary = corpus.open_binary
    monkeypatch.setattr(corpus, "open_binary", lambda path: CountedFile(open_binary(path), counts))
    settings = dict(input_file=str(sample_text), output_file=f"{tmp_path}/x.tfrecord")
    made = build.build(DataConfig(**settings))
    assert made.num_train_instances and made.num_validation_instances
    assert 3 <= sum(counts) / os.path.getsize(sample_text) <= 3.1
