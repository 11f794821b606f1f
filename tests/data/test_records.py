"""Records: what is written reads back the same, by us and by TensorFlow; errors
name the broken file.
"""

import os

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.data import examples, records
from bert_gpu.settings import UserError


def features(num_rows=20, seed=0):
    rng = np.random.default_rng(seed)
    return dict(
        input_ids=rng.integers(0, 40000, (num_rows, 12)).astype(np.int32),
        input_mask=rng.integers(0, 2, (num_rows, 12)),
        segment_ids=rng.integers(0, 2, (num_rows, 12)).astype(np.int32),
        masked_lm_positions=rng.integers(0, 12, (num_rows, 3)).astype(np.int32),
        masked_lm_ids=rng.integers(0, 2**40, (num_rows, 3)),
        masked_lm_weights=rng.random((num_rows, 3)).astype(np.float32),
        next_sentence_labels=rng.integers(0, 2, (num_rows, 1)),
    )


def write(path, values):
    with records.ShardWriter(str(path)) as writer:
        writer.write(*examples.encode_examples(values))
    return str(path)


@pytest.fixture
def shard(tmp_path):
    return write(tmp_path / "a-00000-of-00001.tfrecord", features())


def test_bytes_equal_protobufs_own():
    buffer, splits = examples.encode_examples(features())
    for start, end in zip(splits[:-1], splits[1:], strict=True):
        record = buffer[start:end].tobytes()
        assert tf.train.Example.FromString(record).SerializeToString(deterministic=True) == record


def test_reads_back(shard):
    values = features()
    read = records.RecordSet([shard])
    schema = examples.sniff_schema(read.read(np.array([0]))[0])
    assert schema == examples.Schema("static", 12, 3, True)
    indices = np.array([5, 0, 19, 5])
    parsed = examples.parse_static(read.read(indices), schema)
    for name, value in parsed.items():
        expected = values[name][indices]
        if name != "masked_lm_ids":  # int32 in the model
            assert (value.numpy() == expected.reshape(value.shape)).all()


def test_tensorflow_reads_the_same_records(shard):
    ours = records.RecordSet([shard])
    theirs = [record.numpy() for record in tf.data.TFRecordDataset(shard)]
    assert theirs == ours.read(np.arange(20))


def test_files_without_index(shard):
    indexed = records.RecordFile(shard)
    os.remove(records.index_path(shard))
    scanned = records.RecordFile(shard)
    assert (scanned.offsets == indexed.offsets).all()


def test_several_files_are_one_sequence(tmp_path):
    paths = [write(tmp_path / f"{i}.tfrecord", features(5 + i, i)) for i in range(3)]
    together = records.RecordSet(paths)
    assert len(together) == 5 + 6 + 7
    separate = [
        record
        for path in paths
        for record in records.RecordSet([path]).read(np.arange(len(records.RecordFile(path))))
    ]
    assert together.read(np.arange(18)) == separate
    assert together.locate(11) == f"{paths[2]}, record 0"


def test_a_shard_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), records.ShardWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(*examples.encode_examples(features()))
        assert not list(tmp_path.glob("*.tfrecord*"))
        raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep_index", [True, False])
def test_truncated(shard, keep_index):
    with open(shard, "rb+") as file:
        file.truncate(os.path.getsize(shard) - 5)
    if not keep_index:
        os.remove(records.index_path(shard))
    with pytest.raises(
        UserError, match=r"00001.tfrecord: the file ends inside a record \(byte \d+\)"
    ):
        records.RecordFile(shard)


@pytest.mark.parametrize("keep_index", [True, False])
def test_flipped_bit(shard, keep_index):
    file = records.RecordFile(shard)
    offset = int(file.offsets[7]) + 40
    with open(shard, "rb+") as raw:
        raw.seek(offset)
        byte = raw.read(1)
        raw.seek(offset)
        raw.write(bytes([byte[0] ^ 4]))
    if not keep_index:
        os.remove(records.index_path(shard))
    broken = records.RecordFile(shard)
    with pytest.raises(UserError, match=rf"record 7 is corrupt \(byte {int(file.offsets[7])}\)"):
        broken.read(7)
    assert broken.read(6) == file.read(6)


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "empty"),
        (b"hello " * 20, "not a TFRecord"),
        (b"\x1f\x8b" + b"x" * 50, "cannot be read"),
    ],
)
def test_no_tfrecord(tmp_path, content, complaint):
    path = tmp_path / "odd.tfrecord"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        records.RecordFile(str(path))


def test_missing_file():
    with pytest.raises(UserError, match="nowhere.tfrecord: cannot be read"):
        records.RecordFile("nowhere.tfrecord")
