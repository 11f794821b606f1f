"""Records: what is written reads back the same, by us and by TensorFlow; errors
name the broken file.
"""

import gzip
import os

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.base.errors import UserError
from bert_gpu.data import examples, records
from bert_gpu.data.config import InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.data.pipeline import training_batches


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
        assert (value == values[name][indices].reshape(value.shape)).all()


def test_tensorflow_reads_the_same_records(shard):
    ours = records.RecordSet([shard])
    theirs = [record.numpy() for record in tf.data.TFRecordDataset(shard)]
    assert theirs == ours.read(np.arange(20))


def others_records(length, v2_names):
    """Three records as others' create_pretraining_data.py write them, and their values.

    Read in the sources: guotong1988/BERT-GPU (Google's script of 2018; run_pretraining_gpu_v2.py
    reads the same) and NVIDIA/DeepLearningExamples, TensorFlow2/LanguageModeling/BERT (Model
    Garden's script; input_pipeline.py reads the same). Both write seven features and no other:
    int64 input_ids, input_mask, segment_ids of max_seq_length; int64 masked_lm_positions and
    masked_lm_ids and float32 masked_lm_weights of max_predictions_per_seq; one int64
    next_sentence_labels. Padding is 0. NVIDIA's has Model Garden's --use_v2_feature_names, too.
    Assumed, as no file of theirs is at hand: their defaults of 64 (BERT-GPU) and 128 (NVIDIA)
    tokens, 20 predictions.
    """
    integers = lambda row: tf.train.Feature(int64_list=tf.train.Int64List(value=row))  # noqa: E731
    values = []
    for num_tokens, num_masked, label in ((length, 20, 0), (17, 3, 1), (5, 1, 0)):
        tokens, masked = range(num_tokens), range(num_masked)
        values.append(
            dict(
                input_ids=[100 + token for token in tokens] + [0] * (length - num_tokens),
                input_mask=[1] * num_tokens + [0] * (length - num_tokens),
                segment_ids=[int(token > 2) for token in tokens] + [0] * (length - num_tokens),
                masked_lm_positions=[1 + index for index in masked] + [0] * (20 - num_masked),
                masked_lm_ids=[30521 - index for index in masked] + [0] * (20 - num_masked),
                masked_lm_weights=[1.0] * num_masked + [0.0] * (20 - num_masked),
                next_sentence_labels=[label],
            )
        )
    renamed = dict(input_ids="input_word_ids", segment_ids="input_type_ids") if v2_names else {}
    serialized = []
    for row in values:
        features = {
            renamed.get(name, name): integers(value)
            for name, value in row.items()
            if name != "masked_lm_weights"
        }
        features["masked_lm_weights"] = tf.train.Feature(
            float_list=tf.train.FloatList(value=row["masked_lm_weights"])
        )
        features = tf.train.Features(feature=features)
        serialized.append(tf.train.Example(features=features).SerializeToString())
    return serialized, values


@pytest.mark.parametrize(
    "length, v2_names, ending, compression",
    [
        (64, False, "tfrecords", ""),  # BERT-GPU: tmp_data/sample2.tfrecords
        (128, False, "tfrecord", ""),  # NVIDIA
        (128, True, "tfrecord", "GZIP"),  # NVIDIA, --use_v2_feature_names --gzip_compress
    ],
    ids=["BERT-GPU", "NVIDIA", "NVIDIA-v2-gzip"],
)
def test_others_records_are_read(tmp_path, length, v2_names, ending, compression):
    """The whole way from others' files to a training batch, without an index or dataset.json."""
    serialized, values = others_records(length, v2_names)
    path = str(tmp_path / f"theirs.{ending}")
    with tf.io.TFRecordWriter(path, compression) as writer:
        for record in serialized:
            writer.write(record)
    dataset = Dataset(InputConfig(input_file=path, shuffle=False))
    assert dataset.schema == examples.Schema("static", length, 20, True, v2_names=v2_names)
    reader = dataset.reader("train", None, 1)
    batch = next(training_batches(reader, batch_size=3, position=0, shuffle=False))
    assert batch.keys() >= values[0].keys()
    for name in values[0]:
        expected = np.squeeze([row[name] for row in values])
        np.testing.assert_array_equal(batch[name], expected, err_msg=name)
        is_float = name == "masked_lm_weights"
        assert batch[name].dtype == (np.float32 if is_float else np.int32), name


def test_files_without_index(shard):
    indexed = records.RecordFile(shard)
    os.remove(records.index_path(shard))
    scanned = records.RecordFile(shard)
    assert (scanned.offsets == indexed.offsets).all() and (scanned.crcs == indexed.crcs).all()
    assert scanned.fingerprint() == indexed.fingerprint()


def swap_records(path, first, second):
    """Exchanges two records of equal length: every one of them stays whole."""
    offsets = records.RecordFile(path).offsets
    with open(path, "rb+") as file:
        content = bytearray(file.read())
        parts = [slice(int(offsets[index]), int(offsets[index + 1])) for index in (first, second)]
        content[parts[0]], content[parts[1]] = content[parts[1]], content[parts[0]]
        file.seek(0)
        file.write(content)


def test_other_whole_records_are_not_taken_for_those_that_were_written(shard):
    sizes = np.diff(records.RecordFile(shard).offsets)
    first = 3
    second = next(i for i in range(first + 1, 20) if sizes[i] == sizes[first])
    before = records.RecordFile(shard)
    whole, foreign = before.read(first), before.fingerprint()
    opened_before = records.RecordFile(shard)
    swap_records(shard, first, second)
    for file in (opened_before, records.RecordFile(shard)):
        with pytest.raises(
            UserError, match=rf"00001.tfrecord: record {first} is not the one that was written"
        ):
            file.read(first)
    os.remove(records.index_path(shard))
    foreign_file = records.RecordFile(shard)
    assert foreign_file.read(second) == whole  # whole records of some other tool
    assert foreign_file.fingerprint() != foreign  # but a run notices on its resume
    swap_records(shard, first, second)
    with pytest.raises(UserError, match="is not the one that was written"):
        foreign_file.read(first)


def test_a_shard_of_another_size_is_not_the_one_of_its_index(shard, tmp_path):
    other = write(tmp_path / "b.tfrecord", features(23))
    os.replace(other, shard)
    with pytest.raises(UserError, match="holds other records than a-00000-of-00001.index says"):
        records.RecordFile(shard)


def test_every_flipped_bit_of_an_index_is_noticed_or_of_no_effect(shard):
    path = records.index_path(shard)
    with open(path, "rb") as file:
        content = file.read()
    expected = records.RecordFile(shard)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with open(path, "wb") as file:
            file.write(flipped)
        if bit < 8 * len(records.INDEX_MAGIC):  # then it is no index of ours, and not used
            read = records.RecordFile(shard)
            assert (read.offsets == expected.offsets).all() and (read.crcs == expected.crcs).all()
        else:
            with pytest.raises(UserError, match=r"a-00000-of-00001.index: is corrupt; delete it"):
                records.RecordFile(shard)


def test_a_file_that_becomes_shorter_while_it_is_read(shard):
    file = records.RecordFile(shard)
    os.truncate(shard, int(file.offsets[7]) + 5)
    for index in (7, 19):
        with pytest.raises(UserError, match=rf"the file now ends inside record {index}"):
            file.read(index)
    assert file.read(6) is not None


def test_more_shards_than_open_files_allowed(tmp_path, monkeypatch):
    wanted = []
    monkeypatch.setattr(records.resource, "getrlimit", lambda kind: (256, 4096))
    monkeypatch.setattr(records.resource, "setrlimit", lambda kind, limits: wanted.append(limits))
    records.allow_files(100)
    records.allow_files(1000)
    records.allow_files(10000)
    assert wanted == [(1000 + records.SPARE_FILES, 4096), (4096, 4096)]


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
def test_a_gzip_shard_of_an_earlier_revision_is_read_whole_or_not_at_all(tmp_path, keep_index):
    """Its index has the offsets of the unpacked content."""
    path = str(tmp_path / "a.tfrecord")
    with records.ShardWriter(path) as writer:
        writer.write(*examples.encode_examples(features(300)))
    whole = records.RecordSet([path])
    expected = whole.read(np.arange(len(whole)))
    with open(path, "rb+") as file:
        content = gzip.compress(file.read())
        file.seek(0)
        file.write(content)
        file.truncate()
    if not keep_index:
        os.remove(records.index_path(path))
    assert records.RecordSet([path]).read(np.arange(300)) == expected
    os.truncate(path, len(content) * 2 // 3)
    with pytest.raises(UserError, match="a.tfrecord: cannot be read"):
        records.RecordFile(path)


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
