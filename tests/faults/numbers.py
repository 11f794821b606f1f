"""Records with right checksums and a wrong number: each feature at its least - 1, its most + 1,
2^32 away from a good value, and what is no weight.

Law: training and evaluation refuse it and name the record.
"""

import itertools
import shutil

import numpy as np
import tensorflow as tf

from bert_gpu.data import records
from tests.faults import oracle
from tests.faults.machines import Case
from tests.faults.world import DATA_FLAGS, RUN_FLAGS, TINY

LENGTH, VOCAB = 32, 300
WRAP = 1 << 32
# {feature: largest good value}; the least is 0
LARGEST = dict(
    input_ids=VOCAB - 1,
    input_mask=1,
    segment_ids=1,
    masked_lm_positions=LENGTH - 1,
    masked_lm_ids=VOCAB - 1,
    next_sentence_labels=1,
)
NO_WEIGHTS = dict(negative=-1.0, nan=float("nan"), infinite=float("inf"))
RECORD = 1


def cases(world, seed, part=None):
    """Parts: static records in training; None = also compact ones, and evaluation."""
    found = []
    for schema in ("static", "compact"):
        features = [
            f for f in LARGEST if schema == "static" or not f.startswith(("mask", "input_m"))
        ]
        features = [f for f in features if schema == "static" or f != "segment_ids"]
        for feature, (what, value) in itertools.product(features, wrong_numbers().items()):
            found.append((schema, f"{feature} {what}", replacing(feature, value)))
    found += [
        ("static", f"masked_lm_weights {what}", replacing("masked_lm_weights", lambda *_, v=v: v))
        for what, v in NO_WEIGHTS.items()
    ]
    found += [
        ("static", f"{feature} all 0", replacing(feature, lambda *_: 0, everywhere=True))
        for feature in ("input_mask", "masked_lm_weights")
    ]
    found += [
        ("compact", f"starts {what}", replacing("starts", value))
        for what, value in wrong_starts().items()
    ]
    return [
        Case(f"{schema}: {name}, {use}", runner(world, schema, change, use))
        for (schema, name, change), use in itertools.product(found, USES)
        if part is None or (schema == part and use != "evaluate")
    ]


def wrong_numbers():
    return {
        "at least - 1": lambda good, largest: -1,
        "at most + 1": lambda good, largest: largest + 1,
        "+ 2^32": lambda good, largest: good + WRAP,
        "- 2^32": lambda good, largest: good - WRAP,
    }


def wrong_starts():
    return {
        "at least - 1": lambda good, largest: -1,
        "not rising": lambda good, largest: LENGTH - 1,
        "at most + 1": lambda good, largest: LENGTH,
        "+ 2^32": lambda good, largest: good + WRAP,
    }


def replacing(feature, value, everywhere=False):
    """Function of a tf.train.Example that replaces the first or every number of a feature."""

    def change(example):
        found = example.features.feature[feature]
        numbers = getattr(found, found.WhichOneof("kind")).value
        for i in range(len(numbers) if everywhere else 1):
            numbers[i] = value(numbers[i], LARGEST.get(feature))

    return change


USES = ("train", "evaluate")


def runner(world, schema, change, use):
    data = world.data if schema == "static" else compact(world)
    if use == "evaluate":
        trained(world, schema)  # made before any case runs

    def run(folder):
        shutil.copytree(data, folder / "data")
        split = "validation" if use == "evaluate" else "0"
        shard = sorted((folder / "data").glob(f"x-{split}*.tfrecord"))[0]
        rewrite(shard, change)
        given = [f"--input_file={folder}/data/*.tfrecord", f"--output_dir={folder}/run", *TINY]
        given += ["--train_batch_size=1", "--log_steps=1", "--quiet"]
        if use == "evaluate":
            shutil.copytree(trained(world, schema), folder / "run")
            outcome = oracle.call("pretrain", *given, "--do_eval", watch=folder)
        else:
            given += ["--num_train_steps=3", "--noshuffle"]
            outcome = oracle.call("pretrain", *given, watch=folder)
        named = f"{shard}, record {RECORD}: "
        if named not in outcome.stderr:
            return f"the record is not named: {outcome.stderr!r}"
        return outcome.refusal()

    return run


def rewrite(shard, change):
    """Replaces a record of a shard by a changed one, and the index by that of the new content."""
    file = records.RecordFile(str(shard))
    content = [file.read(index) for index in range(len(file))]
    example = tf.train.Example.FromString(content[RECORD])
    change(example)
    content[RECORD] = example.SerializeToString()
    with records.ShardWriter(str(shard)) as writer:
        buffer = np.frombuffer(b"".join(content), np.uint8)
        writer.write(buffer, np.cumsum([0, *map(len, content)]))


def compact(world):
    """A data set whose records hold no masks."""
    return world.make(
        "compact",
        lambda path: world.command(
            "data",
            f"--input_file={world.text}",
            f"--output_file={path}/x.tfrecord",
            "--masking=dynamic",
            *DATA_FLAGS,
        ),
    )


def trained(world, schema):
    """A run on the data set of a schema."""
    if schema == "static":
        return world.run
    data = compact(world)

    def write(path):
        flags = f"--input_file={data}/*.tfrecord", f"--output_dir={path}", *RUN_FLAGS
        world.command("pretrain", *flags)

    return world.make("compact-run", write)
