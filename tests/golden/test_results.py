"""The comparison reports each difference that a user can see, and none of times."""

import json

import numpy as np
import pytest
from safetensors.numpy import save

from tests.golden.results import clean, compare, read_items

METRICS = {"step": 5, "loss": 1.5, "learning_rate": 1e-3, "seconds": 2.0, "tokens_per_second": 9.0}
STDERR = (
    "2026-01-02 03:04:05  step 5/9  loss 1.5  9,000 tokens/s  0:12 left\nsaved\n"
    "I0000 00:00:1767323045.123456   4242 device_compiler.h:196] Compiled cluster using XLA!\n"
)


def items(folder, metrics=METRICS, stderr=STDERR, number=1.0, code=0):
    """Items of a job that wrote metrics, a model and records, and a line on stderr."""
    folder.mkdir()
    weights = {"bias": np.zeros(2, np.float32), "kernel": np.full(2, number, np.float32)}
    (folder / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    (folder / "model.safetensors").write_bytes(save(weights))
    (folder / "x.tfrecord").write_bytes(bytes([255, int(number)]))
    (folder / "log.stdout").write_text("")
    (folder / "log.stderr").write_text(stderr)
    files = ["*.jsonl", "*.safetensors", "*.tfrecord"]
    job = dict(name="run", folder=str(folder), files=files, log=str(folder / "log"))
    return read_items(job, code, {str(folder): "WORK"})


@pytest.mark.parametrize(
    "change, reported",
    [
        (dict(metrics=METRICS | {"seconds": 3.0, "tokens_per_second": 1.0}), {}),
        (dict(stderr=STDERR.replace("03:04:05", "13:14:15").replace("9,000", "8")), {}),
        (dict(stderr=STDERR.replace("0:12", "1:10:12")), {}),
        (dict(stderr=STDERR.replace("3045.123456   4242", "9999.1    17")), {}),
        (dict(metrics=METRICS | {"loss": 1.25}), {"metrics.jsonl": '+ "loss": 1.25,'}),
        (dict(metrics=METRICS | {"learning_rate": 2.0}), {"metrics.jsonl": "learning_rate"}),
        (dict(stderr=STDERR.replace("saved", "stored")), {"stderr": "-saved\n+stored"}),
        (dict(code=2), {"exit code": "-0\n+2"}),
        (dict(number=2.0), {"model.safetensors": "kernel", "x.tfrecord": "sha256"}),
    ],
)
def test_what_a_user_can_see_is_reported_and_times_are_not(tmp_path, change, reported):
    differences = compare(items(tmp_path / "base"), items(tmp_path / "ours", **change))
    headings = [text.splitlines()[0] for text in differences]
    assert sorted(headings) == sorted(f"== run: {name}" for name in reported)
    for text in differences:
        assert reported[text.splitlines()[0].removeprefix("== run: ")] in text


def test_ages_and_rates_in_a_table_of_runs_are_not_reported():
    rows = "a  9 of 9  5.5  9,600  0.0  7 min ago\n", "a  9 of 9  5.5  13,153    0.1   1 h ago\n"
    assert clean(rows[0]) == clean(rows[1]) == "a  9 of 9  5.5  AGO\n"


def test_an_item_of_one_side_and_a_long_difference(tmp_path):
    lines = "\n".join(map(str, range(900)))
    differences = compare({"a": "1", "b": ""}, {"b": lines})
    assert differences[0] == "== a\n   only in BASE"
    assert "more lines" in differences[1] and differences[1].count("\n") < 40
