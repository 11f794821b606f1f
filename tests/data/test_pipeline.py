"""Laws of the input pipeline: order is a function of (seed, epoch), a position is a count of
records, and each record is read once.
"""

import itertools
import threading

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.data import dataset, examples, pipeline, records
from bert_gpu.data.build import open_job, run_job
from bert_gpu.data.config import DataConfig, InputConfig

N = 23


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """23 records in two files; record i has input_ids[0] = i."""
    folder = tmp_path_factory.mktemp("records")
    for part, (start, stop) in enumerate([(0, 10), (10, N)]):
        ids = np.zeros((stop - start, 8), np.int64)
        ids[:, 0] = np.arange(start, stop)
        values = dict(input_ids=ids, input_mask=ids * 0 + 1, segment_ids=ids * 0)
        values |= dict(
            masked_lm_positions=ids[:, :2] * 0,
            masked_lm_ids=ids[:, :2],
            masked_lm_weights=np.ones((len(ids), 2), np.float32),
        )
        with records.ShardWriter(str(folder / f"x-{part:05d}-of-00002.tfrecord")) as writer:
            writer.write(*examples.encode_examples(values))
    return dataset.Dataset(InputConfig(input_file=str(folder / "*.tfrecord")))


def stream(data, batch_size, position=0, num_batches=8, seed=1, shuffle=True):
    reader = data.reader("train", None, seed)
    batches = pipeline.training_batches(
        reader, batch_size=batch_size, position=position, shuffle=shuffle
    )
    return np.concatenate(
        [batch["input_ids"][:, 0] for batch in itertools.islice(batches, num_batches)]
    ).tolist()


def test_an_epoch_is_a_permutation_and_epochs_differ(data):
    seen = stream(data, 1, num_batches=3 * N)
    epochs = [seen[i : i + N] for i in range(0, 3 * N, N)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_without_shuffle_the_files_order(data):
    assert stream(data, 5, num_batches=5, shuffle=False) == [*range(N), 0, 1]


@pytest.mark.parametrize("position", [0, 1, 22, 23, 24, 100])
def test_position_is_a_number(data, position):
    assert stream(data, 4, position) == stream(data, 1, num_batches=position + 32)[position:]


def test_the_stream_does_not_depend_on_the_batch_size(data):
    assert (
        stream(data, 2, num_batches=30)
        == stream(data, 60, num_batches=1)
        == stream(data, 6, num_batches=10)
    )


def test_seeds_differ(data):
    assert stream(data, 4, seed=1) != stream(data, 4, seed=2)


@pytest.mark.parametrize("batch_size", [1, 5, 23, 64])
def test_evaluation_sees_each_record_once(data, batch_size):
    batches = list(
        pipeline.evaluation_batches(data.reader("train", None, 1), batch_size=batch_size)
    )
    assert {len(batch["input_ids"]) for batch in batches} == {batch_size}
    weights = np.concatenate([batch["row_weights"] for batch in batches]) > 0
    assert np.concatenate([batch["input_ids"][:, 0] for batch in batches])[
        weights
    ].tolist() == list(range(N))


def test_evaluation_can_be_cut(data):
    assert (
        len(
            list(
                pipeline.evaluation_batches(
                    data.reader("train", None, 1), batch_size=5, max_batches=2
                )
            )
        )
        == 2
    )


def test_prefetch_keeps_order_raises_and_ends():
    assert list(pipeline.prefetch(iter(range(100)))) == list(range(100))

    def broken():
        yield 1
        raise UserError("the third file is gone")

    ahead = pipeline.prefetch(broken())
    assert next(ahead) == 1
    with pytest.raises(UserError, match="third file"):
        next(ahead)


def test_prefetch_can_be_left_early():
    ahead = pipeline.prefetch(itertools.count())
    next(ahead)
    ahead.close()
    assert not any(thread.name.startswith("input pipeline") for thread in threading.enumerate())


@pytest.mark.parametrize(
    "changes, complaint",
    [
        (dict(input_file="nowhere/*.tfrecord"), "--input_file=nowhere/.*no file matches"),
        (dict(input_file="no, where"), "=no: no file matches; .*; commas separate names"),
        (dict(input_file=","), "names no file"),
        (dict(max_seq_length=16), "--max_seq_length=16: the records of .* have rows of 8 tokens"),
        (dict(eval_input_file="nowhere"), "--eval_input_file=nowhere"),
    ],
)
def test_bad_input(data, changes, complaint):
    settings = dict(input_file=f"{data.folder}/*.tfrecord") | changes
    with pytest.raises(UserError, match=complaint):
        dataset.Dataset(InputConfig(**settings))


def test_other_records_are_refused(data, tmp_path):
    with records.ShardWriter(str(tmp_path / "y.tfrecord")) as writer:
        writer.write(*examples.encode_examples(dict(image=np.zeros((3, 2), np.int64))))
    with pytest.raises(UserError, match="not BERT pretraining data"):
        dataset.Dataset(InputConfig(input_file=str(tmp_path / "y.tfrecord")))


def test_several_folders(data, tmp_path):
    """Validation shards of every folder are left out, and folders with other settings
    are refused.
    """
    folders = []
    for name, length in (("a [1]", 32), ("b", 32), ("c", 64)):
        text = tmp_path / f"{name}.txt"
        text.write_text(
            "".join(
                f"The {word} man went home.\nHe was {word}.\n\n"
                for word in ("old", "young", "tall", "small") * 3
            )
        )
        folder = tmp_path / name
        vocab = None if not folders else f"{folders[0]}/vocab.txt"
        config = DataConfig(
            input_file=str(text),
            output_file=f"{folder}/x.tfrecord",
            vocab_size=100,
            vocab_file=vocab,
            max_seq_length=length,
            dupe_factor=1,
        )
        run_job(open_job(config))
        folders.append(folder)
    both = dataset.Dataset(
        InputConfig(input_file=f"{folders[0]}/*.tfrecord,{folders[1]}/*.tfrecord")
    )
    assert (
        not any("validation" in file.path for file in both.train.files)
        and len(both.train.files) == 2
    )
    assert (
        all("validation" in file.path for file in both.validation.files)
        and len(both.validation.files) == 2
    )
    with pytest.raises(UserError, match="differ in max_seq_length"):
        dataset.Dataset(InputConfig(input_file=f"{folders[0]}/*.tfrecord,{folders[2]}/*.tfrecord"))
    with pytest.raises(UserError, match="has no dataset.json, but"):
        dataset.Dataset(InputConfig(input_file=f"{folders[0]}/*.tfrecord,{data.folder}/*.tfrecord"))
    named = dataset.Dataset(InputConfig(input_file=f"{folders[0]}/,{folders[1]}"))
    assert named.identity() == both.identity()
    assert [file.path for file in named.validation.files] == [
        file.path for file in both.validation.files
    ]
    with pytest.raises(UserError, match="is a folder without dataset.json; name the files"):
        dataset.Dataset(InputConfig(input_file=str(tmp_path)))
    shard = both.train.files[0].path
    alone = dataset.Dataset(
        InputConfig(input_file=f"{folders[1]}/*.tfrecord", eval_input_file=shard)
    )
    assert [file.path for file in alone.validation.files] == [shard]


def test_foreign_records_may_have_rows_without_predictions(tmp_path):
    """Google's programs write them when they mask whole words; nothing says there that they do."""
    values = {name: np.ones((3, 8), np.int64) for name in ("input_ids", "input_mask")}
    values |= {
        name: np.zeros((3, 2), np.int64) for name in ("masked_lm_positions", "masked_lm_ids")
    }
    values["segment_ids"] = np.zeros((3, 8), np.int64)
    values["masked_lm_weights"] = np.array([[1, 1], [0, 0], [1, 0]], np.float32)
    with records.ShardWriter(str(tmp_path / "x.tfrecord")) as writer:
        writer.write(*examples.encode_examples(values))
    foreign = dataset.Dataset(InputConfig(input_file=str(tmp_path / "x.tfrecord")))
    batch = foreign.reader("train", None, 1).read(np.arange(3), np.zeros(3, int))
    assert batch["masked_lm_weights"].sum(1).tolist() == [2, 0, 1]


def test_numbers_beyond_the_model_are_refused(data):
    reader = data.reader("train", None, 1, limits=dict(input_ids=20))
    reader.read(np.arange(20), np.zeros(20, int))
    with pytest.raises(UserError, match="record 10: input_ids has 20, not 0 to 19"):
        reader.read(np.arange(15, 23), np.zeros(8, int))
