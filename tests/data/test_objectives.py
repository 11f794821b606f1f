"""Every objective and masking, from text to batches: what the pipeline reads is what
the job wrote.
"""

import gzip
import itertools
import os
import re

import numpy as np
import pytest

from bert_gpu.base.errors import UserError
from bert_gpu.data import build, pipeline, records, summary
from bert_gpu.data.config import PADDINGS, DataConfig, InputConfig
from bert_gpu.data.dataset import Dataset
from bert_gpu.text.tokenizers.wordpiece import WordPieceTokenizer

LENGTH = 64
OBJECTIVES = ("nsp", "sop", "full_sentences", "packed")


@pytest.fixture(scope="module")
def made(tmp_path_factory, sample_text):
    """(objective, masking, ...) -> folder with the data set of the sample; each is made once."""
    folders = {}
    vocab_file = None

    def make(objective, masking, **settings):
        nonlocal vocab_file
        key = (objective, masking, *settings.items())
        if key not in folders:
            folder = tmp_path_factory.mktemp(objective)
            flags = dict(
                input_file=sample_text,
                output_file=f"{folder}/x.tfrecord",
                max_seq_length=LENGTH,
                dupe_factor=1,
                vocab_size=600,
            )
            config = DataConfig(
                **flags
                | dict(vocab_file=vocab_file, objective=objective, masking=masking)
                | settings
            )
            build.run_job(build.open_job(config))
            folders[key] = folder
            vocab_file = vocab_file or f"{folder}/vocab.txt"
        return folders[key]

    return make


def open_data(folder, **settings):
    return Dataset(InputConfig(input_file=f"{folder}/*.tfrecord", **settings))


def tokenizer_of(folder):
    return WordPieceTokenizer(f"{folder}/vocab.txt")


def read(folder, indices=None, epoch=0, **settings):
    data = open_data(folder, **settings)
    reader = data.reader("train", tokenizer_of(folder), 1)
    indices = np.arange(len(reader)) if indices is None else np.asarray(indices)
    return reader.read(indices, np.full(len(indices), epoch))


def unmask(batch):
    ids = batch["input_ids"].copy()
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    ids[rows, batch["masked_lm_positions"][rows, columns]] = batch["masked_lm_ids"][rows, columns]
    return ids


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_static_and_dynamic_hold_the_same_rows(made, objective):
    static, dynamic = read(made(objective, "static")), read(made(objective, "dynamic"))
    assert (unmask(static) == unmask(dynamic)).all()
    for name in (
        "input_mask",
        "segment_ids",
        *(["next_sentence_labels"] if objective in ("nsp", "sop") else []),
    ):
        assert (static[name] == dynamic[name]).all()
    assert (
        ("next_sentence_labels" in static)
        == ("next_sentence_labels" in dynamic)
        == (objective in ("nsp", "sop"))
    )
    if objective == "packed":
        assert (static["sequence_ids"] == dynamic["sequence_ids"]).all()
    assert (
        static["masked_lm_positions"].shape
        == dynamic["masked_lm_positions"].shape
        == (len(static["input_ids"]), 10)
    )
    assert (static["masked_lm_weights"].sum(1) == dynamic["masked_lm_weights"].sum(1)).all()


def test_compact_records_are_small(made):
    sizes = [
        sum(os.path.getsize(path) for path in made("packed", masking).glob("*.tfrecord"))
        for masking in ("static", "dynamic")
    ]
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("separator", ["cls_sep", "sep", "none"])
def test_packed_rows_are_full(made, separator):
    folder = made("packed", "dynamic", pack_separator=separator)
    batch = read(folder)
    assert batch["input_mask"].mean() > 0.99
    tokenizer = tokenizer_of(folder)
    ids = unmask(batch)
    assert ((ids == tokenizer.cls_id).any()) == (separator == "cls_sep")
    assert ((ids == tokenizer.sep_id).any()) == (separator != "none")
    begins = np.diff(batch["sequence_ids"], axis=1, prepend=0) > 0
    if separator == "cls_sep":
        assert (ids[begins] == tokenizer.cls_id).all()


def test_masks_are_new_in_every_epoch_and_a_function_of_seed_epoch_and_record(made):
    folder = made("nsp", "dynamic")
    first, again, other = read(folder, epoch=0), read(folder, epoch=0), read(folder, epoch=1)
    assert all((first[name] == again[name]).all() for name in first)
    assert (unmask(first) == unmask(other)).all()
    assert (first["masked_lm_positions"] != other["masked_lm_positions"]).any(1).mean() > 0.95
    part = read(folder, indices=[5, 3])
    assert all((first[name][[5, 3]] == part[name]).all() for name in first)


@pytest.mark.parametrize("settings", [dict(do_whole_word_mask=True), dict(max_ngram_size=3)])
def test_whole_words_when_reading(made, settings):
    folder = made("full_sentences", "dynamic", **settings)
    batch, tokenizer = read(folder), tokenizer_of(folder)
    ids = unmask(batch)
    chosen = np.zeros(ids.shape, bool)
    rows, columns = np.nonzero(batch["masked_lm_weights"] > 0)
    chosen[rows, batch["masked_lm_positions"][rows, columns]] = True
    continues = ~tokenizer.word_starts(ids) & (batch["input_mask"] > 0)
    inside = (
        continues[:, 1:] & (ids[:, :-1] != tokenizer.cls_id) & (ids[:, :-1] != tokenizer.sep_id)
    )
    assert (chosen[:, 1:] == chosen[:, :-1])[inside].all()


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_padding(made, masking, monkeypatch):
    """Trimmed batches hold the same rows; batches of like lengths have less padding; each epoch is
    still a permutation.
    """
    monkeypatch.setattr(pipeline, "LENGTH_MULTIPLE", 8)
    folder = made("nsp", masking, short_seq_prob=1.0, max_seq_length=192)
    tokenizer, shares, orders = tokenizer_of(folder), {}, {}
    whole = read(folder)
    for padding in PADDINGS:
        data = open_data(folder, padding=padding)
        reader = data.reader("train", tokenizer, 1)
        batches = itertools.islice(
            pipeline.training_batches(reader, batch_size=8, position=0, shuffle=True),
            len(reader) // 8,
        )
        tokens = [(batch["input_mask"].sum(), batch["input_mask"].size) for batch in batches]
        shares[padding] = 1 - sum(real for real, _ in tokens) / sum(size for _, size in tokens)
        orders[padding] = reader.epoch_order(0, 8, True)
        assert sorted(orders[padding]) == list(range(len(reader)))
        trimmed = reader.read(np.array([4, 9]), np.array([0, 0]))
        width = trimmed["input_ids"].shape[1]
        assert (trimmed["input_ids"] == whole["input_ids"][[4, 9]][:, :width]).all()
        assert (whole["input_mask"][[4, 9]][:, width:] == 0).all()
    assert shares["uniform"] < 0.5 * shares["dynamic"] < 0.5 * shares["fixed"]
    assert (orders["dynamic"] == orders["fixed"]).all() and not (
        orders["uniform"] == orders["fixed"]
    ).all()


@pytest.mark.parametrize("position", [0, 8, 40, 400])
def test_uniform_padding_resumes(made, position):
    reader = open_data(made("nsp", "dynamic"), padding="uniform").reader(
        "train", tokenizer_of(made("nsp", "dynamic")), 1
    )
    whole, resumed = (
        pipeline.training_batches(reader, batch_size=8, position=start, shuffle=True)
        for start in (0, position)
    )
    for expected, batch in itertools.islice(
        zip(itertools.islice(whole, position // 8, None), resumed, strict=False), 3
    ):
        assert all((expected[name] == batch[name]).all() for name in expected)


def test_validation_is_masked_the_same_way_every_time(made):
    folder = made("packed", "dynamic")
    reader = open_data(folder).reader("validation", tokenizer_of(folder), 1)
    first, again = (list(pipeline.evaluation_batches(reader, batch_size=16)) for _ in range(2))
    assert all((a[name] == b[name]).all() for a, b in zip(first, again, strict=True) for name in a)


def damage(folder, target):
    """A copy of the folder's data set in which the first file is cut off inside its last record."""
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    shard = next(target.glob("x-0*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-9])


@pytest.mark.parametrize("masking", ["static", "dynamic"])
def test_a_file_that_is_cut_off_is_named(made, tmp_path, masking):
    damage(made("nsp", masking), tmp_path)
    with pytest.raises(UserError, match="the file ends inside a record"):
        open_data(tmp_path)


@pytest.mark.parametrize(
    "objective, words",
    [("nsp", "next sentence: (the real one|random)"), ("sop", "order: (as in the text|swapped)")],
)
def test_a_shown_row_says_what_its_label_means(made, objective, words):
    folder = made(objective, "static")
    config = DataConfig(output_file=f"{folder}/x.tfrecord", objective=objective)
    labels = read(folder)["next_sentence_labels"][:20]
    shown = [
        re.search(f"^  {words}$", text, re.MULTILINE)[1]
        for text in summary.decode_instances(config, 20)
    ]
    assert shown == [words.strip(")").split("(")[1].split("|")[label] for label in labels]
    assert len(set(labels)) == 2


def test_gzip(made, tmp_path):
    folder = made("nsp", "static")
    shard = next(folder.glob("x-0*.tfrecord"))
    packed = tmp_path / "x.tfrecord.gz"
    packed.write_bytes(gzip.compress(shard.read_bytes()))
    ours = records.RecordSet([str(packed)])
    assert ours.read(np.arange(len(ours))) == records.RecordSet([str(shard)]).read(
        np.arange(len(ours))
    )
    packed.write_bytes(packed.read_bytes()[:-50])
    with pytest.raises(UserError, match="x.tfrecord.gz: cannot be read"):
        records.RecordFile(str(packed))


def test_compact_records_need_their_dataset_json(made, tmp_path):
    shard = next(made("nsp", "dynamic").glob("x-0*.tfrecord"))
    (tmp_path / "x.tfrecord").write_bytes(shard.read_bytes())
    with pytest.raises(UserError, match="compact records need the dataset.json"):
        Dataset(InputConfig(input_file=str(tmp_path / "x.tfrecord")))


def test_model_garden_reads_ours(made):
    """BertPretrainDataLoader on our static shards gives the features that we read."""
    import tensorflow as tf
    from official.nlp.data import pretrain_dataloader

    folder = made("nsp", "static")
    shard = str(next(folder.glob("x-0*.tfrecord")))
    config = pretrain_dataloader.BertPretrainDataConfig(
        input_path=shard,
        seq_length=LENGTH,
        max_predictions_per_seq=10,
        global_batch_size=4,
        is_training=False,
        drop_remainder=False,
    )
    theirs = next(iter(pretrain_dataloader.BertPretrainDataLoader(config).load()))
    ours = read(folder, indices=range(4))
    for name, own in (
        ("input_word_ids", "input_ids"),
        ("input_type_ids", "segment_ids"),
        ("next_sentence_labels", "next_sentence_labels"),
    ):
        assert (tf.reshape(theirs[name], ours[own].shape).numpy() == ours[own]).all()
    for name in ("input_mask", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
        assert (theirs[name].numpy() == ours[name]).all()
