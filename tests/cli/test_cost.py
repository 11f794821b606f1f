"""The cost of a run beside BERT's: the line at the end, the model card and the report say the same,
and what is counted is what its records hold, over several sessions.
"""

import json
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from bert_gpu.__main__ import main as command
from bert_gpu.model.config import preset
from bert_gpu.model.encoders import open_encoder
from bert_gpu.model.flops import FlopsCounter
from bert_gpu.pretrain.objectives.joint import open_objective
from bert_gpu.runs.cost import BERT_FLOPS, BERT_TOKENS, COSTS, describe_cost
from bert_gpu.runs.progress import Progress
from bert_gpu.watch.run_data import read_run
from bert_gpu.watch.sections import summary
from tests.cli.pretraining import pretrain

HIDDEN, MIDDLE = 16, 32  # of SMALL in tests/cli/pretraining.py


@pytest.fixture(scope="module")
def packed(tmp_path_factory, sample_text):
    folder = tmp_path_factory.mktemp("packed")
    flags = [
        f"--input_file={sample_text}",
        f"--output_file={folder}/x.tfrecord",
        "--vocab_size=500",
    ]
    small = ["--dupe_factor=1", "--max_seq_length=32", "--objective=packed", "--quiet"]
    assert command(["bert-gpu", "data", *flags, *small]) == 0
    return folder


def rows(folder):
    """[{feature: array}] of the training records, as TensorFlow parses them."""
    files = [path for path in sorted(folder.glob("*.tfrecord")) if "validation" not in path.name]
    found = []
    for record in tf.data.TFRecordDataset([str(path) for path in files]):
        features = tf.train.Example.FromString(record.numpy()).features.feature
        values = {name: list(feature.int64_list.value) for name, feature in features.items()}
        found.append({name: np.array(value) for name, value in values.items()})
    return found


def expected_cost(folder):
    """{name: number} of one pass over the records: tokens and positions are counted, and FLOPs are
    those of the matrix products of a layer and two heads, written out.
    """
    info = json.loads((folder / "dataset.json").read_text())
    length, predictions = info["max_seq_length"], info["max_predictions_per_seq"]
    is_packed = info["settings"]["objective"] == "packed"
    num_pieces = 500
    tokens = flops = 0
    found = rows(folder)
    for row in found:
        num_real = int(
            np.count_nonzero(row["input_mask"] if "input_mask" in row else row["input_ids"])
        )
        tokens += num_real
        ends = [0, length]
        if is_packed:
            ids = row["sequence_ids"]
            ends = [0, *(np.flatnonzero(np.diff(ids)) + 1), length]
        pairs = sum(int(size) ** 2 for size in np.diff(ends)) / length  # that a token attends to
        num_read = predictions + (0 if is_packed else 1)
        keys = 2 * HIDDEN * HIDDEN  # and values, for all tokens
        others = 2 * HIDDEN * HIDDEN + 2 * pairs * HIDDEN + 2 * HIDDEN * MIDDLE
        head = predictions * (HIDDEN * HIDDEN + HIDDEN * num_pieces)
        pair = 0 if is_packed else HIDDEN * HIDDEN + HIDDEN * 2
        flops += 6 * (length * keys + num_read * others + head + pair)
    return len(found), dict(tokens=tokens, padded_tokens=len(found) * length, model_flops=flops)


@pytest.mark.parametrize("kind", ["data", pytest.param("packed", marks=pytest.mark.long)])
def test_tokens_and_flops_are_those_of_the_records_over_two_sessions(
    kind, request, tmp_path, capsys
):
    """A step takes every record once, so the order does not matter; a session has one. The
    model at a mark has its own cost, although no line of the log is due there.
    """
    folder = request.getfixturevalue(kind)
    num_records, once = expected_cost(folder)
    output = tmp_path / "run"
    batch = [f"--train_batch_size={num_records}", "--noquiet", "--log_steps=100"]
    for steps in (1, 2):
        marks = "--finetune_time_markers=0.6"
        assert pretrain(folder, output, *batch, marks, steps=steps) == 0
        card = (output / "marks" / "0.6" / "README.md").read_text()
        assert f"| cost | {steps * once['padded_tokens']:,} tokens with padding (" in card
        (line,) = re.findall(r"^cost: (.*)$", capsys.readouterr().out, re.M)
        expected = {name: steps * number for name, number in once.items()}
        assert f"{expected['padded_tokens']:,} tokens with padding" in line
        assert f"({expected['tokens']:,} without)" in line
        assert f"{expected['model_flops']:.3g} FLOPs" in line
        share = 100 * expected["padded_tokens"] / 42.6e9
        assert float(re.search(r"([\d.e-]+) % of the tokens", line)[1]) == pytest.approx(
            share, rel=0.01
        )
        lines = [json.loads(text) for text in (output / "metrics.jsonl").read_text().splitlines()]
        last = [entry for entry in lines if "loss" in entry][-1]
        assert last["model_flops"] == pytest.approx(expected["model_flops"], rel=1e-9)
        assert {name: last[name] for name in ("tokens", "padded_tokens")} == {
            name: expected[name] for name in ("tokens", "padded_tokens")
        }
        card = (output / "model" / "README.md").read_text()
        assert f"| cost | {line} |" in card
        assert summary(read_run(str(output), "run"))["cost"] == line


def test_berts_cost_is_that_of_its_million_steps():
    """By hand: of a layer 4 H^2 + 2 H F, and attention 2 S H, a token; the last layer computes only
    its keys and values for tokens that no head reads.
    """
    assert BERT_TOKENS == 42_598_400_000 and 256 * 10**6 * 512 == 131_072_000_000
    encoder = open_encoder(preset("base"))
    objective = open_objective(("mlm", "nsp"), encoder)
    products = [part.products() for part in objective.parts]
    counted = by_hand = 0
    for steps, length, masked in ((900_000, 128, 20), (100_000, 512, 77)):
        heads = list(zip((masked, 1), products, strict=True))
        counted += 256 * steps * FlopsCounter(encoder).per_row(length, heads).model
        layer = 4 * 768**2 + 2 * 768 * 3072 + 2 * length * 768
        unread = (length - masked - 1) * (layer - 2 * 768**2)
        head = masked * (768**2 + 768 * 30522) + 768**2 + 768 * 2
        by_hand += 256 * steps * 6 * (12 * length * layer - unread + head)
    assert counted == pytest.approx(BERT_FLOPS, rel=1e-9) == pytest.approx(by_hand, rel=1e-9)


def test_flops_that_are_not_counted_are_left_out():
    counted = Progress(padded_tokens=BERT_TOKENS // 2, tokens=5)
    assert "(5 without), FLOPs not counted: 50 % of the tokens of BERT" in describe_cost(
        counted.cost()
    )


def test_a_run_that_began_before_costs_were_counted_resumes_without_a_cost(data, tmp_path, capsys):
    """Revision 6ecee0dd stored no hash of the text in dataset.json, and counted no costs."""

    def edit(path, *entries):
        content = json.loads(path.read_text())
        content = {
            name: value for name, value in content.items() if name not in (*entries, "crc32c")
        }
        content.get("hashes", {}).pop("texts", None)
        path.write_text(json.dumps(content))

    folder, output = tmp_path / "data", tmp_path / "run"
    shutil.copytree(data, folder)
    edit(folder / "dataset.json", "text")
    assert pretrain(folder, output, steps=1) == 0
    edit(output / "run.json")
    edit(output / "checkpoints" / "step-00000001" / "progress.json", *COSTS)
    capsys.readouterr()
    assert pretrain(folder, output, "--noquiet", steps=2) == 0
    assert "cost: unknown, because an earlier revision" in capsys.readouterr().out
    last = json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 2 and not set(COSTS) & set(last)
    assert "| cost | unknown" in (output / "model" / "README.md").read_text()
